"""N-step rows, made from single steps as they come."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.compat.cpprb.columns import Arrays, Columns, names
from diskreplay.errors import NotFiniteError
from diskreplay.given_numbers import whole


class NstepBuffer:
    """The steps whose n-step window is not whole yet.

    Parameters
    ----------
    env_dict : dict
        As for `ReplayBuffer`; needs ``done``.
    Nstep : dict
        ``size``: n. ``rew``: name or names of the rewards to sum. ``gamma``: discount, 0.99.
        ``next``: name or names taken from the newest step of a window. ``exact_done``: whether a
        row is done when the last step of its whole window is, False as in the original.
    default_dtype : dtype, optional
    stack_compress : names, optional
        Without effect.
    next_of : names, optional

    Notes
    -----
    A row is done if one of its steps is; but the last step of a whole window does not count, unless
    ``exact_done`` is set or n is 1.
    """

    def __init__(
        self,
        env_dict: Mapping[str, Mapping[str, Any]],
        Nstep: Mapping[str, Any],
        *,
        stack_compress: Any = None,
        default_dtype: Any = None,
        next_of: Any = None,
    ) -> None:
        self.columns = Columns(env_dict, names(next_of), default_dtype)
        self.size, self.gamma = whole("Nstep: size", Nstep["size"]), float(Nstep.get("gamma", 0.99))
        self._rewards, self._next = names(Nstep.get("rew")), names(Nstep.get("next"))
        self._exact = bool(Nstep.get("exact_done", False)) or self.size == 1
        self._steps: Arrays = {}

    def add(self, **columns: Any) -> Arrays | None:
        """Take in steps; the rows that are whole now, or None."""
        rows, self._steps = self.roll(self.columns.rows(columns))
        return rows

    def on_episode_end(self) -> Arrays:
        """The rows of the steps that are left, with shorter sums."""
        rows = self.rest()
        self.clear()
        if rows is None:
            columns = self.columns.by_name.values()
            rows = {c.name: np.empty((0, *c.shape), c.dtype) for c in columns}
        return rows

    def get_Nstep_size(self) -> int:
        """n."""
        return self.size

    def clear(self) -> None:
        """Forget the steps that are left."""
        self._steps = {}

    def keep(self, steps: Arrays) -> None:
        """Take over what `roll` left, once its rows are stored."""
        self._steps = steps

    def roll(self, rows: Arrays) -> tuple[Arrays | None, Arrays]:
        """The rows that become whole with these steps, and the steps that are left. Nothing
        changes: the rows may yet fail to be stored.

        Raises
        ------
        KeyError
            ``done``, or a name in ``rew`` or ``next``, is no column.
        """
        before = self._steps or {name: values[:0] for name, values in rows.items()}
        joined = {name: np.concatenate([before[name], rows[name]]) for name in rows}
        total = len(joined["done"])
        for name in (*self._rewards, *self._next):
            joined[name]  # refused at the first step, not at the n-th
        whole = total - self.size + 1
        if whole <= 0:
            return None, joined
        left = {name: values[whole:].copy() for name, values in joined.items()}
        return self._windows(joined, whole, last_counts=self._exact), left

    def check_finite(self, name: str, steps: Arrays) -> None:
        """Refuse steps that are to wait, if the sums that they begin are not finite. Else the rows
        that they become are refused, one after the other, whatever comes.

        Raises
        ------
        NotFiniteError
        """
        rewards = np.abs(steps[name], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            most = rewards.sum() * np.float64(max(abs(self.gamma), 1.0)) ** self.size
            if most <= np.finfo(steps[name].dtype).max or not len(rewards):
                return  # whatever the signs are
            sums = self._windows(steps, len(rewards), last_counts=True)[name]
        bad = ~np.isfinite(sums).reshape(len(sums), -1).all(axis=1)
        if bad.any():
            raise NotFiniteError(
                f"{name}: {steps[name][-1]} found, and a sum of {sums[bad.argmax()]} for the steps "
                f"that wait; a finite {steps[name].dtype} expected"
            )

    def rest(self) -> Arrays | None:
        """The rows of the steps that are left, which stay."""
        if not self._steps or not len(self._steps["done"]):
            return None
        return self._windows(self._steps, len(self._steps["done"]), last_counts=True)

    def _windows(self, steps: Arrays, count: int, *, last_counts: bool) -> Arrays:
        total = len(steps["done"])
        ended = (steps["done"] != 0).reshape(total, -1).any(axis=1)
        first = np.arange(count)
        rows = {name: values[:count].copy() for name, values in steps.items()}
        terms = {name: _floating(steps[name]).copy() for name in self._rewards}
        sums = {name: values[:count].copy() for name, values in terms.items()}
        running = np.ones(count, np.bool_)  # no done before step j of the window
        gamma = np.float32(self.gamma)  # the original's, and each term times it j times
        for j in range(1, self.size):
            at = np.minimum(first + j, total - 1)
            running &= (first + j < total) & ~ended[np.minimum(first + j - 1, total - 1)]
            for name, total_reward in sums.items():
                terms[name] *= gamma
                reward = terms[name][at]
                more = running.reshape(-1, *[1] * (reward.ndim - 1))
                total_reward += np.where(more, reward, 0)
        for name, total_reward in sums.items():
            rows[name] = total_reward.astype(steps[name].dtype)
        seen = np.concatenate([[0], np.cumsum(ended)])
        stop = np.minimum(first + self.size - (not last_counts), total)
        done = seen[stop] > seen[first]
        rows["done"][:] = done.reshape(-1, *[1] * (rows["done"].ndim - 1))
        newest = np.minimum(first + self.size - 1, total - 1)
        for name in self._next:
            rows[name] = steps[name][newest]
        return rows


def _floating(rewards: np.ndarray) -> np.ndarray:
    return rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)
