"""What a buffer goes through while its disk operations are written down, and what must be kept."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.store import maintenance, spare_files
from diskreplay.store import raw_column as column_module

KEPT = 4  # numbered checkpoints


class Row(NamedTuple):
    """One row as it must be found: everything in it follows from its stamp, which is its alone,
    but for its latent, which has the number of the last write as well."""

    stamp: int
    step: int
    terminated: bool = False
    truncated: bool = False
    is_final: bool = False
    version: int = 0


LATENTS, VERSIONS = 64, 1 << 40  # numbers of a latent, each the stamp and so many times the write
Rows = list[list[Row]]  # of each env, from the first that was ever recorded


def columns_of(rows: list[Row], hidden: int = 512) -> dict[str, np.ndarray]:
    """Rows as the store should hold them, by field; `hidden` bytes of the large extra."""
    size = len(rows)
    stamps = np.array([row.stamp for row in rows], np.int64)
    of_step = np.where([row.is_final for row in rows], 0, stamps)
    return {
        "observation": np.repeat(stamps, 8).view(np.uint8).reshape(size, 64),
        "action": of_step % 4,
        "reward": of_step.astype(np.float32),
        "terminated": np.array([row.terminated for row in rows], np.bool_),
        "truncated": np.array([row.truncated for row in rows], np.bool_),
        "step": np.array([row.step for row in rows], np.int32),
        "is_final": np.array([row.is_final for row in rows], np.bool_),
        "hidden": np.repeat(of_step, hidden // 8).view(np.uint8).reshape(size, hidden),
        "latent": latents(of_step, np.array([row.version for row in rows], np.int64)),
    }


def latents(stamps: np.ndarray, versions: np.ndarray) -> np.ndarray:
    """What the mutable extra of rows has."""
    return np.repeat((stamps + versions * VERSIONS)[:, None], LATENTS, axis=1)


VIEW = "ranked"  # of sequences, with priorities of its own


class Ranks(NamedTuple):
    """Priorities as one flush, save or close had them: by set, of each id."""

    sets: dict[str, dict[int, float]]

    @classmethod
    def of(cls, buffer: diskreplay.PrioritizedReplayBuffer) -> Ranks:
        """Those that a buffer has now."""
        view = ranked(buffer)
        view.anchors()  # it comes to know all rows
        leaves = {"": buffer._kind.leaves(buffer._rows), VIEW: view._view.anchors.leaves()}
        start = int(buffer.bounds[:, 0].min()) * buffer.num_envs
        return cls({
            name: {start + int(at): float(found.flat[at])
                   for at in np.flatnonzero(~np.isnan(found))}
            for name, found in leaves.items()
        })  # fmt: skip

    def since(self, first: list[int]) -> Ranks:
        """Those of rows from these on, of each env."""
        envs = len(first)
        return Ranks({
            name: {i: its for i, its in found.items() if i // envs >= first[i % envs]}
            for name, found in self.sets.items()
        })  # fmt: skip


def ranked(buffer: diskreplay.PrioritizedReplayBuffer) -> diskreplay.Sequences:
    """Its view of sequences with priorities."""
    return buffer.sequences(3, ends="pad", prioritized=True, name=VIEW)


@dataclass(frozen=True)
class Allowed:
    """Rows that may be found: of each env at least so many, and at most.

    Rows before `first` may have left, beside those that left for newer ones: they do not come back
    when the power takes the rows they left for. Those before `gone` have left. Each set of
    priorities is as one of `ranks` has it, whole. The latent of a row, by its
    stamp, has parts of some of `versions`, and only its own where that says nothing of it; None:
    they are not looked at.
    """

    rows: Rows
    least: tuple[int, ...]
    most: tuple[int, ...]
    first: tuple[int, ...] | None = None
    gone: tuple[int, ...] | None = None
    ranks: tuple[Ranks, ...] = ()
    versions: dict[int, frozenset[int]] | None = None


@dataclass(frozen=True)
class Promise:
    """What holds if the power goes out between two marks.

    Attributes
    ----------
    step : str
        What the workload was doing.
    live : tuple of Allowed
        The store is one of these.
    saved : dict of str to tuple of Rows
        For each suffix, what a checkpoint of it may hold.
    present : frozenset of str
        Suffixes of checkpoints that have to be there.
    """

    step: str
    live: tuple[Allowed, ...]
    saved: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    present: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Setting:
    """One kind of store, and one stream of steps.

    Attributes
    ----------
    name : str
    num_envs : int
    compressor : str
    large : bool
        Treat segments of a page as those of a mebibyte are: not synced while they are written to,
        with spares made ahead, and with files that are used again.
    many : bool
        Treat a few envs as many: rows of a KiB and more are written into files of large segments.
    already : int
        Rows that are there before the recording begins, so that it meets segments' ends of small
        columns, which are pages of one byte a row. Where envs drift, three of the first env, and
        more of each that follows.
    steps, seed : int
    drift : bool
        Not each env takes part in each step: the first never does again after the first steps, the
        last always does, and the others more often the higher their number. Now and then one that
        was slow records alone, and comes to segments that were sealed without it.
    segment_rows, env_group : int
    hidden : int
        Bytes of a row of the large extra; of a KiB and more, raw rows lie env by env.
    lets_go : bool
        Rows also leave by `evict`, `clear` and smaller capacities.
    """

    name: str
    num_envs: int = 1
    compressor: str = "lz4"
    large: bool = False
    many: bool = False
    already: int = 0
    steps: int = 34
    seed: int = 0
    drift: bool = False
    segment_rows: int = 8
    env_group: int | None = None
    hidden: int = 512
    lets_go: bool = False

    @property
    def rows_per_env(self) -> int:
        return 40

    def make(
        self, path: Path, rows_per_env: int | None = None
    ) -> diskreplay.PrioritizedReplayBuffer:
        """Create or open the store, with fewer rows of each env if that is said."""
        return diskreplay.PrioritizedReplayBuffer(
            path, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
            capacity=(rows_per_env or self.rows_per_env) * self.num_envs, num_envs=self.num_envs,
            batch_size=4, compressor=self.compressor, segment_rows=self.segment_rows, seed=3,
            env_group=self.env_group, shrink=rows_per_env is not None,
            extras={
                "hidden": ((self.hidden,), "uint8"), "latent": ((LATENTS,), "int64", "mutable"),
            },
        )  # fmt: skip

    @contextlib.contextmanager
    def maintenance_in_line(self) -> Iterator[Clock]:
        """The same operations in the same order each time: the maintenance thread's work is done as
        it is woken, on the thread that wakes it, and time is what the workload says it is."""
        clock = Clock()
        with contextlib.ExitStack() as stack:
            replace = lambda *what: stack.enter_context(mock.patch.object(*what))  # noqa: E731
            replace(maintenance.Maintenance, "wake", lambda self: self.run(spares=True))
            replace(maintenance.time, "monotonic", clock)
            if self.large:
                replace(column_module, "_LARGE", 4096)
                replace(spare_files, "_LARGE", 4096)
                replace(maintenance, "WORTH_A_SPARE", 1)
            if self.many:
                replace(column_module, "_MANY", 2)
            yield clock


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Workload:
    """Drives a buffer through everything that touches the disk, and keeps book of it.

    Parameters
    ----------
    setting : Setting
    root : Path
        The store is ``root/run/replay``, checkpoints go to ``root/run/checkpoints``.
    tell : callable
        Told each `Promise`: before a call what may be found during it, and after it what must be.
    clock : Clock
    """

    def __init__(
        self, setting: Setting, root: Path, tell: Callable[[Promise], None], clock: Clock
    ) -> None:
        self.setting, self._tell, self._clock = setting, tell, clock
        self.store = root / "run" / "replay"
        self.checkpoints = root / "run" / "checkpoints"
        self.chance = random.Random(setting.seed)
        self.rows: Rows = [[] for _ in range(setting.num_envs)]
        self.saved: dict[str, Rows] = {}
        self._durable = [0] * setting.num_envs
        self._first = self._gone = [0] * setting.num_envs  # may have left, and have
        self._firsts: dict[str, list[int]] = {}  # of checkpoints
        self._next_step = [0] * setting.num_envs
        self._stamp = 0
        self._retired: dict[str, Rows] = {}  # that they went need not be durable yet
        self._ranks: tuple[Ranks, ...] = ()
        self._ranks_of: dict[str, Ranks] = {}
        self._versions: dict[int, frozenset[int]] = {}  # by stamp, since the last flush
        self._latest: dict[int, int] = {}
        self.buffer: diskreplay.PrioritizedReplayBuffer | None = None

    def prepare(self) -> None:
        """What happens before the recording."""
        if self.setting.already:
            self.open()
            envs = self.setting.num_envs
            for env in range(envs):
                part = env / (envs - 1) if self.setting.drift else 1
                self.extend(env, 3 + int(self.setting.already * part))
            self.close()

    def run(self) -> None:
        """Everything once, in this order, then whatever chance says."""
        self.open()
        once = [
            self.add, self.flush, self.part, self.burst, self.idle, self.save, self.burst,
            self.save_again, self.part, self.update, self.write, self.flush, self.reopen,
            self.burst, self.load, self.burst, self.idle, self.save, self.write, self.idle,
            self.save, self.save, self.write, self.save, self.add, self.flush,
        ]  # fmt: skip
        often = [
            self.add, self.add, self.burst, self.burst, self.flush, self.idle, self.idle,
            self.save, self.save_again, self.load, self.reopen, self.update, self.update, self.many,
            self.write, self.write, self.part, self.part,
        ]  # fmt: skip
        if self.setting.lets_go:
            more = [self.evict, self.burst, self.flush, self.shrink, self.burst, self.evict]
            once[12:12], often = [*more, self.save, self.clear, self.burst, self.idle], often + more
            often += [self.clear]
        for step in range(self.setting.steps):
            (once[step] if step < len(once) else self.chance.choice(often))()
        self.close()

    # -- book-keeping

    @property
    def _most(self) -> tuple[int, ...]:
        return tuple(map(len, self.rows))

    def _now(self, name: str, *also: Allowed, **more) -> None:
        live = Allowed(
            self.rows, tuple(self._durable), self._most, tuple(self._first), tuple(self._gone),
            self._ranks, self._versions,
        )  # fmt: skip
        saved = {suffix: (rows,) for suffix, rows in (self._retired | self.saved).items()}
        promise = {"saved": saved, "present": frozenset(self.saved)} | more
        self._tell(Promise(name, (live, *also), **promise))

    def _done(self, name: str) -> None:
        if self.buffer is not None:
            # What the record names is the last durable point.
            self._durable = self.buffer._rows.store.durable_count.tolist()
        self._now(f"after {name}")

    def _all_durable(self) -> None:
        """Flush and close promise this, whatever the record says; and what was written again."""
        self._versions = {stamp: frozenset([last]) for stamp, last in self._latest.items()}
        self._gone = self._first
        assert self._durable == list(self._most)

    def _rank(self) -> Ranks:
        """Priorities are about to be written: from here on they may be these."""
        found = Ranks.of(self.buffer)
        self._ranks = (*self._ranks, found)
        return found

    def _ranked(self, found: Ranks) -> None:
        """They were written."""
        self._ranks = (found,)

    # -- steps

    def open(self) -> None:
        self._now("open")
        self.buffer = self.setting.make(self.store)
        ranked(self.buffer)
        self._next_step = [0] * self.setting.num_envs
        self._done("open")

    def close(self) -> None:
        ranks = self._rank()
        self._now("close")
        self.buffer.close()
        self._ranked(ranks)
        self._done("close")
        self._all_durable()
        self.buffer = None

    def reopen(self) -> None:
        self.close()
        self.open()

    def flush(self) -> None:
        ranks = self._rank()
        self._now("flush")
        self.buffer.flush()
        self._ranked(ranks)
        self._done("flush")
        self._all_durable()

    def idle(self) -> None:
        """Two seconds go by, and the maintenance thread wakes."""
        self._now("record")
        self._clock.now += 3
        self.buffer._rows.store.maintenance.run(spares=True)
        self._done("record")

    def burst(self) -> None:
        for _ in range(self.chance.randint(6, 14)):
            self.add()

    def _row(self, env: int, **flags: bool) -> Row:
        self._stamp += 1
        row = Row(self._stamp, self._next_step[env], **flags)
        over = row.terminated or row.truncated
        self._next_step[env] = 0 if over else row.step + 1
        return row

    def add(self) -> None:
        """A step of each env; some end an episode, some of these with a last observation."""
        envs = self.setting.num_envs
        kind = self.chance.choice(["", "", "", "", "terminated", "truncated"])
        mask = self._mask()
        before = list(self._next_step)
        rows = [self._row(e, **({kind: True} if kind else {})) for e in range(envs)]
        final = []
        if kind and self.chance.random() < 0.7:
            final = [self._row(e)._replace(step=rows[e].step + 1, is_final=True)
                     for e in range(envs)]  # fmt: skip
            self._next_step = [0] * envs
        columns = columns_of(rows, self.setting.hidden)
        last = columns_of(final, self.setting.hidden)
        for env in range(envs):
            if mask is None or mask[env]:
                self.rows[env] += [rows[env], *final[env : env + 1]]
            else:
                self._next_step[env] = before[env]
        self._now("add")
        arguments = [
            columns[name] if envs > 1 else columns[name][0]
            for name in ("observation", "action", "reward", "terminated", "truncated")
        ]
        following = None
        if final:
            following = last["observation"] if envs > 1 else last["observation"][0]
        hidden = columns["hidden"] if envs > 1 else columns["hidden"][0]
        masked = {} if mask is None else {"mask": mask}
        latent = columns["latent"] if envs > 1 else columns["latent"][0]
        self.buffer.add(*arguments, following, hidden=hidden, latent=latent, **masked)
        self._done("add")

    def _mask(self) -> np.ndarray | None:
        """Which envs take part in a step."""
        if not self.setting.drift:
            return None
        envs = self.setting.num_envs
        mask = np.array([self.chance.random() < env / (envs - 1) for env in range(envs)])
        if self.chance.random() < 0.15:  # the slow ones, some more of them each time
            mask = np.arange(envs) < self.chance.randint(2, max(envs // 3, 2))
            mask[0] = False
        return mask

    def many(self) -> None:
        self.extend(self.chance.randrange(self.setting.num_envs), self.chance.randint(5, 30))

    def part(self) -> None:
        """Rows of an episode whose beginning is not there, or that count on from a cut one."""
        env = self.chance.randrange(self.setting.num_envs)
        own = self._next_step[env]
        after = self.rows[env][-1].step + 1 if self.rows[env] else 3
        self._next_step[env] = self.chance.choice((own, after, self.chance.randrange(1000)))
        if self.chance.random() < 0.5:
            self.buffer.end_episode(np.arange(self.setting.num_envs) == env)
        self.extend(env, self.chance.randint(1, 12))

    def evict(self) -> None:
        """Old rows of each env leave, of some of them none."""
        kept = [self.chance.randint(1, self.setting.rows_per_env) for _ in self.rows]
        first = [max(size - n, 0) for size, n in zip(self._most, kept, strict=True)]
        self._let_go(first)
        self._now("evict")
        self.buffer.evict(first)
        self._done("evict")

    def _let_go(self, first: list[int]) -> None:
        self._first = list(map(max, self._first, first))

    def shrink(self) -> None:
        """Rows leave since the capacity is smaller, and stay away when it is what it was."""
        self.close()
        kept = self.chance.randint(self.setting.segment_rows, self.setting.rows_per_env)
        self._let_go([size - kept for size in self._most])
        # What is let go loses its priority first, and then may be back.
        self._ranks = (*self._ranks, self._ranks[-1].since(self._first))
        self._now("shrink")
        self.buffer = self.setting.make(self.store, kept)
        ranked(self.buffer)
        self._next_step = [0] * self.setting.num_envs
        self._done("shrink")
        self.add()
        self._let_go([size - kept for size in self._most])
        self.reopen()

    def clear(self) -> None:
        nothing: Rows = [[] for _ in self.rows]
        none = (0,) * len(nothing)
        self._now("clear", Allowed(nothing, none, none, versions={}))
        self.buffer.clear()
        self.buffer._rows.store.finish_clearing()
        self._start_from(nothing, [0] * len(nothing))
        self._ranks = ()
        self._done("clear")

    def _start_from(self, rows: Rows, first: list[int]) -> None:
        """These rows are all there are from here on, and durable."""
        self.rows, self._durable = rows, list(map(len, rows))
        self._first = self._gone = first
        self._latest, self._versions = {}, {}
        self._next_step = [0] * self.setting.num_envs

    def extend(self, env: int, size: int) -> None:
        """Many rows of one env at once."""
        rows = [self._row(env) for _ in range(size)]
        self.rows[env] += rows
        self._now("extend")
        self.buffer.extend(columns_of(rows, self.setting.hidden), env)
        self._done("extend")

    def update(self) -> None:
        self._stamp += 1  # so that no two updates are alike
        ids = self.buffer.sampleable_ids()
        if len(ids):
            self.buffer.update_priorities(ids, 1 + (ids + self._stamp) % 7)
        view = ranked(self.buffer)
        anchors = view.anchors()
        if len(anchors):
            view.update_priorities(anchors, 1 + (anchors + self._stamp) % 11)

    def write(self) -> None:
        """New latents in about a third of the rows."""
        self._stamp += 1
        envs, chosen = self.setting.num_envs, {}
        for env, (first, count) in enumerate(self.buffer.bounds.tolist()):
            for number in range(first, count):
                row = self.rows[env][number]
                if (number + env + self._stamp) % 3 == 0 and not row.is_final:
                    chosen[number * envs + env] = row
        before = {row.stamp: frozenset([self._version(row)]) for row in chosen.values()}
        also = {
            stamp: self._versions.get(stamp, known) | {self._stamp}
            for stamp, known in before.items()
        }
        self._versions = self._versions | also
        self._now("write")
        stamps = np.array([row.stamp for row in chosen.values()], np.int64)
        values = latents(stamps, np.full(len(stamps), self._stamp))
        self.buffer.write("latent", np.array(list(chosen), np.int64), values)
        self._latest |= dict.fromkeys(stamps.tolist(), self._stamp)
        self._done("write")

    def _version(self, row: Row) -> int:
        return self._latest.get(row.stamp, row.version)

    def save(self) -> None:
        self._save(str(1 + max(map(int, self.saved), default=0)))

    def save_again(self) -> None:
        """Over the newest checkpoint, or one that is called by a word."""
        self._save(max(self.saved, key=int, default="1"))

    def _save(self, suffix: str) -> None:
        before = dict(self.saved)
        self.saved[suffix] = [
            [row._replace(version=self._version(row)) for row in rows] for rows in self.rows
        ]
        self._firsts[suffix] = self._first
        for number in sorted(self.saved, key=int)[:-KEPT]:
            self._retired[number] = self.saved.pop(number)
        both = (self.saved[suffix], *([before[suffix]] if suffix in before else []))
        allowed = {s: (rows,) for s, rows in (self._retired | self.saved).items()}
        present = before.keys() & self.saved.keys()
        ranks = self._ranks_of[suffix] = self._rank()
        self._now("save", saved=allowed | {suffix: both}, present=frozenset(present))
        size = ",".join(str(len(rows)) for rows in self.rows)
        self.buffer.save(self.checkpoints, suffix, attachments={"nets/rows": size.encode()})
        self._ranked(ranks)
        self._done("save")

    def load(self) -> None:
        if not self.saved:
            return
        suffix = self.chance.choice(sorted(self.saved))
        rows = [list(of_env) for of_env in self.saved[suffix]]
        size, ranks = tuple(map(len, rows)), self._ranks_of[suffix]
        first = self._firsts[suffix]
        self._now("load", Allowed(rows, size, size, tuple(first), tuple(first), (ranks,), {}))
        self.buffer.load(self.checkpoints, suffix)
        self._ranked(ranks)
        self.buffer._rows.store.finish_clearing()
        self._start_from(rows, first)
        self._done("load")
