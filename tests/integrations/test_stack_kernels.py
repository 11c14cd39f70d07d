"""Where the frames of transitions are, beside a loop that looks them up one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.integrations.stack_kernels import NOTHING, TIP, window_ids


def one_by_one(rows, before, blind, has_tip, newest, slots, envs, oldest, last, most, repeats):
    found = []
    for slot, env in zip(slots, envs, strict=True):
        row, frames = int(rows[slot, env]), []
        first = row - min(int(before[slot, env]), most)
        for offset in range(oldest, last + 1):
            at = row + offset
            if row < 0 or (offset == 1 and blind[slot, env]):
                frames.append(NOTHING)
            elif offset == 1 and has_tip[env] and newest[env] == row:
                frames.append(TIP)
            elif at < first:
                frames.append(first * rows.shape[1] + env if repeats else NOTHING)
            else:
                frames.append(at * rows.shape[1] + env)
        found.append(frames)
    return np.array(found).reshape(len(slots), last + 1 - oldest)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["both", "now", "next"]),
)
def test_ids_of_windows(seed, stack, repeats, sides):
    rng = np.random.default_rng(seed)
    size, envs, batch = int(rng.integers(1, 30)), int(rng.integers(1, 4)), int(rng.integers(0, 20))
    rows = np.where(
        rng.random((size, envs)) < 0.2, -1, rng.permutation(size * envs).reshape(size, envs) + 9
    )
    before = rng.choice(np.array([0, 1, 2, 3, 200, 255], np.uint8), (size, envs))
    blind, has_tip = rng.random((size, envs)) < 0.2, rng.random(envs) < 0.5
    newest = rows.max(axis=0)
    at = rng.integers(0, size, batch), rng.integers(0, envs, batch)
    oldest, last = {"both": (1 - stack, 1), "now": (1 - stack, 0), "next": (2 - stack, 1)}[sides]
    given_ = rows, before, blind, has_tip, newest, *at, oldest, last, stack - 1, repeats
    ids = np.empty((batch, last + 1 - oldest), np.int64)
    tips, blinds = window_ids(*given_, ids)
    np.testing.assert_array_equal(ids, one_by_one(*given_))
    assert tips == np.count_nonzero(ids == TIP)
    there = rows[at] >= 0
    assert blinds == (np.count_nonzero(blind[at] & there) if last else 0)
