"""Each durable operation fails at its k-th call: nothing acknowledged is lost, a retry works."""

import errno
import gc
import inspect
import os
import shutil
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.store import files, leases, spare_files
from diskreplay.store.record import Record
from diskreplay.store.system_errors import translated
from tests.effort import effort

FRAME = (32, 32)
FUNCTIONS = [
    "make_dirs", "make_lasting_dirs", "make_named_dirs", "allocate", "promise", "write",
    "write_at", "blank", "replace", "sync", "sync_dirs", "sync_tree", "open_to_write",
    "truncate", "rename", "exchange", "link", "copy", "seal", "remove", "remove_empty_dir",
    "remove_tree",
]  # fmt: skip
NOT_DURABLE = {
    "close",
    "do_without_syncs",
    "is_synced",
    "open_plain",
    "read",
    "is_at",
    "is_dir",
    "is_file",
    "is_there",
    "nearest",
    "led_to",
    "listed",
}


@pytest.fixture(autouse=True)
def used_again(monkeypatch):
    """Files of segments that have left are used again, though they are short."""
    monkeypatch.setattr(spare_files, "_LARGE", 4096)
    monkeypatch.setattr(leases, "is_of_one_machine", lambda path: True)


def test_all_functions_are_covered():
    public = {
        name
        for name, value in vars(files).items()
        if inspect.isfunction(value) and value.__module__ == files.__name__ and name[0] != "_"
    }
    assert public == set(FUNCTIONS) | NOT_DURABLE


def make(path):
    # 1024 bytes a row in a raw extra: its segments, unlike the small ones', are short as well.
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, FRAME, "uint8"), action_space=Discrete(4),
        capacity=120, compressor="lz4", segment_rows=16, seed=3,
        extras={"hidden": ((1024,), "uint8")},
    )  # fmt: skip


def add(buffer, i):
    buffer.add(
        np.full(FRAME, i % 251, np.uint8), i % 4, float(i), False, False,
        hidden=np.full(1024, i % 241, np.uint8),
    )  # fmt: skip


def check(buffer, acknowledged):
    """All steps whose `add` returned are there, as far as the capacity goes, and whole."""
    assert buffer.add_count == acknowledged
    ids = np.arange(max(0, acknowledged - 120), acknowledged - 1)
    batch = buffer.gather(ids)
    np.testing.assert_array_equal(batch.reward, ids)
    np.testing.assert_array_equal(batch.observation, np.broadcast_to(
        (ids % 251)[:, None, None], (len(ids), *FRAME)))  # fmt: skip
    np.testing.assert_array_equal(batch.hidden, np.broadcast_to(
        (ids % 241)[:, None], (len(ids), 1024)))  # fmt: skip


class Fault:
    """Lets a function of `files` fail from its k-th call on, `times` times."""

    def __init__(self, monkeypatch, name, k, code=errno.EIO, times=10**9):
        self.calls, self.failed = 0, 0
        self.active = True
        original = getattr(files, name)

        def function(*arguments, **options):
            self.calls += 1
            if self.active and self.calls > k and self.failed < times:
                self.failed += 1
                raise translated(OSError(code, os.strerror(code)), "somewhere", name)
            return original(*arguments, **options)

        monkeypatch.setattr(files, name, function)


def settle(buffer):
    """Let the maintenance thread finish what it was woken for."""
    maintenance = buffer._rows.store.maintenance
    for _ in range(2):  # it looks whether it was woken again when it has finished
        maintenance.wake()
        while not maintenance._woken.empty():
            time.sleep(0.001)
    with maintenance.lock:
        pass


def check_reopened(buffer, copy, acknowledged):
    """What a process that is killed now would leave behind, opened elsewhere."""
    if copy.exists():
        shutil.rmtree(copy)
    with (
        buffer._rows.store.maintenance.lock
    ):  # a copy takes a while: the maintenance thread must not seal meanwhile
        shutil.copytree(buffer.path, copy)
    with make(copy) as reopened:
        check(reopened, acknowledged)


KINDS = {errno.EIO: errors.StorageError, errno.ENOSPC: errors.DiskFullError}


@pytest.mark.costly(7)
@pytest.mark.parametrize(
    ("name", "code"),
    [*((f, errno.EIO) for f in FUNCTIONS), ("allocate", errno.ENOSPC), ("write", errno.ENOSPC)],
)
def test_adding_over_segment_boundaries(tmp_path, monkeypatch, name, code):
    """Maintenance tries again in silence; `add` fails only when it has nowhere to write."""
    acknowledged, refused = 20, 0
    buffer = make(tmp_path / "store")
    for i in range(acknowledged):
        add(buffer, i)
    with monkeypatch.context() as patched:
        fault = Fault(patched, name, 2, code)
        while acknowledged < 200 and refused < 3:
            try:
                add(buffer, acknowledged)
            except KINDS[code]:
                refused += 1
            else:
                acknowledged += 1
            if acknowledged % 16 == 0:
                settle(buffer)
        check(buffer, acknowledged)
        settle(buffer)
        fault.active = False
    check_reopened(buffer, tmp_path / "killed", acknowledged)
    for _ in range(60):
        add(buffer, acknowledged)
        acknowledged += 1
    buffer.flush()
    check(buffer, acknowledged)
    buffer.close()
    with make(tmp_path / "store") as buffer:
        check(buffer, acknowledged)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fault_that_passes(tmp_path, monkeypatch, name):
    """Each of the first calls fails once: an `add` that is repeated goes through."""
    for k in effort((0, 2), (0, 1, 3)):
        path = tmp_path / str(k)
        with make(path) as buffer, monkeypatch.context() as patched:
            fault = Fault(patched, name, k, times=1)
            refused = 0
            while buffer.add_count < 60:
                try:
                    add(buffer, buffer.add_count)
                except errors.StorageError:
                    refused += 1
            fault.active = False
            assert refused <= 1
            check(buffer, 60)
        with make(path) as buffer:
            check(buffer, 60)


