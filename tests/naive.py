"""The obvious twins: what diskreplay must do, said with lists, dictionaries and loops.

`NaiveReplayBuffer` and `NaiveSumTree` are written from the design alone and share no helper with
the package. They are slow on purpose: nothing is cached that can be computed from the recorded
rows, so that reading them once is enough to believe them. NumPy only holds frames and rounds to
float32.

`SideBySide`, at the end, drives a real buffer and its twin through the same calls and compares
everything the two say.
"""

from __future__ import annotations

import random

import numpy as np

OBSERVATION = {"observation": ((8, 8), "uint8")}


class NaiveReplayBuffer:
    """Rows in lists: `history[env][t]` is row `t` of `env`, evicted rows included.

    `observation` maps the name of each observation field to (shape, dtype): one entry
    "observation", or one entry "observation/<leaf>" for each leaf of a Dict observation. `extras`
    maps names to (shape, dtype) likewise. `alpha=None` is the uniform buffer.
    """

    def __init__(
        self,
        *,
        num_envs=1,
        capacity=None,
        stack_size=1,
        update_horizon=1,
        gamma=0.99,
        observation=None,
        action=((), "int64"),
        extras=None,
        alpha=None,
        stack_padding="zero",
        max_transitions=None,
    ):
        self.num_envs = num_envs
        self.capacity = capacity
        self.max_transitions = max_transitions
        self.stack_size = stack_size
        self.stack_padding = stack_padding
        self.update_horizon = update_horizon
        self.gamma = gamma
        self.observation = dict(observation or OBSERVATION)
        self.action = action
        self.extras = dict(extras or {})
        self.alpha = alpha

        self.history = [[] for _ in range(num_envs)]
        self.first = [0] * num_envs  # the oldest row that each env still keeps
        self.next_step = [0] * num_envs  # the `step` of the env's next row; 0: no episode is open
        self.add_count = 0
        self.priorities = {}  # id -> priority, of the rows that can be sampled
        self.largest_priority = 1.0

    # -- recording

    def add(
        self,
        observation,
        action,
        reward,
        terminated,
        truncated,
        next_observation=None,
        mask=None,
        next_observation_mask=None,
        **extras,
    ):
        """Record one step of each env that `mask` names; return the ids of their transitions.

        Every argument is a list with one entry an env; an observation is {field name: frame}.
        """
        ids = []
        for env in range(self.num_envs):
            if mask is not None and not mask[env]:
                continue
            final = next_observation is not None
            if final and next_observation_mask is not None:
                final = bool(next_observation_mask[env])
            ids.append(
                self._add_one(
                    env,
                    observation[env],
                    action[env],
                    reward[env],
                    bool(terminated[env]),
                    bool(truncated[env]),
                    next_observation[env] if final else None,
                    {name: extras[name][env] for name in self.extras},
                )
            )
        return ids

    def _add_one(self, env, observation, action, reward, terminated, truncated, final, extras):
        row_number = len(self.history[env])
        step = self.next_step[env]
        self.history[env].append(
            {
                "observation": observation,
                "action": action,
                "reward": float(np.float32(reward)),
                "terminated": terminated,
                "truncated": truncated,
                "step": step,
                "is_final": False,
                "extras": extras,
            }
        )
        self.next_step[env] = step + 1
        self.add_count += 1
        if terminated or truncated:
            if final is not None:
                self.history[env].append(self._final_row(final, step + 1))
            self.next_step[env] = 0
        self._evict(env)
        return row_number * self.num_envs + env

    def _final_row(self, observation, step):
        """The observation an episode ended with; everything else in it is zero."""
        return {
            "observation": observation,
            "action": np.zeros(*self.action),
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "step": step,
            "is_final": True,
            "extras": {name: np.zeros(*described) for name, described in self.extras.items()},
        }

    def _evict(self, env):
        if self.capacity is not None:
            kept = self.capacity // self.num_envs
            self.first[env] = max(self.first[env], len(self.history[env]) - kept)
        if self.max_transitions is not None:
            kept = self.max_transitions // self.num_envs
            rows = [t for t, row in enumerate(self.history[env]) if not row["is_final"]]
            if len(rows) > kept:
                oldest = rows[-kept]
                stack = min(self.history[env][oldest]["step"], self.stack_size - 1)
                self.first[env] = max(self.first[env], oldest - stack)

    def end_episode(self, mask=None, next_observation=None):
        """Cut the episodes of these envs; keep what their last step led to, if that is given."""
        for env in range(self.num_envs):
            if mask is not None and not mask[env]:
                continue
            if next_observation is not None and self.next_step[env] > 0:
                row = self._final_row(next_observation[env], self.next_step[env])
                self.history[env].append(row)
                self._evict(env)
            self.next_step[env] = 0

    def evict(self, first):
        """Let go of each env's rows before these."""
        self.first = [max(pair) for pair in zip(self.first, first, strict=True)]

    def clear(self):
        """Forget all rows; the largest priority seen stays."""
        self.history = [[] for _ in range(self.num_envs)]
        self.first = [0] * self.num_envs
        self.add_count = 0
        self.priorities = {}
        self.cut()

    def cut(self):
        """What reopening and loading do to open episodes: the next row starts a new one."""
        self.next_step = [0] * self.num_envs

    # -- which rows can be sampled

    def is_sampleable(self, id):
        env, t = id % self.num_envs, id // self.num_envs
        rows = self.history[env]
        if not self.first[env] <= t < len(rows):
            return False  # evicted, or never written
        if rows[t]["is_final"]:
            return False
        if t - min(rows[t]["step"], self.stack_size - 1) < self.first[env]:
            return False  # a frame of its stack is evicted
        return self.steps(id) is not None

    def steps(self, id):
        """How many rows the n-step window has; None while it is pending, or if it was cut."""
        env, t = id % self.num_envs, id // self.num_envs
        rows = self.history[env]
        for m in range(1, self.update_horizon + 1):
            last = rows[t + m - 1]
            if last["terminated"]:
                return m
            if t + m >= len(rows) or rows[t + m]["step"] != rows[t]["step"] + m:
                return None  # nothing yet, or another episode: there is no next observation
            if rows[t + m]["is_final"]:
                return m  # truncated, or cut: what it led to is known, and nothing comes after
            if last["truncated"]:
                return None
        return self.update_horizon

    def sampleable_ids(self):
        return [
            t * self.num_envs + env
            for env in range(self.num_envs)
            for t in range(self.first[env], len(self.history[env]))
            if self.is_sampleable(t * self.num_envs + env)
        ]

    def known_ids(self):
        """Every id ever written: of transitions and final rows, evicted ones too."""
        return [
            t * self.num_envs + env
            for env in range(self.num_envs)
            for t in range(len(self.history[env]))
        ]

    def __len__(self):
        return len(self.sampleable_ids())

    @property
    def rows(self):
        return sum(len(self.history[env]) - self.first[env] for env in range(self.num_envs))

    # -- transitions

    def transition(self, id):
        """Every field of the batch for one id, but for weight and probability."""
        assert self.is_sampleable(id), f"{id} cannot be sampled"
        env, t = id % self.num_envs, id // self.num_envs
        rows = self.history[env]
        m = self.steps(id)
        last = rows[t + m - 1]
        total = 0.0
        for i in range(m):
            total += self.gamma**i * rows[t + i]["reward"]
        fields = {
            "id": np.int64(id),
            "action": rows[t]["action"],
            "reward": np.float32(total),
            "discount": np.float32(0.0 if last["terminated"] else self.gamma**m),
            "terminated": np.bool_(last["terminated"]),
            "truncated": np.bool_(last["truncated"]),
            "steps": np.int32(m),
        }
        for name in self.extras:
            fields[name] = rows[t]["extras"][name]
        has_next = t + m < len(rows) and rows[t + m]["step"] == rows[t]["step"] + m
        for name in self.observation:
            fields[name] = self._stack(env, t, name)
            fields["next_" + name] = self._stack(env, t + m if has_next else None, name)
        return fields

    def _stack(self, env, t, name):
        """The frames of row `t`, oldest first; all zeros for None.

        Before the episode began there are zeros, or its first frame again with `stack_padding`
        "reset". Without a stack axis for `stack_size` 1.
        """
        shape, dtype = self.observation[name]
        frames = []
        for k in reversed(range(self.stack_size)):
            if t is None:
                frames.append(np.zeros(shape, dtype))
            elif k > self.history[env][t]["step"]:
                first = self.history[env][t - self.history[env][t]["step"]]["observation"][name]
                frames.append(first if self.stack_padding == "reset" else np.zeros(shape, dtype))
            else:
                frames.append(self.history[env][t - k]["observation"][name])
        return frames[0] if self.stack_size == 1 else np.stack(frames)

    # -- priorities

    def settle_priorities(self):
        """Rows that became sampleable get the largest priority; those that no longer are, lose it.

        The largest priority changes in `update_priorities` alone, which settles first: a row gets
        the largest that was seen at the moment when it became sampleable.
        """
        sampleable = self.sampleable_ids()
        self.priorities = {id: self.priorities.get(id, self.largest_priority) for id in sampleable}

    def update_priorities(self, ids, priorities):
        """Set them one after the other; return how many were for rows that cannot be sampled."""
        self.settle_priorities()
        ignored = 0
        for id, priority in zip(ids, priorities, strict=True):
            if id in self.priorities:
                self.priorities[id] = priority
                self.largest_priority = max(self.largest_priority, priority)
            else:
                ignored += 1
        return ignored

    def leaf(self, id):
        """p^alpha; a zero priority is never drawn, with alpha 0 neither."""
        priority = self.priorities.get(id, 0.0)
        return priority**self.alpha if priority > 0 else 0.0

    def probabilities(self):
        """{id: probability} of every row that can be sampled."""
        if self.alpha is None:
            ids = self.sampleable_ids()
            return {id: 1 / len(ids) for id in ids}
        self.settle_priorities()
        total = sum(self.leaf(id) for id in self.priorities)
        return {id: self.leaf(id) / total if total else 0.0 for id in self.priorities}

    def probability(self, id):
        return self.probabilities()[id]

    # -- checkpoints

    def copy(self):
        """What a checkpoint holds."""
        self.settle_priorities()
        return {
            "history": [list(rows) for rows in self.history],
            "first": list(self.first),
            "next_step": list(self.next_step),
            "add_count": self.add_count,
            "priorities": dict(self.priorities),
            "largest_priority": self.largest_priority,
        }

    def restore(self, saved, resume_episodes=False):
        """Become what was saved, but for the capacity, stack, horizon and gamma of this buffer."""
        self.history = [list(rows) for rows in saved["history"]]
        self.first = list(saved["first"])
        self.next_step = list(saved["next_step"])
        self.add_count = saved["add_count"]
        self.priorities = dict(saved["priorities"])
        self.largest_priority = saved["largest_priority"]
        if not resume_episodes:
            self.cut()
        for env in range(self.num_envs):
            self._evict(env)
        self.settle_priorities()


