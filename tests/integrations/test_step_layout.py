"""Steps of DreamerV3 as the arguments of a buffer, and batches as the original has them."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from diskreplay.errors import DtypeError, InvalidInputError, ShapeError
from diskreplay.integrations.step_layout import StepLayout, row_ids, step_ids

STEP = {
    "image": np.zeros((4, 4), np.uint8), "log/score": np.float32(0.5), "action": np.zeros(3, "f4"),
    "reward": np.float32(2.0), "is_first": np.bool_(True), "is_last": np.bool_(False),
    "is_terminal": np.bool_(False), "dyn/deter": np.zeros(5, "f4"),
}  # fmt: skip


def layout(workers=2, step=STEP, mutable=("dyn/",)):
    return StepLayout(StepLayout.of(step), workers, mutable)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=6))
def test_ids_are_twenty_bytes_and_back(ids):
    ids = np.array(ids, np.int64)
    found = step_ids(ids[None])
    assert found.shape == (1, len(ids), 20)
    for each, id_ in zip(found[0], ids.tolist(), strict=True):
        assert int.from_bytes(each.tobytes(), "big") == id_
    assert row_ids(found).tolist() == [ids.tolist()]
    with pytest.raises(ShapeError, match="stepid"):
        row_ids(found[..., :19])


def test_what_a_buffer_is_given():
    found = layout()
    options = found.options()
    assert set(options["observation_space"].spaces) == {
        "image", "log", "reward", "is_first", "is_last", "is_terminal"
    }  # fmt: skip
    assert options["observation_space"]["log"]["score"].shape == ()
    assert options["action_space"].shape == (3,)
    assert options["extras"] == {"dyn__deter": ((5,), np.dtype("f4"), "mutable")}
    nothing = StepLayout({"action": ((2,), "<f4")}, 1, ()).options()
    assert nothing["observation_space"] == spaces.Dict({"nothing": spaces.MultiBinary(1)})
    assert StepLayout({"a": ((2,), "<f4")}, 1, ()).options()["action_space"].shape == (1,)
    with pytest.raises(DtypeError, match="numbers expected"):
        StepLayout({"a": ((), "<U3")}, 1, ()).options()
    again = StepLayout(found.described(), 2, ("dyn/",))
    assert again.fields == found.fields


@pytest.mark.parametrize(
    ("last", "terminal", "terminated", "truncated"),
    [(False, False, False, False), (True, False, False, True), (True, True, True, False),
     (False, True, False, False)],
)  # fmt: skip
def test_a_step_fills_the_part_of_its_worker(last, terminal, terminated, truncated):
    found = layout()
    step = STEP | {"is_last": np.bool_(last), "is_terminal": np.bool_(terminal)}
    step["image"] = np.full((4, 4), 7, np.uint8)
    row = found.row(step, 1)
    assert row["mask"].tolist() == [False, True]
    assert row["terminated"].tolist() == [False, terminated]
    assert row["truncated"].tolist() == [False, truncated]
    assert row["reward"].tolist() == [0.0, 2.0]
    assert (row["observation"]["image"][1] == 7).all()
    assert row["observation"]["log"]["score"][1] == 0.5
    assert row["action"].shape == (2, 3)
    assert row["dyn__deter"].shape == (2, 5)
    (one) = layout(1).row(step, 0)
    assert one["observation"]["image"].shape == (4, 4)
    assert one["terminated"] == terminated
    assert one["reward"] == 2.0
    less = {"a": np.zeros(2)}
    bare = layout(1, less).row(less, 0)
    assert (bare["reward"], bare["terminated"], bare["truncated"]) == (0.0, False, False)
    strange = {"reward": np.zeros(2)}
    assert layout(1, strange).row(strange, 0)["reward"] == 0.0


def test_steps_of_other_fields_are_refused():
    found = layout()
    found.check(STEP)
    found.check(STEP | {"reward": np.float64(1)})
    with pytest.raises(InvalidInputError, match="a step with the keys"):
        found.check({**STEP, "more": np.zeros(1)})
    with pytest.raises(ShapeError, match="image: shape"):
        found.check(STEP | {"image": np.zeros((4, 5), np.uint8)})
    with pytest.raises(DtypeError, match="image: uint8 expected, found float64"):
        found.check(STEP | {"image": np.zeros((4, 4))})


def test_a_batch_begins_an_episode_with_each_window_and_where_one_was_cut():
    found = layout()
    first = np.array([[False, False, True, False]])
    last = np.zeros((1, 4), bool)
    observation = {
        "image": np.zeros((1, 4, 4, 4)), "log": {"score": np.arange(4.0)[None]},
        "reward": np.zeros((1, 4)), "is_first": np.array([[0, 0, 0, 1]]), "is_last": last,
        "is_terminal": np.zeros((1, 4)),
    }  # fmt: skip

    class Batch(dict):
        def __getattr__(self, name):
            return self[name]

    batch = Batch(
        observation=observation, action="action", dyn__deter="deter", is_first=first,
        id=np.arange(4)[None],
    )  # fmt: skip
    data = found.data(batch)
    assert set(data) == {*STEP, "stepid"}
    assert (data["action"], data["dyn/deter"]) == ("action", "deter")
    assert data["log/score"].tolist() == [[0, 1, 2, 3]]
    assert data["is_first"].tolist() == [[1, 0, 1, 1]]
    assert data["is_last"].tolist() == [[False, True, True, False]]
    assert row_ids(data["stepid"]).tolist() == [[0, 1, 2, 3]]
