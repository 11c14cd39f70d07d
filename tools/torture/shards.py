"""Shards of one buffer on a Ray cluster of this machine: shards, nodes, learners and the
coordinator are killed at random instants, and shards amid saves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hashed_steps
import loopback_cluster
import numpy as np
import shard_learner
from loopback_cluster import LoopbackCluster

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import ShardsLostError
from diskreplay.store import manifest

DISKS, _SHARDS, _WRITERS = 2, 4, 4
_ENVS = 2 * _WRITERS
_PATIENCE_S = 400.0
_SHARD_TIMEOUT_S = 2.0
_AT_ONCE = 20_000  # rows that are compared


def run(
    *,
    shards: int = 100,
    nodes: int = 10,
    saves: int = 20,
    learners: int = 10,
    coordinators: int = 10,
    kills_a_round: int = 10,
    seed: int = 0,
    directory: Path | None = None,
    seconds: float | None = None,
    wait_s: float | None = _SHARD_TIMEOUT_S + 1.0,
    transport: str = "call",
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Kill so many of each kind, in rounds with stores of their own.

    Parameters
    ----------
    shards, nodes, saves, learners, coordinators : int
        Processes of shards; nodes with all of their processes; shards amid a save; learners; the
        actors that know the shards.
    kills_a_round : int
        After so many all rows are compared, and the newest checkpoint is loaded.
    seconds : float, optional
        After which none is killed any more.
    wait_s : float, optional
        A learner that waits longer for a batch is a failure; None where the machine is too busy.
    transport : {"call", "graph"}
        By which the learner draws. With a graph, half of the shards are on its node, and in it.

    Returns
    -------
    dict
        ``killed`` by kind; ``acknowledged`` rows; ``rows_compared``; ``batches``; ``saved`` and
        ``not_saved``; the longest waits of the learner and the seconds until all was as before,
        median and most, by kind; ``failures``.
    """
    kinds = ["shard"] * shards + ["node"] * nodes + ["save"] * saves + ["learner"] * learners
    kinds += ["coordinator"] * coordinators
    random.Random(seed).shuffle(kinds)
    figures = Figures(wait_s)
    ends = time.monotonic() + (1e9 if seconds is None else seconds)
    with ray_and_room(directory) as (cluster, base):
        for number, start in enumerate(range(0, len(kinds), kills_a_round)):
            mine = kinds[start : start + kills_a_round]
            where, label = base / str(number), f"{seed}-{number}"
            with Round(cluster, where, label, figures, transport) as one:
                for kind in mine:
                    if time.monotonic() > ends:
                        break
                    one.kill(kind)
                    advance(1)
                one.end()
            shutil.rmtree(where)
            if figures.failures or time.monotonic() > ends:
                break
    return figures.summary()


@contextlib.contextmanager
def ray_and_room(directory: Path | None) -> Iterator[tuple[LoopbackCluster, Path]]:
    """A cluster that this process is connected to, and a directory for its stores."""
    with (
        tempfile.TemporaryDirectory(
            prefix="torture-", dir=directory, ignore_cleanup_errors=True
        ) as place,
        LoopbackCluster(DISKS) as cluster,
    ):
        ray = loopback_cluster.connect(cluster.address)
        try:
            loopback_cluster.wait_for_disks(ray, DISKS)
            yield cluster, Path(place)
        finally:
            ray.shutdown()


class Figures:
    """What was tried, how long all waited, and what failed."""

    def __init__(self, wait_s: float | None) -> None:
        self.failures: list[str] = []
        self.killed: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._wait_s = wait_s
        self._waits: dict[str, list[float]] = {}
        self._back: dict[str, list[float]] = {}

    def survived(self, kind: str, wait: float, back: float, where: str = "") -> None:
        self.killed[kind] += 1
        self._waits.setdefault(kind, []).append(wait)
        self._back.setdefault(kind, []).append(back)
        if self._wait_s is not None and wait > self._wait_s:
            self.failures.append(f"{kind}: the learner waited {wait:.1f} s for a batch\n{where}")

    def summary(self) -> dict[str, Any]:
        def spread(of: dict[str, list[float]]) -> dict[str, str]:
            return {
                kind: f"{np.median(found):.1f} s, {max(found):.1f} s at most"
                for kind, found in sorted(of.items())
            }

        return {
            "killed": dict(self.killed), **self.counts, "longest wait": spread(self._waits),
            "all as before after": spread(self._back), "failures": self.failures,
        }  # fmt: skip


