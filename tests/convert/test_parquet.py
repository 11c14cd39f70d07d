"""Parquet files against what was recorded, in three readers, and back."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, Tuple
from hypothesis import given
from hypothesis import strategies as st

import diskreplay
from diskreplay.errors import FormatError, InvalidInputError, LockedError, StorageError
from tests.convert.recorded import END, FEW, ON, STREAM, Recorded, few_examples, few_open_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from diskreplay.convert.parquet import from_parquet, to_parquet  # noqa: E402

modest = few_examples(15)
FEW = FEW | {"prioritized": False}


def check_table(table, recorded):
    """The transitions of `table` are those recorded."""
    rows = [row for row in table.to_pylist() if not row.get("is_final", False)]
    expected = recorded.transitions()
    assert [(row["env"], row["row"]) for row in rows] == [(r["env"], r["row"]) for r in expected]
    for found, row in zip(rows, expected, strict=True):
        for name in ("episode", "step", "reward", "terminated", "truncated", "env_", "log_prob"):
            assert found[name] == row[name], name
        assert found["return_to_go"] == pytest.approx(row["return_to_go"], rel=1e-9)
        assert found["action"] == row["action"].tolist()
        assert found["choices"] == row["choices"].reshape(-1).tolist()
        for prefix, seen in (("", row), ("final_", row["final"])):
            for name, shown in (("camera", bytes), ("pose", list), ("door", int)):
                value = found[f"{prefix}observation/{name}"]
                if seen is None:
                    assert value is None
                else:
                    assert value == shown(
                        seen[f"observation/{name}"].ravel().tolist()
                        if name != "door"
                        else seen["observation/door"]
                    )


@pytest.mark.costly
@modest
@given(stream=STREAM, partition=st.sampled_from([None, "env", "episodes"]))
def test_round_trip(tmp_path_factory, stream, partition):
    path = tmp_path_factory.mktemp("s")
    recorded = Recorded(path / "store", **stream)
    with recorded.buffer as buffer:
        out = path / "table.parquet"
        to_parquet(buffer, out, partition=partition, episodes_per_file=2)
        if partition is None:
            check_table(pq.read_table(out), recorded)
        with from_parquet(out, path / "back") as back:
            envs = [recorded.exported(env) for env in range(recorded.num_envs)]
            recorded.check_store(back, envs)
            if stream["prioritized"]:
                dropped = [len(recorded.rows[e]) - len(envs[e]) for e in range(len(envs))]
                recorded.check_priorities(back, dropped)
            check_options(back, buffer)


def check_options(found, expected):
    assert type(found) is type(expected)
    for name in ("observation_space", "action_space", "extras", "fields", "capacity", "num_envs",
                 "stack_size", "stack_padding", "update_horizon", "gamma",
                 "batch_size"):  # fmt: skip
        assert getattr(found, name) == getattr(expected, name), name
    compressors = [
        {each["name"]: each["compressor"] for each in json.loads((b.path / "zarr.json").read_text())
         ["attributes"]["diskreplay"]["fields"]}
        for b in (found, expected)
    ]  # fmt: skip
    assert compressors[0] == compressors[1]


def test_three_readers_agree(tmp_path, recorded):
    pandas, duckdb = pytest.importorskip("pandas"), pytest.importorskip("duckdb")
    to_parquet(recorded.buffer, tmp_path / "t.parquet")
    to_parquet(recorded.buffer, tmp_path / "parts", partition="env")
    expected = recorded.transitions()
    total, steps = sum(r["reward"] for r in expected), sum(r["step"] for r in expected)
    table = pq.read_table(tmp_path / "t.parquet")
    frame = pandas.read_parquet(tmp_path / "t.parquet")
    parts = pandas.read_parquet(tmp_path / "parts")
    assert {n: str(frame[n].dtype) for n in frame if "observation" not in n} == {
        "env": "int32", "row": "int64", "episode": "int64", "step": "int32", "action": "object",
        "reward": "float32", "terminated": "bool", "truncated": "bool", "return_to_go": "float64",
        "env_": "int16", "log_prob": "float32", "choices": "object",
    }  # fmt: skip
    for source in (f"'{tmp_path}/t.parquet'", f"'{tmp_path}/parts/*.parquet'"):
        query = f"""SELECT count(*), sum(reward::DOUBLE), sum(step), count(DISTINCT episode),
            count("final_observation/pose"), any_value(typeof(reward)), any_value(typeof(row)),
            any_value(typeof(terminated)) FROM {source}"""
        assert duckdb.sql(query).fetchall()[0] == (
            len(expected), pytest.approx(float(total)), steps, 9, 3, "FLOAT", "BIGINT", "BOOLEAN",
        )  # fmt: skip
    for readable in (frame, parts):
        assert len(readable) == len(expected)
        assert readable["reward"].astype(float).sum() == pytest.approx(float(total))
        assert readable["step"].sum() == steps
    assert table.num_rows == len(expected)
    assert [str(table.schema.field(n).type) for n in ("reward", "observation/camera")] == [
        "float", "fixed_size_binary[20]",
    ]  # fmt: skip
    camera = np.frombuffer(frame["observation/camera"].iloc[0], np.uint8).reshape(4, 5)
    np.testing.assert_array_equal(camera, expected[0]["observation/camera"])


def test_files_of_a_directory(tmp_path, recorded):
    to_parquet(recorded.buffer, tmp_path / "e", partition="env")
    assert sorted(p.name for p in (tmp_path / "e").iterdir()) == [
        f"env-0000{i}.parquet" for i in range(3)
    ]
    to_parquet(recorded.buffer, tmp_path / "n", partition="episodes", episodes_per_file=4)
    names = sorted(p.name for p in (tmp_path / "n").iterdir())
    assert names == [f"episodes-{i:08d}.parquet" for i in (0, 4, 8)]
    for name, start in zip(names, (0, 4, 8), strict=True):
        episodes = set(pq.read_table(tmp_path / "n" / name)["episode"].to_pylist())
        assert episodes == set(range(start, min(start + 4, 9)))


def test_a_file_that_is_missing(tmp_path, recorded):
    """It is warned of in a directory, and not where one file is asked for by its name."""
    out = tmp_path / "e"
    to_parquet(recorded.buffer, out, partition="env")
    with warnings.catch_warnings(action="error"):
        from_parquet(out, tmp_path / "whole").close()
        from_parquet(out / "env-00002.parquet", tmp_path / "one").close()
    for lost, left in (("env-00001.parquet", 2), ("env-00000.parquet", 1)):
        (out / lost).unlink()
        said = f"e: {left} of the 3 files that to_parquet wrote are there"
        with pytest.warns(RuntimeWarning, match=said) as warned:
            from_parquet(out, tmp_path / f"back-{left}").close()
        assert warned[0].filename == __file__


@pytest.mark.costly
def test_many_files_need_one_look_at_the_priorities(tmp_path, monkeypatch):
    recorded = Recorded(tmp_path / "s", **{**FEW, "prioritized": True, "ticks": [ON, END] * 20})
    with recorded.buffer as buffer:
        real, calls = buffer.sampleable_ids, []
        monkeypatch.setattr(buffer, "sampleable_ids", lambda: calls.append(1) or real())
        to_parquet(buffer, tmp_path / "n", partition="episodes", episodes_per_file=1)
        assert len(calls) == 1
    assert len(list((tmp_path / "n").iterdir())) == 60
    with from_parquet(tmp_path / "n", tmp_path / "back") as back:
        recorded.check_store(back)
        recorded.check_priorities(back, [0] * 3)


def test_row_groups_are_bounded(tmp_path, monkeypatch):
    import diskreplay.convert.parquet as module

    monkeypatch.setattr(module, "_GROUP_BYTES", 200)
    recorded = Recorded(tmp_path / "s", **{**FEW, "ticks": [ON] * 20})
    with recorded.buffer as buffer:
        told = []
        to_parquet(buffer, tmp_path / "t.parquet", progress=lambda *args: told.append(args))
        file = pq.ParquetFile(tmp_path / "t.parquet")
        assert file.num_row_groups > 10
        assert sum(amount for amount, _total in told) == 60
        assert {total for _amount, total in told} == {60}
        file.close()
        with from_parquet(tmp_path / "t.parquet", tmp_path / "back") as back:
            recorded.check_store(back)


def test_an_import_keeps_no_more_than_a_row_group(tmp_path, monkeypatch):
    import diskreplay.convert.parquet as module

    monkeypatch.setattr(module, "_GROUP_BYTES", 1 << 17)
    rng, space = np.random.default_rng(0), Box(0, 255, (64, 64), np.uint8)
    options = {"observation_space": space, "action_space": Discrete(2), "capacity": 2000}
    with diskreplay.ReplayBuffer(tmp_path / "s", **options) as buffer:
        for number in range(1000):
            frame = rng.integers(0, 256, (64, 64), np.uint8)
            buffer.add(frame, 0, float(number), terminated=False, truncated=False)
        to_parquet(buffer, tmp_path / "t.parquet")
    before, seen = pa.total_allocated_bytes(), []

    def look(_rows, _total):
        seen.append(pa.total_allocated_bytes() - before)

    with from_parquet(tmp_path / "t.parquet", tmp_path / "back", progress=look) as back:
        assert back.add_count == 1000
        assert back.take("reward", range(1000)).tolist() == list(range(1000))
    assert len(seen) > 25
    assert (tmp_path / "t.parquet").stat().st_size > 4_000_000
    assert max(seen) < 2_000_000


def test_more_files_than_a_process_may_open(tmp_path):
    recorded = Recorded(tmp_path / "s", **{**FEW, "ticks": [ON, END] * 40})
    with recorded.buffer as buffer:
        to_parquet(buffer, tmp_path / "n", partition="episodes", episodes_per_file=1)
    assert len(list((tmp_path / "n").iterdir())) == 120
    with few_open_files(100), from_parquet(tmp_path / "n", tmp_path / "back") as back:
        recorded.check_store(back)


def test_what_the_system_refuses_is_not_taken_for_damage(tmp_path, recorded):
    to_parquet(recorded.buffer, tmp_path / "t.parquet")
    with few_open_files(0), pytest.raises(StorageError, match="cannot read it"):
        from_parquet(tmp_path / "t.parquet", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_nested_and_odd_types(tmp_path):
    space = Tuple([Box(0, 1, (2, 2), np.float16), MultiBinary(3), Box(0, 1, (2,), np.uint64)])
    extras = {"flag": ((), "bool"), "half": ((), "float16"), "wide": ((2,), "uint64"),
              "return_to_go": ((), "float64"), "return_to_go_": ((), "int8")}  # fmt: skip
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Tuple([Discrete(3), Discrete(2)]),
        capacity=None, extras=extras,
    ) as buffer:  # fmt: skip
        for i in range(4):
            seen = (np.full((2, 2), i / 3, np.float16), np.eye(3, dtype=np.int8)[i % 3],
                    np.array([2**64 - 1, i], np.uint64))  # fmt: skip
            buffer.add(seen, (i % 3, i % 2), 1, i == 2, False, seen, flag=i > 1, half=i / 3,
                       wide=np.array([2**64 - 1, i], np.uint64), return_to_go=i / 7,
                       return_to_go_=-i)  # fmt: skip
        to_parquet(buffer, tmp_path / "t.parquet", compression="lz4")
        with from_parquet(tmp_path / "t.parquet", tmp_path / "back") as back:
            assert back.bounds.tolist() == [[0, 5]]
            for field in buffer.fields:
                np.testing.assert_array_equal(
                    back.take(field, np.arange(5)), buffer.take(field, np.arange(5))
                )


def test_some_rows_may_be_missing(tmp_path, recorded):
    """Where a filter leaves out rows inside an env, its next whole episode is the next one."""
    to_parquet(recorded.buffer, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    keep = np.ones(table.num_rows, bool)
    keep[[(r["env"], r["row"]) == (1, 3) for r in table.to_pylist()]] = False  # inside episode 1
    pq.write_table(table.filter(keep), tmp_path / "less.parquet")
    with pytest.warns(RuntimeWarning, match=r"less.parquet: 1 row\(s\) left out"):
        back = from_parquet(tmp_path / "less.parquet", tmp_path / "back")
    with back:
        rows = recorded.rows[1]
        recorded.check_store(back, [recorded.rows[0], rows[:3] + rows[5:], recorded.rows[2]])


def test_options_can_be_others(tmp_path, recorded):
    to_parquet(recorded.buffer, tmp_path / "t.parquet")
    with from_parquet(
        tmp_path / "t.parquet", tmp_path / "back", capacity=9, stack_size=2,
        compressor={"observation/camera": "lz4"},
    ) as back:  # fmt: skip
        assert (back.capacity, back.stack_size) == (9, 2)
        assert (back.bounds[:, 1] - back.bounds[:, 0]).tolist() == [3, 3, 3]


def test_a_limit_can_be_lifted(tmp_path):
    recorded = Recorded(tmp_path / "s", **{**FEW, "rows_per_env": 9})
    with recorded.buffer as buffer:
        to_parquet(buffer, tmp_path / "t.parquet")
        with from_parquet(tmp_path / "t.parquet", tmp_path / "back", capacity=None) as back:
            assert back.capacity is None
            recorded.check_store(back)


def test_a_live_store_and_a_checkpoint(tmp_path, recorded):
    checkpoint = recorded.buffer.save(tmp_path / "checkpoints", 1)
    for path in (tmp_path / "store", checkpoint):
        with diskreplay.open(path) as reader:
            to_parquet(reader, tmp_path / "t.parquet", overwrite=True)
        check_table(pq.read_table(tmp_path / "t.parquet"), recorded)


@pytest.mark.parametrize("partition", [None, "env", "episodes"])
def test_an_empty_buffer(tmp_path, partition):
    recorded = Recorded(tmp_path / "s", **{**FEW, "ticks": []})
    with recorded.buffer as buffer:
        to_parquet(buffer, tmp_path / "t", partition=partition)
        assert pq.read_table(tmp_path / "t").num_rows == 0
        with from_parquet(tmp_path / "t", tmp_path / "back") as back:
            assert back.bounds.tolist() == [[0, 0]] * 3


def test_nothing_is_overwritten_unasked(tmp_path, recorded):
    buffer, out = recorded.buffer, tmp_path / "t.parquet"
    out.write_text("mine")
    with pytest.raises(InvalidInputError, match="already"):
        to_parquet(buffer, out)
    assert out.read_text() == "mine"
    to_parquet(buffer, out, overwrite=True)
    check_table(pq.read_table(out), recorded)
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "thesis.tex").write_text("mine")
    for partition in (None, "env"):
        with pytest.raises(InvalidInputError):
            to_parquet(buffer, tmp_path / "dir", partition=partition, overwrite=True)
    with pytest.raises(InvalidInputError, match="no store"):
        from_parquet(out, tmp_path / "dir", overwrite=True)
    assert [p.name for p in (tmp_path / "dir").iterdir()] == ["thesis.tex"]
    with pytest.raises(InvalidInputError, match="already"):
        from_parquet(out, tmp_path / "store")
    with pytest.raises(LockedError):
        from_parquet(out, tmp_path / "store", overwrite=True)


@pytest.mark.parametrize("partition", [None, "env"])
def test_nothing_half_written_stays(tmp_path, recorded, partition):
    def stop(amount, total):
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        to_parquet(recorded.buffer, tmp_path / "t", partition=partition, progress=stop)
    assert sorted(tmp_path.iterdir()) == before
    to_parquet(recorded.buffer, tmp_path / "t", partition=partition)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        from_parquet(tmp_path / "t", tmp_path / "back", progress=stop)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [{"partition": "row"}, {"compression": "rar"}, {"episodes_per_file": 0}],
)
def test_bad_arguments(tmp_path, recorded, arguments):
    with pytest.raises(InvalidInputError):
        to_parquet(recorded.buffer, tmp_path / "t", **arguments)
    assert not (tmp_path / "t").exists()


def test_foreign_files(tmp_path, recorded):
    to_parquet(recorded.buffer, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    document = json.loads(table.schema.metadata[b"diskreplay"])

    def refused(match, path=tmp_path / "other.parquet"):
        with pytest.raises(FormatError, match=match):
            from_parquet(path, tmp_path / "back")
        assert not (tmp_path / "back").exists()

    def described(**more):
        return table.replace_schema_metadata({"diskreplay": json.dumps(document | more)})

    refused("no such file", tmp_path / "missing.parquet")
    (tmp_path / "other.parquet").write_bytes(b"not parquet at all")
    refused("no Parquet file")
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "other.parquet")
    refused("metadata")
    pq.write_table(described(parquet_version=2), tmp_path / "other.parquet")
    refused("version 2")
    for changed in ({"buffer": {}}, {"buffer": 3}, {"largest_priority": "much"}):
        pq.write_table(described(**changed), tmp_path / "other.parquet")
        refused("damaged")
    for key in ("buffer", "largest_priority", "parquet_version"):
        left = {name: value for name, value in document.items() if name != key}
        metadata = {"diskreplay": json.dumps(left)}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "other.parquet")
        refused("damaged")
    pq.write_table(table.drop_columns("reward"), tmp_path / "other.parquet")
    refused("'reward' is missing")
    for name in ("reward", "row", "final_observation/pose", "k"):
        if name in table.column_names:
            twice = table.append_column(name, table[name])
            pq.write_table(twice, tmp_path / "other.parquet")
            refused(f"more than one column is called '{name}'")
    nulls = pa.nulls(table.num_rows, pa.float32())
    at = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(at, "reward", nulls), tmp_path / "other.parquet")
    refused("nulls")
    wide = table["reward"].cast("float64")
    pq.write_table(table.set_column(at, "reward", wide), tmp_path / "other.parquet")
    refused("type double")
    (tmp_path / "empty").mkdir()
    refused("no .parquet file", tmp_path / "empty")
    (tmp_path / "mixed").mkdir()
    os.mkfifo(tmp_path / "mixed" / "b.parquet")  # which would be waited for
    refused("b.parquet: no file", tmp_path / "mixed")
    to_parquet(recorded.buffer, tmp_path / "mixed" / "a.parquet")
    refused("b.parquet: no file", tmp_path / "mixed")


def test_files_that_are_replaced_while_they_are_read_make_no_mixture(tmp_path):
    """A directory takes another one's place in one step, and its files are opened one by one."""
    spaces = {"observation_space": Discrete(3), "action_space": Discrete(3)}
    stores = []
    for value in (1, 2):
        buffer = diskreplay.ReplayBuffer(tmp_path / f"store{value}", capacity=20, **spaces)
        for step in range(20):
            buffer.add(value, value, float(value), step % 5 == 4, False)
        stores.append(buffer)
    old, new = stores
    to_parquet(old, tmp_path / "file")
    with from_parquet(
        tmp_path / "file", tmp_path / "back",
        progress=lambda amount, total: to_parquet(new, tmp_path / "file", overwrite=True),
    ) as back:  # which is opened once  # fmt: skip
        assert set(back.take("action", np.arange(20)).tolist()) == {1}
    shutil.rmtree(tmp_path / "back")
    options = {"partition": "episodes", "episodes_per_file": 2, "overwrite": True}
    to_parquet(old, tmp_path / "t", **options)

    def replace(amount, total):
        if amount:
            to_parquet(new, tmp_path / "t", **options)

    with pytest.raises(StorageError, match="replaced while it was read"):
        from_parquet(tmp_path / "t", tmp_path / "back", progress=replace)
    assert not (tmp_path / "back").exists()
    with from_parquet(tmp_path / "t", tmp_path / "back") as back:
        assert set(back.take("action", np.arange(20)).tolist()) == {2}
    for buffer in stores:
        buffer.close()
