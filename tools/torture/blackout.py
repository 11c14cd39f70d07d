"""The power goes out under file systems of the kernel: what was promised is there afterwards.

A workload runs on a file system in an image. At random moments, also amid its calls, what has
reached the image is copied. Each copy is mounted later, so that the file system recovers it by its
journal, and what is found is compared with what was promised at that moment.

`power` knows what every file system may do, and tries each point. This has what three of them do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import crew
from disk import State
from examiner import Examiner, Figures
from power import SETTINGS
from workload import Promise, Workload

from diskreplay.store import file_locks, files

_MIB = 1 << 20
_STALE = b"\xa5"  # what blocks have that nobody wrote to: what a deleted file had, on a disk
_MOMENTS = 40  # between two looks at what should reach the image by itself, in the mean
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_LIMIT_S = 600.0


class FileSystem(NamedTuple):
    """How an image of one is made and mounted."""

    make: tuple[str, ...]
    options: str
    size: int
    is_filled: bool = False  # with stale bytes first; copies of the image take as long as all of it


FILE_SYSTEMS = {
    "ext4": FileSystem(("mkfs.ext4", "-q", "-F", "-E", "nodiscard"), "", 64 * _MIB, True),
    "ext4, data=writeback": FileSystem(
        ("mkfs.ext4", "-q", "-F", "-E", "nodiscard"), "data=writeback", 64 * _MIB, True
    ),
    "xfs": FileSystem(("mkfs.xfs", "-q", "-f", "-K"), "nouuid", 304 * _MIB),
    "btrfs": FileSystem(("mkfs.btrfs", "-q", "-f", "-K"), "", 128 * _MIB),
}


def usable() -> list[str]:
    """The file systems that this process can make and mount."""
    known = Path("/proc/filesystems").read_text().split()
    if os.geteuid() or not Path("/dev/loop-control").exists():
        return []
    return [
        name
        for name, its in FILE_SYSTEMS.items()
        if shutil.which(its.make[0]) and its.make[0].removeprefix("mkfs.") in known
    ]


def run(
    *,
    file_systems: list[str] | None = None,
    settings: list[int] | None = None,
    rounds: int = 10,
    cuts: int = 12,
    seed: int = 0,
    workers: int = 2,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Cut the power so often in each of so many rounds, of each file system and each setting.

    Parameters
    ----------
    file_systems : list of str, optional
        Names of `FILE_SYSTEMS`; those that are usable by default.
    settings : list of int, optional
        Those of `power.SETTINGS`, by number; all by default.
    rounds, cuts : int
    say : callable
        Told how each round went.
    """
    names = usable() if file_systems is None else file_systems
    if not names:
        raise SystemExit("blackout: no file system that root can make here and mount by a loop")
    total: dict[str, Any] = vars(Figures())
    numbers = range(len(SETTINGS)) if settings is None else settings
    jobs = [
        (name, number, cuts, seed + its)
        for its in range(rounds)
        for number in numbers
        for name in names
    ]
    for outcome in crew.run(_round, jobs, workers=workers, limit_s=_LIMIT_S):
        name, number, _cuts, its = outcome.job
        what = f"{name}, {SETTINGS[number].name}, seed {its}"
        if outcome.trouble:
            total["failures"].append(f"{what}: {outcome.trouble}")
            continue
        failures = [f"{what}, {failure}" for failure in outcome.value.pop("failures")]
        for figure, value in outcome.value.items():
            total[figure] += value
        total["failures"] += failures
        say(f"{what}: {outcome.value['opened']} opened, {len(failures)} failures")
    return total


def _round(job: tuple[str, int, int, int]) -> dict[str, Any]:
    name, number, cuts, seed = job
    mount_for_oneself()
    setting, chance, figures = SETTINGS[number], random.Random(seed), Figures()
    with tempfile.TemporaryDirectory(prefix="torture-", dir=crew.MEMORY) as directory:
        base = Path(directory)
        file_system = FILE_SYSTEMS[name]
        image = make(file_system, base / "image")
        with (
            mounted(image, base / "at", file_system) as root,
            setting.maintenance_in_line() as clock,
        ):
            power = Power(root, image, cuts, chance, each=chance.randrange(20, 200))
            workload = Workload(setting, root, power.promised, clock)
            workload.prepare()
            with power:
                workload.run()
            figures.calls = power.moments
            del workload
        examiner = Examiner(setting, figures, load_every=3)
        for copy, where, promise in power.copies:
            with mounted(copy, base / "at", file_system) as root:
                state = _read(root)
            copy.unlink()
            figures.cuts += 1
            figures.states += 1
            try:
                examiner.examine(state, promise)
            except Exception as error:
                figures.failures.append(f"{where}: {type(error).__name__}: {error}")
    return vars(figures)


