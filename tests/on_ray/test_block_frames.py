"""Batches whose frames were sent in blocks, beside the batches as the shards would read them."""

import pickle
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

import diskreplay
from diskreplay.errors import CorruptSegmentError
from diskreplay.packed_batch import PackedBatch
from diskreplay.ray.batch_order import BatchOrder
from diskreplay.ray.block_frames import BlockFrames
from diskreplay.ray.joined_batches import joined

FRAME = Box(0, 255, (40, 40), "uint8")
SPACES = {
    "frames": FRAME,
    "nested": Dict({
        "camera": FRAME, "both": Tuple((Box(-1, 1, (3,)), Box(0, 9, (30, 8), "int16"))),
    }),
}  # fmt: skip
CODECS = {"frames": "lz4", "nested": {"observation/camera": "zstd", "observation/both/1": "lz4"}}


def filled(path, space, envs, ends, *, rows=120, seed=0, **options):
    """A buffer of frames that compress, of which the newest are in the tail."""
    made = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=SPACES[space], action_space=Discrete(3), num_envs=envs,
        compressor=CODECS[space], segment_rows=64, seed=seed, **{"capacity": None} | options,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    for row in range(rows):
        add(made, rng, space, row, np.full(envs, row % ends == ends - 1))
    made.flush()
    return made


def add(made, rng, space, row, end):
    envs = made.num_envs
    frame = np.repeat(rng.integers(0, 255, (envs, 2, 1), np.uint8), 800, 2).reshape(envs, 40, 40)
    if space == "nested":
        small = rng.normal(size=(envs, 3)).astype(np.float32)
        frame = {"camera": frame, "both": (small, np.full((envs, 30, 8), row, np.int16))}
    terminated, truncated = end & (row % 2 == 0), end & (row % 2 == 1)
    if envs == 1:
        frame = first_env(frame)
        terminated, truncated = terminated[0], truncated[0]
    action, reward = (0, row) if envs == 1 else (np.zeros(envs, int), np.full(envs, row))
    made.add(frame, action, reward, terminated, truncated, frame)


def first_env(value):
    if isinstance(value, dict):
        return {key: first_env(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(first_env, value))
    return value[0]


def sent(packed):
    return pickle.loads(pickle.dumps(packed, 5))


def leaves(value):
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, tuple):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


def frames_of(stack, horizon, padding):
    return BlockFrames(
        {"stack_size": stack, "update_horizon": horizon, "stack_padding": padding}
    )  # fmt: skip


def check_rows(batches, wanted):
    """`wanted` has of each batch where its rows are: which batch as a shard reads it, and where."""
    for batch, places in zip(batches, wanted, strict=True):
        assert set(batch) == set(places[0][0])
        for name in batch:
            for at, leaf in enumerate(leaves(batch[name])):
                expected = np.stack([leaves(of[name])[at][row] for of, row in places])
                np.testing.assert_array_equal(leaf, expected, err_msg=name)
                assert leaf.dtype == expected.dtype


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("padding", ["zero", "reset"])
@pytest.mark.parametrize(("stack", "horizon"), [(4, 1), (1, 1), (2, 3), (3, 2), (4, 3), (1, 20)])
@pytest.mark.parametrize("ends", [40, 9])
def test_what_was_sent_in_blocks_is_what_a_shard_reads(
    tmp_path, space, padding, stack, horizon, ends
):
    options = {"stack_size": stack, "update_horizon": horizon, "stack_padding": padding}
    frames = frames_of(stack, horizon, padding)
    with (
        filled(tmp_path / "one", space, 1, ends, **options) as one,
        filled(tmp_path / "many", space, 3, ends, seed=1, capacity=300, **options) as many,
    ):
        rng = np.random.default_rng(2)
        owners = [np.sort(np.arange(24) % 4), np.array([0, 1, 1, 3])]
        for _ in range(3):  # memory is used again
            places = [rng.random(24), rng.random(4)]
            whole, parts = [], []
            for buffer, positions in zip((one, many), places, strict=True):
                whole.append(buffer.sample_at(positions)[0])
                packed, mass = buffer._sample_packed(positions)
                assert mass == buffer.priority_mass()
                parts.append(sent(packed))
            if horizon < 20:
                assert any(part.blocks for part in parts)
            batches = joined(parts, BatchOrder(owners, 4), {}, frames)
            wanted = [
                [(whole[part], row) for part in range(2) for row in range(len(owners[part]))
                 if owners[part][row] == number] for number in range(4)
            ]  # fmt: skip
            check_rows(batches, wanted)
            for batch in batches:
                again = sent(batch)
                for name in batch:
                    for leaf, other in zip(leaves(batch[name]), leaves(again[name]), strict=True):
                        np.testing.assert_array_equal(leaf, other)


def test_they_are_fewer_bytes_than_the_frames(tmp_path):
    with filled(tmp_path / "store", "frames", 1, 40, rows=2000, stack_size=4) as buffer:
        positions = np.linspace(0, 1, 64)
        packed, whole = buffer._sample_packed(positions)[0], buffer.sample_at(positions)[0]
        assert len(pickle.dumps(packed, 5)) < len(pickle.dumps(PackedBatch.of(whole), 5)) / 3
        assert abs(packed.nbytes - len(pickle.dumps(packed, 5))) < 5000


