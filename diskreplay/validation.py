"""What comes in, checked and cast without loss: options, values, whole rows for the store."""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import (
    DtypeError,
    ExtrasError,
    InvalidInputError,
    NotFiniteError,
    PriorityError,
    ShapeError,
    UnknownIdError,
)
from diskreplay.given_numbers import as_array, as_reals
from diskreplay.schema import Schema
from diskreplay.store.field import Field
from diskreplay.store.numbers import LAST_STEP

_FLAGS = ("terminated", "truncated", "is_final")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LARGEST_ID = np.iinfo(np.int64).max
_INTEGERS = {np.dtype(np.int64): 2**63, np.dtype(np.int32): 2**31}


def one_of(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuse a value that is none of these, with an `InvalidInputError`."""
    if isinstance(value, np.ndarray) or value not in choices:
        *some, last = map(repr, choices)
        raise InvalidInputError(
            f"{name}: {', '.join(some)} or {last} expected, found {brief(value)}"
        )


def generator(seed: Any) -> np.random.Generator:
    """What `numpy.random.default_rng` makes of a seed, or an `InvalidInputError`."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"seed: a number from 0 on, a numpy.random.Generator or None expected, found "
            f"{brief(seed)}"
        ) from error


def fit(field: Field, value: Any, lead: tuple[int, ...] = ()) -> np.ndarray | int:
    """`value` as an array of the field's dtype and of shape ``lead + field.shape``.

    Casting follows NumPy's ``same_kind``; integers also go into narrower integers and into floats
    when every value fits. Else a `ShapeError` or a `DtypeError` is raised.
    """
    if type(value) is np.ndarray:
        if value.shape == field.shape and value.dtype is field.dtype and not lead:
            return value
    else:
        if type(value) is int and not lead and field.shape == ():
            most = _INTEGERS.get(field.dtype, 0)
            if -most <= value < most:
                return value  # a Discrete action: an array would only be taken apart again
        value = as_array(field.name, value)
    if value.shape != lead + field.shape:
        hint = ""
        if (
            field.name.startswith(("observation", "next_observation"))
            and value.shape[1:] == lead + field.shape
        ):
            hint = " (give one frame: stacks are made when sampling)"
        raise ShapeError(
            f"{field.name}: shape {lead + field.shape} expected, found {value.shape}{hint}"
        )
    if value.dtype == field.dtype:
        return value
    return cast(field, value)


def cast(field: Field, value: np.ndarray) -> np.ndarray:
    """`value` in the field's dtype, or a `DtypeError`."""
    source, target = value.dtype, field.dtype
    if source.kind in "iu" and target.kind in "iuf":
        with np.errstate(over="ignore", invalid="ignore"):
            result = value.astype(target)
            # Back and compare; a float that rounds up past the integers' range would wrap around.
            same = (result == value).all() if target.kind != "f" else (
                result.astype(np.float64) == value.astype(np.float64)
            ).all() and ((value >= -(2**53)) & (value <= 2**53)).all()  # fmt: skip
        if target.kind in "iu" and value.size and same:
            same = (result < 0).any() == (value < 0).any()
        if same:
            return result
        raise DtypeError(
            f"{field.name}: a value of dtype {source} does not fit into {target} (found "
            f"{value.min()} to {value.max()})"
        )
    if source.kind in "biufc" and np.can_cast(source, target, "same_kind"):
        with np.errstate(over="ignore"):
            return value.astype(target)
    raise DtypeError(
        f"{field.name}: dtype {source} cannot be cast to {target} without loss; convert it first"
    )


def fit_reward(value: Any) -> float:
    """A reward of one step, finite as float32."""
    if type(value) is not float:
        if not isinstance(value, np.floating):
            array = as_array("reward", value)
            if array.shape != ():
                hint = ""
                if array.ndim == 1 and len(array) > 1:
                    hint = (
                        f"; for {len(array)} envs give num_envs={len(array)} and the spaces of "
                        "one: single_observation_space and single_action_space of a vector env"
                    )
                raise ShapeError(f"reward: a number expected, found shape {array.shape}{hint}")
            if array.dtype.kind not in "biuf":
                raise DtypeError(f"reward: a number expected, found dtype {array.dtype}")
            value = array
        value = float(value)
    if not -_FLOAT32_MAX <= value <= _FLOAT32_MAX:
        raise NotFiniteError(f"reward: {value} found, a finite float32 expected")
    return value


def fit_flag(name: str, value: Any) -> bool:
    """`terminated` or `truncated` of one step."""
    if type(value) in (bool, np.bool_):
        return bool(value)
    array = as_array(name, value)
    if array.shape != ():
        raise ShapeError(f"{name}: a bool expected, found shape {array.shape}")
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and array in (0, 1)):
        return bool(array)
    raise DtypeError(f"{name}: a bool expected, found {brief(value)}")


