"""ReAgent's and Dopamine's files as stores, and back, beside a model of their rings."""

import gzip
import os
import pickle
import pickletools
import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.convert import gz_checkpoint
from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidInputError,
    NotFiniteError,
    SchemaError,
    StorageError,
    SuffixError,
)
from tests.convert.gz_rings import Ring, load_array, play, save_array

SLOW = settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.mark.costly
@SLOW
@given(
    stack=st.integers(1, 4), horizon=st.integers(1, 4), capacity=st.integers(8, 30),
    rows=st.integers(0, 80), dopamine=st.booleans(), seed=st.integers(0, 9999),
)  # fmt: skip
@example(stack=4, horizon=1, capacity=8, rows=8, dopamine=True, seed=0)  # padding over the wrap
def test_rows_come_in_time_order_without_padding(
    tmp_path_factory, stack, horizon, capacity, rows, dopamine, seed
):
    directory = tmp_path_factory.mktemp("files")
    ring = Ring(capacity, stack)
    play(ring, np.random.default_rng(seed), rows, truncations=dopamine)
    ring.save(directory, horizon=horizon if dopamine else None)
    seen = []
    told = dopamine and rows > 0  # by invalid_range
    path = gz_checkpoint.read(
        directory, 1, directory / "store", stack_size=None if told else stack,
        update_horizon=None if told else horizon, progress=lambda *at: seen.append(at),
    )  # fmt: skip
    expected = ring.retained()
    stored = min(len(ring.rows), capacity)
    assert not seen or seen[-1] == (stored, stored)
    with diskreplay.open(path) as buffer:
        assert (buffer.stack_size, buffer.update_horizon) == (stack, horizon)
        assert buffer.capacity == capacity
        first, count = buffer.bounds[0]
        assert count - first == len(expected)
        ids = np.arange(first, count)
        fields = {name: buffer.take(name, ids) for name in buffer.fields}
        for at, name in enumerate(("observation", "action", "reward")):
            assert fields[name].tolist() == [np.asarray(row[at]).tolist() for row in expected]
        assert fields["q"].tolist() == [row[4].tolist() for row in expected]
        assert fields["terminated"].tolist() == [bool(row[3]) for row in expected]
        assert fields["truncated"].tolist() == [row[5] and not row[3] for row in expected]
        assert not fields["is_final"].any()
        # Whether the beginning of each row's episode is there; without its whole padding before it,
        # nothing says that the very first row is one.
        whole = ring.rows[-stored : stack - 1 - stored or None] if stored else []
        is_whole = all(row is None for row in whole) and (stack > 1 or len(ring.rows) <= capacity)
        known = []
        for row in expected:
            known.append((row[7] == 0 and (bool(known) or is_whole)) or (bool(known) and known[-1]))
        for i, row in enumerate(expected):
            if known[i]:
                assert fields["step"][i] == row[7]
            else:
                assert fields["step"][i] >= stack  # its stack may need what is gone
        # What can be sampled: the stack and the n-step window of each are whole.
        sampleable = []
        for i, row in enumerate(expected):
            needed = min(row[7], stack - 1) if known[i] else stack - 1
            stacked = i >= needed
            n_step = False
            for later in range(i, len(expected)):
                if later - i == horizon or (later - i < horizon and expected[later][3]):
                    n_step = True
                if later - i >= horizon or expected[later][3] or expected[later][5]:
                    break
            if stacked and n_step:
                sampleable.append(int(ids[i]))
        assert len(buffer) == len(sampleable)
        if sampleable:
            batch = buffer.gather(sampleable)
            assert batch.action.tolist() == [expected[i - first][1] for i in sampleable]