def test_frames_that_do_not_compress_are_sent_as_they_are_beside_others_that_do(tmp_path):
    options = {"observation_space": FRAME, "action_space": Discrete(3), "stack_size": 4,
               "capacity": None, "compressor": "lz4"}  # fmt: skip
    with (
        diskreplay.PrioritizedReplayBuffer(tmp_path / "noise", **options) as noise,
        filled(tmp_path / "frames", "frames", 1, 9, stack_size=4) as frames,
    ):
        rng = np.random.default_rng(0)
        for row in range(200):
            noise.add(rng.integers(0, 255, (40, 40), np.uint8), 0, row, row % 9 == 8, False)
        noise.flush()
        positions = rng.random(10)
        whole = [buffer.sample_at(positions)[0] for buffer in (noise, frames)]
        parts = [sent(buffer._sample_packed(positions)[0]) for buffer in (noise, frames)]
        assert [len(part.blocks) for part in parts] == [0, 1]
        for order in ([0, 1], [1, 0]):
            batches = joined(
                [parts[k] for k in order], BatchOrder([np.repeat([0, 1], 5)] * 2, 2), {},
                frames_of(4, 1, "zero"),
            )  # fmt: skip
            wanted = [
                [(whole[k], row) for k in order for row in range(start, start + 5)]
                for start in (0, 5)
            ]
            check_rows(batches, wanted)


def test_what_a_learner_holds_is_not_read_over(tmp_path):
    frames = frames_of(2, 1, "zero")
    with filled(tmp_path / "store", "frames", 1, 9, stack_size=2) as buffer:
        held = []
        for seed in range(12):
            positions = np.random.default_rng(seed).random(16)
            part = sent(buffer._sample_packed(positions)[0])
            batches = joined([part], BatchOrder([np.repeat([0, 1], 8)], 2), {}, frames)
            held.append((batches[seed % 2], buffer.sample_at(positions)[0], 8 * (seed % 2)))
        for batch, whole, start in held:
            check_rows([batch], [[(whole, row) for row in range(start, start + 8)]])


@given(data=st.data())
def test_damage_on_the_way_is_noticed(shared_part, data):
    part, frames = shared_part
    blocks = part.blocks["observation"]
    damaged = blocks.data.copy()
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    wrong = part._replace(blocks={"observation": blocks._replace(data=damaged)})
    with pytest.raises(CorruptSegmentError, match="damaged on its way"):
        joined([wrong], BatchOrder([np.zeros(16, int)], 1), {}, frames)


@pytest.fixture(scope="module")
def shared_part(tmp_path_factory):
    path = tmp_path_factory.mktemp("sent") / "store"
    with filled(path, "frames", 1, 9, stack_size=2) as buffer:
        part = buffer._sample_packed(np.random.default_rng(0).random(16))[0]
    return sent(part), frames_of(2, 1, "zero")


def test_no_memory_is_asked_for_ahead_of_what_came(tmp_path, monkeypatch):
    """A learner that had a page fault: the kernel reads the index of a store, which is longer."""
    frames = frames_of(2, 3, "zero")
    frames._reader._advice[:] = 1000, 16
    with filled(tmp_path / "store", "frames", 1, 9, stack_size=2, update_horizon=3) as buffer:
        part = sent(buffer._sample_packed(np.linspace(0, 1, 16))[0])
        whole = buffer.sample_at(np.linspace(0, 1, 16))[0]
    monkeypatch.setattr(frames._reader._kernels, "advise", None)
    batches = joined([part], BatchOrder([np.zeros(16, int)], 1), {}, frames)
    check_rows(batches, [[(whole, row) for row in range(16)]])


def test_rows_that_are_being_compressed_come_right(tmp_path):
    """A block leaves the tail while it is read there; each frame has its row's number."""
    space = Box(0, 1 << 30, (64,), "int32")
    frames = frames_of(3, 1, "zero")
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "store", observation_space=space, action_space=Discrete(3), capacity=4000,
        compressor={"observation": "lz4"}, stack_size=3, segment_rows=256,
    ) as buffer:  # fmt: skip
        over = threading.Event()

        def record():
            row = 0
            while not over.is_set():
                buffer.add(np.full(64, row, np.int32), 0, row, False, False)
                row += 1

        thread = threading.Thread(target=record)
        thread.start()
        try:
            while buffer.add_count < 200:
                pass
            in_blocks = 0
            for seed in range(300):
                rng = np.random.default_rng(seed)
                part = buffer._sample_packed(1 - rng.random(32) ** 4)[0]  # the newest, mostly
                in_blocks += bool(part.blocks)
                (batch,) = joined([part], BatchOrder([np.zeros(32, int)], 1), {}, frames)
                wanted = batch.id[:, None] + np.arange(-2, 1)
                np.testing.assert_array_equal(
                    batch.observation, np.repeat(np.maximum(wanted, 0)[:, :, None], 64, 2)
                )
                np.testing.assert_array_equal(batch.next_observation[:, -1, 0], batch.id + 1)
            assert in_blocks
        finally:
            over.set()
            thread.join()
