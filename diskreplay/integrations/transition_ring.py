"""A ring of transitions in numbered slots, as frameworks keep them, over a store of frames.

Slot `s` of env `e` has one transition. Its observation is a row of the store; what it led to is the
row behind that one: the next transition's, or a final row. Of the newest transition it is in memory
only, the tip, until the next call shows whether the episode goes on from there.
"""

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from diskreplay.errors import InvalidInputError, UsageError
from diskreplay.integrations.both_sides import BothSides
from diskreplay.integrations.read_ahead import ReadAhead
from diskreplay.integrations.stacked_leaf import Padding, StackedLeaf
from diskreplay.integrations.tip import Tip
from diskreplay.integrations.transition_reading import TransitionReading
from diskreplay.integrations.transition_rows import complete_transitions, lead_in, slack
from diskreplay.prefetch import Prefetcher

if TYPE_CHECKING:
    from diskreplay.buffer import ReplayBuffer

_MOST_STEPS = 255  # that are told apart: no stack is longer
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Handle(Protocol):
    """A `SharedBuffer`, or what stands for one."""

    @property
    def path(self) -> Path | None: ...
    @property
    def buffer(self) -> "ReplayBuffer": ...
    def claim(self, pause: Callable[[], None] | None = None) -> object: ...
    def has(self, claim: object) -> bool: ...


