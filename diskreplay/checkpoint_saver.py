"""A checkpoint of a live store, which goes on getting rows while it is made durable."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diskreplay.checkpoint_loader import Checkpointed
from diskreplay.locks import busy_in, not_taken, wait_for
from diskreplay.store import checkpoint, priorities
from diskreplay.store.attachments import Source
from diskreplay.store.rwlock import ReadGuard


class CheckpointSaver:
    """`Session.save`."""

    def __init__(self, session: Checkpointed) -> None:
        self._session = session

    def save(
        self, directory: Path, suffix: int | str, wanted: Mapping[str, Source], keep: int | None
    ) -> Path:
        """Write one. The lock is held while the rows are taken, and not while they are synced:
        an `add` on another thread does not wait for the disk."""
        session = self._session
        session._take_waiting()
        with session._turn():
            session._rows.store.place.check()  # before a directory is made, beside the old path say
        with checkpoint.begun(directory, session.name, suffix, wanted) as begun:
            lock = session._turn()
            # No call by a handler of a signal begins amid this one, and no pass of maintenance.
            busy = [session._busy, session._rows.store.maintenance.pausing]
            return busy_in(busy, lambda: self._save(begun, lock, keep))

    def _save(self, begun: checkpoint.Construction, lock: Any, keep: int | None) -> Path:
        session, guard, is_held = self._session, ReadGuard(), False
        wait_for(session._rows.store.maintenance.lock)  # for a pass that is under way
        checkpoint.prepare(begun, session._rows.store)
        session._rows.prepare_to_save()
        try:
            with lock:
                session._check_writable()
                store = session._rows.store
                # Until the end: who closes, loads, flushes or saves comes after this. Ctrl-C cannot
                # come between this and `is_held`: see `Lock`.
                for _ in store.maintenance.lock.taken:
                    is_held = True
                    break
                else:
                    raise not_taken()
                taken, leaves = self._take(begun)
                store.rwlock.acquire_read(guard)
            taken.copy()
            guard.release()
            return checkpoint.finish(begun, store, session.name, taken, leaves, keep)
        finally:
            try:
                guard.release()
            finally:  # Ctrl-C may come as it begins
                if is_held:
                    store.maintenance.lock.release()

    def _take(self, begun: checkpoint.Construction) -> tuple[checkpoint.Contents, priorities.Sets]:
        """What a checkpoint has of this moment, and its priorities. Needs the lock."""
        session = self._session
        session._prefetchers.draw_resumed()
        with session._prefetchers.drained() as under_way, session._views.drained() as paused:
            states = session._views.states(session._rows, paused)
            meta = session._meta(states)
            meta["prefetch"] = session._prefetchers.describe(under_way)
            leaves = session._leaves(states)
            return checkpoint.take(begun, session._rows.store, meta), leaves
