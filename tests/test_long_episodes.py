"""Steps are int32: an episode that would need more is refused before a row is committed."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.compat.slot_buffer import SlotBuffer
from tests import processes

LAST = 2**31 - 1  # of int32; for a final row only
OPTIONS = {
    "observation_space": Box(0, 255, (2,), "uint8"), "action_space": Discrete(4), "capacity": 60,
    "seed": 0, "batch_size": 16,
}  # fmt: skip


def columns(steps, envs=1):
    """Rows of an episode that is so long already."""
    rows, no = len(steps), np.zeros(len(steps), bool)
    return {
        "observation": np.array(steps)[:, None].astype(np.uint8).repeat(2, axis=1),
        "action": np.zeros(rows, int), "reward": np.ones(rows), "terminated": no, "truncated": no,
        "step": np.array(steps), "is_final": no,
    }  # fmt: skip


def make(path, envs=1, **changed):
    options = OPTIONS | {"num_envs": envs, "stack_size": 3, "update_horizon": 2} | changed
    return diskreplay.PrioritizedReplayBuffer(path, **options)


def step(buffer, ended=False, mask=None):
    frame = np.full(2, 7, np.uint8)
    if buffer.num_envs == 1:
        return buffer.add(frame, 0, 1.0, ended, False, frame)
    envs = buffer.num_envs
    ends = np.full(envs, ended)
    return buffer.add(
        np.tile(frame, (envs, 1)), np.zeros(envs, int), np.ones(envs), ends, ends & False,
        np.tile(frame, (envs, 1)), mask=mask,
    )  # fmt: skip


def bounds(buffer):
    return buffer.bounds.tolist(), buffer.add_count, len(buffer)


@pytest.mark.parametrize("envs", [1, 3])
def test_the_longest_episode(tmp_path, envs):
    with make(tmp_path / "store", envs) as buffer:
        for _ in range(3):
            step(buffer)
        buffer.extend(columns(range(LAST - 4, LAST - 1)), env=envs - 1)
        step(buffer)  # of 2**31 - 1 steps: the last that there can be
        before = bounds(buffer)
        for _ in range(2):
            with pytest.raises(errors.UsageError, match=rf"env {envs - 1} .*end_episode"):
                step(buffer)
            assert bounds(buffer) == before
        if envs > 1:
            step(buffer, mask=np.arange(envs) < envs - 1)  # the others go on
        buffer.sample()
        buffer.end_episode()
        ids = step(buffer)
        assert buffer.take("step", ids).tolist() == [0] * envs
        newest = buffer.bounds[envs - 1, 1] - 1
        steps = buffer.take("step", np.arange(newest - 4, newest) * envs + envs - 1)
        assert steps.tolist() == [LAST - 4, LAST - 3, LAST - 2, LAST - 1]
        before = bounds(buffer)
    with make(tmp_path / "store", envs) as buffer:  # it is no rot
        assert bounds(buffer)[:2] == before[:2]
        buffer.sample()
        step(buffer)


def test_the_final_row_of_the_longest_episode(tmp_path):
    with make(tmp_path / "store") as buffer:
        buffer.extend(columns(range(LAST - 4, LAST - 1)))
        (id_,) = step(buffer, ended=True)
        assert buffer.take(["step", "is_final"], np.array([id_, id_ + 1]))[0].tolist() == [
            LAST - 1, LAST,
        ]  # fmt: skip
        assert buffer.take("step", step(buffer)).tolist() == [0]
        buffer.gather(np.array([id_]))
    with make(tmp_path / "store") as buffer:
        buffer.gather(np.array([id_]))


def test_frames_and_extend(tmp_path):
    with make(tmp_path / "store") as buffer:
        buffer.extend(columns(range(LAST - 4, LAST)))
        before = bounds(buffer)
        with pytest.raises(errors.UsageError, match="end_episode"):
            buffer.add_frame(np.zeros(2, np.uint8))
        with pytest.raises(errors.DtypeError, match="step"):
            buffer.extend(columns([LAST]))
        assert bounds(buffer) == before
        buffer.extend(columns([0, 1]))
        step(buffer)


def test_a_checkpoint_of_the_longest_episode(tmp_path):
    with make(tmp_path / "store") as buffer:
        buffer.extend(columns(range(LAST - 4, LAST)))
        buffer.save(tmp_path / "checkpoints", 1)
        buffer.load(tmp_path / "checkpoints", 1, resume_episodes=True)
        before = bounds(buffer)
        with pytest.raises(errors.UsageError, match="end_episode"):
            step(buffer)
        assert bounds(buffer) == before
        buffer.load(tmp_path / "checkpoints", 1)
        step(buffer)


def test_a_ring(tmp_path):
    options = {k: v for k, v in OPTIONS.items() if k not in ("batch_size", "seed")}
    with SlotBuffer(tmp_path / "store", facade="test", resume_episodes=True, **options) as ring:
        ring.extend(columns(range(LAST - 4, LAST)))
        count = ring.count
        with pytest.raises(errors.UsageError, match="end_episode"):
            ring.put({"reward": 1.0})
        assert ring.count == count
    with SlotBuffer(tmp_path / "store", facade="test", resume_episodes=True, **options) as ring:
        assert ring.next_step == LAST
        with pytest.raises(errors.UsageError):
            ring.put({"reward": 1.0})
        ring.end_episode()
        ring.put({"reward": 1.0})


CODE = """
import pathlib, sys
from tests import test_long_episodes as t
with t.make(pathlib.Path(sys.argv[1]) / "store", 2) as buffer:
    for env in (0, 1):
        buffer.extend(t.columns(range(t.LAST - 6, t.LAST - 3)), env=env)
    for _ in range(40):
        try:
            t.step(buffer)
        except t.errors.UsageError:
            buffer.end_episode()
    for _ in range(50):
        buffer.sample(64)
"""


def test_stacks_of_the_longest_episode_do_not_crash(tmp_path):
    done = processes.run(CODE, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
