"""For all tests."""

import contextlib
import gc
import importlib
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import zlib

import pytest
from hypothesis import settings

from tests.copies import copy_tree
from tests.effort import LONG, PROFILE, has_clusters, too_many

# Set for the workers of a parallel run: texts would be broken to the width of somebody's terminal.
os.environ.pop("COLUMNS", None)

# Each of several workers, and of the processes that tests start, would have threads for all cores,
# which wait for each other busily. NumPy and PyTorch read it when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray reads these once in a process. With the first, a late call of a thread starts no cluster. The
# second is for all clusters of a process: in one that has used tokens (what `ray.init` does by
# itself), Ray refuses for good what a cluster without them (as of `ray start`) asks of it.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

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

# Stable-Baselines3 makes a directory for the log of each agent there, and leaves it.
os.environ.setdefault("SB3_LOGDIR", os.path.join(tempfile.gettempdir(), f"sb3-logs-{os.getuid()}"))

# A forked child collects no garbage of its parent: that may be a client of another library whose
# threads are not in the child, and which crashes when it is destroyed there. Two children of an
# AsyncVectorEnv did, on Python 3.11 and 3.13.
os.register_at_fork(
    before=gc.disable,
    after_in_parent=gc.enable,
    after_in_child=lambda: (gc.freeze(), gc.enable()),
)

# One commit, one verdict: the same examples each time, however long one takes.
# HYPOTHESIS_PROFILE=long looks for others.
for profile in ("same", "whole", "long"):
    settings.register_profile(
        profile, derandomize=profile != "long", deadline=None, print_blob=True
    )
settings.load_profile(PROFILE)


def pytest_ignore_collect(collection_path, config):
    """`.ci/run` asks for the tests of clusters apart: no other file is imported for them, which
    takes each worker a quarter of a minute."""
    of_others = config.option.markexpr == "cluster" and not has_clusters(collection_path)
    return True if of_others else None


def pytest_collection_modifyitems(config, items):
    """What takes long is left out, if it is not named and this is not `.ci/run`."""
    if any("::" in argument for argument in config.args):
        return
    if left := set(too_many(items)):
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Also what nobody seeds is the same each time: the samples of a space without a seed, the
    draws of a buffer without one. Else a test that is wrong for one seed of a thousand fails some
    day, and nobody can have that failure again. Other processes are not reached."""
    if LONG:
        return (yield)
    import numpy as np  # not above, where the number of its threads is not set yet

    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (older libraries draw from it)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    with pytest.MonkeyPatch.context() as patched:
        # NumPy asks this function of the system for the entropy of what has no seed.
        patched.setattr(np.random.bit_generator, "randbits", random.Random(seed).getrandbits)
        return (yield)


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


_made = {}


@pytest.fixture
def filled(tmp_path, tmp_path_factory):
    """Fill `tmp_path` with what a function makes, ``filled(make, ...)``: it is called once, with a
    directory, and each test gets a copy. For what is closed then."""

    def fill(make, *arguments):
        if (make, arguments) not in _made:
            # Not by `mktemp`: where a test asks for its fixture by name while it runs, it would go
            # with that test, and the next one would have nothing to copy.
            directory = pathlib.Path(
                tempfile.mkdtemp(prefix="made-", dir=tmp_path_factory.getbasetemp())
            )
            make(directory, *arguments)
            _made[make, arguments] = directory
        copy_tree(_made[make, arguments], tmp_path)

    return fill


def compile_a_share(worker, workers):
    """Compile what one of several workers is to compile of all kernels: else each would compile
    the same in its first tests, where none are kept yet."""
    from diskreplay import jit
    from diskreplay.cli.warmup import MODULES

    for module in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"diskreplay.{module}")
    for each, signatures in list(jit.kernels.items())[worker::workers]:
        for arguments in signatures:
            each.compile(f"({arguments},)")


def pytest_collection_finish(session):
    """What is there by now stays until the end: no collection of garbage is to look at it again,
    which takes a third of a second where PyTorch and the like are imported. And it is looked for
    garbage less often: a test makes and drops many objects that are none."""
    if hasattr(session.config, "workerinput"):
        found = session.config.workerinput
        compile_a_share(int(found["workerid"].removeprefix("gw")), found["workercount"])
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture
def no_upkeep(monkeypatch):
    """Stores whose maintenance thread never runs: the test says when its work is done."""
    from diskreplay.store.maintenance import Maintenance

    monkeypatch.setattr(Maintenance, "wake", lambda self: None)
