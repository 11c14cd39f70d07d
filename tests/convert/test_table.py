"""CSV files against what was recorded, and back."""

import csv
import gzip
import json
import shutil
import subprocess
import tracemalloc

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given

import diskreplay
from diskreplay.errors import (
    DiskReplayError,
    FormatError,
    InvalidInputError,
    LockedError,
    StorageError,
)
from diskreplay.store import files
from tests import processes
from tests.convert.recorded import FEW, STREAM, Recorded, few_examples

pandas = pytest.importorskip("pandas")

from diskreplay.convert.table import from_csv, to_csv  # noqa: E402

modest = few_examples(10)


@modest
@given(stream=STREAM)
def test_round_trip(tmp_path_factory, stream):
    path = tmp_path_factory.mktemp("s")
    recorded = Recorded(path / "store", **stream)
    with recorded.buffer as buffer:
        to_csv(buffer, path / "t.csv")
        with from_csv(path / "t.csv", path / "back") as back:
            envs = [recorded.exported(env) for env in range(recorded.num_envs)]
            recorded.check_store(back, envs)
            if stream["prioritized"]:
                dropped = [len(recorded.rows[e]) - len(envs[e]) for e in range(len(envs))]
                recorded.check_priorities(back, dropped)
            assert (back.gamma, back.batch_size, back.capacity) == (0.5, 7, buffer.capacity)


def test_what_is_in_it(tmp_path, recorded):
    to_csv(recorded.buffer, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = recorded.transitions()
    assert len(rows) == len(expected)
    for found, row in zip(rows, expected, strict=True):
        for name in ("env", "row", "episode", "step", "env_"):
            assert int(found[name]) == row[name]
        for name in ("reward", "log_prob"):
            assert np.float32(found[name]) == row[name]
        assert [np.float32(found[f"action_{i}"]) for i in range(2)] == row["action"].tolist()
        assert found["terminated"] == str(row["terminated"])
        assert found["has_final"] == str(row["final"] is not None)
        camera = [found[f"final_observation/camera_{i}"] for i in range(20)]
        if row["final"] is None:
            assert set(camera) == {""}
        else:
            assert [int(v) for v in camera] == row["final"]["observation/camera"].ravel().tolist()
    assert "is_final" not in rows[0]


def test_odd_values_come_back(tmp_path):
    space = Box(-np.inf, np.inf, (3,), np.float64)
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Discrete(3), capacity=None,
        extras={"half": ((), "float16"), "wide": ((), "uint64"), "flag": ((2,), "bool"),
                "action_0": ((), "int8"), "has_final": ((), "int8")},
    ) as buffer:  # fmt: skip
        seen = [np.array(v) for v in ([np.nan, np.inf, -np.inf], [1 / 3, 5e-324, 1.7e308])]
        for i in range(4):
            buffer.add(seen[i % 2], i % 3, i / 3, i == 2, False, seen[0], half=i / 3,
                       wide=np.uint64(2**64 - 1), flag=np.array([i > 1, i < 3]), action_0=-i,
                       has_final=i)  # fmt: skip
        to_csv(buffer, tmp_path / "t.csv")
        with from_csv(tmp_path / "t.csv", tmp_path / "back") as back:
            for field in buffer.fields:
                np.testing.assert_array_equal(
                    back.take(field, np.arange(5)), buffer.take(field, np.arange(5))
                )


def test_large_observations_are_left_out(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 255, (40, 40), np.uint8),
        action_space=Discrete(3), capacity=None,
    ) as buffer:  # fmt: skip
        buffer.add(np.zeros((40, 40), np.uint8), 1, 2.5, False, False)
        to_csv(buffer, tmp_path / "t.csv")
    frame = pandas.read_csv(tmp_path / "t.csv")
    assert frame["reward"].tolist() == [2.5]
    assert not [name for name in frame if "observation" in name]
    with pytest.raises(FormatError, match="without observations"):
        from_csv(tmp_path / "t.csv", tmp_path / "back")


