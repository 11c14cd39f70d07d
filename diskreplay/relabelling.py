"""Which goals take the place of others, and what they are worth."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError, NotFiniteError, ShapeError
from diskreplay.given_numbers import as_reals, whole
from diskreplay.store.store import Store
from diskreplay.stored_space import StoredSpace
from diskreplay.transition_source import TransitionSource
from diskreplay.validation import fit_flag, known_extras, one_of

if TYPE_CHECKING:
    from diskreplay.sampling.row_index import RowIndex

STRATEGIES = ("future", "final", "episode")
Info = Mapping[str, np.ndarray] | Sequence[Mapping[str, Any]]
ComputeReward = Callable[[np.ndarray, np.ndarray, Info], Any]
Random = Callable[[int], np.ndarray]


class Relabelling:
    """What `ReplayBuffer.hindsight` and `Sequences.hindsight` were asked for, checked.

    Attributes
    ----------
    achieved, desired : str
        Keys of the observation.
    field : str
        Of the achieved goal.
    info : tuple of str
        Extras that the functions get.
    """

    def __init__(
        self,
        buffer: TransitionSource,
        compute_reward: ComputeReward,
        *,
        strategy: str,
        n_goals: int,
        achieved: str,
        desired: str,
        info: str | Sequence[str],
        finished: bool,
        terminated: ComputeReward | None,
    ) -> None:
        one_of("strategy", strategy, STRATEGIES)
        for what, given in (("compute_reward", compute_reward), ("terminated", terminated)):
            if not callable(given) and not (what == "terminated" and given is None):
                raise InvalidInputError(f"{what}: a function expected, found {brief(given)}")
        _check_goals(StoredSpace.of(buffer.observation_space, "observation"), achieved, desired)
        info = known_extras("info", info, buffer.extras)
        self._compute, self._terminated = compute_reward, terminated
        self._strategy, self._finished = STRATEGIES.index(strategy), fit_flag("finished", finished)
        self._share = 1 - 1 / (1 + whole("n_goals", n_goals))
        self.achieved, self.desired, self.info = achieved, desired, info
        self.field = f"observation/{achieved}"

    def choose(
        self, index: "RowIndex", ids: np.ndarray, random: Random, *, in_order: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places of `ids` that get new goals, and the rows that these are of.

        Parameters
        ----------
        ids : ndarray of int64
            Transitions, or the anchors of windows.
        random : callable
            So many numbers of ``[0, 1)``.
        in_order : bool
            Whether `ids` are not in a random order, so that the first ones are not any.
        """
        from diskreplay.sampling import episode_kernels

        asked = int(len(ids) * self._share)
        places, named = np.arange(asked), ids[:asked]
        if in_order:
            places = np.sort(np.argsort(random(len(ids)), kind="stable")[:asked])
            named = ids[places]
        goals = np.empty(asked, np.int64)
        episode_kernels.choose_goals(
            *index.state, named, random(asked), self._strategy, self._finished, goals
        )
        there = goals >= 0
        return places[there], goals[there]

    def read(self, store: Store, field: str, ids: np.ndarray) -> np.ndarray:
        """The values of a field in these rows, which are held."""
        column = store.columns[field]
        out = np.empty((len(ids), *column.field.shape), column.field.dtype)
        column.take(np.ascontiguousarray(ids), out)
        return out

    def reward(
        self, following: np.ndarray, goals: np.ndarray, info: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """What transitions earn that led to `following` with these goals, and which of them end
        the episode, if there is a function for that. A call of each, whatever the number."""
        size = len(goals)
        given: Info = info if self.info else [{}] * size
        reward = _numbers("compute_reward", self._compute(following, goals, given), size)
        if not (np.abs(reward) <= np.finfo(np.float32).max).all():
            raise NotFiniteError(
                f"compute_reward: rewards that are finite as float32 expected, found {reward}"
            )
        if self._terminated is None:
            return reward, None
        ended = _numbers("terminated", self._terminated(following, goals, given), size)
        if np.isnan(ended).any():
            raise NotFiniteError(f"terminated: true or false expected, found {ended}")
        return reward, ended != 0


def _check_goals(space: StoredSpace, achieved: str, desired: str) -> None:
    """Refuse an observation space without two goals of one kind."""
    if space.kind != "Dict":
        raise InvalidInputError(f"hindsight: a Dict of observations expected, found {space.space}")
    boxes = {key: part.leaves[0][1:] for key, part in space.parts.items() if part.kind == "Box"}
    for what, key in (("achieved", achieved), ("desired", desired)):
        if not isinstance(key, str) or key not in boxes:
            raise InvalidInputError(
                f"{what}: a Box of the observation expected, found {brief(key)}; there are: "
                f"{', '.join(boxes)}"
            )
    if boxes[achieved] != boxes[desired]:
        (shape, dtype), (other_shape, other_dtype) = boxes[achieved], boxes[desired]
        raise InvalidInputError(
            f"hindsight: {achieved!r} is {dtype} of shape {shape} and {desired!r} is "
            f"{other_dtype} of shape {other_shape}; an achieved goal cannot take the place of a "
            "desired one"
        )


def _numbers(what: str, found: Any, size: int) -> np.ndarray:
    found = as_reals(what, found, flags=True)
    if found.shape != (size,):
        raise ShapeError(f"{what}: shape ({size},) expected, found {found.shape}")
    return found
