"""Windows with other goals, against a twin made of lists and the rules of docs/hindsight.md."""

import random

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay import errors

GOAL = Box(-1e9, 1e9, (1,), "float32")
SPACE = Dict({"achieved_goal": GOAL, "desired_goal": GOAL})
GAMMA = 0.5


def make(path, num_envs=1, kind=diskreplay.ReplayBuffer, **options):
    return kind(
        path, observation_space=SPACE, action_space=Discrete(3), capacity=60 * num_envs, seed=1,
        num_envs=num_envs, gamma=GAMMA, extras={"extra": ((), "float32")}, **options,
    )  # fmt: skip


class Recorded:
    """A buffer, and its rows in lists. What is achieved in a row is its id; what was wanted is
    minus the number of the episode."""

    def __init__(self, buffer, seed, steps=90):
        self.buffer, self.rng, self.envs = buffer, random.Random(seed), buffer.num_envs
        self.rows = [[] for _ in range(self.envs)]
        self.episode = [1] * self.envs
        for _ in range(steps):
            self.step()

    def seen(self, rows):
        one = {
            "achieved_goal": np.array(
                [[row * self.envs + env] for env, row in enumerate(rows)], np.float32
            ),
            "desired_goal": np.array([[-number] for number in self.episode], np.float32),
        }
        return {name: value[0] for name, value in one.items()} if self.envs == 1 else one

    def step(self):
        rng, counts = self.rng, [len(rows) for rows in self.rows]
        ends = [rng.choice(["", "", "", "", "term", "trunc", "cut"]) for _ in self.rows]
        finals = [rng.random() < 0.7 for _ in self.rows]
        reward = [float(rng.randrange(1, 9)) for _ in self.rows]
        flat = {
            "action": [0] * self.envs, "reward": np.float32(reward),
            "terminated": np.array([end == "term" for end in ends]),
            "truncated": np.array([end == "trunc" for end in ends]),
            "extra": np.float32([row * self.envs + env for env, row in enumerate(counts)]),
        }  # fmt: skip
        if self.envs == 1:
            flat = {name: value[0] for name, value in flat.items()}
            flat["next_observation"] = self.seen([counts[0] + 1]) if finals[0] else None
        else:
            flat |= {"next_observation": self.seen([n + 1 for n in counts]),
                     "next_observation_mask": np.array(finals)}  # fmt: skip
        self.buffer.add(self.seen(counts), **flat)
        for env, (rows, end, final) in enumerate(zip(self.rows, ends, finals, strict=True)):
            rows.append((self.episode[env], False, reward[env], end))
            if end in ("term", "trunc") and final:
                rows.append((self.episode[env], True, 0.0, ""))
            if end == "cut":
                self.buffer.end_episode(np.arange(self.envs) == env)
            self.episode[env] += end != ""

    def at(self, id_):
        row, env = divmod(int(id_), self.envs)
        rows = self.rows[env]
        return rows[row] if 0 <= row < len(rows) else None

    def follows(self, id_):
        """The row that a transition led to, if it is there."""
        here, after = self.at(id_), self.at(id_ + self.envs)
        return after is not None and after[0] == here[0]

    def goals(self, anchor, strategy, finished):
        row, env = divmod(int(anchor), self.envs)
        rows, episode = self.rows[env], self.rows[env][row][0]
        first = int(self.buffer.bounds[env, 0])
        same = [r for r, one in enumerate(rows) if one[0] == episode and r >= first]
        last = rows[same[-1]]
        over = same[-1] + 1 < len(rows) or last[1] or last[3] in ("term", "trunc")
        later = [r for r in same if r > row]
        if not later or (finished and not over):
            return set()
        chosen = {"future": later, "final": later[-1:], "episode": same[1:]}[strategy]
        return {r * self.envs + env for r in chosen}

    def value(self, id_, goal, reward):
        """What a transition earns with a goal; None if it is not known what it led to."""
        if not self.follows(id_):
            return None
        return reward(id_ + self.envs, goal, id_)

    def target(self, id_, n, earned, ended):
        """``(return, steps or 0 where it ended)`` of the n-step window, None if there is none."""
        total = 0.0
        for k in range(n):
            here = id_ + k * self.envs
            value = earned(here)
            if value is None:
                return None
            total += GAMMA**k * value
            if ended(here):
                return total, 0
            if self.at(here + self.envs)[1]:
                return total, k + 1
            if self.at(here)[3] == "trunc":
                return None
        return total, n


