"""Where the store keeps each column: what is encoded row by row or at once comes back as it was."""

import numpy as np
import pytest

from diskreplay.compat.cpprb.columns import NO_ACTION, NOTHING, Columns
from diskreplay.compat.cpprb.layout import Layout, Plain, all_fields
from diskreplay.naming import RESERVED

LARGE = (24, 24, 2)  # 1,152 bytes of uint8


def columns(next_of=(), **given):
    env_dict = {
        name: {"shape": shape, "dtype": np.dtype(dtype)} for name, (shape, dtype) in given.items()
    }
    return Columns(env_dict, next_of)


EVERY = {
    "obs": ((3,), "f4"), "act": ((2,), "i8"), "rew": (1, "f4"), "done": (1, "?"),
    "Date 1": ((2,), "M8[s]"), "complex": (1, "c8"), "big": ((2, 2), ">i4"), "text": (1, "S5"),
    "half": (1, "f2"), "id": (1, "u8"), "Obs": ((2,), "?"),
}  # fmt: skip


def random_rows(given, count, seed=0):
    rng = np.random.default_rng(seed)
    rows = {}
    for name, column in given.by_name.items():
        size = count * int(np.prod(column.shape)) * column.dtype.itemsize
        data = rng.integers(0, 2 if column.dtype == np.bool_ else 60, size, np.uint8)
        rows[name] = data.view(column.dtype).reshape(count, *column.shape).copy()
    if "rew" in rows and rows["rew"].dtype == np.float32:
        rows["rew"] = rng.random(rows["rew"].shape, np.float32)
    return rows


class Taken:
    """What a store of lists gives back: zeros for -1."""

    def __init__(self, stored):
        self.stored, self.asked = stored, []

    def __call__(self, field, rows, *, out=None):
        if not isinstance(field, str):
            return [self(each, rows) for each in field]
        self.asked.append(field)
        values = self.stored[field]
        found = np.zeros((*rows.shape, *values.shape[1:]), values.dtype) if out is None else out
        found[:] = 0
        found[rows >= 0] = values[rows[rows >= 0]]
        return found


def one_by_one(layout, rows, count):
    """All rows, encoded each by itself, as a store has them."""
    shapes = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.extras.items()}
    kept = []
    for at in range(count):
        stored, states = layout.encode_row({name: values[at] for name, values in rows.items()})
        kept.append({n: shapes[n] if v is None else np.array(v) for n, v in stored.items()})
        layout.keep(states)
    return {
        name: np.stack([row[name] for row in kept]).astype(
            {"reward": np.float32, "terminated": np.bool_}.get(name, kept[0][name].dtype)
        )
        for name in kept[0]
    }


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape), name
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("at_once", [True, False])
def test_values_of_every_dtype_come_back(at_once):
    given = columns(next_of=["obs", "rew"], **EVERY)
    layout, rows = Layout(given, 20), random_rows(given, 12)
    stored = layout.encode(rows)[0] if at_once else one_by_one(layout, rows, 12)
    assert stored.keys() == set(layout.fields.values())
    for name, (shape, dtype) in layout.extras.items():
        assert stored[name].shape == (12, *shape)
        assert stored[name].dtype == dtype
    take = Taken(stored)
    at = np.array([[5, 0], [11, -1], [-1, 5]])
    found = layout.decode(take, at)
    zeros = {n: np.zeros((1, *c.shape), c.dtype) for n, c in given.by_name.items()}
    padded = {
        name: np.concatenate([values, zeros[name]]).astype(values.dtype)  # which swaps bytes
        for name, values in rows.items()
    }
    assert_same(found, {name: values[at] for name, values in padded.items()})
    assert sorted(take.asked) == sorted(layout.fields.values())  # once each


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.costly(1)
def test_columns_that_repeat_come_back_too(at_once):
    given = columns(
        next_of=["obs", "small"], obs=(LARGE, "u1"), small=((3,), "f4"), other=(LARGE, "i2"),
        rew=(1, "f4"), done=(1, "f4"),
    )  # fmt: skip
    rows = random_rows(given, 9)
    frames = np.random.default_rng(1).integers(0, 9, (10, *LARGE[:2], 1), np.uint8)
    frames = np.concatenate([frames[:1], frames], axis=0)
    rows["obs"] = np.stack([frames[i : i + 2, ..., 0] for i in range(9)]).transpose(0, 2, 3, 1)
    rows["next_obs"] = np.stack([frames[i : i + 2, ..., 0] for i in range(1, 10)]).transpose(
        0, 2, 3, 1
    )
    rows = {name: np.ascontiguousarray(values) for name, values in rows.items()}
    layout = Layout(given, 20, ["obs", "small"], ["obs", "other"])
    assert layout.slack == 2  # as many as a linked stack has frames
    assert layout.links.keys() == {"obs_run", "obs_follows", "other_run"}
    assert set(layout.links.values()) == {2}
    assert layout.fields["next_obs"] == layout.fields["obs"] == "next_obs_frame"
    assert layout.fields["next_small"] == "next_small"  # not large: a column of its own
    assert layout.observation_space is NOTHING
    stored = layout.encode(rows)[0] if at_once else one_by_one(layout, rows, 9)
    expected = {name: rows[name] for name in given.by_name}
    assert_same(layout.decode(Taken(stored), np.arange(9)), expected)
    assert stored["terminated"].tolist() == (rows["done"][:, 0] != 0).tolist()


