"""The prioritized replay buffer."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diskreplay import given_numbers
from diskreplay.batch import Batch
from diskreplay.batch_reader import DrawnBatch
from diskreplay.buffer import ReplayBuffer
from diskreplay.call_guard import Read
from diskreplay.distribution import PrioritizedDistribution
from diskreplay.errors import InvalidInputError, ShapeError
from diskreplay.given_numbers import as_reals
from diskreplay.indexed_store import IndexedStore
from diskreplay.options import Beta
from diskreplay.packed_batch import PackedBatch
from diskreplay.prefetch import MOST_THREADS
from diskreplay.sampling.prioritized import PriorityMass
from diskreplay.sampling.sum_tree import SumTree
from diskreplay.store.rwlock import ReadGuard
from diskreplay.validation import checked_ids, checked_priorities

if TYPE_CHECKING:
    import gymnasium


class PrioritizedReplayBuffer(ReplayBuffer):
    """Experience replay on disk; transitions are drawn in proportion to ``priority ** alpha``.

    Proportional prioritization with importance weights: Schaul et al., "Prioritized Experience
    Replay", 2016. Draws are stratified. New transitions get the largest priority seen so far,
    or the one that they were added with.

    Parameters
    ----------
    path, observation_space, action_space, capacity, max_transitions, num_envs, stack_size
        As for `ReplayBuffer`, and so are the next ones.
    stack_padding, update_horizon, gamma, batch_size, extras, new_extras, compressor, segment_rows
    env_group, seed, name, shrink, metadata
    alpha : float
        0 draws uniformly, 1 in full proportion. A store that is reopened with another alpha keeps
        its priorities, unless they were saved with alpha 0, which knows none; those that are too
        large or too small for it become the largest or the smallest there can be.
    beta : float or callable
        Default exponent of the importance weights, or a schedule: `add_count` to exponent. It is
        called amid a draw, and may not call the buffer (`ReentryError`).
    weight_normalization : {"batch", "buffer"}
        Divide the weights by the largest one of the batch, or of the whole buffer.

    Raises
    ------
    InvalidInputError, CapacityError, SchemaError, FormatError, LockedError, StorageError
        As for `ReplayBuffer`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        observation_space: "gymnasium.Space[Any]",
        action_space: "gymnasium.Space[Any]",
        capacity: int | None,
        max_transitions: int | None = None,
        num_envs: int = 1,
        stack_size: int = 1,
        stack_padding: Literal["zero", "reset"] = "zero",
        update_horizon: int = 1,
        gamma: float = 0.99,
        batch_size: int = 32,
        extras: Mapping[str, tuple[Any, ...]] | None = None,
        new_extras: Collection[str] = (),
        compressor: str | Mapping[str, str] = "auto",
        segment_rows: int | None = None,
        env_group: int | None = None,
        seed: int | np.random.Generator | None = None,
        name: str = "replay",
        shrink: bool = False,
        metadata: Mapping[str, Any] | None = None,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        weight_normalization: Literal["batch", "buffer"] = "batch",
    ) -> None:
        self._closed = True
        self._distribution: PrioritizedDistribution = PrioritizedDistribution(
            alpha, beta, weight_normalization
        )
        super().__init__(
            path, observation_space=observation_space, action_space=action_space,
            capacity=capacity, max_transitions=max_transitions, num_envs=num_envs,
            stack_size=stack_size, stack_padding=stack_padding, update_horizon=update_horizon,
            gamma=gamma, batch_size=batch_size, extras=extras, new_extras=new_extras,
            compressor=compressor, segment_rows=segment_rows, env_group=env_group, seed=seed,
            name=name, shrink=shrink, metadata=metadata,
        )  # fmt: skip

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

        Notes
        -----
        After a `clear` or a `load` an id of before means another row, as soon as there are as many
        rows again. Only `generation` tells: compare it with that of before the draw.
        """
        ids = checked_ids(ids)
        priorities = checked_priorities(ids, priorities)
        with self._turn_when_drawn():
            self._check_writable()
            ignored = self._rows.indexed().sampler.update(ids, priorities)
            self._ignored += ignored
        return ignored

    # -- as one of several buffers that are drawn from together

    def sample_at(self, positions: np.ndarray, *, threads: int = 1) -> tuple[Batch, PriorityMass]:
        """The transitions at given places of the sum of all ``priority ** alpha``.

        For one draw over several buffers: whoever knows the sum of each draws from the sum of all,
        and asks each buffer for what falls to it. The buffer's own generator is not used.

        Parameters
        ----------
        positions : array_like of float, shape (batch,)
            In ``[0, 1]``, as shares of this buffer's sum.
        threads : int
            How many read the frames.

        Returns
        -------
        batch : Batch
            `probability` is that of each row in one draw from this buffer alone, `weight` is 1.
        mass : PriorityMass
            What the draw was from: of the same moment.

        Raises
        ------
        InvalidInputError, ShapeError, DtypeError
        EmptyBufferError
            Nothing can be sampled, or all priorities are zero.
        CorruptSegmentError
            Stored bytes do not match their checksum.
        """
        threads = given_numbers.whole("threads", threads, most=MOST_THREADS)
        return self._read_at(positions, lambda drawn: drawn.read(threads=threads))

    def _sample_packed(self, positions: np.ndarray) -> tuple[PackedBatch, PriorityMass]:
        """As `sample_at`, for another process."""
        return self._read_at(positions, DrawnBatch.packed)

    def _read_at(
        self, positions: np.ndarray, read: Callable[[DrawnBatch], Read | None]
    ) -> tuple[Read, PriorityMass]:
        places = as_reals("positions", positions)
        if places.ndim != 1:
            raise ShapeError(
                f"positions: numbers along one axis expected, found shape {places.shape}"
            )
        if not ((places >= 0) & (places <= 1)).all():  # NaN too
            raise InvalidInputError("positions: numbers from 0 to 1 expected")
        masses: list[PriorityMass] = []

        def choose(rows: IndexedStore, guard: ReadGuard) -> DrawnBatch:
            ids, mass = rows.sampler.draw_at(places)
            masses.append(mass)
            return rows.choose(ids, guard)

        self._turn_when_drawn()
        return self._read_chosen(choose, read), masses[-1]

    def priority_mass(self) -> PriorityMass:
        """What `sample_at` would draw from now. O(1)."""
        with self._turn():
            mass: PriorityMass = self._current().indexed().sampler.mass()
            return mass

    def raise_largest_priority(self, priority: float) -> None:
        """Let new transitions have at least this priority: one that was seen elsewhere.

        Parameters
        ----------
        priority : float
            Finite and not negative. Below the largest one seen here nothing changes.

        Raises
        ------
        PriorityError, ShapeError
            Nothing was changed.
        """
        with self._turn_when_drawn():
            self._check_writable()
            self._rows.indexed().sampler.raise_largest(priority)

    @property
    def tree(self) -> SumTree:
        """The `SumTree` of ``priority ** alpha``, by ring place; for looking, not for setting."""
        with self._turn():
            return self._rows.indexed().sampler.tree

    @property
    def alpha(self) -> float:
        """The exponent of the priorities."""
        return self._distribution.alpha

    @property
    def beta(self) -> Beta:
        """The default exponent of the importance weights, or its schedule; may be set."""
        return self._distribution.beta

    @beta.setter
    def beta(self, beta: Beta) -> None:
        self._distribution.beta = beta

    @property
    def weight_normalization(self) -> str:
        """Whether weights are divided by the batch's largest or by the whole buffer's."""
        return self._distribution.weight_normalization
