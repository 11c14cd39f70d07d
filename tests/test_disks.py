"""What tests mount goes with their process; small disks that are full."""

import getpass
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.disks import ROOT, alone, can_mount

HOLD = """
import sys
from tests.disks import mount
mount(sys.argv[1], "size=1m")
open(sys.argv[1] + "/file", "w").close()
print("mounted", flush=True)
sys.stdin.read()
"""

# Runs pytest in a directory where two older runs were killed with their disks mounted.
LATER = """
import os, subprocess, sys
from pathlib import Path
from tests.disks import mount
place = Path(sys.argv[1])
for number in range(3):
    disk = place / f"pytest-of-{sys.argv[2]}/pytest-{number}/test_0/disk"
    disk.mkdir(parents=True)
    if number < 2:
        mount(disk, "size=1m")
        (disk / "file").touch()
done = subprocess.run(
    [sys.executable, *"-m pytest -q -p no:cacheprovider -n 0 tests/store/test_files.py".split()],
    cwd=sys.argv[3], env=os.environ | {"TMPDIR": str(place)}, capture_output=True, text=True,
)
print(done.stdout, done.stderr)
sys.exit(done.returncode)
"""

# Opens a copy of a closed store that has holes where zeros were, and adds until the disk is full.
WITH_HOLES = """
import subprocess, sys
from pathlib import Path
import numpy as np
from gymnasium.spaces import Box, Discrete
import diskreplay
from tests.disks import mount

def opened(path):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (84, 84), "uint8"), action_space=Discrete(2),
        capacity=None, compressor=sys.argv[2], segment_rows=256, seed=0,
    )

def add(buffer):
    number = buffer.add_count
    observation = np.full((84, 84), number % 250 + 1, "uint8")
    buffer.add(observation, number % 2, float(number), number % 50 == 49, False)

disk = Path(sys.argv[1])
mount(disk, "size=12m")
with opened(disk / "original") as buffer:
    for _ in range(100):
        add(buffer)
subprocess.run(["cp", "-r", "--sparse=always", disk / "original", disk / "copy"], check=True)
subprocess.run(["rm", "-r", disk / "original"], check=True)
buffer = opened(disk / "copy")
try:
    with open(disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
except OSError:
    pass
try:
    while True:
        add(buffer)
except diskreplay.DiskFullError:
    added = buffer.add_count
(disk / "ballast").unlink()
add(buffer)
rows = np.arange(added + 1)
np.testing.assert_array_equal(buffer.take("reward", rows), rows)
frames = buffer.take("observation", rows)
np.testing.assert_array_equal(frames[:, 7, 7], rows % 250 + 1)
buffer.close()
print("added", added)
"""

# Reads the zeros of rows that are older than their extra, where no page is left to put one into.
ZEROS = """
import sys
from pathlib import Path
import numpy as np
from gymnasium.spaces import Box, Discrete
import diskreplay
from tests.disks import mount

def opened(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(-1, 1, (3,)), action_space=Discrete(2), capacity=1000,
        segment_rows=64, **options,
    )

disk = Path(sys.argv[1])
mount(disk, "size=8m")
with opened(disk / "store") as buffer:
    for _ in range(300):
        buffer.add(np.zeros(3, "float32"), 0, 1.0, False, False)
extras = {"v": ((256,), "float32"), "m": ((256,), "float32", "mutable")}
opened(disk / "store", extras=extras, new_extras=list(extras)).close()
try:
    with open(disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
except OSError:
    pass
with diskreplay.open(disk / "store") as reader:
    for name in extras:
        assert not reader.take(name, np.arange(300)).any()
print("read")
"""

# Saves to a full disk with attachments whose functions say of it what libraries do, or nothing.
ATTACHING = """
import os, sys
from pathlib import Path
from gymnasium.spaces import Box, Discrete
import diskreplay
from tests.disks import mount

def silent(path):
    try:
        path.write_bytes(os.urandom(2_000_000))
    except OSError:
        pass
    raise RuntimeError("unexpected pos 832 vs 726")

def broken(path):
    raise RuntimeError("no network")

disk = Path(sys.argv[1])
mount(disk, "size=8m")
buffer = diskreplay.ReplayBuffer(
    disk / "store", observation_space=Box(-1, 1, (3,)), action_space=Discrete(2), capacity=100,
)
for _ in range(20):
    buffer.add(buffer.observation_space.sample(), 0, 1.0, False, False)
about = os.statvfs(disk)
with open(disk / "ballast", "wb") as ballast:
    os.posix_fallocate(ballast.fileno(), 0, about.f_bavail * about.f_frsize - 1_000_000)
writers = [lambda path: path.write_bytes(os.urandom(2_000_000)), silent, broken]
for writer in writers:
    try:
        buffer.save(disk / "saved", 1, attachments={"agent.pt": writer})
    except diskreplay.DiskReplayError as error:
        print(type(error).__name__, type(error.__cause__).__name__)
(disk / "ballast").unlink()
path = buffer.save(disk / "saved", 1, attachments={"agent.pt": writers[0]})
print([p.name for p in path.parent.iterdir()])
buffer.close()
"""


@pytest.fixture(autouse=True)
def _namespaces():
    if not can_mount():
        pytest.skip("no namespaces in which to mount")


def test_a_killed_process_leaves_nothing_mounted(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command, options = alone("-c", HOLD, disk)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    with process:
        assert process.stdout.readline() == "mounted\n"
        assert not list(disk.iterdir())  # it is not ours even while it lives
        assert str(disk) not in Path("/proc/self/mountinfo").read_text()
        process.kill()
    shutil.rmtree(disk)


@pytest.mark.costly
def test_what_killed_runs_left_mounted_disturbs_no_later_one(tmp_path):
    command, options = alone("-c", LATER, tmp_path, getpass.getuser(), ROOT)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_store_whose_copy_has_holes_meets_a_full_disk(tmp_path, compressor):
    disk = tmp_path / "disk"
    disk.mkdir()
    command, options = alone("-c", WITH_HOLES, disk, compressor)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    assert int(done.stdout.split()[1]) > 100


def test_a_full_disk_is_told_of_whatever_writes_an_attachment(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command, options = alone("-c", ATTACHING, disk)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    assert done.stdout.splitlines() == [
        "DiskFullError OSError",
        "DiskFullError RuntimeError",
        "AttachmentError RuntimeError",
        "['replay_ckpt.1']",
    ]


def test_the_zeros_of_a_new_extra_can_be_read_where_memory_is_full(tmp_path):
    """A file system in memory gives a page of a hole memory when it is read through a mapping: the
    process died of SIGBUS."""
    command, options = alone("-c", ZEROS, tmp_path)
    done = subprocess.run(command, capture_output=True, cwd=ROOT, **options, check=False)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
