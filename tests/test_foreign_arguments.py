"""Arguments that NumPy and Python would refuse in their own words are refused in ours."""

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.errors import (
    DiskReplayError,
    DtypeError,
    InvalidInputError,
    NotFiniteError,
    ShapeError,
)

RAGGED = [[1], [1, 2]]
HUGE = 10**400
SEEN, SEEN_2, NO_2 = np.zeros(4, np.uint8), np.zeros((2, 4), np.uint8), [False] * 2

CALLS = {
    "reward": lambda one, two: one.add(SEEN, 0, RAGGED, False, False),
    "terminated": lambda one, two: one.add(SEEN, 0, 1.0, RAGGED, False),
    "truncated": lambda one, two: one.add(SEEN, 0, 1.0, False, RAGGED),
    "next observation": lambda one, two: one.add(SEEN, 0, 1.0, False, False, RAGGED),
    "action": lambda one, two: one.add(SEEN, RAGGED, 1.0, False, False),
    "rewards": lambda one, two: two.add(SEEN_2, [0, 0], RAGGED, NO_2, NO_2),
    "ends": lambda one, two: two.add(SEEN_2, [0, 0], [1.0, 1.0], RAGGED, NO_2),
    "mask": lambda one, two: two.add(SEEN_2, [0, 0], [1.0, 1.0], NO_2, NO_2, mask=RAGGED),
    "next observations": lambda one, two: two.add(
        SEEN_2, [0, 0], [1.0, 1.0], NO_2, NO_2, next_observation=RAGGED
    ),
    "huge reward": lambda one, two: two.add(SEEN_2, [0, 0], [HUGE, 1], NO_2, NO_2),
    "end_episode": lambda one, two: two.end_episode(mask=RAGGED),
    "gather": lambda one, two: one.gather(RAGGED),
    "take": lambda one, two: one.take("reward", RAGGED),
    "update ids": lambda one, two: one.update_priorities(RAGGED, [1.0, 1.0]),
    "update priorities": lambda one, two: one.update_priorities([0, 1], RAGGED),
    "huge priority": lambda one, two: one.update_priorities([0], [HUGE]),
    "extend with nothing": lambda one, two: one.extend(None),
    "extend": lambda one, two: one.extend(
        {**{name: np.zeros((2, *s), d) for name, (s, d) in one.fields.items()}, "reward": RAGGED}
    ),
    "extend steps": lambda one, two: one.extend(
        {**{name: np.zeros((2, *s), d) for name, (s, d) in one.fields.items()}, "step": RAGGED}
    ),
    "ends of windows": lambda one, two: one.sequences(2, ends=np.array(["pad", "x"])),
    "arrival": lambda one, two: one.sequences(2, arrival=np.array([1, 2])),
    "prioritized": lambda one, two: one.sequences(2, prioritized=RAGGED),
    "state": lambda one, two: one.sequences(2, state=5),
    "states": lambda one, two: one.sequences(2, state=[[1]]),
    "fields": lambda one, two: one.sequences(2, fields=5),
    "seed of a view": lambda one, two: one.sequences(2, name="other", seed="x"),
    "view priority": lambda one, two: one.sequences(2).priority(RAGGED, RAGGED),
    "view priorities": lambda one, two: one.sequences(
        2, name="by priority", prioritized=True
    ).update_priorities([0], [HUGE]),
    "members": lambda one, two: diskreplay.ReplayUnion(5),
    "path as members": lambda one, two: diskreplay.ReplayUnion("replay"),
    "seed of a union": lambda one, two: diskreplay.ReplayUnion([one], seed=-1),
    "locate": lambda one, two: diskreplay.ReplayUnion([one]).locate(RAGGED),
    "window": lambda one, two: one.sample(2).window(5),
    "windows": lambda one, two: one.sample(2).window([]),
}


def make(num_envs, **options):
    return diskreplay.PrioritizedReplayBuffer(
        None, observation_space=Box(0, 255, (4,), "uint8"), action_space=Discrete(3), capacity=200,
        num_envs=num_envs, **{"seed": 0, **options},
    )  # fmt: skip


@pytest.fixture(scope="module")
def buffers():
    with make(1) as one, make(2) as two:
        for i in range(30):
            one.add(SEEN, i % 3, 1.0, i % 9 == 8, False)
            two.add(SEEN_2, [0, 1], [1.0, 1.0], NO_2, NO_2)
        yield one, two


