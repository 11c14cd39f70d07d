"""Small file systems of a test's own.

They are mounted in a namespace of one process. So no other process sees them, and they are gone
with it, however it ends: one that stayed behind could not be removed with the files of old tests.
"""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# In a namespace of users, too, where anybody may mount.
_ALONE = ("unshare", "--map-root-user", "--mount", "--propagation", "private")


needs_leases = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases of files")


@functools.cache
def can_mount():
    """Whether this system lets a process mount in a namespace of its own."""
    try:
        tried = subprocess.run(
            [*_ALONE, "mount", "-t", "tmpfs", "diskreplay-test", "/mnt"],
            capture_output=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return False
    return tried.returncode == 0


def alone(*arguments):
    """The command that runs Python with these arguments where `mount` may be called, and the
    options of `subprocess` for it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return [*_ALONE, sys.executable, *map(str, arguments)], {"env": environment, "text": True}


def mount(path, *options):
    """A file system in memory at `path`, in a process that `alone` started. With the option
    ``remount`` the one that is there changes."""
    options = ",".join(options)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "diskreplay-test", path], check=True)
