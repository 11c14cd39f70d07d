"""The prioritized replay buffer."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.buffer import ReplayBuffer, _checked_ids
from diskreplay.errors import FormatError, InvalidInputError, PriorityError, ShapeError
from diskreplay.indexed_store import IndexedStore
from diskreplay.sampling.prioritized import PrioritizedSampler
from diskreplay.sampling.row_index import RowIndex
from diskreplay.statistics import PriorityStatistics
from diskreplay.store import numbers
from diskreplay.store.priorities import LARGEST
from diskreplay.store.store import Store


class PrioritizedReplayBuffer(ReplayBuffer):
    """Experience replay on disk; transitions are drawn in proportion to ``priority ** alpha``.

    Proportional prioritization with importance weights: Schaul et al., "Prioritized Experience
    Replay", 2016. Draws are stratified. New transitions get the largest priority seen so far.

    Parameters
    ----------
    path : str or Path or None
        The store's directory: created, or reopened if it holds a store. None: a temporary one,
        removed by `close` or when the process ends. What a killed process left of one, the next
        temporary store of that user removes.
    observation_space, action_space : gymnasium.Space
        Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of them. An observation is one
        frame: stacks are made when sampling. Of one environment, also if there are several. None is
        empty; keys of a Dict become directories, and are refused where they cannot.
    capacity : int or None
        Rows kept over all envs, final rows included; each env keeps ``capacity // num_envs``. None
        keeps everything. A store that exists is given this one; see `shrink`.
    num_envs : int
        Parallel environments. With more than one, every argument of `add` has a leading env axis.
    stack_size : int
        Frames in a sampled observation; 1 has no stack axis.
    stack_padding : {"zero", "reset"}
        What stands in a stack before the episode's start: zeros, or its first frame again. As
        ``padding_type`` of `gymnasium.wrappers.FrameStackObservation`, whose default is the other
        one: let them agree, or the agent learns from stacks that it never saw.
    update_horizon : int
        The n of n-step returns.
    gamma : float
        Discount of one step, in [0, 1].
    batch_size : int
        Default of `sample` and `prefetch`.
    extras : dict, optional
        Further fields of each step: name to ``(shape, dtype)``. A name is a letter, then letters,
        digits and underscores, of ASCII and at most 100; no name of the format, of a parameter of
        `add` or of what a batch has; and no two differ in case only.
    compressor : str or dict
        ``"auto"`` (lz4 for uint8 fields of 1 KiB a row or more), ``"raw"``, ``"lz4"``, ``"zstd"``,
        which the small per-step fields ignore; or a dict of these by field name. Chosen when a
        store is created; one that exists keeps its own.
    segment_rows : int, optional
        Rows in one file, rounded up to what each field's format needs. None chooses; a store that
        exists keeps its own.
    seed : int or numpy.random.Generator, optional
        Of every random draw. A store that exists goes on with the generator it saved, unless a
        generator is given here.
    name : str
        Prefix of checkpoint directories.
    shrink : bool
        Whether a store that exists may be given a capacity that does not hold all its rows: the
        oldest are deleted, for good, at once.
    metadata : dict, optional
        What the store is: any JSON object of at most 64 KiB, see `metadata`. A store that exists
        keeps what it has under other keys.
    alpha : float
        0 draws uniformly, 1 in full proportion. A store that is reopened with another alpha keeps
        its priorities, unless they were saved with alpha 0, which knows none; those that are too
        large or too small for it become the largest or the smallest there can be.
    beta : float or callable
        Default exponent of the importance weights, or a schedule: `add_count` to exponent.
    weight_normalization : {"batch", "buffer"}
        Divide the weights by the largest one of the batch, or of the whole buffer.

    Raises
    ------
    InvalidInputError, CapacityError, SchemaError, FormatError, LockedError, StorageError
        As for `ReplayBuffer`.
    """

    def __init__(
        self,
        path: str | os.PathLike | None,
        *,
        observation_space: gym_spaces.Space,
        action_space: gym_spaces.Space,
        capacity: int | None,
        num_envs: int = 1,
        stack_size: int = 1,
        stack_padding: Literal["zero", "reset"] = "zero",
        update_horizon: int = 1,
        gamma: float = 0.99,
        batch_size: int = 32,
        extras: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        compressor: str | Mapping[str, str] = "auto",
        segment_rows: int | None = None,
        seed: int | np.random.Generator | None = None,
        name: str = "replay",
        shrink: bool = False,
        metadata: Mapping[str, Any] | None = None,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        weight_normalization: Literal["batch", "buffer"] = "batch",
    ) -> None:
        self._closed = True
        if not isinstance(alpha, int | float | np.number) or not 0 <= alpha < np.inf:
            raise InvalidInputError(f"alpha: a finite number from 0 on expected, found {alpha!r}")
        if weight_normalization not in ("batch", "buffer"):
            raise InvalidInputError(
                f"weight_normalization: 'batch' or 'buffer' expected, found "
                f"{weight_normalization!r}"
            )
        self.alpha, self.weight_normalization = float(alpha), weight_normalization
        self.beta = beta if callable(beta) else _exponent(beta)
        super().__init__(
            path,
            observation_space=observation_space,
            action_space=action_space,
            capacity=capacity,
            num_envs=num_envs,
            stack_size=stack_size,
            stack_padding=stack_padding,
            update_horizon=update_horizon,
            gamma=gamma,
            batch_size=batch_size,
            extras=extras,
            compressor=compressor,
            segment_rows=segment_rows,
            seed=seed,
            name=name,
            shrink=shrink,
            metadata=metadata,
        )

    def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set the priorities of transitions.

        Parameters
        ----------
        ids : array_like of int, shape (batch,)
            As in ``batch.id``; of duplicates the last counts.
        priorities : array_like of float, shape (batch,)
            Finite and not negative; 0 is never drawn.

        Returns
        -------
        int
            How many rows were ignored: evicted since, pending, cut or final.

        Raises
        ------
        PriorityError, UnknownIdError, ShapeError
            Nothing was changed.
        """
        ids = _checked_ids(ids)
        try:
            priorities = np.ascontiguousarray(priorities, np.float64)
        except (TypeError, ValueError) as error:
            raise PriorityError(f"priorities: numbers expected ({error})") from error
        if priorities.shape != ids.shape:
            raise ShapeError(f"priorities: shape {ids.shape} expected, found {priorities.shape}")
        self._settle()
        with self._lock:
            self._check_writable()
            ignored = self._indexed().sampler.update(ids, priorities)
            self._ignored += ignored
        return ignored

    @property
    def tree(self):
        """The `SumTree` of ``priority ** alpha``, by ring place; for looking, not for setting."""
        with self._lock:
            return self._indexed().sampler.tree

    def _make_sampler(self, index: RowIndex, store: Store) -> PrioritizedSampler:
        sampler = PrioritizedSampler(index, self.alpha, self.weight_normalization)
        sampler.largest = _largest(store)
        sampler.restore(store.read_priorities())
        return sampler

    def _check_saved(self, saved: Store) -> None:
        super()._check_saved(saved)
        _largest(saved)
        saved.read_priorities()

    def _exponent(self, beta: float | Callable[[int], float] | None) -> float:
        beta = self.beta if beta is None else beta
        return _exponent(beta(self._rows.add_count) if callable(beta) else beta)

    def _options_meta(self) -> dict[str, Any]:
        return super()._options_meta() | {
            "kind": "prioritized",
            "alpha": self.alpha,
            "weight_normalization": self.weight_normalization,
            "beta": None if callable(self.beta) else self.beta,
        }

    def _state_meta(self, rows: IndexedStore | None) -> dict[str, Any]:
        meta = super()._state_meta(rows)
        if rows is not None and rows.index is not None:
            meta[LARGEST] = rows.sampler.largest
        return meta

    def _leaves(self) -> np.ndarray | None:
        return self._indexed().sampler.leaves()

    def _of_this_kind(self) -> dict[str, Any]:
        return {"prioritized": True, "alpha": self.alpha}

    def _take_options(self, meta: Mapping[str, Any]) -> None:
        self.alpha = numbers.real("alpha", meta["alpha"], 0, sys.float_info.max)
        self.weight_normalization = meta["weight_normalization"]
        if self.weight_normalization not in ("batch", "buffer"):
            raise ValueError(f"weight_normalization: {self.weight_normalization!r:.60} found")
        beta = 0.4 if meta["beta"] is None else meta["beta"]
        self.beta = numbers.real("beta", beta, 0, sys.float_info.max)

    def _priority_statistics(self) -> PriorityStatistics | None:
        sampler = self._indexed().sampler
        leaves = sampler.tree.leaves
        positive = leaves[leaves > 0]
        if not len(positive):
            return None
        return PriorityStatistics(
            total=sampler.tree.total,
            min=float(positive.min()),
            max=float(positive.max()),
            mean=float(positive.mean()),
            largest_seen=sampler.largest,
        )


def _largest(store: Store) -> float:
    """The largest priority seen, as it was saved, or a `FormatError`."""
    try:
        largest = store.meta.get(LARGEST, 1.0)
        return numbers.real(LARGEST, largest, sys.float_info.min, sys.float_info.max)
    except ValueError as error:
        raise FormatError(f"{store.path / 'zarr.json'}: damaged ({error})") from error


def _exponent(beta: Any) -> float:
    if not isinstance(beta, int | float | np.number) or not 0 <= beta < np.inf:
        raise InvalidInputError(f"beta: a finite number from 0 on expected, found {beta!r}")
    return float(beta)
