"""What a union draws from: the transitions of a buffer, or the windows of a view."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from diskreplay.batch import Batch
from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError
from diskreplay.opening import open as open_buffer
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.sampling.new_windows import NewWindows
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.sequences import Sequences
from diskreplay.store.rwlock import ReadGuard


class TransitionMember:
    """The transitions of one member. All methods need its buffer's lock.

    Attributes
    ----------
    buffer : ReplayBuffer
    rows, sampler : IndexedStore, and UniformSampler, PrioritizedSampler or Anchors
        As they are since `catch_up`.
    """

    batch, key = Batch, "id"

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def catch_up(self) -> None:
        """Come to know all rows."""
        self.rows = self.buffer._current().indexed()
        self.sampler: Any = self.rows.sampler

    @property
    def alpha(self) -> float | None:
        """The exponent of its priorities; None if it has none."""
        buffer = self.buffer
        return buffer.alpha if isinstance(buffer, PrioritizedReplayBuffer) else None

    @property
    def is_prioritized(self) -> bool:
        """Whether its draws follow priorities."""
        return self.alpha is not None

    @property
    def keeps_itself(self) -> bool:
        """Whether its priorities are saved with its store."""
        return self.buffer.mode != "r"

    @property
    def count(self) -> int:
        """How many can be drawn."""
        return self.rows.index.sampleable

    @property
    def mass(self) -> float:
        """The sum of ``priority ** alpha``, which is 1 each without priorities."""
        return self.sampler.tree.total if self.is_prioritized else float(self.count)

    @property
    def least(self) -> float:
        """The smallest ``priority ** alpha`` that can be drawn; needs `mass` above 0. O(1) where
        weights are normalised by the buffer, or there are no priorities; else O(rows)."""
        return self.sampler.tree.min if self.is_prioritized else 1.0

    @property
    def new(self) -> NewWindows | None:
        """Of windows that are handed out once: which were not, where the member does not save
        that."""
        return None

    def restore_new(self, new: NewWindows) -> None:
        """Hand out these."""

    def check_fits(self, size: int) -> None:
        """Refuse so many where this machine's memory cannot hold them."""
        self.rows._batch_reader.check_fits(size)

    def draw(self, rng: ReplayableRng, size: int, guard: ReadGuard) -> Any:
        """Draw so many, with the numbers of another generator than its own."""
        return self.rows.draw(rng, size, 0.0, guard)

    def choose(self, ids: np.ndarray, guard: ReadGuard) -> Any:
        """Those of these ids."""
        return self.rows.choose(ids, guard)

    def undo(self, drawn: Sequence[Any]) -> None:
        """Nobody took what was drawn, given in its order."""

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set priorities; returns how many were ignored."""
        ignored = self.sampler.update(ids, priorities)
        self.buffer._ignored += ignored
        return ignored

    def restore(self, start: int, leaves: np.ndarray, largest: float) -> None:
        """Take over what was saved, of rows from `start` on."""
        self.sampler.largest = largest
        self.sampler.restore((start, leaves, self.alpha))

    @property
    def look(self) -> tuple[Any, ...]:
        """What members of one union must agree in."""
        buffer = self.buffer
        return (
            buffer.fields, buffer.observation_space, buffer.action_space, buffer.stack_size,
            buffer.stack_padding, buffer.update_horizon, buffer.gamma,
        )  # fmt: skip


class SequenceMember(TransitionMember):
    """The windows of one member. All methods need its buffer's lock."""

    batch, key = SequenceBatch, "anchor"

    def __init__(self, view: Sequences) -> None:
        super().__init__(cast(ReplayBuffer, view._buffer))
        self._sequences, self._view = view, view._view

    def catch_up(self) -> None:
        self.rows = self._sequences._current()
        self._view.catch_up(self.rows)
        self.sampler = self._view.anchors

    @property
    def alpha(self) -> float | None:
        options = self._sequences.options
        return options.alpha if options.prioritized else None

    @property
    def count(self) -> int:
        return self.sampler.count

    @property
    def new(self) -> NewWindows | None:
        return None if self.keeps_itself else self._view.new_with()

    def restore_new(self, new: NewWindows) -> None:
        self._view.restore_new(new)

    def check_fits(self, size: int) -> None:
        self._view._reader.check_fits(size)

    def draw(self, rng: ReplayableRng, size: int, guard: ReadGuard) -> Any:
        return self._view.draw(self.rows, size, 0.0, guard, rng)

    def choose(self, ids: np.ndarray, guard: ReadGuard) -> Any:
        return self._view.choose(self.rows, ids, guard)

    def undo(self, drawn: Sequence[Any]) -> None:
        self._view.undo_new(drawn)

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        return self.sampler.update(ids, priorities)

    def restore(self, start: int, leaves: np.ndarray, largest: float) -> None:
        self.sampler.largest = largest
        self.sampler.restore(start, leaves)

    @property
    def look(self) -> tuple[Any, ...]:
        asked = self._sequences.options
        window = asked.window._replace(stride=1, finished=False)
        return (*super().look, window, asked.fields, asked.state, asked.returns_to_go)


def opened_member(member: Any, opened: contextlib.ExitStack) -> ReplayBuffer | Sequences:
    """A member as it was given, or the buffer at its path; `opened` closes that."""
    if isinstance(member, ReplayBuffer | Sequences):
        return member
    if not isinstance(member, str | os.PathLike):
        raise InvalidInputError(
            f"members: a buffer, a view of sequences or a path expected, found {brief(member)}"
        )
    return opened.enter_context(open_buffer(member))


def member_of(source: ReplayBuffer | Sequences) -> TransitionMember:
    """What a union draws from in a buffer or a view."""
    return SequenceMember(source) if isinstance(source, Sequences) else TransitionMember(source)
