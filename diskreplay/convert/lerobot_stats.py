"""Figures of the features of a LeRobot data set: of each episode, and of all together."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_MOST_PICTURES = 100  # of an episode
_MOST_PIXELS = 150  # a side
Figures = dict[str, np.ndarray]


def figures_of(values: np.ndarray) -> Figures:
    """Least, greatest, mean, deviation, count and quantiles of `values`, of shape (n, *shape),
    element by element: float64 of this shape, and ``count``, of shape (1,), int64."""
    values = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinities among them
        quantiles = np.quantile(values, list(_QUANTILES.values()), axis=0)
        return {
            "min": values.min(axis=0), "max": values.max(axis=0), "mean": values.mean(axis=0),
            "std": values.std(axis=0), "count": np.array([len(values)]),
            **dict(zip(_QUANTILES, quantiles, strict=True)),
        }  # fmt: skip


class PictureSample:
    """Some of the pictures of an episode, of which `length` come, for its figures."""

    def __init__(self, length: int) -> None:
        wanted = np.linspace(0, length - 1, min(length, _MOST_PICTURES))
        self._wanted, self._seen = np.unique(wanted.astype(np.int64)), 0
        self._kept: list[np.ndarray] = []

    def see(self, pictures: np.ndarray) -> None:
        """Copy some of the next pictures, uint8 of shape (n, h, w, 3)."""
        here = self._wanted[(self._wanted >= self._seen)] - self._seen
        every = max(1, max(pictures.shape[1:3]) // _MOST_PIXELS)
        self._kept.append(pictures[here[here < len(pictures)], ::every, ::every].copy())
        self._seen += len(pictures)

    def figures(self) -> Figures:
        """The figures of each colour, from 0 to 1, of shape (3, 1, 1), as `figures_of` has them;
        ``count`` is of pictures."""
        pictures = np.concatenate(self._kept)
        found = figures_of(pictures.reshape(-1, 3) / 255)
        shaped = {
            name: values.reshape(3, 1, 1) for name, values in found.items() if name != "count"
        }
        return {**shaped, "count": np.array([len(pictures)])}


class Totals:
    """The figures of a feature over all episodes.

    Quantiles are the means of the episodes', by their counts, and so near those of all only where
    episodes are alike; that is how LeRobot puts them together, too.
    """

    def __init__(self) -> None:
        self._all: list[Figures] = []

    def add(self, figures: Figures) -> None:
        """Take the figures of one more episode, as `figures_of` has them."""
        self._all.append(figures)

    def figures(self) -> Figures:
        """The figures of all episodes that were added, at least one."""
        parts = {name: np.stack([each[name] for each in self._all]) for name in self._all[0]}
        count = parts.pop("count").sum(axis=1)
        share = (count / count.sum()).reshape(-1, *(1,) * (parts["mean"].ndim - 1))
        with np.errstate(invalid="ignore", over="ignore"):
            mean = (share * parts["mean"]).sum(axis=0)
            spread = parts["std"] ** 2 + (parts["mean"] - mean) ** 2
            return {
                "min": parts["min"].min(axis=0), "max": parts["max"].max(axis=0), "mean": mean,
                "std": np.sqrt((share * spread).sum(axis=0)), "count": np.array([count.sum()]),
                **{name: (share * parts[name]).sum(axis=0) for name in _QUANTILES},
            }  # fmt: skip


def as_lists(figures: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    """The figures of features as JSON has them."""
    return {key: {name: v.tolist() for name, v in each.items()} for key, each in figures.items()}