@pytest.mark.parametrize("flavour", ["reagent", "dopamine"])
@pytest.mark.parametrize("slots", [20, 30])  # a ring that is full, and one that is not
def test_stacks_of_an_evicted_beginning_are_not_made_up(tmp_path, flavour, slots):
    """Also where a row holds zeros, so that it looks like the rest of a padding."""
    for name, black in (("one", -1), ("two", 81)):
        with make_numbered(stack_size=4, capacity=20) as buffer:
            for number in range(1, 101):
                is_black = number == black
                buffer.add([0 if is_black else number], int(not is_black), 0.0, False, False)
            gz_checkpoint.write(buffer, tmp_path / name, 1, flavour=flavour, capacity=slots)
            expected = buffer.gather(np.sort(buffer.sampleable_ids())).observation[..., 0].tolist()
            path = gz_checkpoint.read(tmp_path / name, 1, tmp_path / f"{name}.store", stack_size=4)
            buffer.load(tmp_path / name, 1)
            loaded = buffer.gather(np.sort(buffer.sampleable_ids())).observation[..., 0].tolist()
        assert len(expected) == 16
        with diskreplay.open(path) as back:
            found = back.gather(np.sort(back.sampleable_ids())).observation[..., 0].tolist()
        lost = int(black > 0)  # the black row is taken for padding, which is left out
        assert loaded == found == expected[lost:]


def make_numbered(**options):
    return diskreplay.ReplayBuffer(
        None, observation_space=spaces.Box(0, 255, (1,), np.uint8),
        action_space=spaces.Discrete(4), **options,
    )  # fmt: skip


def test_priorities_both_ways(tmp_path):
    with diskreplay.PrioritizedReplayBuffer(
        None, observation_space=spaces.Box(0, 255, (2,), np.uint8), stack_size=3, alpha=0.5,
        action_space=spaces.Discrete(4), capacity=24,  # all rows and their padding
    ) as buffer:  # fmt: skip
        for i in range(17):
            buffer.add(np.full(2, i + 1, np.uint8), i % 4, float(i), i % 6 == 5, False)
        buffer.update_priorities(np.arange(16), np.arange(16.0) ** 2)
        gz_checkpoint.write(buffer, tmp_path, 1)
    path = gz_checkpoint.read(tmp_path, 1, tmp_path / "store", stack_size=3)
    rewards = load_array(tmp_path, "$store$_reward")
    with diskreplay.open(path) as buffer:
        assert isinstance(buffer, diskreplay.PrioritizedReplayBuffer)
        ids = np.arange(*buffer.bounds[0])
        kept = buffer.take("reward", ids)
        assert set(kept.tolist()) <= set(rewards.tolist())
        assert len(kept) > 8
        leaves = buffer.tree.get(ids % buffer.tree.capacity)
        sampleable = kept < 16
        np.testing.assert_allclose(leaves[sampleable], kept[sampleable])
    path = gz_checkpoint.read(tmp_path, 1, tmp_path / "again", stack_size=3, alpha=0.5)
    with diskreplay.open(path) as buffer:
        assert buffer.alpha == 0.5
        again = buffer.tree.get(ids % buffer.tree.capacity)
        np.testing.assert_allclose(again[sampleable], kept[sampleable])
    uniform = gz_checkpoint.read(tmp_path, 1, tmp_path / "uniform", stack_size=3, prioritized=False)
    with diskreplay.open(uniform) as buffer:
        assert type(buffer) is diskreplay.ReplayBuffer


def test_a_smaller_capacity_keeps_the_newest(tmp_path):
    ring = Ring(30, 2)
    play(ring, np.random.default_rng(0), 25)
    ring.save(tmp_path)
    path = gz_checkpoint.read(tmp_path, 1, tmp_path / "store", stack_size=2, capacity=10)
    with diskreplay.open(path) as buffer:
        ids = np.arange(*buffer.bounds[0])
        expected = [row[2] for row in ring.retained()[-10:]]
        assert buffer.take("reward", ids).tolist() == expected


