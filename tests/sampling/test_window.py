"""The shape of windows, and the memory that a plan of them has."""

import numpy as np
import pytest

from diskreplay.sampling import window_kernels as kernels
from diskreplay.sampling.window import ENDS, Window, WindowPlan


def made(**changed):
    asked = {"length": 4, "burn_in": 2, "ahead": 3, "stride": 5, "ends": "inside", "n_step": 3,
             "arrival": False, "finished": True}  # fmt: skip
    return Window(**{**asked, **changed})


@pytest.mark.parametrize("ends", ENDS)
def test_figures_are_where_kernels_look_for_them(ends):
    figures = made(ends=ends).figures(repeat_first=True)
    assert figures.dtype == np.int64
    expected = {
        kernels.BURN_IN: 2, kernels.LENGTH: 4, kernels.AHEAD: 3, kernels.STRIDE: 5,
        kernels.N_STEP: 3, kernels.ARRIVAL: 0, kernels.FINISHED: 1, kernels.REPEAT_FIRST: 1,
        kernels.ENDS: {"inside": kernels.INSIDE, "shift": kernels.SHIFT, "pad": kernels.PAD,
                       "cross": kernels.CROSS}[ends],
    }  # fmt: skip
    assert {at: int(number) for at, number in enumerate(figures)} == expected
    assert made(arrival=True).figures(repeat_first=False)[kernels.ARRIVAL] == 1
    assert made().figures(repeat_first=False)[kernels.REPEAT_FIRST] == 0


def test_positions():
    assert made().positions == 9
    assert made(ends="cross").crosses
    assert not made(ends="pad").crosses


@pytest.mark.parametrize(
    ("ends", "stack", "frames"),
    [("inside", 1, (6, 9)), ("cross", 1, (6, 9)), ("inside", 4, (6, 12)), ("cross", 4, (6, 9, 4))],
)
def test_the_parts_of_a_plan_share_one_block_and_not_a_byte(ends, stack, frames):
    plan = WindowPlan(made(ends=ends), 6, stack, has_to_go=False)
    assert plan.frames.shape == frames
    parts = [
        plan.ids, plan.transitions, plan.frames, plan.state, plan.anchor, plan.probability,
        plan.step, plan.reward, plan.to_go, plan.returns, plan.discount, plan.target, plan.weight,
        plan.masks,
    ]  # fmt: skip
    if stack == 1:
        assert plan.frames is plan.ids
        del parts[2]
    for number, part in enumerate(parts):
        part[...] = number % 2 if part.dtype == np.bool_ else number
    for number, part in enumerate(parts):
        assert (part == (number % 2 if part.dtype == np.bool_ else number)).all()
        assert part.ctypes.data % part.itemsize == 0
    assert sum(part.nbytes for part in parts) == plan.block.nbytes
    addresses = [part.ctypes.data for part in parts]
    if stack == 1:
        addresses.insert(2, addresses[2])  # of no bytes
    assert plan.table.tolist() == [*addresses, 6]
    assert plan.ids.shape == plan.transitions.shape == plan.step.shape == (6, 9)
    assert plan.returns.shape == plan.discount.shape == plan.target.shape == (6, 4)
    assert plan.masks.shape == (8, 6, 9)
    assert plan.weight.shape == plan.anchor.shape == (6,)


def test_rows_are_the_same_memory_flat():
    plan = WindowPlan(made(), 3, 2, has_to_go=False)
    plan.transitions[:] = np.arange(27).reshape(3, 9)
    plan.frames[:] = np.arange(30).reshape(3, 10)
    assert plan.transition_rows.tolist() == list(range(27))
    assert plan.frame_rows.tolist() == list(range(30))


def test_no_windows():
    plan = WindowPlan(made(), 0, 3, has_to_go=True)
    assert plan.ids.shape == (0, 9)
    assert plan.frames.shape == (0, 11)


def test_what_all_batches_have():
    plan = WindowPlan(made(), 3, 1, has_to_go=False)
    plan.masks[:] = np.arange(8)[:, None, None] % 2
    masks = ["observed", "transition", "is_first", "is_last", "begin", "learn", "terminated",
             "truncated"]  # fmt: skip
    assert [bool(plan.shown[name].all()) for name in masks] == [False, True] * 4
    assert not any(plan.shown[name].any() for name in masks[::2])
    assert plan.shown["is_terminal"] is plan.shown["terminated"]
    same = {"id": plan.ids, "anchor": plan.anchor, "step": plan.step, "reward": plan.reward,
            "returns": plan.returns, "discount": plan.discount, "target": plan.target,
            "weight": plan.weight, "probability": plan.probability}  # fmt: skip
    for name, part in same.items():
        assert plan.shown[name] is part
    assert plan.shown.keys() == {*masks, *same, "is_terminal"}
    with_to_go = WindowPlan(made(), 3, 1, has_to_go=True)
    assert with_to_go.shown["returns_to_go"] is with_to_go.to_go
    assert with_to_go.shown.keys() == {*plan.shown, "returns_to_go"}
