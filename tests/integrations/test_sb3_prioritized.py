"""Prioritized replay for Stable-Baselines3, and batches that are read ahead."""

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import diskreplay
from diskreplay import errors
from diskreplay.integrations.sb3 import (
    DiskHerReplayBuffer,
    DiskNStepReplayBuffer,
    DiskPrioritizedReplayBuffer,
    DiskReplayBuffer,
    PrioritizedDQN,
)
from tests.integrations.test_sb3_disk import STACKS, TWO, Player


def filled(kind=DiskPrioritizedReplayBuffer, steps=15, **options):
    buffer = kind(40, STACKS, TWO, "cpu", n_envs=2, frame_stack=3, **options)
    player = Player()
    player.play(steps, buffer)
    return buffer, player


@pytest.mark.parametrize("n_steps", [1, 3])
def test_samples_are_those_of_the_rows(n_steps):
    buffer, player = filled(n_steps=n_steps, gamma=0.9)
    player.play(30, buffer)
    for _ in range(5):
        batch = buffer.sample(16)
        rows, envs = np.divmod(batch.ids, 2)
        assert batch.weights.shape == batch.discounts.shape == (16, 1)
        assert batch.weights.max() == 1
        for at, (row, env) in enumerate(zip(rows, envs, strict=True)):
            slot = np.flatnonzero(buffer._ring.rows[:, env] == row)
            if not len(slot):  # the oldest slot's stack has this frame
                assert 0 < buffer._ring.rows[buffer.pos, env] - row <= 2
                continue
            slot = slot.item()
            wanted = torch.as_tensor(buffer.observations[slot, env])
            assert torch.equal(batch.observations[at], wanted)
            total, last = 0.0, slot
            for k in range(n_steps):
                last = (slot + k) % 20
                total += 0.9**k * buffer.rewards[last, env]
                if buffer.dones[last, env]:
                    break
            assert batch.rewards[at].item() == pytest.approx(total, rel=1e-5)
            assert batch.discounts[at].item() == pytest.approx(0.9 ** (k + 1), rel=1e-6)
            ended = buffer.dones[last, env] and not buffer.timeouts[last, env]
            assert batch.dones[at].item() == ended
            if not ended:
                wanted = torch.as_tensor(buffer.next_observations[last, env])
                assert torch.equal(batch.next_observations[at], wanted)
        player.play(3, buffer)


def test_priorities_are_the_td_errors():
    buffer, _ = filled(alpha=1.0, beta=1.0)
    ids = buffer.disk.sampleable_ids()
    errors_ = torch.linspace(-2, 2, len(ids))[:, None]
    assert buffer.update_priorities(ids, errors_) == 0
    wanted = np.abs(errors_.numpy().reshape(-1).astype(np.float64)) + 1e-6
    found = buffer.disk.gather(ids).probability
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-6)
    buffer.reset()
    assert buffer.size() == 0


def train(steps=200, **options):
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    model = PrioritizedDQN(
        "MlpPolicy", env, buffer_size=200, learning_starts=20, train_freq=4, seed=1, gamma=0.9,
        batch_size=16, policy_kwargs={"net_arch": [8]}, device="cpu",
        replay_buffer_class=DiskPrioritizedReplayBuffer,
        replay_buffer_kwargs={"gamma": 0.9, "n_steps": 2, **options},
    )  # fmt: skip
    model.learn(steps)
    return model


def weights(model):
    return b"".join(value.numpy().tobytes() for value in model.policy.state_dict().values())


def test_a_dqn_with_priorities(tmp_path):
    model = train(path=tmp_path / "r")
    assert weights(model) == weights(train())  # the seed decides
    assert model.replay_buffer.disk.statistics().priorities.max > 1e-3
    model.replay_buffer.close()
    with diskreplay.open(tmp_path / "r") as reader:
        assert isinstance(reader, diskreplay.PrioritizedReplayBuffer)


def test_with_even_priorities_it_learns_as_dqn_does():
    """One step of both from the same batch: alpha=0 has all weights 1."""
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    options = {"buffer_size": 64, "learning_starts": 64, "seed": 1, "device": "cpu"}
    policy = {"policy_kwargs": {"net_arch": [8]}}
    ours = PrioritizedDQN(
        "MlpPolicy", env, **options, **policy, gamma=0.9,
        replay_buffer_class=DiskPrioritizedReplayBuffer,
        replay_buffer_kwargs={"gamma": 0.9, "alpha": 0.0},
    )  # fmt: skip
    ours.learn(50)
    theirs = DQN("MlpPolicy", env, **options, **policy, gamma=0.9)
    theirs._setup_learn(1)
    theirs.policy.load_state_dict(copy.deepcopy(ours.policy.state_dict()))
    batch = ours.replay_buffer.sample(16)
    assert (batch.weights == 1).all()

    class Fixed:
        def sample(self, *_size, env=None):
            return batch

        def update_priorities(self, ids, td_errors):
            assert ids is batch.ids
            assert td_errors.shape == (16, 1)

    ours.replay_buffer = theirs.replay_buffer = Fixed()
    for model in (ours, theirs):
        model.train(3, 16)
    assert weights(ours) == weights(theirs)


