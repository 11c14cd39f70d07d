"""Priorities that rows are added with, beside a list-based double."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from naive import NaiveReplayBuffer

import diskreplay
from diskreplay.errors import DtypeError, InvalidInputError, PriorityError, ShapeError

HORIZON = 3


class Double(NaiveReplayBuffer):
    """The twin, whose rows may have a priority from the beginning."""

    def __init__(self, **options):
        super().__init__(**options)
        self.given = {}

    def settle_priorities(self):
        largest = self.largest_priority
        self.priorities = {
            id: self.priorities.get(id, self.given.get(id, largest)) for id in self.sampleable_ids()
        }

    def record(self, env, step, priority=None):
        row = len(self.history[env])
        self.history[env].append(step)
        self._evict(env)
        if priority is not None:
            self.given[row * self.num_envs + env] = priority


def make(path, envs=1, capacity=40, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(-9e9, 9e9, (2,), "float32"), action_space=Discrete(9),
        capacity=capacity and capacity * envs, num_envs=envs, update_horizon=HORIZON, seed=4,
        **{"alpha": 0.7} | options,
    )  # fmt: skip


def twin(envs=1, capacity=40):
    return Double(
        num_envs=envs, capacity=capacity and capacity * envs, update_horizon=HORIZON, alpha=0.7,
        observation={"observation": ((2,), "float32")},
    )  # fmt: skip


def priority_of(env, row):
    """Of two rows in three, the other ones have none; 0 now and then."""
    return [None, 0.0, 2.5, None, 7.0, 0.01][(row * 7 + env * 3) % 6]


class Stream:
    """The rows of one env: episodes of 1 to 9 steps, each end of another kind."""

    def __init__(self, env, seed):
        self.env, self.row, self.step = env, 0, 0
        self.rng = np.random.default_rng([seed, env])
        self._begin()

    def _begin(self):
        self.step, self.length = 0, int(self.rng.integers(1, 10))
        self.end = ["terminated", "truncated", "truncated, final"][self.rng.integers(3)]

    def next(self):
        """The row, what follows it, and its priority."""
        ends = self.step == self.length - 1
        row = {
            "observation": np.full(2, self.row, np.float32), "action": self.row % 9,
            "reward": 0.5, "terminated": ends and self.end == "terminated",
            "truncated": ends and self.end != "terminated", "step": self.step, "is_final": False,
        }  # fmt: skip
        rows, given = [row], [priority_of(self.env, self.row)]
        if ends and self.end == "truncated, final":
            final = {name: np.zeros_like(value) for name, value in row.items()}
            rows.append(final | {"step": self.step + 1, "is_final": np.True_})
            given.append(None)
        self.row += len(rows)
        self.step += 1
        if ends:
            self._begin()
        return rows, given


def tell(double, env, rows, given):
    for row, priority in zip(rows, given, strict=True):
        double.record(env, dict(row), priority)
    double.settle_priorities()
    known = [priority for priority in given if priority is not None]
    double.largest_priority = max([double.largest_priority, *known])


def assert_same(buffer, double):
    double.settle_priorities()
    found = {}
    kept = buffer.tree.capacity // buffer.num_envs
    for id_ in range(max((len(h) for h in double.history), default=0) * buffer.num_envs):
        row, env = divmod(id_, buffer.num_envs)
        if double.first[env] <= row < len(double.history[env]):
            place = row % kept * buffer.num_envs + env
            found[id_] = buffer.tree.leaves[place]
    wanted = {id_: double.leaf(id_) for id_ in found}
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose(list(found.values()), list(wanted.values()), rtol=1e-12)
    buffer.tree.check()


@pytest.mark.parametrize("capacity", [40, 9, None])
def test_add_of_one_env(tmp_path, capacity):
    double, stream = twin(capacity=capacity), Stream(0, 1)
    with make(tmp_path / "a", capacity=capacity) as buffer:
        for _ in range(90):
            rows, given = stream.next()
            row = rows[0]
            buffer.add(
                row["observation"], row["action"], row["reward"], row["terminated"],
                row["truncated"], rows[1]["observation"] if len(rows) > 1 else None,
                priority=given[0],
            )  # fmt: skip
            tell(double, 0, rows, given)
            assert_same(buffer, double)


def test_add_of_many_envs(tmp_path):
    envs, rng = 3, np.random.default_rng(0)
    double, streams = twin(envs), [Stream(env, 2) for env in range(envs)]
    with make(tmp_path / "a", envs) as buffer:
        for _ in range(80):
            mask = rng.random(envs) < 0.7
            with_one = rng.random() < 0.6
            observation, final = np.zeros((2, envs, 2), np.float32)
            ends, has = np.zeros((2, envs), bool), np.zeros(envs, bool)
            priority = np.full(envs, np.nan)  # what is masked out is not looked at
            told = []
            for env in np.flatnonzero(mask):
                rows, _ = streams[env].next()
                observation[env] = rows[0]["observation"]
                ends[:, env] = rows[0]["terminated"], rows[0]["truncated"]
                has[env] = len(rows) > 1
                priority[env] = rng.integers(5)
                given = [priority[env] if with_one else None, *[None] * (len(rows) - 1)]
                told.append((env, rows, given))
            buffer.add(
                observation, np.zeros(envs, int), np.full(envs, 0.5), *ends, final, mask=mask,
                next_observation_mask=has, priority=priority if with_one else None,
            )  # fmt: skip
            for env, rows, given in told:  # first all rows, as they came in one call
                for row, p in zip(rows, given, strict=True):
                    double.record(env, dict(row), p)
            double.settle_priorities()
            if with_one:
                double.largest_priority = max([double.largest_priority, *priority[mask].tolist()])
            assert_same(buffer, double)


def columns_of(rows):
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def leaves_of(given):
    return np.array([np.nan if p is None else p for p in given])


def test_extend_and_extend_many(tmp_path):
    envs, rng = 3, np.random.default_rng(5)
    double, streams = twin(envs), [Stream(env, 3) for env in range(envs)]
    with make(tmp_path / "a", envs) as one, make(tmp_path / "b", envs) as many:
        for turn in range(40):
            runs, lengths = [], []
            for stream in streams:
                rows, given = [], []
                for _ in range(rng.integers(0, 7) + 45 * (turn == 20)):  # once around the ring
                    more = stream.next()
                    rows += more[0]
                    given += more[1]
                runs.append((rows, given))
                lengths.append(len(rows))
            wanted = [(env, *run) for env, run in enumerate(runs) if run[0]]
            for env, rows, given in wanted:
                one.extend(columns_of(rows), env, priority=leaves_of(given))
            if not wanted:
                continue
            before = many.bounds[:, 1]
            rows = [row for run in runs for row in run[0]]
            given = [p for run in runs for p in run[1]]
            stop = many.extend_many(
                columns_of(rows), np.arange(envs), before, lengths, priority=leaves_of(given)
            )
            assert stop.tolist() == many.bounds[:, 1].tolist() == one.bounds[:, 1].tolist()
            # Of rows that come in one call, those with a priority raise it for the next one.
            for env, rows, given in wanted:
                for row, p in zip(rows, given, strict=True):
                    double.record(env, dict(row), p)
            double.settle_priorities()
            for _env, _rows, given in wanted:
                known = [p for p in given if p is not None]
                double.largest_priority = max([double.largest_priority, *known])
            assert_same(many, double)
        assert one.sampleable_ids().tolist() == many.sampleable_ids().tolist()
        rows = (each.take("observation", each.sampleable_ids()) for each in (one, many))
        assert np.array_equal(*rows)
        assert one.statistics().priorities.largest_seen == 7.0


def add(buffer, stream):
    rows, given = stream.next()
    final = rows[1]["observation"] if len(rows) > 1 else None
    row = rows[0]
    buffer.add(
        row["observation"], row["action"], row["reward"], row["terminated"], row["truncated"],
        final, priority=given[0],
    )  # fmt: skip


def test_a_checkpoint_knows_rows_that_wait(tmp_path):
    """Rows are saved with their priorities before they can be sampled: bit for bit."""
    with make(tmp_path / "c") as straight, make(tmp_path / "d") as resumed:
        first, second = Stream(0, 7), Stream(0, 7)
        for number in range(34):
            add(straight, first)
            add(resumed, second)
            if number in (7, 8, 9, 10, 30):
                resumed.save(tmp_path / "both", number)
                resumed.load(tmp_path / "both", number, resume_episodes=True)
            assert np.array_equal(straight.tree.leaves, resumed.tree.leaves)
            if len(straight):
                found, same = straight.sample(8), resumed.sample(8)
                assert np.array_equal(found.id, same.id)
                assert np.array_equal(found.weight, same.weight)


def test_rows_that_wait_and_another_alpha(tmp_path):
    def step(buffer, at, **more):
        buffer.add(np.zeros(2, np.float32), at, 0.0, at == 3, False, **more)

    with make(tmp_path / "a") as buffer:
        for at, priority in ((0, 16.0), (1, 0.0), (2, None)):
            step(buffer, at, priority=priority)
        buffer.save(tmp_path / "saved", 1)
    with make(tmp_path / "b", alpha=0.25) as buffer:
        buffer.load(tmp_path / "saved", 1, resume_episodes=True)
        assert not buffer.tree.leaves.any()
        step(buffer, 3)
        np.testing.assert_allclose(buffer.tree.leaves[:4], [2.0, 0.0, 2.0, 2.0])


def test_what_is_wrong_is_said_first(tmp_path):
    frame = np.zeros((2, 2), np.float32)
    flags = np.zeros(2, bool)
    with make(tmp_path / "a", 2) as buffer:

        def step(**more):
            return buffer.add(frame, flags * 1, flags * 0.0, flags, flags, **more)

        step()
        for wrong in ([1.0, np.nan], [1.0, -1.0], [np.inf, 1.0], ["a", "b"]):
            with pytest.raises(PriorityError, match="priority"):
                step(priority=wrong)
        with pytest.raises(ShapeError, match=r"shape \(2,\) expected, found \(\)"):
            step(priority=1.0)
        with pytest.raises(PriorityError, match="at position 1"):
            step(priority=[1.0, -1.0], mask=np.array([False, True]))
        step(priority=[np.nan, 1.0], mask=np.array([False, True]))
        row = {"observation": frame[:1], "action": [0], "reward": [0.0], "terminated": [False],
               "truncated": [False], "step": [1], "is_final": [False]}  # fmt: skip
        with pytest.raises(ShapeError, match="priority"):
            buffer.extend(row, 0, priority=[1.0, 2.0])
        with pytest.raises(PriorityError, match="priority -1"):
            buffer.extend_many(row, [0], [1], [1], priority=[-1])
        assert buffer.bounds[:, 1].tolist() == [1, 2]
        assert buffer.statistics().priorities is None
        assert buffer._rows.sampler.largest == 1.0


def test_a_uniform_buffer_has_none(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "a", observation_space=Discrete(3), action_space=Discrete(3), capacity=9
    ) as buffer:
        with pytest.raises(InvalidInputError, match="draws uniformly"):
            buffer.add(1, 1, 0.0, False, False, priority=1.0)
        assert not buffer.bounds.any()


# -- rows that are sent again


def uniform(path, envs=2):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(-9e9, 9e9, (2,), "float32"), action_space=Discrete(9),
        capacity=None, num_envs=envs,
    )  # fmt: skip


def rows_of(env, start, stop):
    return [
        {"observation": np.full(2, 1000 * env + row, np.float32), "action": row % 9,
         "reward": float(row), "terminated": row % 5 == 4, "truncated": False, "step": row % 5,
         "is_final": False}
        for row in range(start, stop)
    ]  # fmt: skip


def test_rows_that_are_there_are_left_out(tmp_path):
    with uniform(tmp_path / "a") as buffer:

        def send(*runs):
            rows = [row for env, start, stop in runs for row in rows_of(env, start, stop)]
            return buffer.extend_many(
                columns_of(rows), [env for env, *_ in runs], [start for _, start, _ in runs],
                [stop - start for _, start, stop in runs],
            ).tolist()  # fmt: skip

        assert send((1, 0, 7), (0, 0, 3)) == [7, 3]
        assert send((1, 0, 7), (0, 0, 3)) == [7, 3]
        assert send((0, 1, 9), (1, 2, 5)) == [9, 7]
        assert send((1, 7, 12)) == [12]
        with pytest.raises(InvalidInputError, match="row 14 of env 1 given, which has 12 rows"):
            send((0, 9, 11), (1, 14, 15))
        assert buffer.bounds[:, 1].tolist() == [9, 12]
        assert buffer.add_count == 21
        for env, stop in ((0, 9), (1, 12)):
            found = {n: buffer.take(n, np.arange(stop) * 2 + env) for n in buffer.fields}
            wanted = columns_of(rows_of(env, 0, stop))
            for name, values in wanted.items():
                assert np.array_equal(found[name], values), name


def test_what_extend_many_refuses(tmp_path):
    with uniform(tmp_path / "a") as buffer:
        rows = columns_of(rows_of(0, 0, 4))
        for envs, first, lengths, match in (
            ([0, 0], [0, 2], [2, 2], "an env is there twice"),
            ([2], [0], [4], "envs: 0 to 1 expected, found 2"),
            ([-1], [0], [4], "envs: 0 to 1 expected, found -1"),
            ([0], [-1], [4], "first_rows: numbers from 0 on expected, found -1"),
            ([0, 1], [0, 0], [5, -1], "lengths: numbers from 0 on expected, found -1"),
            ([0], [0], [3], "lengths: 3 rows in all, and 4 in the columns"),
            ([0, 1], [0], [4], "found 2, 1 and 1"),
            ([0.0], [0], [4], "envs: integers along one axis"),
            (0, [0], [4], "envs: integers along one axis"),
        ):  # fmt: skip
            with pytest.raises(InvalidInputError, match=match):
                buffer.extend_many(rows, envs, first, lengths)
        with pytest.raises(DtypeError):
            buffer.extend_many(rows | {"step": np.array([0, 1, 2, -3])}, [0], [0], [4])
        assert not buffer.bounds.any()
        assert buffer.extend_many({k: v[:0] for k, v in rows.items()}, [], [], []).tolist() == []


def test_many_rows_of_many_envs_in_several_commits(tmp_path):
    """More than one commit takes, of envs that get some each."""
    with uniform(tmp_path / "a", 3) as buffer:
        lengths = [9000, 10, 500]
        rows = [row for env, stop in enumerate(lengths) for row in rows_of(env, 0, stop)]
        assert (
            buffer.extend_many(columns_of(rows), range(3), [0, 0, 0], lengths).tolist() == lengths
        )
        for env, stop in enumerate(lengths):
            found = buffer.take("observation", np.arange(stop) * 3 + env)
            assert np.array_equal(found, columns_of(rows_of(env, 0, stop))["observation"])


def test_a_part_of_an_episode_among_many(tmp_path):
    """A run whose step counts on behind a cut episode begins one of its own, as with `extend`."""
    with uniform(tmp_path / "a") as one, uniform(tmp_path / "b") as many:
        for env in range(2):
            for buffer in (one, many):
                buffer.extend(columns_of(rows_of(env, 0, 3)), env)
        for buffer in (one, many):
            buffer.end_episode()
        for env in range(2):
            one.extend(columns_of(rows_of(env, 3, 9)), env)
        rows = rows_of(0, 3, 9) + rows_of(1, 3, 9)
        many.extend_many(columns_of(rows), [0, 1], [3, 3], [6, 6])
        assert one.sampleable_ids().tolist() == many.sampleable_ids().tolist()
        wanted = many.sampleable_ids().tolist()
    with uniform(tmp_path / "b") as many:
        assert many.sampleable_ids().tolist() == wanted
