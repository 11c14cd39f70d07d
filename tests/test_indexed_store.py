"""Rows read by id and written as they are: `take`, `extend`, `add_frame`, `bounds`."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay import errors
from diskreplay.store.field import DTYPES
from tests import processes
from tests.effort import effort

FRAME = Box(0, 255, (32, 40), "uint8")


def make(path, **options):
    options = {"observation_space": FRAME, "action_space": Discrete(5), "capacity": 64} | options
    return diskreplay.ReplayBuffer(path, **options)


def random_columns(rng, rows, shape=(32, 40)):
    """Rows of episodes of random lengths, some ended by a final row."""
    step, final = [], []
    while len(step) < rows:
        length = int(rng.integers(1, 9))
        step += range(length)
        final += [False] * (length - 1) + [bool(rng.integers(2)) and length > 1]
    step, final = np.array(step[:rows], np.int32), np.array(final[:rows])
    return {
        "observation": rng.integers(0, 256, (rows, *shape), np.uint8),
        "action": rng.integers(0, 5, rows),
        "reward": rng.normal(size=rows).astype(np.float32),
        "terminated": np.zeros(rows, np.bool_),
        "truncated": ~final & (rng.random(rows) < 0.1),
        "step": step,
        "is_final": final,
    }


@settings(max_examples=effort(12, 25), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    parts=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    compressor=st.sampled_from(["raw", "lz4", "zstd"]),
    capacity=st.sampled_from([20, 64, None]),
    num_envs=st.integers(1, 3),
)
def test_what_was_put_in_is_taken_out(
    tmp_path_factory, seed, parts, compressor, capacity, num_envs
):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("rows") / "store"
    options = {
        "capacity": capacity and capacity * num_envs, "num_envs": num_envs,
        "compressor": compressor, "segment_rows": 8,
    }  # fmt: skip
    buffer = make(path, **options)
    written = [[] for _ in range(num_envs)]
    for rows in parts:
        env = int(rng.integers(num_envs))
        columns = random_columns(rng, rows)
        ids = buffer.extend(columns, env)
        before = sum(len(part["step"]) for part in written[env])
        assert ids.tolist() == [(before + i) * num_envs + env for i in range(rows)]
        written[env].append(columns)
        if rng.integers(2):
            buffer.close()
            buffer = make(path, **options)
    transitions = 0
    for env, made in enumerate(written):
        if not made:
            assert buffer.bounds[env].tolist() == [0, 0]
            continue
        twin = {name: np.concatenate([part[name] for part in made]) for name in made[0]}
        count = len(twin["step"])
        first = 0 if capacity is None else max(0, count - capacity)
        transitions += count - int(twin["is_final"].sum())
        assert buffer.bounds[env].tolist() == [first, count]
        rows = rng.integers(first, count, (7, 3))
        rows[0] = -1
        for name, values in twin.items():
            there = np.arange(first, count)
            taken = buffer.take(name, there * num_envs + env)
            assert taken.dtype == values.dtype
            np.testing.assert_array_equal(taken, values[first:])
            picked = buffer.take(name, np.where(rows < 0, -1, rows * num_envs + env))
            expected = values[rows]
            expected[rows < 0] = 0
            np.testing.assert_array_equal(picked, expected)
    assert buffer.add_count == transitions
    buffer.close()


def test_extend_gives_the_store_that_add_gives(tmp_path):
    rng = np.random.default_rng(3)
    one = make(tmp_path / "one", stack_size=3, update_horizon=2, seed=5)
    for step in range(100):
        ended = step % 13 == 12
        one.add(
            rng.integers(0, 256, (32, 40), np.uint8), step % 5, step / 7, ended and step % 2 == 0,
            ended and step % 2 == 1, FRAME.sample() if ended else None,
        )  # fmt: skip
    low, high = one.bounds[0]
    ids = np.arange(low, high)
    two = make(tmp_path / "two", stack_size=3, update_horizon=2, seed=5)
    two.extend({name: one.take(name, ids) for name in one.fields})
    assert len(one) == len(two)
    np.testing.assert_array_equal(one.sampleable_ids() - low, two.sampleable_ids())
    these, those = one.gather(one.sampleable_ids()), two.gather(two.sampleable_ids())
    for name in these.keys() - {"id"}:
        np.testing.assert_array_equal(these[name], those[name], err_msg=name)
    # What was cut is cut, what is open goes on.
    one.add(FRAME.sample(), 1, 0.0, False, False)
    two.add(FRAME.sample(), 1, 0.0, False, False)
    assert one.take("step", one.bounds[0, 1:] - 1) == two.take("step", two.bounds[0, 1:] - 1)
    one.close()
    two.close()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_extend_in_pieces_gives_the_store_that_extend_gives(tmp_path, size):
    """A final row that came in the next call was taken for the beginning of an episode: the
    transition before it, a truncated one, could not be sampled any more in a copy."""
    rng = np.random.default_rng(size)
    options = {"stack_size": 3, "update_horizon": 2, "capacity": None}
    with make(tmp_path / "one", **options) as one:
        for _ in range(60):
            frame, last = rng.integers(0, 256, (32, 40), np.uint8), int(rng.integers(6))
            final = FRAME.sample() if rng.integers(3) else None
            one.add(frame, 1, 0.5, last in (0, 2), last in (1, 2), final)
        expected, count = one.sampleable_ids(), int(one.bounds[0, 1])
        columns = {name: one.take(name, np.arange(count)) for name in one.fields}
        found, starts = one.gather(expected), one.episodes().start_id
    assert (columns["is_final"][1:] & columns["truncated"][:-1]).any()
    with make(tmp_path / "two", **options) as two:
        for start in range(0, count, size):
            two.extend({name: rows[start : start + size] for name, rows in columns.items()})
        np.testing.assert_array_equal(two.sampleable_ids(), expected)
    with make(tmp_path / "two", **options) as two:
        np.testing.assert_array_equal(two.sampleable_ids(), expected)
        np.testing.assert_array_equal(two.episodes().start_id, starts)
        there = two.gather(expected)
        for name in there.keys() | {"id"}:
            np.testing.assert_array_equal(there[name], found[name], err_msg=name)


def test_a_final_row_behind_an_episode_that_was_declared_over_is_not_its_own(tmp_path):
    with make(tmp_path / "store") as buffer:
        buffer.add(FRAME.sample(), 1, 0.5, False, True)
        row = {name: buffer.take(name, [0]) for name in buffer.fields}
        final = row | {"step": row["step"] + 1, "is_final": [True], "truncated": [False]}
        buffer.end_episode()
        buffer.extend(final)
        assert len(buffer) == 0
    with make(tmp_path / "other") as buffer:
        buffer.extend(row)
    with make(tmp_path / "other") as buffer:  # nor behind one of an earlier opening
        buffer.extend(final)
        assert len(buffer) == 0
        buffer.extend(row)
        buffer.extend(final)
        assert buffer.sampleable_ids().tolist() == [2]


def test_frames_before_the_first_decision_are_in_the_stack():
    with make(None, stack_size=3) as buffer:
        frames = [np.full((32, 40), i, np.uint8) for i in range(1, 6)]
        assert buffer.add_frame(frames[0]) == [0]
        assert buffer.add_frame(frames[1]) == [1]
        assert len(buffer) == 0
        buffer.add(frames[2], 1, 2.0, False, False)
        buffer.add(frames[3], 2, 3.0, True, False, frames[4])
        assert buffer.sampleable_ids().tolist() == [2, 3]
        batch = buffer.gather([2, 3])
        assert batch.observation[:, :, 0, 0].tolist() == [[1, 2, 3], [2, 3, 4]]
        assert batch.next_observation[:, :, 0, 0].tolist() == [[2, 3, 4], [3, 4, 5]]
        assert buffer.add_count == 2
        assert buffer.take("is_final", np.arange(5)).tolist() == [True, True, False, False, True]


def test_bad_input_changes_nothing():
    rng = np.random.default_rng(0)
    with make(None) as buffer:
        buffer.extend(random_columns(rng, 10))
        good = random_columns(rng, 4)
        for change, error in [
            ({"action": good["action"][:3]}, errors.ShapeError),
            ({"reward": np.array([0, 1, np.nan, 2], np.float32)}, errors.NotFiniteError),
            ({"observation": good["observation"].astype(np.float64)}, errors.DtypeError),
            ({"is_final": np.array([0, 1, 2, 0])}, errors.DtypeError),
            ({"step": np.array([0, 1, -2, 0])}, errors.DtypeError),
            ({"more": np.zeros(4)}, errors.InvalidInputError),
        ]:
            with pytest.raises(error):
                buffer.extend(good | change)
        with pytest.raises(errors.InvalidInputError, match="is missing"):
            buffer.extend({"step": good["step"]})
        with pytest.raises(errors.InvalidInputError, match="env"):
            buffer.extend(good, env=1)
        with pytest.raises(errors.ShapeError):
            buffer.add_frame(np.zeros((3, 3), np.uint8))
        assert buffer.bounds.tolist() == [[0, 10]]
        with pytest.raises(errors.UnknownIdError):
            buffer.take("step", [3, 10])
        with pytest.raises(errors.InvalidInputError, match="no field"):
            buffer.take("steps", [3])
        with pytest.raises(errors.InvalidInputError, match="out"):
            buffer.take("step", [3], out=np.empty(1, np.int64))
        buffer.extend(random_columns(rng, 64))
        with pytest.raises(errors.NotSampleableError, match="evicted"):
            buffer.take("step", [[40], [9]])
    with make(None, num_envs=2) as buffer, pytest.raises(errors.InvalidInputError, match="one env"):
        buffer.add_frame(np.zeros((32, 40), np.uint8))


def test_a_reader_takes_what_the_writer_adds(tmp_path):
    rng = np.random.default_rng(1)
    with make(tmp_path / "store", segment_rows=8) as buffer:
        buffer.extend(random_columns(rng, 5))
        with diskreplay.open(tmp_path / "store") as reader:
            for _ in range(30):
                buffer.extend(random_columns(rng, 11))
                low, high = buffer.bounds[0]
                assert reader.bounds[0].tolist() == [low, high]
                for name in buffer.fields:
                    ids = np.arange(low, high)
                    np.testing.assert_array_equal(reader.take(name, ids), buffer.take(name, ids))


@pytest.mark.parametrize("space", ["flat", "nested"])
def test_ranges_of_raw_fields_load_no_numba(tmp_path, space):
    observation_space = Box(-1, 1, (3,), "float32")
    value = np.zeros(3, np.float32)
    if space == "nested":
        observation_space, value = Dict(a=observation_space), {"a": value}
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=observation_space, action_space=Discrete(2),
        capacity=1000,
    ) as buffer:  # fmt: skip
        for _ in range(20):
            buffer.add(value, 0, 1.0, False, False)
    code = f"""
