"""What `add` is given, as rows for the store: checked, cast, in the order of the fields."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import spaces, values
from diskreplay.errors import DtypeError, ExtrasError, InvalidInputError, NotFiniteError, ShapeError
from diskreplay.schema import Schema
from diskreplay.store.format import Field
from diskreplay.store.numbers import LAST_STEP

_FLAGS = ("terminated", "truncated", "is_final")


class Fitting:
    """Turns steps into rows. Knows the schema; changes nothing.

    Parameters
    ----------
    schema : Schema
    num_envs : int
    """

    def __init__(self, schema: Schema, num_envs: int) -> None:
        self._schema, self._num_envs = schema, num_envs
        self._all_envs = np.arange(num_envs)
        self._zeros = [np.zeros((), field.dtype) for field in schema.fields]
        self._step_at = schema.names.index("step")
        self._final_at = schema.names.index("is_final")

    # -- one env

    def row(
        self, step: int, observation: Any, action: Any, reward: Any, terminated: Any,
        truncated: Any, next_observation: Any, extras: Mapping[str, Any],
    ) -> tuple[list[Any], list[Any] | None]:  # fmt: skip
        """A value for each field, and those of a final row if the episode ends with one."""
        schema = self._schema
        if schema.is_flat:  # by far the most common, and worth two microseconds
            row = [
                values.fit(schema.observations[0], observation),
                values.fit(schema.actions[0], action),
            ]
        else:
            row = self._leaves(schema.observation_space, schema.observations, observation)
            row += self._leaves(schema.action_space, schema.actions, action)
        if type(terminated) is not bool:
            terminated = values.fit_flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = values.fit_flag("truncated", truncated)
        row += (values.fit_reward(reward), terminated, truncated, step, False)
        if extras or schema.extras:
            self._check_extras(extras)
            for name, field in schema.extras.items():
                row.append(values.fit(field, extras[name]))
        if next_observation is None:
            return row, None
        if terminated or truncated:
            return row, self.frame(step + 1, next_observation, "next_observation")
        self._check_shape(next_observation)
        return row, None

    def frame(self, step: int, observation: Any, what: str = "observation") -> list[Any]:
        """A value for each field of a row that holds only an observation."""
        schema = self._schema
        leaves = self._leaves(schema.observation_space, schema.observations, observation)
        row = [*leaves, *self._zeros[len(leaves) :]]
        row[self._step_at], row[self._final_at] = step, True
        return row

    def _leaves(self, space: gym_spaces.Space, fields: list[Field], value: Any) -> list[Any]:
        parts = spaces.flatten(space, value, fields[0].name.split("/")[0])
        return [values.fit(field, part) for field, part in zip(fields, parts, strict=True)]

    def _check_shape(self, next_observation: Any) -> None:
        fields = self._schema.observations
        if self._schema.is_flat and getattr(next_observation, "shape", None) == fields[0].shape:
            return
        parts = spaces.flatten(self._schema.observation_space, next_observation, "observation")
        for field, part in zip(fields, parts, strict=True):
            if np.shape(part) != field.shape:
                raise ShapeError(
                    f"next_{field.name}: shape {field.shape} expected, found {np.shape(part)}"
                )

    # -- a step of several envs

    def rows(
        self, envs: np.ndarray, steps: np.ndarray, observation: Any, action: Any, reward: Any,
        terminated: np.ndarray, truncated: np.ndarray, extras: Mapping[str, Any],
    ) -> list[np.ndarray]:  # fmt: skip
        """An array ``(num_envs, *shape)`` for each field, looked at where `envs` record."""
        schema, num_envs = self._schema, self._num_envs
        rows = self._leaf_rows(schema.observation_space, schema.observations, observation, envs)
        rows += self._leaf_rows(schema.action_space, schema.actions, action, envs)
        reward_field = schema.fields[len(rows)]
        rewards = values.fit_rows(reward_field, reward, num_envs, envs)
        if not np.isfinite(rewards[envs]).all():
            env = int(envs[~np.isfinite(rewards[envs])][0])
            raise NotFiniteError(f"reward: {rewards[env]} of env {env}, a finite float32 expected")
        rows += (rewards, terminated, truncated, steps, np.zeros(num_envs, np.bool_))
        self._check_extras(extras)
        for name, field in schema.extras.items():
            rows.append(values.fit_rows(field, extras[name], num_envs, envs))
        return rows

    def frames(self, envs: np.ndarray, steps: np.ndarray, observation: Any) -> list[np.ndarray]:
        """The same of rows that hold only an observation."""
        schema = self._schema
        rows = self._leaf_rows(schema.observation_space, schema.observations, observation, envs)
        if not len(envs):
            return []
        for field in schema.fields[len(rows) :]:
            rows.append(np.zeros((self._num_envs, *field.shape), field.dtype))
        rows[self._step_at][:] = steps
        rows[self._final_at][:] = True
        return rows

    def flags(self, name: str, value: Any, envs: np.ndarray) -> np.ndarray:
        """Flags of a vector step, False for envs that do not record."""
        flags = np.asarray(value)
        if len(envs) != self._num_envs and flags.shape == (self._num_envs,):
            cleared = np.zeros(self._num_envs, flags.dtype)
            cleared[envs] = flags[envs]
            flags = cleared
        return np.ascontiguousarray(values.fit_flags(name, flags, self._num_envs))

    def envs(self, mask: Any) -> np.ndarray:
        """The envs that a mask lets through; all without one."""
        if mask is None:
            return self._all_envs
        return np.flatnonzero(values.fit_flags("mask", mask, self._num_envs))

    def _leaf_rows(
        self, space: gym_spaces.Space, fields: list[Field], value: Any, envs: np.ndarray
    ) -> list[np.ndarray]:
        parts = spaces.flatten(space, value, fields[0].name.split("/")[0])
        return [
            values.fit_rows(field, part, self._num_envs, envs)
            for field, part in zip(fields, parts, strict=True)
        ]

    # -- rows as they are stored

    def columns(self, columns: Mapping[str, Any]) -> list[np.ndarray]:
        """An array ``(rows, *shape)`` for each field, from arrays by field name."""
        fields = self._schema.fields
        if columns.keys() != set(self._schema.names):
            differing = sorted(columns.keys() ^ set(self._schema.names))
            raise InvalidInputError(
                f"extend: an array for each of {self._schema.names} expected; "
                f"{differing[0]!r} is missing or unknown"
            )
        rows = len(np.atleast_1d(columns["step"]))
        fitted = []
        for field in fields:
            if field.name in _FLAGS:
                column = values.fit_flags(field.name, columns[field.name], rows)
            else:
                column = values.fit(field, np.asarray(columns[field.name]), (rows,))
            fitted.append(column)
        named = dict(zip(self._schema.names, fitted, strict=True))
        if not np.isfinite(named["reward"]).all():
            at = int(np.isfinite(named["reward"]).argmin())
            raise NotFiniteError(
                f"reward: {named['reward'][at]} at position {at}, a finite float32 expected"
            )
        if (named["step"] < 0).any():
            raise DtypeError("step: a negative number found; steps count from 0 in each episode")
        if (named["step"][~named["is_final"]] == LAST_STEP).any():
            raise DtypeError(
                f"step: {LAST_STEP} found, which is for the final row of the longest episode only; "
                "end the episode earlier"
            )
        return fitted

    def _check_extras(self, extras: Mapping[str, Any]) -> None:
        expected = self._schema.extras.keys()
        if extras.keys() == expected:
            return
        missing, unknown = sorted(expected - extras.keys()), sorted(extras.keys() - expected)
        what = [f"{name!r} is missing" for name in missing]
        what += [f"{name!r} is unknown" for name in unknown]
        raise ExtrasError(
            f"add: {', '.join(what)}; the extras of this buffer are {sorted(expected)}"
        )