def attempts(tmp_path, monkeypatch, name, prepare, call, after):
    """`call` with `name` failing at its first, second, ... call, while there are as many."""
    failed = 0
    for k in effort((0, 1, 3, 8, 21), (0, 1, 2, 3, 5, 8, 13, 21)):
        path = tmp_path / str(k)
        buffer = make(path / "store")
        for i in range(50):
            add(buffer, i)
        prepare(buffer, path)
        settle(buffer)
        with monkeypatch.context() as patched:
            fault = Fault(patched, name, k, times=1)
            try:
                call(buffer, path)
                raised = False
            except errors.StorageError:
                raised = True
            fault.active = False
            count = fault.failed
        failed += raised
        after(buffer, path, raised)
        buffer.close()
        with make(path / "store") as again:
            after(again, path, False)
        shutil.rmtree(path)
        if not count:
            break
    return failed


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_flush(tmp_path, monkeypatch, name):
    def after(buffer, path, raised):
        check(buffer, 50)
        if raised:
            check_reopened(buffer, path / "killed", 50)
            buffer.flush()
            check(buffer, 50)

    failed = attempts(
        tmp_path, monkeypatch, name, lambda *_: None, lambda buffer, _path: buffer.flush(), after
    )
    assert failed > 0 or name not in ("write", "replace", "sync", "rename")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.costly(2)
def test_save(tmp_path, monkeypatch, name):
    """A save that failed leaves the older checkpoint of that suffix, or its own, whole."""

    def prepare(buffer, path):
        buffer.save(path / "checkpoints", 1)
        for i in range(50, 70):
            add(buffer, i)

    def after(buffer, path, raised):
        check(buffer, 70)
        with diskreplay.open(path / "checkpoints" / "replay_ckpt.1") as saved:
            assert saved.add_count in ((50, 70) if raised else (70,))
            check(saved, saved.add_count)
        if raised:
            buffer.save(path / "checkpoints", 1)
            assert [p.name for p in (path / "checkpoints").iterdir()] == ["replay_ckpt.1"]

    failed = attempts(
        tmp_path, monkeypatch, name, prepare,
        lambda buffer, path: buffer.save(path / "checkpoints", 1), after,
    )  # fmt: skip
    assert failed > 0 or name not in ("write", "sync", "exchange", "link", "make_dirs")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.costly(2)
def test_load(tmp_path, monkeypatch, name):
    """All or nothing: after an error the live rows are there, and rows can be added."""

    def prepare(buffer, path):
        buffer.save(path / "checkpoints", 1)
        for i in range(50, 70):
            add(buffer, i)

    def after(buffer, path, raised):
        check(buffer, buffer.add_count)
        if raised:
            assert buffer.add_count == 70, "the load said that it failed"
            add(buffer, 70)
            check(buffer, 71)
            buffer.load(path / "checkpoints", 1)
        check(buffer, 50)
        buffer._rows.store.finish_clearing()
        if name.startswith("remove") and not raised:
            buffer.load(path / "checkpoints", 1)  # or an opening: what could not be removed goes
            buffer._rows.store.finish_clearing()
        hidden = [p.name for p in path.iterdir() if p.name.startswith(".")]
        assert hidden == []

    failed = attempts(
        tmp_path, monkeypatch, name, prepare,
        lambda buffer, path: buffer.load(path / "checkpoints", 1), after,
    )  # fmt: skip
    assert failed > 0 or name not in ("write", "sync", "exchange", "link", "make_dirs")


def test_another_alpha_and_a_crash_right_after(tmp_path, monkeypatch):
    """The priorities are replaced before the record that says the new alpha: they say their own."""
    priorities = np.linspace(0.5, 4, 20)
    options = {
        "observation_space": Box(-1, 1, (2,), "float32"), "action_space": Discrete(2),
        "capacity": 100,
    }  # fmt: skip
    path = tmp_path / "store"
    with diskreplay.PrioritizedReplayBuffer(path, alpha=0.5, **options) as buffer:
        for _ in range(20):
            buffer.add(np.zeros(2, np.float32), 0, 0.0, True, False)
        buffer.update_priorities(np.arange(20), priorities)

    def fail(*_arguments, **_options):
        raise OSError(28, "the record cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr(Record, "write", fail)
        with pytest.raises(OSError, match="record"):
            diskreplay.PrioritizedReplayBuffer(path, alpha=1.0, **options)
    gc.collect()
    with diskreplay.PrioritizedReplayBuffer(path, alpha=1.0, **options) as buffer:
        found = buffer.gather(np.arange(20)).probability
        np.testing.assert_allclose(found, priorities / priorities.sum(), rtol=1e-12)