def test_memory_does_not_grow_with_the_files(tmp_path):
    rows, side = 6000, 100
    frame = np.ones((rows, side, side), np.uint8)  # 60 MB, and more than three chunks
    save_array(tmp_path, "$store$_observation", frame)
    del frame
    save_array(tmp_path, "$store$_action", np.zeros(rows, np.int32))
    save_array(tmp_path, "$store$_reward", np.arange(rows, dtype=np.float32))
    save_array(tmp_path, "$store$_terminal", np.zeros(rows, np.uint8))
    save_array(tmp_path, "add_count", np.array(rows + 2500))
    save_array(tmp_path, "invalid_range", (np.arange(5) + rows + 2499) % rows)
    seen = []
    tracemalloc.start()
    path = gz_checkpoint.read(
        tmp_path, 1, tmp_path / "store", progress=lambda done, total: seen.append(done)
    )
    _now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert most < 40e6
    with diskreplay.open(path) as buffer:
        expected = [*range(2500, rows), *range(2500)]
        assert buffer.take("reward", np.arange(rows)).tolist() == expected
        assert buffer.stack_size == 4


def make_files(directory):
    ring = Ring(12, 2)
    play(ring, np.random.default_rng(1), 20)
    ring.save(directory, horizon=1)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_what_is_damaged_or_hostile_leaves_nothing(tmp_path):
    class Shell:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    directory = tmp_path / "files"
    directory.mkdir()
    original = make_files(directory)

    def raw(name, data):
        (directory / f"{name}_ckpt.1.gz").write_bytes(data)

    def header(name, **changes):
        document = {"descr": "|u1", "fortran_order": False, "shape": (12, 2, 2), **changes}
        with gzip.open(directory / f"{name}_ckpt.1.gz", "wb") as file:
            np.lib.format.write_array_header_1_0(file, document)
            file.write(bytes(48))

    def save(name, array):
        save_array(directory, name, array)

    column = "$store$_observation"
    bomb = gzip.compress(bytes(50_000_000))
    cases = [
        (CheckpointNotFoundError, lambda: os.unlink(directory / "add_count_ckpt.1.gz")),
        (CheckpointNotFoundError, lambda: os.unlink(directory / "$store$_reward_ckpt.1.gz")),
        (CorruptCheckpointError, lambda: raw(column, original[f"{column}_ckpt.1.gz"][:-9])),
        (CorruptCheckpointError, lambda: raw(column, b"\x1f\x8b nonsense")),
        (CorruptCheckpointError, lambda: raw(column, original[f"{column}_ckpt.1.gz"] + bomb)),
        (CorruptCheckpointError, lambda: raw("add_count", bomb)),
        (CorruptCheckpointError, lambda: raw("invalid_range", b"")),
        (CorruptCheckpointError, lambda: header(column, shape=(12, 2**40))),
        (CorruptCheckpointError, lambda: header(column, shape=(2**50, 2, 2))),
        (CorruptCheckpointError, lambda: header(column, shape=(12, -2, -2))),
        (CorruptCheckpointError, lambda: header(column, shape=(13, 2, 2))),
        (CorruptCheckpointError, lambda: header(column, descr="|O")),
        (CorruptCheckpointError, lambda: header(column, descr="<U4")),
        (CorruptCheckpointError, lambda: header(column, fortran_order=True)),
        (CorruptCheckpointError, lambda: save("add_count", np.array(-1))),
        (CorruptCheckpointError, lambda: save("add_count", np.array(1.5))),
        (SchemaError, lambda: save("$store$_reward", np.zeros((12, 2), np.float32))),
        (NotFiniteError, lambda: save("$store$_reward", np.full(12, np.nan, np.float32))),
        (CorruptCheckpointError,
         lambda: raw("episode_end_indices", gzip.compress(pickle.dumps(Shell())))),
        (CorruptCheckpointError,
         lambda: raw("episode_end_indices", gzip.compress(pickle.dumps({"a"})))),
        (CorruptCheckpointError, lambda: raw("sum_tree", gzip.compress(pickle.dumps(Shell())))),
        (CorruptCheckpointError, lambda: raw("sum_tree", gzip.compress(pickle.dumps(3)))),
    ]  # fmt: skip
    for error, damage in cases:
        for path in directory.iterdir():
            path.unlink()
        for name, data in original.items():
            (directory / name).write_bytes(data)
        damage()
        with pytest.raises(error):
            gz_checkpoint.read(directory, 1, tmp_path / "store")
        assert os.listdir(tmp_path) == ["files"]
    assert not (tmp_path / "pwned").exists()