class NaiveSumTree:
    """Leaves in a list; everything else is a loop over them."""

    def __init__(self, capacity):
        self.leaves = [0.0] * capacity

    def set(self, indices, values):
        for index, value in zip(indices, values, strict=True):
            self.leaves[index] = value

    def get(self, indices):
        return [self.leaves[index] for index in indices]

    @property
    def total(self):
        total = 0.0
        for leaf in self.leaves:
            total += leaf
        return total

    @property
    def min(self):
        return min((leaf for leaf in self.leaves if leaf > 0), default=float("inf"))

    def intervals(self):
        """[(index, start, end)] of the positive leaves, laid side by side from 0 to the total."""
        laid, start = [], 0.0
        for index, leaf in enumerate(self.leaves):
            if leaf > 0:
                laid.append((index, start, start + leaf))
                start += leaf
        return laid

    def sample(self, u):
        """The leaf whose interval holds the point `u * total`, for `u` in [0, 1)."""
        point = u * self.total
        chosen = None
        for index, start, _end in self.intervals():
            if start <= point:
                chosen = index
        return chosen


# -- a real buffer beside its twin


def flat_fields(batch):
    """{name: array} of a batch; the leaves of Dict observations as "observation/<leaf>"."""
    fields = {}
    for name in batch.keys():  # noqa: SIM118 - a batch need not be a mapping
        value = batch[name]
        if isinstance(value, dict):
            for leaf, array in value.items():
                fields[f"{name}/{leaf}"] = array
        else:
            fields[name] = value
    return fields


