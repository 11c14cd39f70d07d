"""The members of a union at one moment: how draws are shared among them, and who owns an id."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.union_members import checked_mixture

SPACES = {"observation_space": Box(-1, 1, (2,)), "action_space": Discrete(3), "capacity": 100}


@pytest.fixture(params=[diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer])
def two(request, tmp_path):
    made = [request.param(tmp_path / name, **SPACES) for name in "ab"]
    yield made
    for buffer in made:
        buffer.close()


def add(buffer, rows):
    for _ in range(rows):
        buffer.add(np.zeros(2), 0, 1.0, False, False)


@pytest.mark.parametrize("mixture", [None, (1, 1), (0, 1)])
def test_where_nothing_can_be_drawn_nothing_is(two, mixture):
    with diskreplay.ReplayUnion(two, mixture=mixture) as union:
        for _ in range(2):
            for call in (union.shares, lambda: union.sample(4)):
                with pytest.raises(EmptyBufferError):
                    call()
            add(two[0], 1)  # which waits for the next one


def test_a_member_that_has_rows_is_enough_unless_others_were_asked_for(two):
    add(two[0], 5)
    with diskreplay.ReplayUnion(two) as union:
        assert union.shares().tolist() == [1.0, 0.0]
        assert set((union.sample(50).id % 2).tolist()) == {0}
        add(two[1], 9)
        np.testing.assert_allclose(union.shares(), [4 / 12, 8 / 12])
    with diskreplay.ReplayUnion(two, mixture=(3, 1)) as union:
        np.testing.assert_allclose(union.shares(), [0.75, 0.25])


def test_priorities_that_are_all_zero(tmp_path):
    kind = diskreplay.PrioritizedReplayBuffer
    with kind(tmp_path / "a", **SPACES) as one, kind(tmp_path / "b", **SPACES) as other:
        for buffer in (one, other):
            add(buffer, 5)
        with diskreplay.ReplayUnion([one, other]) as union:
            ignored = union.update_priorities(np.arange(10), np.zeros(10))
            assert ignored == 2  # the newest of both wait
            with pytest.raises(EmptyBufferError):
                union.sample(4)
            with pytest.raises(EmptyBufferError):
                union.shares()
            union.update_priorities([3], [2.0])  # row 1 of the second one
            assert set(union.sample(20).id.tolist()) == {3}
            assert union.shares().tolist() == [0.0, 1.0]


def test_shares_are_one_together():
    assert checked_mixture(None, 3) is None
    assert checked_mixture([1, 3], 2).tolist() == [0.25, 0.75]
    assert checked_mixture([0.125, 0.125], 2).tolist() == [0.5, 0.5]
    assert checked_mixture((0.0, 5.0, 0.0), 3).tolist() == [0.0, 1.0, 0.0]
    assert checked_mixture(np.array([2], np.int8), 1).tolist() == [1.0]


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("half", "numbers expected"), ([object()], "numbers expected"), ([1], "one share for each"),
        ([1, 1, 1], "one share for each"), (0.5, "one share for each"), ([[1, 1]], "one share"),
        ([1, -1e-9], "from 0 on"), ([0, 0], "from 0 on"), ([1, float("nan")], "from 0 on"),
        ([1, float("inf")], "from 0 on"), ([1e308, 1e308], "from 0 on"),
    ],
)  # fmt: skip
def test_what_is_no_mixture_of_two_is_refused(mixture, message):
    with pytest.raises(InvalidInputError, match=f"mixture: .*{message}"):
        checked_mixture(mixture, 2)
