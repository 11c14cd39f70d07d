"""In what two stores differ, beside what was done differently."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.inspection.difference import Span, common_rows, differences

OPTIONS = {
    "observation_space": Box(-9, 9, (3, 4), np.float32), "action_space": Discrete(5),
    "capacity": 100, "num_envs": 2, "extras": {"h": ((), "float32")}, "seed": 0,
}  # fmt: skip


def make(path, rows=8, change=None, kind=diskreplay.ReplayBuffer, **options):
    """A store with the same rows each time, but for what `change` does with those of a step."""
    buffer = kind(path, **OPTIONS | options)
    rng = np.random.default_rng(0)
    for row in range(rows):
        step = {"observation": rng.random((2, 3, 4), np.float32), "action": rng.integers(5, size=2),
                "reward": rng.random(2), "terminated": np.array([False, row % 3 == 2]),
                "truncated": np.zeros(2, bool), "h": rng.random(2).astype("f4")}  # fmt: skip
        if change is not None:
            change(row, step)
        buffer.add(**step)
    return buffer


def found(tmp_path, one=None, other=None, newest=False):
    with make(tmp_path / "one", **(one or {})) as a, make(tmp_path / "other", **(other or {})) as b:
        a.flush()
        b.flush()
        return list(differences(a, b, newest=newest))


def test_none(tmp_path):
    assert found(tmp_path) == []
    assert found(tmp_path / "more", other={"compressor": "zstd", "segment_rows": 32}) == []


def test_a_value_is_named_where_it_is_first(tmp_path):
    def change(row, step):
        if row in (4, 6):
            step["observation"][1, 2, 3] += 1
        if row == 5:
            step["h"][0] = -1.0

    one, two = sorted(found(tmp_path, other={"change": change}), key=lambda each: each.name)
    assert (one.what, one.name, one.env, one.row, one.rows, one.at) == ("value", "h", 0, 5, 1, ())
    assert one.other == -1.0
    assert (two.what, two.name, two.env, two.row, two.rows) == ("value", "observation", 1, 4, 2)
    assert two.at == (2, 3)
    assert two.other == pytest.approx(two.one + 1)


def test_bits_are_compared(tmp_path):
    """NaNs are the same, and the two zeros are not."""

    def nan(row, step):
        step["h"][:] = np.nan

    assert found(tmp_path / "nan", one={"change": nan}, other={"change": nan}) == []

    def zero(sign):
        return {"change": lambda row, step: step["h"].fill(sign * 0.0)}

    assert [each.rows for each in found(tmp_path, one=zero(1), other=zero(-1))] == [8, 8]


def test_fields_spaces_options_and_rows(tmp_path):
    other = {"extras": {"h": ((), "float32"), "more": ((2,), "int8")}, "gamma": 0.5, "seed": 1,
             "action_space": Discrete(6), "rows": 6,
             "change": lambda row, step: step.update(more=np.zeros((2, 2), np.int8))}  # fmt: skip
    given = found(tmp_path, other=other)
    what = {(each.what, each.name): each for each in given}
    assert what["field", "more"].one == "missing"
    assert what["field", "more"].other == "int8 of shape (2,)"
    assert what["space", "action_space"].other == "Discrete(6)"
    assert what["option", "gamma"].other == 0.5
    assert what["generator", "rng"].one == "PCG64"
    assert what["generator", "rng"].other == "PCG64 in another state"
    rows = [(each.env, each.one, each.other) for each in given if each.what == "rows"]
    assert rows == [(0, [0, 8], [0, 6]), (1, [0, 8], [0, 6])]
    assert what.keys() == {
        ("field", "more"), ("space", "action_space"), ("option", "gamma"), ("generator", "rng"),
        ("rows", "first and count"),
    }  # fmt: skip


def test_of_other_envs_no_rows_are_compared(tmp_path):
    with make(tmp_path / "one") as one:
        with diskreplay.ReplayBuffer(
            tmp_path / "other", **OPTIONS | {"num_envs": 1, "capacity": 50}
        ) as other:
            what = {(each.what, each.name) for each in differences(one, other)}
    assert what == {("option", "num_envs"), ("option", "capacity")}


def test_priorities(tmp_path):
    kind = diskreplay.PrioritizedReplayBuffer
    with (
        make(tmp_path / "one", kind=kind) as one, make(tmp_path / "other", kind=kind) as other,
    ):  # fmt: skip
        for buffer in (one, other):
            buffer.update_priorities([4, 7], [2.0, 3.0])
        other.update_priorities([7, 9], [5.0, 6.0])
        for number, buffer in enumerate((one, other)):
            buffer.save(tmp_path / f"saved{number}", 1)
    saved = [diskreplay.open(tmp_path / f"saved{number}" / "replay_ckpt.1") for number in (0, 1)]
    with saved[0], saved[1]:
        (each,) = [d for d in differences(*saved) if d.what == "priority"]
    assert (each.env, each.row, each.rows) == (1, 3, 2)
    assert each.one == pytest.approx(3.0 ** saved[0].alpha)
    assert each.other == pytest.approx(5.0 ** saved[0].alpha)


def view_of(buffer, priorities, name="v"):
    view = buffer.sequences(length=3, prioritized=True, name=name)
    view.update_priorities(view.sample(len(priorities)).anchor, priorities)
    return view


def test_priorities_of_views(tmp_path):
    kind = diskreplay.PrioritizedReplayBuffer
    for number, priorities in enumerate(([0.5, 0.3], [0.5, 0.3], [0.5, 0.2])):
        with make(tmp_path / str(number), kind=kind) as buffer:
            view_of(buffer, priorities)
    with (
        diskreplay.open(tmp_path / "0") as one, diskreplay.open(tmp_path / "1") as same,
        diskreplay.open(tmp_path / "2") as other,
    ):  # fmt: skip
        assert list(differences(one, same)) == []
        (each,) = differences(one, other)
        assert (each.what, each.name, each.rows) == ("priority", "priority.v", 1)


def test_a_copy_of_a_store_with_views_and_parts_of_episodes_is_the_same(tmp_path):
    from diskreplay.convert.copying import convert, trim

    with make(tmp_path / "one", kind=diskreplay.PrioritizedReplayBuffer, rows=30) as buffer:
        part = {name: buffer.take(name, [20, 22]) for name in buffer.fields}
        part["step"] = np.array([50, 51], np.int32)
        buffer.extend(part, env=0)
        buffer.end_episode()
        buffer.extend({**part, "step": part["step"] + 2}, env=0)  # counts on, and is another part
        assert len(buffer.begins) == 1
        view_of(buffer, [0.5, 0.3])
    convert(tmp_path / "one", tmp_path / "copy")
    trim(tmp_path / "one", tmp_path / "newest", 40)
    with diskreplay.open(tmp_path / "one") as one, diskreplay.open(tmp_path / "copy") as copy:
        assert list(differences(one, copy, newest=True)) == []
    with diskreplay.open(tmp_path / "one") as one, diskreplay.open(tmp_path / "newest") as newest:
        assert [each.name for each in differences(one, newest, newest=True)] == ["capacity"]


def test_views_and_parts_that_are_others(tmp_path):
    kind = diskreplay.PrioritizedReplayBuffer
    with make(tmp_path / "one", kind=kind) as one, make(tmp_path / "other", kind=kind) as other:
        view_of(one, [0.5])
        view_of(one, [0.5], name="w")
        view_of(other, [7.0])
        for buffer, joined in ((one, False), (other, True)):
            part = {name: buffer.take(name, [0, 2]) for name in buffer.fields}
            if joined:
                part = {name: np.concatenate([values, values]) for name, values in part.items()}
                part["step"] = np.arange(50, 54, dtype=np.int32)
                buffer.extend(part, env=0)
            else:
                for step in (50, 52):
                    buffer.end_episode()
                    buffer.extend({**part, "step": np.arange(step, step + 2, dtype="i4")}, env=0)
    with diskreplay.open(tmp_path / "one") as one, diskreplay.open(tmp_path / "other") as other:
        found = {each.name: (each.one, each.other) for each in differences(one, other, newest=True)}
    assert found["view v: largest"] == (1.0, 7.0)
    assert found["view w"] == ("there", "missing")
    assert found["begins"] == ([10], [])


def test_which_rows_are_compared():
    bounds = np.array([[[0, 10], [5, 9], [0, 3]], [[4, 12], [0, 9], [3, 8]]])
    assert common_rows(bounds) == [Span((4, 4), 6), Span((5, 5), 4), Span((3, 3), 0)]
    assert common_rows(bounds, newest=True) == [
        Span((2, 4), 8), Span((5, 5), 4), Span((0, 5), 3)
    ]  # fmt: skip
    apart = np.array([[[0, 3]], [[7, 9]]])
    assert common_rows(apart) == [Span((7, 7), 0)]
    assert common_rows(apart, newest=True) == [Span((1, 7), 2)]
