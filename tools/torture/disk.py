"""A model of what a disk may hold after the power went out.

It promises what POSIX and every journalling file system do, and no more:

- ``fsync`` of a file makes its bytes, its length and its mode durable; not its name.
- ``fsync`` of a directory makes all changes to the names in it durable.
- Without it, each page of 4 KiB that was written, each change of a length and each change of a mode
  is on the disk or is not, on its own, in any combination; of a page, a length or a mode that was
  changed several times, any of the values. A page may also be torn: its first half new, its second
  half old.
- Changes of names (create, link, unlink, mkdir, rmdir, rename, exchange) happen whole or not.
  Those to one directory reach the disk in their order; between directories there is no order. A
  change that is there brings those before it in the directories that it touches.
"""

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
ROOT = 0

Unit = tuple[str, int, int]  # "page", "size" or "mode"; inode; page


class Entry(NamedTuple):
    """A name that is set, or with `inode` None taken away."""

    directory: int
    name: str
    inode: int | None


Event = tuple  # its kind, and what a `Disk` method of that name takes


@dataclass
class Inode:
    """What is durable of a file or directory."""

    entries: dict[str, int] | None = None  # of a directory
    pages: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    mode: int = 0o644


class State(NamedTuple):
    """One tree that may be found. `files` maps a path to inode, bytes and mode."""

    directories: tuple[str, ...]
    files: dict[str, tuple[int, bytes, int]]

    def digest(self, below: str = "", but: str | None = None) -> bytes:
        """A name for all that is in it, hard links included, or for a part of it: what is `below`,
        `but` not what is in that directory in a directory with a proper name. How many links a file
        has counts, wherever they are."""
        found = hashlib.blake2b(digest_size=16)
        groups: dict[int, int] = {}
        links = Counter(inode for inode, _data, _mode in self.files.values())

        def counts(path: str) -> bool:
            is_in = but is not None and path.startswith(but)
            return path.startswith(below) and not (is_in and path[len(but)] != ".")

        for path in self.directories:
            if counts(path):
                found.update(f"{path}\0".encode())
        for path, (inode, data, mode) in self.files.items():
            if counts(path):
                group = groups.setdefault(inode, len(groups)), min(links[inode], 2)
                # Bytes keep their own hash; it is of 64 bits, and new in each process.
                found.update(f"{path}\0{group} {mode} {len(data)} {hash(data)}\0".encode())
        return found.digest()

    def write_to(self, root: Path) -> None:
        """Make it real in an empty directory."""
        for path in self.directories:
            (root / path).mkdir()
        made: dict[int, Path] = {}
        for path, (inode, data, mode) in self.files.items():
            target = root / path
            if inode in made:
                os.link(made[inode], target)
                continue
            target.write_bytes(data)
            target.chmod(mode)
            made[inode] = target


