"""Opens what a disk was left with, and compares it with what was promised."""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import crew
import numpy as np
from disk import State
from workload import (
    VERSIONS,
    Allowed,
    Promise,
    Ranks,
    Row,
    Rows,
    Setting,
    columns_of,
    latents,
    ranked,
)

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.store import commit_page

AFTER = 12  # rows added to what was recovered: over the end of a segment


class Lost(AssertionError):
    """Something that was promised is not so."""


@dataclass
class Figures:
    """What was tried.

    Attributes
    ----------
    calls, cuts, states, opened : int
        Calls of functions in `files`; points of the trace; states built; and those that differ from
        all before, in themselves or in what was promised of them.
    stores : int
        Stores that were opened to be written to: of the states whose stores differ.
    ranked : int
        Priorities that were compared.
    checkpoints : int
        Checkpoints that were opened, different ones.
    warned : int
        Openings that said how many rows are dropped.
    failures : list of str
        Which state, and what was wrong with it.
    """

    calls: int = 0
    cuts: int = 0
    states: int = 0
    opened: int = 0
    stores: int = 0
    ranked: int = 0
    checkpoints: int = 0
    warned: int = 0
    failures: list[str] = field(default_factory=list)


def another_boot(number: int) -> Any:
    """The machine was started anew."""
    name = f"{number:08x}-0000-4000-8000-000000000000"
    return mock.patch.object(commit_page, "boot_id", return_value=name)


