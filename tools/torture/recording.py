"""Writes down what a workload does to the disk, through `diskreplay.store.files` and past it."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from disk import PAGE, ROOT, Entry, Event, pages_of

from diskreplay.store import file_locks, files

CUT = "cut"
MARK = "mark"


class Recorder:
    """A double of the functions in `files` that does what they do, and notes it as `Disk` wants it.

    Use it as a context manager. What is in `root` at the start counts as durable.

    Attributes
    ----------
    events : list of tuple
        The kind, and its arguments: those of `disk.Disk`, ``("cut", text)`` where the power may go
        out, and ``("mark", anything)`` from the workload.
    calls : int
        Calls of functions in `files`.

    Notes
    -----
    Writes through mappings go past `files`. They are found by comparing files before each call and
    at each mark: which pages differ is noted, in what order they were written is not, and need not
    be, since none of them is durable before the next sync.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[Event] = []
        self.calls = 0
        self._numbers = itertools.count(ROOT + 1)
        self._directories: dict[int, dict[str, int]] = {ROOT: {}}
        self._contents: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._modes: dict[int, int] = {}
        self._places: dict[int, tuple[int, str]] = {}  # a name of each inode that has one
        self._mapped: set[int] = set()
        self._originals: dict[str, tuple[ModuleType, Any]] = {}
        self._guard = threading.RLock()

    def __enter__(self) -> Recorder:
        self._adopt(self.root, ROOT, {})
        self._note("sync_all")
        for name in (
            "make_dirs", "allocate", "write", "write_at", "blank", "truncate", "open_to_write",
            "sync", "rename", "exchange", "link", "copy", "seal", "remove", "remove_empty_dir",
            "remove_tree",
        ):  # fmt: skip
            self._replace(files, name)
        for name in ("lock", "try_lock"):
            self._replace(file_locks, name)
        return self

    def __exit__(self, *_exception: object) -> None:
        for name, (module, original) in self._originals.items():
            setattr(module, name, original)

    def _replace(self, module: ModuleType, name: str) -> None:
        self._originals[name] = module, getattr(module, name)
        setattr(module, name, self._double(name, getattr(self, f"_on_{name}")))

    def mark(self, what: object) -> None:
        """Note something of the workload's own."""
        with self._guard:
            self.observe()
            self._note(MARK, what)

    def observe(self) -> None:
        """Note what was written through mappings since the last look."""
        with self._guard:
            changed = False
            for inode in sorted(self._mapped & self._places.keys()):
                changed |= self._look(self._path(inode), inode)
            if changed:
                self._note(CUT, "written through mappings")

    def check(self) -> None:
        """See that nothing went past this recorder: the tree it knows of is the one there is."""
        with self._guard:
            self.observe()
            known = dict(self._walk(ROOT, self.root))
            found = {Path(base, n) for base, _dirs, names in os.walk(self.root) for n in names}
            assert known.keys() == found, known.keys() ^ found
            real = {path: os.lstat(path).st_ino for path in known}
            assert len(set(zip(known.values(), real.values(), strict=True))) == len(
                set(real.values())
            ), "hard links"
            for path, inode in known.items():
                assert pages_of(path.read_bytes()) == self._contents[inode], path
                assert path.stat().st_size == self._sizes[inode], path
                assert path.stat().st_mode & 0o777 == self._modes[inode], path

    # -- the tree as programs see it

    def _adopt(self, path: Path, number: int, known: dict[int, int]) -> None:
        for child in sorted(path.iterdir()):
            inode = child.stat().st_ino
            if inode in known:
                self._set(number, child.name, known[inode])
            elif child.is_dir():
                known[inode] = new = self._new_directory()
                self._set(number, child.name, new)
                self._adopt(child, new, known)
            else:
                known[inode] = new = self._new_file()
                self._set(number, child.name, new)
                self._look(child, new)
                if self._modes[new] & 0o200:
                    self._mapped.add(new)

    def _note(self, *event: Any) -> None:
        self.events.append(event)

    def _find(self, path: Path | str) -> tuple[int, str, int | None]:
        """The directory, the name in it, and what it leads to."""
        *parents, name = Path(path).relative_to(self.root).parts
        number = ROOT
        for parent in parents:
            number = self._directories[number][parent]
        return number, name, self._directories[number].get(name)

    def _walk(self, number: int, path: Path) -> Iterator[tuple[Path, int]]:
        for name, inode in list(self._directories[number].items()):
            if inode in self._directories:
                yield from self._walk(inode, path / name)
            else:
                yield path / name, inode

    def _path(self, inode: int) -> str:
        names = []
        while inode != ROOT:
            inode, name = self._places[inode]
            names.append(name)
        return os.path.join(self.root, *reversed(names))

    def _new_file(self) -> int:
        number = next(self._numbers)
        self._contents[number], self._sizes[number], self._modes[number] = [], 0, 0o644
        self._note("file", number)
        return number

    def _new_directory(self) -> int:
        number = next(self._numbers)
        self._directories[number] = {}
        self._note("directory", number)
        return number

    def _set(self, *change: int | str | None) -> None:
        """Names that change in one step: directory, name, inode, directory, name, inode, ..."""
        entries = [Entry(*change[i : i + 3]) for i in range(0, len(change), 3)]
        for directory, name, inode in entries:
            before = self._directories[directory].pop(name, None)
            if inode is not None:
                self._directories[directory][name] = inode
            if before is not None and self._places.get(before) == (directory, name):
                del self._places[before]
        for directory, name, inode in entries:
            if inode is not None:
                self._places[inode] = directory, name
        self._note("names", *entries)
        self._note(CUT, " ".join(str(entry) for entry in entries))

    def _look(self, path: Path | str, inode: int) -> bool:
        """Note where a file differs from what is known of it."""
        fd = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            data = os.pread(fd, status.st_size, 0)
        finally:
            os.close(fd)
        before, pages = self._contents[inode], pages_of(data)
        changed = False
        for number, page in enumerate(pages):
            if page != (before[number] if number < len(before) else bytes(PAGE)):
                self._note("page", inode, number, page)
                changed = True
        self._contents[inode] = pages
        if status.st_size != self._sizes[inode]:
            self._sizes[inode] = status.st_size
            self._note("size", inode, status.st_size)
            changed = True
        if status.st_mode & 0o777 != self._modes[inode]:
            self._modes[inode] = status.st_mode & 0o777
            self._note("mode", inode, self._modes[inode])
            changed = True
        return changed

    def _rewritten(self, path: Path) -> int:
        """A file was opened, created if it was missing, and written."""
        directory, name, inode = self._find(path)
        if inode is None:
            inode = self._new_file()
            self._set(directory, name, inode)
        elif self._sizes[inode]:
            self._note("size", inode, 0)  # it was cut first
            self._note("size", inode, self._sizes[inode])
        self._look(path, inode)
        self._note(CUT, f"written {path.name}")
        return inode

    # -- the doubles

    def _double(self, name: str, note: Any) -> Any:
        _module, original = self._originals[name]

        def function(*arguments: Any, **options: Any) -> Any:
            with self._guard:
                self.calls += 1
                self.observe()
                return note(original, *arguments, **options)

        return function

    def _on_make_dirs(self, original: Any, path: Path) -> None:
        original(path)
        missing = [path]
        while missing[-1].parent != self.root:
            missing.append(missing[-1].parent)
        for one in reversed(missing):
            directory, name, inode = self._find(one)
            if inode is None:
                self._set(directory, name, self._new_directory())

    def _on_allocate(self, original: Any, path: Path, size: int) -> int:
        fd = original(path, size)
        self._mapped.add(self._rewritten(path))
        return fd

    def _on_write(self, original: Any, path: Path, pieces: Any, **options: Any) -> None:
        original(path, pieces, **options)
        inode = self._rewritten(path)
        if path.name == "state":
            self._mapped.add(inode)

    def _on_open_to_write(self, original: Any, path: Path) -> int:
        fd = original(path)
        self._mapped.add(self._find(path)[2])
        return fd

    def _on_write_at(self, original: Any, fd: int, path: Path, *arguments: Any) -> None:
        original(fd, path, *arguments)
        self._look(path, self._find(path)[2])
        self._note(CUT, f"appended to {path.name}")

    def _on_blank(self, original: Any, path: Path, size: int) -> None:
        original(path, size)
        self._look(path, self._find(path)[2])
        self._note(CUT, f"blanked {path.name}")

    def _on_truncate(self, original: Any, fd: int, path: Path, size: int) -> None:
        original(fd, path, size)
        self._look(path, self._find(path)[2])
        self._note(CUT, f"cut {path.name}")

    def _on_copy(self, original: Any, source: Path, target: Path) -> None:
        original(source, target)
        self._rewritten(target)

    def _on_lock(self, original: Any, path: Path, **options: Any) -> int:
        fd = original(path, **options)
        self._rewritten(path)
        return fd

    def _on_try_lock(self, original: Any, path: Path, **options: Any) -> int | None:
        fd = original(path, **options)
        if path.exists():
            self._rewritten(path)
        return fd

    def _on_sync(self, original: Any, paths: Any) -> None:
        paths = list(paths)
        original(paths)
        for path in paths:  # one ``syncfs`` for many promises more than `files.sync` says
            inode = ROOT if Path(path) == self.root else self._find(path)[2]
            self._note("sync", inode)
            self._note(CUT, f"synced {Path(path).name}")

    def _on_rename(self, original: Any, source: Path, target: Path) -> None:
        original(source, target)
        directory, name, inode = self._find(source)
        self._set(directory, name, None, *self._find(target)[:2], inode)

    def _on_exchange(self, original: Any, one: Path, other: Path, aside: Path) -> None:
        original(one, other, aside)
        (directory, name, inode), (directory_2, name_2, inode_2) = map(self._find, (one, other))
        self._set(directory, name, inode_2, directory_2, name_2, inode)

    def _on_link(self, original: Any, source: Path, target: Path) -> bool:
        linked = original(source, target)
        if linked:
            self._set(*self._find(target)[:2], self._find(source)[2])
        return linked

    def _on_seal(self, original: Any, path: Path) -> None:
        original(path)
        self._look(path, self._find(path)[2])
        self._note(CUT, f"sealed {path.name}")

    def _on_remove(self, original: Any, path: Path) -> None:
        original(path)
        self._gone(path)

    def _on_remove_empty_dir(self, original: Any, path: Path) -> bool:
        gone = original(path)
        if gone:
            self._gone(path)
        return gone

    def _on_remove_tree(self, original: Any, path: Path) -> None:
        original(path)
        inode = self._find(path)[2]
        if inode is not None:
            self._empty(inode)
            self._gone(path)

    def _empty(self, directory: int) -> None:
        for name, inode in list(self._directories[directory].items()):
            if inode in self._directories:
                self._empty(inode)
            self._set(directory, name, None)

    def _gone(self, path: Path) -> None:
        with contextlib.suppress(KeyError):  # its directory was gone already
            directory, name, inode = self._find(path)
            if inode is not None:
                self._set(directory, name, None)
