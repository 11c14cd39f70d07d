"""N-step rows of cpprb, beside loops that follow the API's words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.compat.cpprb import NstepBuffer, PrioritizedReplayBuffer, ReplayBuffer
from diskreplay.errors import NotFiniteError

NSTEP = {"size": 3, "rew": "rew"}
ENV = {"obs": {}, "rew": {"shape": 2}, "next_obs": {}, "done": {}}


def windows(steps, n, gamma, *, ended, exact):
    """The rows of an episode's steps; those with a whole window only, unless it has ended."""
    rows = []
    for i in range(len(steps)):
        window = steps[i : i + n]
        whole = len(window) == n
        if not whole and not ended:
            break
        reward, done = np.zeros(2), False
        for j, step in enumerate(window):
            if not done:
                reward = reward + gamma**j * np.asarray(step["rew"])
            counts = exact or n == 1 or not (whole and j == n - 1)
            done = done or (bool(step["done"]) and (counts or j < n - 1))
        rows.append((steps[i]["obs"], reward, window[-1]["next_obs"], float(done)))
    return rows


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    size=st.integers(2, 9),
    exact=st.booleans(),
    prioritized=st.booleans(),
    parts=st.lists(
        st.tuples(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=8), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    singly=st.booleans(),
)
def test_rows(n, size, exact, prioritized, parts, singly):
    nstep = {"size": n, "rew": "rew", "gamma": 0.5, "next": ["next_obs"], "exact_done": exact}
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    number, before, steps = 0, [], []
    with kind(size, ENV, Nstep=nstep) as buffer:
        assert buffer.is_Nstep()
        for dones, over in parts:
            more = []
            for done in dones:
                more.append({"obs": number, "rew": [number, -1], "next_obs": -number, "done": done})
                number += 1
            known = len(windows(steps, n, 0.5, ended=False, exact=exact))
            steps += more
            now = windows(steps, n, 0.5, ended=False, exact=exact)
            slots = []
            for some in [[s] for s in more] if singly else [more]:
                slots.append(buffer.add(**{k: [s[k] for s in some] for k in some[0]}))
            first = (len(before) + known) % size
            stored = [slot for slot in slots if slot is not None]
            assert stored[:1] == ([first] if len(now) > known else [])
            if over:
                buffer.on_episode_end()
                before += windows(steps, n, 0.5, ended=True, exact=exact)
                steps, now = [], []
                assert buffer.get_current_episode_len() == 0
            by_slot = {i % size: row for i, row in enumerate(before + now)}
            found = buffer.get_all_transitions()
            assert len(found["obs"]) == len(by_slot)
            for slot, (obs, reward, next_obs, done) in by_slot.items():
                assert found["obs"][slot] == obs
                np.testing.assert_allclose(found["rew"][slot], reward, rtol=1e-6)
                assert found["next_obs"][slot] == next_obs
                assert found["done"][slot] == done


def test_a_terminal_nth_step_is_not_done_unless_asked_for():
    for exact, expected in ((False, [0, 1, 1]), (True, [1, 1, 1])):
        with ReplayBuffer(9, {"done": {}}, Nstep={"size": 3, "exact_done": exact}) as buffer:
            buffer.add(done=[0, 0, 1])
            buffer.on_episode_end()
            assert buffer.get_all_transitions()["done"].ravel().tolist() == expected


def test_a_truncated_episode_keeps_its_last_next_value():
    nstep = {"size": 3, "next": "next_obs"}
    with ReplayBuffer(9, {"next_obs": {}, "done": {}}, Nstep=nstep) as buffer:
        for i in range(4):
            buffer.add(next_obs=10 + i, done=0)
        buffer.on_episode_end()
        buffer.on_episode_end()
        assert buffer.get_all_transitions()["next_obs"].ravel().tolist() == [12, 13, 13, 13]


def test_next_of_keeps_its_next_column():
    with ReplayBuffer(9, {"obs": {}, "done": {}}, next_of="obs", Nstep={"size": 2}) as buffer:
        buffer.add(obs=[1, 2, 3], next_obs=[4, 5, 6], done=[0, 0, 0])
        found = buffer.get_all_transitions()
    assert found["obs"].ravel().tolist() == [1, 2]
    assert found["next_obs"].ravel().tolist() == [4, 5]


def test_done_is_needed():
    with ReplayBuffer(9, {"a": {}}, Nstep={"size": 3}) as buffer:
        with pytest.raises(KeyError):
            buffer.add(a=1)
    with ReplayBuffer(9, {"done": {}}, Nstep={"size": 3, "rew": "no such"}) as buffer:
        with pytest.raises(KeyError):
            buffer.add(done=1)
    for size in (0, 1.5, "3"):
        with pytest.raises(ValueError):
            ReplayBuffer(9, {"done": {}}, Nstep={"size": size})


