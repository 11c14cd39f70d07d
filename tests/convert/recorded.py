"""A random stream, recorded into a buffer and into plain lists, for the tests of this folder."""

import contextlib
import gc
import os
import resource

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import diskreplay
from tests.effort import effort

# What an env does in one tick, whether it is given the next observation, whether it takes part.
EVENT = st.tuples(
    st.sampled_from(["on", "on", "on", "terminated", "truncated", "both", "cut", "frame"]),
    st.booleans(),
    st.booleans(),
)
STREAM = st.fixed_dictionaries(
    {
        "ticks": st.lists(st.lists(EVENT, min_size=3, max_size=3), max_size=30),
        "num_envs": st.sampled_from([1, 1, 3]),
        "rows_per_env": st.sampled_from([None, 3, 9]),
        "prioritized": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)
ON, END = [("on", True, True)] * 3, [("terminated", True, True)] * 3
FEW = {"num_envs": 3, "rows_per_env": None, "prioritized": True, "seed": 3,
       "ticks": [ON, END, ON, [("truncated", False, True)] * 3, ON]}  # fmt: skip
EXTRAS = {"env": ((), "int16"), "log_prob": ((), "float32"), "choices": ((2, 2), "int8")}


def few_examples(count):
    """Settings of a test that makes a store for each example."""
    return settings(
        max_examples=effort(count // 2, count),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


class Recorded:
    """`rows[env][t]` is row `t` as a dict of field to value, besides its "episode".

    Episodes are numbered for each env. `buffer` is open for writing.
    """

    def __init__(self, path, ticks, num_envs, rows_per_env, prioritized, seed, nested=True):
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.rows_per_env, self.nested = num_envs, rows_per_env, nested
        plain = Box(-9, 9, (3,), np.float32)
        space = {"camera": Box(0, 255, (4, 5), np.uint8), "pose": plain, "door": Discrete(7)}
        kind = diskreplay.PrioritizedReplayBuffer if prioritized else diskreplay.ReplayBuffer
        self.buffer = kind(
            path,
            observation_space=Dict(space) if nested else plain,
            action_space=Box(-1, 1, (2,), np.float32) if nested else Discrete(5),
            capacity=None if rows_per_env is None else rows_per_env * num_envs,
            num_envs=num_envs,
            gamma=0.5,
            batch_size=7,
            extras=EXTRAS,
            compressor={"observation/camera": "zstd"} if nested else "auto",
        )
        self.rows = [[] for _ in range(num_envs)]
        self.episode, self.step = [0] * num_envs, [0] * num_envs
        self.priorities = {}
        for tick in ticks:
            self.tick(tick)
        if prioritized:
            for id_ in self.buffer.sampleable_ids().tolist():
                self.priorities[id_] = float(self.rng.choice([0.0, 0.25, 1.0, 9.0, 40.0]))
                self.buffer.update_priorities([id_], [self.priorities[id_]])

    def observation(self):
        rng = self.rng
        pose = rng.normal(size=3).astype(np.float32)
        if not self.nested:
            return {"observation": pose}
        return {"observation/camera": rng.integers(0, 256, (4, 5), np.uint8),
                "observation/pose": pose, "observation/door": rng.integers(7)}  # fmt: skip

    def transition(self):
        rng = self.rng
        action = rng.normal(size=2).astype(np.float32) if self.nested else rng.integers(5)
        return {"action": action, "reward": np.float32(rng.choice([-1.5, 0, 0.1, 1e30])),
                "env": np.int16(rng.integers(-99, 99)), "log_prob": np.float32(rng.normal()),
                "choices": rng.integers(-9, 9, (2, 2), np.int8)}  # fmt: skip

    def nothing(self):
        return {name: np.zeros_like(value) for name, value in self.transition().items()}

    def tick(self, tick):
        events = tick[: self.num_envs]
        if self.num_envs == 1 and events[0][0] == "frame":
            frame = self.observation()
            self.put(0, frame, self.nothing(), False, False, is_final=True)
            self.buffer.add_frame(self.shaped([frame]))
            return
        observations = [self.observation() for _ in events]
        following = [self.observation() for _ in events]
        values = [self.transition() for _ in events]
        terminated = [kind in ("terminated", "both") for kind, _, _ in events]
        truncated = [kind in ("truncated", "both") for kind, _, _ in events]
        taking_part = [part or self.num_envs == 1 for _, _, part in events]
        given = [final for _, final, _ in events]
        arrays = {n: np.array([value[n] for value in values]) for n in values[0]}
        arguments = [arrays.pop("action"), arrays.pop("reward"), terminated, truncated]
        if self.num_envs == 1:
            arguments = [argument[0] for argument in arguments]
            arrays = {name: array[0] for name, array in arrays.items()}
            self.buffer.add(self.shaped(observations), *arguments,
                            self.shaped(following) if given[0] else None, **arrays)  # fmt: skip
        else:
            self.buffer.add(
                self.shaped(observations), *map(np.array, arguments), self.shaped(following),
                mask=np.array(taking_part), next_observation_mask=np.array(given), **arrays,
            )  # fmt: skip
        for env, (kind, final, _) in enumerate(events):
            if not taking_part[env]:
                continue
            self.put(env, observations[env], values[env], terminated[env], truncated[env])
            if terminated[env] or truncated[env]:
                if final:
                    self.put(env, following[env], self.nothing(), False, False, is_final=True)
                self.episode[env], self.step[env] = self.episode[env] + 1, 0
            elif kind == "cut":
                self.buffer.end_episode(np.arange(self.num_envs) == env)
                self.episode[env], self.step[env] = self.episode[env] + 1, 0

    def shaped(self, observations):
        """Observations of all envs, as the buffer takes them."""
        joined = {n: np.array([each[n] for each in observations]) for n in observations[0]}
        if self.num_envs == 1:
            joined = {name: array[0] for name, array in joined.items()}
        if not self.nested:
            return joined["observation"]
        return {name.split("/")[1]: array for name, array in joined.items()}

    def put(self, env, observation, values, terminated, truncated, is_final=False):
        self.rows[env].append({
            **observation, **values, "terminated": terminated, "truncated": truncated,
            "step": self.step[env], "is_final": is_final, "episode": self.episode[env],
        })  # fmt: skip
        self.step[env] += 1

    def first(self, env):
        """The oldest row that is retained."""
        return max(0, len(self.rows[env]) - (self.rows_per_env or len(self.rows[env])))

    def kept(self, env):
        """The rows that are retained."""
        return self.rows[env][self.first(env) :]

    def starts(self):
        """(first retained row, env, its own number) of the episodes with a retained transition, in
        the order of their numbers in the buffer."""
        found = {}
        for env in range(self.num_envs):
            for t in range(self.first(env), len(self.rows[env])):
                found.setdefault((env, self.rows[env][t]["episode"]), []).append(t)
        return sorted(
            (ts[0], env, episode)
            for (env, episode), ts in found.items()
            if any(not self.rows[env][t]["is_final"] for t in ts)
        )

    def transitions(self, gamma=1.0):
        """One dict a retained transition, in time order, as a frame should have them."""
        numbers = {(env, episode): i for i, (_t, env, episode) in enumerate(self.starts())}
        found = []
        for env in range(self.num_envs):
            to_go, after = 0.0, None
            for t in reversed(range(self.first(env), len(self.rows[env]))):
                row = self.rows[env][t]
                if row["episode"] != after:
                    to_go, after = 0.0, row["episode"]
                to_go = float(row["reward"]) + gamma * to_go
                if row["is_final"]:
                    continue
                values = {f"{n}_" if n == "env" else n: v for n, v in row.items()}
                found.append(values | {
                    "id": t * self.num_envs + env, "env": env, "row": t, "return_to_go": to_go,
                    "episode": numbers[env, row["episode"]], "final": self.final(env, t),
                })  # fmt: skip
        return sorted(found, key=lambda each: each["id"])

    def final(self, env, t):
        """The final row of a transition that ended its episode."""
        rows = self.rows[env]
        ended = rows[t]["terminated"] or rows[t]["truncated"]
        if ended and t + 1 < len(rows) and rows[t + 1]["episode"] == rows[t]["episode"]:
            return rows[t + 1]
        return None

    def check_store(self, buffer, envs=None):
        """`buffer` holds, from row 0 on, `envs[env]` (lists of rows)."""
        envs = envs or [self.kept(env) for env in range(self.num_envs)]
        assert buffer.bounds.tolist() == [[0, len(rows)] for rows in envs]
        for env, rows in enumerate(envs):
            ids = np.arange(len(rows)) * self.num_envs + env
            for field, (shape, dtype) in buffer.fields.items():
                expected = np.array([row[field] for row in rows], dtype).reshape(-1, *shape)
                np.testing.assert_array_equal(buffer.take(field, ids), expected, err_msg=field)

    def exported(self, env):
        """The retained rows without what only belongs to transitions that are gone."""
        starts = [t for t, e, _episode in self.starts() if e == env]
        return self.rows[env][starts[0] :] if starts else []

    def check_priorities(self, buffer, dropped):
        """Those of the transitions, in a store whose rows have moved by `dropped[env]`."""
        leaves = {}
        for id_, priority in self.priorities.items():
            t, env = divmod(id_, self.num_envs)
            leaves[(t - dropped[env]) * self.num_envs + env] = priority
        assert sorted(leaves) == sorted(buffer.sampleable_ids().tolist())
        ids = np.array(sorted(leaves), np.int64)
        probability = buffer.gather(ids).probability if len(ids) else np.empty(0)
        raised = np.array([leaves[i] for i in ids.tolist()]) ** buffer.alpha
        np.testing.assert_allclose(probability, raised / (raised.sum() or 1), rtol=1e-12)
        if self.priorities:
            largest = max(1.0, *self.priorities.values())
            assert buffer.statistics().priorities is None or (
                buffer.statistics().priorities.largest_seen == largest
            )


@contextlib.contextmanager
def few_open_files(more):
    """A process that may open so many files besides those that are open now."""
    gc.collect()  # garbage of other tests has open files, and would make room while this one runs
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + more + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    taken = []
    gc.disable()
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(more):
            os.close(taken.pop())
        yield
    finally:
        gc.enable()
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