def test_arguments_that_make_no_sense(tmp_path):
    directory = tmp_path / "files"
    directory.mkdir()
    make_files(directory)
    box = spaces.Box(0, 255, (2, 2), np.uint8)
    for suffix in ("../files/1", "", ".1", "a b"):
        with pytest.raises(SuffixError):
            gz_checkpoint.read(directory, suffix, tmp_path / "store")
    with pytest.raises(CheckpointNotFoundError):
        gz_checkpoint.read(directory, 2, tmp_path / "store")
    with pytest.raises(CheckpointNotFoundError):
        gz_checkpoint.read(tmp_path / "nowhere", 1, tmp_path / "store")
    with pytest.raises(InvalidInputError, match="is there already"):
        gz_checkpoint.read(directory, 1, directory)
    for options in (
        {"observation_space": spaces.Box(0, 255, (3, 3), np.uint8)},
        {"observation_space": spaces.Dict({"a": box})},
        {"action_space": spaces.Box(-1, 1, (2,))},
        {"observation_space": spaces.Box(0, 1, (2, 2), np.bool_)},
    ):
        with pytest.raises(SchemaError):
            gz_checkpoint.read(directory, 1, tmp_path / "store", **options)
    os.unlink(directory / "invalid_range_ckpt.1.gz")
    with pytest.raises(InvalidInputError, match="stack_size is needed"):
        gz_checkpoint.read(directory, 1, tmp_path / "store")
    assert os.listdir(tmp_path) == ["files"]
    path = gz_checkpoint.read(
        directory, 1, tmp_path / "store", stack_size=2, observation_space=box,
        action_space=spaces.Discrete(18), gamma=0.5,
    )  # fmt: skip
    assert gz_checkpoint.found(directory, 1)
    assert not gz_checkpoint.found(directory, 2)
    with diskreplay.open(path) as buffer:
        assert buffer.action_space == spaces.Discrete(18)
        assert buffer.gamma == 0.5
        with pytest.raises(InvalidInputError, match="flavour"):
            gz_checkpoint.write(buffer, tmp_path, 1, flavour="zip")
    with (
        diskreplay.ReplayBuffer(
            None, observation_space=box, action_space=spaces.Discrete(2), capacity=20, num_envs=2
        ) as two,
        pytest.raises(InvalidInputError, match="one env"),
    ):
        gz_checkpoint.write(two, tmp_path, 1)


# -- by way of a buffer


def make_buffer(path, **options):
    kind = diskreplay.PrioritizedReplayBuffer if "alpha" in options else diskreplay.ReplayBuffer
    options = {
        "observation_space": spaces.Box(0, 255, (4, 3), "uint8"), "capacity": 60,
        "action_space": spaces.Discrete(5), "stack_size": 3, "update_horizon": 2, "seed": 1,
        "extras": {"q": ((2,), "float32")}, **options,
    }  # fmt: skip
    return kind(path, **options)


def fill(buffer, rng, steps):
    for step in range(steps):
        buffer.add(
            rng.integers(1, 256, (4, 3), np.uint8), step % 5, step / 3, step % 9 == 8, False,
            q=rng.normal(size=2).astype(np.float32),
        )  # fmt: skip


