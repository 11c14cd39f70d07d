"""Copies, merged and trimmed stores against what was recorded."""

import contextlib
import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskreplay
from diskreplay.convert import copying
from diskreplay.convert.copying import convert, merge, trim
from diskreplay.errors import (
    CapacityError,
    FormatError,
    InvalidInputError,
    LockedError,
    SchemaError,
)
from tests.convert.recorded import END, FEW, ON, STREAM, Recorded, few_examples

modest = few_examples(12)


def compressors(path):
    attributes = json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]
    return {field["name"]: field["compressor"] for field in attributes["fields"]}


@modest
@given(stream=STREAM, piece=st.sampled_from([1, 400, 1 << 20]))
def test_a_copy_is_equal(tmp_path_factory, stream, piece):
    path = tmp_path_factory.mktemp("s")
    recorded = Recorded(path / "store", **stream)
    with recorded.buffer as buffer, pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "_PIECE_BYTES", piece)
        convert(buffer, path / "copy", compressor={"observation/pose": "lz4"})
        with diskreplay.open(path / "copy") as copy:
            recorded.check_store(copy)
            assert (copy.gamma, copy.batch_size, copy.capacity) == (0.5, 7, buffer.capacity)
            if stream["prioritized"]:
                recorded.check_priorities(copy, [recorded.first(e) for e in range(copy.num_envs)])
        found = compressors(path / "copy")
        assert (found["observation/pose"], found["observation/camera"]) == ("lz4", "zstd")


@modest
@given(stream=STREAM, rows=st.integers(2, 12))
def test_the_newest_rows_are_kept(tmp_path_factory, stream, rows):
    path = tmp_path_factory.mktemp("s")
    recorded = Recorded(path / "store", **stream)
    with recorded.buffer as buffer:
        trim(buffer, path / "small", rows * buffer.num_envs)
        with diskreplay.open(path / "small") as small:
            assert small.capacity == rows * buffer.num_envs
            kept = [recorded.kept(env)[-rows:] for env in range(buffer.num_envs)]
            recorded.check_store(small, kept)


@modest
@given(one=STREAM, ticks=STREAM, capacity=st.sampled_from([None, 6]))
def test_merging(tmp_path_factory, one, ticks, capacity):
    path = tmp_path_factory.mktemp("s")
    two = one | {"ticks": ticks["ticks"], "seed": ticks["seed"]}
    sources = [Recorded(path / f"store{i}", **stream) for i, stream in enumerate((one, two))]
    num_envs = one["num_envs"]
    with warnings.catch_warnings(record=True) as warned:
        merge([each.buffer for each in sources], path / "both",
              capacity=capacity and capacity * num_envs)  # fmt: skip
    expected, left_out = [], 0
    for env in range(num_envs):
        before, after = sources[0].kept(env), sources[1].kept(env)
        if before:  # the rest of an episode whose beginning is gone has no stacks there
            begins = [i for i, row in enumerate(after) if row["step"] == 0]
            left_out += begins[0] if begins else len(after)
            after = after[begins[0] :] if begins else []
        expected.append(before + after)
    said = f"{path / 'store1'}: {left_out} row(s) left out: earlier rows of their episode"
    assert [str(each.message)[: len(said)] for each in warned] == [said] * (left_out > 0)
    with diskreplay.open(path / "both") as both:
        if capacity is None:
            sources[0].check_store(both, expected)
        for env, rows in enumerate(expected):
            kept = rows if capacity is None else rows[-capacity:]
            first, stop = both.bounds[env]
            assert (first, stop) == (len(rows) - len(kept), len(rows))
            found = both.take("reward", np.arange(first, stop) * num_envs + env)
            np.testing.assert_array_equal(found, [row["reward"] for row in kept])
    for each in sources:
        each.buffer.close()


def test_merged_priorities_and_capacity(tmp_path):
    sources = [
        Recorded(tmp_path / f"s{i}", **{**FEW, "seed": i, "rows_per_env": 20 + i}) for i in range(2)
    ]
    merge([each.buffer for each in sources], tmp_path / "both")
    rows = len(sources[0].rows[0])
    with diskreplay.open(tmp_path / "both") as both:
        assert both.capacity == 3 * 41
        ids = both.sampleable_ids()
        expected = {**sources[0].priorities}
        expected |= {id_ + 3 * rows: p for id_, p in sources[1].priorities.items()}
        assert sorted(expected) == sorted(ids.tolist())
        raised = np.array([expected[i] for i in ids.tolist()]) ** both.alpha
        np.testing.assert_allclose(both.gather(ids).probability, raised / raised.sum(), rtol=1e-12)
        assert both.statistics().priorities.largest_seen == max(1.0, *expected.values())
    for each in sources:
        each.buffer.close()


