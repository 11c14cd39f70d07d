"""Goals that were reached later: which rows they come from, how evenly, and what is computed."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.errors import EmptyBufferError, InvalidInputError, NotFiniteError, ShapeError

GOAL = Box(-1e9, 1e9, (1,), "float32")
SPACE = Dict({"achieved_goal": GOAL, "desired_goal": GOAL, "seen": GOAL})


def make_buffer(path, kind=diskreplay.ReplayBuffer, **options):
    options = {"capacity": 100, "extras": {"weight_of": ((), "float32")}, "seed": 1} | options
    return kind(path, observation_space=SPACE, action_space=Discrete(3), **options)


def observation(number, desired=-1.0):
    """What is achieved says which row it is."""
    return {
        "achieved_goal": np.float32([number]), "desired_goal": np.float32([desired]),
        "seen": np.float32([2 * number]),
    }  # fmt: skip


class Recorder:
    """One env's rows in a list: (episode, whether it is over or None while it is open)."""

    def __init__(self, buffer):
        self.buffer, self.rows, self.over = buffer, [], set()
        self.episode = 0

    def play(self, steps, *, terminated=False, truncated=False, final=True, ends=True):
        for i in range(steps):
            last = ends and i == steps - 1
            self.buffer.add(
                observation(len(self.rows)), 0, -1.0, last and terminated, last and truncated,
                observation(len(self.rows) + 1) if final else None, weight_of=len(self.rows),
            )  # fmt: skip
            self.rows.append(self.episode)
        if ends:
            if (terminated or truncated) and final:
                self.rows.append(self.episode)
            elif not (terminated or truncated):
                self.buffer.end_episode()
            self.over.add(self.episode)
            self.episode += 1

    def goals(self, row, strategy, finished):
        """Rows that may give the goal of a transition."""
        first = int(self.buffer.bounds[0, 0])
        same = [t for t, e in enumerate(self.rows) if e == self.rows[row] and t >= first]
        later = [t for t in same if t > row]
        ended = self.rows[row] in self.over
        # A cut episode is known to be over by the row behind it.
        if ended and same[-1] == len(self.rows) - 1:
            ended = not self.cut_last
        if not later or (finished and not ended):
            return []
        return {"future": later, "final": later[-1:], "episode": same[1:]}[strategy]

    cut_last = False


def reward_of(achieved, desired, info):
    return -np.abs(achieved - desired)[:, 0]


def recorded(buffer):
    rows = Recorder(buffer)
    rows.play(30, truncated=True)
    rows.play(9, terminated=True)
    rows.play(20, terminated=True, final=False)
    rows.play(40)
    rows.play(1, terminated=True)
    rows.play(13, truncated=True)
    rows.play(6, ends=False)
    return rows


@pytest.mark.costly(2)
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("finished", [True, False])
def test_goals_are_of_rows_that_may_give_them(tmp_path, strategy, finished):
    with make_buffer(tmp_path / "replay") as buffer:
        rows = recorded(buffer)
        view = buffer.hindsight(reward_of, strategy=strategy, n_goals=4, finished=finished, seed=2)
        found = {}
        for _ in range(60):
            batch = view.sample(100)
            assert not batch.relabelled[80:].any()
            for i in range(100):
                row = int(batch.id[i])
                may = rows.goals(row, strategy, finished)
                goal = float(batch.observation["desired_goal"][i, 0])
                assert (
                    batch.next_observation["desired_goal"][i, 0] == goal or not batch.relabelled[i]
                )
                assert batch.observation["achieved_goal"][i, 0] == row
                assert batch.observation["seen"][i, 0] == 2 * row
                if not batch.relabelled[i]:
                    assert goal == -1
                    assert batch.reward[i] == -1
                    assert i >= 80 or not may
                    continue
                assert goal in may
                found.setdefault(row, set()).add(int(goal))
                assert batch.reward[i] == -abs(row + 1 - goal)
                assert not batch.terminated[i] or rows.rows[row] in rows.over
        assert len(found) > 60
        if strategy == "final":
            assert all(len(goals) == 1 for goals in found.values())


@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_goals_are_even(tmp_path, strategy):
    with make_buffer(tmp_path / "replay") as buffer:
        rows = Recorder(buffer)
        rows.play(10, truncated=True)
        view = buffer.hindsight(reward_of, strategy=strategy, seed=2)
        batches = [view.sample(500) for _ in range(20)]
        ids = np.concatenate([batch.id[batch.relabelled] for batch in batches])
        goals = np.concatenate(
            [batch.observation["desired_goal"][batch.relabelled, 0] for batch in batches]
        )
        of_third = goals[ids == 3]
        may = rows.goals(3, strategy, True)
        counts = np.array([(of_third == goal).sum() for goal in may])
        expected = len(of_third) / len(may)
        assert counts.sum() == len(of_third) > 500
        # Fair draws exceed it once in a thousand: 6 and 9 degrees of freedom.
        assert np.square(counts - expected).sum() / expected < {7: 22.46, 10: 27.88}[len(may)]


def test_a_part_that_is_left_of_an_episode(tmp_path):
    """Goals are of retained rows, and of no other episode that `extend` put before."""
    with make_buffer(tmp_path / "replay", capacity=20) as buffer:
        rows = Recorder(buffer)
        rows.play(30, truncated=True)
        view = buffer.hindsight(reward_of, strategy="episode", seed=2)
        for _ in range(20):
            batch = view.sample(50)
            goals = batch.observation["desired_goal"][batch.relabelled, 0]
            assert goals.min() >= buffer.bounds[0, 0] + 1
            assert goals.max() <= 30