class Examiner:
    """Opens states, and compares what is found with what was promised.

    Parameters
    ----------
    setting : Setting
    figures : Figures
    load_every : int
        One in so many states is also saved, and a checkpoint loaded.

    Notes
    -----
    Of two stores in a row, one is verified while it is open, and one after it was closed.
    """

    def __init__(self, setting: Setting, figures: Figures, load_every: int = 20) -> None:
        self.setting, self.figures, self._load_every = setting, figures, load_every
        self._known: set[tuple] = set()
        self._known_stores: set[tuple] = set()
        self._known_checkpoints: dict[tuple, str | None] = {}

    def examine(self, state: State, promise: Promise) -> None:
        """Raise `Lost`, or whatever the store raised, if a state is not as promised."""
        # The rows of a timeline are told apart by the list that holds them: it never shrinks.
        said = tuple(
            (id(a.rows), a.least, tuple(map(id, a.ranks)), id(a.versions)) for a in promise.live
        )
        key = state.digest(), said, promise.present, tuple(sorted(promise.saved))
        if key in self._known:
            return
        self._known.add(key)
        self.figures.opened += 1
        # Checkpoints are in a store's way only where one is saved or loaded, and by the links.
        loads = self.figures.opened % self._load_every == 0
        store = state.digest("run/", but="run/checkpoints/"), said
        is_known = store in self._known_stores and not loads
        self._known_stores.add(store)
        with tempfile.TemporaryDirectory(dir=crew.MEMORY) as directory:
            root = Path(directory)
            state.write_to(root)
            run = root / "run"
            with another_boot(self.figures.opened):
                self._check_checkpoints(run / "checkpoints", state, promise)
                run.mkdir(exist_ok=True)
                if not is_known:
                    self.figures.stores += 1
                    self._check_store(run, promise, loads=loads)

    # -- checkpoints

    def _check_checkpoints(self, directory: Path, state: State, promise: Promise) -> None:
        there = {
            path.name.removeprefix("replay_ckpt."): path
            for path in (directory.iterdir() if directory.is_dir() else ())
            if not path.name.startswith(".")
        }
        if promise.present - there.keys():
            raise Lost(f"checkpoints {sorted(promise.present - there.keys())} are gone")
        for suffix, path in there.items():
            allowed = promise.saved.get(suffix, ())
            below = f"run/checkpoints/{path.name}/"
            key = state.digest(below), tuple(map(id, allowed))
            if key not in self._known_checkpoints:
                self.figures.checkpoints += 1
                self._known_checkpoints[key] = self._trouble_with(path, allowed)
            if self._known_checkpoints[key]:
                raise Lost(self._known_checkpoints[key])

    def _trouble_with(self, path: Path, allowed: tuple[Rows, ...]) -> str | None:
        """What is wrong with a checkpoint that has its proper name."""
        report = verify(path)
        if not report.clean:
            return f"checkpoint {path.name}: {report.findings[0]}".replace(str(path), "")
        with diskreplay.open(path) as saved:
            size = tuple(saved.bounds[:, 1].tolist())
            attached = (path / "is_final/saved/attachments" / "nets" / "rows").read_text()
            if attached != ",".join(map(str, size)):
                return f"checkpoint {path.name}: rows {size} and the attachment of {attached}"
            # Two saves of one name may have as many rows, and other latents.
            alike = [rows for rows in allowed if tuple(map(len, rows)) == size]
            found = [self._difference(saved, rows) for rows in alike]
        if not found:
            return f"checkpoint {path.name}: {size} rows, which no save made"
        return None if None in found else found[0]

    # -- the store

    def _check_store(self, run: Path, promise: Promise, *, loads: bool) -> None:
        path = run / "replay"
        expected = _dropped(path, self.setting.num_envs)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            buffer = self.setting.make(path)
        said = [str(w.message) for w in caught]
        if expected:
            self.figures.warned += 1
            if len(said) != 1 or f"at least {expected} rows" not in said[0]:
                raise Lost(f"{expected} rows are dropped, and it said {said}")
        elif said:
            raise Lost(f"no row is dropped, and it said {said}")
        with buffer:
            rows = self.written_to(buffer, self.recognised(buffer, promise))
            if loads:
                self._save_and_load(buffer, run, rows, promise)
            rows = self.go_on(buffer, rows)
            buffer.flush()
            if self.figures.stores % 2 or loads:
                _check_clean(path)
        if not self.figures.stores % 2 or loads:
            _check_clean(path)
        if loads:
            with self.setting.make(path) as buffer:
                self._compare(buffer, rows)
        left = {p.name for p in run.iterdir()} - {"replay", "checkpoints", "mine"}
        if left:
            raise Lost(f"left over: {sorted(left)}")

    def recognised(self, buffer: diskreplay.ReplayBuffer, promise: Promise) -> Rows:
        """The rows that were recovered, of what the promise allows."""
        first, count = buffer.bounds[:, 0].tolist(), buffer.bounds[:, 1].tolist()
        trouble = []
        for allowed in promise.live:
            gone = np.array(allowed.first or 0)
            left = np.maximum(np.array(allowed.most) - self.setting.rows_per_env, gone).tolist()
            if not all(map(_between, allowed.least, count, allowed.most)):
                trouble.append(
                    f"{count} rows found, {allowed.least} promised, {allowed.most} added"
                )
            elif any(f > most for f, most in zip(first, left, strict=True)):
                trouble.append(f"rows begin at {first}, not at {left} or before")
            elif any(f < its for f, its in zip(first, allowed.gone or first, strict=True)):
                trouble.append(f"rows begin at {first}, and those before {allowed.gone} had left")
            else:
                rows = [of_env[:n] for of_env, n in zip(allowed.rows, count, strict=True)]
                difference = (
                    self._difference(buffer, rows, but="latent")
                    or self._misranked(buffer, allowed)
                    or self._miswritten(buffer, rows, allowed)
                )
                if difference is None:
                    return rows
                trouble.append(difference)
        raise Lost("; ".join(trouble))

    def _difference(
        self, buffer: diskreplay.ReplayBuffer, rows: Rows, but: str | None = None
    ) -> str | None:
        bounds = buffer.bounds.tolist()
        if [count for _first, count in bounds] != list(map(len, rows)):
            return f"{bounds} are there, and {list(map(len, rows))} rows expected"
        envs = self.setting.num_envs
        ids = np.concatenate([np.arange(*its) * envs + env for env, its in enumerate(bounds)])
        retained = [row for of_env, its in zip(rows, bounds, strict=True)
                    for row in of_env[slice(*its)]]  # fmt: skip
        expected = columns_of(retained, self.setting.hidden)
        expected.pop(but, None)
        for name, found in zip(expected, buffer.take(list(expected), ids), strict=True):
            differs = found != expected[name]
            differs = differs.any(axis=tuple(range(1, differs.ndim)))
            if differs.any():
                row, env = np.divmod(ids[differs], envs)
                return f"{name} of envs {np.unique(env).tolist()} differs in rows {row.tolist()}"
        return None

    def _misranked(self, buffer: diskreplay.ReplayBuffer, allowed: Allowed) -> str | None:
        """Whether a set of priorities is as no flush, save or close had it."""
        if not allowed.ranks:
            return None
        for name, found in Ranks.of(buffer).sets.items():
            trouble = []
            for each in allowed.ranks:
                before = each.sets[name]
                both = found.keys() & before.keys()
                self.figures.ranked += len(both)
                wrong = {i: (found[i], before[i]) for i in both if found[i] != before[i]}
                if not wrong:
                    break
                trouble.append(f"{len(wrong)} of {len(both)}, {list(wrong.items())[:3]}")
            else:
                return f"priorities {name!r} are as none of {len(trouble)} had them: {trouble}"
        return None

    def _miswritten(
        self, buffer: diskreplay.ReplayBuffer, rows: Rows, allowed: Allowed
    ) -> str | None:
        """Whether a latent has what no write gave its row since the last flush."""
        if allowed.versions is None:
            return None
        for env, (first, count) in enumerate(buffer.bounds.tolist()):
            ids = np.arange(first, count) * buffer.num_envs + env
            for row, found in zip(rows[env][first:count], buffer.take("latent", ids), strict=True):
                stamp, version = found % VERSIONS, set((found // VERSIONS).tolist())
                known = allowed.versions.get(row.stamp, {row.version})
                if (stamp != row.stamp * (not row.is_final)).any() or not version <= known:
                    return f"the latent of {row} has {version} and not {sorted(known)}"
        return None

    def written_to(self, buffer: diskreplay.ReplayBuffer, rows: Rows) -> Rows:
        """Give all recovered rows new latents, whatever they had; the rows with these."""
        after = [list(of_env) for of_env in rows]
        for env, (first, count) in enumerate(buffer.bounds.tolist()):
            chosen = [n for n in range(first, count) if not rows[env][n].is_final]
            stamps = np.array([rows[env][n].stamp for n in chosen], np.int64)
            values = latents(stamps, np.full(len(stamps), AFTER))
            ids = np.array(chosen, np.int64) * buffer.num_envs + env
            buffer.write("latent", ids, values)
            for n in chosen:
                after[env][n] = rows[env][n]._replace(version=AFTER)
        return after

    def _compare(self, buffer: diskreplay.ReplayBuffer, rows: Rows) -> None:
        difference = self._difference(buffer, rows)
        if difference:
            raise Lost(difference)

    def further(self, rows: Rows) -> Rows:
        """Recovered rows, and those that `go_on` adds behind them."""
        return [
            before + [Row(10_000_000 + AFTER * env + step, step) for step in range(AFTER)]
            for env, before in enumerate(rows)
        ]

    def go_on(self, buffer: diskreplay.ReplayBuffer, rows: Rows) -> Rows:
        """Add rows behind the recovered ones."""
        after = self.further(rows)
        if self.setting.drift:
            for step in range(-AFTER, 0):
                columns = columns_of([of_env[step] for of_env in after], self.setting.hidden)
                del columns["step"], columns["is_final"]
                buffer.add(**columns)
        else:
            for env, more in enumerate(after):
                buffer.extend(columns_of(more[-AFTER:], self.setting.hidden), env)
        self._compare(buffer, after)
        buffer.sample(4)
        ranked(buffer).sample(4)
        return after

    def _save_and_load(
        self, buffer: diskreplay.ReplayBuffer, run: Path, rows: Rows, promise: Promise
    ) -> None:
        """The next save clears away what the cut left; each checkpoint loads."""
        mine = run / "mine"
        buffer.save(mine, 1)
        checkpoints = run / "checkpoints"
        buffer.save(checkpoints, "cleared")
        hidden = [p.name for p in checkpoints.iterdir() if p.name.startswith(".")]
        if hidden:
            raise Lost(f"left over: {hidden}")
        for suffix in sorted(promise.present):
            buffer.load(checkpoints, suffix)
            saved = [r for r in promise.saved[suffix] if self._difference(buffer, r) is None]
            if not saved:
                raise Lost(f"checkpoint {suffix} loads other rows")
        buffer.load(mine, 1)
        buffer._rows.store.finish_clearing()
        self._compare(buffer, rows)


def _between(low: int, value: int, high: int) -> bool:
    return low <= value <= high


def _dropped(path: Path, num_envs: int) -> int:
    """How many rows a store on the disk says were added after its record: read as `docs/format.md`
    has it, not by the code that is tested."""
    record, page = path / "zarr.json", path / "is_final" / "live" / "state"
    if not record.exists():
        return 0
    counted = json.loads(record.read_bytes())["attributes"]["diskreplay"]["count"]
    data = page.read_bytes()
    if int.from_bytes(data[8:16], "little"):
        return 0
    seen = np.frombuffer(data, "<i8", num_envs, 4096)
    return int(np.maximum(seen - counted, 0).sum())


def _check_clean(path: Path) -> None:
    report = verify(path)
    if not report.clean:
        raise Lost(f"verify: {report.findings[0]}".replace(str(path), ""))
