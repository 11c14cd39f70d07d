"""Each call that `diskreplay.store.files` and `mapping` make to the system fails in its turn."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import crew
import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import DiskFullError, DiskReplayError, StorageError, StorePermissionError
from diskreplay.store import file_locks, files, leases, listing, mapping, modes, spare_files

CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE, errno.EINTR)
KINDS = {errno.ENOSPC: DiskFullError, errno.EACCES: StorePermissionError}
_OF_OS = (
    "open", "mkdir", "posix_fallocate", "fsync", "rename", "link", "chmod", "unlink", "rmdir",
    "ftruncate", "pwrite", "fstat",
)  # fmt: skip
CALLS = (*_OF_OS, "file", "write", "copyfile", "rmtree", "flock", "renameat2")
_CAPACITY, _ROWS = 60, 50
_PART, _LATE = 8, 20  # rows of a part of an episode; its first step is that much behind its row
_WRITTEN = 1 << 40  # what a write adds to the latent of a row


class Faults:
    """Counts the calls of one function, and lets the k-th fail.

    Attributes
    ----------
    name : str
        One of `CALLS`: ``file`` is opening a file to write it, ``write`` what is written to it.
    at : int or None
        Which call fails; None lets all through.
    seen : Counter
        Of each of `CALLS`, how many there were.
    """

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, Counter()
        self.arm(None)

    def arm(self, at: int | None, code: int = 0) -> None:
        """Count anew, and fail then."""
        self.at, self.code = at, code
        self.seen.clear()

    def strike(self, name: str) -> bool:
        """Whether this call of that function is to fail."""
        self.seen[name] += 1
        return name == self.name and self.seen[name] - 1 == self.at

    def wrap(self, name: str, original: Callable) -> Callable:
        def function(*arguments: Any, **options: Any) -> Any:
            if self.strike(name):
                raise OSError(self.code, os.strerror(self.code))
            return original(*arguments, **options)

        return function

    def _open(self, path: Path, mode: str) -> Any:
        if self.strike("file"):
            raise OSError(self.code, os.strerror(self.code))
        return io.BufferedWriter(_Short(path, mode, self), buffer_size=64)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """In the place of the system, for the modules that call it."""
        with ExitStack() as stack:
            # Small files are used again, as large ones are.
            stack.enter_context(mock.patch.object(spare_files, "_LARGE", 1))
            for module in (files, file_locks, leases, mapping, modes):
                double = SimpleNamespace(**vars(os))
                for name in _OF_OS:
                    setattr(double, name, self.wrap(name, getattr(os, name)))
                stack.enter_context(mock.patch.object(module, "os", double))
            tree = SimpleNamespace(
                rmtree=self.wrap("rmtree", shutil.rmtree),
                copyfile=self.wrap("copyfile", shutil.copyfile),
            )
            stack.enter_context(mock.patch.object(files, "shutil", tree))
            locks = SimpleNamespace(**vars(fcntl))
            locks.flock = self.wrap("flock", fcntl.flock)
            stack.enter_context(mock.patch.object(file_locks, "fcntl", locks))
            stack.enter_context(mock.patch.object(files, "open", self._open, create=True))
            library = _Library(files._libc, self)
            stack.enter_context(mock.patch.object(files, "_libc", library))
            yield


class _Short(io.FileIO):
    """Writes half of what it is given, as a system may."""

    def __init__(self, path: Path, mode: str, faults: Faults) -> None:
        super().__init__(path, mode)
        self._faults = faults

    def write(self, data: Any) -> int:
        if self._faults.strike("write"):
            raise OSError(self._faults.code, os.strerror(self._faults.code))
        return super().write(memoryview(data)[: max(1, len(data) // 2)])


class _Library:
    """The C library, whose calls report failure their own way. One of them, ``sync_file_range``, is
    a hint that nobody waits for."""

    def __init__(self, library: Any, faults: Faults) -> None:
        self._library, self._faults = library, faults

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._library, name)
        if name != "renameat2":
            return original

        def function(*arguments: Any) -> int:
            if self._faults.strike(name):
                import ctypes

                ctypes.set_errno(self._faults.code)
                return -1
            return original(*arguments)

        return function


# -- what is done


class Trial:
    """A store with `_ROWS` rows and two checkpoints, and what is called on it."""

    def __init__(self, root: Path) -> None:
        self.root, self.store, self.checkpoints = root, root / "store", root / "checkpoints"
        self.rows = self.ranked_rows = 0
        self.first = 0  # the oldest row that `evict` has not let go of
        self.parts = range(0)  # rows of parts of episodes
        self.written: list[int] = []  # rows with new latents
        self.buffer: diskreplay.PrioritizedReplayBuffer | None = None

    def make(self) -> diskreplay.PrioritizedReplayBuffer:
        return diskreplay.PrioritizedReplayBuffer(
            self.store, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
            capacity=_CAPACITY, compressor="lz4", segment_rows=8, batch_size=4, seed=3,
            extras={"hidden": ((512,), "uint8"), "latent": ((64,), "int64", "mutable")},
        )  # fmt: skip

    def add(self) -> None:
        number = self.rows
        self.buffer.add(
            np.full(64, number % 251, np.uint8),
            number % 4,
            float(number),
            number % 9 == 8,
            False,
            hidden=np.full(512, number % 241, np.uint8),
            latent=np.full(64, number),
        )
        self.rows += 1

    def fill(self) -> None:
        self.buffer = self.make()
        for suffix in (1, 2):
            for _ in range(_ROWS // 2):
                self.add()
            self.rank()
            self.buffer.save(self.checkpoints, suffix)
        self.ranked_rows = _ROWS // 2 - 4  # also in the first checkpoint

    def rank(self) -> None:
        """Give all transitions and windows the priorities that `check_ranks` knows."""
        view = self.ranked()
        ids, anchors = self.buffer.sampleable_ids(), view.anchors()
        self.buffer.update_priorities(ids, _priorities(ids))
        view.update_priorities(anchors, _priorities(anchors))

    def ranked(self) -> diskreplay.Sequences:
        """The view of sequences with priorities of its own."""
        return self.buffer.sequences(3, ends="pad", prioritized=True, name="ranked")

    def check_ranks(self) -> None:
        """What was there when priorities were saved has them."""
        view = self.ranked()
        view.anchors()  # it comes to know all rows
        sets = (self.buffer._kind.leaves(self.buffer._rows), self.buffer.alpha), (
            view._view.anchors.leaves(), view.options.alpha
        )  # fmt: skip
        for leaves, alpha in sets:
            rows = int(self.buffer.bounds[0, 0]) + np.arange(len(leaves))
            sure = ~np.isnan(leaves[:, 0]) & (rows < self.ranked_rows)
            np.testing.assert_allclose(leaves[sure, 0], _priorities(rows[sure]) ** alpha)

    def check(self) -> None:
        """All rows are there, byte for byte, and the priorities."""
        self.check_ranks()
        assert self.buffer.add_count == self.rows, (self.buffer.add_count, self.rows)
        rows, parts = self.kept(), np.array(self.parts, int)
        first = self.rows - len(rows)
        assert self.buffer.bounds.tolist() == [[first, self.rows]], self.buffer.bounds
        reward, observation, hidden = self.buffer.take(["reward", "observation", "hidden"], rows)
        np.testing.assert_array_equal(reward, rows)
        np.testing.assert_array_equal(observation[:, 0], rows % 251)
        np.testing.assert_array_equal(hidden[:, 511], rows % 241)
        latent, written = self.buffer.take("latent", rows), np.isin(rows, self.written)
        np.testing.assert_array_equal(latent, (rows + _WRITTEN * written)[:, None] + np.zeros(64))
        parts = parts[parts > first]
        np.testing.assert_array_equal(self.buffer.take("step", parts), parts + _LATE)
        begins = parts[(parts % _PART == 0) & (parts > self.parts.start)]
        assert [id_ for id_ in self.buffer.begins if id_ != first] == begins.tolist()

    def kept(self) -> np.ndarray:
        """The rows that are there."""
        return np.arange(max(self.first, self.rows - _CAPACITY), self.rows)

    # each of these can be called again after it failed

    def create(self) -> None:
        self.buffer = self.make()

    def record(self) -> None:
        while self.rows < _ROWS + 40:
            self.add()
            with self.buffer._rows.store.maintenance.lock:  # let the maintenance thread finish
                pass

    def extend(self, rows: int = _ROWS + 40) -> None:
        """Parts of episodes whose steps count on, though each begins one: until so many rows."""
        start = self.parts.start or self.rows
        while self.rows < rows:
            if self.rows % _PART == 0:
                self.buffer.end_episode()
            numbers = np.arange(self.rows, min(rows, (self.rows // _PART + 1) * _PART))
            flags, values = np.zeros(len(numbers), bool), numbers[:, None]
            try:
                self.buffer.extend({
                    "observation": (values % 251).repeat(64, 1).astype(np.uint8),
                    "action": numbers % 4, "reward": numbers.astype(np.float32),
                    "terminated": flags, "truncated": flags, "is_final": flags,
                    "step": (numbers + _LATE).astype(np.int32),
                    "hidden": (values % 241).repeat(512, 1).astype(np.uint8),
                    "latent": values.repeat(64, 1),
                })  # fmt: skip
            finally:  # of one that fails the first rows may be there
                self.rows = int(self.buffer.bounds[0, 1])
                self.parts = range(start, self.rows)

    def evict(self) -> None:
        """Rows leave one after another, and their files with the next record."""
        for first in (3, 10, 25, 41):
            try:
                self.buffer.evict([first])
            finally:
                self.first = int(self.buffer.bounds[0, 0])
            self.buffer.flush()

    def write(self) -> None:
        """Into files that checkpoints share, each of which is copied first."""
        rows = self.kept()[::7]
        latent = np.full((len(rows), 64), _WRITTEN) + rows[:, None]
        assert self.buffer.write("latent", rows, latent) == 0
        self.written = rows.tolist()

    def flush(self) -> None:
        self.buffer.flush()

    def save(self) -> None:
        self.buffer.save(self.checkpoints, 2)

    def retire(self) -> None:
        for suffix in (3, 4, 5):
            self.buffer.save(self.checkpoints, suffix)

    def load(self) -> None:
        self.buffer.load(self.checkpoints, 1)
        self.rows, self.written = _ROWS // 2, []
        self.first, self.parts = 0, range(0)

    def close(self) -> None:
        self.buffer.close()
        self.buffer = None

    reopen = create

    def recover(self) -> None:
        """Opening what a killed process left."""
        self.buffer = self.make()

    def prune(self) -> None:
        listing.remove(listing.superfluous(self.checkpoints, 1))

    def mend(self) -> None:
        repair(self.store)

    # what has to be so before

    def before(self, what: str) -> None:
        if what == "create":
            return
        self.fill()
        if what in ("flush", "save", "retire", "close", "evict"):
            self.write()
        if what in ("reopen", "mend", "prune"):
            self.close()
        if what == "recover":
            for _ in range(5):
                self.add()
            self.buffer.flush()
            for _ in range(12):
                self.add()
            self.extend(self.rows + 8)
            self.buffer.evict([9])
            self.first = 9
            copy = self.root / "copy"
            with self.buffer._rows.store.maintenance.lock:
                shutil.copytree(self.store, copy)
            self.close()
            shutil.rmtree(self.store)
            copy.rename(self.store)
        if what == "mend":
            path = self.store / "is_final" / "live" / "state"
            page = path.read_bytes()
            path.write_bytes(page[:80] + b"rot" + page[83:])

    def after(self) -> None:
        """All is well, and goes on."""
        if self.buffer is None:
            self.buffer = self.make()
        self.check()
        for _ in range(20):
            self.add()
        self.buffer.save(self.checkpoints, "last")
        self.check()
        self.buffer.close()
        self.make().close()  # an opening removes what could not be removed
        for path in (self.store, *self.checkpoints.iterdir()):
            assert not path.name.startswith("."), f"left over: {path.name}"
            report = verify(path)
            assert report.clean, str(report.findings[0])
        left = {p.name for p in self.root.iterdir()} - {"store", "checkpoints", "store.repair-1"}
        assert not left, f"left over: {left}"
        with self.make() as self.buffer:
            self.check()


def _priorities(ids: np.ndarray) -> np.ndarray:
    return 1 + ids % 7 / 4


def _check_error(error: StorageError, code: int) -> None:
    assert error.errno == code, f"errno {error.errno}"
    assert isinstance(error, KINDS.get(code, StorageError)), type(error).__name__
    assert len(str(error)) > 40, f"says too little: {error}"


WHAT = (
    "create", "record", "write", "flush", "save", "retire", "load", "close", "reopen", "recover",
    "prune", "mend", "extend", "evict",
)  # fmt: skip


def attempt(what: str, name: str, at: int | None, code: int) -> tuple[Counter, bool]:
    """One call with one failure in it: how many calls of each function were counted, and whether it
    was refused."""
    faults = Faults(name)
    with tempfile.TemporaryDirectory(dir=crew.MEMORY) as directory:
        trial = Trial(Path(directory))
        trial.before(what)
        refused = False
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            with faults.at_work():
                faults.arm(at, code)
                if what == "mend" and code == errno.EIO:
                    trial.ranked_rows = 0  # a disk that does not give priorities has lost them
                try:
                    getattr(trial, what)()
                except StorageError as error:
                    refused = True
                    _check_error(error, code)
                if trial.buffer is not None and not trial.buffer.closed:
                    store = trial.buffer._rows.store
                    with suppress(DiskReplayError), store.maintenance.lock:
                        store.finish_clearing()
                seen = faults.seen.copy()
                faults.arm(None)
                if trial.buffer is not None and what != "close":
                    trial.check()
                if refused:
                    getattr(trial, what)()
        trial.after()
        if trial.buffer is not None:
            trial.buffer.close()
        return seen, refused


def attempts(what: tuple[str, ...] = WHAT) -> list[tuple[str, str, int, int]]:
    """All there are: what is done, which function fails, at which call, and with which code."""
    found = []
    for doing in what:
        totals, _refused = attempt(doing, "", None, 0)
        found += [
            (doing, name, at, code)
            for name in CALLS
            for at in range(totals[name])
            for code in CODES
        ]
    random.Random(0).shuffle(found)  # each tenth of them has all codes, and calls of all kinds
    return found


def run(
    *,
    every: int = 1,
    what: tuple[str, ...] = WHAT,
    first: int = 0,
    workers: int = os.cpu_count() or 1,
    advance: Callable[[int], None] = lambda attempts: None,
) -> dict[str, Any]:
    """Fail each call of each function in each of `what`, or each `every`-th of all these.

    Returns
    -------
    dict
        ``tried``, ``refused`` (the caller got an error; else it was dealt with), and ``failures``:
        what was wrong, how often, and where first.
    """
    figures: dict[str, Any] = {"tried": 0, "refused": 0, "failures": []}
    found: dict[str, list[str]] = {}
    jobs = attempts(what)[first::every]
    for outcome in crew.run(_refused, jobs, workers=workers, limit_s=60.0):
        figures["tried"] += 1
        advance(1)
        if outcome.trouble:
            doing, name, at, code = outcome.job
            where = f"{doing}: call {at} of {name}, {errno.errorcode[code]}"
            last = outcome.trouble.strip().splitlines()[-1][:200]
            found.setdefault(last, []).append(where)
        else:
            figures["refused"] += outcome.value
    return figures | {"failures": _told(found)}


def _refused(job: tuple[str, str, int, int]) -> bool:
    return attempt(*job)[1]


def _told(found: dict[str, list[str]]) -> list[str]:
    return [f"{text} ({len(places)} times; {places[0]})" for text, places in found.items()]
