"""cpprb's `PrioritizedReplayBuffer`."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from diskreplay.brief import brief
from diskreplay.compat.cpprb.buffer import ReplayBuffer
from diskreplay.compat.cpprb.columns import PRIORITIES, Arrays
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import InvalidInputError, PriorityError, ShapeError
from diskreplay.given_numbers import exponent, real
from diskreplay.locks import one_call
from diskreplay.sampling.sum_tree import SumTree
from diskreplay.signals import undisturbed


class PrioritizedReplayBuffer(ReplayBuffer):
    """As `ReplayBuffer`, with rows drawn in proportion to ``(priority + eps) ** alpha``.

    Parameters
    ----------
    size, env_dict, next_of, stack_compress, default_dtype, Nstep, mmap_prefix, path, compressor
        As for `ReplayBuffer`.
    alpha : float
        Not negative.
    eps : float
        Added to priorities. With 0, a row of priority 0 is never drawn, and while there is one all
        weights are 0 (unless beta is), as in the original.
    check_for_update : bool
        Whether `update_priorities` leaves slots alone that were written since the last `sample`.
    **ignored
        Any other keyword, as in the original.

    Notes
    -----
    Draws come from a generator of its own, seeded by the operating system. Schaul et al.,
    "Prioritized Experience Replay", 2016.

    After a kill, priorities are those of the last `flush`; rows that came later have the largest.
    """

    _weighted = True
    _note_bounds: ClassVar[dict[str, tuple[float, float]]] = {
        **ReplayBuffer._note_bounds,
        "max_priority": (1.0, float(np.finfo(np.float32).max)),
        "alpha": (0.0, sys.float_info.max),
        "eps": (0.0, sys.float_info.max),
    }

    def __init__(
        self,
        size: int | float,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        alpha: float = 0.6,
        eps: float = 1e-4,
        check_for_update: bool = False,
        next_of: str | Sequence[str] | None = None,
        stack_compress: str | Sequence[str] | None = None,
        default_dtype: Any = None,
        Nstep: Mapping[str, Any] | None = None,
        mmap_prefix: str | os.PathLike[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        compressor: str = "auto",
        **ignored: Any,
    ) -> None:
        self._alpha, self._eps = real("alpha", alpha), real("eps", eps)
        self._check = bool(check_for_update)
        self._rng = np.random.default_rng()
        self._least_leaf = float(self._leaves(np.array(0.0)))
        # A priority whose leaf is finite beyond doubt.
        self._most = 1e30 ** (1 / max(self._alpha, 1)) - self._eps
        from diskreplay.sampling.sum_tree_kernels import tree_set

        self._set_known = tree_set  # as `SumTree.set`, without a look at what is known to be good
        super().__init__(
            size,
            env_dict,
            next_of=next_of,
            stack_compress=stack_compress,
            default_dtype=default_dtype,
            Nstep=Nstep,
            mmap_prefix=mmap_prefix,
            path=path,
            compressor=compressor,
            **ignored,
        )

    def _notes(self, max_priority: float = 1.0) -> dict[str, Any]:
        newest = float(self._finite_leaves(np.array(max_priority)))
        return {
            **super()._notes(), "max_priority": max_priority, "newest_weight": newest,
            "alpha": self._alpha, "eps": self._eps,
        }  # fmt: skip

    def _recall(self, ring: SlotBuffer) -> None:
        max_priority = float(ring.notes.get("max_priority", 1.0))
        size = ring.notes.get("size", self._size)
        with undisturbed():  # or leaves would stay beside the alpha and eps of those before
            self._rescale(ring, max_priority)
            ring.notes.update(self._notes(max_priority) | {"size": size})
        super()._recall(ring)
        if self._size < ring.capacity:  # rows that are kept for their frames only
            hidden = np.arange(ring.count - ring.stored, ring.count - self._size)
            ring.weights.set(ring.slots(hidden), np.zeros(len(hidden)))

    def _remember(self) -> None:
        super()._remember()
        self._sampled_at = 0  # the number of the next row, at the last `sample`
        # Rows from this number on have no leaf yet: that of the largest priority, set when somebody
        # asks, as one call for many is far cheaper than many calls.
        self._weighed = self._ring.count

    def _rescale(self, ring: SlotBuffer, max_priority: float) -> None:
        """Leaves that another alpha or eps made are made anew."""
        alpha, eps = (ring.notes.get(name) for name in ("alpha", "eps"))
        if (alpha, eps) == (self._alpha, self._eps) or not ring.stored:
            return
        slots = ring.slots(ring.retained)
        priorities = np.full(len(slots), max_priority)
        if alpha:  # else nothing is known of the priorities
            with np.errstate(over="ignore"):
                priorities = np.maximum(ring.weights.get(slots) ** (1 / alpha) - eps, 0)
        ring.weights.set(slots, self._finite_leaves(priorities))

    def _copy(self, ring: SlotBuffer, fresh: SlotBuffer, rows: np.ndarray) -> None:
        first = fresh.count
        super()._copy(ring, fresh, rows)
        copies = np.arange(first, fresh.count)
        fresh.weights.set(fresh.slots(copies), ring.weights.get(ring.slots(rows)))

    def _leaves(self, priorities: np.ndarray) -> np.ndarray:
        """float32, as in the original, though sums are float64."""
        with np.errstate(over="ignore"):
            return ((priorities + self._eps) ** self._alpha).astype(np.float32)

    def _finite_leaves(self, priorities: np.ndarray) -> np.ndarray:
        """Those of priorities that another alpha or eps took: the largest there can be, where they
        are too large for these."""
        return np.minimum(self._leaves(priorities), np.finfo(np.float32).max)

    def _checked(self, priorities: Any) -> tuple[np.ndarray, np.ndarray]:
        """Priorities rounded to float32 as in the original, shape (n,), and their leaves."""
        found = np.asarray(priorities)
        if found.dtype == object:
            raise TypeError(f"priorities: numbers expected, found {brief(priorities)}")
        with np.errstate(over="ignore"):
            found = found.astype(np.float32).astype(np.float64).ravel()
        if len(found) and found.min() >= 0 and found.max() <= self._most:  # as good as always
            return found, ((found + self._eps) ** self._alpha).astype(np.float32)
        with np.errstate(invalid="ignore"):  # a power of a negative number
            leaves = self._leaves(found)
        bad = ~((found >= 0) & (found < np.inf) & (leaves < np.inf))  # NaN too
        if bad.any():
            raise PriorityError(
                f"priorities: {found[bad.argmax()]} at position {bad.argmax()}; finite numbers "
                "from 0 on expected"
            )
        return found, leaves

    # -- adding

    @one_call
    def add(self, /, *, priorities: Any = None, **columns: Any) -> int | None:
        """As `ReplayBuffer.add`.

        Parameters
        ----------
        priorities : float or array_like, optional
            One for each row; for one row a number. None: the largest so far.

        Raises
        ------
        ShapeError, PriorityError
            There is another number of them, or one is negative, NaN or infinite. Nothing was
            stored.
        """
        if self._nstep is None and priorities is None:
            row = self._columns.row(columns)
            if row is not None:
                return self._store_row(row)
        rows = self._columns.rows(columns)
        count = len(next(iter(rows.values())))
        if priorities is not None:
            rows[PRIORITIES] = self._checked(priorities)[0]
            if len(rows[PRIORITIES]) != count:
                raise ShapeError(
                    f"priorities: {count} expected, one a row, found {len(rows[PRIORITIES])}"
                )
        elif self._nstep is not None:  # which is to remember it; else `_weigh` knows
            rows[PRIORITIES] = np.full(count, self.get_max_priority())
        return self._take_in(rows)

    def _weigh(self, first: int, count: int, priorities: np.ndarray | None) -> None:
        if priorities is None or not count:
            return
        self._weigh_newest(first)
        self._raise_max(float(priorities[:count].max()))
        self._set_leaves(first, self._leaves(priorities[:count]))

    def _weigh_newest(self, stop: int) -> None:
        """Give rows before number `stop` that have no leaf yet the largest one."""
        ring, first = self._ring, max(self._weighed, stop - self._ring.capacity)
        if first < stop:
            self._set_leaves(first, np.full(stop - first, ring.notes["newest_weight"]))

    def _set_leaves(self, first: int, leaves: np.ndarray) -> None:
        """Set those of rows from number `first` on, and go on behind them."""
        ring, size = self._ring, self._size
        stop = first + len(leaves)
        leaves = leaves[-size:]
        numbers = np.arange(stop - len(leaves), stop)
        if size < ring.capacity:  # rows that are kept for their frames only lose their weight
            gone = np.arange(max(first - size, 0), stop - size)[-ring.capacity :]
            numbers = np.concatenate([gone, numbers])
            leaves = np.concatenate([np.zeros(len(gone)), leaves])
        ring.weights.set(numbers % ring.capacity, leaves)
        self._weighed = max(self._weighed, stop)

    def _tree(self) -> SumTree:
        """The leaves of all rows."""
        self._weigh_newest(self._ring.count)
        return self._ring.weights

    def _hand_over(self, ring: SlotBuffer, *, closing: bool) -> None:
        self._tree()

    def _raise_max(self, priority: float) -> None:
        if priority > self.get_max_priority():
            self._ring.notes.update(self._notes(priority))

    # -- drawing

    @one_call
    def sample(self, batch_size: int, beta: float = 0.4) -> Arrays:
        """Draw one row from each of `batch_size` equal parts of all priorities.

        Parameters
        ----------
        batch_size : int
        beta : float
            Exponent of the weights: finite, from 0 on.

        Returns
        -------
        dict of str to ndarray
            As `ReplayBuffer.sample`, with ``weights`` (batch_size,) float32, at most 1: divided by
            the largest weight that any stored row has; and ``indexes`` (batch_size,) uint64, the
            slots, ascending. Copies.

        Raises
        ------
        InvalidInputError
            `beta` is no such number, there are no rows, or none with a priority.
        """
        beta = exponent(beta)
        ring = self._ring
        self._sampled_at = ring.count
        if not batch_size:
            slots, leaves = np.empty(0, np.int64), np.empty(0)
        else:
            tree = self._tree()
            if not tree.total > 0:
                raise InvalidInputError("sample: there are no rows with a priority; add some first")
            slots = drawn = tree.stratified_sample(batch_size, self._rng)
            leaves = tree.leaves.take(drawn)
            if ring.capacity != self._size:
                slots = ring.ids(drawn) % self._size
                order = np.argsort(slots)
                slots, leaves = slots[order], leaves[order]
        batch = self._resident.read(slots)
        batch["weights"] = self._weights(leaves, beta)
        batch["indexes"] = slots.astype(np.uint64)
        return batch

    def _weights(self, leaves: np.ndarray, beta: float) -> np.ndarray:
        if not beta or not len(leaves):
            return np.ones(len(leaves), np.float32)
        tree = self._tree()
        if self._least_leaf == 0 and self._has_zero():
            return np.zeros(len(leaves), np.float32)
        return ((leaves / tree.min) ** -beta).astype(np.float32)

    def _has_zero(self) -> bool:
        """Whether a stored row has no weight. O(rows)."""
        slots = self._ring.slots(self._resident.rows(np.arange(self.get_stored_size())))
        return not self._tree().leaves[slots].all()

    @one_call
    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Set priorities of slots; where one occurs twice, its last priority counts.

        Parameters
        ----------
        indexes : array_like of numbers
        priorities : array_like of float
            As many.

        Raises
        ------
        TypeError
            One of them is None.
        InvalidInputError, PriorityError
            A slot was never written, they differ in length, or a priority is negative, NaN or
            infinite. Nothing was changed.
        ClosedError
        """
        self._ring.check_open()
        if indexes is None or priorities is None:
            raise TypeError("update_priorities: indexes and priorities expected, found None")
        given = np.asarray(indexes).ravel()
        if given.dtype.kind not in "iuf":
            raise TypeError(f"indexes: numbers expected, found dtype {given.dtype}")
        priorities, leaves = self._checked(priorities)
        if len(priorities) != len(given):
            raise ShapeError(f"{len(given)} indexes for {len(priorities)} priorities")
        if not len(given):
            return
        stored = self.get_stored_size()
        fits = given.min() >= 0 and given.max() < stored
        if not fits or (given.dtype.kind == "f" and (given != np.floor(given)).any()):
            raise InvalidInputError(f"indexes: whole numbers from 0 to {stored - 1} expected")
        ring, tree, slots = self._ring, self._tree(), given.astype(np.int64)
        if self._check or ring.capacity != self._size:
            numbers = self._resident.rows(slots)
            kept = numbers < (self._sampled_at if self._check else ring.count)
            slots = numbers[kept] % ring.capacity
            priorities, leaves = priorities[kept], leaves[kept]
        if len(slots):
            self._raise_max(float(priorities.max()))
            self._set_known(tree.nodes, tree.least, tree.starts, slots, leaves.astype(np.float64))

    def get_max_priority(self) -> float:
        """The largest priority so far, 1 at first."""
        return self._ring.notes["max_priority"]