@pytest.mark.parametrize("name", CALLS)
def test_a_foreign_argument_has_an_error_of_ours(buffers, name):
    before = [each.add_count for each in buffers], buffers[0].rng.bit_generator.state
    with pytest.raises(DiskReplayError) as raised:
        CALLS[name](*buffers)
    assert isinstance(raised.value, InvalidInputError)
    if name not in ("window", "windows"):  # which draw
        assert before == ([each.add_count for each in buffers], buffers[0].rng.bit_generator.state)


@pytest.mark.parametrize(
    "options", [{"seed": "x"}, {"seed": -1}, {"extras": 5}, {"compressor": 5}, {"seed": 1.5}]
)
def test_a_foreign_option_makes_no_store(tmp_path, options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        make(1, **options)


# -- what the functions of hindsight return


def goals(tmp_path):
    one = Box(-1, 1, (2,), "float32")
    buffer = diskreplay.ReplayBuffer(
        tmp_path / "goals", action_space=Discrete(2), capacity=100, seed=1,
        observation_space=Dict({"observation": one, "achieved_goal": one, "desired_goal": one}),
    )  # fmt: skip
    zeros = np.zeros(2, np.float32)
    for i in range(40):
        seen = {"observation": zeros, "achieved_goal": zeros + i / 40, "desired_goal": zeros}
        buffer.add(seen, 0, 0.0, False, i % 10 == 9, seen)
    return buffer


@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (lambda n: np.full(n, 1e300), NotFiniteError),
        (lambda n: np.full(n, -np.inf), NotFiniteError),
        (lambda n: np.full(n, 1j), DtypeError), (lambda n: ["x"] * n, DtypeError),
        (lambda n: np.zeros(n, "M8[s]"), DtypeError), (lambda n: [object()] * n, DtypeError),
        (lambda n: np.ma.masked_all(n), DtypeError), (lambda n: [HUGE] * n, DtypeError),
        (lambda n: [[1.0]] * (n - 1) + [[1.0, 2.0]], ShapeError), (lambda n: None, DtypeError),
    ],
)  # fmt: skip
def test_rewards_that_are_none(tmp_path, returned, error, sequences):
    with goals(tmp_path) as buffer:
        source = buffer.sequences(3) if sequences else buffer
        hindsight = source.hindsight(lambda reached, goal, info: returned(len(goal)))
        with pytest.raises(error):
            hindsight.sample(16)


@pytest.mark.parametrize("sequences", [False, True])
def test_an_end_that_is_no_number(tmp_path, sequences):
    with goals(tmp_path) as buffer:
        source = buffer.sequences(3) if sequences else buffer
        hindsight = source.hindsight(
            lambda reached, goal, info: np.zeros(len(goal)),
            terminated=lambda reached, goal, info: np.full(len(goal), np.nan),
        )
        with pytest.raises(NotFiniteError, match="terminated"):
            hindsight.sample(16)


@pytest.mark.parametrize(
    "options",
    [{"info": 5}, {"info": [[]]}, {"achieved": []}, {"seed": "x"}, {"seed": -1},
     {"finished": np.array([1, 2])}],
)  # fmt: skip
def test_foreign_options_of_hindsight(tmp_path, options):
    with goals(tmp_path) as buffer, pytest.raises(InvalidInputError):
        buffer.hindsight(lambda reached, goal, info: np.zeros(len(goal)), **options)


# -- generators


class Unknown(np.random.PCG64):
    """What is saved of it names a class that NumPy does not have."""


