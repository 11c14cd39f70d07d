"""A row index, and a `Stream` of lists that is told the same rows."""

import numpy as np

from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.row_index_kernels import FINAL, TERMINATED, TRUNCATED
from tests.sequences.naive_sequences import NaiveSequences, Stream

GAMMA = 0.9


class Told:
    """Random rows: episodes that terminate, are truncated or cut, with and without final rows.

    Parameters
    ----------
    kept : int or None
        Rows of each env.
    """

    def __init__(self, rng, num_envs, kept, stack_size=1, horizon=1):
        self.rng, self.num_envs = rng, num_envs
        self.stream = Stream(num_envs, kept)
        self.index = RowIndex(kept, num_envs, stack_size, horizon, GAMMA)
        self.options = {"stack_size": stack_size, "padding": "zero", "gamma": GAMMA}

    def naive(self, length=1, **options):
        """What the lists say."""
        return NaiveSequences(self.stream, length=length, **self.options, **options)

    def rows(self, number):
        """So many more rows of random envs, as `RowIndex.append` takes them."""
        stream, found = self.stream, []
        for _ in range(number):
            env, end = int(self.rng.integers(self.num_envs)), self.rng.random()
            if stream.open[env] is None or self.rng.random() < 0.03:  # cut
                if stream.open[env] is not None and self.rng.random() < 0.5:
                    found.append((env, stream.append(env, "final", stream.next_step(env))))
                stream.begin(env)
                step = 0
            else:
                step = stream.next_step(env)
            ended = end < 0.06, 0.04 < end < 0.12
            row = stream.append(env, "transition", step, int(self.rng.integers(-8, 9)), *ended)
            found.append((env, row))
            if any(ended):
                if self.rng.random() < 0.6:
                    found.append((env, stream.append(env, "final", step + 1)))
                stream.open[env] = None
        flags = [
            FINAL * (row["kind"] == "final") | TERMINATED * row["terminated"]
            | TRUNCATED * row["truncated"]
            for _env, row in found
        ]  # fmt: skip
        return (
            np.array([env for env, _row in found], np.int64),
            np.array([row["step"] for _env, row in found], np.int32),
            np.array(flags, np.uint8),
            np.array([row["reward"] for _env, row in found], np.float32),
        )

    def add(self, number):
        """Tell the index too; returns what it says has changed."""
        rows = self.rows(number)
        if self.index.growing:
            self.index.grow(max(len(each) for each in self.stream.rows))
        left, entered = self.index.append(*rows)
        return left.copy(), entered.copy()

    def evict(self, env, first):
        """Let go of the rows of an env before `first`."""
        self.stream.first[env] = first
        return self.index.evict(env, first)

    def sampleable(self):
        """The ids that the lists say can be sampled, env by env."""
        naive = self.naive(n_step=self.index.horizon)
        return [
            t * self.num_envs + env
            for env in range(self.num_envs)
            for t in range(self.stream.first[env], len(self.stream.rows[env]))
            if naive.is_transition(env, t) and naive.whole(env, t) and naive.target(env, t)
        ]
