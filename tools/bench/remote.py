"""What a push and a pull of a million frames cost: requests, bytes, processor time.

    python tools/bench/remote.py [--rows 1000000] [--envs 1 256] [--servers moto seaweedfs azurite]

A full buffer of 84x84 lz4 frames is pushed to a server on this machine; with a tenth of its rows
more again; then pulled. Needs moto or SeaweedFS, pip install "diskreplay[servers]", or Azurite,
tools/azurite.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from many_envs import frames

import diskreplay
from diskreplay.remote import RemoteCheckpoints
from tests.remote import servers


class Requests:
    """Counts the puts and gets of one `RemoteCheckpoints`, and the bytes put."""

    def __init__(self, remote: RemoteCheckpoints) -> None:
        self.puts = self.gets = self.bytes = 0
        bucket = remote._bucket
        for name in ("create", "swap", "put"):
            setattr(bucket, name, self._put(getattr(bucket, name)))
        for name in ("get", "pieces", "get_range", "size"):
            setattr(bucket, name, self._get(getattr(bucket, name)))

    def _put(self, call):
        def counted(key, data, *more):
            self.puts += 1
            self.bytes += len(data)
            return call(key, data, *more)

        return counted

    def _get(self, call):
        def counted(*args):
            self.gets += 1
            return call(*args)

        return counted

    def said(self) -> str:
        """The figures since the last time."""
        text = f"{self.puts} PUTs, {self.gets} GETs, {self.bytes / 1e6:.1f} MB"
        self.puts = self.gets = self.bytes = 0
        return text


def record(directory: Path, envs: int, rows: int):
    """Yields a full buffer, and then with 100,000 rows more."""
    shown = frames(512)
    with diskreplay.ReplayBuffer(
        directory / "store", observation_space=Box(0, 255, (84, 84), "uint8"), seed=0,
        action_space=Discrete(4), capacity=rows, num_envs=envs, compressor="lz4",
    ) as buffer:  # fmt: skip
        no = np.zeros(envs, bool)
        ones = np.ones(envs)
        number = 0
        for more in (rows, rows // 10):
            for _ in range(more // envs):
                number += 1
                if envs == 1:
                    buffer.add(shown[number % 512], number % 4, 1.0, False, False)
                else:
                    at = (np.arange(envs) * 3 + number) % 512
                    buffer.add(shown[at], ones.astype(int), ones, no, no)
            yield buffer


def measure(endpoint: str, server: str, envs: int, rows: int) -> None:
    bucket = servers.served(server, endpoint)
    url = f"{bucket.url}/{envs}-{time.time_ns()}"
    with tempfile.TemporaryDirectory(prefix="remote-") as place:
        directory = Path(place)
        remote = RemoteCheckpoints(url, storage_options=bucket.options)
        requests = Requests(remote)
        for number, buffer in enumerate(record(directory, envs, rows)):
            path = buffer.save(directory / "checkpoints", number)
            files = [file for file in path.rglob("*") if file.is_file()]
            began, used = time.perf_counter(), time.process_time()
            remote.push(path)
            took, cpu = time.perf_counter() - began, time.process_time() - used
            what = "first push" if not number else f"after {rows // 10:,} more"
            print(
                f"{server}, {envs} envs, {what}: {len(files):,} files, {requests.said()}, "
                f"{took:.1f} s, {cpu:.2f} s of this process",
                flush=True,
            )
        began, used = time.perf_counter(), time.process_time()
        remote.pull(directory=directory / "pulled")
        took, cpu = time.perf_counter() - began, time.process_time() - used
        print(f"{server}, {envs} envs, pull: {requests.said()}, {took:.1f} s, {cpu:.2f} s",
              flush=True)  # fmt: skip
        group = remote.zarr()
        requests.said()
        rng = np.random.default_rng(0)
        for at in rng.integers(0, rows // envs, 40):
            group["observation"][int(at), 0]
        print(f"{server}, {envs} envs, 40 frames read lazily: {requests.said()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--envs", nargs="*", type=int, default=[1, 256])
    parser.add_argument("--servers", nargs="*", default=["moto", "seaweedfs"])
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for server in options.servers:
        with getattr(servers, server)() as found:
            endpoint = found[0] if server == "moto" else found
            for envs in options.envs:
                measure(endpoint, server, envs, options.rows)


if __name__ == "__main__":
    main()
