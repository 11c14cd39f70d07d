"""Transitions whose goal is one that their episode reached."""

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium import spaces

from diskreplay.batch import Batch
from diskreplay.batch_reader import DrawnBatch
from diskreplay.errors import InvalidInputError, NotFiniteError, ShapeError
from diskreplay.store.rwlock import ReadGuard
from diskreplay.validation import whole

if TYPE_CHECKING:
    from diskreplay.buffer import ReplayBuffer

STRATEGIES = ("future", "final", "episode")
Info = Mapping[str, np.ndarray] | Sequence[Mapping[str, Any]]
ComputeReward = Callable[[np.ndarray, np.ndarray, Info], Any]


class Hindsight:
    """A buffer's transitions, most of them with other goals; made by `ReplayBuffer.hindsight`.

    Andrychowicz et al., "Hindsight Experience Replay", 2017. Nothing is stored for it: goals are
    chosen when a batch is drawn.

    Parameters
    ----------
    buffer : ReplayBuffer
    compute_reward, strategy, n_goals, achieved, desired, info, finished, terminated, seed
        As for `ReplayBuffer.hindsight`.
    """

    def __init__(
        self,
        buffer: "ReplayBuffer",
        compute_reward: ComputeReward,
        *,
        strategy: Literal["future", "final", "episode"],
        n_goals: int,
        achieved: str,
        desired: str,
        info: str | Sequence[str],
        finished: bool,
        terminated: ComputeReward | None,
        seed: int | np.random.Generator | None,
    ) -> None:
        if buffer.update_horizon != 1:
            raise InvalidInputError(
                f"hindsight: update_horizon={buffer.update_horizon} found, 1 expected: each reward "
                "of an n-step return would need its own relabelling; open the buffer with "
                "update_horizon=1"
            )
        if strategy not in STRATEGIES:
            raise InvalidInputError(
                f"strategy: one of {', '.join(STRATEGIES)} expected, found {strategy!r:.60}"
            )
        for what, given in (("compute_reward", compute_reward), ("terminated", terminated)):
            if not callable(given) and not (what == "terminated" and given is None):
                raise InvalidInputError(f"{what}: a function expected, found {given!r:.60}")
        _check_goals(buffer.observation_space, achieved, desired)
        info = (info,) if isinstance(info, str) else tuple(info)
        for name in info:
            if name not in buffer.extras:
                there = ", ".join(buffer.extras) or "none at all"
                raise InvalidInputError(f"info: there is no extra {name!r:.60}; there are: {there}")
        self._buffer, self._compute, self._terminated = buffer, compute_reward, terminated
        self._strategy, self._finished = STRATEGIES.index(strategy), bool(finished)
        n_goals = whole("n_goals", n_goals)
        self._share = 1 - 1 / (1 + n_goals)
        self._achieved, self._desired, self._info = achieved, desired, info
        self._field = f"observation/{achieved}"
        self._rng = None if seed is None else np.random.default_rng(seed)

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
        ShapeError, NotFiniteError
            What `compute_reward` or `terminated` returned is not one number a transition.
        EmptyBufferError, CorruptSegmentError, ClosedError, ForkedError
            As `ReplayBuffer.sample`.
        """
        buffer = self._buffer
        size = buffer.batch_size if batch_size is None else whole("batch_size", batch_size)
        buffer._turn_when_drawn()
        guard, me, batch = ReadGuard(), get_ident(), None
        try:
            buffer._busy.add(me)
            while batch is None:
                with buffer._lock:
                    drawn = buffer._draw(size, beta, guard)
                    chosen, goals = self._choose(drawn)
                reached = self._read_goals(
                    drawn, goals
                )  # before the batch, which releases the lock
                batch = drawn.read()
        finally:
            try:
                guard.release()
            finally:
                buffer._busy.discard(me)
        return self._relabel(batch, chosen, reached)  # the user's functions may use the buffer

    def _choose(self, drawn: DrawnBatch) -> tuple[np.ndarray, np.ndarray]:
        """The positions to be relabelled, and the rows that have their goals. Needs the lock."""
        from diskreplay.sampling import episode_kernels

        buffer, size = self._buffer, len(drawn.ids)
        asked = int(size * self._share)
        random = buffer._rng.random if self._rng is None else self._rng.random
        if buffer._distribution.name == "uniform":
            positions = np.arange(asked)
        else:
            positions = np.sort(np.argsort(random(size), kind="stable")[:asked])
        goals = np.empty(asked, np.int64)
        episode_kernels.choose_goals(
            *buffer._rows.index.state, drawn.ids[positions], random(asked), self._strategy,
            self._finished, goals,
        )  # fmt: skip
        if self._rng is None:
            drawn.numbers.extend(buffer._rng.taken())
        there = goals >= 0
        return positions[there], goals[there]

    def _read_goals(self, drawn: DrawnBatch, goals: np.ndarray) -> np.ndarray:
        shape, dtype = self._buffer.fields[self._field]
        out = np.empty((len(goals), *shape), dtype)
        drawn.store.take(self._field, goals, out)
        return out

    def _relabel(self, batch: Batch, chosen: np.ndarray, goals: np.ndarray) -> Batch:
        relabelled = np.zeros(len(batch), np.bool_)
        relabelled[chosen] = True
        batch._arrays["relabelled"] = relabelled
        if not len(chosen):
            return batch
        stacked = self._buffer.stack_size > 1
        for observation in (batch.observation, batch.next_observation):
            observation[self._desired][chosen] = goals[:, None] if stacked else goals
        following = batch.next_observation[self._achieved][chosen]
        if stacked:
            following = following[:, -1]
        info: Info = {name: batch[name][chosen] for name in self._info}
        if not self._info:
            info = [{} for _ in range(len(chosen))]
        reward = _numbers("compute_reward", self._compute(following, goals, info), len(chosen))
        if not np.isfinite(reward).all():
            raise NotFiniteError(f"compute_reward: finite rewards expected, found {reward}")
        batch.reward[chosen] = reward
        if self._terminated is not None:
            ended = _numbers("terminated", self._terminated(following, goals, info), len(chosen))
            batch.terminated[chosen] = ended != 0
            batch.discount[chosen] = np.where(ended != 0, 0.0, self._buffer.gamma)
        return batch


def _check_goals(space: spaces.Space, achieved: str, desired: str) -> None:
    """Refuse an observation space without two goals of one kind."""
    if not isinstance(space, spaces.Dict):
        raise InvalidInputError(f"hindsight: a Dict of observations expected, found {space}")
    for what, key in (("achieved", achieved), ("desired", desired)):
        if key not in space.spaces or not isinstance(space[key], spaces.Box):
            boxes = ", ".join(k for k in space.spaces if isinstance(space[k], spaces.Box))
            raise InvalidInputError(
                f"{what}: a Box of the observation expected, found {key!r:.60}; there are: {boxes}"
            )
    one, other = space[achieved], space[desired]
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        raise InvalidInputError(
            f"hindsight: {achieved!r} is {one.dtype} of shape {one.shape} and {desired!r} is "
            f"{other.dtype} of shape {other.shape}; an achieved goal cannot take the place of a "
            "desired one"
        )


def _numbers(what: str, found: Any, size: int) -> np.ndarray:
    found = np.asarray(found, np.float64)
    if found.shape != (size,):
        raise ShapeError(f"{what}: shape ({size},) expected, found {found.shape}")
    return found
