"""How transitions are drawn: which sampler there is, and what of it a store keeps."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from diskreplay.errors import FormatError
from diskreplay.given_numbers import asked_exponent, exponent, real
from diskreplay.options import Beta
from diskreplay.statistics import PriorityStatistics
from diskreplay.store import numbers
from diskreplay.store.priorities import LARGEST
from diskreplay.store.store import Store
from diskreplay.validation import one_of

if TYPE_CHECKING:
    from diskreplay.indexed_store import IndexedStore
    from diskreplay.sampling.prioritized import PrioritizedSampler
    from diskreplay.sampling.row_index import RowIndex
    from diskreplay.sampling.uniform import UniformSampler


class Distribution:
    """What a buffer has to know of its way to draw. What stores keep of it is nothing here."""

    name: ClassVar[str]
    """The attribute ``kind`` of the group."""

    @classmethod
    def parse(cls, meta: Mapping[str, Any]) -> Self:
        """As a group's attributes have it; a `KeyError` or a `ValueError` where they cannot be."""
        return cls()

    def make_sampler(
        self, index: "RowIndex", store: Store
    ) -> "UniformSampler | PrioritizedSampler":
        """A sampler over an index that was just made, with what its store has saved for it."""
        raise NotImplementedError

    def exponent(self, beta: Beta | None, add_count: int) -> float:
        """The exponent of the importance weights: what was asked for, or its own."""
        raise NotImplementedError

    def check_saved(self, saved: Store) -> None:
        """Refuse a checkpoint with what `make_sampler` could not take over."""

    def describe(self) -> dict[str, Any]:
        """Of the group's attributes, what does not change while the buffer is open."""
        return {"kind": self.name}

    def state(self, rows: "IndexedStore") -> dict[str, Any]:
        """Of the group's attributes, what changes."""
        return {}

    def leaves(self, rows: "IndexedStore") -> np.ndarray | None:
        """The priorities that a record writes, if there are some."""
        return None

    def statistics(self, rows: "IndexedStore") -> PriorityStatistics | None:
        """Figures of the priorities."""
        return None


class UniformDistribution(Distribution):
    """Each transition as likely as any other."""

    name = "uniform"

    def make_sampler(self, index: "RowIndex", _store: Store) -> "UniformSampler":
        from diskreplay.sampling.uniform import UniformSampler

        return UniformSampler(index)

    def exponent(self, beta: Beta | None, _add_count: int) -> float:
        asked_exponent(beta)  # what the other one refuses is a mistake here too
        return 0.0


class PrioritizedDistribution(Distribution):
    """In proportion to ``priority ** alpha``; the options are `PrioritizedReplayBuffer`'s."""

    name = "prioritized"

    def __init__(self, alpha: float, beta: Beta, weight_normalization: str) -> None:
        self.alpha = real("alpha", alpha)
        one_of("weight_normalization", weight_normalization, ("batch", "buffer"))
        self.weight_normalization = weight_normalization
        self.beta = beta

    @property
    def beta(self) -> Beta:
        """The exponent of the importance weights, or a schedule."""
        return self._beta

    @beta.setter
    def beta(self, beta: Beta) -> None:
        self._beta = beta if callable(beta) else exponent(beta)

    @classmethod
    def parse(cls, meta: Mapping[str, Any]) -> Self:
        alpha = numbers.real("alpha", meta["alpha"], 0, sys.float_info.max)
        beta = 0.4 if meta["beta"] is None else meta["beta"]
        return cls(
            alpha, numbers.real("beta", beta, 0, sys.float_info.max), meta["weight_normalization"]
        )

    def make_sampler(self, index: "RowIndex", store: Store) -> "PrioritizedSampler":
        from diskreplay.sampling.prioritized import PrioritizedSampler

        of_buffer = self.weight_normalization == "buffer"
        sampler = PrioritizedSampler(index, self.alpha, "buffer" if of_buffer else "batch")
        sampler.largest = _largest(store)
        saved = store.read_priorities()
        sampler.restore(None if saved is None else saved[:3])
        return sampler

    def exponent(self, beta: Beta | None, add_count: int) -> float:
        beta = self.beta if beta is None else beta
        return exponent(beta(add_count) if callable(beta) else beta)

    def check_saved(self, saved: Store) -> None:
        _largest(saved)
        saved.read_priorities()

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "alpha": self.alpha,
            "weight_normalization": self.weight_normalization,
            "beta": None if callable(self.beta) else self.beta,
        }

    def state(self, rows: "IndexedStore") -> dict[str, Any]:
        return {} if rows.index is None else {LARGEST: rows.sampler.largest}

    def leaves(self, rows: "IndexedStore") -> np.ndarray | None:
        return rows.indexed().sampler.leaves()

    def statistics(self, rows: "IndexedStore") -> PriorityStatistics | None:
        sampler = rows.indexed().sampler
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