def fit_flags(name: str, value: Any, num_envs: int) -> np.ndarray:
    """`terminated` or `truncated` of a vector step, or a mask."""
    array = value if type(value) is np.ndarray else as_array(name, value)
    if array.shape != (num_envs,):
        raise ShapeError(f"{name}: shape ({num_envs},) expected, found {array.shape}")
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all():
        return array.astype(np.bool_)
    raise DtypeError(f"{name}: bools expected, found dtype {array.dtype}")


def fit_rows(field: Field, value: Any, num_envs: int, envs: np.ndarray) -> np.ndarray:
    """A value for each env, C-contiguous; only those of `envs` are looked at."""
    if type(value) is not np.ndarray:
        value = as_array(field.name, value, among=envs)
    if value.shape != (num_envs, *field.shape):
        hint, space = "", field.name.split("/")[0].removeprefix("next_")
        is_batched = value.shape == field.shape and field.shape[:1] == (num_envs,)
        if is_batched and space in ("observation", "action"):
            hint = (
                f"; the buffer's {space}_space is the one of {num_envs} envs together: make the "
                f"buffer with that of one, which a vector env has as single_{space}_space"
            )
        raise ShapeError(
            f"{field.name}: shape {(num_envs, *field.shape)} expected, found {value.shape}{hint}"
        )
    if value.dtype == field.dtype:
        return np.ascontiguousarray(value)
    if len(envs) == num_envs:
        return np.ascontiguousarray(cast(field, value))
    result = np.zeros(value.shape, field.dtype)
    result[envs] = cast(field, value[envs])
    return result


def _named(field: Field, name: str) -> Field:
    """The same field with a name for messages, which may be longer than one that is a path."""
    made = copy.copy(field)
    object.__setattr__(made, "name", name)
    return made


def _leaves(fields: list[Field], parts: list[Any]) -> list[Any]:
    return [fit(field, part) for field, part in zip(fields, parts, strict=True)]


class RowValidator:
    """Turns what `add` is given into rows: checked, cast, in the order of the fields."""

    def __init__(self, schema: Schema, num_envs: int) -> None:
        self._schema, self._num_envs = schema, num_envs
        self._flat = (schema.observations[0], schema.actions[0]) if schema.is_flat else None
        # Only in messages: each says which of both observations it is about.
        self._next = [_named(field, f"next_{field.name}") for field in schema.observations]
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
        if self._flat is not None:  # by far the most common, and worth two microseconds
            seen, done = self._flat
            row: list[Any] = [fit(seen, observation), fit(done, action)]
        else:
            row = _leaves(schema.observations, schema.observation.flatten(observation))
            row += _leaves(schema.actions, schema.action.flatten(action))
        if type(terminated) is not bool:
            terminated = fit_flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = fit_flag("truncated", truncated)
        row += (fit_reward(reward), terminated, truncated, step, False)
        if extras or schema.extras:
            self._check_extras(extras)
            for name, field in schema.extras.items():
                row.append(fit(field, extras[name]))
        if next_observation is None:
            return row, None
        if terminated or truncated:
            return row, self.frame(step + 1, next_observation, is_next=True)
        self._check_shape(next_observation)
        return row, None

    def frame(self, step: int, observation: Any, *, is_next: bool = False) -> list[Any]:
        """A value for each field of a row that holds only an observation."""
        schema = self._schema
        if is_next:
            leaves = _leaves(self._next, schema.observation.flatten(observation, "next_"))
        else:
            leaves = _leaves(schema.observations, schema.observation.flatten(observation))
        row = [*leaves, *self._zeros[len(leaves) :]]
        row[self._step_at], row[self._final_at] = step, True
        return row

    def _check_shape(self, next_observation: Any) -> None:
        """Of one that is not stored: its values are not looked at, nor what is masked."""
        fields = self._next
        if self._schema.is_flat and getattr(next_observation, "shape", None) == fields[0].shape:
            return
        parts = self._schema.observation.flatten(next_observation, "next_")
        for field, part in zip(fields, parts, strict=True):
            if getattr(part, "shape", None) != field.shape:
                shape = as_array(field.name, part).shape
                if shape != field.shape:
                    raise ShapeError(f"{field.name}: shape {field.shape} expected, found {shape}")

    # -- a step of several envs

    def rows(
        self, envs: np.ndarray, steps: np.ndarray, observation: Any, action: Any, reward: Any,
        terminated: np.ndarray, truncated: np.ndarray, extras: Mapping[str, Any],
    ) -> list[np.ndarray]:  # fmt: skip
        """An array ``(num_envs, *shape)`` for each field, looked at where `envs` record."""
        schema, num_envs = self._schema, self._num_envs
        rows = self._leaf_rows(schema.observations, schema.observation.flatten(observation), envs)
        rows += self._leaf_rows(schema.actions, schema.action.flatten(action), envs)
        reward_field = schema.fields[len(rows)]
        rewards = fit_rows(reward_field, reward, num_envs, envs)
        finite = np.isfinite(rewards)
        if np.count_nonzero(finite) < num_envs and not finite[envs].all():
            env = int(envs[~finite[envs]][0])
            raise NotFiniteError(f"reward: {rewards[env]} of env {env}, a finite float32 expected")
        rows += (rewards, terminated, truncated, steps, np.zeros(num_envs, np.bool_))
        self._check_extras(extras)
        for name, field in schema.extras.items():
            rows.append(fit_rows(field, extras[name], num_envs, envs))
        return rows

    def frames(
        self, envs: np.ndarray, steps: np.ndarray, next_observation: Any
    ) -> list[np.ndarray]:
        """The same of rows that hold only an observation."""
        schema = self._schema
        parts = schema.observation.flatten(next_observation, "next_")
        rows = self._leaf_rows(self._next, parts, envs)
        if not len(envs):
            return []
        for field in schema.fields[len(rows) :]:
            rows.append(np.zeros((self._num_envs, *field.shape), field.dtype))
        rows[self._step_at][:] = steps
        rows[self._final_at][:] = True
        return rows

    def flags(self, name: str, value: Any, envs: np.ndarray) -> np.ndarray:
        """Flags of a vector step, False for envs that do not record."""
        flags = value if type(value) is np.ndarray else as_array(name, value, among=envs)
        if len(envs) != self._num_envs and flags.shape == (self._num_envs,):
            cleared = np.zeros(self._num_envs, flags.dtype)
            cleared[envs] = flags[envs]
            flags = cleared
        return np.ascontiguousarray(fit_flags(name, flags, self._num_envs))

    def envs(self, mask: Any) -> np.ndarray:
        """The envs that a mask lets through; all without one."""
        if mask is None:
            return self._all_envs
        return np.flatnonzero(fit_flags("mask", mask, self._num_envs))

    def _leaf_rows(
        self, fields: list[Field], parts: list[Any], envs: np.ndarray
    ) -> list[np.ndarray]:
        return [
            fit_rows(field, part, self._num_envs, envs)
            for field, part in zip(fields, parts, strict=True)
        ]

    # -- rows as they are stored

    def columns(self, columns: Mapping[str, Any]) -> list[np.ndarray]:
        """An array ``(rows, *shape)`` for each field, from arrays by field name."""
        fields = self._schema.fields
        if not isinstance(columns, Mapping):
            raise InvalidInputError(
                f"extend: arrays by the names of the fields expected, found {brief(columns)}"
            )
        if columns.keys() != set(self._schema.names):
            differing = sorted(columns.keys() ^ set(self._schema.names), key=repr)
            raise InvalidInputError(
                f"extend: an array for each of {self._schema.names} expected; "
                f"{differing[0]!r} is missing or unknown"
            )
        rows = len(np.atleast_1d(as_array("step", columns["step"])))
        fitted = []
        for field in fields:
            if field.name in _FLAGS:
                column = fit_flags(field.name, columns[field.name], rows)
            else:
                column = np.asarray(fit(field, as_array(field.name, columns[field.name]), (rows,)))
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


