"""Whether a stack is the one before, moved on by a frame, beside arrays of frames."""

import numpy as np
import pytest

from diskreplay.compat.cpprb.kernels import compare

PLACES = 70  # in a frame: more than a line of the caches


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("slides", [True, False])
def test_it_is_seen_and_the_newest_frame_is_taken_out(same, slides):
    rng = np.random.default_rng(0)
    last = rng.integers(0, 256, (PLACES, 4), np.uint8)  # frames are along the last axis
    value = last.copy()
    if not same:
        value[PLACES - 1, 2] ^= 1
    newest = rng.integers(0, 256, PLACES, np.uint8)
    head = np.concatenate([value[:, 1:], newest[:, None]], axis=1)
    if not slides:
        head[0, 1] ^= 128
    found, kept = np.zeros(PLACES, np.uint8), np.zeros(PLACES, np.uint32)
    words = last.reshape(-1).view(np.uint32)
    assert compare(words, head.reshape(-1), value.reshape(-1), found, kept) == (same, slides)
    np.testing.assert_array_equal(found, newest)
    np.testing.assert_array_equal(kept.view(np.uint8).reshape(PLACES, 4), head)


def test_values_may_be_words_too():
    words = np.arange(PLACES, dtype=np.uint32) * 70_001
    head = (words >> 8) + (np.uint32(9) << 24)
    found, kept = np.zeros(PLACES, np.uint8), np.zeros(PLACES, np.uint32)
    assert compare(words, head.view(np.uint8), words, found, kept) == (True, True)
    assert set(found.tolist()) == {9}
