"""What a row and a batch of ReAgent's buffers have, and the checks of what comes in."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from diskreplay.compat.reagent import elements as from_env
from diskreplay.compat.reagent.elements import ReplayElement
from diskreplay.errors import NotFiniteError
from diskreplay.naming import extra_name

NATIVE = ("observation", "action", "reward")
_REWARD = ((), np.dtype(np.float32))
_NUMBERS = (int, float, bool)
_Spec = tuple[tuple[int, ...], Any]  # shape and dtype


class Element(NamedTuple):
    """An element of a row, and where it is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    column: str

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, as in what RecSim's environments show of users."""
        return 0 in self.shape

    @property
    def stored_as(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of its field: a zero for nothing."""
        return ((), np.dtype(np.uint8)) if self.is_empty else (self.shape, self.dtype)


class Signature:
    """The signatures of a `ReplayBuffer`, of which this is a part."""

    def _describe_rows(
        self,
        observation: _Spec,
        action: _Spec,
        reward: _Spec,
        extras: Sequence[ReplayElement],
        *,
        stack_size: int,
        batch_size: int,
    ) -> None:
        """Say what rows and batches have, and where each element is stored."""
        self._observation_shape, self._observation_dtype = observation
        self._action_shape, self._action_dtype = action
        self._reward_shape, self._reward_dtype = reward
        self._extra_storage_types = list(extras)
        self._stack_size, self._batch_size = stack_size, batch_size
        signature = self.get_add_args_signature()
        self._columns = self._column_names([element.name for element in signature])
        self._keeps_reward = self._columns["reward"] == "reward_"
        self._signature = [
            Element(name, tuple(shape), self._column_dtype(name, dtype), self._columns[name])
            for name, shape, dtype in signature
        ]
        stored = {element.name for element in self.get_storage_signature()}
        self._stored = {e.name: e for e in self._signature if e.name in stored}

    @classmethod
    def create_from_env(
        cls,
        env: Any,
        *,
        replay_memory_size: int,
        batch_size: int,
        stack_size: int = 1,
        store_log_prob: bool = True,
        **kwargs: Any,
    ) -> Self:
        """A buffer for what an environment of gym or gymnasium shows and takes.

        Parameters
        ----------
        env : gymnasium.Env or gym.Env
            With a Box of observations, or one of RecSim's.
        replay_memory_size : int
            The capacity.
        batch_size, stack_size : int
        store_log_prob : bool
            Add the element ``log_prob``, beside ``mdp_id`` and ``sequence_number``.
        **kwargs
            Of the constructor.

        Raises
        ------
        NotImplementedError
            A space is of another kind.
        """
        observation, extras = from_env.environment_elements(env)
        action = from_env.action_space(env)
        extras.append(ReplayElement("mdp_id", (), np.int64))
        extras.append(ReplayElement("sequence_number", (), np.int64))
        if store_log_prob:
            extras.append(ReplayElement("log_prob", (), np.float32))
        given: dict[str, Any] = {
            "observation_shape": tuple(observation.shape), "stack_size": stack_size,
            "replay_capacity": replay_memory_size, "batch_size": batch_size,
            "extra_storage_types": extras, "observation_dtype": observation.dtype,
            "action_shape": tuple(action.shape), "action_dtype": action.dtype,
        }  # fmt: skip
        return cls(**given, **kwargs)

    def get_storage_signature(self) -> list[ReplayElement]:
        """The stored elements of a row."""
        return [
            ReplayElement("observation", self._observation_shape, self._observation_dtype),
            ReplayElement("action", self._action_shape, self._action_dtype),
            ReplayElement("reward", self._reward_shape, self._reward_dtype),
            ReplayElement("terminal", (), np.uint8),
            *self._extra_storage_types,
        ]

    def get_add_args_signature(self) -> list[ReplayElement]:
        """What `add` takes."""
        return self.get_storage_signature()

    def get_transition_elements(self, batch_size: int | None = None) -> list[ReplayElement]:
        """What a batch has, in order. One that a derived class appends arrives uninitialised."""
        size = (self._batch_size if batch_size is None else batch_size,)
        stack = (*self._observation_shape, self._stack_size)
        state = ReplayElement("", size + stack, self._observation_dtype)
        action = ReplayElement("", size + self._action_shape, self._action_dtype)
        reward = ReplayElement("", size + self._reward_shape, self._reward_dtype)
        found = [
            *(element._replace(name=name) for name, element in (
                ("state", state), ("action", action), ("reward", reward),
                ("next_state", state), ("next_action", action), ("next_reward", reward),
            )),
            ReplayElement("terminal", size, np.uint8),
            ReplayElement("indices", size, np.int32),
            ReplayElement("step", size, np.int32),
        ]  # fmt: skip
        for name, shape, dtype in self._extra_storage_types:
            found.append(ReplayElement(name, size + tuple(shape), dtype))
            found.append(ReplayElement(f"next_{name}", size + tuple(shape), dtype))
        return found

    def _column_name(self, name: str) -> str:
        """Where an element is stored: in the field of the same meaning, or else in an extra."""
        if name == "reward" and (self._reward_shape, np.dtype(self._reward_dtype)) != _REWARD:
            return "reward_"  # the store's own has the value as float32, or 0 for a vector
        return name

    def _column_names(self, names: Sequence[str]) -> dict[str, str]:
        """`_column_name` of each, with extras that can be called so and no two of one name."""
        columns = {name: self._column_name(name) for name in names}
        chosen = {name: column for name, column in columns.items() if column != name}
        taken = {column.lower() for column in chosen.values()}
        for name in names:
            if name not in NATIVE and name not in chosen:
                columns[name] = extra_name(name, taken)
        return columns

    def _column_dtype(self, name: str, dtype: Any) -> np.dtype:
        """In which dtype an element is stored."""
        return np.dtype(dtype)

    def _check_add_types(self, *args: Any, **kwargs: Any) -> None:
        """Raise what `add` would raise for these values."""
        self._fit(args, kwargs)

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.ndarray]:
        """The values in the order and the dtypes of the signature."""
        expected = self._signature
        if len(args) + len(kwargs) != len(expected):
            names = [element.name for element in expected]
            raise ValueError(
                f"Add expects: {names}; received {len(args)} values and {sorted(kwargs)}"
            )
        if kwargs:
            args = (*args, *(kwargs[element.name] for element in expected[len(args) :]))
        row = []
        for value, (name, shape, dtype, _column) in zip(args, expected, strict=True):
            kind = type(value)
            if kind is np.ndarray:
                found = value.shape
            elif kind in _NUMBERS:
                found = ()
            else:
                if isinstance(value, torch.Tensor):
                    value = value.detach().cpu().numpy()
                found = np.shape(value)
            if found != shape:
                raise ValueError(f"arg {name} has shape {found}, expected {shape}")
            try:
                row.append(np.asarray(value, dtype))
            except OverflowError as error:  # a Python int: cast as an array's is
                if np.asarray(value).dtype == object:
                    raise ValueError(f"arg {name}: {value} is too large") from error
                row.append(np.asarray(value).astype(dtype))
        if args[3] and not row[3]:  # cast to 0, and yet an end
            row[3] = np.ones((), row[3].dtype)
        if not self._keeps_reward and not math.isfinite(row[2]):
            raise NotFiniteError(f"reward: {row[2]} found, a finite number expected")
        return row
