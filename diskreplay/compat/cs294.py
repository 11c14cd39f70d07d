"""The memory-efficient frame buffer of the CS294 homework, on the disk."""

import bisect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.compat.base import Facade
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import InvalidInputError, ShapeError, UsageError
from diskreplay.given_numbers import is_integer, whole
from diskreplay.locks import one_call
from diskreplay.spaces import box
from diskreplay.validation import fit_reward

__all__ = ["ReplayBuffer", "sample_n_unique"]

_WAITING = 2  # frames without an effect: the newest, and one whose effect comes late


def sample_n_unique(sampling_f: Callable[[], Any], n: int) -> list[Any]:
    """The first `n` distinct results of `sampling_f`, in the order in which they came."""
    found: list[Any] = []
    seen = set()
    while len(found) < n:
        candidate = sampling_f()
        try:
            known = candidate in seen
            seen.add(candidate)
        except TypeError:  # cannot be hashed
            known = candidate in found
        if not known:
            found.append(candidate)
    return found


class ReplayBuffer(Facade):
    """Each frame once; observations are histories of frames.

    Parameters
    ----------
    size : int
        Capacity, in frames.
    frame_history_len : int
        Frames in an observation.
    path : path, optional
        The store's directory: created by the first whole row, or reopened. None: a temporary one.

    Attributes
    ----------
    num_in_buffer : int
        Frames there are.
    next_idx : int
        The slot of the next one.

    Raises
    ------
    SchemaError, FormatError, LockedError, StorageError
        For `path`, as `diskreplay.ReplayBuffer` does.

    Notes
    -----
    A frame is in memory until `store_effect` has completed its row and that before it; from then on
    the row outlives the death of the process. `flush` stores a row that has its effect also if the
    frame before it has none; that frame gets none any more. A frame without an effect is shown in
    histories only.

    A reopening goes on with the episode. Only if the process was killed, or the newest frame had no
    effect yet, another one begins; the newest row of the first is not sampled then. Where no frame
    of the first had an effect, it looks like rows that a repair has set aside: from the opening
    after that on, the first ``frame_history_len - 1`` rows of the other one are not sampled either.

    Memory: 13 bytes a slot.
    """

    _row_notes = ("closed_at",)

    def __init__(
        self, size: int, frame_history_len: int, *, path: str | os.PathLike[str] | None = None
    ) -> None:
        self.size, self.frame_history_len = int(size), int(frame_history_len)
        self.num_in_buffer = self.next_idx = 0
        self._count = 0  # frames ever stored
        self._waiting: list[_Waiting] = []  # the newest ones, which are not in the ring yet
        self._skipped: list[int] = []  # rows without an effect, or without what came after it
        self._begins = True  # whether the next frame begins an episode
        self._steps = np.zeros(self.size, np.int32)  # in their episodes
        self._actions = np.zeros(self.size, np.int32)
        self._rewards = np.zeros(self.size, np.float32)
        self._dones = np.zeros(self.size, np.bool_)
        self._recent: dict[int, np.ndarray] = {}  # the newest frames, by number % history
        super().__init__(path, self.size, "cs294", resume_episodes=True)
        self._reopen()

    def _recall(self, ring: SlotBuffer) -> None:
        self._shape = ring.fields["observation"][0]
        self._offsets = np.arange(2 if len(self._shape) == 1 else self.frame_history_len + 1)
        self._offsets -= len(self._offsets) - 2  # the history, and the frame that comes next
        self._count, self.num_in_buffer, self.next_idx = ring.count, ring.stored, ring.cursor
        rows = ring.retained
        slots = rows % self.size
        steps, dones = ring.column("step"), ring.column("terminated")
        self._steps[slots], self._dones[slots] = steps, dones
        self._actions[slots], self._rewards[slots] = ring.column("action"), ring.column("reward")
        cut = ~dones
        cut[:-1] &= steps[1:] == 0
        final = ring.column("is_final")
        if len(rows) and not (final[-1] or dones[-1]):
            # Only a `close` says that no frame came after this one.
            cut[-1] = ring.notes.get("closed_at") != ring.count
            if cut[-1]:
                ring.end_episode()
            self._begins = bool(cut[-1])
        skipped = cut | final
        # Behind rows that a repair set aside, those whose history reaches into them. A repair gives
        # such rows the steps from 0 on; frames without an effect have those of their episode.
        run = np.arange(len(rows)) - np.maximum.accumulate(
            np.where(final, -1, np.arange(len(rows)))
        )
        for at in 1 + np.flatnonzero(final[:-1] & (steps[1:] == 0) & (steps[:-1] == run[:-1] - 1)):
            skipped[at : at + self.frame_history_len - 1] = True
        self._skipped = rows[skipped].tolist()
        newest = rows[-self.frame_history_len :]
        frames = ring.read("observation", newest % self.size)
        self._recent = dict(zip((newest % self.frame_history_len).tolist(), frames, strict=True))

    # -- storing

    @one_call
    def store_frame(self, frame: Any) -> int:
        """Store what the agent sees.

        Parameters
        ----------
        frame : array_like, shape (h, w, c), (h, w) or (n,)
            Kept as uint8, other numbers are truncated. ``(h, w)`` is ``(h, w, 1)``. With one axis
            there is no history.

        Returns
        -------
        int
            The slot, for `store_effect`.

        Raises
        ------
        ShapeError
            Another shape than that of the first frame (a ValueError).
        """
        frame = self._checked(frame)
        if self._ring is None:
            self._make_ring(box(frame.shape, np.uint8), box((), np.int32), {})
        if self._waiting:
            if len(self._waiting) == _WAITING:
                self._write()
            self._write_whole()
        # That nothing came after the newest row ends on the disk before a frame is taken: a kill
        # loses that frame, and the row would be followed by another one.
        self._ring.forget_note("closed_at")
        slot, number = self.next_idx, self._count
        try:
            self._took(frame)
        except BaseException:
            if self._count == number:  # Ctrl-C in the middle: the slot may have lost what it had
                self._took(frame)
            raise
        return slot

    def _took(self, frame: np.ndarray) -> None:
        """One more frame waits. Interrupted, it may run again: the count moves last."""
        slot, count = self._count % self.size, self._count + 1
        self._steps[slot] = (
            0 if self._begins or self._dones[slot - 1] else self._steps[slot - 1] + 1
        )
        self._actions[slot], self._rewards[slot], self._dones[slot] = 0, 0, False
        self._recent[self._count % self.frame_history_len] = frame
        while self._skipped and self._skipped[0] < count - self.size:
            self._skipped.pop(0)
        self.num_in_buffer, self.next_idx = min(count, self.size), count % self.size
        waiting = [*self._waiting, _Waiting(frame)]
        self._waiting, self._begins, self._count = waiting, False, count

    def _checked(self, frame: Any) -> np.ndarray:
        frame = np.array(frame).astype(np.uint8, copy=False)
        if frame.ndim == 2:
            frame = frame[..., None]
        expected = self._shape if self._ring is not None else None
        if frame.ndim not in (1, 3) or expected not in (None, frame.shape):
            raise ShapeError(
                f"frame: shape {expected or '(h, w, c), (h, w) or (n,)'} expected, found "
                f"{frame.shape}"
            )
        return frame

    @one_call
    def store_effect(self, idx: int, action: int, reward: float, done: bool) -> None:
        """Complete a row: what was done after its frame, and what came of it.

        Parameters
        ----------
        idx : int
            What `store_frame` returned for the newest frame, or for the one before if that got no
            effect yet, and no `flush` came after the newest one's.
        action : int
            Kept as int32.
        reward : float
            Kept as float32.
        done : bool
            Whether the episode ended.

        Raises
        ------
        UsageError
            The row is on the disk already, with its effect or without: it does not change.
        InvalidInputError
            `idx` is no integer, or a value does not fit. In both cases nothing was recorded.
        """
        if not is_integer(idx):
            raise InvalidInputError(f"idx: what store_frame returned expected, found {brief(idx)}")
        idx, action, reward, done = int(idx), int(action), fit_reward(reward), bool(done)
        if not -(2**31) <= action < 2**31:
            raise InvalidInputError(f"action: an int32 expected, found {action}")
        newest = self._count - 1
        at = len(self._waiting) - 1 - (newest - idx) % self.size
        if not 0 <= idx < self.size or at < 0:
            raise UsageError(
                f"store_effect: slot {idx} waits for no effect; those that do: "
                f"{[(newest - i) % self.size for i in range(len(self._waiting))]}. A row on the "
                "disk cannot be changed, and later frames or a flush may have put it there without "
                "an effect; store the effect of each frame before the next frame"
            )
        effect = np.array(action, np.int32), reward, done
        try:
            self._complete(at, idx, effect)
        except BaseException:
            self._complete(at, idx, effect)  # Ctrl-C in the middle: not half of it
            raise
        self._write_whole()

    def _complete(self, at: int, idx: int, effect: tuple[np.ndarray, float, bool]) -> None:
        self._waiting[at].effect = effect
        self._actions[idx], self._rewards[idx], self._dones[idx] = effect
        if effect[2] and at + 1 < len(self._waiting):
            self._steps[(idx + 1) % self.size] = 0

    def _write_whole(self) -> None:
        """Put the oldest waiting frames that have their effect into the ring."""
        while self._waiting and self._waiting[0].effect:
            self._write()

    def _write(self) -> None:
        """Put the oldest waiting frame into the ring, as no transition if it has no effect."""
        ring, waiting = self._ring, self._waiting[0]
        try:
            if waiting.effect:
                action, reward, done = waiting.effect
                ring.put(
                    {"observation": waiting.frame, "action": action, "reward": reward,
                     "terminated": done}
                )  # fmt: skip
            else:
                ring.add_frame(waiting.frame)
            self._wrote()
        except BaseException:
            if ring.count > self._count - len(self._waiting):  # Ctrl-C after the commit
                self._wrote()
            raise

    def _wrote(self) -> None:
        """The oldest waiting frame is in the ring. Interrupted, it may run again."""
        row = self._count - len(self._waiting)
        if not self._waiting[0].effect and self._skipped[-1:] != [row]:
            self._skipped.append(row)
        self._waiting.pop(0)

    def _hand_over(self, ring: SlotBuffer, *, closing: bool) -> None:
        # A row whose effect was stored is to outlive a kill. The ring takes rows in their order, so
        # a frame before it goes too, though it has no effect yet.
        while self._waiting and (closing or any(frame.effect for frame in self._waiting)):
            self._write()
        if closing and not self._begins:
            ring.notes["closed_at"] = ring.count

    # -- sampling

    def can_sample(self, batch_size: int) -> bool:
        """Whether there are so many rows, besides the newest, which has no next frame."""
        return batch_size < self.num_in_buffer and batch_size <= self._available()

    def _available(self) -> int:
        return self._stop - self._oldest - bisect.bisect_left(self._skipped, self._stop)

    @property
    def _oldest(self) -> int:
        return self._count - self.num_in_buffer

    @property
    def _stop(self) -> int:
        """Rows before this one have an effect and a next frame."""
        return max(min(self._count - 1, self._count - len(self._waiting)), self._oldest)

    @one_call
    def sample(self, batch_size: int) -> tuple[np.ndarray, ...]:
        """Draw different transitions.

        Returns
        -------
        obs, act, rew, next_obs, done : tuple of ndarray
            Histories ``(batch, h, w, c * frame_history_len)`` uint8, oldest frame first, zeros
            before the episode; actions int32, rewards float32 and dones float32 ``(batch,)``. Where
            `done` is 1, `next_obs` is the first history of the next episode. `obs` and `next_obs`
            may share memory.

        Raises
        ------
        InvalidInputError
            `batch_size` is no positive integer (a ValueError, as in the original).
        AssertionError
            Unless `can_sample`.
        """
        batch_size = whole("batch_size", batch_size)
        if not self.can_sample(batch_size):
            raise AssertionError(
                f"{batch_size} transitions asked for, {self._available()} can be sampled"
            )
        rows = self._oldest + _distinct(self._available(), batch_size)
        # Each skipped row at or before a row moves it on by one.
        before = np.array(self._skipped, np.int64) - np.arange(len(self._skipped))
        rows += np.searchsorted(before, rows, side="right")
        return self._encode_sample(rows % self.size)

    def _encode_sample(self, indexes: Any) -> tuple[np.ndarray, ...]:
        slots = np.asarray(indexes, np.int64).reshape(-1) % self.size
        rows, frames = self._frames(slots)
        following = frames[:, 1:]
        begins = (self._steps[(rows + 1) % self.size] == 0) | (rows + 1 >= self._count)
        if begins.any():
            following = following.copy()
            following[begins, :-1] = 0
        return (
            self._joined(frames[:, :-1]), self._actions[slots], self._rewards[slots],
            self._joined(following), self._dones[slots].astype(np.float32),
        )  # fmt: skip

    def _encode_observation(self, idx: int) -> np.ndarray:
        return self._joined(self._frames(np.array([idx]) % self.size)[1][:, :-1])[0]

    def _frames(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows in these slots; their histories and next frames, ``(batch, history + 1, ...)``,
        zeros where there is none."""
        newest = self._count - 1
        rows = newest - (newest - slots) % self.size
        depth = np.minimum(self._steps[slots], rows - self._oldest)[:, None]
        window = rows[:, None] + self._offsets
        there = (-self._offsets <= depth) & (window < self._count) & (depth >= 0)
        written = self._count - len(self._waiting)
        at = np.where(there & (window < written), window % self.size, -1)
        frames = self._ring.read("observation", at)
        for i, waiting in enumerate(self._waiting):
            frames[there & (window == written + i)] = waiting.frame
        return rows, frames

    def _joined(self, frames: np.ndarray) -> np.ndarray:
        """Histories with their frames along the last axis."""
        if frames.ndim == 3:
            return frames[:, -1]
        batch, _, height, width, _ = frames.shape
        return frames.transpose(0, 2, 3, 1, 4).reshape(batch, height, width, -1)

    def encode_recent_observation(self) -> np.ndarray:
        """The history that ends with the newest frame, from memory.

        Returns
        -------
        ndarray of uint8, shape (h, w, c * frame_history_len) or (n,)

        Raises
        ------
        AssertionError
            No frame was stored.
        """
        if not self._count:
            raise AssertionError("no frame was stored yet")
        recent = self._recent
        depth = min(int(self._steps[self.next_idx - 1]) + 1, self.num_in_buffer, len(recent))
        if len(self._shape) == 1:
            return recent[(self._count - 1) % self.frame_history_len].copy()
        *space, channels = self._shape
        history = np.zeros((*space, self.frame_history_len, channels), np.uint8)
        for i in range(1, depth + 1):
            history[..., -i, :] = recent[(self._count - i) % self.frame_history_len]
        return history.reshape(*space, -1)

    # -- the slots, as the original names them: copies, zeros where nothing is, None at first

    @property
    def obs(self) -> np.ndarray | None:
        """Frames, uint8 ``(size, *frame)``. Reads the whole store."""
        if self._ring is None:
            return None
        frames = self._ring.read("observation", np.arange(self.size))
        for i, waiting in enumerate(self._waiting):
            frames[(self._count - len(self._waiting) + i) % self.size] = waiting.frame
        return frames

    @property
    def action(self) -> np.ndarray | None:
        """Actions, int32 ``(size,)``."""
        return self._actions.copy() if self._ring is not None else None

    @property
    def reward(self) -> np.ndarray | None:
        """Rewards, float32 ``(size,)``."""
        return self._rewards.copy() if self._ring is not None else None

    @property
    def done(self) -> np.ndarray | None:
        """Whether the episode ended, bool ``(size,)``."""
        return self._dones.copy() if self._ring is not None else None


@dataclass
class _Waiting:
    """A frame in memory, and its action, reward and done when they are known."""

    frame: np.ndarray
    effect: tuple[np.ndarray, float, bool] | None = None


def _distinct(below: int, count: int) -> np.ndarray:
    """Different numbers of ``[0, below)``, drawn from NumPy's global generator."""
    if 4 * count > below:
        return np.random.permutation(below)[:count]  # noqa: NPY002 - the one that users seed
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        more = np.random.randint(below, size=count - len(drawn))  # noqa: NPY002
        drawn = np.concatenate([drawn, more])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return drawn
