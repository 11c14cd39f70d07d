"""What a view of sequences may be asked for; all else is refused before anything is made."""

from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.errors import CapacityError, DiskReplayError, InvalidInputError
from diskreplay.sequence_options import SequenceOptions

BUFFER = SimpleNamespace(
    capacity=100, num_envs=2, stack_size=4, update_horizon=3, extras={"h": None, "c": None}
)
DEFAULT = {
    "length": 5, "burn_in": 0, "ahead": None, "stride": 1, "ends": "inside", "n_step": None,
    "batch_size": 32, "prioritized": False, "alpha": 0.6, "beta": 0.4, "eta": 0.9,
    "weight_normalization": "batch", "state": (), "fields": None, "arrival": False,
    "online": False, "finished": False, "returns_to_go": None,
}  # fmt: skip


def checked(buffer=BUFFER, **changed):
    return SequenceOptions.checked(buffer, buffer.capacity, buffer.extras, **{**DEFAULT, **changed})


def test_what_is_asked_for_is_what_is_meant():
    options = checked()
    assert options.window._asdict() == {
        "length": 5, "burn_in": 0, "ahead": 3, "stride": 1, "ends": "inside", "n_step": 3,
        "arrival": False, "finished": False,
    }  # fmt: skip
    options = checked(length=np.int64(2), burn_in=1e1, ahead=6, n_step=2, stride=np.float32(3))
    assert options.window[:4] == (2, 10, 6, 3)
    assert options.window.n_step == 2
    for name in options.window._fields:
        assert type(getattr(options.window, name)) in (int, str, bool)


@pytest.mark.parametrize("name", ["length", "stride", "n_step", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", np.array([3]), np.array([1, 2]), 1j])
def test_numbers_from_one_on(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: a positive integer expected"):
        checked(**{name: value})


@pytest.mark.parametrize("name", ["burn_in", "ahead", "online"])
def test_numbers_from_zero_on(name):
    where = {"ends": "cross"}
    for zero in (0, 0.0, -0.0, np.int8(0), np.float16(0)):
        options = checked(**where, **{name: zero})
        assert (options.online if name == "online" else getattr(options.window, name)) == 0
    bad = [-1, 0.5, np.nan, "0", (), [0], np.array([0]), np.array(0.0), np.array([0, 1]), 0j,
           np.array([]), np.complex64(0), 2**20 + 1]  # fmt: skip
    if name != "online":  # which is a flag too
        bad += [False, True, np.False_]
    if name != "ahead":  # where it means `n_step`
        bad.append(None)
    for value in bad:
        with pytest.raises(InvalidInputError, match=f"^{name}: "):
            checked(**where, **{name: value})


@pytest.mark.parametrize(
    ("online", "apart"), [(False, 0), (True, 1), (np.False_, 0), (np.True_, 1), (7, 7), (2.0, 2)]
)
def test_online_says_how_far_apart(online, apart):
    found = checked(online=online).online
    assert found == apart
    assert type(found) is int


@pytest.mark.parametrize(
    ("name", "most"), [("alpha", 1e9), ("eta", 1.0), ("returns_to_go", 1.0)]
)  # fmt: skip
def test_numbers_within_bounds(name, most):
    for value in (0, 0.0, most, np.float32(0.5), np.int64(1)):
        found = getattr(checked(**{name: value}), name)
        assert found == value
        assert type(found) is float
    for value in (-1e-9, most * 1.001, np.nan, np.inf, 10**400, True, np.True_, "1", [1.0],
                  np.array(1.0), 1j, np.complex64(0.5)):  # fmt: skip
        with pytest.raises(InvalidInputError, match=f"^{name}: a number "):
            checked(**{name: value})


@pytest.mark.parametrize(
    "changed",
    [
        {"ends": "outside"}, {"ends": None}, {"ends": np.array(["pad"])},
        {"weight_normalization": "all"}, {"beta": -1}, {"beta": None}, {"beta": np.nan},
        {"arrival": 2}, {"finished": None}, {"prioritized": "yes"}, {"finished": np.array([True])},
        {"length": 2**20 + 1}, {"n_step": 2**20 + 1},
        {"state": "x"}, {"state": [5]}, {"state": 5}, {"state": ["h", "x"]}, {"state": "action"},
        {"fields": "x"}, {"fields": 5}, {"fields": ["action", "reward"]},
    ],
)  # fmt: skip
def test_what_is_none_of_the_choices(changed):
    with pytest.raises(DiskReplayError, match=f"^{next(iter(changed))}: "):
        checked(**changed)


@pytest.mark.parametrize("ends", ["inside", "shift", "pad", "cross"])
def test_last_rows_are_bootstrapped_from_rows_of_the_window(ends):
    assert checked(ends=ends, ahead=3).window.ahead == 3
    if ends == "cross":
        assert checked(ends=ends, ahead=2).window.ahead == 2
    else:
        with pytest.raises(InvalidInputError, match=r"^ahead: 2 rows behind the learning part"):
            checked(ends=ends, ahead=2)


def test_a_window_fits_into_the_rows_that_an_env_keeps():
    """With the frames of the stack before its first row: 50 of the two envs' 100."""
    assert checked(length=44).window.positions == 47
    with pytest.raises(CapacityError, match="needs 51 rows, and each env keeps 50"):
        checked(length=45)
    endless = SimpleNamespace(**{**vars(BUFFER), "capacity": None})
    assert checked(endless, length=5000).window.length == 5000


def test_names_of_states_and_fields():
    options = checked(state="h", fields=["c", "action", "h"])
    assert options.state == ("h",)
    assert options.fields == ("c", "h", "action")
    assert checked(fields=()).fields == ()
    assert checked(fields="action").fields == ("action",)
    assert checked().fields is None
    with pytest.raises(InvalidInputError, match="there is no extra 'x'; there are: h, c"):
        checked(state=["x"])
    without = SimpleNamespace(**{**vars(BUFFER), "extras": {}})
    with pytest.raises(InvalidInputError, match="there are: none at all"):
        checked(without, fields=["h"])


def test_by_what_two_views_of_one_name_agree():
    def identity(**changed):
        return checked(**changed).identity

    assert identity() == identity(batch_size=5, beta=1.0, eta=0.1, state="h", alpha=0.1)
    for changed in (
        {"length": 6}, {"burn_in": 1}, {"ahead": 4}, {"stride": 2}, {"ends": "pad"}, {"n_step": 2},
        {"arrival": True}, {"finished": True}, {"prioritized": True}, {"online": True},
    ):  # fmt: skip
        assert identity(**changed) != identity()
    assert identity(prioritized=True) != identity(prioritized=True, alpha=0.1)
