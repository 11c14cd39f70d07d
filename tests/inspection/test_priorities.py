"""Figures of priorities, against the probabilities that the buffer itself gives."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.errors import NotSampleableError, UnknownIdError
from diskreplay.inspection.priorities import priorities_of


def make_buffer(path, alpha=0.7, capacity=60):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Discrete(9), action_space=Discrete(2), capacity=capacity,
        num_envs=2, alpha=alpha, seed=3, update_horizon=2,
    )  # fmt: skip


def fill(buffer, steps):
    for t in range(steps):
        takes_part = np.array([True, t % 3 > 0])
        zeros = np.zeros(2, np.int64)
        ends = np.array([t % 7 == 6, False])
        buffer.add(zeros, zeros, np.ones(2), ends, ~ends & False, zeros, mask=takes_part)


@pytest.mark.parametrize("steps", [12, 45, 100])
@pytest.mark.parametrize("capacity", [60, None])
@pytest.mark.parametrize("alpha", [0.7, 0.0])
def test_figures(tmp_path, steps, capacity, alpha):
    with make_buffer(tmp_path / "replay", alpha, capacity) as buffer:
        fill(buffer, steps)
        for _ in range(3):
            ids = np.unique(buffer.sample(8).id)
            buffer.update_priorities(ids, np.random.default_rng(steps).random(len(ids)) + 0.1)
        found = priorities_of(buffer)
        probability, age = [], []
        for id in range(2 * int(buffer.bounds[:, 1].max())):
            try:
                batch = buffer.gather([id])
            except (NotSampleableError, UnknownIdError):
                continue
            probability.append(batch.probability[0])
            age.append(buffer.bounds[id % 2, 1] - 1 - id // 2)
        probability, age = np.array(probability), np.array(age)
        assert found.drawable == len(probability) == len(buffer)
        assert found.effective == pytest.approx(1 / np.square(probability).sum())
        assert found.mean_age == pytest.approx(age.mean())
        assert found.mean_drawn_age == pytest.approx((age * probability).sum())
        ratio = (probability.max() / probability.min()) ** (1 / alpha) if alpha else 1
        assert found.quantiles[1.0] / found.quantiles[0.0] == pytest.approx(ratio)


def test_nothing_to_draw(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        assert priorities_of(buffer) is None
