"""Figures of the priorities: how even they are, and how old what they favour is."""

from dataclasses import dataclass

import numpy as np

from diskreplay.prioritized import PrioritizedReplayBuffer

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class PriorityProfile:
    """The priorities of the transitions that can be drawn.

    A reader of a live store sees those of the writer's last flush; rows since have the largest.
    """

    drawable: int
    """Transitions with a priority above 0."""
    quantiles: dict[float, float]
    """Of the priorities as they were given, before the power of alpha."""
    largest_seen: float
    """What new transitions get."""
    effective: float
    """The effective sample size, ``sum(p)^2 / sum(p^2)`` of the probabilities: so many equal
    priorities would be as even (Kish, 1965)."""
    never_updated: float
    """Share of them never updated, an estimate: their priority is the largest seen, or, bit for
    bit, that of another transition. Priorities that are made of few distinct numbers mislead it."""
    mean_age: float
    """In rows of one env since they were recorded, over all of them."""
    mean_drawn_age: float
    """The same, over draws: how old a sampled transition is on average."""


@dataclass(frozen=True, eq=False)
class PriorityRows:
    """The transitions that can be drawn, one element of each array each; as `PriorityProfile` has
    it, of a reader those of the writer's last flush.

    Attributes
    ----------
    ids : ndarray of int64
        Not in order.
    leaves : ndarray of float64
        ``priority ** alpha``: what a draw is in proportion to.
    priorities : ndarray of float64
    ages : ndarray of int64
        In rows of one env since they were recorded.
    untouched : ndarray of bool
        Never updated, an estimate: see `PriorityProfile.never_updated`.
    largest_seen : float
    """

    ids: np.ndarray
    leaves: np.ndarray
    priorities: np.ndarray
    ages: np.ndarray
    untouched: np.ndarray
    largest_seen: float

    def profile(self) -> PriorityProfile:
        """Figures of them."""
        leaves, ages = self.leaves, self.ages
        quantiles = np.quantile(self.priorities, QUANTILES).tolist()
        return PriorityProfile(
            drawable=len(leaves),
            quantiles=dict(zip(QUANTILES, quantiles, strict=True)),
            largest_seen=self.largest_seen,
            effective=float(leaves.sum() ** 2 / np.square(leaves).sum()),
            never_updated=float(self.untouched.mean()),
            mean_age=float(ages.mean()),
            mean_drawn_age=float((ages * leaves).sum() / leaves.sum()),
        )


def priority_rows(buffer: PrioritizedReplayBuffer) -> PriorityRows | None:
    """The transitions of a buffer with a priority above 0; None if nothing can be drawn.

    O(rows log rows), and some 50 bytes a row.
    """
    statistics = buffer.statistics().priorities
    bounds, tree = buffer.bounds, buffer.tree  # in this order: the tree is made for these bounds
    places = np.flatnonzero(tree.leaves > 0)
    if statistics is None or not len(places):
        return None
    leaves = tree.leaves[places]
    ring = tree.capacity // buffer.num_envs
    slot, env = np.divmod(places, buffer.num_envs)
    first, stop = bounds[env].T
    rows = first + (slot - first) % ring
    _distinct, which, counts = np.unique(leaves, return_inverse=True, return_counts=True)
    largest = statistics.largest_seen
    untouched = (counts > 1)[which] | np.isclose(leaves, largest**buffer.alpha, rtol=1e-12, atol=0)
    return PriorityRows(
        ids=rows * buffer.num_envs + env,
        leaves=leaves,
        priorities=leaves ** (1 / buffer.alpha) if buffer.alpha else np.ones_like(leaves),
        ages=stop - 1 - rows,
        untouched=untouched,
        largest_seen=largest,
    )


def priorities_of(buffer: PrioritizedReplayBuffer) -> PriorityProfile | None:
    """Figures of a buffer's priorities; None if nothing can be drawn. O(rows log rows)."""
    rows = priority_rows(buffer)
    return None if rows is None else rows.profile()