def test_training_goes_on_in_a_copy(tmp_path, recorded):
    convert(recorded.buffer, tmp_path / "copy")
    recorded.buffer.close()
    with diskreplay.open(tmp_path / "copy", mode="a") as copy:
        recorded.buffer = copy
        for env in range(3):  # it was closed in between, which cuts what was open
            recorded.episode[env], recorded.step[env] = recorded.episode[env] + 1, 0
        recorded.tick(ON)
        recorded.tick(END)
        recorded.check_store(copy)


def test_a_store_in_place(tmp_path, recorded):
    recorded.buffer.close()
    assert compressors(tmp_path / "store")["observation/camera"] == "zstd"
    convert(tmp_path / "store", tmp_path / "store", compressor="raw", overwrite=True)
    assert set(compressors(tmp_path / "store").values()) == {"raw"}
    with diskreplay.open(tmp_path / "store") as store:
        recorded.check_store(store)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_checkpoint_and_a_live_store(tmp_path, recorded):
    checkpoint = recorded.buffer.save(tmp_path / "checkpoints", 1)
    for source in (checkpoint, tmp_path / "store"):
        convert(source, tmp_path / "copy", overwrite=True)
        with diskreplay.open(tmp_path / "copy") as copy:
            recorded.check_store(copy)


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("more", "left", "left_out"),
    [(0, [*range(3, 12)], 0), (2, [3, 8, 9, 10, 11], 3), (5, [3, 8, 9, 10, 11], 0), (6, [3], 3),
     (9, [3], 0)],
)  # fmt: skip
def test_a_writer_that_evicts_meanwhile(tmp_path, monkeypatch, more, left, left_out):
    """Row 3 ends the first episode, 4 to 7 and 8 to 11 are the next two; `left_out` rows are
    retained behind those that left."""
    monkeypatch.setattr(copying, "_PIECE_BYTES", 1)
    recorded = Recorded(
        tmp_path / "s", **{**FEW, "num_envs": 1, "rows_per_env": 9, "ticks": [ON, ON, END] * 3}
    )
    before = recorded.rows[0][:]

    def write_on(amount, total):
        if len(recorded.rows[0]) == len(before):
            for _ in range(more):
                recorded.tick(ON)

    said = pytest.warns(RuntimeWarning, match=rf"/s: {left_out} row\(s\) left out")
    with recorded.buffer as buffer, said if left_out else contextlib.nullcontext():
        convert(buffer, tmp_path / "copy", progress=write_on)
    with diskreplay.open(tmp_path / "copy") as copy:
        recorded.check_store(copy, [[before[t] for t in left]])


def test_progress(tmp_path, recorded, monkeypatch):
    monkeypatch.setattr(copying, "_PIECE_BYTES", 1)
    told = []
    convert(recorded.buffer, tmp_path / "copy", progress=lambda *args: told.append(args))
    rows = sum(map(len, recorded.rows))
    assert told == [(1, rows)] * rows


def test_what_is_refused(tmp_path, recorded):
    buffer = recorded.buffer
    other = Recorded(tmp_path / "flat", **FEW, nested=False)
    single = Recorded(tmp_path / "single", **{**FEW, "num_envs": 1})
    for wrong in (other, single):
        with pytest.raises(SchemaError):
            merge([buffer, wrong.buffer], tmp_path / "out")
        wrong.buffer.close()
    for sources in ([], "store", [buffer, tmp_path / "store"], 5, None, tmp_path / "store", b"x"):
        with pytest.raises(InvalidInputError):
            merge(sources, tmp_path / "out")
    for capacity in (0, True, 2.5):
        with pytest.raises(InvalidInputError):
            trim(buffer, tmp_path / "out", capacity)
    with pytest.raises(CapacityError):
        trim(buffer, tmp_path / "out", 3)
    with pytest.raises(InvalidInputError):
        convert(buffer, tmp_path / "out", compressor="rar")
    with pytest.raises(FormatError):
        convert(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(InvalidInputError, match="already"):
        convert(buffer, tmp_path / "flat")
    with pytest.raises(LockedError):
        convert(buffer, tmp_path / "store", overwrite=True)
    checkpoint = buffer.save(tmp_path / "checkpoints", 1)
    with pytest.raises(InvalidInputError, match="checkpoint"):
        convert(buffer, checkpoint, overwrite=True)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InvalidInputError, match="no store"):
        convert(buffer, tmp_path / "mine", overwrite=True)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"store", "flat", "single", "checkpoints", "mine"}


def test_nothing_half_written_stays(tmp_path, recorded):
    def stop(amount, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(recorded.buffer, tmp_path / "copy", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
