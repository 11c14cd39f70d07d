"""What a row and a batch of ReAgent's buffers have, beside NumPy's casts and a table."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from diskreplay.compat.reagent.elements import ReplayElement  # noqa: E402
from diskreplay.compat.reagent.signature import Element, Signature  # noqa: E402
from diskreplay.errors import NotFiniteError  # noqa: E402
from diskreplay.naming import RESERVED  # noqa: E402


class Rows(Signature):
    """Only what `Signature` asks of a buffer."""

    def __init__(self, extras=(), *, reward=((), np.float32), action=((), np.int32), stack=2):
        self._describe_rows(
            ((3, 2), np.uint8), action, reward, [ReplayElement(*extra) for extra in extras],
            stack_size=stack, batch_size=5,
        )  # fmt: skip


FRAME = np.arange(6, dtype=np.uint8).reshape(3, 2)
EXTRAS = [("x", (2,), np.int8), ("seen", (), np.bool_)]


@pytest.mark.parametrize("size", [None, 7])
def test_the_elements_of_a_batch(size):
    rows, n = Rows([*EXTRAS, ("log_prob", (), np.float32)], action=((2,), np.float32)), size or 5
    found = rows.get_transition_elements(size)
    assert [tuple(element) for element in found] == [
        ("state", (n, 3, 2, 2), np.uint8),
        ("action", (n, 2), np.float32),
        ("reward", (n,), np.float32),
        ("next_state", (n, 3, 2, 2), np.uint8),
        ("next_action", (n, 2), np.float32),
        ("next_reward", (n,), np.float32),
        ("terminal", (n,), np.uint8),
        ("indices", (n,), np.int32),
        ("step", (n,), np.int32),
        ("x", (n, 2), np.int8),
        ("next_x", (n, 2), np.int8),
        ("seen", (n,), np.bool_),
        ("next_seen", (n,), np.bool_),
        ("log_prob", (n,), np.float32),
        ("next_log_prob", (n,), np.float32),
    ]
    assert all(type(element) is ReplayElement for element in found)


def test_the_elements_of_a_row():
    rows = Rows(EXTRAS, reward=((2,), np.float64))
    assert [tuple(element) for element in rows.get_storage_signature()] == [
        ("observation", (3, 2), np.uint8), ("action", (), np.int32), ("reward", (2,), np.float64),
        ("terminal", (), np.uint8), ("x", (2,), np.int8), ("seen", (), np.bool_),
    ]  # fmt: skip
    assert rows.get_add_args_signature() == rows.get_storage_signature()


@pytest.mark.parametrize(
    ("reward", "column"),
    [
        (((), np.float32), "reward"), (((), "float32"), "reward"), (((), np.float64), "reward_"),
        (((), np.int32), "reward_"), (((1,), np.float32), "reward_"),
    ],
)  # fmt: skip
def test_a_reward_that_the_stores_own_field_cannot_hold_is_kept_beside(reward, column):
    rows = Rows(reward=reward)
    assert {e.name: e.column for e in rows._signature}["reward"] == column
    assert rows._keeps_reward == (column == "reward_")


def test_no_two_columns_have_one_name_nor_one_of_the_stores():
    names = ["reward_", "Reward_", "id", "a b", "a_b", "A.B", "terminal", "1st", "mdp_id", "step"]
    rows = Rows([(name, (), np.int8) for name in names if name != "terminal"],
                reward=((2,), np.float32))  # fmt: skip
    columns = {e.name: e.column for e in rows._signature}
    assert len({column.lower() for column in columns.values()}) == len(columns)
    assert columns["reward"] == "reward_"
    assert columns["observation"] == "observation"
    assert columns["action"] == "action"
    assert columns["mdp_id"] == "mdp_id"
    ours = {columns[name].lower() for name in columns} - {"observation", "action"}
    assert not ours & RESERVED


def test_what_is_of_no_bytes_is_stored_as_a_zero():
    element = Element("user", (2, 0), np.dtype("f4"), "user")
    assert element.is_empty
    assert element.stored_as == ((), np.dtype("u1"))
    element = Element("user", (2, 1), np.dtype("f4"), "user")
    assert not element.is_empty
    assert element.stored_as == ((2, 1), np.dtype("f4"))


VALUES = {
    "observation": [FRAME, FRAME.tolist(), FRAME.astype(float), torch.from_numpy(FRAME)],
    "action": [3, np.int64(3), 3.0, True, np.array(3), torch.tensor(3)],
    "reward": [1, -2.5, np.float64(0.1), np.array(7, np.int8), torch.tensor(1.5),
               torch.tensor(1.5, requires_grad=True)],
    "terminal": [0, 1, True, False, np.bool_(True), 2, torch.tensor(1)],
    "x": [[1, 2], (3, 4), np.array([5.0, 6.0]), torch.tensor([7, 8])],
    "seen": [0, 1, True, np.bool_(False), 0.5],
}  # fmt: skip


@pytest.mark.parametrize("name", list(VALUES))
@pytest.mark.parametrize("by_name", [False, True])
def test_values_are_cast_as_numpys_are(name, by_name):
    rows = Rows(EXTRAS)
    for value in VALUES[name]:
        given = {each: values[0] for each, values in VALUES.items()} | {name: value}
        args = list(given.values())
        call = (args[:4], dict(list(given.items())[4:])) if by_name else (args, {})
        found = rows._fit(tuple(call[0]), call[1])
        assert len(found) == 6
        for element, one, other in zip(rows._signature, found, args, strict=True):
            plain = other.detach().numpy() if isinstance(other, torch.Tensor) else other
            expected = np.asarray(plain).astype(element.dtype)
            assert type(one) is np.ndarray
            assert (one.dtype, one.shape) == (element.dtype, element.shape)
            np.testing.assert_array_equal(one, expected)
        rows._check_add_types(*call[0], **call[1])


@pytest.mark.parametrize("terminal", [0.25, -0.5, 256, np.array(512), 1e-9])
def test_an_end_that_would_be_cast_to_0_is_one(terminal):
    try:
        found = Rows()._fit((FRAME, 0, 0.0, terminal), {})
    except OverflowError:
        pytest.fail("an int is cast as an array's is")
    assert found[3].dtype == np.uint8
    assert found[3].tolist() == 1


@pytest.mark.parametrize("action", [2**31, -(2**31) - 1, 2**40 + 5])
def test_a_large_int_is_cast_as_an_arrays_is(action):
    found = Rows()._fit((FRAME, action, 0.0, 0), {})
    assert found[1].tolist() == np.asarray(action).astype(np.int32).tolist()
    with pytest.raises(ValueError, match=r"arg action: 1000.* is too large"):
        Rows()._fit((FRAME, 10**30, 0.0, 0), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "says"),
    [
        ((FRAME, 0, 0.0, 0, [1, 2]), {}, ValueError, r"Add expects.*received 5 values and \[\]"),
        ((FRAME, 0, 0.0, 0, [1, 2], 0, 0), {}, ValueError, "received 7 values"),
        ((FRAME, 0, 0.0, 0), {"x": [1, 2]}, ValueError, r"received 4 values and \['x'\]"),
        ((FRAME, 0, 0.0, 0), {"x": [1, 2], "y": 0}, KeyError, "seen"),
        ((FRAME, 0, 0.0, 0, [1, 2]), {"x": [1, 2]}, KeyError, "seen"),
        ((FRAME[:2], 0, 0.0, 0, [1, 2], 0), {}, ValueError,
         r"arg observation has shape \(2, 2\), expected \(3, 2\)"),
        ((FRAME, [0], 0.0, 0, [1, 2], 0), {}, ValueError, "arg action has shape"),
        ((FRAME, 0, 0.0, 0, 1, 0), {}, ValueError, r"arg x has shape \(\), expected \(2,\)"),
        ((FRAME, 0, 0.0, 0, torch.zeros(3), 0), {}, ValueError, r"arg x has shape \(3,\)"),
        ((FRAME, 0, float("nan"), 0, [1, 2], 0), {}, NotFiniteError, "reward: nan found"),
        ((FRAME, 0, float("-inf"), 0, [1, 2], 0), {}, NotFiniteError, "reward: -inf found"),
    ],
)  # fmt: skip
def test_what_is_refused(args, kwargs, error, says):
    rows = Rows(EXTRAS)
    with pytest.raises(error, match=says):
        rows._fit(args, kwargs)
    with pytest.raises(error, match=says):
        rows._check_add_types(*args, **kwargs)


def test_a_reward_that_is_kept_beside_may_be_anything():
    rows = Rows(reward=((), np.float64))
    assert np.isnan(rows._fit((FRAME, 0, float("nan"), 0), {})[2])
    rows = Rows(reward=((2,), np.float32))
    assert rows._fit((FRAME, 0, [np.inf, 1], 0), {})[2].tolist() == [np.inf, 1]
