"""Checkpoints of Tianshou's buffers on disk: all is in them that later batches depend on."""

import copy

import gymnasium
import numpy as np
import pytest

pytest.importorskip("tianshou")
from tianshou.data import Batch

import diskreplay
from tests.integrations.tianshou_twins import (
    KINDS,
    alike,
    drawn,
    make,
    player,
)


@pytest.mark.parametrize("kind", ["plain", "vector of frames", "prioritized vector"])
def test_a_checkpoint_has_all_that_is_drawn_by(tmp_path, kind):
    name, options = KINDS[kind]
    plays = player(kind)
    disk = make(name, {"path": tmp_path / "replay"}, **options)
    for _ in range(30):
        plays.step(disk)
    drawn(disk, 5, 0)
    disk.save(tmp_path / "saved", 7, attachments={"note": b"seven"})
    before, later = copy.deepcopy(plays), [drawn(disk, 6, 3)]
    for _ in range(10):
        plays.step(disk)
        later.append(drawn(disk, 6, 4))
    disk.close()
    again = make(name, {"path": tmp_path / "other"}, **options)
    found = again.load(tmp_path / "saved")
    assert found.attachments["note"].read_bytes() == b"seven"
    batches = [drawn(again, 6, 3)]
    for _ in range(10):
        before.step(again)
        batches.append(drawn(again, 6, 4))
    for (one, at), (other, there) in zip(batches, later, strict=True):
        np.testing.assert_array_equal(at, there)
        alike(one, other)
    again.close()


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, [1.0, np.nan]])
def test_rewards_that_are_not_finite_are_saved_with_the_episode_under_way(tmp_path, reward):
    disk, plain = make("ReplayBuffer", {"path": tmp_path / "replay"}), make("ReplayBuffer")
    other = make("ReplayBuffer", {"path": tmp_path / "other"})

    def add(buffer, **ends):
        flags = {"terminated": False, "truncated": False, **ends}
        step = {"obs": np.zeros((40, 40)), "obs_next": np.ones((40, 40)), "act": 1, "info": {}}
        return buffer.add(Batch(**step, rew=reward, **flags))

    for buffer in (disk, plain):
        add(buffer)
        add(buffer)
    disk.flush()
    disk.save(tmp_path / "saved", 1)
    disk.close()
    other.load(tmp_path / "saved")
    for found, wanted in zip(add(other, terminated=True), add(plain, terminated=True), strict=True):
        np.testing.assert_array_equal(found, wanted)
    alike(other[:], plain[:])
    other.close()


def test_priorities_that_are_not_finite_are_saved(tmp_path):
    disk = make("PrioritizedReplayBuffer", {"path": tmp_path / "replay"}, alpha=0.6, beta=0.4)
    plays = player("plain")
    for _ in range(5):
        plays.step(disk)
    disk.update_weight(np.arange(2), np.array([np.inf, 1.0]))
    disk.close()
    disk = make("PrioritizedReplayBuffer", {"path": tmp_path / "replay"}, alpha=0.6, beta=0.4)
    assert disk._max_prio == np.inf
    disk.close()


def test_a_run_is_saved_with_its_network(tmp_path):
    torch = pytest.importorskip("torch")
    from diskreplay.integrations.run_state import RunState

    disk, plays = make("ReplayBuffer", {"path": tmp_path / "replay"}), player("plain")
    for _ in range(15):
        plays.step(disk)
    net = torch.nn.Linear(2, 2)
    run = RunState(disk, tmp_path / "saved", modules={"net": net})
    run.save(15, loss=0.5)
    wanted, weight = disk[:], net.weight.detach().clone()
    # The environment begins anew, so the episode under way is over.
    last = disk.unfinished_index()
    wanted.truncated[last], wanted.done[last] = True, True
    for _ in range(9):
        plays.step(disk)
    torch.nn.init.zeros_(net.weight)
    assert run.load() == (15, {"loss": 0.5})
    alike(disk[:], wanted)
    assert (net.weight == weight).all()
    disk.close()


@pytest.mark.parametrize("held", ["buffer", "part"])
def test_an_environment_may_hold_the_buffer_of_the_run(tmp_path, held):
    """Unpickled, another one would take its store."""
    torch = pytest.importorskip("torch")
    from diskreplay.integrations.run_state import RunState

    kind = "vector" if held == "part" else "plain"
    name, options = KINDS[kind]
    disk, plays = make(name, {"path": tmp_path / "replay"}, **options), player(kind)
    for _ in range(5):
        plays.step(disk)
    rows = len(disk)
    env = gymnasium.Wrapper(gymnasium.make("CartPole-v1"))
    env.buffers = [disk.buffers[0] if held == "part" else disk]
    env.reset(seed=0)
    run = RunState(disk, tmp_path / "saved", modules={"net": torch.nn.Linear(1, 1)}, env=env)
    run.save(5)
    plays.step(disk)
    assert run.load() == (5, {})
    assert env.buffers[0] is (disk.buffers[0] if held == "part" else disk)
    assert len(disk) == rows
    plays.step(disk)
    assert len(disk) > rows
    other = make(name, {"path": tmp_path / "other"}, **options)
    env.buffers.append(other)
    with pytest.raises(diskreplay.InvalidInputError, match="only the buffer of the run"):
        run.save(6)
    other.close()
    disk.close()
