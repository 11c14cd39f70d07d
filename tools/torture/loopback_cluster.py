"""A Ray cluster on loopback whose nodes can be killed with all of their processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
_TRIES = 4
HOST = "127.0.0.2"
"""Of the head; Ray takes 127.0.0.1 to mean the address that other machines see."""

ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # else an actor would not come to run beside other processes
    "RAY_raylet_start_wait_time_s": "90",  # beside busy processes
    "RAY_AUTH_MODE": "disabled",  # `ray start` and `ray.init` differ in what they assume, and a
    # process that has used tokens once refuses for good whoever has none
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else a late call of a thread starts a cluster of its own
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # else a process that Ray Client's proxy forks amid a call of
    # gRPC now and then ends before its first line: 3 of 10 runs
    "OMP_NUM_THREADS": "1",
}
"""Of every process of the cluster, and of those that connect to it."""


class LoopbackCluster:
    """A head node with a resource ``head``, and nodes that each have one ``disk<number>``.

    The nodes are started by ``ray start``, as those of machines are. Nothing is written where
    another cluster of this machine would find it.

    Parameters
    ----------
    disks : int
        Nodes beside the head.
    object_store : int
        Bytes of each node.
    environment : dict, optional
        More of it, for the nodes.
    """

    def __init__(
        self, disks: int, object_store: int = 100 << 20, environment: dict[str, str] | None = None
    ) -> None:
        self._sessions = Path(tempfile.mkdtemp(prefix="dr-", dir="/tmp"))  # sockets: a short path
        self._store, self._more = object_store, environment or {}
        self._nodes: dict[int | str, int] = {}  # the session of its processes
        port, client_port = _free_port(), _free_port()
        self.address = f"{HOST}:{port}"
        self.client_address = f"ray://{HOST}:{client_port}"
        try:
            self._start(
                "head", "--head", f"--port={port}", f"--temp-dir={self._sessions}",
                f"--ray-client-server-port={client_port}", "--include-dashboard=false",
                '--resources={"head": 100}',
            )  # fmt: skip
            for number in range(disks):
                self.start_disk(number)
        except BaseException:
            self.close()
            raise

    def start_disk(self, number: int) -> None:
        """Start a node."""
        resources = json.dumps({f"disk{number}": 100})
        host = f"127.0.0.{3 + number}"
        self._start(number, f"--address={self.address}", f"--resources={resources}", host=host)

    def _start(self, name: int | str, *arguments: str, host: str = HOST) -> None:
        path = self._sessions / f"{name}.log"
        for _ in range(_TRIES):
            with open(path, "ab") as log:
                starter = subprocess.Popen(
                    [
                        sys.executable, "-m", "ray.scripts.scripts", "start",
                        f"--node-ip-address={host}", "--num-cpus=4", "--disable-usage-stats",
                        f"--dashboard-agent-listen-port={_free_port()}",
                        f"--object-store-memory={self._store}", *arguments,
                    ],
                    stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT,
                    env=environment() | self._more, start_new_session=True,
                )  # fmt: skip
            self._nodes[name] = starter.pid
            if starter.wait() == 0:
                return
            self.kill(name)  # now and then a raylet hangs while it starts
        raise RuntimeError(f"node {name} did not start: {path.read_text()[-2000:]}")

    def kill(self, name: int | str) -> None:
        """SIGKILL every process of a node, as when its power goes out."""
        session = self._nodes.pop(name)
        found: set[int] = set()
        while more := _members(session) - found:  # stopped ones start no others
            for pid in more:
                _signal(pid, signal.SIGSTOP)
            found |= more
        for pid in found:
            _signal(pid, signal.SIGKILL)
        while _members(session):
            time.sleep(0.05)

    def processes(self) -> set[int]:
        """Those of all nodes."""
        return {pid for session in self._nodes.values() for pid in _members(session)}

    def close(self) -> None:
        """End all nodes, and remove what they wrote."""
        for name in list(self._nodes):
            self.kill(name)
        shutil.rmtree(self._sessions, ignore_errors=True)

    def __enter__(self) -> LoopbackCluster:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def environment() -> dict[str, str]:
    """For a process of the cluster, or one that connects to it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | ENVIRONMENT | {"PYTHONPATH": path}


def connect(address: str) -> Any:
    """Ray, connected; once all nodes are there, `wait_for_disks`."""
    os.environ.update(ENVIRONMENT)  # some of it Ray reads as it is imported
    import ray  # takes seconds

    ray.init(
        address=address, _node_ip_address=HOST, logging_level="ERROR", log_to_driver=False
    )  # fmt: skip
    return ray


def wait_for_disks(ray: Any, count: int) -> None:
    """Until so many nodes beside the head are there."""
    until = time.monotonic() + PATIENCE_S
    while True:
        alive = [node for node in ray.nodes() if node["Alive"]]
        there = [node for node in alive if any(r.startswith("disk") for r in node["Resources"])]
        if len(there) >= count:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"{len(there)} of {count} nodes came")
        time.sleep(0.2)


def _members(session: int) -> set[int]:
    """The processes of a session and what they started; without zombies."""
    parents, found = {}, set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
                if int(fields[3]) == session:
                    found.add(int(entry.name))
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _signal(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return  # it has ended


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
