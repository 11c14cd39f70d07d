"""Goals of episodes beside lists of their rows; of returns to go see test_returns_to_go.py."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.sampling.episode_kernels import choose_goals
from diskreplay.sampling.row_index import RowIndex
from tests.effort import effort

FUTURE, FINAL, EPISODE = range(3)
GAMMA = 0.75
# What a row is: T terminated, X truncated, F a final row behind it, C the episode is cut behind it.
KINDS = st.sampled_from(["", "", "", "", "T", "X", "TF", "XF", "CF", "C"])


class Rows:
    """Rows of some envs in an index, and in lists: (episode, reward, whether it is final)."""

    def __init__(self, envs, capacity):
        self.index = RowIndex(capacity, envs, 1, 1, GAMMA)
        self.envs, self.capacity = envs, capacity
        self.rows = [[] for _ in range(envs)]
        self.episode, self.step, self.over = [0] * envs, [0] * envs, set()

    def put(self, env, step, flags, reward, is_final):
        self.index.append(
            np.array([env]), np.array([step], np.int32), np.array([flags], np.uint8),
            np.array([reward], np.float32),
        )  # fmt: skip
        self.rows[env].append((self.episode[env], reward, is_final))

    def add(self, env, kind, reward):
        flags = ("T" in kind) + 2 * ("X" in kind)
        self.put(env, self.step[env], flags, reward, False)
        self.step[env] += 1
        if "F" in kind:
            self.put(env, self.step[env], 4, 0.0, True)
        if kind:
            if kind != "C":
                self.over.add((env, self.episode[env]))
            self.episode[env] += 1
            self.step[env] = 0

    def retained(self, env):
        count = len(self.rows[env])
        return range(max(count - self.capacity, 0), count)

    def is_over(self, env, episode):
        return (env, episode) in self.over or episode != self.rows[env][-1][0]


def rows_of(data, most=25):
    envs = data.draw(st.integers(1, 3))
    rows = Rows(envs, data.draw(st.integers(4, 12)))
    return rows, data.draw(st.lists(st.tuples(st.integers(0, envs - 1), KINDS), max_size=most))


@settings(max_examples=effort(40, 120, 800))
@given(st.data(), st.sampled_from([FUTURE, FINAL, EPISODE]), st.booleans())
def test_goals_are_rows_of_the_episode_and_each_of_them_as_often(data, strategy, finished):
    rows, events = rows_of(data)
    for number, (env, kind) in enumerate(events):
        rows.add(env, kind, float(number))
    ids, wanted = [], []
    for env in range(rows.envs):
        for row in rows.retained(env):
            episode, _reward, is_final = rows.rows[env][row]
            if is_final:
                continue
            its = [r for r in rows.retained(env) if rows.rows[env][r][0] == episode]
            later = [r for r in its if r > row]
            goals = {FUTURE: later, FINAL: later[-1:], EPISODE: its[1:]}[strategy]
            if not later or (finished and not rows.is_over(env, episode)):
                goals = []
            ids.append(row * rows.envs + env)
            wanted.append([r * rows.envs + env for r in goals])
    if not ids:
        return
    for uniform in (0.0, 0.3, 0.5, 0.999):
        found = np.empty(len(ids), np.int64)
        numbers = np.full(len(ids), uniform)
        choose_goals(*rows.index.state, np.array(ids), numbers, strategy, finished, found)
        for goal, goals in zip(found.tolist(), wanted, strict=True):
            assert goal == (goals[int(uniform * len(goals))] if goals else -1)
