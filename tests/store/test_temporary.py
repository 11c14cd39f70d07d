"""Temporary stores: whose they are, and when they go."""

import errno
import multiprocessing
import os
import signal
import subprocess

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.store import file_locks, files, store
from tests import processes

OPTIONS = {"observation_space": Discrete(9), "action_space": Discrete(3), "capacity": 100}
WRITER = """
import sys, time
import diskreplay
from gymnasium.spaces import Box, Discrete
buffer = diskreplay.ReplayBuffer(
    None, observation_space=Discrete(9), action_space=Discrete(3), capacity=100)
buffer.add(1, 1, 0.0, False, False)
print(buffer.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def stores(temporary):
    return sorted(path.parent for path in temporary.glob("diskreplay-*/.*/replay/zarr.json"))


def writer():
    process = processes.Process(WRITER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return process, process.stdout.readline().strip()


def test_the_next_store_removes_that_of_a_killed_process(temporary):
    killed, path = writer()
    living, other = writer()
    assert len(stores(temporary)) == 2
    killed.kill()
    killed.communicate()
    with diskreplay.ReplayBuffer(None, **OPTIONS) as buffer:
        assert not os.path.exists(path)
        assert sorted(map(str, stores(temporary))) == sorted([other, str(buffer.path)])
        assert (temporary / f"diskreplay-{os.geteuid()}").stat().st_mode & 0o777 == 0o700
    living.communicate()
    assert living.returncode == 0
    assert list((temporary / f"diskreplay-{os.geteuid()}").iterdir()) == []


def test_a_store_of_this_process_is_not_another_ones_to_remove(temporary):
    with diskreplay.ReplayBuffer(None, **OPTIONS) as one:
        one.add(1, 1, 0.0, False, False)
        with diskreplay.ReplayBuffer(None, **OPTIONS) as other:
            assert stores(temporary) == sorted([one.path, other.path])
        assert len(one) == 0
        assert stores(temporary) == [one.path]
    assert stores(temporary) == []


def _in_a_child(buffer):
    # The number of the parent's lock may be another file's here, and has to stay open.
    mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    del buffer
    with diskreplay.ReplayBuffer(None, **OPTIONS) as own:
        own.add(1, 1, 0.0, False, False)
    for fd in mine:
        os.fstat(fd)
    os._exit(0)


def test_a_forked_child_leaves_its_parents_store_alone(temporary):
    buffer = diskreplay.ReplayBuffer(None, **OPTIONS)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_in_a_child, args=(buffer,))
    child.start()
    child.join(400)
    assert child.exitcode == 0
    assert stores(temporary) == [buffer.path]
    buffer.add(1, 1, 0.0, False, False)
    buffer.close()
    assert stores(temporary) == []


def test_a_child_that_outlives_its_parent_does_not_keep_the_store(temporary):
    code = WRITER.replace(
        "sys.stdin.read()",
        "import os, signal\n"
        "if os.fork(): signal.pause()\n"
        "print('the child lives', flush=True)\n"
        "sys.stdin.read()",
    )
    with processes.Process(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        path = process.stdout.readline().strip()
        # The child lets go of the lock that it inherited when its fork returns. A parent that is
        # killed before that leaves a lock that is still held.
        said = process.stdout.readline()
        process.kill()
        assert said == "the child lives\n"
        assert process.wait() == -signal.SIGKILL
        with diskreplay.ReplayBuffer(None, **OPTIONS):
            assert not os.path.exists(path)


def test_what_others_could_change_is_not_used(temporary):
    shared = temporary / f"diskreplay-{os.geteuid()}"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    with diskreplay.ReplayBuffer(None, **OPTIONS) as buffer:
        assert not buffer.path.is_relative_to(shared)
        buffer.add(1, 1, 0.0, False, False)
    assert list(shared.iterdir()) == []


def test_one_that_is_being_made_right_now(temporary, monkeypatch):
    """Its directory is there, its lock is not: another process takes it for a leftover."""
    try_lock, stolen = file_locks.try_lock, []

    def steal(path, **options):
        if not stolen:
            stolen.append(path)
            files.remove_tree(path.parent)
        return try_lock(path, **options)

    monkeypatch.setattr(file_locks, "try_lock", steal)
    with diskreplay.ReplayBuffer(None, **OPTIONS) as buffer:
        buffer.add(1, 1, 0.0, False, False)
        assert not stolen[0].parent.exists()


def test_nothing_of_it_is_synced_but_its_checkpoints_are(temporary, tmp_path_factory, monkeypatch):
    synced = set()
    sync = files._sync_one

    def watched(path):
        synced.add(os.path.realpath(path))
        sync(path)

    monkeypatch.setattr(files, "_sync_one", watched)
    elsewhere = tmp_path_factory.mktemp("lasting")
    frame = Box(0, 255, (64,), np.uint8)
    options = {**OPTIONS, "observation_space": frame, "capacity": 4000, "segment_rows": 64}
    with diskreplay.PrioritizedReplayBuffer(None, **options, compressor="lz4") as buffer:
        for step in range(1000):
            buffer.add(np.full(64, step % 251, np.uint8), 1, 0.0, step % 9 == 8, False)
        buffer.flush()
        assert not [path for path in synced if path.startswith(str(buffer.path))]
        made = buffer.save(elsewhere, 1, attachments={"agent.pt": b"weights"})
        there = {path for path in made.rglob("*") if path.is_file()}
        assert len(there) > 20
        # By what they are, not by name: some are synced before the checkpoint gets its own.
        names = {os.path.relpath(path, made) for path in there}
        found = {path for path in synced if path.startswith(str(elsewhere))}
        assert {path.split("replay_ckpt.1/")[-1] for path in found} >= names
    with diskreplay.PrioritizedReplayBuffer(temporary / "lasting", **options) as buffer:
        synced.clear()
        buffer.add(np.zeros(64, np.uint8), 1, 0.0, True, False)
        buffer.flush()
        assert [path for path in synced if path.startswith(str(buffer.path))]


@pytest.mark.parametrize("failing", ["create", "_start"])
def test_nothing_is_left_of_one_that_cannot_be_made(temporary, monkeypatch, failing):
    def refuse(*_arguments, **_options):
        raise errors.DiskFullError(errno.ENOSPC, "no room", "there")

    whose = store.Store if failing == "create" else diskreplay.ReplayBuffer
    monkeypatch.setattr(whose, failing, refuse)
    with pytest.raises(errors.DiskFullError):  # which is kept, and with it what its frames have
        diskreplay.ReplayBuffer(None, **OPTIONS)
    assert list((temporary / f"diskreplay-{os.geteuid()}").iterdir()) == []