def test_by_priority_any_part_of_a_batch_is_relabelled(tmp_path):
    with make_buffer(
        tmp_path / "replay", kind=diskreplay.PrioritizedReplayBuffer, alpha=1.0
    ) as buffer:
        recorded(buffer)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, np.where(ids % 2, 3.0, 1.0))
        view = buffer.hindsight(reward_of, n_goals=1, finished=False, seed=1)
        share = np.zeros(64)
        odd = 0
        for _ in range(200):
            batch = view.sample(64, beta=0.5)
            assert batch.relabelled.sum() <= 32
            share += batch.relabelled
            odd += (batch.id % 2).sum()
            assert batch.weight.max() == 1
        assert share[:32].sum() / share.sum() == pytest.approx(0.5, abs=0.05)
        wanted = 3 * (ids % 2).sum() / (3 * (ids % 2).sum() + (ids % 2 == 0).sum())
        assert odd / 12800 == pytest.approx(wanted, abs=0.02)


def test_info_and_termination(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        recorded(buffer)
        calls = []

        def reward(achieved, desired, info):
            calls.append(info)
            return info["weight_of"]

        view = buffer.hindsight(
            reward, info="weight_of", seed=2,
            terminated=lambda achieved, desired, info: (achieved == desired)[:, 0],
        )  # fmt: skip
        batch = view.sample(64)
        there = batch.relabelled
        assert len(calls) == 1
        np.testing.assert_array_equal(batch.reward[there], batch.weight_of[there])
        reached = batch.next_observation["achieved_goal"] == batch.observation["desired_goal"]
        np.testing.assert_array_equal(batch.terminated[there], reached[there, 0])
        wanted = np.where(reached[there, 0], 0, np.float32(0.99))
        np.testing.assert_array_equal(batch.discount[there], wanted)
        assert reached[there].any()
        assert not reached[there].all()
        plain = []
        buffer.hindsight(lambda a, d, info: plain.append(info) or np.zeros(len(a))).sample(10)
        assert set(map(type, plain[0])) == {dict}


def test_the_buffers_generator_is_used_and_saved(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        recorded(buffer)
        view = buffer.hindsight(reward_of)
        view.sample(32)
        buffer.save(tmp_path / "saved", 1)
        wanted = [view.sample(32).observation["desired_goal"].tolist() for _ in range(3)]
        buffer.load(tmp_path / "saved", 1)
        assert [view.sample(32).observation["desired_goal"].tolist() for _ in range(3)] == wanted
        with diskreplay.open(tmp_path / "saved" / "replay_ckpt.1") as reader:
            again = reader.hindsight(reward_of)
            assert again.sample(32).observation["desired_goal"].tolist() == wanted[0]


def test_stacks_have_the_goal_in_each_frame(tmp_path):
    with make_buffer(tmp_path / "replay", stack_size=3) as buffer:
        recorded(buffer)
        batch = buffer.hindsight(reward_of, seed=2).sample(64)
        there = batch.relabelled
        goals = batch.observation["desired_goal"][there]
        assert goals.shape[1:] == (3, 1)
        assert (goals == goals[:, -1:]).all()
        after = batch.next_observation["achieved_goal"][there, -1]
        np.testing.assert_array_equal(batch.reward[there], -np.abs(after - goals[:, -1])[:, 0])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"strategy": "past"}, "'future', 'final' or 'episode'"),
        ({"n_goals": 0}, "n_goals"),
        ({"achieved": "goal"}, "achieved_goal, desired_goal, seen"),
        ({"info": ["nothing"]}, "weight_of"),
        ({"terminated": 3}, "terminated: a function"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, match):
    with make_buffer(tmp_path / "replay") as buffer:
        with pytest.raises(InvalidInputError, match=match):
            buffer.hindsight(reward_of, **options)
        with pytest.raises(InvalidInputError, match="a function"):
            buffer.hindsight(None)


def test_what_cannot_be_relabelled(tmp_path):
    with make_buffer(tmp_path / "long", update_horizon=3) as buffer:
        with pytest.raises(InvalidInputError, match="update_horizon=3"):
            buffer.hindsight(reward_of)
    with diskreplay.ReplayBuffer(
        tmp_path / "flat", observation_space=GOAL, action_space=Discrete(2), capacity=10
    ) as buffer:
        with pytest.raises(InvalidInputError, match="a Dict"):
            buffer.hindsight(reward_of)
    with make_buffer(tmp_path / "replay") as buffer:
        view = buffer.hindsight(reward_of)
        with pytest.raises(EmptyBufferError):
            view.sample()
        recorded(buffer)
        with pytest.raises(ShapeError, match="compute_reward"):
            buffer.hindsight(lambda *given: 0.0).sample(10)
        with pytest.raises(NotFiniteError):
            buffer.hindsight(lambda a, d, info: np.full(len(a), np.nan)).sample(10)


def test_when_an_episode_counts_as_over(tmp_path):
    """As docs/hindsight.md has it."""
    goal = Box(-1e6, 1e6, (1,), np.float32)
    space = Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})

    def seen(value):
        return {name: np.array([value], np.float32) for name in space.spaces}

    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=space, action_space=Discrete(2), capacity=100, seed=1
    ) as buffer:
        view = buffer.hindsight(lambda reached, wanted, info: -1.0 * (reached != wanted).any(-1))
        found = []
        for call in (
            lambda: [buffer.add(seen(i), 0, 0.0, False, False) for i in range(4)],
            lambda: buffer.add_frame(seen(4)),
            lambda: buffer.add(seen(5), 0, 0.0, False, False),
            lambda: buffer.end_episode(),
            lambda: buffer.add(seen(6), 0, 0.0, False, False),
        ):
            call()
            found.append(bool(view.sample(50).relabelled.any()))
        assert found == [False, True, False, False, True]