def test_a_stack_without_a_next_one_is_the_stores_observation():
    given = columns(obs=(LARGE, "u1"), rew=(1, "f4"))
    layout = Layout(given, 20, (), ["obs"])
    assert layout.fields["obs"] == "observation"
    assert layout.observation_space.shape == LARGE[:2]
    assert layout.slack == 1
    assert "observation" not in layout.extras
    deep = Layout(columns(obs=((40, 40, 1), "u1")), 20, (), ["obs"])  # one frame is no stack
    assert deep.links == {}
    assert deep.observation_space.shape == (40, 40, 1)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "native"),
    [
        ("obs", (3,), "f4", "observation"), ("obs", 1, "u1", "observation"),
        ("obs", (3,), "?", None), ("obs", (3,), "c8", None), ("obs", (3,), ">f4", None),
        ("act", (2,), "i8", "action"), ("act", 1, "S2", None),
        ("rew", 1, "f4", "reward"), ("rew", 1, "f8", None), ("rew", (2,), "f4", None),
        ("rew", (1, 1), "f4", None),
        ("done", 1, "?", "terminated"), ("done", 1, "f4", None), ("done", (2,), "?", None),
        ("other", 1, "f4", None),
    ],
)  # fmt: skip
def test_which_columns_are_the_stores_own_fields(name, shape, dtype, native):
    given = columns(**{name: (shape, dtype)})
    layout = Layout(given, 10)
    if native:
        assert layout.fields == {name: native}
        assert layout.extras == {}
    else:
        (field,) = layout.extras
        assert layout.fields == {name: field}
        assert field not in RESERVED
    column = given.by_name[name]
    seen = layout.observation_space if name == "obs" else layout.action_space
    if native in ("observation", "action"):
        assert (seen.shape, seen.dtype) == (column.shape, column.dtype)
    else:
        assert layout.observation_space is NOTHING
        assert layout.action_space is NO_ACTION


@pytest.mark.parametrize(("dtype", "told"), [("f4", True), ("i8", True), ("?", True), ("c8", True)])
def test_the_store_is_told_which_rows_are_done(dtype, told):
    given = columns(done=(1, dtype))
    layout = Layout(given, 10)
    rows = {"done": np.array([[0], [1], [0], [2]]).astype(dtype)}
    assert layout.encode(rows)[0]["terminated"].tolist() == [False, told, False, told]
    assert one_by_one(layout, rows, 4)["terminated"].tolist() == [False, told, False, told]
    wide = Layout(columns(done=((2,), dtype)), 10)
    assert "terminated" not in wide.encode({"done": np.zeros((2, 2), dtype)})[0]


def test_names_of_fields_are_each_used_once():
    given = columns(**{"a b": (1, "f4"), "a_b": (1, "f4"), "A_B": (1, "f4"), "step": (1, "i4"),
                       "o_whole": (1, "f4"), "o": (LARGE, "u1")})  # fmt: skip
    layout = Layout(given, 10, (), ["o"])
    assert len({name.lower() for name in layout.extras}) == 5 + 3
    assert not {name.lower() for name in layout.extras} & RESERVED
    assert sorted(layout.fields) == sorted(given.by_name)


