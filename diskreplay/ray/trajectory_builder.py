"""Rows as they are to be stored, made of steps on the worker."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.errors import PriorityError
from diskreplay.given_numbers import as_reals
from diskreplay.ray.packed_rows import PackedRows
from diskreplay.schema import Schema
from diskreplay.validation import RowValidator, fit_flags


class TrajectoryBuilder:
    """Collects the steps of some envs: `step` and final rows are made here.

    Parameters
    ----------
    schema : Schema
    num_envs : int
    rows : int
        Steps of each env that it holds.

    Attributes
    ----------
    filled : ndarray of int64, shape (num_envs,)
        How many rows each env has.
    transitions : int
        How many rows are transitions.
    is_full : bool
        Whether some env has no room for another step.
    """

    def __init__(self, schema: Schema, num_envs: int, rows: int) -> None:
        self._schema, self.num_envs, self.rows = schema, num_envs, rows
        self._validator = RowValidator(schema, num_envs)
        self.steps = np.zeros(num_envs, np.int32)
        self._left_out = np.zeros(num_envs, np.bool_)
        room = rows + 1  # a step that ends an episode has two rows
        self._columns = [
            np.empty((num_envs, room, *field.shape), field.dtype) for field in schema.fields
        ]
        self._priority = np.empty((num_envs, room))
        self.begin()

    def begin(self) -> None:
        """Collect anew, in the same memory: fresh pages take as long as a copy."""
        self.filled = np.zeros(self.num_envs, np.int64)  # the last one is somebody else's
        self._priority.fill(np.nan)
        self.transitions, self.is_full = 0, False
        self._level: int | None = 0  # how many rows each env has, where all have as many

    def add(
        self, observation: Any, action: Any, reward: Any, terminated: Any, truncated: Any,
        next_observation: Any, mask: Any, priority: Any, extras: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """One step of each env that `mask` names, as `ReplayBuffer.add` has it."""
        validator = self._validator
        envs = validator.envs(mask)
        terminated = validator.flags("terminated", terminated, envs)
        truncated = validator.flags("truncated", truncated, envs)
        rows = validator.rows(
            envs, self.steps, observation, action, reward, terminated, truncated, extras
        )
        ended = terminated | truncated
        ends = np.count_nonzero(ended)  # a third of the time of `any`
        kept, left_out = envs, self._left_out
        final_envs, final = envs[:0], []
        if next_observation is not None:
            final_envs = np.flatnonzero(ended)
            final = validator.frames(final_envs, self.steps + 1, next_observation)
        priorities = self._priorities(priority, envs)
        if np.count_nonzero(left_out):
            kept = envs[~left_out[envs]]
            priorities = None if priorities is None else priorities[~left_out[envs]]
            final_envs = final_envs[~left_out[final_envs]]
            left_out = left_out & ~ended
        filled, level = self._put(kept, self.filled, self._level, rows, priorities)
        if len(final_envs):
            filled, level = self._put(final_envs, filled, level, final, None)
        steps = self.steps + 1
        if len(envs) < self.num_envs:
            steps = self.steps.copy()
            steps[envs] += 1
        if ends:
            steps[ended] = 0
        transitions = self.transitions + len(kept)
        is_full = bool((filled.max() if level is None else level) >= self.rows)
        # Together, and nothing is called in between: Ctrl-C leaves all of the step, or none of it.
        self.filled, self._level, self.steps, self._left_out, self.transitions, self.is_full = (
            filled, level, steps, left_out, transitions, is_full
        )  # fmt: skip

    def end_episodes(self, mask: Any) -> None:
        """Cut the episodes under way: the next step begins one."""
        flags = np.ones(self.num_envs, bool) if mask is None else fit_flags(
            "mask", mask, self.num_envs
        )  # fmt: skip
        self.steps[flags] = 0
        self._left_out[flags] = False

    def leave_out_rests(self, envs: np.ndarray) -> None:
        """Leave out what is yet to come of the episodes under way of some envs, since the rows
        before are gone. Nothing of these envs is collected here.

        Parameters
        ----------
        envs : ndarray of bool, shape (num_envs,)
        """
        self._left_out[envs] = self.steps[envs] > 0

    def _priorities(self, priority: Any, envs: np.ndarray) -> np.ndarray | None:
        if priority is None:
            return None
        try:
            numbers = as_reals("priority", priority, PriorityError, among=envs)
            given = np.broadcast_to(numbers, (self.num_envs,))[envs]
        except ValueError as error:
            raise PriorityError(
                f"priority: a number for each of {self.num_envs} envs expected ({error})"
            ) from error
        if not (np.isnan(given) | ((given >= 0) & (given < np.inf))).all():
            raise PriorityError(
                "priority: finite numbers from 0 on expected, or NaN for the largest"
            )
        return given

    def _put(
        self, envs: np.ndarray, filled: np.ndarray, level: int | None, rows: list[np.ndarray],
        priorities: np.ndarray | None,
    ) -> tuple[np.ndarray, int | None]:  # fmt: skip
        """Put a row of each of these envs behind those that there are; how many there are then."""
        everyone = len(envs) == self.num_envs
        if everyone and level is not None:  # several times as fast as finding each row by itself
            for column, values in zip(self._columns, rows, strict=True):
                column[:, level] = values
            if priorities is not None:
                self._priority[:, level] = priorities
            return filled + 1, level + 1
        at = filled[envs]
        for column, values in zip(self._columns, rows, strict=True):
            column[envs, at] = values if everyone else values[envs]
        if priorities is not None:
            self._priority[envs, at] = priorities
        filled = filled.copy()
        filled[envs] += 1
        return filled, None if len(envs) else level

    def take(self) -> tuple[dict[str, np.ndarray | PackedRows], np.ndarray, np.ndarray, int]:
        """What was collected: columns with the rows of one env behind those of another, how many
        each env has, their priorities, and how many are transitions. Collecting begins anew."""
        filled, transitions = self.filled, self.transitions
        columns = {
            field.name: PackedRows.of(field, column, filled) if field.packed
            else _together(column, filled)
            for field, column in zip(self._schema.fields, self._columns, strict=True)
        }  # fmt: skip
        priority = _together(self._priority, filled)
        self.begin()
        return columns, filled, priority, transitions


def _together(column: np.ndarray, filled: np.ndarray) -> np.ndarray:
    return np.concatenate([column[env, :rows] for env, rows in enumerate(filled.tolist())])
