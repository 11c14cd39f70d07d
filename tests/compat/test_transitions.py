"""Stacks, n-step windows and what follows them, beside loops over the rows of a ring."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from diskreplay.compat.reagent.transitions import Transitions  # noqa: E402

FIELDS = {
    "frame_": ((3, 2), np.dtype(np.uint8)),
    "picture_": ((20, 20), np.dtype(np.uint8)),  # so large that two reads are cheaper than a copy
    "vector_": ((4,), np.dtype(np.float32)),
    "number_": ((), np.dtype(np.float32)),
    "double_": ((), np.dtype(np.float64)),
    "whole_": ((), np.dtype(np.int32)),
    "terminal_": ((), np.dtype(np.uint8)),
}
COLUMNS = {name.rstrip("_"): name for name in FIELDS}


class Ring:
    """The newest rows of a stream, by slot; notes what is read."""

    def __init__(self, capacity, count, stored, seed):
        rng = np.random.default_rng(seed)
        self.capacity, self.count, self.stored, self.base = capacity, count, stored, 0
        self.fields, self.reads = FIELDS, []
        self.rows = {
            name: rng.integers(1, 100, (count, *shape)).astype(dtype)
            for name, (shape, dtype) in FIELDS.items()
        }
        self.rows["terminal_"] = (rng.random(count) < 0.25).astype(np.uint8) * 3

    def ids(self, slots):
        newest = {row % self.capacity: row for row in range(self.count - self.stored, self.count)}
        found = [newest.get(int(slot), -1) for slot in slots.reshape(-1)]
        return np.array(found, np.int64).reshape(slots.shape)

    def take(self, name, ids, *, out=None):
        shape, dtype = FIELDS[name]
        found = np.zeros((*ids.shape, *shape), dtype) if out is None else out
        found[:] = 0
        found[ids >= 0] = self.rows[name][ids[ids >= 0]]
        self.reads.append(name)
        return found

    def read(self, name, slots):
        return self.take(name, self.ids(slots))

    def by_slot(self, name):
        return self.take(name, self.ids(np.arange(self.capacity)))


class Case:
    """Transitions, and the same ones worked out one by one."""

    def __init__(self, stack, horizon, *, timeline=False, small=(), seed=0, count=17):
        capacity = 11
        self.ring = Ring(capacity, count, min(count, capacity), seed)
        self.values = {name: self.ring.by_slot(field) for name, field in COLUMNS.items()}
        self.stack, self.horizon, self.capacity = stack, horizon, capacity
        self.given = np.random.default_rng(seed).integers(-capacity, 2 * capacity, 9)
        self.made = Transitions(
            self.ring, COLUMNS, {name: self.values[name] for name in small},
            self.values["terminal"], stack, horizon, torch.from_numpy(self.given),
            timeline=timeline,
        )  # fmt: skip
        self.ring.reads.clear()

    def steps(self, slot):
        for step in range(1, self.horizon):
            if self.values["terminal"][(slot + step - 1) % self.capacity]:
                return step
        return self.horizon

    def stacked(self, name, slot):
        frames = [
            self.values[name][(slot - back) % self.capacity] for back in reversed(range(self.stack))
        ]
        return frames[0] if self.stack == 1 else np.stack(frames, axis=-1)

    def now(self, name):
        return [self.stacked(name, slot) for slot in self.given]

    def next(self, name):
        return [self.stacked(name, slot + self.steps(slot)) for slot in self.given]


def assert_equal(found, expected):
    expected = np.stack(expected)
    if expected.ndim == 1:
        expected = expected[:, None]
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


SUMMED = ("number", "vector")
SIZES = [(1, 1), (1, 3), (2, 1), (3, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("stack", "horizon"), SIZES)
@pytest.mark.parametrize("small", [(), tuple(COLUMNS)])
def test_both_sides_of_each_column(stack, horizon, small, seed):
    case = Case(stack, horizon, small=small, seed=seed, count=(17, 6, 30)[seed])
    made = case.made
    assert made.slots.tolist() == (case.given % case.capacity).tolist()
    assert made.indices[:, 0].tolist() == case.given.tolist()
    assert made.step[:, 0].tolist() == [case.steps(slot) for slot in case.given]
    ends = [
        bool(case.values["terminal"][(slot + case.steps(slot) - 1) % case.capacity])
        for slot in case.given
    ]
    assert made.terminal[:, 0].tolist() == ends
    assert any(ends)
    for name in COLUMNS:
        assert_equal(made.now(name), case.now(name))
        assert_equal(made.next(name), case.next(name))
    assert len(case.ring.reads) == (0 if small else len(COLUMNS))  # once for both sides


@pytest.mark.parametrize(("stack", "horizon"), SIZES)
@pytest.mark.parametrize("small", [(), tuple(COLUMNS)])
def test_a_timeline_has_what_follows_each_step(stack, horizon, small):
    case = Case(stack, horizon, timeline=True, small=small, seed=1)
    for name in COLUMNS:
        assert_equal(case.made.now(name), case.now(name))
        along, later = case.made.along(name), case.made.next(name)
        assert len(along) == len(later) == len(case.given)
        for at, slot in enumerate(case.given):
            steps = range(case.steps(slot))
            expected = np.stack([case.stacked(name, slot + i) for i in steps])
            np.testing.assert_array_equal(along[at].numpy(), expected)
            expected = np.stack([case.stacked(name, slot + i + 1) for i in steps])
            np.testing.assert_array_equal(later[at].numpy(), expected)
            assert later[at].numpy().dtype == FIELDS[COLUMNS[name]][1]
    assert len(case.ring.reads) == (0 if small else len(COLUMNS))


@pytest.mark.parametrize(("stack", "horizon"), SIZES)
@pytest.mark.parametrize("small", [(), tuple(COLUMNS)])
@pytest.mark.parametrize("gamma", [0.5, 1])
def test_a_sum_is_over_the_steps_of_the_window(stack, horizon, small, gamma):
    case = Case(stack, horizon, small=small, seed=2)
    decays = gamma ** torch.arange(horizon)
    for name in ("number", "double", "whole", "vector"):
        shape, dtype = FIELDS[COLUMNS[name]]
        expected = []
        for slot in case.given:
            rows = [
                case.values[name][(slot + i) % case.capacity] * float(gamma) ** i
                for i in range(case.steps(slot))
            ]
            expected.append(np.sum(rows, axis=0))
        found = case.made.discounted(name, decays)
        assert tuple(found.shape) == (len(case.given), *(shape or (1,)))
        np.testing.assert_allclose(
            found.numpy(), np.stack(expected).reshape(found.shape), rtol=1e-6
        )
        of_torch = torch.zeros(2, horizon, dtype=torch.from_numpy(np.zeros(1, dtype)).dtype)
        assert found.dtype == (of_torch * decays).sum(dim=1).dtype


@pytest.mark.parametrize("timeline", [False, True])
@pytest.mark.parametrize("small", [(), tuple(COLUMNS)])
@pytest.mark.parametrize(("stack", "horizon"), [(1, 1), (3, 1), (3, 2), (2, 4)])
def test_who_works_in_place_on_one_side_finds_the_other_and_the_ring_as_they_were(
    stack, horizon, small, timeline
):
    case = Case(stack, horizon, small=small, timeline=timeline)
    before = {name: values.copy() for name, values in case.values.items()}
    for name in ("frame", "picture", "number", "vector"):
        now, later = case.made.now(name), case.made.next(name)
        total = case.made.discounted(name, torch.ones(horizon)) if name in SUMMED else None
        expected = None if total is None else total.clone()
        now[:] = 0
        if timeline:
            along = case.made.along(name)
            for at, slot in enumerate(case.given):
                assert (later[at] != 0).any()
                np.testing.assert_array_equal(along[at][0].numpy(), case.stacked(name, slot))
                np.testing.assert_array_equal(later[at][0].numpy(), case.stacked(name, slot + 1))
        else:
            assert_equal(later, case.next(name))
            later[:] = 1
            assert (now == 0).all()
        if total is not None:
            assert (total == expected).all()
    for name, values in before.items():
        np.testing.assert_array_equal(values, case.values[name])


def test_a_large_frame_is_not_read_with_all_that_lies_between(monkeypatch):
    """Two stacks of two frames, four steps apart: five in the window, and four that are wanted."""
    asked = []
    take = Ring.take
    monkeypatch.setattr(
        Ring, "take", lambda self, name, ids, **more: (
            asked.append((name, ids.size)), take(self, name, ids, **more)
        )[1],
    )  # fmt: skip
    case = Case(2, 4)
    asked.clear()
    case.made.now("picture")
    case.made.now("frame")
    assert asked == [("picture_", 9 * 4), ("frame_", 9 * (2 + 4))]
    case = Case(4, 2)  # the window is shorter than the two
    asked.clear()
    case.made.now("picture")
    assert asked == [("picture_", 9 * (4 + 2))]


def test_a_batch_of_none():
    case = Case(3, 2)
    empty = Transitions(
        case.ring, COLUMNS, {}, case.values["terminal"], 3, 2, torch.zeros(0, dtype=torch.int64),
        timeline=False,
    )  # fmt: skip
    assert tuple(empty.now("frame").shape) == tuple(empty.next("frame").shape) == (0, 3, 2, 3)
    assert tuple(empty.discounted("number", torch.ones(2)).shape) == (0, 1)