def assert_transitions_equal(twin, batch):
    """Each row of `batch` is the transition that the twin has under the same id, exactly."""
    fields = flat_fields(batch)
    expected = [twin.transition(id) for id in batch.id.tolist()]
    assert len(expected) > 0
    assert set(fields) - {"weight", "probability"} == set(expected[0])
    for name, first in expected[0].items():
        actual = fields[name]
        wanted = np.stack([transition[name] for transition in expected])
        assert actual.dtype == np.asarray(first).dtype, name
        assert actual.shape == wanted.shape, name
        if name in ("reward", "discount"):
            # The order of the additions is not promised: one float32 apart, or both about 0.
            apart = np.abs(actual - wanted) > np.maximum(np.spacing(np.abs(wanted)), 1e-12)
        else:
            apart = actual != wanted
        wrong = np.flatnonzero(apart.reshape(len(expected), -1).any(axis=1))
        assert wrong.size == 0, (
            f"{name} of id {batch.id[wrong[0]]} is\n{actual[wrong[0]]}\nnot\n{wanted[wrong[0]]}"
        )


def assert_probabilities_equal(twin, batch):
    probabilities = twin.probabilities()
    wanted = [probabilities[id] for id in batch.id.tolist()]
    assert batch.probability.dtype == np.float64
    np.testing.assert_allclose(batch.probability, wanted, rtol=1e-6, atol=1e-15)