def compute_reward(achieved, goal, info):
    extra = info["extra"] if isinstance(info, dict) else 0.0
    return 1000.0 * (achieved == goal)[:, 0] + achieved[:, 0] % 7 - goal[:, 0] % 5 + extra % 3


def reward_of(achieved, goal, extra):
    return 1000.0 * (achieved == goal) + achieved % 7 - goal % 5 + extra % 3


def ends_at(achieved, goal, _info):
    return (achieved[:, 0] + goal[:, 0]) % 4 == 0


@pytest.mark.parametrize("number", range(12))
def test_windows_are_those_of_the_rules(tmp_path, number):
    rng = random.Random(number)
    options = {
        "ends": rng.choice(["inside", "shift", "pad"]), "burn_in": rng.choice([0, 0, 3]),
        "n_step": rng.choice([1, 2, 3]), "arrival": rng.random() < 0.5,
        "prioritized": rng.random() < 0.4, "seed": number,
    }  # fmt: skip
    asked = {
        "strategy": ["future", "final", "episode"][number % 3], "finished": rng.random() < 0.7,
        "info": ("extra",), "n_goals": rng.choice([1, 4]),
    }  # fmt: skip
    new_ends = rng.random() < 0.5
    with make(tmp_path / "replay", rng.choice([1, 1, 3]), stack_size=1 + number % 2) as buffer:
        recorded = Recorded(buffer, number)
        view = buffer.sequences(rng.choice([2, 4]), **options)
        again = view.hindsight(compute_reward, terminated=ends_at if new_ends else None, **asked)
        relabelled = 0
        for _ in range(12):
            batch = again.sample(10)
            plain = view.gather(batch.anchor)
            for window in range(10):
                if batch.relabelled[window]:
                    check_window(recorded, view, batch, window, asked, new_ends)
                    relabelled += 1
                else:
                    same_window(batch, plain, window)
            for name in ("id", "observed", "transition", "is_first", "begin", "step", "action"):
                assert (batch[name] == plain[name]).all()
            assert batch.relabelled.sum() <= int(10 * (1 - 1 / (1 + asked["n_goals"])))
        assert relabelled > 20


def same_window(batch, plain, window):
    for name in ("reward", "terminated", "learn", "returns", "discount", "target"):
        assert (batch[name][window] == plain[name][window]).all(), name
    shown = [
        one.observation["desired_goal"][window][one.observed[window]] for one in (batch, plain)
    ]
    assert (shown[0] == shown[1]).all()


def check_window(recorded, view, batch, window, asked, new_ends):
    shape, ids = view.options.window, batch.id[window]
    stacked = recorded.buffer.stack_size > 1
    shown = batch.observation["desired_goal"][window]
    shown = shown[:, -1, 0] if stacked else shown[:, 0]
    goal = shown[batch.observed[window]][0]
    assert (shown[batch.observed[window]] == goal).all()
    assert stacked or not shown[~batch.observed[window]].any()
    allowed = recorded.goals(batch.anchor[window], asked["strategy"], asked["finished"])
    assert int(goal) in allowed

    def earned(id_):
        return recorded.value(id_, goal, reward_of)

    def ended(id_):
        if new_ends and recorded.follows(id_):
            return (id_ + recorded.envs + goal) % 4 == 0
        return recorded.at(id_)[3] == "term"

    for position, id_ in enumerate(ids):
        if id_ < 0:
            assert batch.reward[window, position] == 0
            continue
        of = id_ - recorded.envs if shape.arrival else id_
        one = recorded.at(of)
        if one[1] or (shape.arrival and batch.is_first[window, position]):
            assert batch.reward[window, position] == 0
            continue
        value = earned(of)
        assert batch.reward[window, position] == (one[2] if value is None else value)
        assert batch.terminated[window, position] == ended(of)
        assert batch.is_terminal[window, position] == ended(of)
        assert batch.is_last[window, position] == (
            ended(of) or one[3] == "trunc" or not batch.transition[window, position]
        )
    for place in range(shape.length):
        position = shape.burn_in + place
        found = (batch.learn[window, position], batch.returns[window, place],
                 batch.discount[window, place], batch.target[window, place])  # fmt: skip
        expected = None
        if batch.transition[window, position]:
            expected = recorded.target(ids[position], shape.n_step, earned, ended)
        if expected is None:
            assert found == (False, 0, 0, -1)
        else:
            total, steps = expected
            assert found == (True, total, GAMMA**steps if steps else 0, position + steps)