import sys
import numpy as np
import diskreplay
with diskreplay.open({str(tmp_path / "store")!r}) as buffer:
    for name in buffer.fields:
        assert len(buffer.take(name, np.arange(*buffer.bounds[0]))) == 20
print("numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_killed_while_extending(tmp_path):
    """What `extend` returned for is there, in whole commits, and the counts are right."""
    code = f"""
import numpy as np
from tests.test_indexed_store import make, random_columns
buffer = make({str(tmp_path / "store")!r}, capacity=4096, segment_rows=64)
rng = np.random.default_rng(0)
while True:
    buffer.extend(random_columns(rng, 300))
    print(buffer.bounds[0, 1], flush=True)
"""
    writer = processes.Process(code, stdout=subprocess.PIPE)
    try:
        acknowledged = [int(writer.stdout.readline()) for _ in range(9)][-1]
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout)])
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    rng = np.random.default_rng(0)
    with make(tmp_path / "store", capacity=4096, segment_rows=64) as buffer:
        low, high = buffer.bounds[0].tolist()
        assert acknowledged <= high
        twin = [random_columns(rng, 300) for _ in range(-(-high // 300))]
        for name in buffer.fields:
            values = np.concatenate([part[name] for part in twin])[low:high]
            np.testing.assert_array_equal(buffer.take(name, np.arange(low, high)), values)
        final = np.concatenate([part["is_final"] for part in twin])[:high]
        assert buffer.add_count == high - final.sum()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: value.item(), np.asarray])
def test_scalar_extras_of_every_dtype(dtype, wrap):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        given = [np.iinfo(dtype).min, np.iinfo(dtype).max, 1]
    else:
        given = [0, 1, True] if dtype.kind == "b" else [-1.5, 0.25, np.finfo(dtype).max]
    given = np.array(given, dtype)
    with make(None, extras={"more": ((), dtype)}) as buffer:
        for value in given:
            buffer.add(FRAME.sample(), 1, 0.0, False, False, more=wrap(value))
        buffer.add(FRAME.sample(), 1, 0.0, True, False, FRAME.sample(), more=wrap(given[0]))
        taken = buffer.take("more", np.arange(5))
        np.testing.assert_array_equal(taken, [*given, given[0], 0])


def test_one_id_alone_and_none_at_all():
    with make(None) as buffer:
        buffer.extend(random_columns(np.random.default_rng(0), 4))
        assert buffer.take("observation", 2).shape == (32, 40)
        assert buffer.take("step", []).shape == (0,)
        assert buffer.take("step", np.empty((3, 0), int)).shape == (3, 0)


def test_readers_draw_as_they_are_seeded(tmp_path):
    with make(tmp_path / "store", seed=1) as buffer:
        buffer.extend(random_columns(np.random.default_rng(0), 60))
    drawn = []
    for seed in (None, None, 5, 5, np.random.default_rng(6)):
        with diskreplay.open(tmp_path / "store", seed=seed) as reader:
            drawn.append(reader.sample(32).id.tolist())
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]
    assert len({tuple(ids) for ids in drawn}) == 3


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_more_ids_than_are_looked_for_at_a_time(compressor):
    rng = np.random.default_rng(0)
    columns = random_columns(rng, 60)
    ids = rng.integers(-1, 60, 10_000)
    ids[4000:4050] = np.arange(50)
    with make(None, compressor=compressor) as buffer:
        buffer.extend(columns)
        for name in ("observation", "reward"):
            expected = columns[name][ids]
            expected[ids < 0] = 0
            np.testing.assert_array_equal(buffer.take(name, ids), expected)