def test_a_pickle_keeps_the_priorities(tmp_path):
    buffer, _ = filled(path=tmp_path / "r", alpha=1.0)
    ids = buffer.disk.sampleable_ids()
    buffer.update_priorities(ids, np.arange(len(ids)) + 1.0)
    data = pickle.dumps(buffer)
    wanted = [buffer.sample(8).ids.tolist() for _ in range(3)]
    again = pickle.loads(data)
    assert [again.sample(8).ids.tolist() for _ in range(3)] == wanted


@pytest.mark.parametrize("kind", [DiskReplayBuffer, DiskNStepReplayBuffer])
def test_batches_read_ahead(tmp_path, kind):
    buffer, player = filled(kind, path=tmp_path / "r", prefetch=2)
    for _ in range(20):
        batch = buffer.sample(8)
        assert batch.observations.shape == (8, 3, 6, 6)
        assert (batch.discounts is None) == (kind is DiskReplayBuffer)
        player.play(2, buffer)
    data = pickle.dumps(buffer)
    wanted = [buffer.sample(8).rewards for _ in range(4)]
    again = pickle.loads(data)
    for rewards in wanted:
        assert torch.equal(again.sample(8).rewards, rewards)
    del again, buffer
    with diskreplay.ReplayBuffer(  # nothing holds it any more
        tmp_path / "r",
        observation_space=spaces.Box(0, 255, (6, 6), np.uint8),
        action_space=TWO,
        capacity=None,
        num_envs=2,
    ) as alone:
        assert alone.add_count > 0


def test_what_is_refused(tmp_path):
    goals = spaces.Dict(
        {name: spaces.Box(0, 1, (2,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    with pytest.raises(errors.InvalidInputError, match="HER"):
        DiskHerReplayBuffer(10, goals, TWO, None, "cpu", prefetch=1)
    two = spaces.Dict({"a": STACKS, "b": spaces.Box(0, 1, (2,))})
    for kind, options in ((DiskReplayBuffer, {"prefetch": 1}), (DiskPrioritizedReplayBuffer, {})):
        with pytest.raises(errors.InvalidInputError, match="frame_stack"):
            kind(10, two, TWO, "cpu", frame_stack={"a": 3}, **options)
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=1))
    model = SAC(
        "MlpPolicy", env, replay_buffer_class=DiskNStepReplayBuffer, learning_starts=2,
        replay_buffer_kwargs={"prefetch": 1, "n_steps": 2}, device="cpu",
    )  # fmt: skip
    with pytest.raises(errors.InvalidInputError, match="norm_reward"):
        model.learn(20)


@pytest.mark.parametrize("where", ["a draw", "a thread that reads ahead"])
def test_one_that_is_collected_amid_a_call_of_its_buffer_reads_no_more_ahead(tmp_path, where):
    """What stops it was refused there, as any call is, and nobody tried again."""
    old, player = filled(path=tmp_path / "r", prefetch=2)
    known = set(threading.enumerate())
    old.sample(4)
    (reading,) = set(threading.enumerate()) - known
    new = DiskPrioritizedReplayBuffer(
        40, STACKS, TWO, "cpu", n_envs=2, frame_stack=3, path=tmp_path / "r", prefetch=2
    )
    assert new.size() > 0  # it has the store now
    cycle, collected = [old], []
    cycle.append(cycle)

    def collecting(_count):
        collected.append(gc.collect())
        return 0.4

    gc.disable()
    try:
        del old, cycle
        if where == "a draw":
            new.disk.sample(4, beta=collecting)
        else:
            with new.disk.prefetch(1, 4, beta=collecting) as batches:
                next(batches)
    finally:
        gc.enable()
    assert collected
    reading.join(300)
    assert not reading.is_alive()
    player.play(3, new)
    new.sample(4)
    new.close()
    diskreplay.open(tmp_path / "r", mode="a").close()


def test_it_trains_nothing_before_a_transition_is_complete(tmp_path):
    """With so many envs SB3 trains after two steps, of which none is complete with three."""
    model = PrioritizedDQN(
        "MlpPolicy", make_vec_env("CartPole-v1", 64, seed=0), buffer_size=6400, train_freq=1,
        seed=1, device="cpu", policy_kwargs={"net_arch": [8]}, batch_size=8,
        replay_buffer_class=DiskPrioritizedReplayBuffer, replay_buffer_kwargs={"n_steps": 3},
    )  # fmt: skip
    model.learn(640)
    assert 0 < model._n_updates < 9
    model.replay_buffer.close()


def test_how_late_learning_has_to_start_with_batches_read_ahead():
    """As docs/sb3.md says."""

    def train(learning_starts):
        model = DQN(
            "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), buffer_size=800, train_freq=1,
            learning_starts=learning_starts, seed=1, device="cpu", batch_size=8,
            policy_kwargs={"net_arch": [8]}, replay_buffer_class=DiskNStepReplayBuffer,
            replay_buffer_kwargs={"n_steps": 3, "prefetch": 2},
        )  # fmt: skip
        model.learn(80)
        return model

    with pytest.raises(errors.EmptyBufferError, match="no complete transition"):
        train(0)
    model = train((3 + 1) * 8 + 1)
    assert model._n_updates > 3
    model.replay_buffer.close()
