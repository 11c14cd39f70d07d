"""What tests mount goes with their process."""

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


def test_what_killed_runs_left_mounted_disturbs_no_later_one(tmp_path):
    command, options = alone("-c", LATER, tmp_path, getpass.getuser(), ROOT)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
