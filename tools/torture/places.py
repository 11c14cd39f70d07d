"""Stores and checkpoints that are moved, linked and replaced while a writer has them open.

A random walk over a few directories. Whatever is done to names, a directory has the rows that were
acknowledged in it, and no other store's directory is touched.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import content
import specimen

import diskreplay
from diskreplay.check.verify import verify

_STEPS = 30
_NAMES = ("a", "b", "deep/c", "link1", "link2")


def run(
    *, rounds: int = 100, seed: int = 0, advance: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """So many walks.

    Returns
    -------
    dict
        How often each step was ``done`` and ``refused``, and ``failures``.
    """
    done: Counter = Counter()
    refused: Counter = Counter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        base = Path(place).resolve()
        for number in range(rounds):
            walk = _Walk(base / str(number), random.Random(seed + number))
            try:
                walk.go(done, refused)
            except (AssertionError, diskreplay.DiskReplayError, OSError) as error:
                failures.append(
                    {"seed": seed + number, "steps": walk.steps, "trouble": f"{error!r}"}
                )
            finally:
                walk.let_go()
            shutil.rmtree(walk.base)
            advance()
    return {"rounds": rounds, "done": dict(done), "refused": dict(refused), "failures": failures}


class _Walk:
    """Directories are known by their inode, which `mv` does not change; a load changes it."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self.base, self.rng = base, rng
        self.steps: list[str] = []
        self.rows: dict[int, int] = {}  # acknowledged, by the inode of the store
        self.open: list[tuple[diskreplay.PrioritizedReplayBuffer, int]] = []
        (base / "deep").mkdir(parents=True)
        (base / "checkpoints").mkdir()

    def go(self, done: Counter, refused: Counter) -> None:
        moves = (self._open, self._open, self._add, self._add, self._add, self._save, self._load,
                 self._flush, self._close, self._drop, self._move, self._move, self._link,
                 self._copy_of_nothing)  # fmt: skip
        for _ in range(_STEPS):
            move = self.rng.choice(moves)
            self.steps.append(move.__name__[1:])
            try:
                done[move.__name__[1:]] += bool(move())
            except diskreplay.DiskReplayError as error:
                refused[f"{move.__name__[1:]}: {type(error).__name__}"] += 1
            self._look()
        while self.open:
            try:
                self._close()
            except diskreplay.StoreMovedError:
                refused["close: StoreMovedError"] += 1
        self._look()

    def let_go(self) -> None:
        for buffer, _inode in self.open:
            buffer._release()
        self.open.clear()

    def _place(self) -> Path:
        return self.base / self.rng.choice(_NAMES)

    # -- steps; each says whether it could be done

    def _open(self) -> bool:
        path = self._place()
        self.steps[-1] += f" {path.name}"
        buffer = diskreplay.PrioritizedReplayBuffer(path, **specimen.OPTIONS)
        inode = path.stat().st_ino
        self.open.append((buffer, inode))
        self.rows.setdefault(inode, 0)
        count = int(buffer.bounds[0, 1])
        if count != self.rows[inode]:
            raise AssertionError(f"{path.name} opens with {count} rows, not {self.rows[inode]}")
        return True

    def _any(self) -> tuple[diskreplay.PrioritizedReplayBuffer, int] | None:
        return self.rng.choice(self.open) if self.open else None

    def _add(self) -> bool:
        if (one := self._any()) is None:
            return False
        buffer, inode = one
        for _ in range(self.rng.randint(1, 6)):
            try:
                specimen.add(buffer, int(buffer.bounds[0, 1]) + self.rng.randint(1, 12))
            finally:
                self.rows[inode] = int(buffer.bounds[0, 1])
        return True

    def _flush(self) -> bool:
        if (one := self._any()) is None:
            return False
        one[0].flush()
        return True

    def _save(self) -> bool:
        if (one := self._any()) is None:
            return False
        buffer, _inode = one
        saved = buffer.save(self.base / "checkpoints", self.rng.randint(0, 3))
        with diskreplay.open(saved) as reader:
            if reader.bounds.tolist() != buffer.bounds.tolist():
                raise AssertionError("a checkpoint with other rows than the buffer has")
        return True

    def _load(self) -> bool:
        if (one := self._any()) is None:
            return False
        buffer, inode = one
        before = self._where()
        buffer.load(self.base / "checkpoints")
        place = before.get(inode)
        if place is None:
            raise AssertionError("a load into a directory that is not there")
        self.open.remove(one)
        self.rows.pop(inode)
        inode = place.stat().st_ino
        self.open.append((buffer, inode))
        self.rows[inode] = int(buffer.bounds[0, 1])
        return True

    def _close(self) -> bool:
        if (one := self._any()) is None:
            return False
        self.open.remove(one)
        one[0].close()
        return True

    def _drop(self) -> bool:
        """As a process that dies does: nothing is recorded."""
        if (one := self._any()) is None:
            return False
        self.open.remove(one)
        one[0]._release()
        return True

    def _move(self) -> bool:
        source, target = self._place(), self._place()
        self.steps[-1] += f" {source.name} {target.name}"
        if not os.path.lexists(source) or os.path.lexists(target):
            return False
        os.rename(source, target)
        return True

    def _link(self) -> bool:
        source, target = self._place(), self._place()
        self.steps[-1] += f" {source.name} {target.name}"
        if os.path.lexists(target) or source == target:
            return False
        target.symlink_to(source)
        return True

    def _copy_of_nothing(self) -> bool:
        """An empty directory where a store may have been."""
        path = self._place()
        self.steps[-1] += f" {path.name}"
        if os.path.lexists(path):
            return False
        path.mkdir()
        return True

    # -- what has to be true after each

    def _where(self) -> dict[int, Path]:
        """The real directories that hold a store, by inode."""
        return {
            (self.base / name).stat().st_ino: self.base / name
            for name in _NAMES
            if not (self.base / name).is_symlink() and (self.base / name / "zarr.json").exists()
        }

    def _look(self) -> None:
        where = self._where()
        lost = [inode for inode in self.rows if inode not in where]
        if lost:
            raise AssertionError("a store is gone")
        for inode, path in where.items():
            if inode not in self.rows:
                continue
            with diskreplay.open(path) as reader:
                count = int(reader.bounds[0, 1])
                if count != self.rows[inode]:
                    raise AssertionError(f"{path.name}: {count} rows, not {self.rows[inode]}")
                if wrong := content.wrong(reader, steps=[specimen.steps(0, count)], most=30):
                    raise AssertionError(f"{path.name}: {wrong[:3]}")
        for path in (self.base / "checkpoints").glob("replay_ckpt.*"):
            if not verify(path).clean:
                raise AssertionError(f"{path.name} is damaged")
        held = {inode for _buffer, inode in self.open}
        known = {*_NAMES, "checkpoints", "deep"}
        if not held:
            left = {p.name for p in self.base.iterdir()} - known
            left |= {f"deep/{p.name}" for p in (self.base / "deep").iterdir()} - known
            strange = [name for name in left if "lock" not in name]
            if strange:
                raise AssertionError(f"left beside: {strange}")