@pytest.mark.costly(1)
@pytest.mark.parametrize("flavour", ["reagent", "dopamine"])
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_a_buffer_loads_what_it_exports(tmp_path, flavour, alpha):
    rng = np.random.default_rng(2)
    options = {} if alpha is None else {"alpha": alpha}
    with (
        make_buffer(tmp_path / "one", **options) as one,
        make_buffer(tmp_path / "two", **options) as two,
    ):
        fill(one, rng, 50)
        fill(two, rng, 7)
        one.export_gz(tmp_path / "gz", 3, flavour=flavour)
        one.export_gz(tmp_path / "gz", 12, flavour=flavour)
        if alpha is not None:  # each has a class of its own, and none of the other's
            pickled = gzip.decompress((tmp_path / "gz" / "sum_tree_ckpt.3.gz").read_bytes())
            named = [text for op, text, _ in pickletools.genops(pickled) if op.name == "GLOBAL"]
            assert named[0] == f"{flavour}.replay_memory.sum_tree SumTree"
        two.load(tmp_path / "gz", 3)
        kept = one.sampleable_ids()[-len(two) :]
        assert len(two) >= 30  # padding takes some slots
        expected, found = one.gather(kept), two.gather(two.sampleable_ids())
        for name in found.keys() - {"id", "probability"}:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        two.load(tmp_path / "gz")  # the newest
        fill(two, rng, 20)
        assert two.sample(8).observation.shape == (8, 3, 4, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gz", "one", "two"]


def test_a_buffer_that_refuses_a_gz_checkpoint_stays_as_it_was(tmp_path):
    rng = np.random.default_rng(2)
    with make_buffer(None) as one:
        fill(one, rng, 50)
        one.export_gz(tmp_path, 3)
    (tmp_path / "$store$_reward_ckpt.4.gz").write_bytes(b"rubbish")
    with make_buffer(None) as two, make_buffer(None, extras=None) as three:
        fill(two, rng, 20)
        before = two.gather(two.sampleable_ids())
        with pytest.raises(CheckpointNotFoundError):
            two.load(tmp_path, 4)
        with pytest.raises(CheckpointNotFoundError):
            two.load(tmp_path, 5)
        with pytest.raises(SchemaError):
            three.load(tmp_path, 3)
        reward = tmp_path / "$store$_reward_ckpt.3.gz"
        reward.write_bytes(reward.read_bytes()[:-9])
        with pytest.raises(CorruptCheckpointError):
            two.load(tmp_path, 3)
        after = two.gather(two.sampleable_ids())
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])
        two.add(np.ones((4, 3), np.uint8), 1, 1.0, True, False, q=np.zeros(2, np.float32))


@pytest.mark.parametrize("by", ["reader", "buffer"])
def test_files_that_are_replaced_while_they_are_read_make_no_mixture(tmp_path, monkeypatch, by):
    """Their counts and ends would be of one export, and the rows of another one."""
    with make_buffer(tmp_path / "one") as one, make_buffer(tmp_path / "two") as two:
        for seed, buffer in enumerate((one, two)):
            fill(buffer, np.random.default_rng(seed), 30)
        gz_checkpoint.write(one, tmp_path / "gz", 1, flavour="dopamine")
        real = gz_checkpoint._fill

        def replaced(*arguments):
            gz_checkpoint.write(two, tmp_path / "gz", 1, flavour="dopamine")
            return real(*arguments)

        monkeypatch.setattr(gz_checkpoint, "_fill", replaced)
        before = one.add_count
        load = one.load if by == "buffer" else gz_checkpoint.read
        more = () if by == "buffer" else (tmp_path / "out",)
        with pytest.raises(StorageError, match="replaced while it was read"):
            load(tmp_path / "gz", 1, *more)
        assert one.add_count == before
        assert not (tmp_path / "out").exists()
        monkeypatch.undo()
        gz_checkpoint.read(tmp_path / "gz", 1, tmp_path / "out")