SEEDED = {
    "buffer": lambda buffer, seed: make(1, seed=seed),
    "windows": lambda buffer, seed: buffer.sequences(2, name="seeded", seed=seed),
    "hindsight": lambda buffer, seed: buffer.hindsight(lambda *_: 0.0, seed=seed),
    "hindsight of windows": lambda buffer, seed: buffer.sequences(2).hindsight(
        lambda *_: 0.0, seed=seed
    ),
    "union": lambda buffer, seed: diskreplay.ReplayUnion([buffer], seed=seed),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_generator_that_cannot_be_saved_is_no_seed(tmp_path, name):
    with goals(tmp_path) as buffer:
        with pytest.raises(InvalidInputError, match=r"^seed: a Generator of one of NumPy's own"):
            SEEDED[name](buffer, np.random.Generator(Unknown(1)))
        made = SEEDED[name](buffer, np.random.Generator(np.random.Philox(1)))
        getattr(made, "close", lambda: None)()


# -- masked values


def masked(value, at=0):
    """The same, with a mask over one value, or over none."""
    made = np.ma.masked_array(value, mask=False)
    if at is not None:
        made[np.unravel_index(at, made.shape)] = np.ma.masked
    return made


def columns(one, **changed):
    return {name: np.zeros((2, *s), d) for name, (s, d) in one.fields.items()} | changed


MASKED = {
    "observation": lambda b, at: b.one.add(masked(SEEN, at), 0, 1.0, False, False),
    "action": lambda b, at: b.one.add(SEEN, masked(1, at), 1.0, False, False),
    "reward": lambda b, at: b.one.add(SEEN, 0, masked(1.0, at), False, False),
    "terminated": lambda b, at: b.one.add(SEEN, 0, 1.0, masked(False, at), False),
    "priority": lambda b, at: b.one.add(SEEN, 0, 1.0, False, False, priority=masked(1.0, at)),
    "frame": lambda b, at: b.one.add_frame(masked(SEEN, at)),
    "last observation": lambda b, at: b.one.end_episode(next_observation=masked(SEEN, at)),
    "observations": lambda b, at: b.two.add(masked(SEEN_2, at), [0, 0], [1.0, 1.0], NO_2, NO_2),
    "rewards": lambda b, at: b.two.add(SEEN_2, [0, 0], masked([1.0, 1.0], at), NO_2, NO_2),
    "ends": lambda b, at: b.two.add(SEEN_2, [0, 0], [1.0, 1.0], masked(NO_2, at), NO_2),
    "mask": lambda b, at: b.two.add(
        SEEN_2, [0, 0], [1.0, 1.0], NO_2, NO_2, mask=masked([True, True], at)
    ),
    "rows": lambda b, at: b.one.extend(columns(b.one, reward=masked([1.0, 1.0], at))),
    "priorities of rows": lambda b, at: b.one.extend(
        columns(b.one), priority=masked([1.0, 1.0], at)
    ),
    "priorities": lambda b, at: b.one.update_priorities([0, 1], masked([1.0, 1.0], at)),
    "ids": lambda b, at: b.one.update_priorities(masked([0, 1], at), [1.0, 1.0]),
    "written": lambda b, at: b.states.write("state", [0, 1], masked([1.0, 1.0], at)),
    "positions": lambda b, at: b.one.sample_at(masked([0.5], at)),
    "slots": lambda b, at: b.slots.put(masked([0, 1], at), {"x": [1.0, 2.0]}),
    "values of slots": lambda b, at: b.slots.put([0, 1], {"x": masked([1.0, 2.0], at)}),
    "value of a slot": lambda b, at: b.slots.view("x").__setitem__(0, masked(1.0, at)),
    "mixture": lambda b, at: diskreplay.ReplayUnion([b.one, b.two], mixture=masked([1, 1], at)),
}


class Written(NamedTuple):
    one: diskreplay.PrioritizedReplayBuffer
    two: diskreplay.PrioritizedReplayBuffer
    states: diskreplay.PrioritizedReplayBuffer
    slots: diskreplay.Slots


@pytest.fixture(scope="module")
def written():
    slots = diskreplay.Slots(None, {"x": ((), "float32")}, 4, min_bytes=0)
    states = make(1, extras={"state": ((), "float32", "mutable")})
    with make(1) as one, make(2) as two, states, slots:
        for i in range(30):
            one.add(SEEN, i % 3, 1.0, i % 9 == 8, False)
            two.add(SEEN_2, [0, 1], [1.0, 1.0], NO_2, NO_2)
            states.add(SEEN, 0, 1.0, False, False, state=0.0)
        yield Written(one, two, states, slots)


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_value_is_refused(written, name):
    before = written.one.add_count, written.two.add_count
    with pytest.raises(InvalidInputError, match="found 1 masked one"):
        MASKED[name](written, 0)
    assert before == (written.one.add_count, written.two.add_count)


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_over_nothing_passes(written, name):
    MASKED[name](written, None)
