"""A `Track` over a dict: streams of all kinds, read back while they are written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.compat.cpprb.columns import Column
from diskreplay.compat.cpprb.tracks import Track
from tests.effort import effort


class Store:
    """Fields as lists of rows; reading what a ring would have evicted fails."""

    def __init__(self, track, size):
        self.fields = {name: ([], spec) for name, spec in track.extras.items()}
        self.size, self.slack, self.count = size, track.slack, 0

    def append(self, stored):
        assert set(stored) == set(self.fields)
        for name, rows in stored.items():
            there, (shape, dtype) = self.fields[name]
            assert (rows.shape[1:], rows.dtype) == (shape, dtype)
            there.extend(rows.copy())
        self.count += len(rows)

    def take(self, name, ids, *, out=None):
        rows, (shape, dtype) = self.fields[name]
        found = np.empty((*ids.shape, *shape), dtype) if out is None else out
        assert (found.shape, found.dtype) == ((*ids.shape, *shape), dtype)
        found[:] = 0
        for at in np.ndindex(ids.shape):
            number = ids[at]
            assert number < self.count
            assert number < 0 or number >= self.count - self.size - self.slack
            if number >= 0:
                found[at] = rows[number]
        return found


def change(draw, stack, kinds):
    """A stack derived from another one; frames of 0 and 1, so that chance repeats are common."""
    how = draw(st.sampled_from(kinds))
    if how == "same":
        return stack
    if how == "slide":
        new = draw(st.integers(0, 1))
        return np.concatenate([stack[..., 1:], np.full_like(stack[..., :1], new)], axis=-1)
    values = draw(st.lists(st.integers(0, 1), min_size=stack.size, max_size=stack.size))
    return np.array(values, stack.dtype).reshape(stack.shape)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4, 5])
@settings(max_examples=effort(25, 60), deadline=None)
@given(data=st.data(), dtype=st.sampled_from([np.uint8, np.uint16, np.float64]))
@pytest.mark.costly(2)
def test_any_stream_is_read_back(linked, depth, data, dtype):
    if depth == 1 and not linked:
        return
    draw, stacked = data.draw, depth > 1
    column = Column("o", (2, depth), dtype)
    track = Track(column, stacked=stacked, linked=linked, native=None, taken=set())
    size = draw(st.integers(1, 6))
    store, rows = Store(track, size), []
    value = head = np.zeros((2, depth), dtype)
    for _ in range(draw(st.integers(1, 12))):
        added = []
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 7]))):
            if linked:
                value = change(draw, head, ["same"] * 6 + ["slide", "anew"])
                head = change(draw, value, ["slide"] * 6 + ["same", "anew"])
            else:
                value = head = change(draw, head, ["slide"] * 6 + ["same", "anew"])
            added.append((value, head))
        values, heads = (np.stack(part) for part in zip(*added, strict=True))
        given = {"o": values, **({"next_o": heads} if linked else {})}
        if len(added) == 1 and draw(st.booleans()):
            values, state = track.encode_row({name: part[0] for name, part in given.items()})
            stored = dict(zip(track.stores, values, strict=True))
            for name, (shape, kind) in track.extras.items():
                row = np.zeros(shape, kind) if stored[name] is None else stored[name]
                stored[name] = np.asarray(row, kind)[None]
        else:
            stored, state = track.encode(given)
        if draw(st.integers(0, 9)) == 0:
            continue  # as if it could not be stored
        store.append(stored)
        track.keep(state)
        rows += added
        if draw(st.integers(0, 9)) == 0:
            track.forget()
        numbers = np.arange(max(len(rows) - size, 0), len(rows))[::-1]
        found = track.decode(store.take, np.append(numbers, -1))
        assert set(found) == ({"o", "next_o"} if linked else {"o"})
        for at, number in enumerate(numbers):
            np.testing.assert_array_equal(found["o"][at], rows[number][0])
            if linked:
                np.testing.assert_array_equal(found["next_o"][at], rows[number][1])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.uint64])
@pytest.mark.parametrize("depth", [2, 3, 4, 8])
def test_a_sliding_stream_stores_no_stack_but_the_first(dtype, depth):
    column = Column("o", (3, depth), dtype)
    frames = np.arange(40 * 3).reshape(40, 3).astype(dtype)
    stacks = np.stack([np.stack(frames[i : i + depth], axis=-1) for i in range(20)])
    for linked in (False, True):
        track = Track(column, stacked=True, linked=linked, native="observation", taken=set())
        whole = track.packed
        rows = {"o": stacks[:-1], **({"next_o": stacks[1:]} if linked else {})}
        stored, _state = track.encode(rows)
        kept = sum(int(stored[name].reshape(19, -1).any(axis=1).sum()) for name in whole)
        assert kept == 1
