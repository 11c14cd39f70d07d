"""One exact draw over the sum trees of several shards; pure functions, without Ray.

The leaves of all shards, one shard behind the other, are one list. A stratified draw over its sum
(Schaul et al., "Prioritized Experience Replay", 2016) needs the sum of each shard only: a mass that
falls to a shard is looked up in its tree. The sums may be old by the time of the draw. What a
transition is drawn with then is its shard's share of the old sums, times its leaf over its shard's
sum at the draw, and that is what weights are computed from: they stay unbiased.
"""

from typing import NamedTuple

import numpy as np


class Allotment(NamedTuple):
    """Where the draws of one batch fall; in the order of the masses, so of the shards."""

    shards: np.ndarray
    """int64, (batch,)."""
    positions: np.ndarray
    """float64 in [0, 1], (batch,): which share of the shard's own sum."""


def stratified(uniform: np.ndarray, totals: np.ndarray) -> Allotment:
    """One draw from each of equal parts of the sum of all shards.

    Parameters
    ----------
    uniform : ndarray of float64, shape (batch,)
        Random numbers in ``[0, 1)``.
    totals : ndarray of float64, shape (shards,)
        The sum of each shard's leaves; at least one is positive.
    """
    size = len(uniform)
    return at((np.arange(size) + uniform) / max(size, 1), totals)


def at(shares: np.ndarray, totals: np.ndarray) -> Allotment:
    """The draws at given shares of the sum of all shards; never in a shard whose sum is 0."""
    ends = np.cumsum(totals)
    masses = shares * ends[-1]
    shards = np.searchsorted(ends, masses, side="right")
    # What rounding carries past the end falls to the last shard that has something.
    shards = np.minimum(shards, np.flatnonzero(totals > 0)[-1])
    positions = (masses - (ends - totals)[shards]) / totals[shards]
    return Allotment(shards, positions.clip(0.0, 1.0))


def probabilities(shards: np.ndarray, within: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """What transitions were drawn with.

    Parameters
    ----------
    shards : ndarray of int64, shape (batch,)
    within : ndarray of float64, shape (batch,)
        The probability of each in its own shard, at the draw.
    totals : ndarray of float64, shape (shards,)
        The sums that the draw was made with.
    """
    return within * (totals / totals.sum())[shards]


def least_probability(least: np.ndarray, sums: np.ndarray, totals: np.ndarray) -> float:
    """The smallest probability that any transition had.

    Parameters
    ----------
    least, sums : ndarray of float64, shape (shards,)
        The smallest positive leaf of each shard and the sum of its leaves, at the draw.
    totals : ndarray of float64, shape (shards,)
        The sums that the draw was made with.
    """
    there = (totals > 0) & (sums > 0) & np.isfinite(least)
    return float((least[there] / sums[there] * totals[there] / totals.sum()).min())


def weights(probability: np.ndarray, beta: float, least: float | np.ndarray) -> np.ndarray:
    """Importance weights ``(N P)^-beta``, divided by the largest, float32.

    Parameters
    ----------
    probability : ndarray of float64, shape (batch,)
    beta : float
    least : float or ndarray, shape (batch,)
        The smallest probability of all transitions, whose weight is the largest.
    """
    return ((least / probability) ** beta).astype(np.float32)
