"""Which windows of a view that is online were not handed out yet."""

from typing import Any, NamedTuple

import numpy as np

_NONE = np.empty(0, np.int64)


class NewWindows(NamedTuple):
    """What comes before all draws: windows that were handed back, then those from a row on.

    Attributes
    ----------
    cursor : ndarray of int64, shape (num_envs,)
        The first row of each env that was not handed out.
    returned : ndarray of int64
        Anchors before it that nobody took: of batches that were put back, in their order. A cursor
        that went back would hand out again what others drew meanwhile.
    """

    cursor: np.ndarray
    returned: np.ndarray = _NONE

    def with_back(self, anchors: np.ndarray, behind: int = 0) -> "NewWindows":
        """The same, where these were handed out, and nobody took them. They come behind so many
        that were put back already."""
        before, after = self.returned[:behind], self.returned[behind:]
        return self._replace(returned=np.concatenate([before, anchors, after]))

    def as_json(self) -> dict[str, Any]:
        """For a JSON object."""
        return {"cursor": self.cursor.tolist(), "returned": self.returned.tolist()}
