"""What is left of each episode's return, row by row."""

import numpy as np

from diskreplay.sampling.row_index import RowIndex


class ReturnsToGo:
    """``sum_k gamma^k r[t+k]`` to the end of the episode, of every retained row whose episode is
    over; NaN for the others. One backward pass over an episode when it ends.

    Attributes
    ----------
    column : ndarray of float32
        By the place of the row in the index.

    Notes
    -----
    4 bytes a row.
    """

    def __init__(self, gamma: float) -> None:
        from diskreplay.sampling import episode_kernels

        self._kernels, self._gamma = episode_kernels, gamma

    def follow(self, index: RowIndex) -> None:
        """Begin with an index of other rows than before."""
        self._seen, self._known = np.zeros((index.num_envs, 2), np.int64), b""
        self.column = np.empty(index.size, np.float32)
        self.catch_up(index)

    def catch_up(self, index: RowIndex) -> None:
        """Work out what has come to an end since the last call. O(new rows, and those of the
        episodes that have ended)."""
        if len(self.column) < index.size:
            column = np.empty(index.size, np.float32)
            column[: len(self.column)] = self.column
            self.column = column
        if self._known == index.bounds.tobytes():
            return
        self._kernels.fill_to_go(
            index.ring, index.ring.view(np.float32), index.bounds, index.figures, self._seen,
            self._gamma, self.column,
        )  # fmt: skip
        self._known = index.bounds.tobytes()