def test_a_reader_of_a_store_that_is_opened_with_a_smaller_capacity(tmp_path):
    """It went on to look for files that the store does without, and one that was opened later did
    so too until the next record."""
    small = {"segment_rows": 8, "compressor": "lz4"}
    rng = np.random.default_rng(0)
    make(tmp_path / "store", capacity=600, **small).close()
    with make(tmp_path / "store", capacity=600, **small) as buffer:
        buffer.extend(random_columns(rng, 500))
    with diskreplay.open(tmp_path / "store") as before:
        assert len(before) > 64
        with make(tmp_path / "store", capacity=64, shrink=True, **small) as buffer:
            with diskreplay.open(tmp_path / "store") as after:
                for reader in (before, after):
                    buffer.extend(random_columns(rng, 700))
                    buffer.flush()
                    assert_same = np.testing.assert_array_equal
                    assert_same(reader.bounds, buffer.bounds)
                    assert_same(reader.sampleable_ids(), buffer.sampleable_ids())
                    ids = np.arange(*buffer.bounds[0])
                    assert_same(reader.take("observation", ids), buffer.take("observation", ids))
                    assert reader.capacity == after.capacity == 64


def test_several_fields_at_once():
    with make(None) as buffer:
        columns = random_columns(np.random.default_rng(0), 30)
        buffer.extend(columns)
        ids = np.array([[3, 4], [-1, 29]])
        rewards, observations = buffer.take(["reward", "observation"], ids)
        np.testing.assert_array_equal(rewards, buffer.take("reward", ids))
        np.testing.assert_array_equal(observations, buffer.take("observation", ids))
        assert buffer.take([], ids) == []
        with pytest.raises(errors.InvalidInputError, match="out"):
            buffer.take(["reward", "step"], ids, out=np.empty((2, 2), np.float32))


