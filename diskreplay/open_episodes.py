"""The episodes under way in a store, and where parts of episodes begin."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.episode_parts import PARTS, Parts
from diskreplay.errors import FormatError, UsageError
from diskreplay.runs import Run, joined
from diskreplay.store import numbers
from diskreplay.store.format import read_attributes
from diskreplay.store.held_file import HeldFile
from diskreplay.store.store import Store

BEGINS = "begins"  # among the attributes of the group
# Its env's next row is none but a final row, so that the step of each row fits into int32.
LONGEST = numbers.LAST_STEP


class OpenEpisodes:
    """What memory knows of the episodes of one store. Needs the buffer's lock.

    Attributes
    ----------
    next_step : ndarray of int32, shape (num_envs,)
        The step that each env's next row has: 0 where no episode is open.
    begins : set of int
        Ids of rows that begin an episode though their step counts on from the row before: parts of
        episodes behind a cut one, which `extend` was given. The record names them before they are
        there, so that nobody takes them for what the cut episode went on with.
    parts : Parts
        Rows that `extend` was given, and among which episodes begin at other steps than 0, or final
        rows hold more than an observation.
    cut : ndarray of int64, shape (num_envs,)
        How many rows each env had when it was opened, or told that its episode is over: the row
        behind these belongs to none before.
    resumed : ndarray of int64, shape (num_envs,)
        How many rows each env had when its episode was taken up from a checkpoint; -1 where none
        was.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.next_step = np.zeros(store.num_envs, np.int32)
        self.begins = parse_begins(store.meta, store)
        self.parts = parse_parts(store.meta, store)
        if store.mode != "r":  # a reader's are yet to come
            self.forget_missing()
        self.cut = store.count.copy()
        self.resumed = np.full(store.num_envs, -1)
        # The attribute that the record has, and what it says.
        self._noted: tuple[Any, Parts] | None = None
        self._steps_left = 0  # so many vector steps cannot make an episode too long
        self._most_begins = 64  # until it is looked which of them have left

    def refuse(self, env: int) -> None:
        """Refuse the next step of an env whose episode is as long as can be counted."""
        raise UsageError(
            f"{self._store.path}: the episode of env {env} has {LONGEST} steps, the most that can "
            "be counted; nothing was recorded: call end_episode() and add the step again"
        )

    def check_steps(self, envs: np.ndarray) -> None:
        """Refuse the next step of these envs if one of their episodes is too long for it.

        Called by each vector step, and looks once in billions of them.
        """
        if not self._steps_left:
            longest = int(self.next_step.max())
            if longest == LONGEST:
                tired = envs[self.next_step[envs] == LONGEST]
                if len(tired):
                    self.refuse(int(tired[0]))
            self._steps_left = max(LONGEST - longest, 1)
        self._steps_left -= 1

    def look_again(self) -> None:
        """`next_step` is about to be set to any step: `check_steps` has to look at it."""
        self._steps_left = 0

    def resume(self, env: int) -> None:
        """Go on with the episode of the newest row of an env, which there is, unless it is over."""
        newest = int(self._store.count[env]) - 1
        *ends, step = (
            self._store.columns[name].read(env, newest, newest + 1)[0]
            for name in ("terminated", "truncated", "is_final", "step")
        )
        self.next_step[env] = 0 if any(ends) else min(int(step) + 1, LONGEST)
        self.cut[env] = newest

    def take_up(self, next_step: np.ndarray) -> None:
        """Go on with the episodes that were open when a checkpoint was saved: the step of each
        env's next row, 0 where none was."""
        self.next_step[:] = next_step
        self.resumed = np.where(next_step > 0, self._store.count, -1)

    def step_for_actor(self, env: int) -> int:
        """The step that an actor begins with who has not been there yet: it goes on with an episode
        that was taken up from a checkpoint, and with none that another one was amid."""
        return int(self.next_step[env]) if self.is_taken_up(env) else 0

    def is_taken_up(self, env: int) -> bool:
        """Whether the next row of an env goes on with an episode of a checkpoint."""
        return bool(self.resumed[env] == self._store.count[env])

    def end(self, env: int) -> None:
        """The episode of an env is over: its next row begins another one."""
        self.cut[env], self.next_step[env] = self._store.count[env], 0

    def begin(self, runs: Sequence[Run], reward_at: int) -> bool:
        """Note where in rows that are about to be added an episode begins at another step than 0,
        or a final row holds more than an observation.

        Returns whether the store has to be told first: `attributes` are to be on the disk before
        the rows are there.

        Parameters
        ----------
        runs : sequence of Run
            No env twice.
        reward_at : int
            The place of the reward among the columns; ends, step and ``is_final`` follow.
        """
        reward, terminated, truncated, step, is_final = (
            joined(runs, reward_at + place) for place in range(5)
        )
        ended, odd = terminated | truncated, is_final
        if is_final.any():
            odd = is_final & (ended | (reward != 0))
        store, late = self._store, late_starts(step, ended, is_final)
        stop, found = 0, []
        for run in runs:
            start, stop = stop, stop + run.rows
            # Of the first row memory knows whether it goes on with an open episode.
            first = step.item(start)
            late[start] = (
                first != 0
                and first != self.next_step.item(run.env)
                and store.count.item(run.env) > store.first.item(run.env)
            )
            found.append((run.env, start, stop))
        if not (self.parts or late.any() or odd.any()):
            return False
        must_tell = False
        for env, start, stop in found:
            own, begin = late[start:stop], store.count.item(env)
            if own[0]:
                columns = step[start:stop], ended[start:stop], is_final[start:stop]
                own, is_new = self._late_behind(env, own, *columns)
                must_tell |= is_new
            must_tell |= self._note_hidden(env, own, step[start:stop], is_final[start:stop])
            own = own | odd[start:stop]
            is_odd = bool(own.any())
            follows, end = self.parts.last(env)[1] == begin > 0, begin + stop - start
            if is_odd or follows:
                rows = (begin + np.flatnonzero(own)).tolist()
                self.parts.add(env, begin if follows else rows[0], end, rows)
            if is_odd:
                must_tell |= self._record_lacks(env)
        return must_tell

    def _note_hidden(
        self, env: int, late: np.ndarray, step: np.ndarray, is_final: np.ndarray
    ) -> bool:
        """Add rows to `begins` whose step counts on from a final row: that it closed its episode is
        said by the row before it alone, which leaves first. Returns whether some are new."""
        hidden = late[1:] & is_final[:-1] & (step[1:] == step[:-1] + 1)
        if not hidden.any():
            return False
        rows = self._store.count.item(env) + 1 + np.flatnonzero(hidden)
        new = set((rows * self._store.num_envs + env).tolist()) - self.begins
        self.begins |= new
        return bool(new)

    def _late_behind(
        self, env: int, late: np.ndarray, step: np.ndarray, ended: np.ndarray, is_final: np.ndarray
    ) -> tuple[np.ndarray, bool]:
        """`late_starts` of an env's next rows, of which the first begins an episode, unless it is
        what the last one has led to; and whether it is one more of `begins`."""
        store, count = self._store, self._store.count.item(env)
        if step.item(0) != store.columns["step"].read(env, count - 1, count).item(0) + 1:
            return late, False  # nor is it what closes an episode
        low = max(count - 2, store.first.item(env))
        *ends, steps, finals = (
            store.columns[name].read(env, low, count)
            for name in ("terminated", "truncated", "step", "is_final")
        )
        over, before = ends[0] | ends[1], count - low
        if is_final[0] and over[-1] and count > self.cut[env]:  # what that row has led to
            return late_starts(
                np.append(steps, step), np.append(over, ended), np.append(finals, is_final)
            )[before:], False  # fmt: skip
        is_new = self._next_id(env) not in self.begins
        if len(self.begins) > self._most_begins:  # those that have left
            self.begins = set(self.retained_begins(store.durable_first))
            self._most_begins = 2 * len(self.begins) + 64
        self.begins.add(self._next_id(env))
        late[0] = True
        return late, is_new

    def _record_lacks(self, env: int) -> bool:
        """Whether the record does not name all rows of an env's last range, or fewer odd rows than
        there are in all that lie in what it named ahead."""
        saved = self._store.meta.get(PARTS)
        if self._noted is None or self._noted[0] is not saved:
            self._noted = saved, parse_parts(self._store.meta, self._store)
        start, stop, room = self._noted[1].last(env)
        mine, end, _most = self.parts.last(env)
        most = self.parts.most_from(env, start)
        enough = room is None or (most is not None and most <= room)
        return not (start <= mine and end <= stop and enough)

    def attributes(self, *, ahead: bool = False) -> dict[str, Any]:
        """What the record has to say of `begins` and `parts`; `ahead` as for `Parts.describe`."""
        found: dict[str, Any] = {}
        store = self._store
        if self.begins or BEGINS in store.meta:
            found[BEGINS] = self.retained_begins(store.durable_first if ahead else store.first)
        if self.parts or PARTS in store.meta:
            self.parts.cut(store.durable_first, None if ahead else store.count)
            found[PARTS] = self.parts.describe(ahead=ahead)
        return found

    def forget_missing(self) -> None:
        """Leave out rows that are not there and will be others, and those of `parts` that have left
        for good; and have the record leave them out of `begins`, where they would cut episodes."""
        store, num_envs = self._store, self._store.num_envs
        stray = {id_ for id_ in self.begins if id_ // num_envs >= store.count[id_ % num_envs]}
        self.begins -= stray
        self.parts.cut(store.durable_first, store.count)
        if not store.was_closed:
            self.parts.limit(self._count_odd)
        if stray:
            store.amend({BEGINS: self.retained_begins(store.durable_first)}, needed=False)

    def _count_odd(self, env: int, first: int, stop: int) -> int:
        """How many of these rows, as far as they are retained, parts of episodes may have and other
        rows may not; one that is in doubt is counted."""
        oldest = self._store.first.item(env)
        low = max(first - 2, oldest)  # a rule is of three rows at most
        if low >= stop:
            return 0
        step, final, reward, *ends = (
            self._store.columns[name].read(env, low, stop)
            for name in ("step", "is_final", "reward", "terminated", "truncated")
        )
        ended = ends[0] | ends[1]
        odd = late_starts(step, ended, final) | (final & (ended | (reward != 0)))
        odd[0] |= step[0] != 0
        return int(np.count_nonzero(odd[max(first, oldest) - low :]))

    def begins_next(self, env: int) -> bool:
        """Whether the next row of an env is one of `begins`."""
        return bool(self.begins) and self._next_id(env) in self.begins

    def _next_id(self, env: int) -> int:
        return int(self._store.count[env]) * self._store.num_envs + env

    def retained_begins(self, first: np.ndarray | None = None) -> list[int]:
        """Of `begins`, what the record has to name that has rows from `first` on, those that are
        retained by default: rows that are there or yet to come."""
        first, num_envs = self._store.first if first is None else first, self._store.num_envs
        return sorted(id_ for id_ in self.begins if id_ // num_envs > first[id_ % num_envs])

    def follow(self) -> None:
        """Read `begins` anew if the record is another one: it was written before the rows that it
        names, so it has those of the rows that were seen by now."""
        store, record = self._store, self._store.seen_record
        try:
            if record is not None and record.is_at_its_path():
                return
            found = HeldFile(store.path / "zarr.json")
        except OSError:  # the store was moved: what is mapped is all there will be
            return
        self.begins = parse_begins(read_attributes(store.path), store)
        store.seen_record = found  # not before: after Ctrl-C it is read again
        if record is not None:
            record.close()


def late_starts(step: np.ndarray, ended: np.ndarray, is_final: np.ndarray) -> np.ndarray:
    """Which of consecutive rows of one env begin an episode, by the rule of the row index, though
    their step is not 0; of the first one nothing is known.

    Parameters
    ----------
    step : ndarray of int32
    ended, is_final : ndarray of bool
        `ended`: terminated or truncated.
    """
    late = np.zeros(len(step), np.bool_)
    late[1:] = (step[1:] != step[:-1] + 1) | (ended[:-1] & ~is_final[1:])
    closes = ended[:-1] & is_final[1:] & ~late[1:]
    late[2:] |= closes[:-1]
    return late & (step != 0)


def parse_parts(attributes: Mapping[str, Any], store: Store) -> Parts:
    """`OpenEpisodes.parts` in the attributes of a store, or a `FormatError`."""
    try:
        return Parts.parse(attributes, store.num_envs)
    except ValueError as error:
        raise FormatError(f"{store.path / 'zarr.json'}: damaged ({error})") from error


def parse_begins(attributes: Mapping[str, Any], store: Store) -> set[int]:
    """`OpenEpisodes.begins` in the attributes of a store, or a `FormatError`."""
    saved = attributes.get(BEGINS, [])
    try:
        if not isinstance(saved, list):
            raise ValueError(f"{BEGINS}: a list expected, found {saved!r:.60}")
        return {numbers.integer(BEGINS, id_, 0, numbers.MOST_ROWS) for id_ in saved}
    except ValueError as error:
        raise FormatError(f"{store.path / 'zarr.json'}: damaged ({error})") from error
