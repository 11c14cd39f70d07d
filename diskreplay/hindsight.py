"""Transitions whose goal is one that their episode reached."""

from collections.abc import Callable
from typing import Any

import numpy as np

from diskreplay.batch import Batch
from diskreplay.batch_reader import DrawnBatch
from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import whole
from diskreplay.relabelling import Relabelling
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.store.rwlock import ReadGuard
from diskreplay.transition_source import TransitionSource
from diskreplay.validation import generator


class Hindsight:
    """A buffer's transitions, most of them with other goals; made by `ReplayBuffer.hindsight`.

    Andrychowicz et al., "Hindsight Experience Replay", 2017. Nothing is stored for it: goals are
    chosen when a batch is drawn.

    Parameters
    ----------
    buffer : ReplayBuffer
    goals : Relabelling
    seed
        As for `ReplayBuffer.hindsight`.
    """

    def __init__(
        self,
        buffer: TransitionSource,
        goals: Relabelling,
        seed: int | np.random.Generator | None,
    ) -> None:
        if buffer.update_horizon != 1:
            raise InvalidInputError(
                f"hindsight: update_horizon={buffer.update_horizon} found, 1 expected: each reward "
                "of an n-step return would need its own relabelling; open the buffer with "
                "update_horizon=1"
            )
        self._buffer, self._goals = buffer, goals
        self._rng = None if seed is None else ReplayableRng(generator(seed)).rng

    def sample(
        self,
        batch_size: int | None = None,
        *,
        beta: float | Callable[[int], float] | None = None,
    ) -> Batch:
        """Draw transitions as the buffer does, and give ``n_goals`` of ``n_goals + 1`` of them a
        goal that their episode reached.

        Parameters
        ----------
        batch_size, beta
            As for `ReplayBuffer.sample`.

        Returns
        -------
        Batch
            With `relabelled`, bool of shape (batch,): where ``observation[desired]``,
            ``next_observation[desired]`` and the reward are new. Of a uniform buffer that is the
            first part of the batch; of a prioritized one, whose batches are in the order of the
            rows, any part.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError
            What `compute_reward` or `terminated` returned is not one number a transition, or a
            reward is not finite as float32.
        EmptyBufferError, CorruptSegmentError, ClosedError, ForkedError
            As `ReplayBuffer.sample`.
        """
        buffer = self._buffer
        size = buffer.batch_size if batch_size is None else whole("batch_size", batch_size)
        buffer._turn_when_drawn()

        def attempt(guard: ReadGuard) -> tuple[Batch, np.ndarray, np.ndarray] | None:
            with buffer._lock:
                drawn = buffer._draw(size, beta, guard)
                chosen, goals = self._choose(drawn)
            # Before the batch, which ends the guard.
            reached = self._goals.read(drawn.store, self._goals.field, goals)
            batch = drawn.read()
            return None if batch is None else (batch, chosen, reached)

        return self._relabel(*buffer._read_held(attempt))  # the user's functions may use the buffer

    def _choose(self, drawn: DrawnBatch) -> tuple[np.ndarray, np.ndarray]:
        """The positions to be relabelled, and the rows that have their goals. Needs the lock."""
        buffer = self._buffer
        chosen = self._goals.choose(
            buffer._rows.index, drawn.ids, (self._rng or buffer._rng).random,
            in_order=buffer._distribution.name != "uniform",
        )  # fmt: skip
        drawn.numbers.extend(buffer._rng.taken())
        return chosen

    def _relabel(self, batch: Batch, places: np.ndarray, goals: np.ndarray) -> Batch:
        size = len(places)
        relabelled = np.zeros(len(batch), np.bool_)
        batch._arrays["relabelled"] = relabelled
        if not size:
            return batch
        # The first ones, mostly: then arrays are copied as they are, which is twice as fast.
        chosen = slice(size) if places[-1] == size - 1 else places
        relabelled[chosen] = True
        stacked, asked = self._buffer.stack_size > 1, self._goals
        seen: Any = batch.observation, batch.next_observation  # dicts: there is a goal in them
        for observation in seen:
            observation[asked.desired][chosen] = goals[:, None] if stacked else goals
        following = seen[1][asked.achieved][chosen]
        if stacked:
            following = following[:, -1]
        following = following.copy()  # the user's function may do with it what it likes
        info = {name: batch[name][chosen].copy() for name in asked.info}
        batch.reward[chosen], ended = asked.reward(following, goals, info)
        if ended is not None:
            batch.terminated[chosen] = ended
            batch.discount[chosen] = np.where(ended, 0.0, self._buffer.gamma)
        return batch