def test_clear_forgets_steps_that_wait():
    with ReplayBuffer(9, {"a": {}, "done": {}}, Nstep={"size": 3}) as buffer:
        buffer.add(a=[1, 2, 3, 4], done=[0] * 4)
        buffer.clear()
        buffer.on_episode_end()
        assert buffer.get_stored_size() == 0
        assert buffer.add(a=[5, 6], done=[0, 0]) is None
        assert buffer.add(a=7, done=0) == 0
        assert buffer.get_all_transitions()["a"] == 5


def test_a_row_keeps_the_priority_of_its_first_step():
    options = {"Nstep": {"size": 3}, "alpha": 1.0, "eps": 0.0}
    with PrioritizedReplayBuffer(8, {"a": {}, "done": {}}, **options) as buffer:
        for i, priority in enumerate([1.0, 2.0, 4.0, None, 8.0]):
            buffer.add(a=i, done=0, priorities=priority)
            # Only what is stored counts as seen.
            assert buffer.get_max_priority() == [1, 1, 1, 2, 4][i]
        buffer.on_episode_end()
        assert buffer.get_max_priority() == 8
        batch = buffer.sample(200, beta=1.0)
        expected = 1 / np.array([1, 2, 4, 1, 8])[batch["indexes"].astype(int)]
        np.testing.assert_allclose(batch["weights"], expected, rtol=1e-5)


def test_the_steps_alone():
    steps = NstepBuffer({"obs": {}, "done": {}}, {"size": 3})
    assert steps.add(obs=[1, 2], done=[0, 0]) is None
    assert steps.add(obs=3, done=0)["obs"].tolist() == [[1]]
    assert steps.on_episode_end()["obs"].tolist() == [[2], [3]]
    nothing = steps.on_episode_end()
    assert {name: rows.shape for name, rows in nothing.items()} == {"obs": (0, 1), "done": (0, 1)}
    assert steps.get_Nstep_size() == 3


def test_half_precision_rewards_are_summed_as_the_originals():
    env = {"rew": {"dtype": np.float16}, "done": {}}
    steps = NstepBuffer(env, {"size": 3, "rew": "rew", "gamma": 0.99}, stack_compress="obs")
    found = steps.add(rew=[2.2, 2.2, 2.2], done=[0, 0, 0])["rew"]
    reward, gamma = np.full(1, 2.2, np.float16), np.float32(0.99)
    discounted = (reward * gamma).astype(np.float16)
    total = reward + discounted + (discounted * gamma).astype(np.float16)
    assert found.tolist() == [total.tolist()] != [[6.516]]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    "refused", [[np.nan], [np.inf], [3e38, 3e38], [1.0, 1.0, np.nan], [1.0, -np.inf]]
)
def test_a_reward_that_cannot_be_stored_is_refused_when_it_comes(kind, refused):
    """A step that waits would have every later one refused."""
    with kind(20, {"a": {}, "rew": {}, "done": {}}, Nstep={**NSTEP, "gamma": 1.0}) as buffer:
        buffer.add(a=0, rew=3e38, done=0)
        buffer.on_episode_end()
        with pytest.raises(NotFiniteError, match="a finite float32 expected"):
            buffer.add(a=range(len(refused)), rew=refused, done=[0] * len(refused))
        for a in range(5):
            buffer.add(a=a, rew=1.0, done=0)
        buffer.on_episode_end()
        found = buffer.get_all_transitions()
        assert found["a"].ravel().tolist() == [0, 0, 1, 2, 3, 4]
        assert found["rew"][1:].ravel().tolist() == [3, 3, 3, 2, 1]


def test_a_sum_may_be_of_rewards_whose_sizes_are_too_large_together():
    with ReplayBuffer(20, {"rew": {}, "done": {}}, Nstep={**NSTEP, "gamma": 1.0}) as buffer:
        for reward in (3e38, -3e38, 3e38, -3e38):
            buffer.add(rew=reward, done=0)
        buffer.on_episode_end()
        assert buffer.get_all_transitions()["rew"].ravel().tolist() == [
            np.float32(reward) for reward in (3e38, -3e38, 0, -3e38)
        ]


@pytest.mark.parametrize(("gamma", "size"), [(1e20, 20), (2.0, 1100), (-1e20, 20)])
def test_a_gamma_of_which_powers_overflow_refuses_no_zeros(gamma, size):
    with ReplayBuffer(
        20, {"rew": {}, "done": {}}, Nstep={"size": size, "rew": "rew", "gamma": gamma}
    ) as buffer:
        for reward in (0.0, 0.0):
            assert buffer.add(rew=reward, done=0) is None


def test_other_columns_may_have_any_numbers():
    with ReplayBuffer(
        20, {"r": {"dtype": np.float64}, "done": {}}, Nstep={**NSTEP, "rew": "r"}
    ) as buffer:
        for reward in (1.0, np.nan, 1.0):
            buffer.add(r=reward, done=0)
        assert np.isnan(buffer.get_all_transitions()["r"]).all()
