"""What hindsight was asked for: what is refused, and which places get which goals."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from diskreplay.errors import DiskReplayError, InvalidInputError, NotFiniteError, ShapeError
from diskreplay.relabelling import Relabelling
from diskreplay.sampling.row_index import RowIndex

SPACE = Dict({
    "achieved": Box(-1, 1, (2,)), "desired": Box(-1, 1, (2,)), "wide": Box(-1, 1, (3,)),
    "number": Discrete(4), "fine": Box(-1, 1, (2,), np.float64),
})  # fmt: skip
GIVEN = {
    "strategy": "future", "n_goals": 4, "achieved": "achieved", "desired": "desired", "info": (),
    "finished": False, "terminated": None,
}  # fmt: skip


def made(compute=lambda reached, goals, info: np.zeros(len(goals)), space=SPACE, **changes):
    buffer = SimpleNamespace(observation_space=space, extras={"speed": None, "name": None})
    return Relabelling(buffer, compute, **GIVEN | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "past"}, "strategy"), ({"compute": 3}, "compute_reward: a function"),
        ({"compute": None}, "compute_reward: a function"), ({"terminated": 3}, "terminated"),
        ({"space": Box(-1, 1, (2,))}, "a Dict of observations"), ({"achieved": "x"}, "achieved"),
        ({"desired": ["x"]}, "desired"), ({"achieved": "number"}, "achieved: a Box"),
        ({"desired": "wide"}, "cannot take the place"), ({"desired": "fine"}, "cannot take"),
        ({"info": "weight"}, "no extra 'weight'; there are: speed, name"), ({"n_goals": 0}, "n_go"),
        ({"finished": "yes"}, "finished"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(DiskReplayError, match=message):
        made(**changes)


def test_what_was_asked_for():
    asked = made(info="speed", terminated=lambda *_: None, achieved="desired", desired="achieved")
    assert (asked.achieved, asked.desired, asked.field) == (
        "desired", "achieved", "observation/desired"
    )  # fmt: skip
    assert asked.info == ("speed",)
    assert asked._terminated is not None
    assert made()._terminated is None


def index_of(lengths):
    """Episodes of these lengths, each with a final row; the last one is under way."""
    index = RowIndex(200, 1, 1, 1, 0.9)
    for length in lengths[:-1]:
        for step in range(length):
            index.append_one(step, int(step == length - 1), 0.0)
        index.append_one(length, 4, 0.0)
    for step in range(lengths[-1]):
        index.append_one(step, 0, 0.0)
    return index


@pytest.mark.parametrize("n_goals", [1, 4])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_share_of_the_places_gets_goals_of_their_episodes(n_goals, in_order):
    index = index_of([5, 7, 6])
    episodes = [range(6), range(6, 14), range(14, 20)]
    ids = np.array([0, 4, 7, 12, 15, 19, 6, 3, 1, 8])
    rng = np.random.default_rng(0)
    seen, asked = set(), int(10 * n_goals / (n_goals + 1))
    for _ in range(60):
        places, goals = made(n_goals=n_goals).choose(index, ids, rng.random, in_order=in_order)
        assert len(places) <= asked
        assert (np.diff(places) > 0).all()
        for place, goal in zip(places.tolist(), goals.tolist(), strict=True):
            (episode,) = (each for each in episodes if ids[place] in each)
            assert goal in episode
            assert goal > ids[place]
        seen |= set(places.tolist())
    if not in_order:
        assert seen <= set(range(asked))
    else:  # any of them, but the last row, which has led to nothing yet
        assert seen == set(range(10)) - {5}


def test_rewards_are_of_all_goals_at_once():
    calls = []

    def compute(reached, goals, info):
        calls.append((len(reached), info))
        return (reached == goals).all(axis=1).astype(int)

    reached = np.array([[0, 1], [1, 1], [2, 0]])
    goals = np.array([[0, 1], [1, 0], [2, 0]])
    reward, ended = made(compute).reward(reached, goals, {})
    assert reward.tolist() == [1, 0, 1]
    assert ended is None
    assert calls == [(3, [{}, {}, {}])]
    info = {"speed": np.arange(3)}
    asked = made(compute, info=["speed"], terminated=lambda r, g, i: [0, 2, -1])
    _reward, ended = asked.reward(reached, goals, info)
    assert ended.tolist() == [False, True, True]
    assert calls[1][1] is info


@pytest.mark.parametrize(
    ("found", "error"),
    [(np.zeros(2), ShapeError), (0.0, ShapeError), ([0.0, np.nan, 0.0], NotFiniteError),
     ([0.0, 1e39, 0.0], NotFiniteError), ([0.0, -np.inf, 0.0], NotFiniteError),
     (["a", "b", "c"], DiskReplayError)],
)  # fmt: skip
def test_rewards_that_cannot_be_are_refused(found, error):
    two = np.zeros((3, 2))
    with pytest.raises(error, match="compute_reward"):
        made(lambda *_: found).reward(two, two, {})
    largest = float(np.finfo(np.float32).max)
    assert made(lambda *_: [largest] * 3).reward(two, two, {})[0].tolist() == [largest] * 3
    with pytest.raises(NotFiniteError, match="terminated: true or false"):
        made(terminated=lambda *_: [0.0, np.nan, 1.0]).reward(two, two, {})
    assert issubclass(InvalidInputError, DiskReplayError)
