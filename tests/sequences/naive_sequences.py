"""Sequences, said with lists and loops, from docs/sequences.md alone; shares nothing with the code.

`Stream` makes rows and knows of each to which episode it belongs, since it began that episode. The
real buffer is told the same by its public calls. `NaiveSequences` says which windows there are, and
what is in each.
"""

import math

import numpy as np


class Stream:
    """`rows[env]` is a list of dicts, evicted rows included; `first[env]` the oldest retained row.

    A row has ``episode`` (a number of its own for each), ``step``, ``kind`` ("transition" or
    "final"), ``reward``, ``terminated``, ``truncated``, ``value`` (its content: the observation's
    every element, the action modulo 5, the extras `h`).
    """

    def __init__(self, num_envs, rows_per_env):
        self.num_envs, self.kept = num_envs, rows_per_env
        self.rows = [[] for _ in range(num_envs)]
        self.open = [None] * num_envs  # the episode under way
        self.first = [0] * num_envs
        self.episodes = self.values = 0

    def begin(self, env):
        self.episodes += 1
        self.open[env] = self.episodes

    def append(self, env, kind, step, reward=0.0, terminated=False, truncated=False):
        self.values += 1
        row = {
            "episode": self.open[env],
            "step": step,
            "kind": kind,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "value": self.values,
        }
        self.rows[env].append(row)
        if self.kept is not None:
            self.first[env] = max(self.first[env], len(self.rows[env]) - self.kept)
        return row

    def next_step(self, env):
        return 0 if self.open[env] is None else self.rows[env][-1]["step"] + 1


class NaiveSequences:
    def __init__(
        self,
        stream,
        *,
        stack_size,
        padding,
        gamma,
        length,
        burn_in=0,
        ahead=None,
        stride=1,
        ends="inside",
        n_step=1,
        arrival=False,
        finished=False,
        returns_to_go=None,
    ):
        self.stream = stream
        self.stack, self.padding, self.gamma = stack_size, padding, gamma
        self.length, self.burn_in, self.stride, self.ends = length, burn_in, stride, ends
        self.ahead = n_step if ahead is None else ahead
        self.n_step, self.arrival, self.finished = n_step, arrival, finished
        self.returns_to_go = returns_to_go
        self.total = burn_in + length + self.ahead

    # -- what is said of rows

    def there(self, env, t):
        return self.stream.first[env] <= t < len(self.stream.rows[env])

    def episode(self, env, t):
        return self.stream.rows[env][t]["episode"]

    def is_transition(self, env, t):
        return self.stream.rows[env][t]["kind"] == "transition"

    def whole(self, env, t):
        """Whether row t is there with each frame of its stack."""
        if not self.there(env, t):
            return False
        step = self.stream.rows[env][t]["step"]
        for k in range(self.stack):
            if k <= step:
                if not self.there(env, t - k) or self.episode(env, t - k) != self.episode(env, t):
                    return False
        return True

    def rows_of(self, env, episode):
        rows = self.stream.rows[env]
        return [t for t in range(len(rows)) if rows[t]["episode"] == episode]

    def over(self, env, t):
        """Whether the episode of row t is over."""
        rows = self.stream.rows[env]
        last = self.rows_of(env, rows[t]["episode"])[-1]
        row = rows[last]
        return (
            row["kind"] == "final"
            or row["terminated"]
            or row["truncated"]
            or last + 1 < len(rows)  # it was cut
        )

    # -- windows

    def is_anchor(self, env, r):
        rows = self.stream.rows[env]
        if not self.there(env, r) or not self.is_transition(env, r) or not self.whole(env, r):
            return False
        learning = range(r, r + self.length)
        same = [
            t for t in learning if t < len(rows) and self.episode(env, t) == self.episode(env, r)
        ]
        transitions = [t for t in same if self.is_transition(env, t)]
        aligned = rows[r]["step"] % self.stride == 0
        if self.ends == "cross":
            if not (r % self.stride == 0 and r + self.length <= len(rows)):
                return False
            return not self.finished or all(self.over(env, t) for t in learning)
        if self.finished and not self.over(env, r):
            return False
        if self.ends == "pad":
            return aligned and (len(same) == self.length or self.over(env, r))
        if len(transitions) == self.length and aligned:
            return True
        if self.ends == "inside" or not self.over(env, r):
            return False
        every = self.rows_of(env, self.episode(env, r))
        last = [t for t in every if self.is_transition(env, t)][-1]
        if len(transitions) == self.length and r + self.length - 1 == last:
            return True
        return rows[r]["step"] == 0 and last - r + 1 < self.length

    def anchors(self):
        return [
            t * self.stream.num_envs + env
            for env in range(self.stream.num_envs)
            for t in range(self.stream.first[env], len(self.stream.rows[env]))
            if self.is_anchor(env, t)
        ]

    def is_position(self, env, r, t):
        return self.whole(env, t) and (
            self.ends == "cross" or self.episode(env, t) == self.episode(env, r)
        )

    def is_first(self, env, t):
        if t - 1 < 0 or not self.whole(env, t - 1):
            return True
        return self.episode(env, t - 1) != self.episode(env, t)

    def target(self, env, t):
        """(rows in the n-step window of row t, whether it ends with a termination), or None."""
        rows = self.stream.rows[env]
        for m in range(1, self.n_step + 1):
            last = rows[t + m - 1]
            if last["terminated"]:
                return m, True
            if t + m >= len(rows) or self.episode(env, t + m) != self.episode(env, t):
                return None
            if rows[t + m]["kind"] == "final":
                return m, False
            if last["truncated"]:
                return None
        return self.n_step, False

    def to_go(self, env, t):
        if not self.over(env, t):
            return math.nan
        total, factor = 0.0, 1.0
        for u in self.rows_of(env, self.episode(env, t)):
            if u >= t:
                total += factor * self.stream.rows[env][u]["reward"]
                factor *= self.returns_to_go
        return total

    def stack_values(self, env, t):
        """The content of each frame of row t's stack, oldest first."""
        step = self.stream.rows[env][t]["step"]
        values = []
        for k in reversed(range(self.stack)):
            if k <= step:
                values.append(self.stream.rows[env][t - k]["value"])
            elif self.padding == "reset":
                values.append(self.stream.rows[env][t - step]["value"])
            else:
                values.append(0)
        return values

    def window(self, anchor):
        """Everything of one window: lists along its positions, `returns` and the like along the
        learning part."""
        env, r = anchor % self.stream.num_envs, anchor // self.stream.num_envs
        rows = self.stream.rows[env]
        w = {
            name: []
            for name in (
                "id", "observed", "transition", "is_first", "is_last", "is_terminal", "begin",
                "learn", "reward", "terminated", "truncated", "step", "value", "stack",
                "returns_to_go",
            )
        }  # fmt: skip
        w |= {"anchor": anchor, "returns": [], "discount": [], "target": [], "state": None}
        for p in range(self.total):
            t = r - self.burn_in + p
            observed = t >= 0 and self.is_position(env, r, t)
            transition = observed and self.is_transition(env, t)
            first = observed and self.is_first(env, t)
            w["id"].append(t * self.stream.num_envs + env if observed else -1)
            w["observed"].append(observed)
            w["transition"].append(transition)
            w["is_first"].append(first)
            w["begin"].append(observed and (first or not any(w["observed"][:-1])))
            source = rows[t] if observed else None
            if observed and self.arrival:
                source = None if first else rows[t - 1]
            w["reward"].append(source["reward"] if source else 0.0)
            w["terminated"].append(bool(source and source["terminated"]))
            w["truncated"].append(bool(source and source["truncated"]))
            w["is_terminal"].append(w["terminated"][-1])
            w["is_last"].append(
                (observed and not transition) or w["terminated"][-1] or w["truncated"][-1]
            )
            w["step"].append(rows[t]["step"] if observed else 0)
            w["value"].append(rows[t]["value"] if transition else 0)
            w["stack"].append(self.stack_values(env, t) if observed else None)
            if self.returns_to_go is not None:
                w["returns_to_go"].append(self.to_go(env, t) if observed else 0.0)
            if observed and w["state"] is None:
                w["state"] = rows[t]["value"] if transition else 0
            if not self.burn_in <= p < self.burn_in + self.length:
                w["learn"].append(False)
                continue
            known = self.target(env, t) if transition else None
            if known is not None and not known[1] and p + known[0] >= self.total:
                known = None
            w["learn"].append(known is not None)
            if known is None:
                w["returns"].append(0.0)
                w["discount"].append(0.0)
                w["target"].append(-1)
            else:
                m, terminal = known
                w["returns"].append(sum(self.gamma**i * rows[t + i]["reward"] for i in range(m)))
                w["discount"].append(0.0 if terminal else self.gamma**m)
                w["target"].append(p if terminal else p + m)
        return w