def test_goals_are_chosen_evenly(tmp_path):
    with make(tmp_path / "replay") as buffer:
        for row in range(21):
            seen = {"achieved_goal": np.float32([row]), "desired_goal": np.float32([-1])}
            buffer.add(seen, 0, 0.0, False, row == 20, None, extra=0.0)
        again = buffer.sequences(2, seed=3).hindsight(compute_reward, n_goals=100)
        picked = []
        for _ in range(400):
            batch = again.sample(50)
            row = batch.anchor[batch.relabelled]
            goal = batch.observation["desired_goal"][batch.relabelled, 0, 0]
            picked += ((goal - row - 0.5) / (20 - row))[row < 15].tolist()
        assert abs(np.mean(picked) - 0.5) < 0.02


def test_the_reward_is_asked_for_once_a_batch(tmp_path):
    calls = []

    def counted(achieved, goal, info):
        calls.append((len(achieved), len(goal), info))
        return np.zeros(len(achieved))

    with make(tmp_path / "replay") as buffer:
        Recorded(buffer, 2)
        again = buffer.sequences(3).hindsight(counted)
        again.sample(32)
        ((size, goals, info),) = calls
        assert size == goals == len(info)
        assert set(map(str, info)) == {"{}"}


def test_a_run_is_resumed_with_the_same_goals(tmp_path):
    with make(tmp_path / "replay") as buffer:
        Recorded(buffer, 5)
        view = buffer.sequences(3, prioritized=True, name="goals")
        again = view.hindsight(compute_reward, info="extra")
        again.sample(8)
        buffer.save(tmp_path / "saved", 1)
        wanted = [again.sample(8) for _ in range(3)]
    with make(tmp_path / "other") as buffer:
        buffer.load(tmp_path / "saved")
        view = buffer.sequences(3, prioritized=True, name="goals")
        again = view.hindsight(compute_reward, info="extra")
        for one in wanted:
            other = again.sample(8)
            for name in ("anchor", "relabelled", "reward", "returns"):
                assert (one[name] == other[name]).all()


@pytest.mark.parametrize(
    ("windows", "asked", "said"),
    [
        ({"ends": "cross", "ahead": 0}, {}, "several episodes"),
        ({"returns_to_go": 1.0}, {}, "returns_to_go"),
        ({}, {"strategy": "past"}, "strategy"),
        ({}, {"achieved": "nothing"}, "achieved"),
        ({}, {"info": "nothing"}, "no extra"),
        ({}, {"n_goals": 0}, "n_goals"),
        ({}, {"terminated": 3}, "terminated"),
    ],
)
def test_bad_input_is_refused(tmp_path, windows, asked, said):
    with make(tmp_path / "replay") as buffer:
        view = buffer.sequences(3, **windows)
        with pytest.raises(errors.InvalidInputError, match=said):
            view.hindsight(compute_reward, **asked)


def test_rewards_that_are_none_are_refused_and_the_view_goes_on(tmp_path):
    with make(tmp_path / "replay") as buffer:
        Recorded(buffer, 5)
        view = buffer.sequences(3)
        with pytest.raises(errors.ShapeError, match="compute_reward"):
            view.hindsight(lambda achieved, goal, info: 0.0).sample(8)
        with pytest.raises(errors.NotFiniteError):
            view.hindsight(lambda achieved, goal, info: achieved[:, 0] * np.nan).sample(8)
        assert len(view.sample(8)) == 8
