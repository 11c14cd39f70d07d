"""Episodes that are cut, and what their last step led to."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.inspection.episodes import episodes_of
from diskreplay.store.numbers import LAST_STEP
from tests.naive import SideBySide

FRAME = Box(0, 255, (3,), np.uint8)


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2),
        **{"capacity": 64, "update_horizon": 2, **options},
    )  # fmt: skip


def frame(number, envs=None):
    return np.full((3,) if envs is None else (envs, 3), number, np.uint8)


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("capacity", [None, 40])
def test_cut_again_and_again_beside_the_twin(tmp_path, envs, capacity):
    capacity = None if capacity is None else capacity * envs
    with SideBySide(
        tmp_path / "r", num_envs=envs, capacity=capacity, update_horizon=3, segment_rows=8
    ) as both:
        for round_ in range(30):
            both.play(round_ % 5, seed=round_, end=0.1)
            both.end_episode([None, set(), {round_ % envs}][round_ % 3], round_ % 4 > 0)
            both.check_counts()
        both.check_gather()
        both.reopen()
        both.check_counts()
        both.check_gather()


def test_the_last_observation_is_what_is_bootstrapped_from(tmp_path):
    with make(tmp_path / "r") as buffer:
        for number in range(4):
            buffer.add(frame(number), 1, 1.0, False, False)
        assert len(buffer) == 2
        buffer.end_episode(next_observation=frame(9))
        assert buffer.sampleable_ids().tolist() == [0, 1, 2, 3]
        batch = buffer.gather([2, 3])
        assert (batch.next_observation == 9).all()
        np.testing.assert_allclose(batch.discount, [0.99**2, 0.99], rtol=1e-6)
        assert not batch.terminated.any()
        assert not batch.truncated.any()
        assert buffer.add_count == 4
        assert buffer.bounds.tolist() == [[0, 5]]
        assert buffer.add(frame(20), 1, 1.0, False, False).tolist() == [5]
        assert buffer.take("step", [3, 4, 5]).tolist() == [3, 4, 0]
    with diskreplay.open(tmp_path / "r") as reader:
        episodes = episodes_of(reader)
        assert episodes.final_id.tolist() == [4, -1]
        assert len(reader) == 4


def test_envs_without_an_open_episode_get_no_row(tmp_path):
    with make(tmp_path / "r", num_envs=3, capacity=192) as buffer:
        flags = np.array([False, True, False])
        buffer.add(
            frame(1, 3), np.zeros(3, np.int64), np.zeros(3), flags, ~flags & False,
            mask=np.array([True, True, False]),
        )  # fmt: skip
        buffer.end_episode(next_observation=frame(2, 3))
        assert buffer.bounds[:, 1].tolist() == [2, 1, 0]
        buffer.end_episode(next_observation=frame(3, 3))
        assert buffer.bounds[:, 1].tolist() == [2, 1, 0]


@pytest.mark.parametrize("envs", [1, 2])
def test_what_is_refused_cuts_nothing(tmp_path, envs):
    with make(tmp_path / "r", num_envs=envs, capacity=64 * envs) as buffer:
        one = envs == 1

        def step():
            many = (frame(1, envs), np.ones(envs, np.int64), np.ones(envs))
            no = np.zeros(envs, np.bool_)
            buffer.add(*((frame(1), 1, 1.0, False, False) if one else (*many, no, no)))

        step()
        for bad, error in (
            (np.zeros((envs, 4), np.uint8), errors.ShapeError),
            (frame(0, None if one else envs) + 0.5, errors.DtypeError),
        ):
            with pytest.raises(error):
                buffer.end_episode(next_observation=bad)
        with pytest.raises(errors.ShapeError):
            buffer.end_episode(np.ones(envs + 1, np.bool_), next_observation=frame(0))
        assert (buffer.bounds[:, 1] == 1).all()
        step()
        assert (buffer.take("step", np.arange(envs) + envs) == 1).all()


@pytest.mark.parametrize("envs", [1, 2])
def test_the_longest_episode_ends_with_its_final_row(tmp_path, envs):
    with make(tmp_path / "r", num_envs=envs, capacity=64 * envs) as buffer:
        buffer._rows.next_step[:] = LAST_STEP
        buffer.end_episode(next_observation=frame(7, None if envs == 1 else envs))
        assert (buffer.take("step", np.arange(envs)) == LAST_STEP).all()
        assert (buffer._rows.next_step == 0).all()
