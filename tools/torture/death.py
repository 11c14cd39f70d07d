"""SIGKILL at random instants: what was acknowledged is there, and nothing else is."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import content
import crew
import latents
import numpy as np
import writer
from writer import BEGUN, DONE, Life, Message, Writer

import diskreplay
from diskreplay.check.verify import verify

KINDS = tuple(product((1, 16, 2, 5), ("raw", "lz4"), ("tiny", "normal")))
KILLS_OF_A_LIFE = 10
_TINY = 8
_LIMIT_S = 300.0
_STUCK_S = 60.0
_UNSURE = 8  # rows before the last one that may not have been complete when priorities were set


def run(
    *,
    kills: int = 200,
    seed: int = 0,
    workers: int = 2,
    directory: Path | None = None,
    advance: Callable[[int], None] = lambda kills: None,
) -> dict[str, Any]:
    """Kill writers so many times, in lives of ten kills, and check each time.

    Parameters
    ----------
    directory : Path, optional
        Where the stores are; in memory where the system has such a directory, since a killed
        process loses nothing of either.

    Returns
    -------
    dict
        ``kills``, how many hit what (``killed_in``), ``acknowledged`` calls, ``rows_compared``,
        ``ranked`` (priorities compared), ``half_written`` (kills that left a file half written),
        ``verified``, and ``failures``.
    """
    totals: Counter = Counter()
    killed_in: Counter = Counter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="torture-", dir=directory or crew.MEMORY) as place:
        base = Path(place)
        _warm_up(base)
        lives = -(-kills // KILLS_OF_A_LIFE)
        jobs = []
        for number in range(lives):
            envs, compressor, size = KINDS[(seed + number) % len(KINDS)]
            chance = random.Random(seed + number)
            life = Life(
                base / str(number), envs, compressor, _TINY if size == "tiny" else None,
                (300 if size == "tiny" else 5000) * min(envs, 4),
                number % 3 > 0, seed + number, drift=envs > 1 and chance.random() < 0.5,
                threads=chance.random() < 0.5,
            )  # fmt: skip
            jobs.append((life, min(KILLS_OF_A_LIFE, kills - number * KILLS_OF_A_LIFE)))
        for outcome in crew.run(_live, jobs, workers=workers, limit_s=_LIMIT_S):
            life, planned = outcome.job
            advance(planned)
            if outcome.trouble is None:
                totals.update(outcome.value["totals"])
                killed_in.update(outcome.value["killed_in"])
            else:
                failures.append({"life": [str(part) for part in life], "why": outcome.trouble})
    return {"seed": seed, **totals, "killed_in": dict(killed_in), "failures": failures}


def _warm_up(base: Path) -> None:
    """Import and compile what writers and checks need; forked ones have it then."""
    for envs in (1, 2):
        life = Life(base / f"warm-up-{envs}", envs, "lz4", _TINY, 100 * envs, True, 0)
        life.store.parent.mkdir(parents=True)
        away = os.open(os.devnull, os.O_WRONLY)
        warm = Writer(life, away, [0] * envs, {}, 0)
        warm.steps = [0] * envs
        warm.buffer = writer.open_buffer(life)
        for _ in range(30):
            warm.add()
            warm.extend()
            warm.part()
        for call in (
            warm.flush,
            warm.save,
            warm.add,
            warm.write,
            warm.load,
            warm.evict,
            warm.clear,
            warm.reopen,
        ):
            call()
        warm.buffer.close()
        os.close(away)
        with diskreplay.open(life.store) as buffer:
            content.wrong(buffer)
        verify(life.store)


def _live(job: tuple[Life, int]) -> dict[str, Any]:
    life, kills = job
    life.store.parent.mkdir(parents=True)
    life.checkpoints.mkdir()
    witness = Witness(life)
    for _ in range(kills):
        witness.one_kill()
    shutil.rmtree(life.directory)
    return {"totals": witness.totals, "killed_in": witness.killed_in}


class Lost(AssertionError):
    """A promise that was not kept."""


class Known:
    """What was acknowledged: for each env how many rows, the ``step`` of each, and the oldest one
    that is retained; and which update of the priorities was written, with the rows there were."""

    def __init__(self, num_envs: int) -> None:
        self.steps: list[list[int]] = [[] for _ in range(num_envs)]
        self.begins: list[list[bool]] = [[] for _ in range(num_envs)]  # an episode
        self.parts: dict[tuple[int, int], tuple[int, bool]] = {}  # by env and row, as `extend` has
        self.next = [0] * num_envs
        self.first = [0] * num_envs
        self.latents = latents.Latents(num_envs)
        self.ranks: tuple[int, list[int]] | None = None

    @property
    def counts(self) -> list[int]:
        return [len(steps) for steps in self.steps]

    def advance(self, counts: list[int] | tuple[int, ...]) -> None:
        """Rows up to these counts were added."""
        self.latents.advance(counts)
        for env, (steps, count) in enumerate(zip(self.steps, counts, strict=True)):
            for row in range(len(steps), count):
                step, is_cut = self.parts.get((env, row), (self.next[env], False))
                self.begins[env].append(step == 0 or is_cut or step != self.next[env])
                steps.append(step)
                self.next[env] = 0 if content.ends(env, row) else step + 1

    def cut(self) -> None:
        """The store was opened anew: the episodes that were open are over."""
        self.next = [0] * len(self.next)

    def begin(self, message: Message) -> None:
        """A part is about to be added."""
        for env, (count, stop) in enumerate(zip(self.counts, message.counts, strict=True)):
            if count < stop:
                self.parts[env, count] = message.suffix // 2, bool(message.suffix % 2)

    def forget_missing(self) -> None:
        """No more of a part was added than is there."""
        counts = self.counts
        self.parts = {(e, row): part for (e, row), part in self.parts.items() if row < counts[e]}

    def starts(self, env: int) -> list[int]:
        """The oldest retained row of each episode of which there is a transition."""
        found, is_new = [], True
        for row in range(self.first[env], len(self.steps[env])):
            is_new |= self.begins[env][row]
            if is_new and not content.is_final(env, row):
                found.append(row)
                is_new = False
        return found

    def let_go(self, first: int) -> list[int]:
        """What `evict` of this row leaves of each env."""
        return [
            max(before, min(first, count - 1))
            for before, count in zip(self.first, self.counts, strict=True)
        ]

    def evict(self, kept: int) -> None:
        """Each env keeps so many rows. What has left does not come back."""
        self.first = [
            max(first, count - kept) for first, count in zip(self.first, self.counts, strict=True)
        ]

    def copy(self) -> Known:
        other = Known(0)
        other.steps, other.next = [list(steps) for steps in self.steps], list(self.next)
        other.begins = [list(begins) for begins in self.begins]
        other.parts = self.parts  # a copy is advanced while parts come
        other.first, other.ranks = list(self.first), self.ranks
        other.latents = self.latents.copy()
        return other


class Witness:
    """Starts a writer, kills it, and holds the store against what it had acknowledged."""

    def __init__(self, life: Life) -> None:
        self.life, self.first_capacity = life, life.capacity
        self.rng = random.Random(life.seed)
        self.known = Known(life.num_envs)
        self.saved: dict[int, Known] = {}
        self.moments: list[tuple[int, ...]] = []  # rows that there were since a save began
        self.totals: Counter = Counter()
        self.killed_in: Counter = Counter()

    def one_kill(self) -> None:
        messages = self._killed_writer()
        pending = self._follow(messages)
        action = " beside ".join(writer.NAMES[one.action] for one in pending) or "between calls"
        self.killed_in[action] += 1
        self.totals["killed with threads"] += self.life.threads
        self.totals["kills"] += 1
        self.totals["acknowledged"] += sum(message.phase == DONE for message in messages)
        self.totals["half_written"] += any(self.life.store.rglob("*.tmp"))
        try:
            self.check(*pending)
        except Lost as error:
            raise Lost(f"{self.life}, killed in {action}: {error}") from error

    # -- killing

    def _killed_writer(self) -> list[Message]:
        ours, theirs = os.pipe()
        seed = self.rng.randrange(2**32)
        child = os.fork()
        if child == 0:
            os.close(ours)
            suffixes = {suffix: known.counts for suffix, known in self.saved.items()}
            code = 1
            try:
                Writer(self.life, theirs, self.known.counts, suffixes, seed).run()
            except BaseException as error:
                print(f"the writer failed: {error!r}", flush=True)
                code = 3
            os._exit(code)
        os.close(theirs)
        try:
            data = self._read_until_it_is_time(ours)
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        while more := os.read(ours, 1 << 20):
            data += more
        os.close(ours)
        if not os.WIFSIGNALED(status):
            raise Lost(f"the writer ended by itself, status {status}")
        size = Message.size(self.life.num_envs)
        return [Message.unpack(data[at : at + size]) for at in range(0, len(data), size)]

    def _read_until_it_is_time(self, pipe: int) -> bytes:
        """Either some time after the beginning, or in the middle of a chosen action."""
        data, size = b"", Message.size(self.life.num_envs)
        wanted = self.rng.choice(
            (None, None, None, writer.OPEN, writer.FLUSH, writer.SAVE, writer.LOAD, writer.REOPEN,
             writer.EXTEND, writer.WRITE, writer.PART, writer.PART, writer.EVICT, writer.CLEAR)
        )  # fmt: skip
        moments = self.rng.randrange(1, 3)
        # An action that is waited for comes after some hundred calls: on a busy machine, late.
        deadline = time.monotonic() + (self.rng.uniform(0, 0.4) if wanted is None else _STUCK_S)
        if wanted is None and self.rng.random() < 0.3:
            deadline -= 0.37
        seen = 0
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            more = os.read(pipe, size)
            if not more:
                break
            data += more
            message = Message.unpack(data[-size:])
            if message.phase == BEGUN and message.action == wanted:
                seen += 1
                if seen == moments or wanted == writer.OPEN:
                    deadline = time.monotonic() + self.rng.uniform(0, 0.006)
                    wanted = None
        return data

    # -- what was said

    def _follow(self, messages: list[Message]) -> list[Message]:
        """Bring what is known up to the last message; what was begun and not done: a call, and
        another one of a thread beside."""
        under_way: dict[bool, Message] = {}
        for message in messages:
            is_beside = message.action in writer.BESIDE
            if message.phase == BEGUN:
                under_way[is_beside] = message
                if message.action == writer.PART:
                    self.known.begin(message)
                if message.action == writer.SAVE:
                    self.copy, self.moments = self.known.copy(), [tuple(self.known.counts)]
                    self.copy.ranks = message.generation, list(message.counts)
                continue
            if message.action == writer.SAVE:
                self._take_copy(message.counts, under_way.get(False), self.kept)
            del under_way[is_beside]
            if message.action in (writer.OPEN, writer.REOPEN):
                self.known.cut()
            elif message.action == writer.SAVE:
                self._keep(message.suffix, self.copy)
                self.known.ranks = self.copy.ranks
            elif message.action in (writer.LOAD, writer.CLEAR):
                self._put_in_place(message)
                self.known.forget_missing()
            elif message.action == writer.EVICT:
                self.known.first = self.known.let_go(message.suffix)
            elif message.action == writer.WRITE:
                self.known.latents.written(message.suffix, message.counts)
            elif message.action != writer.FLUSH:
                self.known.advance(message.counts)
                self.moments.append(message.counts)
            if message.action in (writer.FLUSH, writer.REOPEN):
                self.known.ranks = message.generation, list(message.counts)
            if not is_beside and tuple(self.known.counts) != message.counts:
                raise Lost(f"{message} is not what was expected: {self.known.counts}")
        return list(under_way.values())

    def _put_in_place(self, message: Message) -> None:
        """A checkpoint, or nothing, took the place of all rows."""
        if message.action == writer.LOAD:
            self.known = self.saved[message.suffix].copy()
        else:
            self.known = Known(self.life.num_envs)
        self.known.cut()

    def _take_copy(self, counts: tuple[int, ...], adding: Message | None, kept: int) -> None:
        """What is saved has these rows, of a moment since the save began, while each env kept so
        many."""
        if counts not in self.moments and not self._is_amid(counts, adding):
            raise Lost(f"rows {counts} are saved, which nobody had: {self.moments[-5:]}, {adding}")
        self.copy.advance(counts)
        self.copy.evict(kept)

    def _is_amid(self, counts: tuple[int, ...], adding: Message | None) -> bool:
        """Whether these may be the rows while a call is under way."""
        if adding is None or adding.action not in writer.ADDING:
            return False
        if adding.action == writer.ADD:
            return counts == adding.counts
        return all(map(_between, self.moments[-1], counts, adding.counts))

    def _keep(self, suffix: int, known: Known) -> None:
        self.saved[suffix] = known
        self.saved = {s: self.saved[s] for s in sorted(self.saved)[-writer.KEPT :]}

    # -- what is there

    def check(self, *under_way: Message) -> None:
        """The store and its checkpoints are as was said, with what calls `under_way` may have done:
        one, and another one beside it."""
        pending = next((one for one in under_way if one.action not in writer.BESIDE), None)
        beside = next((one for one in under_way if one.action in writer.BESIDE), None)
        if not (self.life.store / "zarr.json").exists():
            if any(self.known.counts):
                raise Lost("the store is gone")
            return  # killed before it was created: the next writer goes on with it
        # A third of the stores are only looked at, so that the next writer finds what this one
        # left, and is killed again over it.
        writes = self.rng.random() < 0.67
        before = self.kept
        if writes and self.rng.random() < 0.2:
            self.life = self.life._replace(capacity=self._another_capacity())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opened = writer.open_buffer(self.life) if writes else diskreplay.open(self.life.store)
        with opened as buffer:
            self._settle(buffer.bounds, pending, before)
            is_write = beside is not None and beside.action == writer.WRITE
            self._compare(buffer, self.known, beside if is_write else None)
            self._compare_ranks(buffer, under_way)
            if len(buffer):
                buffer.sample(8)
            self._check_checkpoints(pending, beside, before)
        self.known.cut()
        self._verify(self.life.store)
        if writes:
            self._count_files()

    @property
    def kept(self) -> int:
        """Rows that each env keeps."""
        return self.life.capacity // self.life.num_envs

    def _another_capacity(self) -> int:
        """The first one, or up to four times or down to a half of it."""
        first = self.first_capacity
        return self.rng.choice((first, first // 2, 2 * first, 4 * first))

    def _settle(self, bounds: np.ndarray, pending: Message | None, before: int) -> None:
        """All that was acknowledged has to be there, and at most the call under way. Each env kept
        so many rows `before`, while they were added."""
        found, acknowledged = bounds[:, 1].tolist(), self.known.counts
        is_other = pending and pending.action in (writer.LOAD, writer.CLEAR)
        if is_other and tuple(found) == pending.counts:
            self._put_in_place(pending)
        elif pending and pending.action in writer.ADDING:
            for env, (rows, low, high) in enumerate(
                zip(found, acknowledged, pending.counts, strict=True)
            ):
                whole = pending.action != writer.ADD or rows in (low, high)
                if not low <= rows <= high or not whole:
                    raise Lost(f"env {env}: {rows} rows, {low} acknowledged, {high} begun")
            self.known.advance(found)
        elif found != acknowledged:
            raise Lost(f"rows {found}, acknowledged {acknowledged}")
        self.known.forget_missing()
        for kept in (before, self.kept):
            self.known.evict(kept)
        if pending and pending.action == writer.EVICT:  # of each env all or nothing has left
            both = zip(self.known.first, self.known.let_go(pending.suffix), strict=True)
            self.known.first = [
                found if found in allowed else allowed[0]
                for found, allowed in zip(bounds[:, 0].tolist(), both, strict=True)
            ]
        if bounds[:, 0].tolist() != self.known.first:
            raise Lost(f"retained rows {bounds.tolist()}, from {self.known.first} on expected")

    def _compare(
        self, buffer: diskreplay.ReplayBuffer, known: Known, begun: Message | None = None
    ) -> None:
        """`begun` is a write that may have been done in part."""
        steps = [np.array(one, np.int32) for one in known.steps]
        write = () if begun is None else (begun.suffix, begun.counts)
        wrong = content.wrong(buffer, steps=steps) + known.latents.wrong(buffer, *write)
        if wrong:
            raise Lost(f"{buffer.path}: {wrong}")
        self.totals["rows_compared"] += int(np.diff(buffer.bounds).sum())
        envs, starts = buffer.num_envs, buffer.episodes().start_id
        for env in range(envs):
            found, expected = starts[starts % envs == env] // envs, known.starts(env)
            if found.tolist() != expected:
                odd = sorted(set(found.tolist()) ^ set(expected))
                near = range(max(odd[0] - 9, 0), odd[-1] + 9)
                said = {name: buffer._rows.store.meta.get(name) for name in ("begins", "parts")}
                raise Lost(
                    f"{buffer.path}: episodes of env {env} begin elsewhere: rows {odd[:9]}; found "
                    f"{[row for row in found.tolist() if row in near]} and expected "
                    f"{[row for row in expected if row in near]} of {buffer.bounds.tolist()}, with "
                    f"steps {known.steps[env][near.start : near.stop]} from row {near.start} on; "
                    f"the attributes say {said}"
                )
        self.totals["episodes"] += len(starts)

    def _compare_ranks(self, buffer: diskreplay.ReplayBuffer, under_way: Iterable[Message]) -> None:
        """Each set of priorities is, as a whole, as it was written last."""
        allowed = [self.known.ranks]
        allowed += [
            (one.generation, list(one.counts))
            for one in under_way
            if one.action in (writer.FLUSH, writer.SAVE, writer.REOPEN)
        ]
        view = writer.ranked(buffer)
        view.anchors()  # it comes to know all rows
        sets = [("view", view._view.anchors.leaves(), view.options.alpha)]
        if self.life.prioritized:
            sets.append(("main", buffer._kind.leaves(buffer._rows), buffer.alpha))
        chosen = []
        for name, leaves, alpha in sets:
            rows = int(buffer.bounds[:, 0].min()) + np.arange(len(leaves))[:, None]
            ids = rows * buffer.num_envs + np.arange(buffer.num_envs)
            fits = []
            for ranks in allowed:
                if ranks is None:
                    fits.append(True)
                    continue
                generation, counts = ranks
                sure = ~np.isnan(leaves) & (rows < np.array(counts) - _UNSURE)
                expected = content.priorities(ids[sure], generation) ** alpha
                self.totals["ranked"] += len(expected)
                fits.append(np.allclose(leaves[sure], expected, rtol=1e-9, atol=0))
            if not any(fits):
                raise Lost(f"priorities of the {name} are as no update of {allowed} left them")
            chosen.append(allowed[len(fits) - 1 - fits[::-1].index(True)])
        if len(set(map(str, chosen))) == 1:
            self.known.ranks = chosen[0]
        else:  # one was replaced and the other not yet: nobody says which is whose
            self.known.ranks = None

    def _check_checkpoints(
        self, adding: Message | None, pending: Message | None, kept: int
    ) -> None:
        """Those that were acknowledged are there, and what is there is whole. The writer that was
        killed kept so many rows of each env."""
        names = [path.name for path in self.life.checkpoints.glob("replay_ckpt.*")]
        there = {int(name.rpartition(".")[2]) for name in names}
        if pending and pending.action == writer.SAVE and pending.suffix in there:
            path = self.life.checkpoints / f"replay_ckpt.{pending.suffix}"
            with diskreplay.open(path) as buffer:
                self._take_copy(tuple(buffer.bounds[:, 1].tolist()), adding, kept)
            self.saved[pending.suffix] = self.copy
            for suffix in sorted(self.saved)[: -writer.KEPT]:
                if suffix not in there:
                    del self.saved[suffix]
        if there != set(self.saved):
            raise Lost(f"checkpoints {sorted(there)}, {sorted(self.saved)} expected")
        for suffix in sorted(there)[-2:]:
            path = self.life.checkpoints / f"replay_ckpt.{suffix}"
            self._verify(path)
            with diskreplay.open(path) as buffer:
                if buffer.bounds[:, 1].tolist() != self.saved[suffix].counts:
                    raise Lost(f"{path}: rows {buffer.bounds.tolist()}")
                self._compare(buffer, self.saved[suffix])

    def _verify(self, path: Path) -> None:
        report = verify(path)
        if not report.clean:
            raise Lost(f"verify {path}: {[str(finding) for finding in report.findings]}")
        self.totals["verified"] += 1

    def _count_files(self) -> None:
        """After a close there are the segments of retained rows and a few more files."""
        live = sorted(path.name for path in self.life.store.parent.iterdir())
        if live != ["replay"]:
            raise Lost(f"beside the store: {live}")
        files = sum(path.is_file() for path in self.life.store.rglob("*"))
        with diskreplay.open(self.life.store) as buffer:
            segments = sum(field.segments for field in buffer.statistics().fields.values())
            fields = len(buffer.fields)
        # Metadata, tails of packed columns, priorities; and a segment of rows that just left.
        bound = segments + fields * (1 + 2 * self.life.num_envs) + 16
        if files > bound:
            raise Lost(f"{files} files, at most {bound} expected")
        self.totals["most_files"] = max(self.totals["most_files"], files)


def _between(low: int, value: int, high: int) -> bool:
    return low <= value <= high
