"""How values are spread, also where no two edges fit between them."""

import numpy as np

_LARGEST = np.finfo(float).max
_LARGE, _SCALE = 1e150, 2.0**-600  # the square of what is larger may be no number


def histogram(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges of at most so many bins of equal width, as `numpy.histogram` has them.

    All values are in one bin where it has none for them: where they are so close together, or so
    large, that no number is between two of its edges, or so far apart that no number is their
    difference.

    Parameters
    ----------
    values : ndarray, shape (count,)
        Finite; at least one.
    most : int

    Returns
    -------
    counts : ndarray of int64, shape (bins,)
    edges : ndarray of float64, shape (bins + 1,)
    """
    low, high = float(values.min()), float(values.max())
    if high / 2 - low / 2 < _LARGEST / 4:
        bins = min(most, len(np.unique(values)))
        try:
            edges = np.histogram_bin_edges(values, bins)
        except ValueError:  # too many bins for that range
            edges = np.zeros(2)
        # NumPy before 2.0 has no error for edges between which nothing fits: its counts fail.
        if (np.diff(edges) > 0).all():
            return np.histogram(values, bins)
    return np.array([len(values)]), np.nextafter([low, high], [-_LARGEST, _LARGEST])


def scale_of(low: float, high: float) -> float:
    """What values from `low` to `high` are multiplied by before they, or their squares, are added
    up: 1, or a power of 2 where a sum of them may be no number."""
    return _SCALE if max(-low, high) > _LARGE else 1.0