def row_ids(ids: Any) -> np.ndarray:
    """Row ids that a user gives, as int64 of their shape, or a `DtypeError` or `UnknownIdError`."""
    if type(ids) is not np.ndarray:
        ids = as_array("ids", ids)
    if ids.size == 0:
        return np.empty(ids.shape, np.int64)
    if ids.dtype.kind not in "iu":
        raise DtypeError(f"ids: integers expected, found dtype {ids.dtype}")
    if ids.dtype == np.uint64 and ids.max() > _LARGEST_ID:  # as int64 it would be negative
        raise UnknownIdError(f"id {ids.max()} was never handed out: no row has one so large")
    return np.asarray(ids, np.int64, order="C")


def checked_ids(ids: Any) -> np.ndarray:
    """The same along one axis, or a `ShapeError`."""
    checked = row_ids(ids)
    if checked.size == 0:
        return np.empty(0, np.int64)
    if checked.ndim != 1:
        raise ShapeError(f"ids: one axis expected, found shape {checked.shape}")
    return checked


def checked_priorities(ids: np.ndarray, priorities: Any) -> np.ndarray:
    """As float64, one for each id; a `PriorityError` or a `ShapeError` where they are not."""
    priorities = as_reals("priorities", priorities, PriorityError)
    if priorities.shape != ids.shape:
        raise ShapeError(f"priorities: shape {ids.shape} expected, found {priorities.shape}")
    return priorities


def known_extras(what: str, names: Any, extras: Collection[str]) -> tuple[str, ...]:
    """The names of one or of several of these extras, or an `InvalidInputError`."""
    names = tuple(field_names(names, what))
    for name in names:
        if name not in extras:
            there = ", ".join(extras) or "none at all"
            raise InvalidInputError(f"{what}: there is no extra {brief(name)}; there are: {there}")
    return names


def field_names(field: str | Sequence[str], what: str = "field") -> list[str]:
    """The names of one field or of several, or an `InvalidInputError`."""
    if isinstance(field, str):
        return [field]
    names = list(field) if isinstance(field, Iterable) else [field]
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"{what}: a name or several expected, found {brief(field, 200)}")
    return names
