"""Records and samples frames in a memory cgroup, beside a buffer that is an `np.memmap`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FRAME, STACK, BATCH = (84, 84), 4, 32
KINDS = ("diskreplay lz4", "diskreplay raw", "np.memmap")
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_TIMEOUT_S = 7200


def run(
    *,
    frames: int = 100_000,
    limit_mib: int = 512,
    batches: int = 1000,
    kinds: tuple[str, ...] = KINDS,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Each kind of buffer in a process of its own, held to `limit_mib`, page cache included.

    Returns
    -------
    dict
        ``confined_by``, the figures of each kind, and ``failures``. Where a process cannot be held
        (no cgroup may be made, and there is no systemd), ``confined_by`` is None, and that is a
        failure: resource limits do not count the page cache.
    """
    figures: dict[str, Any] = {
        "frames": frames, "limit_mib": limit_mib, "raw_mib": frames * 7056 / 2**20,
        "confined_by": None, "failures": [],
    }  # fmt: skip
    for kind in kinds:
        say(kind)
        with (
            tempfile.TemporaryDirectory(prefix="torture-", dir=directory) as base,
            _confined(limit_mib << 20) as (how, prefix, enter),
        ):
            if how is None:
                figures["failures"].append("no memory cgroup can be made here")
                return figures
            figures["confined_by"] = how
            done = subprocess.run(
                [*prefix, sys.executable, __file__, kind, str(frames), str(batches), base],
                capture_output=True, text=True, preexec_fn=enter, timeout=_TIMEOUT_S, check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        if done.returncode:
            why = "killed for memory" if done.returncode in (-9, 137) else done.stderr[-800:]
            figures["failures"].append(f"{kind}: {why}")
        else:
            figures[kind] = json.loads(done.stdout)
    return figures


@contextlib.contextmanager
def _confined(limit: int) -> Iterator[tuple[str | None, list[str], Callable[[], None] | None]]:
    """How to start a process that gets no more memory: a prefix of its command, or something to
    call in it first."""
    name = f"diskreplay-torture-{os.getpid()}"
    for root, knob in ((_V1, "memory.limit_in_bytes"), (_V2, "memory.max")):
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / knob).write_text(str(limit))
            swap = group / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            procs = os.fspath(group / "cgroup.procs")

            def enter(procs: str = procs) -> None:
                with open(procs, "w") as file:
                    file.write(str(os.getpid()))

            yield f"cgroup {'v1' if root == _V1 else 'v2'}", [], enter
            return
        except FileNotFoundError:
            continue  # no memory controller there
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    if shutil.which("systemd-run"):
        prefix = ["systemd-run", "--quiet", "--scope", "-p", f"MemoryMax={limit}",
                  "-p", "MemorySwapMax=0"]  # fmt: skip
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            yield "systemd-run", prefix, None
            return
    yield None, [], None


# -- in the process that is confined


class _Game:
    """Frames that move and pack as those of a game do; each one's number is in it."""

    def __init__(self) -> None:
        self._screen = np.full(FRAME, 87, np.uint8)
        self._screen[:14] = np.random.default_rng(0).integers(0, 256, (14, FRAME[1]))

    def frame(self, i: int) -> np.ndarray:
        made = self._screen.copy()
        made[20 + i % 50 : 24 + i % 50, 5:8] = 236
        made[30 + i * 7 % 50, i * 5 % 80 : i * 5 % 80 + 3] = 200
        made[14, :8] = np.frombuffer(np.int64(i).tobytes(), np.uint8)
        return made


def _numbers(frames: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(frames[..., 14, :8]).view(np.int64)[..., 0]


class _DiskReplay:
    def __init__(self, path: Path, frames: int, compressor: str) -> None:
        from gymnasium.spaces import Box, Discrete

        import diskreplay

        self._buffer = diskreplay.ReplayBuffer(
            path, observation_space=Box(0, 255, FRAME, "uint8"), action_space=Discrete(6),
            capacity=frames, stack_size=STACK, compressor=compressor, batch_size=BATCH, seed=0,
        )  # fmt: skip

    def add(self, i: int, frame: np.ndarray) -> None:
        self._buffer.add(frame, i % 6, 0.0, False, False)

    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        batch = self._buffer.sample()
        return batch.id, batch.observation

    def close(self) -> None:
        self._buffer.close()


class _Memmap:
    """What people write by hand: one array on disk, and a fancy index for a batch."""

    def __init__(self, path: Path, frames: int, _compressor: str) -> None:
        self._frames = np.memmap(path, np.uint8, "w+", shape=(frames, *FRAME))
        self._rng = np.random.default_rng(0)

    def add(self, i: int, frame: np.ndarray) -> None:
        self._frames[i] = frame

    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        ids = self._rng.integers(STACK, len(self._frames) - 1, BATCH)
        windows = ids[:, None] + np.arange(1 - STACK, 2)
        return ids, self._frames[windows][:, :STACK]

    def close(self) -> None:
        self._frames.flush()


def _work(kind: str, frames: int, batches: int, directory: Path) -> dict[str, Any]:
    maker = _Memmap if kind == "np.memmap" else _DiskReplay
    game = _Game()
    buffer = maker(directory / "buffer", frames, kind.rpartition(" ")[2])
    began = time.perf_counter()
    longest = 0.0
    for i in range(frames):
        frame = game.frame(i)
        started = time.perf_counter()
        buffer.add(i, frame)
        longest = max(longest, time.perf_counter() - started)
    recorded = time.perf_counter() - began
    times = []
    for _ in range(batches):
        started = time.perf_counter()
        ids, observation = buffer.sample()
        times.append(time.perf_counter() - started)
        assert (_numbers(observation[:, -1]) == ids).all(), "a batch holds other frames"
    buffer.close()
    size = sum(
        path.stat().st_blocks * 512 for path in (directory, *directory.rglob("*")) if path.is_file()
    )
    return {
        "frames_per_s": frames / recorded,
        "longest_add_ms": 1000 * longest,
        "batch_us_median": 1e6 * float(np.median(times)),
        "batch_us_p99": 1e6 * float(np.quantile(times, 0.99)),
        "batches_compared": batches,
        "disk_mib": size / 2**20,
    }


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