def _store(path, shape, dtype, rows, ends):
    """One that is read only: nothing is packed, which would be counted."""
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 1, shape, dtype), action_space=Discrete(2), capacity=None,
        compressor="raw",
    ) as buffer:  # fmt: skip
        for row in range(rows):
            end = row % ends == ends - 1
            buffer.add(np.full(shape, row % 2, dtype), 0, 1.0, end, False, np.ones(shape, dtype))
    return diskreplay.open(path)


def _peak(call, *arguments):
    tracemalloc.start()
    try:
        made = call(*arguments)
        return tracemalloc.get_traced_memory()[1], made
    finally:
        tracemalloc.stop()


def test_observations_that_are_left_out_are_not_read(tmp_path):
    """Of each row, and of each final row: 60 MB here."""
    with _store(tmp_path / "s", (200, 100), "uint8", 1500, 1) as buffer:
        to_csv(buffer, tmp_path / "first.csv")  # imports, first use
        assert _peak(to_csv, buffer, tmp_path / "t.csv")[0] < 8 << 20
    frame = pandas.read_csv(tmp_path / "t.csv")
    assert len(frame) == 1500
    assert frame["reward"].sum() == 1500.0


def test_memory_does_not_grow_with_the_columns(tmp_path, monkeypatch):
    import diskreplay.convert.table as module

    monkeypatch.setattr(module, "_CSV_NUMBERS", 20_000, raising=False)
    with _store(tmp_path / "s", (100,), "float32", 1000, 40) as buffer:
        to_csv(buffer, tmp_path / "first.csv")
        assert _peak(to_csv, buffer, tmp_path / "t.csv")[0] < 3 << 20
        taken = []
        with from_csv(
            tmp_path / "t.csv", tmp_path / "back", progress=lambda rows, _of: taken.append(rows)
        ) as back:
            assert max(taken) < 100
            assert sum(taken) == 1000
            ids = np.arange(*buffer.bounds[0])
            np.testing.assert_array_equal(
                back.take("observation", ids), buffer.take("observation", ids)
            )


def test_an_empty_buffer(tmp_path):
    with Recorded(tmp_path / "s", **{**FEW, "ticks": []}).buffer as buffer:
        to_csv(buffer, tmp_path / "t.csv")
        assert (tmp_path / "t.csv").read_text().startswith("env,row,episode,step,action_0,")
        with from_csv(tmp_path / "t.csv", tmp_path / "back") as back:
            assert back.bounds.tolist() == [[0, 0]] * 3


def test_an_extra_that_is_called_like_final_observations(tmp_path):
    """As Gymnasium calls an entry of its infos."""
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(-9, 9, (2,), "float32"), action_space=Discrete(3),
        capacity=None, extras={"final_observation": ((2,), "float32"), "has_final": ((), "?")},
    ) as buffer:  # fmt: skip
        for i in range(6):
            buffer.add(
                [i, i], 0, i, i == 2, False, [i + 0.5, i + 0.5], final_observation=[-i, -i],
                has_final=i % 2 == 0,
            )  # fmt: skip
        out = to_csv(buffer, tmp_path / "t.csv")
        names = out.read_text().partition("\n")[0].split(",")
        assert len(set(names)) == len(names)
        with from_csv(out, tmp_path / "back") as back:
            ids = np.arange(7)
            for name in buffer.fields:
                np.testing.assert_array_equal(back.take(name, ids), buffer.take(name, ids), name)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [("int8", "300"), ("int8", "-129"), ("uint8", "256"), ("uint8", "-1"), ("int64", "9" * 20),
     ("float32", "1e39"), ("float16", "70000"), ("int8", "1.5"), ("int8", "")],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_no_other_one(tmp_path, dtype, text):
    space = Box(0, 100, (), dtype)
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=space, capacity=None
    ) as buffer:
        for _ in range(3):
            buffer.add(7, 7, 0.0, False, False)
        out = to_csv(buffer, tmp_path / "t.csv")
    names, *rows = (line.split(",") for line in out.read_text().splitlines())
    for column in {"action", "observation", "row", "step"} & set(names):
        if dtype != "int64" and column in ("row", "step"):
            continue
        changed = [list(row) for row in rows]
        changed[1][names.index(column)] = text
        out.write_text("\n".join(map(",".join, [names, *changed])))
        if dtype.startswith("float") or text != "" or column != "observation":
            with pytest.raises(DiskReplayError, match=r"t\.csv|row"):
                from_csv(out, tmp_path / "back")
            assert not (tmp_path / "back").exists()


