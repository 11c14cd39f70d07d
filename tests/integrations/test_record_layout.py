"""Records in rows and back: which field has a leaf, and that it is what was put there."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import InvalidInputError
from diskreplay.integrations.record_layout import BACK, NO_SLOT, SLOT, Leaf, RecordLayout
from tests.effort import effort

U1 = np.dtype("u1")


def leaf(key, shape=(4,), on_disk=True, stack=1, dtype=U1):
    return Leaf(key if isinstance(key, tuple) else (key,), shape, "uint8", dtype, on_disk, stack)


SHARED = [leaf("seen"), leaf(("next", "seen")), leaf("flag", (), False)]


def test_each_leaf_has_a_field_but_what_shares_frames():
    plain, shared = RecordLayout(SHARED), RecordLayout(SHARED, next_of=True)
    assert list(plain.leaves) == list(shared.leaves)
    seen, led, flag = plain.leaves
    assert seen.startswith("observation/")
    assert not flag.startswith("observation/")
    assert set(plain.fields) == {seen, led, flag}
    assert set(shared.fields) == {seen, flag}
    assert shared.pair(seen) == shared.pair(led) == (seen, led)
    assert plain.pair(seen) is shared.pair(flag) is None
    assert (plain.most_rows, shared.most_rows) == (1, 2)
    stacked = RecordLayout([leaf("seen", (3, 4), stack=3)])
    assert stacked.fields == {"observation/seen": ((1, 4), U1)}
    assert stacked.reach == 2


def test_names_that_a_store_has_itself_are_no_leaves():
    found = RecordLayout([leaf(name) for name in (SLOT, BACK, "nothing", "reward", "a b")])
    names = [name.removeprefix("observation/") for name in found.leaves]
    assert len(set(names)) == 5
    assert not {SLOT, BACK, "nothing"} & set(names)
    nothing = RecordLayout([leaf("a", (), False)])
    assert set(nothing.fields) == {"a", "observation/nothing"}
    rows = nothing.rows(np.arange(2), {"a": np.zeros(2, U1)}, None)
    assert rows["observation/nothing"].shape == (2, 1)


@pytest.mark.parametrize("next_of", [False, True])
def test_as_json_and_back(next_of):
    found = RecordLayout([*SHARED, leaf("deep", (4, 2), stack=2)], next_of)
    again = RecordLayout.parse(json.loads(json.dumps(found.described())))
    assert again.leaves == found.leaves
    assert again.fields == found.fields
    assert (again.has_back, again.reach) == (found.has_back, found.reach)
    options = found.options()
    named = {f"observation/{key}" for key in options["observation_space"].spaces}
    assert named | set(options["extras"]) - {SLOT, BACK} == set(found.fields)
    assert (BACK in options["extras"]) == found.has_back


def test_leaves_that_cannot_share_frames():
    with pytest.raises(InvalidInputError, match="they have to be alike"):
        RecordLayout([leaf("seen"), leaf(("next", "seen"), (5,))], next_of=True)
    RecordLayout([leaf("seen"), leaf(("next", "seen"), (5,))])
    with pytest.raises(InvalidInputError, match="cannot be 3 frames"):
        RecordLayout([leaf("seen", (4,), stack=3)])


@settings(max_examples=effort(25, 60, 300))
@given(st.lists(st.sampled_from(["on", "on", "begins"]), min_size=1, max_size=12), st.data())
def test_records_are_found_where_they_were_put(kinds, data):
    layout = RecordLayout([*SHARED, leaf("wide", (2,))], next_of=True)
    seen, led, flag, wide = layout.leaves
    number, records = 0, []
    for kind in kinds:
        if kind == "begins":
            number += 1
        records.append((number, number + 1))
        number += 1
    parts = {
        seen: np.repeat(np.array([r[0] for r in records], U1)[:, None], 4, axis=1),
        led: np.repeat(np.array([r[1] for r in records], U1)[:, None], 4, axis=1),
        flag: np.arange(len(records), dtype=U1),
        wide: np.arange(2 * len(records), dtype=U1).reshape(-1, 2),
    }
    cut = data.draw(st.integers(1, len(records)))
    stored, tip, own = {}, None, {}
    for piece in (slice(0, cut), slice(cut, None)):
        columns = {name: part[piece] for name, part in parts.items()}
        slots = np.arange(len(records))[piece]
        if not len(slots):
            continue
        made = layout.rows(slots, columns, tip)
        before = len(stored.get(SLOT, []))
        for at, slot in enumerate(made[SLOT].tolist()):
            if slot != NO_SLOT:
                own[slot] = before + at
        for name, rows in made.items():
            stored[name] = np.concatenate([stored[name], rows]) if name in stored else rows
        tip = layout.tip(columns)
    begins = 1 + sum(kind == "begins" for kind in kinds[1:])
    assert len(stored[SLOT]) == len(records) + begins  # each frame is there once
    rows = np.array([own[slot] for slot in range(len(records))])
    back = stored[BACK][rows] if layout.has_back else None
    for name, part in parts.items():
        field, where = layout.window(name, rows, back)
        np.testing.assert_array_equal(stored[field][where], part)
    windows = layout.both(seen, rows, back)
    frames = stored[seen][windows]
    np.testing.assert_array_equal(frames[:, :-1].reshape(-1, 4), parts[seen])
    np.testing.assert_array_equal(frames[:, 1:].reshape(-1, 4), parts[led])


def test_both_stacks_of_records_that_slide_are_one_window():
    layout = RecordLayout([leaf("a", (3,), stack=3), leaf(("next", "a"), (3,), stack=3)], True)
    rows, slide = np.array([7, -1, 9]), np.array([1, 1, 1], U1)
    windows = layout.both("observation/a", rows, slide)
    assert windows.tolist() == [[4, 5, 6, 7], [-1] * 4, [6, 7, 8, 9]]
    assert layout.both("observation/a", rows, np.array([1, 9, 1], U1)) is not None
    assert layout.both("observation/a", rows, np.array([1, 1, 3], U1)) is None
