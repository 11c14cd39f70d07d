"""The episodes under way in a store, and where parts of episodes begin."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.errors import FormatError, UsageError
from diskreplay.store import numbers
from diskreplay.store.format import read_attributes
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
    cut : ndarray of int64, shape (num_envs,)
        How many rows each env had when it was opened, or told that its episode is over: the row
        behind these belongs to none before.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.next_step = np.zeros(store.num_envs, np.int32)
        self.begins = parse_begins(store.meta, store)
        self.cut = store.count.copy()
        self._seen: tuple[int, int] | None = None  # of a reader: the file that `begins` is of
        self._steps_left = 0  # so many vector steps cannot make an episode too long

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
            self._store.read(name, env, newest, newest + 1)[0]
            for name in ("terminated", "truncated", "is_final", "step")
        )
        self.next_step[env] = 0 if any(ends) else min(int(step) + 1, LONGEST)
        self.cut[env] = newest

    def begin(self, env: int, step: int, is_final: bool) -> bool:
        """Note that the next row of an env, of this step, begins an episode; False if it does not,
        or if all who see the rows know that. After True the store is to be recorded before that row
        is added."""
        count = int(self._store.count[env])
        if not step or self.next_step[env] or not count:
            return False
        *ended, before = (
            self._store.read(name, env, count - 1, count)[0]
            for name in ("terminated", "truncated", "step")
        )
        if step != int(before) + 1:
            return False
        if is_final and any(ended) and count > self.cut[env]:  # what that row has led to
            return False
        self.begins.add(self._next_id(env))
        return True

    def begins_next(self, env: int) -> bool:
        """Whether the next row of an env is one of `begins`."""
        return bool(self.begins) and self._next_id(env) in self.begins

    def _next_id(self, env: int) -> int:
        return int(self._store.count[env]) * self._store.num_envs + env

    def retained_begins(self) -> list[int]:
        """Of `begins`, what the record has to name: rows that are retained or yet to come."""
        first, num_envs = self._store.first, self._store.num_envs
        return sorted(id_ for id_ in self.begins if id_ // num_envs > first[id_ % num_envs])

    def follow(self) -> None:
        """Read `begins` anew if the record is another one: it was written before the rows that it
        names, so it has those of the rows that were seen by now."""
        try:
            found = os.stat(self._store.path / "zarr.json")
        except OSError:  # the store was moved: what is mapped is all there will be
            return
        identity = found.st_ino, found.st_mtime_ns
        if identity != self._seen:
            self.begins = parse_begins(read_attributes(self._store.path), self._store)
            self._seen = identity


def parse_begins(attributes: Mapping[str, Any], store: Store) -> set[int]:
    """`OpenEpisodes.begins` in the attributes of a store.

    Raises
    ------
    FormatError
    """
    saved = attributes.get(BEGINS, [])
    try:
        if not isinstance(saved, list):
            raise ValueError(f"{BEGINS}: a list expected, found {saved!r:.60}")
        return {numbers.integer(BEGINS, id_, 0, numbers.MOST_ROWS) for id_ in saved}
    except ValueError as error:
        raise FormatError(f"{store.path / 'zarr.json'}: damaged ({error})") from error