def test_a_path_without_a_name(recorded):
    with pytest.raises(InvalidInputError, match="path: a file expected"):
        to_csv(recorded.buffer, "")
    with pytest.raises(InvalidInputError, match="path: a file expected"):
        from_csv("", "store")


def test_what_is_refused(tmp_path, recorded):
    out = tmp_path / "t.csv"
    to_csv(recorded.buffer, out)
    with pytest.raises(InvalidInputError, match="already"):
        to_csv(recorded.buffer, out)
    to_csv(recorded.buffer, out, overwrite=True)
    lines, described = out.read_text(), out.with_name("t.csv.json").read_text()

    def refused(match):
        with pytest.raises(FormatError, match=match):
            from_csv(out, tmp_path / "back")
        assert not (tmp_path / "back").exists()

    out.write_text(lines.replace("reward", "wages", 1))
    refused("reward")
    named, *rows = lines.splitlines()
    for name in ("reward", "row"):
        for text in (f"{name},{named}", f"{named},{name}"):
            cells = [f"9,{row}" if text.startswith(name) else f"{row},9" for row in rows]
            out.write_text("\n".join([text, *cells, ""]))
            refused(f"more than one column is called '{name}'")
    out.write_text(lines.replace("False", "perhaps", 1))
    refused("not as to_csv wrote it")
    out.write_text(lines)
    for wrong in ("[", "{}", json.dumps(json.loads(described) | {"csv_version": 2})):
        out.with_name("t.csv.json").write_text(wrong)
        refused("damaged|version")
    document = json.loads(described)
    for key in document:
        left = {name: value for name, value in document.items() if name != key}
        for wrong in (left, document | {key: "nonsense"}, document | {key: None}):
            # Of a buffer without priorities; and of before the number of rows was noted.
            if wrong != document | {"largest_priority": None} and (wrong != left or key != "rows"):
                out.with_name("t.csv.json").write_text(json.dumps(wrong))
                refused("damaged|version")
    for columns in ({}, {"wages": ["reward"]}, document["columns"] | {"reward": 3}):
        out.with_name("t.csv.json").write_text(json.dumps(document | {"columns": columns}))
        refused("not as to_csv wrote it")
    out.with_name("t.csv.json").unlink()
    refused("no such file")


def test_a_table_that_is_cut_off_is_not_taken_for_whole(tmp_path, recorded):
    """A copy that was broken off: of another format the end would be missing."""
    out, back = tmp_path / "t.csv", tmp_path / "back"
    to_csv(recorded.buffer, out)
    lines = out.read_text().splitlines(keepends=True)
    for cut in ([*lines[:-1], lines[-1][:-1]], [*lines[:3], lines[3][:-2]]):
        out.write_text("".join(cut))
        with pytest.raises(FormatError, match="cut off"):
            from_csv(out, back)
        assert not back.exists()
    out.write_text("".join(lines[:-2]))
    message = f"{len(lines) - 3} rows found, and {len(lines) - 1} were written"
    with pytest.warns(RuntimeWarning, match=message):
        from_csv(out, back).close()
    described = out.with_name("t.csv.json")
    document = json.loads(described.read_text())
    described.write_text(json.dumps({k: v for k, v in document.items() if k != "rows"}))
    from_csv(out, back, overwrite=True).close()  # of a version that did not note it