class Disk:
    """Takes a trace in, event by event, and says at any point what may be left.

    Attributes
    ----------
    inodes : dict of int to Inode
        What is durable.
    changes : list of tuple of Entry
        Changes to names that are not, in their order.
    versions : dict of Unit to list
        Contents of pages, lengths and modes that are not, oldest first.
    """

    def __init__(self) -> None:
        self.inodes = {ROOT: Inode(entries={})}
        self.changes: list[tuple[Entry, ...]] = []
        self.versions: dict[Unit, list] = {}

    # -- the events of a trace

    def file(self, inode: int) -> None:
        """A new file, which has no name yet."""
        self.inodes[inode] = Inode()

    def directory(self, inode: int) -> None:
        """A new directory, which has no name yet."""
        self.inodes[inode] = Inode(entries={})

    def names(self, *entries: Entry) -> None:
        """One atomic change of names."""
        self.changes.append(entries)

    def page(self, inode: int, number: int, data: bytes) -> None:
        self.versions.setdefault(("page", inode, number), []).append(data)

    def size(self, inode: int, size: int) -> None:
        self.versions.setdefault(("size", inode, 0), []).append(size)

    def mode(self, inode: int, mode: int) -> None:
        self.versions.setdefault(("mode", inode, 0), []).append(mode)

    def sync(self, inode: int) -> None:
        """fsync."""
        one = self.inodes[inode]
        if one.entries is not None:
            touching = [i for i, c in enumerate(self.changes) if any(e[0] == inode for e in c)]
            durable = self._with_earlier(set(touching))
            for i in sorted(durable):
                for directory, name, target in self.changes[i]:
                    _set(self.inodes[directory].entries, name, target)
            self.changes = [c for i, c in enumerate(self.changes) if i not in durable]
        for unit in [unit for unit in self.versions if unit[1] == inode]:
            value = self.versions.pop(unit)[-1]
            if unit[0] == "page":
                one.pages[unit[2]] = value
            else:
                setattr(one, unit[0], value)

    def sync_all(self) -> None:
        """Everything is durable: how a trace starts."""
        for inode in list(self.inodes):
            self.sync(inode)

    # -- what may be left

    def _before(self, change: int, candidates: Iterator[int]) -> set[int]:
        touched = {entry[0] for entry in self.changes[change]}
        return {i for i in candidates if any(e[0] in touched for e in self.changes[i])}

    def _with_earlier(self, kept: set[int]) -> set[int]:
        """Changes, and all that the order within directories brings with them."""
        kept = set(kept)
        for change in range(len(self.changes) - 1, -1, -1):
            if change in kept:
                kept |= self._before(change, range(change))
        return kept

    def _without_later(self, dropped: int) -> set[int]:
        """All changes but one and those that the order within directories takes with it."""
        gone = {dropped}
        for change in range(dropped + 1, len(self.changes)):
            if self._before(change, gone):
                gone.add(change)
        return set(range(len(self.changes))) - gone

    def units(self) -> list[Unit]:
        """What of files is not durable, as far as a name may lead to it."""
        named = {e.inode for change in self.changes for e in change}
        for inode in self.inodes.values():
            named.update((inode.entries or {}).values())
        return [unit for unit in self.versions if unit[1] in named]

    def states(
        self, chance: random.Random, samples: int, *, singly: bool = True
    ) -> Iterator[tuple[str, State]]:
        """States after a cut here, each with how it came about.

        All dropped, all kept; if `singly`, each thing that is not durable dropped alone, kept
        alone, and torn; `samples` random combinations, of old versions too.
        """
        yield "all dropped", self.build(set(), {})
        units, changes = self.units(), set(range(len(self.changes)))
        if not units and not changes:
            return
        newest = {unit: len(self.versions[unit]) for unit in units}
        yield "all kept", self.build(changes, newest)
        if singly:
            yield from self._singly(units, changes, newest)
        for number in range(samples):
            likely = chance.choice((0.2, 0.5, 0.8))
            kept: set[int] = set()
            for change in sorted(changes):
                if chance.random() < likely and self._before(change, range(change)) <= kept:
                    kept.add(change)
            some = {
                unit: chance.randint(0, newest[unit]) if chance.random() < likely else 0
                for unit in units
            }
            yield f"sample {number}", self.build(kept, some)

    def _singly(
        self, units: list[Unit], changes: set[int], newest: dict[Unit, int]
    ) -> Iterator[tuple[str, State]]:
        for change in sorted(changes):
            yield f"dropped {self.changes[change]}", self.build(self._without_later(change), newest)
            alone = self._with_earlier({change})
            yield f"kept {self.changes[change]}", self.build(alone, {})
            yield f"kept {self.changes[change]} with all data", self.build(alone, newest)
        for unit in units:
            yield f"dropped {unit}", self.build(changes, newest | {unit: 0})
            yield f"kept {unit}", self.build(changes, {unit: newest[unit]})
            if unit[0] == "page":
                yield f"torn {unit}", self.build(changes, newest, torn=unit)
        pages: dict[int, list[Unit]] = {}
        for unit in units:
            if unit[0] == "page":
                pages.setdefault(unit[1], []).append(unit)
        for inode, written in pages.items():
            for half in (written[: len(written) // 2], written[len(written) // 2 :]):
                if len(written) > 1:
                    lost = dict.fromkeys(half, 0)
                    yield f"half of {inode}", self.build(changes, newest | lost)

    def build(self, kept: set[int], newest: dict[Unit, int], torn: Unit | None = None) -> State:
        """The tree with these changes of names, and of each unit so many of its versions."""
        entries = {
            number: dict(inode.entries)
            for number, inode in self.inodes.items()
            if inode.entries is not None
        }
        for change in sorted(kept):
            for directory, name, target in self.changes[change]:
                _set(entries[directory], name, target)
        contents: dict[int, tuple[dict[int, bytes], int, int]] = {}
        for unit, count in newest.items():
            if not count:
                continue
            what, number, page = unit
            inode = self.inodes[number]
            pages, size, mode = contents.get(number) or (dict(inode.pages), inode.size, inode.mode)
            value = self.versions[unit][count - 1]
            if what == "page":
                if unit == torn:
                    value = value[: PAGE // 2] + pages.get(page, bytes(PAGE))[PAGE // 2 :]
                pages[page] = value
            elif what == "size":
                size = value
            else:
                mode = value
            contents[number] = pages, size, mode
        directories: list[str] = []
        files: dict[str, tuple[int, bytes, int]] = {}
        below = [("", ROOT)]
        while below:
            path, number = below.pop()
            for name, target in sorted(entries[number].items()):
                inode = self.inodes[target]
                if inode.entries is not None:
                    directories.append(path + name)
                    below.append((f"{path}{name}/", target))
                    continue
                pages, size, mode = contents.get(target) or (inode.pages, inode.size, inode.mode)
                files[path + name] = target, _joined(pages, size), mode
        return State(tuple(directories), files)


def _set(entries: dict[str, int], name: str, inode: int | None) -> None:
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def _joined(pages: dict[int, bytes], size: int) -> bytes:
    if size <= PAGE:
        return pages.get(0, bytes(PAGE))[:size]
    zeros = bytes(PAGE)
    return b"".join(pages.get(n, zeros) for n in range(-(-size // PAGE)))[:size]


def pages_of(data: bytes) -> list[bytes]:
    """Bytes as whole pages, zeros behind the last."""
    return [data[at : at + PAGE].ljust(PAGE, b"\0") for at in range(0, len(data), PAGE)]
