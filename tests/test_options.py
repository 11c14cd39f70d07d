"""The options that say what a transition is: what is refused, and how many rows they need."""

import numpy as np
import pytest

from diskreplay.errors import CapacityError, InvalidInputError
from diskreplay.options import Options

GIVEN = {
    "num_envs": 2, "stack_size": 4, "stack_padding": "zero", "update_horizon": 3, "gamma": 0.9,
    "batch_size": 32, "max_transitions": None,
}  # fmt: skip


def options(**changes):
    return Options.checked(**GIVEN | changes)


def test_what_is_given_is_what_there_is():
    assert options()._asdict() == GIVEN
    made = options(gamma=np.float32(1), num_envs=np.int64(3), max_transitions=3)
    assert (made.gamma, made.num_envs, made.max_transitions) == (1.0, 3, 3)
    assert type(made.gamma) is float
    assert options(gamma=0).gamma == 0.0
    assert options(stack_padding="reset").stack_padding == "reset"
    described = made.describe()
    assert described == {n: v for n, v in made._asdict().items() if n != "num_envs"}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("num_envs", 0), ("stack_size", 0), ("stack_size", 1.5), ("stack_size", (1 << 20) + 1),
        ("update_horizon", 0), ("update_horizon", (1 << 20) + 1), ("batch_size", 0),
        ("batch_size", None), ("gamma", -0.1), ("gamma", 1.01), ("gamma", float("nan")),
        ("gamma", "0.9"), ("stack_padding", "ones"), ("stack_padding", None),
        ("max_transitions", 0), ("max_transitions", 1.5),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_its_name(name, wrong):
    with pytest.raises(InvalidInputError, match=f"^{name}"):
        options(**{name: wrong})


def test_each_env_has_a_transition_at_least():
    assert options(max_transitions=2).transitions_per_env == 1
    assert options(max_transitions=7).transitions_per_env == 3
    assert options().transitions_per_env is None
    with pytest.raises(CapacityError, match="one for each env expected, 2, found 1"):
        options(max_transitions=1)


@pytest.mark.parametrize(("envs", "most", "stack"), [(1, 1, 1), (2, 7, 4), (3, 30, 2)])
def test_rows_are_kept_for_the_shortest_episodes_that_there_are(envs, most, stack):
    """Each transition of an env with a final row, the frames before the oldest, and the newest
    before the oldest leaves."""
    made = options(num_envs=envs, max_transitions=most, stack_size=stack)
    each = most // envs
    worst = [*["frame"] * (stack - 1), *["transition", "final"] * each, *["transition", "final"]]
    assert made.rows_kept(None) >= envs * len(worst)
    assert made.rows_kept(None) <= envs * (len(worst) + 1)
    assert made.rows_kept(5) == 5
    assert options().rows_kept(None) is None


def test_a_capacity_holds_a_stack_and_a_window_of_each_env():
    made = options()  # two envs, 4 + 3 rows
    made.check_capacity(None)
    made.check_capacity(14)
    for small in (13, 1):
        with pytest.raises(CapacityError, match="at least 14"):
            made.check_capacity(small)
