"""For all tests."""

import gc
import multiprocessing
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

# Set for the workers of a parallel run: texts would be broken to the width of somebody's terminal.
os.environ.pop("COLUMNS", None)

# Each of several workers, and of the processes that tests start, would have threads for all cores,
# which wait for each other busily. NumPy and PyTorch read it when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torchrl has all processes spawned from its import on, if nobody has said how they are started.
multiprocessing.get_start_method()  # which fixes it

# What a shell runs in the background without job control ignores Ctrl-C, and so would all processes
# that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of small files are synced and removed again: in memory, where the system has a directory
# with room for them, that does not wait for a disk. TMPDIR=/tmp runs the tests on one.
MEMORY, ROOM = "/dev/shm", 2 << 30
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
    if shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

# One commit, one verdict: the same examples each time, however long one takes.
# HYPOTHESIS_PROFILE=long looks for others.
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("long", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Directories made for single examples go with their test, as `tmp_path` does: not at the end
    of all."""
    made, mktemp = [], pytest.TempPathFactory.mktemp

    def noted(*arguments, **options):
        made.append(mktemp(*arguments, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pytest.TempPathFactory, "mktemp", noted)
        result = yield
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    return result


def pytest_collection_finish():
    """What is there by now stays until the end: no collection of garbage is to look at it again,
    which takes a third of a second where PyTorch and the like are imported."""
    gc.collect()
    gc.freeze()
