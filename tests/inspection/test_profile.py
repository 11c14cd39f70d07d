"""Figures of fields, and values part by part."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.inspection import profile
from diskreplay.inspection.profile import action_counts, profile_of, values_of


def make_buffer(path, num_envs=1, capacity=None):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(-np.inf, np.inf, (2,), np.float32), action_space=Discrete(50),
        capacity=capacity, num_envs=num_envs, extras={"big": ((), np.int64)},
    )  # fmt: skip


def test_values_whose_sum_is_no_number(tmp_path, monkeypatch):
    """Also where they come after a part of small ones."""
    monkeypatch.setattr(profile, "_PART_BYTES", 64)
    monkeypatch.setattr(profile, "_LEAST_ROWS", 4)
    largest = np.finfo(np.float64).max
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-np.inf, np.inf, (), np.float64),
        action_space=Discrete(2), capacity=None,
        extras={"top": ((), np.float64), "both": ((), np.float64)},
    ) as buffer:  # fmt: skip
        for row in range(20):
            large = 1.6e308 if row >= 10 else 1.0
            buffer.add(large, 0, 0.0, False, False, top=largest, both=largest * (-1) ** row)
        found = profile_of(buffer)
    assert found["observation"].mean == pytest.approx(0.8e308, rel=1e-12)
    assert found["top"].mean == pytest.approx(largest, rel=1e-12)
    assert found["both"].mean == 0.0


@pytest.mark.costly
@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(width=32), st.integers(0, 49), st.floats(-9, 9, width=32), st.booleans()
        ),
        min_size=1, max_size=30,
    ),
    part=st.sampled_from([64, 1 << 22]),
)  # fmt: skip
def test_figures_are_those_of_all_values(tmp_path_factory, rows, part):
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(profile, "_PART_BYTES", part)
        patch.setattr(profile, "_LEAST_ROWS", 4)
        with make_buffer(tmp_path_factory.mktemp("store") / "replay") as buffer:
            for x, action, reward, last in rows:
                buffer.add([x, 0.0], action, reward, last, False, [x, 1.0], big=2**40)
            found = profile_of(buffer)
    first, second = [], []
    for x, _action, _reward, last in rows:
        first += [x, x] if last else [x]
        second += [0.0, 1.0] if last else [0.0]
    check(found["observation"], np.array([first, second], np.float32))
    check(found["action"], np.array([action for _, action, _, _ in rows]))
    check(found["reward"], np.array([reward for _, _, reward, _ in rows], np.float32))
    check(found["terminated"], np.array([last for *_, last in rows]))
    check(found["big"], np.full(len(rows), 2**40))
    check(found["is_final"], np.array(second, bool))
    assert found["observation"].rows == len(first)
    assert found["action"].rows == len(rows)


def check(found, values):
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    assert found.not_finite == values.size - finite.size
    assert found.zeros == (values == 0).mean()
    if len(finite):
        assert (found.min, found.max) == (finite.min(), finite.max())
        assert found.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-30)
    else:
        assert found.min is found.max is found.mean is None


def test_nothing_is_nothing(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        found = profile_of(buffer)["reward"]
        assert (found.rows, found.min, found.max, found.mean, found.zeros) == (0, *[None] * 4)
        assert action_counts(buffer) == {"action": {}}


def fill(buffer, rows):
    """`rows` rows of each env; ``big`` is the row's id."""
    for env in range(buffer.num_envs):
        number = np.arange(rows)
        buffer.extend(
            {
                "observation": np.zeros((rows, 2), np.float32), "action": number % 50,
                "reward": np.zeros(rows, np.float32), "terminated": number % 100 == 98,
                "truncated": np.zeros(rows, bool), "step": (number % 100).astype(np.int32),
                "is_final": number % 100 == 99, "big": number * buffer.num_envs + env,
            },
            env,
        )  # fmt: skip


def test_a_sample_is_spread_over_time(tmp_path):
    with make_buffer(tmp_path / "replay", num_envs=2) as buffer:
        fill(buffer, 50_000)
        found = profile_of(buffer, most_bytes=80_000)["big"]
        assert 5_000 < found.rows <= 10_000
        assert found.min < 1_000
        assert found.max > 95_000
        assert abs(found.mean - 50_000) < 2_000
        every = profile_of(buffer, most_bytes=None)["big"]
        assert every.rows == 2 * 50_000 - 2 * 500


@pytest.mark.parametrize(("most_bytes", "least"), [(1 << 20, 2000), (8_000, 800)])
def test_a_sample_of_many_envs_takes_what_there_is_room_for(tmp_path, most_bytes, least):
    with make_buffer(tmp_path / "replay", num_envs=20) as buffer:
        fill(buffer, 100)
        found = np.concatenate([*values_of(buffer, "big", most_bytes=most_bytes, finals=True)])
        assert least <= len(found) <= max(1200, least)
        assert len(set(found % 20)) >= 10


def test_values_leave_final_rows_out_unless_asked(tmp_path):
    with make_buffer(tmp_path / "replay", num_envs=2) as buffer:
        fill(buffer, 250)
        ids = np.arange(500)
        expected = np.concatenate([ids[0::2], ids[1::2]])
        np.testing.assert_array_equal(
            np.concatenate([*values_of(buffer, "big", finals=True)]), expected
        )
        np.testing.assert_array_equal(
            np.concatenate([*values_of(buffer, "big")]), expected[expected // 2 % 100 != 99]
        )


def test_counts(tmp_path, monkeypatch):
    with make_buffer(tmp_path / "replay") as buffer:
        fill(buffer, 100)  # the last is a final row, of what would be action 49
        assert action_counts(buffer) == {"action": {**dict.fromkeys(range(49), 2), 49: 1}}
        monkeypatch.setattr(profile, "_MOST_VALUES", 49)
        assert action_counts(buffer) == {"action": None}
