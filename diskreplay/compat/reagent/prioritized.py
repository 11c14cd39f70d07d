"""ReAgent's prioritized replay buffer."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from diskreplay.compat.reagent.buffer import ReplayBuffer
from diskreplay.compat.reagent.elements import ReplayElement
from diskreplay.compat.reagent.sum_tree import LARGEST, SumTree
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import FormatError
from diskreplay.locks import one_call
from diskreplay.store.store import Store

_COLUMN = "priority_"  # `priority` is the format's own


class PrioritizedReplayBuffer(ReplayBuffer):
    """Experience replay that draws rows in proportion to the priorities they are given.

    Parameters
    ----------
    observation_shape, stack_size, replay_capacity, batch_size, update_horizon, gamma
    max_sample_attempts : int
        Draws of a batch that may hit rows which are not valid.
    extra_storage_types, observation_dtype, action_shape, action_dtype, reward_shape, reward_dtype
    path, compressor, checkpoint_format
        All as for `ReplayBuffer`.

    Attributes
    ----------
    sum_tree : SumTree
        One leaf a slot.

    Notes
    -----
    A priority is used as it is: there is no exponent, and no importance weight.
    """

    _FACADE, _WEIGHTED = "reagent_prioritized", True
    _row_notes = ("weighed",)
    _note_bounds: ClassVar[dict[str, tuple[float, float]]] = {
        "max_recorded_priority": (0.0, LARGEST)
    }

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        stack_size: int,
        replay_capacity: int,
        batch_size: int,
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
        super().__init__(
            observation_shape, stack_size, replay_capacity, batch_size,
            update_horizon=update_horizon, gamma=gamma, max_sample_attempts=max_sample_attempts,
            extra_storage_types=extra_storage_types, observation_dtype=observation_dtype,
            action_shape=action_shape, action_dtype=action_dtype, reward_shape=reward_shape,
            reward_dtype=reward_dtype, path=path, compressor=compressor,
            checkpoint_format=checkpoint_format,
        )  # fmt: skip

    # -- what rows have

    def get_add_args_signature(self) -> list[ReplayElement]:
        """What `add` takes: the stored elements, and the priority."""
        return [*super().get_add_args_signature(), ReplayElement("priority", (), np.float32)]

    def get_transition_elements(self, batch_size: int | None = None) -> list[ReplayElement]:
        """What a batch has: as for `ReplayBuffer`, and the priorities."""
        batch_size = self._batch_size if batch_size is None else batch_size
        return [
            *super().get_transition_elements(batch_size),
            ReplayElement("sampling_probabilities", (batch_size,), np.float32),
        ]

    def _column_name(self, name: str) -> str:
        return _COLUMN if name == "priority" else super()._column_name(name)

    def _column_dtype(self, name: str, dtype: Any) -> np.dtype:
        # The tree takes priorities as they come, whatever the signature says of their dtype.
        return np.dtype(np.float64) if name == "priority" else super()._column_dtype(name, dtype)

    # -- priorities

    @one_call
    def set_priority(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of slots; of duplicates the last counts.

        Parameters
        ----------
        indices : ndarray of int32, shape (batch,)
        priorities : array_like of float, shape (batch,)

        Raises
        ------
        AssertionError
            `indices` are of another kind.
        ValueError
            A priority is negative or not finite. Nothing is changed.
        ClosedError
        """
        self._ring.check_open()
        _check_indices(indices)
        self.sum_tree.set_many(indices, np.asarray(priorities, np.float64).ravel())

    def get_priority(self, indices: np.ndarray) -> np.ndarray:
        """The priorities of slots, float32 of shape (batch,); 0 for those not used yet.

        `indices` as for `set_priority`.
        """
        _check_indices(indices)
        return self.sum_tree.nodes_at(indices).astype(np.float32)

    def sample_index_batch(self, batch_size: int) -> torch.Tensor:
        """Draw valid slots: stratified, and those that are not valid again, one by one.

        Returns
        -------
        Tensor of int64, shape (batch_size,)

        Raises
        ------
        RuntimeError
            `max_sample_attempts` draws were not enough.
        EmptyBufferError
            All priorities are zero.
        """
        slots = self.sum_tree.strata(batch_size)
        attempts = self._max_sample_attempts
        is_valid = self._validity.valid.__getitem__
        if type(self).is_valid_transition is not ReplayBuffer.is_valid_transition:  # a derived rule
            is_valid = np.vectorize(self.is_valid_transition, otypes=[np.bool_])
        for place in np.flatnonzero(~is_valid(slots)).tolist():
            while not is_valid(slots[place]):
                if attempts == 0:
                    raise RuntimeError(
                        f"Max sample attempts: Tried {self._max_sample_attempts} times but only "
                        f"sampled {place} valid indices. Batch size is {batch_size}"
                    )
                slots[place] = self.sum_tree.sample()
                attempts -= 1
        return torch.from_numpy(slots)

    def _filled(self, element: ReplayElement, slots: np.ndarray) -> torch.Tensor:
        if element.name == "sampling_probabilities":
            found = self.sum_tree.apply_pending().leaves[slots].astype(np.float32)
            return torch.from_numpy(found[:, None])
        return super()._filled(element, slots)

    # -- rows and their weights

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.ndarray]:
        row = super()._fit(args, kwargs)
        if not 0 <= float(row[-1]) <= LARGEST:
            raise ValueError(f"priority: 0 to {LARGEST:g} expected, found {row[-1]}")
        return row

    def _written(self, slot: int, row: list[np.ndarray] | None) -> None:
        self.sum_tree.set(slot, 0.0 if row is None else float(row[-1]))

    def _hand_over(self, ring: SlotBuffer, *, closing: bool) -> None:
        self.sum_tree.apply_pending()
        ring.notes |= {
            "max_recorded_priority": self.sum_tree.max_recorded_priority,
            "weighed": self._count,  # after an interruption the ring has a row more
        }

    @staticmethod
    def _check_saved(stack_size: int, saved: Store) -> None:
        ReplayBuffer._check_saved(stack_size, saved)
        # Of rows that came after the last flush the priority is that of their column.
        first, count = int(saved.first[0]), int(saved.count[0])
        weighed = saved.meta["notes"].get("weighed", 0) - saved.meta["base"]
        start = min(max(weighed, first), count)
        came_with = saved.columns[_COLUMN].read(0, start, count)
        bad = ~((came_with >= 0) & (came_with <= LARGEST))
        if bad.any():
            raise FormatError(
                f"{saved.path}/{_COLUMN}: damaged: row {start + int(bad.argmax())} has the "
                f"priority {came_with[bad.argmax()]}; a number from 0 to {LARGEST:g} expected"
            )

    def _recall(self, ring: SlotBuffer) -> None:
        super()._recall(ring)
        self.sum_tree = SumTree(ring.capacity, tree=ring.weights)
        self.sum_tree.max_recorded_priority = ring.notes.get("max_recorded_priority", 1.0)
        # Weights are as old as the last flush: later rows have the priority they came with.
        oldest = ring.count - ring.stored
        known = max(ring.notes.get("weighed", 0), oldest)
        slots = np.arange(known, ring.count) % ring.capacity
        self.sum_tree.set_many(slots, ring.read(_COLUMN, slots))


def _check_indices(indices: np.ndarray) -> None:
    if not isinstance(indices, np.ndarray) or not indices.shape:
        raise AssertionError("Indices must be an array.")
    if indices.dtype != np.int32:
        raise AssertionError(f"Indices must be int32s, given: {indices.dtype}")
