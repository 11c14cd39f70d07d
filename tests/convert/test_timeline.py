"""All rows in the order of time, beside loops over them."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.convert.timeline import returns_to_go, timeline_of


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
def test_returns_to_go_are_those_of_a_loop(gamma):
    rng = np.random.default_rng(3)
    for _ in range(100):
        lengths = rng.integers(1, 40, rng.integers(0, 6))
        episode = np.repeat(rng.permutation(len(lengths)), lengths)
        reward = rng.normal(size=len(episode)).astype(np.float32)
        expected = np.zeros(len(episode))
        for at in reversed(range(len(episode))):
            goes_on = at + 1 < len(episode) and episode[at + 1] == episode[at]
            expected[at] = reward[at] + (gamma * expected[at + 1] if goes_on else 0.0)
        found = returns_to_go(reward, episode, gamma)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_huge_reward_spoils_no_other_episode():
    found = returns_to_go(np.array([1e300, 1.0, 2.0]), np.array([0, 1, 1]), 1.0)
    assert found.tolist() == [1e300, 3.0, 2.0]


def test_rows_of_many_envs_are_those_that_a_list_has(tmp_path):
    envs, rng = 3, np.random.default_rng(1)
    rows = [[] for _ in range(envs)]  # (episode, step, reward, terminated, truncated, is_final)
    episode, step = list(range(envs)), [0] * envs
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-1e9, 1e9, (1,)), action_space=Discrete(2),
        capacity=None, num_envs=envs,
    ) as buffer:  # fmt: skip
        for t in range(60):
            reward = rng.integers(0, 9, envs).astype(np.float32)
            ends = rng.choice(3, envs, p=[0.8, 0.1, 0.1])
            finals = (ends > 0) & (rng.random(envs) < 0.6)
            seen = np.full((envs, 1), t, np.float32)
            buffer.add(seen, np.zeros(envs, int), reward, ends == 1, ends == 2, seen,
                       next_observation_mask=finals)  # fmt: skip
            for env in range(envs):
                done = [bool(ends[env] == 1), bool(ends[env] == 2)]
                rows[env].append((episode[env], step[env], float(reward[env]), *done, False))
                step[env] += 1
                if finals[env]:
                    rows[env].append((episode[env], step[env], 0.0, False, False, True))
                if ends[env]:
                    episode[env], step[env] = max(episode) + 1, 0
        found = timeline_of(buffer, gamma=0.5)
    expected = {row * envs + env: r for env in range(envs) for row, r in enumerate(rows[env])}
    last = {env: rows[env][-1][0] for env in range(envs)}
    assert sorted(found.id.tolist()) == found.id.tolist()
    assert set(expected) - set(found.id.tolist()) == set()
    numbers = {}
    for at, id in enumerate(found.id.tolist()):
        number, *facts = expected[id]
        assert numbers.setdefault(number, found.episode[at]) == found.episode[at]
        assert [found.step[at], found.reward[at], found.terminated[at], found.truncated[at],
                found.is_final[at]] == facts  # fmt: skip
        following = expected.get(id + envs)
        has_final = following is not None and following[0] == number and following[5]
        assert found.final_id[at] == (id + envs if has_final else -1)
        rest = [r for r in rows[id % envs][id // envs :] if r[0] == number]
        assert found.return_to_go[at] == sum(0.5**k * r[2] for k, r in enumerate(rest))
    assert len(set(numbers.values())) == len(numbers) >= len(last)
    apart = found.finals_apart()
    assert set(found.id) - set(apart.id) == set(found.final_id[found.final_id >= 0])
    assert not found.transitions().is_final.any()


def test_a_frame_that_begins_the_next_episode_is_no_final_row_of_the_one_before(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-1, 1, (1,)), action_space=Discrete(2),
        capacity=None,
    ) as buffer:  # fmt: skip
        buffer.add([0.0], 0, 1.0, True, False)
        buffer.add_frame([0.5])
        buffer.add([0.0], 0, 1.0, True, False, [0.1])
        found = timeline_of(buffer)
    assert found.is_final.tolist() == [False, True, False, True]
    assert found.final_id.tolist() == [-1, -1, 3, -1]
    assert found.episode.tolist() == [0, 1, 1, 1]