def test_a_compressed_table(tmp_path, recorded):
    """pandas decompresses it by its name."""
    out, back = tmp_path / "t.csv", tmp_path / "back"
    to_csv(recorded.buffer, out)
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(out.read_bytes()))
    out.with_name("t.csv.json").rename(tmp_path / "t.csv.gz.json")
    with from_csv(packed, back) as found:
        assert found.add_count == recorded.buffer.add_count
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="cut off, or damaged"):
        from_csv(packed, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("error", [BrokenPipeError(), FileNotFoundError("x")])
def test_what_the_progress_function_raises_comes_as_it_is(tmp_path, recorded, error):
    out = tmp_path / "t.csv"
    to_csv(recorded.buffer, out)

    def progress(done, total):
        raise error

    with pytest.raises(type(error)) as caught:
        from_csv(out, tmp_path / "back", progress=progress)
    assert caught.value is error


def test_through_a_link_the_description_lies_beside_the_table(tmp_path, recorded):
    (tmp_path / "data").mkdir()
    table, link = tmp_path / "data" / "t.csv", tmp_path / "latest.csv"
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(4), capacity=9,
        gamma=0.25,
    ) as other:  # fmt: skip
        other.add([1, 2], 3, 1.0, True, False)
        to_csv(recorded.buffer, table)
        link.symlink_to(table)
        assert to_csv(other, link, overwrite=True) == link
    assert link.is_symlink()
    assert sorted(path.name for path in table.parent.iterdir()) == ["t.csv", "t.csv.json"]
    assert not link.with_name("latest.csv.json").exists()
    for number, path in enumerate((table, link)):
        with from_csv(path, tmp_path / f"back{number}") as back:
            assert (back.gamma, back.capacity) == (0.25, 9)
    # A table and a description that are links to files of other names.
    (tmp_path / "data" / "t.csv.json").rename(tmp_path / "data" / "about")
    link.with_name("latest.csv.json").symlink_to(tmp_path / "data" / "about")
    with from_csv(link, tmp_path / "back") as back:
        assert back.gamma == 0.25