def test_what_is_small_is_in_memory_and_not_read_again():
    given = columns(obs=((2000,), "u1"), act=(1, "i4"), rew=(1, "f4"), big=((400,), ">i4"))
    layout, rows = Layout(given, 10), random_rows(given, 5)
    assert [column.name for column in layout.small] == ["act", "rew"]
    assert not layout.is_small
    take = Taken(layout.encode(rows)[0])
    at = np.array([3, -1, 0])
    known = layout.decode_small(take, at)
    assert sorted(take.asked) == ["action", "reward"]
    take.asked.clear()
    found = layout.decode(take, at, known)
    assert sorted(take.asked) == sorted([layout.fields["obs"], layout.fields["big"]])
    assert_same(found, layout.decode(take, at))
    assert Layout(columns(act=(1, "i4")), 10).is_small
    tracked = Layout(columns(o=((24, 24, 2), "u1"), act=(1, "i4")), 10, (), ["o"])
    assert not tracked.is_small


def test_what_is_zeros_mostly_is_packed_whatever_was_asked_for():
    given = columns(next_of=["obs"], obs=(LARGE, "u1"), act=(1, "i4"), rew=(1, "f8"))
    layout = Layout(given, 10, ["obs"], ["obs"])
    found = layout.compressors("raw")
    assert found == {
        "observation": "raw", "action": "raw", "rew": "raw", "next_obs_frame": "raw",
        "obs_run": "auto", "obs_follows": "auto", "next_obs_whole": "lz4", "obs_whole": "lz4",
    }  # fmt: skip


def test_a_column_to_compress_that_is_none():
    with pytest.raises(KeyError, match=r"stack_compress: 'x' is no column of \['obs'\]"):
        Layout(columns(obs=(1, "f4")), 10, (), ["x"])


def test_a_stream_that_was_forgotten_begins_anew():
    given = columns(o=(LARGE, "u1"))
    rows = {"o": np.ones((6, *LARGE), np.uint8)}
    layout = Layout(given, 10, (), ["o"])
    first = layout.encode({"o": rows["o"][:3]})
    layout.keep(first[1])
    on = layout.encode({"o": rows["o"][3:]})[0]
    layout.forget()
    anew = layout.encode({"o": rows["o"][3:]})[0]
    assert not on["o_whole"].any()
    assert anew["o_whole"][0].all()
    assert_same(layout.decode(Taken(anew), np.arange(3)), {"o": rows["o"][3:]})


def test_a_row_that_is_one_number():
    column = columns(rew=(1, "f4")).by_name["rew"]
    plain = Plain(column, "reward", set())
    assert plain.encode_row(np.array([2.5], np.float32)) == 2.5
    assert plain.encode(np.array([[1], [2]], np.float32)).tolist() == [1, 2]
    assert plain.decode(np.array([1, 2], np.float32)).tolist() == [[1], [2]]
    assert not plain.is_direct


@pytest.mark.parametrize("first", [0, 1, 40])
@pytest.mark.parametrize("seed", range(3))
def test_every_field_of_rows_that_follow_each_other(first, seed):
    rng = np.random.default_rng(seed)
    fields = {
        "observation": ((3,), np.dtype("u1")), "action": ((), np.dtype("i8")),
        "reward": ((), np.dtype("f4")), "terminated": ((), np.dtype("?")),
    }  # fmt: skip
    ended = rng.random(25) < 0.3
    stored = {"x": np.arange(25), "terminated": ended}
    found = all_fields(stored, fields, 25, first)
    step, expected = first, []
    for end in ended.tolist():
        expected.append(step)
        step = 0 if end else step + 1
    assert found["step"].dtype == np.int32
    assert found["step"].tolist() == expected
    assert found["x"] is stored["x"]
    assert found["terminated"] is ended
    for name in ("observation", "action", "reward"):
        assert (found[name].shape, found[name].dtype) == ((25, *fields[name][0]), fields[name][1])
        assert not found[name].any()
    assert not found["truncated"].any()
    assert not found["is_final"].any()
    assert stored.keys() == {"x", "terminated"}  # what was given is as it was
    alone = all_fields({}, fields, 4, first)
    assert alone["step"].tolist() == [first, first + 1, first + 2, first + 3]
    assert not alone["terminated"].any()