class Power:
    """Copies an image at random moments, one of `each` in the mean, and lets the system write this
    and that to it before.

    Use it as a context manager: moments are before and after each function of `files`.

    Attributes
    ----------
    copies : list of tuple of Path, str and Promise
        An image, after what it was copied, and what was promised then.
    moments : int
    """

    def __init__(
        self, root: Path, image: Path, cuts: int, chance: random.Random, each: int
    ) -> None:
        self.copies: list[tuple[Path, str, Promise]] = []
        self.moments = 0
        self._root, self._image, self._cuts, self._chance = root, image, cuts, chance
        self._each = each
        self._promise: Promise | None = None
        self._patches = contextlib.ExitStack()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Power:
        for module, names in (
            (files, ("make_dirs", "allocate", "write", "write_at", "blank", "truncate", "sync",
                     "rename", "exchange", "link", "copy", "seal", "remove", "remove_tree")),
            (file_locks, ("lock", "try_lock")),
        ):  # fmt: skip
            for name in names:
                double = self._double(name, getattr(module, name))
                self._patches.enter_context(mock.patch.object(module, name, double))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._patches.close()

    def promised(self, promise: Promise) -> None:
        self._promise = promise
        self._moment("a mark")

    def _double(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any, **options: Any) -> Any:
            self._moment(f"before {name}")
            result = original(*arguments, **options)
            self._moment(f"after {name}")
            return result

        return function

    def _moment(self, where: str) -> None:
        self.moments += 1
        if self._promise is None:
            return
        if self._chance.random() < 1 / _MOMENTS:
            self._write_back()
        if len(self.copies) < self._cuts and self._chance.random() < 1 / self._each:
            self.cut(where, self._promise)

    def cut(self, where: str, promise: Promise) -> None:
        """The power goes out now."""
        copy = self._image.with_name(f"copy-{len(self.copies)}")
        subprocess.run(["cp", self._image, copy], check=True)
        place = f"cut {len(self.copies)}, {where}, {promise.step}"
        self.copies.append((copy, place, promise))

    def _write_back(self) -> None:
        """Something reaches the image that the program did not ask for."""
        chance = self._chance
        paths = [
            os.path.join(base, name)
            for base, directories, names in os.walk(self._root)
            for name in directories + names
        ]
        if not paths or chance.random() < 0.1:
            paths = [os.fspath(self._root)]
        for path in chance.sample(paths, chance.randint(1, min(8, len(paths)))):
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # another thread removes what was cleared
                continue
            try:
                if path == os.fspath(self._root):
                    self._libc.syncfs(fd)
                elif os.path.isdir(path) or chance.random() < 0.3:
                    os.fsync(fd)
                else:
                    start = chance.randrange(os.fstat(fd).st_size + 1) & ~4095
                    size = chance.choice((4096, 65536))
                    self._libc.sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(size), 7)
            finally:
                os.close(fd)


def mount_for_oneself() -> None:
    """What this process mounts is there for it alone, and gone with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def make(file_system: FileSystem, image: Path) -> Path:
    with image.open("wb") as file:
        if file_system.is_filled:
            file.write(_STALE * file_system.size)
        file.truncate(file_system.size)
    subprocess.run([*file_system.make, image], check=True, stdout=subprocess.DEVNULL)
    return image


@contextlib.contextmanager
def mounted(image: Path, at: Path, file_system: FileSystem) -> Iterator[Path]:
    """Where it is mounted, for the block."""
    at.mkdir(exist_ok=True)
    options = ",".join(filter(None, ["loop", file_system.options]))
    subprocess.run(["mount", "-o", options, image, at], check=True)
    try:
        yield at
    finally:
        gc.collect()  # what maps a file of it keeps it mounted
        subprocess.run(["umount", at], check=True)


def _read(root: Path) -> State:
    """All that is there, but for what the file system has for itself."""
    directories, found = [], {}
    for base, names, below in os.walk(root):
        names[:] = sorted(set(names) - {"lost+found"})
        for name in names:
            directories.append(os.path.relpath(os.path.join(base, name), root))
        for name in below:
            path = Path(base, name)
            status = path.stat()
            key = os.path.relpath(path, root)
            found[key] = status.st_ino, path.read_bytes(), status.st_mode & 0o777
    return State(tuple(directories), found)
