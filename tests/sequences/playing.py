"""A real buffer and a `Stream` that are told the same rows."""

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from tests.sequences.naive_sequences import Stream

GAMMA = 0.9


class Play:
    """Random rows: episodes that terminate, are truncated or cut, with and without final rows,
    frames alone, masked envs, and parts of episodes as imports bring them."""

    def __init__(self, path, rng, *, num_envs=1, kept=None, stack_size=1, padding="zero",
                 update_horizon=1, compressor="auto", frame=(2,), kind=None):  # fmt: skip
        self.rng, self.stream, self.frame = rng, Stream(num_envs, kept), frame
        self.path = path
        self.options = {
            "observation_space": Box(0, 2**30, frame, "int32"), "action_space": Discrete(5),
            "capacity": None if kept is None else kept * num_envs, "num_envs": num_envs,
            "stack_size": stack_size, "stack_padding": padding, "gamma": GAMMA,
            "update_horizon": update_horizon, "extras": {"h": ((), "int64")},
            "compressor": compressor,
        }  # fmt: skip
        self.kind = kind or diskreplay.ReplayBuffer
        self.buffer = self.kind(path, **self.options)

    def reopen(self):
        self.buffer.close()
        self.stream.open = [None] * self.stream.num_envs
        self.buffer = self.kind(self.path, **self.options)

    def shown(self, value):
        return np.full(self.frame, value, np.int32)

    def step(self):
        """One call that adds rows, or cuts."""
        chance = self.rng.random()
        if chance < 0.03:
            self.extend()
        elif chance < 0.06:
            self.cut()
        elif chance < 0.08 and self.stream.num_envs == 1:
            self.add_frame()
        else:
            self.add()

    def add(self):
        stream, rng = self.stream, self.rng
        envs = range(stream.num_envs)
        mask = [stream.num_envs == 1 or rng.random() < 0.8 for _ in envs]
        ends = [rng.choice(["", "", "", "", "", "term", "trunc", "both"]) for _ in envs]
        finals = [rng.random() < 0.6 for _ in envs]
        rewards = [float(rng.randrange(-8, 9)) for _ in envs]
        values, last = [0] * stream.num_envs, [0] * stream.num_envs
        for env in envs:
            if not mask[env]:
                continue
            if stream.open[env] is None:
                stream.begin(env)
                step = 0
            else:
                step = stream.next_step(env)
            terminated, truncated = ends[env] in ("term", "both"), ends[env] in ("trunc", "both")
            row = stream.append(env, "transition", step, rewards[env], terminated, truncated)
            values[env] = row["value"]
            if terminated or truncated:
                if finals[env]:
                    last[env] = stream.append(env, "final", step + 1)["value"]
                stream.open[env] = None
        given = {
            "observation": np.stack([self.shown(v) for v in values]),
            "action": np.array(values) % 5, "reward": np.array(rewards, np.float32),
            "terminated": np.array([e in ("term", "both") for e in ends]),
            "truncated": np.array([e in ("trunc", "both") for e in ends]),
            "next_observation": np.stack([self.shown(v) for v in last]), "h": np.array(values),
        }  # fmt: skip
        if stream.num_envs == 1:
            given = {name: value[0] for name, value in given.items()}
            if not finals[0]:
                del given["next_observation"]
            self.buffer.add(**given)
        else:
            masks = {"mask": np.array(mask), "next_observation_mask": np.array(finals)}
            self.buffer.add(**given, **masks)

    def add_frame(self):
        if self.stream.open[0] is None:
            return
        row = self.stream.append(0, "final", self.stream.next_step(0))
        self.buffer.add_frame(self.shown(row["value"]))

    def cut(self):
        stream = self.stream
        mask = [self.rng.random() < 0.7 for _ in range(stream.num_envs)]
        last = [0] * stream.num_envs
        known = self.rng.random() < 0.5
        for env, cut in enumerate(mask):
            if cut and stream.open[env] is not None:
                if known:
                    last[env] = stream.append(env, "final", stream.next_step(env))["value"]
                stream.open[env] = None
        seen = np.stack([self.shown(v) for v in last])
        if stream.num_envs == 1:
            seen = seen[0]
        self.buffer.end_episode(np.array(mask), next_observation=seen if known else None)

    def extend(self):
        """A part of an episode: what is open is cut, and often it would go on with it."""
        stream, rng = self.stream, self.rng
        env = rng.randrange(stream.num_envs)
        continues = stream.next_step(env) if stream.rows[env] else 0
        if stream.rows[env] and stream.open[env] is None:
            continues = stream.rows[env][-1]["step"] + 1
        mask = np.arange(stream.num_envs) == env
        self.buffer.end_episode(mask)
        stream.begin(env)
        start = rng.choice([0, 3, continues])
        ends = rng.random() < 0.5
        count = rng.randrange(1, 5)
        rows = [
            stream.append(env, "transition", start + i, float(i), ends and i == count - 1)
            for i in range(count)
        ]
        values = np.array([row["value"] for row in rows])
        columns = {
            "observation": np.stack([self.shown(v) for v in values]),
            "action": values % 5,
            "reward": np.array([row["reward"] for row in rows], np.float32),
            "terminated": np.array([row["terminated"] for row in rows]),
            "truncated": np.zeros(count, bool),
            "step": np.array([row["step"] for row in rows], np.int32),
            "is_final": np.zeros(count, bool),
            "h": values,
        }
        self.buffer.extend(columns, env=env)
        if ends:
            stream.open[env] = None