class Round:
    """Stores, writers and a learner, from empty directories to the last comparison."""

    def __init__(
        self, cluster: LoopbackCluster, base: Path, label: str, figures: Figures,
        transport: str = "call", capacity: int | None = None,
    ) -> None:  # fmt: skip
        from diskreplay.ray import SampleToInsertRatio, ShardedReplayBuffer

        self._cluster, self._base, self._figures = cluster, base, figures
        self._chance, self._transport = random.Random(label), transport
        self._name = f"torture-{label}"
        # A graph is of the shards on the learner's node, which is the head: of half of them.
        self._places = [
            "head" if transport == "graph" and n < DISKS else f"disk{n % DISKS}"
            for n in range(_SHARDS)
        ]
        self._checkpoints = base / "checkpoints"
        base.mkdir(parents=True)
        self._board = shard_learner.Board(base / "board")
        self._replay = ShardedReplayBuffer(
            base / "replay", num_shards=_SHARDS, num_envs=_ENVS, capacity=capacity, name=self._name,
            resources=[{place: 1} for place in self._places], timeout=_PATIENCE_S,
            shard_timeout=_SHARD_TIMEOUT_S, seed=0, rate_limiter=SampleToInsertRatio(4, 500, 1e12),
            **hashed_steps.options(),
        )  # fmt: skip
        self._added = [0] * _WRITERS
        self._writers = [self._replay.writer(2, 8 + 56 * (n % 2)) for n in range(_WRITERS)]
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(_WRITERS)
        ]
        for thread in self._threads:
            thread.start()
        self._learner = self._start_learner()

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ending.set()
        self._learner.kill()
        self._learner.wait()
        for thread in self._threads:  # none is to call Ray once it is shut down
            thread.join(_PATIENCE_S)
        self._replay.close()

    # -- what runs

    def check(self) -> None:
        """Raise a `RuntimeError` if a writer or the learner has ended."""
        if self._learner.poll() is not None:
            log = (self._base / "learner.log").read_text()[-3000:]
            raise RuntimeError(f"the learner ended: {log}")
        if (self._base / "wrong").exists():
            self._figures.failures.append(f"wrong batch: {(self._base / 'wrong').read_text()}")
        if self._figures.failures:
            raise RuntimeError(self._figures.failures[0])

    def settle(self) -> None:
        """Wait until the learner learns and all writers add."""
        self._settle(set())

    @property
    def learner(self) -> int:
        """Its process."""
        return self._learner.pid

    @property
    def directory(self) -> Path:
        """Of the stores and checkpoints."""
        return self._base

    @property
    def added(self) -> int:
        """Steps that the writers took."""
        return 2 * sum(self._added)

    @property
    def batches(self) -> int:
        """Those that the learner took."""
        return self._board["batches"]

    @property
    def saved(self) -> int:
        """The number of its last checkpoint."""
        return self._board["saved"]

    def _write(self, number: int) -> None:
        writer, at = self._writers[number], 0
        envs = (2 * number, 2 * number + 1)
        try:
            while not self._ending.is_set():
                of = np.concatenate([hashed_steps.numbers(env, at + 1)[-1:] for env in envs])
                with contextlib.suppress(ShardsLostError):  # it has the step, and tries again
                    writer.add(**hashed_steps.steps(of))
                at += 1
                self._added[number] = at
                time.sleep(0.01)
            writer.close()
        except Exception:
            self._figures.failures.append(f"writer {number}: {traceback.format_exc()}")

    def _start_learner(self) -> subprocess.Popen:
        self._board["ready"] = self._board["saving"] = 0
        script = Path(shard_learner.__file__)
        with open(self._base / "learner.log", "ab") as log:
            return subprocess.Popen(
                [
                    sys.executable, script, self._cluster.address, self._name, self._base,
                    self._checkpoints, str(self._chance.randrange(1 << 30)), self._transport,
                ],
                stdout=log, stderr=log, env=loopback_cluster.environment(),
            )  # fmt: skip

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not is_so():
            self.check()
            if time.monotonic() > until:
                raise RuntimeError(f"{self._name}: not so in {_PATIENCE_S:.0f} s: {what}")
            time.sleep(0.01)

    # -- what is killed

    def kill(self, kind: str) -> None:
        """Kill one, and wait until all is as before."""
        self._settle(set())
        pids = {
            shard["shard"]: shard["pid"] for shard in self._replay.shards() if shard["alive"]
        }  # fmt: skip
        number = self._chance.choice(sorted(pids))
        time.sleep(self._chance.uniform(0.0, 1.0))
        self._board["longest_us"] = 0
        began, gone = time.monotonic(), {number}
        if kind == "shard":
            os.kill(pids[number], signal.SIGKILL)
        elif kind == "node":
            disk = self._chance.randrange(DISKS)
            gone = {n for n in range(_SHARDS) if self._places[n] == f"disk{disk}"}
            self._cluster.kill(disk)
            time.sleep(self._chance.uniform(0.0, 3.0))
            self._cluster.start_disk(disk)
        elif kind == "save":
            self._kill_amid_save(pids[number])
            began = time.monotonic()
        elif kind == "learner":
            gone = set()
            self._learner.kill()
            self._learner.wait()
            self._learner = self._start_learner()
        else:
            import ray

            gone = set()
            ray.kill(self._replay._client.coordinator.handle, no_restart=False)
        self._settle(gone)
        wait = self._board["longest_us"] / 1e6
        where = ""
        if wait > shard_learner.LONG_S:
            where = (self._base / "learner.log").read_text()[-10_000:]
        self._figures.survived(kind, wait, time.monotonic() - began, where)

    def _kill_amid_save(self, pid: int) -> None:
        self._wait("a save", lambda: self._board["saving"] == 0)
        self._wait("a save", lambda: self._board["saving"] > 0)
        saving = self._board["saving"]
        time.sleep(self._chance.uniform(0.0, self._board["save_us"] / 1e6))
        os.kill(pid, signal.SIGKILL)
        self._figures.counts["saves over by then"] += self._board["saving"] != saving

    def _settle(self, gone: set[int]) -> None:
        """Until the learner learns, from these shards too, and all writers go on."""
        self._wait("the learner starts", lambda: bool(self._board["ready"]))
        batches, added = self._board["batches"], [w.acknowledged.copy() for w in self._writers]
        self._wait(
            f"a batch has something of shards {sorted(gone)}",
            lambda: (
                self._board["batches"] > batches + 4
                and all(self._board.last_of[number] > batches for number in gone)
            ),
        )
        self._wait("all writers go on", lambda: all(
            (writer.acknowledged > before).all()
            for writer, before in zip(self._writers, added, strict=True)
        ))  # fmt: skip

    # -- what is there

    def end(self) -> None:
        """Compare all rows, look at all checkpoints, and load the newest."""
        self._ending.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        self._board["stop"] = 1
        code, figures = self._learner.wait(_PATIENCE_S), self._figures
        if code:
            log = (self._base / "learner.log").read_text()[-3000:]
            figures.failures.append(f"the learner ended with {code}: {log}")
        if (self._base / "wrong").exists():
            figures.failures.append(f"a wrong batch: {(self._base / 'wrong').read_text()}")
        stores = [self._base / "replay" / f"shard-{n}" / "store" for n in range(_SHARDS)]
        added = [self._added[env // 2] for env in range(_ENVS)]
        self._compare("the stores", stores, added)
        figures.counts["acknowledged"] += sum(added)
        for name in ("batches", "saved", "not_saved"):
            figures.counts[name] += self._board[name]
        counts = self._compare_checkpoints()
        if counts is None or figures.failures:
            return
        self._replay.load(self._checkpoints)
        for _ in range(20):
            if wrong := hashed_steps.wrong_in(self._replay.sample(64)):
                figures.failures.append(f"a wrong batch after the load: {wrong}")
        self._compare("the loaded stores", stores, counts)
        figures.counts["loads"] += 1
        self._replay.close()
        for store in stores:
            figures.failures += [f"verify {store}: {each}" for each in verify(store).findings]

    def _compare_checkpoints(self) -> list[int] | None:
        """Every one that is published is whole; the steps of each env in the newest, None if there
        is none."""
        from diskreplay.ray.sharded_checkpoint import CheckpointDirectory

        failures, counts, named = self._figures.failures, None, set()
        there = CheckpointDirectory(self._checkpoints, self._name)
        suffixes = there.suffixes()
        if self._board["saved"] and int((suffixes or ["0"])[-1]) < self._board["saved"]:
            failures.append(f"checkpoint {self._board['saved']} was saved; there are {suffixes}")
        for suffix in suffixes:
            parts = [(Path(part["path"]), part) for part in there.read(suffix)["shards"]]
            named |= {path for path, _part in parts}
            for path, part in parts:
                digest = hashlib.sha256((path / manifest.NAME).read_bytes()).hexdigest()
                if digest != part["digest"]:
                    failures.append(f"checkpoint {suffix}: {path.name} is another one")
                failures += [f"verify {path.name}: {each}" for each in verify(path).findings]
            counts = self._compare(f"checkpoint {suffix}", [path for path, _ in parts])
            self._figures.counts["checkpoints"] += 1
        left = set(there.parts.iterdir()) - named if there.parts.exists() else set()
        self._figures.counts["parts without a checkpoint"] += len(left)
        return counts

    def _compare(self, what: str, stores: list[Path], added: list[int] | None = None) -> list[int]:
        """Every env has its first steps, each once and in their order: as many as were added, if
        that is known. How many each has."""
        failures, counts = self._figures.failures, [0] * _ENVS
        for store in stores:
            for of in self._of_envs(what, store):
                if not len(of):
                    continue
                env = hashed_steps.env_of(int(of[0]))
                if counts[env]:
                    failures.append(f"{what}: env {env} is there twice")
                counts[env] = len(of)
                expected = hashed_steps.numbers(env, len(of))
                if not np.array_equal(of, expected):
                    at = int((of != expected).argmax())
                    failures.append(f"{what}: env {env} has {of[at]} where {expected[at]} belongs")
        if added is not None and counts != added:
            failures.append(f"{what}: the envs have {counts} steps, and {added} were acknowledged")
        return counts

    def _of_envs(self, what: str, store: Path) -> Iterator[np.ndarray]:
        """The numbers of the steps of each env, whose rows are compared."""
        with diskreplay.open(store) as buffer:
            names = list(buffer.fields)
            for env, (first, stop) in enumerate(buffer.bounds.tolist()):
                found = [np.empty(0, np.int64)]
                for start in range(first, stop, _AT_ONCE):
                    rows = np.arange(start, min(start + _AT_ONCE, stop))
                    taken = buffer.take(names, rows * buffer.num_envs + env)
                    columns = dict(zip(names, taken, strict=True))
                    steps = ~columns["is_final"]
                    columns = {name: values[steps] for name, values in columns.items()}
                    if wrong := hashed_steps.wrong_rows(columns["number"], columns):
                        self._figures.failures.append(f"{what}: {store.name}, env {env}: {wrong}")
                    found.append(columns["number"])
                    self._figures.counts["rows compared"] += len(rows)
                yield np.concatenate(found)