def test_priorities_wait_while_the_store_is_opened_as_a_uniform_one(tmp_path):
    options = {"observation_space": FRAME, "action_space": Discrete(5), "capacity": 64}
    kind = diskreplay.PrioritizedReplayBuffer
    with kind(tmp_path / "store", **options) as buffer:
        buffer.extend(random_columns(np.random.default_rng(0), 40))
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, 1.0 + np.arange(len(ids)))
        before = buffer.gather(ids).probability
    with make(tmp_path / "store") as uniform:
        uniform.flush()
    with kind(tmp_path / "store", **options) as buffer:
        np.testing.assert_array_equal(buffer.gather(ids).probability, before)
        assert buffer.statistics().priorities.largest_seen == len(ids)


@pytest.mark.parametrize(
    "option", [{"capacity": 10**13}, {"segment_rows": 10**12},
               {"batch_size": 10**12}, {"stack_size": 10**12}],
)  # fmt: skip
def test_absurd_figures_are_refused(tmp_path, option):
    with pytest.raises(errors.InvalidInputError):
        make(tmp_path / "store", **option)


@pytest.mark.parametrize(
    "damage", [{"kind": []}, {"kind": {}}, {"kind": "x"}, {"extras": "x"}, {"extras": [[]]},
               {"observation_space": 3}, {"gamma": "y"}, {"stack_size": None}],
)  # fmt: skip
def test_damaged_attributes_are_named(tmp_path, damage):
    make(tmp_path / "store").close()
    metadata = tmp_path / "store" / "zarr.json"
    document = json.loads(metadata.read_text())
    document["attributes"]["diskreplay"] |= damage
    metadata.write_text(json.dumps(document))
    with pytest.raises(errors.FormatError, match=r"zarr\.json"):
        diskreplay.open(tmp_path / "store")


