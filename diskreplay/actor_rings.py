"""The rings of a buffer's actors, as the process sees them that takes their rows."""

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay import fork
from diskreplay.errors import CorruptSegmentError, LockedError, SchemaError
from diskreplay.indexed_store import IndexedStore
from diskreplay.runs import Run
from diskreplay.signals import undisturbed
from diskreplay.store import actor_ring, file_locks, files, generation, private
from diskreplay.store.actor_ring import (
    ATTACHED,
    BEHIND,
    BY_ITSELF,
    CLOSED,
    FRESH_AT,
    GENERATION,
    STEP,
    TAKEN,
    WRITTEN,
    ActorRing,
)
from diskreplay.store.field import Field

_AT_ONCE = 512  # rows, about, that are taken before others get the buffer's lock
_PATIENCE = 5.0  # seconds, for actors that look whether there is a learner


class ActorRings:
    """All rings of one store. Needs the buffer's lock, but for `waiting` and `close`.

    Attributes
    ----------
    by_itself : bool
        Whether rows are taken without being asked for.
    is_taking : bool
        Whether the call under way is `take`.
    """

    def __init__(self, path: Path, fields: list[Field]) -> None:
        self._path, self._fields = path, fields
        self._rings: dict[int, ActorRing] = {}
        self._go_on: set[int] = set()  # envs of rings that were there before this process was
        self.is_taking = False
        self.by_itself, self._pid = True, fork.pid
        self._taker = self._hold()

    def _hold(self) -> int:
        path, until = private.taker(self._path), time.monotonic() + _PATIENCE
        while (fd := file_locks.try_lock(path)) is None:
            if time.monotonic() > until:
                raise LockedError(f"{path}: held by another process, which should only look at it")
            time.sleep(0.001)
        return fd

    # -- which there are

    def reopen(self, rows: IndexedStore) -> None:
        """Find the rings that a process before this one has left, and what came of what it was
        amid; a `CorruptSegmentError` or a `SchemaError` where a file is no ring of this store."""
        current, lost = generation.current(rows.store.meta), {}
        for path in private.rings(self._path):
            env = int(path.suffix[1:])
            if env >= rows.store.num_envs:
                raise SchemaError(f"{path}: the store has {rows.store.num_envs} env(s)")
            if (says := actor_ring.lost_by_a_power_cut(path)) is not None:
                lost[path] = says
                continue
            ring = ActorRing(path, self._fields)
            ring.words[CLOSED] = 0
            ring.words[FRESH_AT] = -1
            ring.note_committed(int(rows.store.count[env]))
            if ring.words[GENERATION] != current:  # of before a load that was killed amid it
                ring.drop()
                ring.words[GENERATION] = current
            self.by_itself = self.by_itself and bool(ring.words[BY_ITSELF])
            self._rings[env] = ring
            self._go_on.add(env)
            self._check_rows(ring)
        for path in lost:
            files.remove(path)
        if any(lost.values()):  # last: it is raised where warnings are errors
            text = "\n".join(says for says in lost.values() if says)
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _check_rows(self, ring: ActorRing) -> None:
        """Refuse rows that cannot be: the file may come from anybody, and kernels go by them."""
        for field, column in zip(self._fields, ring.columns, strict=True):
            bad = {
                "step": lambda found: found < 0,
                "reward": lambda found: ~np.isfinite(found),
                **dict.fromkeys(
                    ("terminated", "truncated", "is_final"), lambda found: found.view(np.uint8) > 1
                ),
            }.get(field.name)
            if bad is not None and bad(column).any():
                raise _damaged(ring, field.name)
        if (ring.priorities < 0).any() or np.isinf(ring.priorities).any():
            raise _damaged(ring, "priority")

    def of_envs(self, envs: Sequence[int], rows: int, store: IndexedStore) -> list[str]:
        """The ids of the rings of these envs, which are made where there is none, or none so long.

        Raises
        ------
        LockedError
            One of another length is in use. All are as they were.
        """
        with contextlib.ExitStack() as held:
            for env in envs:
                if env in self._rings and self._rings[env].rows != rows:
                    self._hold_unused(self._rings[env], held)
            return [self._of_env(env, rows, store) for env in envs]

    def _hold_unused(self, ring: ActorRing, held: contextlib.ExitStack) -> None:
        """Keep actors away from a ring that is about to be made anew."""
        lock = file_locks.try_lock(ring.path, make=False)
        if lock is None:
            raise LockedError(
                f"{ring.path}: a ring of {ring.rows} rows, which an actor writes to; ask for as "
                "many, or let it end first"
            )
        held.callback(file_locks.unlock, lock)
        if ring.waiting:
            raise LockedError(
                f"{ring.path}: a ring of {ring.rows} rows, of which {ring.waiting} wait to be "
                "taken; ask for as many, or call drain first"
            )

    def _of_env(self, env: int, rows: int, store: IndexedStore) -> str:
        ring = self._rings.get(env)
        if ring is None or ring.rows != rows:
            words = {
                GENERATION: generation.current(store.store.meta),
                STEP: store.episodes.step_for_actor(env),
                BY_ITSELF: self.by_itself,
            }
            with undisturbed():  # else the old one might be known, which is no file any more
                path = private.ring(self._path, env)
                ring = self._rings[env] = ActorRing.create(path, self._fields, rows, words)
        return ring.id

    def set_by_itself(self, value: bool) -> None:
        """Whether rows are taken without being asked for, now and by the next process."""
        self.by_itself = value
        for ring in self._rings.values():
            ring.words[BY_ITSELF] = value

    def waiting(self) -> dict[int, int]:
        """How many rows were put into the ring of each env ever, and are not taken yet."""
        return {env: ring.waiting for env, ring in self._rings.items() if ring.waiting}

    def written(self) -> dict[int, int]:
        """How many rows were put into each ring ever."""
        return {env: ring.words[WRITTEN] for env, ring in self._rings.items()}

    def has_taken(self, written: dict[int, int]) -> bool:
        """Whether so many rows of each ring were taken."""
        rings = self._rings
        return all(env not in rings or rings[env].words[TAKEN] >= n for env, n in written.items())

    # -- taking

    def take(self, rows: IndexedStore, extend: Callable[[list[Run], Any], None]) -> int:
        """Add some of the rows that wait to the store; returns how many, 0 if none wait.

        Parameters
        ----------
        extend : callable
            Adds runs of rows, with their priorities.
        """
        found = [(env, ring) for env, ring in self._rings.items() if ring.waiting]
        if not found or self.is_taking:
            return 0
        most = max(_AT_ONCE // len(found), 8)
        runs, numbers = [], []
        for env, ring in found:
            columns, priorities = ring.run(most, rows.final_at)
            runs.append(Run(env, columns))
            numbers.append(priorities)
        given = rows.sampler.given_by_actors(np.concatenate(numbers))
        count = rows.store.count
        with undisturbed():  # else what was committed might be taken again
            self.is_taking = True
            try:
                for (env, ring), run in zip(found, runs, strict=True):
                    self._resume(env, ring, run, rows)
                    ring.begin(int(count[env]), run.rows)
                extend(runs, given)
            finally:
                taken = sum(ring.note_committed(int(rows.store.count[env])) for env, ring in found)
                self.is_taking = False
        return taken

    def _resume(self, env: int, ring: ActorRing, run: Run, rows: IndexedStore) -> None:
        """An actor that outlived the learner goes on with its episode."""
        if ring.words[TAKEN] == ring.words[FRESH_AT]:
            # The first rows since the ring was made, or since a load. Their steps may be those that
            # an open episode has next, and yet only who came after the load goes on with that.
            came_before = ring.words[ATTACHED] != ring.words[GENERATION]
            if came_before or not rows.episodes.is_taken_up(env):
                rows.episodes.end(env)
        if env not in self._go_on:
            return
        self._go_on.discard(env)
        step = int(run.columns[rows.final_at - 1][0])
        if step and ring.words[BEHIND] == rows.store.count[env] > rows.store.first[env]:
            rows.episodes.resume(env)

    def forget(self, rows: IndexedStore) -> None:
        """The store was replaced, by that of a checkpoint: what waits is of the time after it."""
        for env, ring in self._rings.items():
            ring.drop()
            ring.words[STEP] = rows.episodes.step_for_actor(env)
            ring.words[FRESH_AT] = ring.words[TAKEN]  # an actor may have put more rows since
            # Last: an actor that comes now and finds it has found those above.
            ring.words[GENERATION] = generation.current(rows.store.meta)
        self._go_on.clear()

    # -- the end

    def refuse_more(self) -> None:
        """Let each further `add` of an actor be refused."""
        for ring in self._rings.values():
            ring.words[CLOSED] = 1

    def retire(self) -> None:
        """Remove rings that are empty and that no actor has."""
        for env in list(self._rings):
            self._retire(env)
        if not self._rings:
            files.remove(private.taker(self._path))

    def _retire(self, env: int) -> None:
        ring = self._rings[env]
        lock = file_locks.try_lock(ring.path, make=False)
        if lock is None:
            return
        try:
            if not ring.waiting:
                files.remove(ring.path)
                del self._rings[env]
        finally:
            file_locks.unlock(lock)

    def close(self) -> None:
        """Let go of all, which may be taken up by the next process."""
        self._rings.clear()
        if self._taker >= 0 and self._pid == fork.pid:  # a child's copy is closed already
            file_locks.unlock(self._taker)
            self._taker = -1


def _damaged(ring: ActorRing, what: str) -> CorruptSegmentError:
    return CorruptSegmentError(
        f"{ring.path}: damaged: a {what} that no row can have; remove it: rows that are in it are "
        "lost"
    )