def assert_weights_equal(twin, batch, beta, normalization="batch"):
    """(N P)^-beta over the largest such weight, of the batch or of the whole buffer."""
    assert batch.weight.dtype == np.float32
    if twin.alpha is None:
        assert (batch.weight == 1).all()
        return
    probabilities = twin.probabilities()
    count = len(probabilities)
    weights = [(count * probabilities[id]) ** -beta for id in batch.id.tolist()]
    if normalization == "batch":
        largest = max(weights)
    else:
        largest = max((count * p) ** -beta for p in probabilities.values() if p > 0)
    np.testing.assert_allclose(batch.weight, [w / largest for w in weights], rtol=2e-5)


def make_frame(shape, dtype, counter):
    """A frame that no other counter has: some compress well, every fourth not at all."""
    size = int(np.prod(shape, dtype=np.int64))
    dtype = np.dtype(dtype)
    if dtype != np.uint8:
        return (np.arange(size, dtype=np.float64) * 0.5 + counter).astype(dtype).reshape(shape)
    if counter % 4 == 0:
        data = random.Random(counter).randbytes(size)
    else:
        data = (counter.to_bytes(8, "little") * (size // 8 + 1))[:size]
    return np.frombuffer(data, np.uint8).reshape(shape)


# How a step can go: (recorded, terminated, truncated, final observation given).
OUTCOMES = {
    "skip": (False, False, False, False),
    "go on": (True, False, False, False),
    "terminated": (True, True, False, False),
    "terminated, final": (True, True, False, True),
    "truncated": (True, False, True, False),
    "truncated, final": (True, False, True, True),
    "both": (True, True, True, False),
    "both, final": (True, True, True, True),
}
ENDS = [name for name, outcome in OUTCOMES.items() if outcome[1] or outcome[2]]


class SideBySide:
    """A real buffer and its twin, given the same calls.

    The content of a row follows from a counter: no two frames ever recorded are equal, so that a
    frame out of place cannot go unnoticed.
    """

    def __init__(
        self,
        path,
        *,
        num_envs=1,
        capacity=100,
        stack_size=1,
        stack_padding="zero",
        update_horizon=1,
        gamma=0.99,
        observation=None,
        extras=None,
        compressor="auto",
        segment_rows=None,
        alpha=None,
        beta=0.4,
        weight_normalization="batch",
        seed=0,
        batch_size=32,
        max_transitions=None,
    ):
        self.path = path
        self.twin = NaiveReplayBuffer(
            num_envs=num_envs,
            capacity=capacity,
            stack_size=stack_size,
            stack_padding=stack_padding,
            update_horizon=update_horizon,
            gamma=gamma,
            observation=observation,
            extras={"log_prob": ((), "float32")} if extras is None else extras,
            alpha=alpha,
            max_transitions=max_transitions,
        )
        self.weight_normalization = weight_normalization
        self.options = {
            "compressor": compressor,
            "segment_rows": segment_rows,
            "seed": seed,
            "batch_size": batch_size,
        }
        if alpha is not None:
            self.options.update(alpha=alpha, beta=beta, weight_normalization=weight_normalization)
        self.counter = 0
        self.real = self.construct()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.real.close()

    # -- making buffers

    def construct(self):
        import diskreplay

        kind = (
            diskreplay.ReplayBuffer
            if self.twin.alpha is None
            else diskreplay.PrioritizedReplayBuffer
        )
        return kind(
            self.path,
            observation_space=self.observation_space(),
            action_space=self.action_space(),
            capacity=self.twin.capacity,
            max_transitions=self.twin.max_transitions,
            num_envs=self.twin.num_envs,
            stack_size=self.twin.stack_size,
            stack_padding=self.twin.stack_padding,
            update_horizon=self.twin.update_horizon,
            gamma=self.twin.gamma,
            extras=self.twin.extras,
            **self.options,
        )

    def observation_space(self):
        from gymnasium.spaces import Box, Dict

        def box(shape, dtype):
            limits = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
            return Box(*limits, shape, dtype)

        if list(self.twin.observation) == ["observation"]:
            return box(*self.twin.observation["observation"])
        return Dict(
            {name.split("/")[1]: box(*leaf) for name, leaf in self.twin.observation.items()}
        )

    @staticmethod
    def action_space():
        from gymnasium.spaces import Discrete

        return Discrete(6)

    def reopen(self, **changed):
        """Close and construct again; `changed` may name stack_size, stack_padding,
        update_horizon and gamma.
        """
        self.real.close()
        self.twin.settle_priorities()
        for name, value in changed.items():
            setattr(self.twin, name, value)
        self.twin.cut()
        self.twin.settle_priorities()
        self.real = self.construct()

    # -- recording

    def next_counter(self):
        self.counter += 1
        return self.counter

    def make_observation(self):
        counter = self.next_counter()
        return {
            name: make_frame(shape, dtype, counter)
            for name, (shape, dtype) in self.twin.observation.items()
        }

    def make_step(self, outcomes):
        """The twin's arguments of `add` for one outcome an env."""
        recorded, terminated, truncated, final = zip(
            *(OUTCOMES[outcome] for outcome in outcomes), strict=True
        )
        counters = [self.next_counter() for _ in outcomes]
        step = {
            "observation": [self.make_observation() for _ in outcomes],
            "action": [np.int64(counter % 6) for counter in counters],
            "reward": [(counter % 33 - 16) / 4 for counter in counters],
            "terminated": list(terminated),
            "truncated": list(truncated),
            "mask": list(recorded),
        }
        for name, (shape, dtype) in self.twin.extras.items():
            step[name] = [make_frame(shape, dtype, counter)[()] for counter in counters]
        if any(final):
            step["next_observation"] = [self.make_observation() for _ in outcomes]
            step["next_observation_mask"] = list(final)
        return step

    def step(self, outcomes):
        """One `add` on both sides; `outcomes` has one name of OUTCOMES for each env."""
        step = self.make_step(outcomes)
        expected = self.twin.add(**step)
        if self.twin.num_envs == 1:
            ids = self.add_single(**step) if outcomes[0] != "skip" else np.zeros(0, np.int64)
        else:
            ids = self.add_vector(**step)
        assert ids.dtype == np.int64
        assert ids.tolist() == expected

    def add_single(self, mask, next_observation_mask=None, **step):
        step = {name: values[0] for name, values in step.items()}
        for name in ("observation", "next_observation"):
            if name in step:
                step[name] = self.in_the_space(step[name])
        if not (step["terminated"] or step["truncated"]) and self.counter % 2:
            # Within an episode it is looked at for its shape alone.
            step["next_observation"] = self.in_the_space(self.make_observation())
        return self.real.add(**step)

    def add_vector(self, **step):
        step = {name: list(values) for name, values in step.items()}
        missing = [  # the envs that end without a final observation
            recorded and (terminated or truncated) and not final
            for recorded, terminated, truncated, final in zip(
                step["mask"],
                step["terminated"],
                step["truncated"],
                step.get("next_observation_mask", step["mask"]),
                strict=True,
            )
        ]
        for env, recorded in enumerate(step["mask"]):
            if not recorded:  # what is masked out is not looked at
                step["reward"][env] = float("nan")
                step["terminated"][env] = True
                step["action"][env] = 99
        for name in ("observation", "next_observation"):
            if name in step:
                joined = {
                    field: np.stack([observation[field] for observation in step[name]])
                    for field in self.twin.observation
                }
                step[name] = self.in_the_space(joined)
        if all(step["mask"]) and self.counter % 2:
            del step["mask"]
        if not any(missing) and self.counter % 3:
            step.pop("next_observation_mask", None)  # the default: all that end have one
        observations = {name: step.pop(name, None) for name in ("observation", "next_observation")}
        arrays = {name: np.asarray(values) for name, values in step.items()}
        return self.real.add(**observations, **arrays)

    @staticmethod
    def in_the_space(observation):
        """{"observation": frame} is the frame, {"observation/camera": ...} is {"camera": ...}."""
        if list(observation) == ["observation"]:
            return observation["observation"]
        return {name.split("/")[1]: value for name, value in observation.items()}

    def end_episode(self, envs, led_to_is_known):
        """Cut the episodes of these envs on both sides, or of all if it is None."""
        mask = None if envs is None else [env in envs for env in range(self.twin.num_envs)]
        given = [self.make_observation() for _ in range(self.twin.num_envs)]
        self.twin.end_episode(mask, given if led_to_is_known else None)
        joined = {name: np.stack([one[name] for one in given]) for name in given[0]}
        if self.twin.num_envs == 1:
            joined = {name: rows[0] for name, rows in joined.items()}
        self.real.end_episode(
            None if mask is None else np.array(mask),
            next_observation=self.in_the_space(joined) if led_to_is_known else None,
        )

    def clear(self):
        self.real.clear()
        self.twin.clear()

    def play(self, steps, seed=0, end=0.15, skip=0.2):
        """Random steps: each env is masked out, or ends its episode, with these probabilities."""
        rng = random.Random(seed)
        for _ in range(steps):
            outcomes = []
            for _env in range(self.twin.num_envs):
                if self.twin.num_envs > 1 and rng.random() < skip:
                    outcomes.append("skip")
                else:
                    outcomes.append(rng.choice(ENDS) if rng.random() < end else "go on")
            self.step(outcomes)

    # -- comparing

    def check_counts(self):
        assert len(self.real) == len(self.twin)
        assert self.real.add_count == self.twin.add_count
        statistics = self.real.statistics()
        assert statistics.rows == self.twin.rows
        assert statistics.sampleable == len(self.twin)
        assert statistics.transitions == self.twin.add_count

    def check_gather(self, ids=None):
        ids = self.twin.sampleable_ids() if ids is None else ids
        if not ids:
            return
        batch = self.real.gather(np.asarray(ids, np.int64))
        assert batch.id.tolist() == list(ids)
        assert_transitions_equal(self.twin, batch)
        assert_probabilities_equal(self.twin, batch)
        assert batch.weight.dtype == np.float32
        assert (batch.weight == 1).all()

    def can_sample(self):
        return any(probability > 0 for probability in self.twin.probabilities().values())

    def check_sample(self, batch_size=32, beta=0.4):
        prioritized = self.twin.alpha is not None
        batch = self.real.sample(batch_size, **({"beta": beta} if prioritized else {}))
        assert batch.id.shape == (batch_size,)
        self.check_batch(batch, beta)
        return batch

    def check_batch(self, batch, beta=0.4):
        probabilities = self.twin.probabilities()
        for id in batch.id.tolist():
            assert probabilities.get(id, 0) > 0, f"{id} was drawn, but it cannot be"
        assert_transitions_equal(self.twin, batch)
        assert_probabilities_equal(self.twin, batch)
        assert_weights_equal(self.twin, batch, beta, self.weight_normalization)

    def update_priorities(self, ids, priorities):
        ignored = self.real.update_priorities(
            np.asarray(ids, np.int64), np.asarray(priorities, np.float64)
        )
        assert ignored == self.twin.update_priorities(ids, priorities)

    def check_everything(self):
        self.check_counts()
        self.check_gather()
        if self.can_sample():
            self.check_sample()


# -- what a plain Zarr reader must see

SCALARS = ("action", "reward", "terminated", "truncated", "step", "is_final")


def fields_of_the_format(twin):
    """{path of the array: (shape, dtype, how to read it from a row)} of every recorded field."""
    known = {}
    for name, (shape, dtype) in twin.observation.items():
        known[name] = (shape, dtype, lambda row, name=name: row["observation"][name])
    dtypes = (twin.action[1], "float32", "bool", "bool", "int32", "bool")
    for name, dtype in zip(SCALARS, dtypes, strict=True):
        known[name] = ((), dtype, lambda row, name=name: row[name])
    for name, (shape, dtype) in twin.extras.items():
        known[name] = (shape, dtype, lambda row, name=name: row["extras"][name])
    return known


def expected_array(twin, shape, dtype, value):
    """All rows as one array, and which of them are retained; the others are left zero."""
    longest = max(len(rows) for rows in twin.history)
    array = np.zeros((longest, twin.num_envs, *shape), dtype)
    retained = np.zeros((longest, twin.num_envs), bool)
    for env, rows in enumerate(twin.history):
        for t in range(twin.first[env], len(rows)):
            array[t, env] = value(rows[t])
            retained[t, env] = True
    return array, retained


def never_written(twin):
    """The rows that other envs have, but not this one."""
    missing = np.zeros((max(len(rows) for rows in twin.history), twin.num_envs), bool)
    for env, rows in enumerate(twin.history):
        missing[len(rows) :, env] = True
    return missing


def check_store(path, twin):
    """zarr-python alone reads the twin's rows from the directory `path`."""
    import zarr

    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 3
    written = group.attrs["diskreplay"]
    assert list(written["first"]) == twin.first
    assert list(written["count"]) == [len(rows) for rows in twin.history]
    begin = min(twin.first)  # what every env has evicted may be there or not
    for name, (shape, dtype, value) in fields_of_the_format(twin).items():
        array = group[name]
        expected, retained = expected_array(twin, shape, dtype, value)
        assert array.shape == expected.shape, name
        assert array.dtype == expected.dtype, name
        read, expected, retained = array[begin:], expected[begin:], retained[begin:]
        np.testing.assert_array_equal(read[retained], expected[retained], err_msg=name)
        assert not read[never_written(twin)[begin:]].any(), name
