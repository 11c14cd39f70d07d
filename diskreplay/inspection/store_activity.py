"""What is around a store: who writes to it, when that was last, which checkpoints are beside it."""

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diskreplay.errors import DiskReplayError, StorageError
from diskreplay.store import file_locks, files, listing, manifest, private
from diskreplay.store.checkpoint_names import NAME
from diskreplay.store.field import Field

_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class Writer:
    """What the lock file says."""

    pid: int | None
    """The process that opened the store last, None if it is not known."""
    holds: bool | None
    """Whether it holds the lock now; None where the system does not say."""


@dataclass(frozen=True)
class Beside:
    """A checkpoint near a store."""

    path: Path
    suffix: str
    saved: float
    """Seconds since the epoch."""
    whole: bool


def writer_of(path: Path) -> Writer | None:
    """Who holds the store's lock; None for a checkpoint, which has none.

    The lock itself is not touched: to try it would, for an instant, keep a writer out that is just
    starting. Linux lists the locks that are held; elsewhere a process of that number has to do.
    """
    try:
        lock = private.lock_file(path)
        inode = os.stat(lock).st_ino
        text = lock.read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    if not text.isdecimal():
        return Writer(None, False if text == "" else None)
    pid = int(text)
    try:
        listed = _LOCKS.read_text()
    except OSError:
        return Writer(pid, False if file_locks.has_ended(pid) else None)
    # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF"
    held = re.search(rf"FLOCK\s+\S+\s+WRITE\s+{pid}\s+\S+:{inode}\s", listed)
    return Writer(pid, held is not None)


def last_write(path: Path) -> float | None:
    """When the store was last written to, or the checkpoint saved, in seconds since the epoch.

    Exact for a checkpoint, and for a store that was closed in good order. The files of a live store
    are mapped into memory, and the kernel notes that such a file was written to only when it has
    written it to the disk since: half a minute may lie between, and in ``/dev/shm`` all the time
    since the store was opened. So of a live store, or one that was never closed, it may have been
    later.
    """
    of_checkpoint = path / manifest.NAME
    if files.is_there(of_checkpoint):
        with contextlib.suppress(DiskReplayError):  # damaged: the file's own time has to do
            if (saved_at := manifest.read(path).saved_at) is not None:
                return saved_at.timestamp()
    of_store = [private.commit_page(path), path / "zarr.json"]
    candidates = [of_checkpoint] if files.is_there(of_checkpoint) else of_store
    times = []
    for candidate in candidates:
        with contextlib.suppress(FileNotFoundError):
            times.append(candidate.stat().st_mtime)
    return max(times, default=None)


def oldest_write(path: Path, field: Field, keys: Iterable[tuple[int, int]]) -> float | None:
    """When the oldest of some segments, by ``(number, group)``, was written to last, in seconds
    since the epoch. Of a raw field: its files are written in place and never again."""
    times = []
    for key in keys:
        with contextlib.suppress(FileNotFoundError):
            times.append((path / field.name / field.chunk_key(*key)).stat().st_mtime)
    return min(times, default=None)


def checkpoints_beside(path: Path) -> list[Beside]:
    """Checkpoints in the directory that the store is in, and in those directories next to it whose
    name speaks of checkpoints; oldest first."""
    parent = path.parent
    found = []
    for directory in [parent, *directories(parent, r"(?i).*(ckpt|checkpoint).*")]:
        with contextlib.suppress(StorageError):  # of no concern: the store itself can be read
            for one in listing.checkpoints(directory, None):
                with contextlib.suppress(FileNotFoundError):  # it was just removed
                    found.append(Beside(one.path, one.suffix, time_of(one), one.whole))
    return sorted(found, key=lambda beside: (beside.saved, str(beside.path)))


def time_of(checkpoint: listing.Checkpoint) -> float:
    """When it was saved, in seconds since the epoch; the time of its directory where it does not
    say.

    Raises
    ------
    FileNotFoundError
        It is gone.
    """
    if checkpoint.saved_at is not None:
        return checkpoint.saved_at.timestamp()
    return checkpoint.path.stat().st_mtime


def checkpoints_elsewhere(path: Path) -> dict[Path, int]:
    """Where checkpoints are that somebody looks for in `path`, and finds none: in a directory in
    it, or, if it is a store or a checkpoint itself, in one beside it; and how many there are."""
    is_store = files.is_there(path / "zarr.json")
    around = path.absolute().parent if is_store else path
    candidates = [*([around] if is_store else []), *directories(around)]
    counts = {place: len(directories(place, NAME.pattern)) for place in sorted(candidates)}
    return {place: count for place, count in counts.items() if count}


def directories(inside: Path, pattern: str = ".*") -> list[Path]:
    """Those in a directory whose names fit; none where it is gone, or not ours to read."""
    fits = re.compile(pattern).fullmatch
    try:
        with os.scandir(inside) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(".") and fits(entry.name) and entry.is_dir()
            ]  # fmt: skip
    except OSError:
        return []