MASKS = ["observed", "transition", "is_first", "is_last", "is_terminal", "begin", "learn",
         "terminated", "truncated"]  # fmt: skip


def check_batch(naive, batch, *, frame=(), state=False):
    """Hold a batch against the windows of its anchors; returns how many were compared."""
    for i, anchor in enumerate(batch.anchor.tolist()):
        window = naive.window(anchor)
        for name in [*MASKS, "id", "step", "target"]:
            found = batch[name][i].tolist()
            assert found == window[name], f"{name} of window {anchor}: {found}, not {window[name]}"
        for name in ["reward", "returns", "discount"]:
            assert batch[name].dtype == np.float32
            wanted = np.array(window[name], np.float32)
            np.testing.assert_allclose(batch[name][i], wanted, rtol=1e-6, err_msg=name)
        if naive.returns_to_go is not None:
            wanted = np.array(window["returns_to_go"], np.float32)
            np.testing.assert_allclose(batch.returns_to_go[i], wanted, rtol=1e-5, atol=1e-6)
        values = np.array(window["value"])
        assert batch.action[i].tolist() == (values % 5).tolist()
        if state:
            assert batch.h[i] == window["state"]
        else:
            assert batch.h[i].tolist() == values.tolist()
        assert batch.observation.dtype == np.int32
        for p, stack in enumerate(window["stack"]):
            seen = batch.observation[i, p].reshape(naive.stack, -1)
            if stack is not None:
                assert (seen == np.array(stack)[:, None]).all(), f"{anchor}, {p}: {seen}, {stack}"
            elif naive.stack == 1:
                assert not seen.any()
    return len(batch.anchor)