@pytest.mark.parametrize("drawn", [False, True])
def test_rows_that_fit_are_put_as_they_are_added(tmp_path, drawn):
    rng = np.random.default_rng(0)
    extras = {"flag": ((), "bool"), "state": ((3,), "float32")}
    with make(tmp_path / "a", extras=extras) as put, make(tmp_path / "b", extras=extras) as added:
        for at in range(100):
            frame = rng.integers(0, 256, (32, 40), np.uint8)
            action, reward, ends = at % 5, float(rng.normal()), at % 9 == 8
            state = rng.normal(size=3).astype(np.float32)
            row = put.put_row([frame, action, reward, ends, True, 7, True, at % 2 == 0, state])
            ids = added.add(frame, action, reward, ends, False, flag=at % 2 == 0, state=state)
            assert [row] == ids.tolist()
            if drawn and at == 40:
                assert len(put) == len(added)
        assert put.bounds.tolist() == added.bounds.tolist()
        rows = np.arange(*put.bounds[0])
        for name in put.fields:
            np.testing.assert_array_equal(put.take(name, rows), added.take(name, rows))
        np.testing.assert_array_equal(put.sampleable_ids(), added.sampleable_ids())
        nothing = [None] * len(put.fields)
        for wrong in (nothing[:-1], [*nothing, None], tuple(nothing), None):
            with pytest.raises(errors.InvalidInputError, match=f"{len(nothing)} values expected"):
                put.put_row(wrong)
        for wrong in ("frame", np.zeros(7)):
            with pytest.raises(ValueError, match=r"frame|broadcast"):
                put.put_row([wrong, *nothing[1:]])
        with pytest.raises(errors.NotFiniteError):
            put.put_row([*nothing[:2], np.inf, *nothing[3:]])
        assert put.put_row(nothing) == 100
        assert not put.take("observation", [100]).any()
    with pytest.raises(errors.ClosedError):
        put.put_row(nothing)
    with make(tmp_path / "c", num_envs=2) as several:
        with pytest.raises(errors.InvalidInputError, match="one env expected, this buffer has 2"):
            several.put_row(nothing)
