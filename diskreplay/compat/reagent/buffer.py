"""ReAgent's replay buffer."""

import logging
import math
import os
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, Literal

import numpy as np
import torch

from diskreplay.compat.base import in_memory
from diskreplay.compat.reagent.checkpointing import Checkpointing
from diskreplay.compat.reagent.elements import ReplayElement, native_rewards
from diskreplay.compat.reagent.signature import NATIVE
from diskreplay.compat.reagent.transitions import Transitions
from diskreplay.compat.reagent.validity import Validity
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.convert.gz_files import STORE_PREFIX as STORE_FILENAME_PREFIX
from diskreplay.errors import SchemaError, UsageError
from diskreplay.locks import one_call
from diskreplay.spaces import box
from diskreplay.store.checkpoint_names import CHECKPOINT_DURATION
from diskreplay.store.store import Store
from diskreplay.validation import one_of

__all__ = ["CHECKPOINT_DURATION", "STORE_FILENAME_PREFIX", "ReplayBuffer", "ReplayElement"]

_logger = logging.getLogger(__name__)


class ReplayBuffer(Checkpointing):
    """Experience replay with ReAgent's calls, which stores frames once and stacks them on sampling.

    Parameters
    ----------
    observation_shape : tuple of int
    stack_size : int
        Frames in a state. Before each episode so many zero rows less one are written.
    replay_capacity : int
        Rows kept, padding included.
    batch_size : int
    return_everything_as_stack : bool
        Return the single rewards of the stack, and not their n-step sum. (All else is stacked
        whenever `stack_size` is more than 1.)
    return_as_timeline_format : bool
        Return rewards and what follows as lists, with all steps of each n-step window.
    update_horizon : int
        The n of n-step returns.
    gamma : float
    max_sample_attempts : int
        For `PrioritizedReplayBuffer`.
    extra_storage_types : list of ReplayElement, optional
        Further elements of each row.
    observation_dtype, action_shape, action_dtype, reward_shape, reward_dtype
    path : path, optional
        The store's directory; one that is there is continued. None: a temporary one, which is gone
        when the process ends.
    compressor : str or dict
        As for `diskreplay.ReplayBuffer`.
    checkpoint_format : {"reagent", "native"}
        What `save` writes.

    Attributes
    ----------
    add_count : ndarray of int64, shape ()
        Rows ever added, padding included.

    Raises
    ------
    AssertionError
        `observation_shape` is no tuple.
    ValueError
        The capacity holds no transition.
    SchemaError
        The store at `path` has other rows, or another stack size.
    """

    _FACADE, _WEIGHTED = "reagent", False

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        stack_size: int,
        replay_capacity: int,
        batch_size: int,
        return_everything_as_stack: bool = False,
        return_as_timeline_format: bool = False,
        update_horizon: int = 1,
        gamma: float = 0.99,
        max_sample_attempts: int = 1000,
        extra_storage_types: list[ReplayElement] | None = None,
        observation_dtype: Any = np.uint8,
        action_shape: tuple[int, ...] = (),
        action_dtype: Any = np.int32,
        reward_shape: tuple[int, ...] = (),
        reward_dtype: Any = np.float32,
        *,
        path: str | os.PathLike[str] | None = None,
        compressor: str | Mapping[str, str] = "auto",
        checkpoint_format: Literal["reagent", "native"] = "reagent",
    ) -> None:
        if not isinstance(observation_shape, tuple):
            raise AssertionError(f"observation_shape: a tuple expected, found {observation_shape}")
        if replay_capacity < update_horizon + stack_size:
            raise ValueError(
                f"There is not enough capacity to cover update_horizon and stack_size: "
                f"{replay_capacity} found, {update_horizon} + {stack_size} needed"
            )
        one_of("checkpoint_format", checkpoint_format, ("reagent", "native"))
        if return_as_timeline_format and update_horizon <= 1:
            _logger.warning(
                "return_as_timeline_format with an update_horizon of 1: each list has one step"
            )
        self._replay_capacity, self._update_horizon = replay_capacity, update_horizon
        self._gamma, self._max_sample_attempts = gamma, max_sample_attempts
        self._return_everything_as_stack = return_everything_as_stack
        self._return_as_timeline_format = return_as_timeline_format
        self._checkpoint_format = checkpoint_format
        self._describe_rows(
            (observation_shape, observation_dtype), (tuple(action_shape), action_dtype),
            (tuple(reward_shape), reward_dtype), extra_storage_types or [],
            stack_size=stack_size, batch_size=batch_size,
        )  # fmt: skip
        self._nothing = dict.fromkeys(e.column for e in self._signature if e.is_empty)
        observation, action = (self._stored[name].stored_as for name in ("observation", "action"))
        self._blank = np.zeros(*observation)
        self._decays = gamma ** torch.arange(update_horizon)
        self._elements = batch_size, self.get_transition_elements(batch_size)
        names = [element.name for element in self._elements[1]]
        self._batch_type = namedtuple("batch_type", names)  # type: ignore[misc] # one for each
        self._readers = [self._reader(name) for name in names]
        self.add_count = np.array(0)
        super().__init__(
            path, replay_capacity, self._FACADE, weighted=self._WEIGHTED, compressor=compressor,
            batch_size=batch_size, stack_size=stack_size, update_horizon=update_horizon,
            gamma=gamma, resume_episodes=True, notes={"stack_size": stack_size},
            check=partial(self._check_saved, stack_size),
        )  # fmt: skip
        self._make_ring(
            box(*observation),
            box(*action),
            {e.column: e.stored_as for e in self._signature if e.column not in NATIVE},
        )

    # -- adding

    @one_call
    def add(
        self, observation: Any, action: Any, reward: Any, terminal: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Add a row, and before an episode's first the padding.

        Parameters
        ----------
        observation, action, reward
        terminal : int or bool
            Anything but 0 ends the episode.
        *args, **kwargs
            The further elements, in the order of `get_add_args_signature` or by name.

        Raises
        ------
        ValueError
            Too few or too many values, or one of another shape; a NaN or infinite float32 reward.
        KeyError
            An unknown name.
        DiskFullError
            In all these cases the row was not added.
        """
        row = self._fit((observation, action, reward, terminal, *args), kwargs)
        try:
            self._put(row)
        except BaseException:
            if self._ring.count != self._count:  # Ctrl-C after a commit: the row stays
                self._hand_over(self._ring, closing=False)
                self._recall(self._ring)
            raise

    def _put(self, row: list[np.ndarray]) -> None:
        """Write a row; the count moves last, so that an interruption shows."""
        validity = self._validity
        while validity.padding_due:
            slot = self._count % self._replay_capacity
            self._ring.add_frame(self._blank)
            for _place, column in self._small_places:
                column[slot] = 0
            self._written(slot, None)
            validity.pad(slot)
            self._count += 1
        reward, ends = row[2], int(row[3])
        if self._keeps_reward:
            reward = native_rewards(reward[None])[0]
        stored: dict[str, Any] = dict(zip(self._columns.values(), row, strict=True)) | self._nothing
        stored["reward"], stored["terminated"] = float(reward), ends != 0
        slot = self._count % self._replay_capacity
        self._ring.put(stored)
        for place, column in self._small_places:
            column[slot] = row[place]
        self._written(slot, row)
        validity.add(slot, ends)
        self.add_count[()] = self._count + 1
        self._count += 1

    def _written(self, slot: int, row: list[np.ndarray] | None) -> None:
        """A row is in `slot` now, None for padding."""

    # -- where rows are

    def is_empty(self) -> bool:
        """Whether no row was ever added."""
        return self._count == 0

    def is_full(self) -> bool:
        """Whether each slot has a row."""
        return self._count >= self._replay_capacity

    def cursor(self) -> int:
        """The slot of the next row."""
        return self._count % self._replay_capacity

    @property
    def size(self) -> int:
        """Valid slots."""
        return self._validity.size

    @property
    def _is_index_valid(self) -> torch.Tensor:
        """A copy: `set_index_valid_status` changes it."""
        return torch.from_numpy(self._validity.valid.copy())

    @property
    def _store(self) -> "_Stored":
        return _Stored(self)

    def is_valid_transition(self, index: Any) -> bool | torch.Tensor:
        """Whether a slot can be sampled, of several slots a tensor; IndexError where there is
        none."""
        valid = torch.from_numpy(self._validity.valid)[index]
        return valid.clone() if valid.ndim else bool(valid)

    def set_index_valid_status(self, idx: int, is_valid: bool) -> None:
        """Say otherwise. Reopening, `load` and an interrupted `add` find out again by the rules."""
        self._validity.set(range(self._replay_capacity)[int(idx)], bool(is_valid))

    # -- sampling

    def sample_index_batch(self, batch_size: int) -> torch.Tensor:
        """Draw valid slots with torch's generator, uniformly and with replacement.

        Returns
        -------
        Tensor of int64, shape (batch_size,)

        Raises
        ------
        RuntimeError
            None is valid.
        """
        if not self.size:
            raise RuntimeError(f"Cannot sample {batch_size}: no row is valid so far")
        ranks = torch.randint(self.size, (batch_size,))
        return torch.from_numpy(self._validity.at(ranks.numpy()))

    def sample_all_valid_transitions(self) -> tuple[Any, ...]:
        """All of them, in ascending order of slots; see `sample_transition_batch`."""
        slots = torch.from_numpy(np.flatnonzero(self._validity.valid))
        return self.sample_transition_batch(batch_size=len(slots), indices=slots)

    @one_call
    def sample_transition_batch(
        self, batch_size: int | None = None, indices: torch.Tensor | None = None
    ) -> tuple[Any, ...]:
        """Draw transitions.

        Parameters
        ----------
        batch_size : int, optional
            Default: that of the constructor.
        indices : Tensor, shape (batch_size,), optional
            Slots to take instead, modulo the capacity, valid or not.

        Returns
        -------
        namedtuple of Tensor
            ``state, action, reward, next_state, next_action, next_reward, terminal, indices, step``
            and ``x, next_x`` for each further element. Scalars have the shape (batch_size, 1);
            stacks are the last axis. Copies. What follows a terminal is undefined.

        Raises
        ------
        RuntimeError
            No row is valid.
        AssertionError
            `indices` is no tensor, or of another shape.
        ClosedError, ForkedError
            The buffer was closed, or is the parent process's.
        """
        self._ring.check_open()
        batch_size = self._batch_size if batch_size is None else batch_size
        is_drawn = indices is None
        if is_drawn:
            indices = self.sample_index_batch(batch_size)
        elif not isinstance(indices, torch.Tensor):
            raise AssertionError(f"indices: a torch.Tensor expected, found {type(indices)}")
        if not is_drawn or indices.dtype != torch.int64:
            indices = indices.to(torch.int64, copy=not is_drawn)
        if indices.shape != (batch_size,):
            raise AssertionError(
                f"indices: shape ({batch_size},) expected, found {tuple(indices.shape)}"
            )
        rows = Transitions(
            self._ring, self._columns, self._small, self._validity.terminal, self._stack_size,
            self._update_horizon, indices, timeline=self._return_as_timeline_format,
        )  # fmt: skip
        if batch_size != self._elements[0]:
            self._elements = batch_size, self.get_transition_elements(batch_size)
        return self._batch_type(*[
            self._filled(element, rows.slots) if read is None else read(rows)
            for element, read in zip(self._elements[1], self._readers, strict=True)
        ])  # fmt: skip

    def _reader(self, name: str) -> Callable[[Transitions], Any] | None:
        """What reads an element of a batch; None for one that is not stored."""
        if name in ("indices", "step", "terminal"):
            return attrgetter(name)
        if name == "reward" and self._return_as_timeline_format:
            return methodcaller("along", name)
        if name == "reward" and not self._return_everything_as_stack:
            return methodcaller("discounted", name, self._decays)
        if name in ("state", "next_state"):
            return methodcaller("now" if name == "state" else "next", "observation")
        if name in self._stored:
            return methodcaller("now", name)
        if name.startswith("next_") and name[5:] in self._stored:
            return methodcaller("next", name[5:])
        return None

    def _filled(self, element: ReplayElement, slots: np.ndarray) -> torch.Tensor:
        """An element that is not stored, for derived classes to fill."""
        empty = np.empty(element.shape, element.type)
        return torch.from_numpy(empty if empty.ndim != 1 else empty[:, None])

    # -- the disk

    @staticmethod
    def _check_saved(stack_size: int, saved: Store) -> None:
        """Refuse rows with the padding of another stack size."""
        found = saved.meta["notes"].get("stack_size")
        if found != stack_size:
            raise SchemaError(
                f"{saved.path}: written with stack_size={found}, and its padding fits no other; "
                f"{stack_size} asked for"
            )

    def _recall(self, ring: SlotBuffer) -> None:
        self._count = ring.count
        self.add_count[()] = ring.count
        # Small columns are kept in memory too, by slot: a batch needs all of them.
        slots = ring.retained % ring.capacity
        self._small, self._small_places = {}, []
        sizes = {n: math.prod(e.shape) * e.dtype.itemsize for n, e in self._stored.items()}
        small = in_memory(sizes, ring.capacity)
        for place, element in enumerate(self._signature):
            name = element.name
            if name in small and name != "terminal":
                self._small[name] = np.zeros((ring.capacity, *element.shape), element.dtype)
                if not element.is_empty:
                    self._small[name][slots] = ring.column(element.column)
                    self._small_places.append((place, self._small[name]))
        self._validity = Validity(
            self._replay_capacity, self._stack_size, self._update_horizon, ring.count,
            ring.column("terminal"), ring.column("is_final"),
        )  # fmt: skip
        self._small["terminal"] = self._validity.terminal


class _Stored(Mapping[Any, Any]):
    """All slots of each stored element as a tensor, read when it is asked for; a copy."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, name: str) -> torch.Tensor:
        buffer = self._buffer
        slots = np.arange(buffer._replay_capacity)
        return torch.from_numpy(buffer._read(buffer._stored[name], slots))

    def __setitem__(self, name: str, value: Any) -> None:
        raise UsageError(
            f"_store[{name!r}] cannot be set: rows are on the disk; `add` and `load` change them"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffer._stored)

    def __len__(self) -> int:
        return len(self._buffer._stored)