def test_nothing_half_written_stays(tmp_path, recorded):
    def stop(amount, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_csv(recorded.buffer, tmp_path / "t.csv", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


KILLED = """
import os, signal, sys
import diskreplay
from diskreplay.convert.table import to_csv
from diskreplay.store import files

left, at, rename, remove = [], int(sys.argv[3]), files.rename, files.remove

def cut(call):
    def made(*arguments):
        if len(left) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        left.append(arguments)
        return call(*arguments)
    return made

files.rename, files.remove = cut(rename), cut(remove)
to_csv(diskreplay.open(sys.argv[1]), sys.argv[2], overwrite=True)
print("whole")
"""


@pytest.mark.costly
def test_a_killed_export_leaves_no_mixture(tmp_path):
    """A new table beside the old description would be imported with its capacity and gamma."""
    spaces = {"observation_space": Box(0, 1, (2,), "float32"), "action_space": Discrete(2)}
    for name, gamma, rows in (("old", 0.5, 5), ("new", 0.9, 9)):
        with diskreplay.ReplayBuffer(
            tmp_path / name, capacity=rows, gamma=gamma, **spaces
        ) as buffer:
            for row in range(rows):
                buffer.add(np.zeros(2, "float32"), row % 2, 0.0, False, False)
    table, found = tmp_path / "t.csv", set()
    for at in range(20):
        with diskreplay.open(tmp_path / "old") as old:
            to_csv(old, table, overwrite=True)
        process = processes.Process(KILLED, tmp_path / "new", table, at, stdout=subprocess.PIPE)
        with process:
            is_whole = process.stdout.read() == "whole\n"
        try:
            with from_csv(table, tmp_path / "back", overwrite=True) as back:
                assert (back.gamma, len(back)) in {(0.5, 4), (0.9, 8)}
                found.add(back.gamma)
        except FormatError:
            found.add(None)
        if is_whole:
            break
    assert is_whole
    assert found == {0.5, 0.9, None}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_at_the_end_leaves_what_was_there(tmp_path, recorded, monkeypatch, error):
    table = tmp_path / "t.csv"
    to_csv(recorded.buffer, table)
    before = table.read_bytes()
    sync, synced = files.sync, []

    def refuse(paths):
        synced.append(list(paths))
        if any(path.name == "t.csv" for path in synced[-1]):
            raise error
        sync(synced[-1])

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", refuse)
        with pytest.raises(type(error)):
            to_csv(recorded.buffer, table, overwrite=True)
    assert synced
    assert table.read_bytes() == before
    from_csv(table, tmp_path / "back").close()


def two_stores(directory):
    spaces = {"observation_space": Box(0, 1, (2,), "float32"), "action_space": Discrete(2)}
    for gamma in (0.5, 0.9):
        with diskreplay.ReplayBuffer(
            directory / str(gamma), capacity=9, gamma=gamma, **spaces
        ) as buffer:
            for row in range(9):
                buffer.add(np.zeros(2, "float32"), row % 2, 0.0, False, False)
            yield buffer


def test_a_table_that_is_replaced_while_it_is_read_makes_no_mixture(tmp_path):
    table = tmp_path / "t.csv"
    old, new = two_stores(tmp_path)
    with diskreplay.open(old.path) as old, diskreplay.open(new.path) as new:
        to_csv(old, table)

        def replace(amount, total):
            to_csv(new, table, overwrite=True)

        with pytest.raises(StorageError, match="replaced while it was read"):
            from_csv(table, tmp_path / "back", progress=replace)
        assert not (tmp_path / "back").exists()


def test_two_exports_to_one_table_at_once(tmp_path, monkeypatch):
    """The table of one beside the description of the other would have its capacity and gamma."""
    table, real = tmp_path / "t.csv", files.remove
    old, new = two_stores(tmp_path)
    with diskreplay.open(old.path) as old, diskreplay.open(new.path) as new:
        to_csv(old, table)

        def remove(path):
            if path.name == "t.csv.json":  # the files of `new` are about to take their places
                monkeypatch.setattr(files, "remove", real)
                with pytest.raises(LockedError, match="another export to this file is under way"):
                    to_csv(old, table, overwrite=True)
            real(path)

        monkeypatch.setattr(files, "remove", remove)
        to_csv(new, table, overwrite=True)
        assert files.remove is real
        with from_csv(table, tmp_path / "back") as back:
            assert back.gamma == 0.9
        assert {path.name for path in tmp_path.iterdir()} == {
            "0.5", "0.9", "back", "t.csv", "t.csv.json",
        }  # fmt: skip


def test_an_export_to_a_table_that_another_one_makes_is_refused_as_it_begins(tmp_path):
    """Not at its end, when all that it wrote would be lost."""
    table = tmp_path / "new" / "t.csv"
    old, new = two_stores(tmp_path)
    with diskreplay.open(old.path) as old, diskreplay.open(new.path) as new:

        def another(amount, total):
            with pytest.raises(LockedError, match="another export to this file is under way"):
                to_csv(new, table, progress=lambda amount, total: pytest.fail("it has begun"))

        to_csv(old, table, progress=another)
        with from_csv(table, tmp_path / "back") as back:
            assert back.gamma == 0.5
    assert {path.name for path in table.parent.iterdir()} == {"t.csv", "t.csv.json"}


def test_a_table_that_comes_meanwhile_keeps_its_description(tmp_path):
    """By another program, which asks for no lock."""
    table = tmp_path / "t.csv"
    old, new = two_stores(tmp_path)
    with diskreplay.open(old.path) as old, diskreplay.open(new.path) as new:
        to_csv(new, tmp_path / "other.csv")

        def copy(amount, total):
            for end in ("csv", "csv.json"):
                shutil.copy(tmp_path / f"other.{end}", tmp_path / f"t.{end}")

        with pytest.raises(InvalidInputError, match="is there already"):
            to_csv(old, table, progress=copy)
        with from_csv(table, tmp_path / "back") as back:
            assert back.gamma == 0.9
