"""A file system that is filled to the last byte while a buffer records and saves, then freed."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import DiskFullError
from tests.disks import alone, mount

SIZE = 20 << 20
FRAME = (64, 64)
CAPACITY = 2000


def make(path, compressor):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, FRAME, "uint8"), action_space=Discrete(4),
        capacity=CAPACITY, compressor=compressor, segment_rows=64, batch_size=8, seed=1,
    )  # fmt: skip


def frame(number):
    return np.random.default_rng(number).integers(0, 256, FRAME, np.uint8)


def add(buffer):
    number = buffer.add_count
    buffer.add(frame(number), number % 4, float(number), number % 50 == 49, False)


def add_many(buffer):
    for _ in range(5 * CAPACITY):
        add(buffer)


def check(buffer, added):
    """Every row that was acknowledged and retained, byte for byte."""
    assert buffer.add_count == added
    rows = np.arange(max(0, added - CAPACITY), added)
    np.testing.assert_array_equal(buffer.take("reward", rows), rows)
    for row in rows[:: max(1, len(rows) // 60)].tolist():
        np.testing.assert_array_equal(buffer.take("observation", np.array([row]))[0], frame(row))


def fill(path):
    """Take all the space there is."""
    with open(path, "ab", buffering=0) as ballast:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(size))
    free = os.statvfs(path.parent)
    assert free.f_bavail == 0


def filled_while_recording(disk, compressor):
    """Full between two steps: `add` goes on while it has room, then refuses, and loses nothing."""
    path, ballast = disk / "store", disk / "ballast"
    buffer = make(path, compressor)
    for _ in range(300):
        add(buffer)
    fill(ballast)
    with pytest.raises(DiskFullError, match="free some space"):
        add_many(buffer)
    added = buffer.add_count
    check(buffer, added)
    buffer.sample()
    for _ in range(3):
        with pytest.raises(DiskFullError):
            add(buffer)
    assert buffer.add_count == added
    ballast.unlink()
    for _ in range(200):
        add(buffer)
    check(buffer, added + 200)
    fill(ballast)
    with contextlib.suppress(DiskFullError):  # a record may find room where another file was
        buffer.flush()
    ballast.unlink()
    buffer.flush()
    buffer.close()
    assert [str(f) for f in verify(path).findings] == []
    with make(path, compressor) as buffer:
        check(buffer, added + 200)


def filled_while_saving(disk, compressor):
    """A save that finds no room leaves no half checkpoint, and the older one whole."""
    path, saved, ballast = disk / "store", disk / "checkpoints", disk / "ballast"
    buffer = make(path, compressor)
    for _ in range(100):
        add(buffer)
    buffer.save(saved, 1)
    for _ in range(100):
        add(buffer)
    fill(ballast)
    for suffix in (1, 2):
        with pytest.raises(DiskFullError):
            buffer.save(saved, suffix)
        assert [p.name for p in saved.iterdir()] == ["replay_ckpt.1"]
        assert verify(saved / "replay_ckpt.1").findings == ()
    with diskreplay.open(saved / "replay_ckpt.1") as old:
        check(old, 100)
    with pytest.raises(DiskFullError):
        buffer.load(saved, 1)
    check(buffer, 200)
    with contextlib.suppress(DiskFullError):
        buffer.close()
    ballast.unlink()
    buffer.close()
    fill(ballast)
    with contextlib.suppress(DiskFullError):  # opening needs a little room, or none
        make(path, compressor).close()
    ballast.unlink()
    with make(path, compressor) as buffer:
        check(buffer, 200)
        buffer.save(saved, 2)
        for _ in range(100):
            add(buffer)
        buffer.load(saved, 1)
        check(buffer, 100)
        buffer.load(saved, 2)
        check(buffer, 200)
    assert [str(f) for f in verify(path).findings] == []


def filled_by_recording(disk, compressor):
    """The store itself fills the disk; rows leave with their segments, so it goes on by itself."""
    path, ballast = disk / "store", disk / "ballast"
    ballast.write_bytes(bytes(SIZE - (6 << 20)))
    buffer = make(path, compressor)
    with pytest.raises(DiskFullError):
        add_many(buffer)
    added = buffer.add_count
    check(buffer, added)
    ballast.unlink()
    while buffer.add_count < 2 * CAPACITY:
        add(buffer)
    check(buffer, 2 * CAPACITY)
    buffer.close()
    assert [str(f) for f in verify(path).findings] == []


CASES = [filled_while_recording, filled_while_saving, filled_by_recording]


def run_all(disk):
    """In a process that may mount: each case on the whole disk."""
    for compressor in ("lz4", "raw"):
        for case in CASES:
            place = disk / f"{case.__name__}-{compressor}"
            place.mkdir()
            mount(place, f"size={SIZE}")
            case(place, compressor)
            subprocess.run(["umount", "--lazy", place], check=True)
            print(case.__name__, compressor)


@pytest.mark.costly
def test_on_a_small_disk(tmp_path):
    """In a namespace of its own, where anybody may mount."""
    command, options = alone(__file__, tmp_path)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 2 * len(CASES)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
