"""Which transitions an opened store has, beside a list of rows; and a step with its stack."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.integrations.stacked_leaf import StackedLeaf
from diskreplay.integrations.transition_rows import (
    complete_transitions,
    lead_in,
    rows_for,
    slack,
)
from tests.effort import effort

SPACES = {"observation_space": Box(0, 255, (2,), np.uint8), "action_space": Discrete(4)}


@settings(max_examples=effort(20, 60, 300))
@given(
    st.lists(st.sampled_from(["", "", "", "T", "TF", "X", "XF", "C"]), max_size=30),
    st.integers(1, 4), st.sampled_from([None, 9]),
)  # fmt: skip
def test_transitions_whose_observations_are_there(kinds, longest, capacity):
    with diskreplay.ReplayBuffer(None, capacity=capacity, **SPACES) as buffer:
        rows, step = [], 0  # (step, is it final, terminated)
        for kind in kinds:
            final = np.zeros(2, np.uint8) if "F" in kind else None
            buffer.add(np.zeros(2, np.uint8), 0, 0.0, "T" in kind, "X" in kind, final)
            rows.append((step, False, "T" in kind))
            if final is not None:
                rows.append((step + 1, True, False))
            step = 0 if kind else step + 1
            if kind == "C":
                buffer.end_episode()
        first = int(buffer.bounds[0, 0])
        ((found, steps, blind),), lost = complete_transitions(buffer, longest)
    expected, unknown = [], 0
    for row in range(first, len(rows)):
        at, is_final, terminated = rows[row]
        follows = row + 1 < len(rows) and rows[row + 1][0] == at + 1
        if is_final:
            continue
        if not (follows or terminated):
            unknown += 1
        elif row - min(at, longest - 1) >= first:
            expected.append((row, at, not follows))
    assert list(zip(found.tolist(), steps.tolist(), blind.tolist(), strict=True)) == expected
    assert lost == unknown


def test_a_ring_has_room_for_its_transitions_whatever_they_are():
    for size in (1, 16, 100):
        assert slack(size) == size // 16 + 1
        for stack in (1, 4):
            # All that wait and all that are shown end an episode; the newest one, and its stack.
            assert rows_for(size, stack) >= 2 * (size + slack(size)) + stack + 1


def test_the_frames_of_a_step_come_before_it():
    leaves = [
        StackedLeaf("a", Box(0, 255, (3, 2), np.uint8), (3, 2), 3, 0),
        StackedLeaf("b", Box(0, 255, (1,), np.uint8), (1,), 1, 0),
    ]
    fields = {
        "observation/a": ((2,), np.dtype("u1")), "observation/b": ((1,), np.dtype("u1")),
        "action": ((), np.dtype(int)), "reward": ((), np.dtype("f4")),
        "terminated": ((), np.dtype(bool)), "truncated": ((), np.dtype(bool)),
        "step": ((), np.dtype("i4")), "is_final": ((), np.dtype(bool)),
    }  # fmt: skip
    seen = [np.array([[1, 1], [2, 2], [3, 3]], np.uint8), np.array([9], np.uint8)]
    ends = [np.array([4, 4], np.uint8), np.array([8], np.uint8)]
    for done, truncated in ((True, False), (True, True), (False, False)):
        for given_ends in (ends, None):
            found = lead_in(fields, leaves, seen, given_ends, 5, 0.5, done, truncated)
            last = [[4, 4]] if given_ends else []
            assert found["observation/a"].tolist() == [[1, 1], [2, 2], [3, 3], *last]
            assert found["observation/b"].tolist() == [[0], [0], [9], *([[8]] if last else [])]
            count = 3 + len(last)
            assert found["step"].tolist() == list(range(count))
            assert found["is_final"].tolist() == [at != 2 for at in range(count)]
            assert found["action"].tolist()[2] == 5
            assert found["reward"].tolist()[2] == 0.5
            assert found["terminated"].tolist()[2] == (done and not truncated)
            assert found["truncated"].tolist()[2] == (done and truncated)
