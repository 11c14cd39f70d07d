"""The experience-replay buffer of keras-gym, on the disk."""

import os
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from diskreplay.brief import brief
from diskreplay.compat.base import Facade, is_kind
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import InvalidInputError, ShapeError
from diskreplay.locks import one_call
from diskreplay.spaces import box
from diskreplay.store.field import Field
from diskreplay.validation import fit

__all__ = ["ExperienceReplayBuffer", "InsufficientCacheError", "NumpyArrayCheckError"]

_EPISODE_ID = Field("episode_id", (), np.dtype(np.int64))
_ATTEMPTS = 10  # for each row of a batch
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class InsufficientCacheError(Exception):
    """There are fewer rows than a batch needs."""


class NumpyArrayCheckError(Exception):
    """A state is no array, or does not have `num_frames` frames."""


class ExperienceReplayBuffer(Facade):
    """Frames of episodes, n-step transitions between stacks of them.

    Parameters
    ----------
    env : gym environment
        Says ``action_space`` and, itself or the environment it wraps, ``num_frames`` (default 1).
    capacity : int
        Transitions kept; the ring has `bootstrap_n` slots more.
    batch_size : int
    bootstrap_n : int
        The n of n-step returns.
    gamma : float
        Discount of one step.
    random_seed : int or None
        Of the draws.
    path : path, optional
        The store's directory: created by the first row, or reopened. None: a temporary one.

    Attributes
    ----------
    random : numpy.random.RandomState

    Raises
    ------
    SchemaError, FormatError, LockedError, StorageError
        For `path`, as `diskreplay.ReplayBuffer` does.

    Notes
    -----
    An episode is over when its id changes, and with `done`. A reopening goes on with it.

    Memory: 25 bytes a slot. The disk: a frame, an action and 27 bytes a slot.
    """

    def __init__(
        self,
        env: Any,
        capacity: int,
        batch_size: int = 32,
        bootstrap_n: int = 1,
        gamma: float = 0.99,
        random_seed: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.env = env
        self.capacity, self.batch_size = int(capacity), int(batch_size)
        self.num_frames = int(_outermost(env, "num_frames", 1))
        self.bootstrap_n, self.gamma = int(bootstrap_n), float(gamma)
        self.random_seed = random_seed
        slots = self.capacity + self.bootstrap_n
        self._empty(slots)
        self._offsets = np.arange(1 - self.num_frames, 1)
        # Stack and next stack in one window where they overlap or meet.
        self._window = np.union1d(self._offsets, self._offsets + self.bootstrap_n)
        self._powers = np.array([self.gamma**k for k in range(self.bootstrap_n + 1)])
        self._powers[-1] = np.power([self.gamma], self.bootstrap_n)[0]  # to the last digit
        super().__init__(path, slots, "keras_gym", resume_episodes=True)
        self._reopen()

    @classmethod
    def from_value_function(
        cls,
        value_function: Any,
        capacity: int,
        batch_size: int = 32,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """A buffer with the ``env``, ``gamma`` and ``bootstrap_n`` of `value_function`."""
        return cls(
            value_function.env, capacity, batch_size, value_function.bootstrap_n,
            value_function.gamma, path=path,
        )  # fmt: skip

    @property
    def random_seed(self) -> int | None:
        """Setting it starts the generator anew."""
        return self._random_seed

    @random_seed.setter
    def random_seed(self, seed: int | None) -> None:
        self._random_seed = seed
        self.random = np.random.RandomState(seed)

    # -- what is in the slots

    def _empty(self, slots: int) -> None:
        self._count = self._stored = 0  # rows ever added, and those still there
        self._start = -1  # the row with which the running episode began, -1 for none
        self._ids = np.zeros(slots, np.int64)
        self._starts = np.full(slots, -1)  # that row of each slot's episode; later ones, larger
        self._dones = np.zeros(slots, np.bool_)
        self._rewards = np.zeros(slots)
        self._aside = np.zeros(slots, np.bool_)  # what a repair left unfit to be drawn

    def _recall(self, ring: SlotBuffer) -> None:
        self._empty(ring.capacity)
        self._fields = [
            Field(name, *ring.fields[name]) for name in ("observation", "action", "episode_id")
        ]
        self._count, self._stored = ring.count, ring.stored
        rows = ring.retained
        slots = rows % ring.capacity
        ids, dones = ring.column("episode_id"), ring.column("terminated")
        self._ids[slots], self._dones[slots] = ids, dones
        self._rewards[slots] = ring.column("reward_float64")
        # What began before the oldest row began with one that is gone: as good as with this.
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = dones[:-1] | (ids[1:] != ids[:-1])
        aside = ring.column("is_final")  # no row of this buffer's is one
        begins |= aside
        behind = aside[:-1] & ~aside[1:]
        begins[1:] |= behind
        self._starts[slots] = np.maximum.accumulate(np.where(begins, rows, 0))
        self._dones[slots] = dones & ~aside
        for at in 1 + np.flatnonzero(behind):  # their stacks reach into what is lost
            aside[at : at + self.num_frames - 1] = True
        if len(rows) and ring.column("step")[0] > 0:
            # So do those of an episode whose beginning left the ring. A full ring's oldest rows are
            # passed over anyway; here they may have moved into a larger one.
            cut = self._starts[slots[: self.num_frames - 1]] == rows[0]
            aside[: self.num_frames - 1][cut] = True
        self._aside[slots] = aside
        if len(rows) and not dones[-1] and not ring.column("is_final")[-1]:
            self._start = int(self._starts[slots[-1]])

    @one_call
    def add(self, s: Any, a: Any, r: float, done: bool, episode_id: int) -> None:
        """Record one step.

        Parameters
        ----------
        s : ndarray, shape (*frame, num_frames)
            What the agent saw. With one frame: of any shape, numbers too. Of stacks of rank 3 and 4
            the newest frame is stored; others are stored whole.
        a : int or ndarray
            For Discrete actions also propensities, shape (num_actions,).
        r : float
        done : bool
        episode_id : int
            Another one than before begins another episode. Must not decrease.

        Raises
        ------
        NumpyArrayCheckError
            `s` is no array or does not have `num_frames` frames.
        AssertionError
            A Discrete action is neither an int nor propensities.
        InvalidInputError
            An action or frame that does not fit. In all cases nothing was recorded.
        """
        frame, action = self._frame(s), self._action(a)
        r, done, episode_id = float(r), bool(done), int(episode_id)
        if self._ring is None:
            fit(_EPISODE_ID, episode_id)  # refused, it makes no ring: that would have its shapes
            self._make_ring(
                box(frame.shape, frame.dtype),
                box(action.shape, action.dtype),
                {
                    _EPISODE_ID.name: (_EPISODE_ID.shape, _EPISODE_ID.dtype),
                    "reward_float64": ((), np.float64),
                },
            )
        ring, start = self._ring, self._start
        given: Iterable[Any] = map(fit, self._fields, (frame, action, episode_id))
        frame, action, _id = given
        if start >= 0 and episode_id != self._ids[self._count % len(self._ids) - 1]:
            ring.end_episode()
            start = -1
        if start < 0:
            start = self._count
        # What is no float32 is shown as 0 to others; here it is read from the extra.
        native = r if abs(r) <= _FLOAT32_MAX else 0.0
        row = {
            "observation": frame, "action": action, "reward": native, "terminated": done,
            "episode_id": episode_id, "reward_float64": r,
        }  # fmt: skip
        self._commit(row, self._took, r, done, episode_id, start)

    def _took(self, number: int, r: float, done: bool, episode_id: int, start: int) -> None:
        """The ring has row `number`, of the episode that began with row `start`."""
        slot, count = number % len(self._ids), number + 1
        self._ids[slot], self._dones[slot] = episode_id, done
        self._rewards[slot], self._starts[slot], self._aside[slot] = r, start, False
        self._start = -1 if done else start
        self._stored, self._count = min(count, len(self._ids)), count

    def _frame(self, s: Any) -> np.ndarray:
        if self.num_frames == 1:
            return np.asarray(s)
        if not isinstance(s, np.ndarray):
            raise NumpyArrayCheckError(f"s: an array expected, found {type(s).__name__}")
        if s.shape[-1:] != (self.num_frames,):
            raise NumpyArrayCheckError(
                f"s: {self.num_frames} frames along the last axis expected, found shape {s.shape}"
            )
        return s[..., -1] if s.ndim in (3, 4) else s

    @property
    def action_space_is_discrete(self) -> bool:
        """Whether actions are numbers from 0 on."""
        return is_kind(self.env.action_space, "Discrete")

    @property
    def action_space_is_box(self) -> bool:
        """Whether actions are arrays."""
        return is_kind(self.env.action_space, "Box")

    @property
    def num_actions(self) -> int:
        """How many Discrete actions there are. AttributeError if they are of another kind."""
        if not self.action_space_is_discrete:
            raise AttributeError("num_actions: the action space is not Discrete")
        return int(self.env.action_space.n)

    def _action(self, a: Any) -> np.ndarray:
        space = self.env.action_space
        if not self.action_space_is_discrete:
            if space.shape is None:
                raise InvalidInputError(f"{type(space).__name__} actions cannot be stored")
            given, action = np.asarray(a), np.empty(space.shape, space.dtype)
            if given.dtype.kind not in "biuf" or given.shape not in ((), space.shape):
                raise ShapeError(
                    f"a: a number or numbers of shape {space.shape} expected, found {brief(a)}"
                )
            action[...] = given
            if action.dtype.kind in "iu" and (action != given).any():
                raise InvalidInputError(f"a: {brief(a)} is no {action.dtype}")
            return action
        if isinstance(a, np.ndarray) and a.shape == (space.n,):
            return a.astype(np.float64)
        if not isinstance(a, int | np.integer):
            raise AssertionError(f"a: an int or {space.n} propensities expected, found {brief(a)}")
        if not 0 <= a < space.n:
            raise InvalidInputError(f"a: 0 to {space.n - 1} expected, found {a}")
        one_hot = np.zeros(int(space.n))
        one_hot[int(a)] = 1
        return one_hot

    # -- sampling

    @one_call
    def sample(self) -> tuple[np.ndarray, ...]:
        """Draw a batch of transitions, uniformly and with replacement.

        Returns
        -------
        S, A, Rn, In, S_next, A_next : tuple of ndarray
            States ``(batch, *frame, num_frames)``, oldest frame first, without the last axis for
            one frame; actions ``(batch, num_actions)`` or ``(batch, *shape)``; n-step returns and
            bootstrap factors, float64 ``(batch,)``. ``In`` is 0 where the episode ended; the next
            state and action mean nothing there. `S` and `S_next` may share memory.

        Raises
        ------
        InsufficientCacheError
            There are fewer transitions than a batch has.
        RuntimeError
            Ten times as many draws as a batch has found too few rows that can be used.
        """
        if len(self) < self.batch_size:
            raise InsufficientCacheError(
                f"{self.batch_size} transitions needed for a batch, {len(self)} there"
            )
        rows, returns, factors = self._draw()
        if self.num_frames == 1:
            (states, next_states), actions = self._read(("observation", "action"), rows)
        else:
            windows = self._stacks(rows[0], rows[0][:, None] + self._window)
            frames = np.moveaxis(self._read("observation", windows), 1, -1)
            states, next_states = frames[..., : self.num_frames], frames[..., -self.num_frames :]
            actions = self._read("action", rows)
        return states, actions[0], returns, factors, next_states, actions[1]

    def _draw(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows and those n later, shape (2, batch); n-step returns and bootstrap factors."""
        from diskreplay.compat.keras_gym_kernels import judge

        wanted = self.batch_size
        rows = np.empty((2, wanted), np.int64)
        returns, factors = np.empty(wanted), np.empty(wanted)
        found, left = 0, _ATTEMPTS * wanted
        while found < wanted and left:
            # Never more than one attempt after the other would have come to.
            slots = self.random.randint(self._stored, size=min(wanted - found, left))
            left -= len(slots)
            found = judge(
                slots, self._count, self.num_frames - 1, self._starts, self._dones, self._aside,
                self._rewards, self._powers, rows, returns, factors, found,
            )  # fmt: skip
        if found < wanted:
            raise RuntimeError(
                f"{_ATTEMPTS * wanted} draws found {found} rows of {wanted}: most rows are cut or "
                "not complete; add more"
            )
        return rows, returns, factors

    def _read(self, field: str | tuple[str, ...], rows: np.ndarray) -> Any:
        """Fields of rows; one that is not there yet has the slot of one that may be."""
        if rows.max() < self._count:
            return self._ring.take(field, rows - self._ring.base)
        return self._ring.read(field, rows % len(self._ids))

    def _stacks(self, rows: np.ndarray, window: np.ndarray) -> np.ndarray:
        """The rows of windows; frames before the episode are its first one again."""
        slots = len(self._ids)
        start = self._starts[rows % slots, None]
        window = np.maximum(window, start)
        if window[:, -1].max() >= self._count:
            # After an end, and round the ring's: no frame means anything, but older episodes
            # still give way to what follows them, as in the original.
            older = self._starts[window % slots] < start
            for i in range(window.shape[1] - 2, self.num_frames - 1, -1):
                window[:, i] = np.where(older[:, i], window[:, i + 1], window[:, i])
        return window

    @one_call
    def clear(self) -> None:
        """Forget all rows."""
        ring = self._ring
        if ring is not None:
            with self._replacing(lambda: self._recall(ring)):
                pass  # it stays empty

    def __len__(self) -> int:
        return max(0, self._stored - self.bootstrap_n)

    # -- the slots, as the original names them; copies, zeros where nothing is

    @property
    def _e(self) -> np.ndarray:
        return self._ids.copy()

    @property
    def _d(self) -> np.ndarray:
        return self._dones.copy()

    @property
    def _r(self) -> np.ndarray:
        return self._rewards.copy()

    @property
    def _a(self) -> np.ndarray:
        return self._ring.read("action", np.arange(len(self._ids)))

    @property
    def _s(self) -> np.ndarray:
        return self._ring.read("observation", np.arange(len(self._ids)))


def _outermost(env: Any, name: str, default: Any) -> Any:
    """An attribute of `env`, or of the first one it wraps that has it."""
    while not hasattr(env, name):
        if not hasattr(env, "env"):
            return default
        env = env.env
    return getattr(env, name)
