"""Rows made on a worker beside those that a buffer makes itself."""

from itertools import pairwise

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import DtypeError, ExtrasError, NotFiniteError, PriorityError, ShapeError
from diskreplay.ray.messages import Chunk
from diskreplay.ray.shard_writer import _without_rests
from diskreplay.ray.trajectory_builder import TrajectoryBuilder
from diskreplay.schema import Schema

SPACES = Box(0, 255, (3,), "uint8"), Discrete(4)


def test_the_same_steps_make_the_same_rows(tmp_path):
    rng = np.random.default_rng(0)
    envs, extras = 4, {"value": ((2,), "float32")}
    builder = TrajectoryBuilder(Schema.of(*SPACES, extras, "auto"), envs, 7)
    options = {"capacity": None, "num_envs": envs, "stack_size": 2, "extras": extras}
    with (
        diskreplay.PrioritizedReplayBuffer(
            None, observation_space=SPACES[0], action_space=SPACES[1], **options
        ) as expected,
        diskreplay.PrioritizedReplayBuffer(
            None, observation_space=SPACES[0], action_space=SPACES[1], **options
        ) as found,
    ):
        count = np.zeros(envs, np.int64)
        for _ in range(100):
            if builder.is_full:
                columns, lengths, priority, transitions = builder.take()
                assert transitions == np.count_nonzero(~columns["is_final"])
                assert np.isnan(priority).all()
                count = found.extend_many(columns, np.arange(envs), count, lengths)
            if rng.random() < 0.05:
                cut = rng.random(envs) < 0.5
                builder.end_episodes(cut), expected.end_episode(cut)
            ended = rng.random((2, envs)) < 0.1
            step = (
                rng.integers(0, 255, (envs, 3), np.uint8), rng.integers(0, 4, envs),
                rng.normal(size=envs), ended[0], ended[1],
                rng.integers(0, 255, (envs, 3), np.uint8) if rng.random() < 0.8 else None,
            )  # fmt: skip
            mask = rng.random(envs) < 0.7
            value = rng.normal(size=(envs, 2))
            builder.add(*step, mask, None, {"value": value})
            expected.add(*step, mask=mask, value=value)
        columns, lengths, _priority, _transitions = builder.take()
        found.extend_many(columns, np.arange(envs), count, lengths)
        assert found.bounds.tolist() == expected.bounds.tolist()
        assert found.sampleable_ids().tolist() == expected.sampleable_ids().tolist()
        for env, (first, stop) in enumerate(expected.bounds.tolist()):
            ids = np.arange(first, stop) * envs + env
            for name in expected.fields:
                np.testing.assert_array_equal(found.take(name, ids), expected.take(name, ids), name)


def test_a_step_that_is_refused_changes_nothing():
    builder = TrajectoryBuilder(Schema.of(*SPACES, {"value": ((), "int8")}, "auto"), 2, 5)
    good = (np.zeros((2, 3), np.uint8), [0, 1], [0.0, 1.0], [False, False], [False, False], None)

    def add(at=None, value=None, extras=None, priority=None):
        step = list(good)
        if at is not None:
            step[at] = value
        builder.add(*step, None, priority, {"value": [1, 2]} if extras is None else extras)

    for error, wrong in (
        (ShapeError, {"at": 0, "value": np.zeros(3, np.uint8)}),
        (DtypeError, {"at": 0, "value": np.full((2, 3), 300)}),
        (NotFiniteError, {"at": 2, "value": [np.nan, 0.0]}),
        (NotFiniteError, {"at": 2, "value": np.float32([0.0, -np.inf])}),
        (NotFiniteError, {"at": 2, "value": [1e300, 0.0]}),  # infinite as float32
        (ExtrasError, {"extras": {}}),
        (PriorityError, {"priority": [-1.0, 1.0]}),
        (PriorityError, {"priority": [1.0, 1.0, 1.0]}),
    ):
        with pytest.raises(error):
            add(**wrong)
    assert builder.filled.tolist() == [0, 0]
    assert builder.steps.tolist() == [0, 0]
    add(priority=[3.0, np.nan])
    _columns, lengths, priority, transitions = builder.take()
    assert lengths.tolist() == [1, 1]
    assert transitions == 2
    np.testing.assert_array_equal(priority, [3.0, np.nan])


def listed(taken):
    """Of each env its rows, as a list for each column, and the priorities."""
    columns, lengths, priority, _transitions = taken
    bounds = [0, *np.cumsum(lengths).tolist()]
    return [
        {
            name: values[low:high].tolist()
            for name, values in (columns | {"priority": priority}).items()
        }
        for low, high in pairwise(bounds)
    ]


def test_the_rest_of_an_episode_is_left_out():
    """What is taken after a cut is what a builder has that was given whole episodes only: of what
    was collected by then the rests go, and no more of them are collected."""
    rng = np.random.default_rng(1)
    envs = 3
    for _ in range(20):
        builder = TrajectoryBuilder(Schema.of(*SPACES, {}, "raw"), envs, 1000)
        expected = TrajectoryBuilder(Schema.of(*SPACES, {}, "raw"), envs, 1000)
        begun = np.zeros(envs, bool)  # an episode since the cut
        cut, left = int(rng.integers(1, 30)), int(rng.integers(0, 20))
        for at in range(60):
            if at == cut:
                builder.take()  # sent to a shard that is lost
            if at == cut + left:
                waiting = np.ones(envs, bool)
                columns, lengths, priority, _transitions = builder.take()
                chunk = Chunk(columns, np.arange(envs), lengths * 0, lengths, priority)
                kept = _without_rests(chunk, waiting)
                builder.leave_out_rests(waiting)
            fresh = builder.steps == 0
            step = (
                rng.integers(0, 255, (envs, 3), np.uint8), rng.integers(0, 4, envs),
                rng.normal(size=envs), rng.random(envs) < 0.1, np.zeros(envs, bool),
                rng.integers(0, 255, (envs, 3), np.uint8), None, rng.random(envs),
            )  # fmt: skip
            builder.add(*step, {})
            begun |= fresh & (at >= cut)
            if begun.any():
                expected.add(*step[:6], begun.copy(), step[7], {})
        before = listed((kept.columns, kept.lengths, kept.priority, 0))
        assert builder.transitions + np.count_nonzero(~kept.columns["is_final"]) == (
            expected.transitions
        )
        for early, late, whole in zip(
            before, listed(builder.take()), listed(expected.take()), strict=True
        ):
            assert str({name: early[name] + late[name] for name in early}) == str(whole)
