"""A buffer that forgets all rows."""

import signal

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from tests import processes
from tests.naive import SideBySide

FRAME = Box(0, 255, (8, 8), np.uint8)


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2),
        **{"capacity": 4096, "segment_rows": 8, "compressor": {"observation": "zstd"}, **options},
    )  # fmt: skip


def fill(buffer, rows, start=0):
    for number in range(start, start + rows):
        buffer.add(np.full((8, 8), number % 256, np.uint8), 1, 1.0, number % 10 == 9, False)


@pytest.mark.parametrize("rows", [0, 16, 500])
@pytest.mark.parametrize("capacity", [None, 200])
def test_it_begins_again(tmp_path, rows, capacity):
    with make(tmp_path / "r", capacity=capacity, metadata={"run": 3}, name="mine") as buffer:
        fill(buffer, rows)
        if rows:
            buffer.update_priorities(buffer.sampleable_ids()[:1], [7.0])
        fields = buffer.zarr()["observation"].metadata
        drawn = buffer.rng.bit_generator.state
        buffer.clear()
        assert buffer.rng.bit_generator.state == drawn
        assert (len(buffer), buffer.add_count) == (0, 0)
        assert buffer.bounds.tolist() == [[0, 0]]
        assert buffer.metadata == {"run": 3}
        assert buffer.capacity == capacity
        assert buffer.zarr()["observation"].metadata.codecs == fields.codecs
        assert buffer.zarr()["observation"].metadata.chunk_grid == fields.chunk_grid
        with pytest.raises(errors.EmptyBufferError):
            buffer.sample()
        fill(buffer, 20, 100)
        assert buffer.sampleable_ids().tolist() == list(range(20))
        assert (buffer.take("observation", np.arange(20))[:, 0, 0] == np.arange(100, 120)).all()
        assert buffer.statistics().priorities.max == pytest.approx(7.0**0.6 if rows else 1.0)
    assert verify(tmp_path / "r").findings == ()
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_cleared_beside_the_twin(tmp_path):
    with SideBySide(tmp_path / "r", num_envs=2, capacity=80, alpha=0.6, segment_rows=8) as both:
        for round_ in range(3):
            both.play(60, seed=round_)
            both.clear()
            both.check_counts()
            both.play(5, seed=round_)
            both.check_counts()
            both.check_gather()


def test_a_reader_follows(tmp_path):
    with make(tmp_path / "r") as buffer:
        fill(buffer, 50)
        with diskreplay.open(tmp_path / "r") as reader:
            assert len(reader) == 50
            buffer.clear()
            assert len(reader) == 0
            fill(buffer, 5, 100)
            assert len(reader) == 4  # the fifth waits for what it led to
            assert (reader.take("observation", [0]) == 100).all()


def test_who_may_not(tmp_path):
    buffer = make(tmp_path / "r")
    fill(buffer, 20)
    with diskreplay.open(tmp_path / "r") as reader, pytest.raises(errors.ReadOnlyError):
        reader.clear()
    buffer.close()
    with pytest.raises(errors.ClosedError):
        buffer.clear()
    with make(tmp_path / "r") as buffer:
        assert len(buffer) == 20


CLEAR_AND_DIE = """
import os, signal, sys
from tests.test_clear import fill, make
buffer = make(sys.argv[1])
fill(buffer, 100)
buffer.flush()
buffer.clear()
fill(buffer, 4, 200)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_forgotten_does_not_come_back_after_a_kill(tmp_path):
    assert processes.run(CLEAR_AND_DIE, tmp_path / "r").returncode == -signal.SIGKILL
    with make(tmp_path / "r") as buffer:
        assert buffer.bounds.tolist() == [[0, 4]]
        assert (buffer.take("observation", [0])[0] == 200).all()


@pytest.mark.parametrize("apart", [True, 64])
def test_all_rows_that_come_after_it_are_new_to_an_online_view(tmp_path, apart):
    buffer = diskreplay.ReplayBuffer(
        tmp_path / "r", observation_space=Box(-1e9, 1e9, (1,), "float32"),
        action_space=Discrete(2), capacity=1000,
    )  # fmt: skip
    with buffer:
        for at in range(41):
            buffer.add([at], 0, 0.0, False, False)
        view = buffer.sequences(1, ends="cross", ahead=0, online=apart, batch_size=1)
        buffer.clear()
        for at in range(300):
            buffer.add([at], 0, 0.0, False, False)
        found = [int(view.sample().anchor[0]) for _ in range(4)]
    assert found == [at * int(apart) for at in range(4)]