class TransitionRing(TransitionReading):
    """The transitions of several envs, each env's newest `buffer_size` ones.

    Parameters
    ----------
    handle : SharedBuffer, or what stands for one
        Its buffer has `rows_for` rows of each env.
    leaves : sequence of StackedLeaf
    buffer_size : int
        Slots.
    num_envs : int
    padding : {"zero", "reset"}
        What the stacks of an episode's first steps begin with.

    Attributes
    ----------
    rows : ndarray of int64, shape (buffer_size, num_envs)
        The row of each slot; -1 where there is none yet.
    both : BothSides
        For code that asks for both observations of a batch, and copies them.

    Notes
    -----
    10 bytes of memory a transition, beside those of the buffer.
    """

    def __init__(
        self, handle: Handle, leaves: Sequence[StackedLeaf], buffer_size: int,
        num_envs: int, padding: Padding,
    ) -> None:  # fmt: skip
        self._handle, self.leaves, self._padding = handle, list(leaves), padding
        self.buffer_size, self.num_envs = buffer_size, num_envs
        self._named = bool(self.leaves[0].name)
        self._patience = slack(buffer_size)
        self._longest = max(leaf.stack for leaf in self.leaves)
        if self._longest > _MOST_STEPS:
            raise InvalidInputError(
                f"frame_stack: at most {_MOST_STEPS} expected, found {self._longest}"
            )
        leaf = self.leaves[0]
        self._newest_of_one = leaf.newest_of_one
        self._is_one = num_envs == len(self.leaves) == 1 and leaf.newest_of_one is not None
        self.both, self._ahead = BothSides(), ReadAhead()
        self._claim = handle.claim(self._ahead.stop)
        weakref.finalize(self, self._ahead.drop)
        self.forget()

    def forget(self) -> None:
        """No slot has a transition; of the store nothing changes."""
        shape = self.buffer_size, self.num_envs
        self.rows = np.full(shape, -1, np.int64)
        self._before = np.zeros(shape, np.uint8)  # frames of its episode that a row has behind it
        self._blind = np.zeros(shape, np.bool_)  # nobody knows what it led to, and it terminated
        self._open = np.zeros(self.num_envs, np.bool_)  # envs whose newest transition has a tip
        self._newest = np.full(self.num_envs, -1, np.int64)  # the rows of these
        self._steps = np.zeros(self.num_envs, np.int64)  # of the episodes under way
        self._tips = [Tip(leaf, self.num_envs) for leaf in self.leaves]
        self._adds = 0
        # Of each env, which of its transitions have their older frames in rows of their own.
        self._leads: list[deque[int]] = [deque() for _ in range(self.num_envs)]

    @property
    def buffer(self) -> Any:
        """The `ReplayBuffer` that has the rows.

        Raises
        ------
        UsageError
            Another ring of this process has taken the store over.
        """
        if not self._handle.has(self._claim):
            raise UsageError(
                f"{self._handle.path}: another replay buffer of this process has this store now, "
                "made or unpickled later with the same path; use that one, or another path"
            )
        return self._handle.buffer

    # -- adding

    def add(
        self, slot: int, observations: list[np.ndarray], following: list[np.ndarray],
        actions: np.ndarray, rewards: np.ndarray, done: np.ndarray, truncated: np.ndarray,
        extras: Mapping[str, np.ndarray] = _NOTHING,
    ) -> None:  # fmt: skip
        """Put a transition of each env into a slot, in place of what is there.

        Parameters
        ----------
        observations, following : list of ndarray, each of shape (num_envs, *leaf.shape)
            For each leaf what the agents saw, and what their actions led to.
        actions : ndarray, shape (num_envs, ...)
            As the store's field has them.
        rewards : ndarray of float32, shape (num_envs,)
        done, truncated : ndarray of bool, shape (num_envs,)
        extras : mapping
            As `ReplayBuffer.add` takes them; only where no observation is a stack.

        Raises
        ------
        InvalidInputError
            The stacks are none of the frames that are stored. Nothing was recorded.
        NotFiniteError, DiskFullError, ...
            As for `ReplayBuffer.add`. This step was not recorded.
        """
        if self._is_one and not done.item(0):
            if self.add_one(
                slot, observations[0], following[0], actions[0], rewards.item(0), extras
            ):
                return
        buffer = self.buffer
        terminated = done & ~truncated
        goes_on, slides = self._open, np.ones(self.num_envs, np.bool_)
        leads = np.zeros(self.num_envs, np.bool_)  # envs whose older frames are not stored yet
        moves = goes_on.all() and all(map(Tip.goes_on, self._tips, observations, following))
        if not moves:
            goes_on = self._going_on(observations)
            if self._longest > 1:
                slides = self._check_slides(observations, following, terminated)
                if not goes_on.all():
                    leads = self._unpadded(observations, ~goes_on)
        cut = self._open & ~goes_on
        if cut.any():
            self._cut(cut)
        final = done & slides
        frames = self._frames(observations)
        last = self._frames(following) if final.any() else None
        if leads.any():
            ids = self._add_apart(
                leads, observations, frames, last, actions, rewards, done, truncated, final
            )
        elif self.num_envs > 1:
            options = {} if final.all() else {"next_observation_mask": final}
            ids = buffer.add(
                frames, actions, rewards, terminated, done & truncated, last, **options, **extras
            )
        else:
            ids = buffer.add(
                frames, actions[0], rewards.item(0), terminated.item(0),
                bool(done[0] and truncated[0]), last, **extras,
            )  # fmt: skip
        rows = ids // self.num_envs
        self._steps = np.where(goes_on, self._steps + 1, leads * (self._longest - 1))
        self.rows[slot] = rows
        self._before[slot] = np.minimum(self._steps, _MOST_STEPS)
        self._blind[slot] = done & ~slides
        self._open, self._newest = ~done, rows
        for tip, led in zip(self._tips, following, strict=True):
            tip.move_on(led) if moves else tip.put(led)
        self._adds += 1
        if slot % self._patience == 0:
            self.let_go((slot + 1) % self.buffer_size)

    def add_one(
        self, slot: int, observation: np.ndarray, following: np.ndarray, action: Any, reward: float,
        extras: Mapping[str, Any] = _NOTHING, *, is_fitted: bool = False,
    ) -> bool:  # fmt: skip
        """`add` for a step in the middle of the episode of the only env, without an array of one
        element for each question; False, and nothing was done, if it is something else.

        Observations are of the leaf's dtype, and of shape (1, *leaf.shape). What `is_fitted` is as
        `ReplayBuffer.put_row` takes it, without extras; else it is as `ReplayBuffer.add` takes it.
        """
        tip = self._tips[0]
        if not (self._is_one and self._open.item(0) and tip.goes_on(observation, following)):
            return False
        frame = observation[self._newest_of_one]
        if is_fitted:
            row = self.buffer.put_row([frame, action, reward, False, False, 0, False])
        else:
            given = {self.leaves[0].name: frame} if self._named else frame
            row = self.buffer.add(given, action, reward, False, False, **extras).item(0)
        steps = self._steps.item(0) + 1
        self._steps[0] = steps
        self.rows[slot, 0] = self._newest[0] = row
        self._before[slot, 0] = steps if steps < _MOST_STEPS else _MOST_STEPS
        self._blind[slot, 0] = False
        tip.move_on(following)
        self._adds += 1
        if slot % self._patience == 0:
            self.let_go((slot + 1) % self.buffer_size)
        return True

    def _going_on(self, observations: list[np.ndarray]) -> np.ndarray:
        """The envs whose episode goes on with these observations."""
        goes_on = self._open.copy()
        if goes_on.any():
            for tip, seen in zip(self._tips, observations, strict=True):
                goes_on &= tip.of_envs(seen)
        return goes_on

    def _check_slides(
        self, observations: list[np.ndarray], following: list[np.ndarray], terminated: np.ndarray
    ) -> np.ndarray:
        """The envs whose stacks slide by one frame; the others are terminated, or an error."""
        slides = np.ones(self.num_envs, np.bool_)
        for leaf_at, leaf in enumerate(self.leaves):
            if leaf.stack > 1:
                slides &= leaf.slides(observations[leaf_at], following[leaf_at])
            wrong = ~slides & ~terminated
            if wrong.any():
                raise InvalidInputError(
                    f"next_obs{leaf.shown} of env {int(wrong.argmax())}: its older frames "
                    f"are not the newer ones of obs, so that {leaf.stack} frames cannot be told "
                    "from one new frame each; nothing was recorded. If the environment was reset, "
                    "give the observation that it was reset to as obs, or use frame_stack=1"
                )
        return slides

    def _unpadded(self, observations: list[np.ndarray], begins: np.ndarray) -> np.ndarray:
        """Of the envs whose episode begins here, those whose stack goes back further: in the
        middle of an episode, after `reset` say, or with another padding than was declared."""
        unpadded = np.zeros(self.num_envs, np.bool_)
        for leaf, seen in zip(self.leaves, observations, strict=True):
            unpadded[begins] |= ~leaf.padded(seen[begins], self._padding)
        for env in np.flatnonzero(unpadded).tolist():
            leads = self._leads[env]
            while leads and leads[0] <= self._adds - self.buffer_size:
                leads.popleft()
            if (len(leads) + 1) * (self._longest - 1) > 2 * (slack(self.buffer_size)):
                wanted = "zeros" if self._padding == "zero" else "the newest frame again"
                raise InvalidInputError(
                    f"obs of env {env}: the first stack of too many episodes has something else "
                    f"than {wanted} before its newest frame, which stack_padding="
                    f"{self._padding!r} says; nothing was recorded. Give the stack_padding that "
                    "the environment has, or use frame_stack=1"
                )
        return unpadded

    def _add_apart(
        self, leads: np.ndarray, observations: list[np.ndarray], frames: Any, last: Any,
        actions: np.ndarray, rewards: np.ndarray, done: np.ndarray, truncated: np.ndarray,
        final: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """`ReplayBuffer.add`, where the older frames of some envs get rows of their own before."""
        buffer, many = self.buffer, self.num_envs > 1
        ids = np.empty(self.num_envs, np.int64)
        if not leads.all():
            others = ~leads
            options = {"mask": others}
            if last is not None:
                options["next_observation_mask"] = final & others
            ids[others] = buffer.add(
                frames, actions, rewards, done & ~truncated, done & truncated, last, **options
            )
        for env in np.flatnonzero(leads).tolist():
            seen = [part[env] for part in observations]
            ends = None
            if final[env]:
                ends = [last[leaf.name] for leaf in self.leaves] if self._named else [last]
                ends = [part[env] for part in ends] if many else ends
            columns = lead_in(
                buffer.fields, self.leaves, seen, ends, actions[env], rewards[env],
                bool(done[env]), bool(truncated[env]),
            )  # fmt: skip
            ids[env] = buffer.extend(columns, env)[self._longest - 1]
            self._leads[env].append(self._adds)
        return ids

    def _frames(self, parts: list[np.ndarray]) -> Any:
        """The newest frame of each observation, as `ReplayBuffer.add` takes them."""
        return self._as_given(
            [leaf.newest(part) for leaf, part in zip(self.leaves, parts, strict=True)]
        )

    def _as_given(self, frames: list[np.ndarray]) -> Any:
        """A frame of each leaf and env, as `ReplayBuffer.add` takes them."""
        if self.num_envs == 1:
            frames = [frame[0] for frame in frames]
        if not self._named:
            return frames[0]
        return {leaf.name: frame for leaf, frame in zip(self.leaves, frames, strict=True)}

    def _cut(self, envs: np.ndarray) -> None:
        """End the episodes of these envs: what their newest transitions led to gets a row."""
        tips = self._as_given([tip.newest for tip in self._tips])
        self.buffer.end_episode(envs, next_observation=tips)
        # Now: if what follows is refused, they are not cut once more.
        self._open = self._open & ~envs
        self._newest = np.where(envs, -1, self._newest)

    def let_go(self, oldest: int) -> None:
        """Let all rows go that come before those of a slot, if the ring is full."""
        rows = self.rows[oldest]
        if (rows >= 0).all():
            behind = np.minimum(self._before[oldest], self._longest - 1)
            self.buffer.evict(rows - behind)

    def finish(self) -> None:
        """Write down what the newest transitions led to; their episodes are over."""
        if self._open.any():
            self._cut(self._open)

    def prefetched(self, depth: int, batch_size: int) -> Prefetcher:
        """The batches of this size that the buffer reads ahead; the same ones at each call."""
        return self._ahead.of(self.buffer, depth, batch_size)

    # -- after an opening, and for checkpoints

    def find(self, names: Sequence[str]) -> tuple[int, bool, np.ndarray, dict[str, np.ndarray]]:
        """Give slots to the transitions that an opened store has.

        Those whose observations are all there; so many of each env as every env has.

        Returns
        -------
        pos : int
            The slot of the next transition.
        full : bool
        slots : ndarray of int64, shape (transitions,)
            Oldest first.
        columns : dict of str to ndarray, each of shape (transitions, num_envs, ...)
            The fields of these names.
        """
        self.forget()
        buffer = self.buffer
        found, lost = complete_transitions(buffer, self._longest)
        kept = min(self.buffer_size, *(len(rows) for rows, _, _ in found))
        full = kept == self.buffer_size
        ever = (buffer.add_count - lost) // self.num_envs
        pos = ever % self.buffer_size if full else kept
        slots = (pos - kept + np.arange(kept)) % self.buffer_size
        for env, (rows, step, blind) in enumerate(found):
            there = slice(len(rows) - kept, None)
            self.rows[slots, env] = rows[there]
            self._before[slots, env] = np.minimum(step[there], _MOST_STEPS)
            self._blind[slots, env] = blind[there]
        ids = self.rows[slots] * self.num_envs + np.arange(self.num_envs)
        columns = dict(zip(names, buffer.take(list(names), ids), strict=True))
        return pos, full, slots, columns

    def state(self) -> dict[str, np.ndarray]:
        """All that is not in the store, for a checkpoint."""
        tips = {f"tip{at}": tip.array for at, tip in enumerate(self._tips)}
        return {
            "rows": self.rows, "before": self._before, "blind": self._blind, "open": self._open,
            "newest": self._newest, "steps": self._steps, **tips,
        }  # fmt: skip

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` gave, after the store was loaded."""
        self.rows, self._before, self._blind, self._open, self._newest, self._steps = (
            np.array(state[name]) for name in ("rows", "before", "blind", "open", "newest", "steps")
        )
        for at, tip in enumerate(self._tips):
            tip.load(state[f"tip{at}"])
