"""Every transition with the same probability."""

from typing import Any, NoReturn

import numpy as np

from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.row_index import RowIndex

_PATIENCE = 8  # rounds of picking rows blindly before listing the ones that can be sampled


class UniformSampler:
    """Draws ids evenly, with replacement.

    Attributes
    ----------
    initial : None
        No row has a priority.
    """

    initial = None

    def __init__(self, index: RowIndex) -> None:
        from diskreplay.sampling import row_index_kernels

        self._kernels, self._index = row_index_kernels, index
        self.append_one = index.append_one  # one row of the only env: the index takes it in

    def given(self, *_arguments: Any, **_how: Any) -> NoReturn:
        """Refuse priorities of rows."""
        raise InvalidInputError(
            "priority: this buffer draws uniformly, and rows have none; make a "
            "PrioritizedReplayBuffer"
        )

    def given_by_actors(self, *_arguments: Any) -> None:
        """Priorities that actors gave, for a buffer that had some: nobody draws by them."""

    def make_room(self) -> None:
        """No row has a leaf that is saved."""

    def enter(self, places: np.ndarray) -> None:
        """Rows became sampleable; the index knows, nothing else to do."""

    def leave(self, places: np.ndarray) -> None:
        """Rows stopped being sampleable."""

    def take_over(self, other: "UniformSampler", newest: np.ndarray) -> None:
        """Go on where another one stopped; the index knows all there is to know."""

    def grow(self, size: int) -> None:
        """The index is about to grow; there is nothing to grow with it."""

    def draw(
        self, rng: ReplayableRng, size: int, _beta: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, probabilities and weights (all 1) of `size` transitions.

        Raises
        ------
        EmptyBufferError
            Nothing can be sampled.
        """
        index = self._index
        if not index.sampleable:
            raise EmptyBufferError("no complete transition to sample yet: add more steps")
        ids = np.empty(size, np.int64)
        found = rounds = 0
        while found < size:
            if rounds < _PATIENCE:
                found += rng.draw(
                    size - found, self._kernels.index_draw, *index.state, index.ends, ids[found:]
                )
                rounds += 1
            else:  # nearly no row can be sampled
                there = index.sampleable_ids()
                ids[found:] = there[(rng.random(size - found) * len(there)).astype(np.int64)]
                break
        probability, weight = np.empty(size), np.empty(size, np.float32)
        probability.fill(1 / index.sampleable)  # np.full and np.ones take a microsecond longer
        weight.fill(1.0)
        return ids, probability, weight

    def probability(self, ids: np.ndarray) -> np.ndarray:
        """The probability of each id in one draw."""
        return np.full(len(ids), 1 / max(self._index.sampleable, 1))
