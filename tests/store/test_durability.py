"""What simulated power cuts and failing calls once broke, each as small as it gets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import DiskReplayError, StorageError
from diskreplay.store import commit_page, files
from diskreplay.store.maintenance import Maintenance
from diskreplay.store.raw_column import RawColumn


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
        **{"capacity": 64, "compressor": "lz4", "segment_rows": 8, **options},
    )  # fmt: skip


def add(buffer, rows):
    for _ in range(rows):
        n = buffer.add_count
        buffer.add(np.full(64, n % 256, np.uint8), n % 4, float(n), False, False)


def check(buffer, rows):
    assert buffer.add_count == rows
    np.testing.assert_array_equal(
        buffer.take("observation", np.arange(rows))[:, 0], np.arange(rows)
    )


def orphans(path):
    return [str(finding) for finding in verify(path).findings]


@pytest.mark.parametrize("sealing", ["never", "late", "at once"])
def test_a_killed_store_is_opened_with_another_capacity(tmp_path, monkeypatch, sealing):
    """What had left a smaller store was looked for by a larger one, though no record had named it
    yet and its segments had never been sealed: it could not be opened."""
    if sealing != "at once":
        monkeypatch.setattr(Maintenance, "wake", lambda self: None)
    buffer = make(tmp_path / "store")
    for number in range(250):
        add(buffer, 1)
        if sealing == "late" and number in (100, 180):
            buffer._rows.store.maintenance.run()
    with buffer._rows.store.maintenance.lock:  # as a kill would leave it
        for capacity in (16, 64, 1000):
            shutil.copytree(tmp_path / "store", tmp_path / f"copy{capacity}")
    buffer.close()
    for capacity in (16, 64, 1000):
        with make(tmp_path / f"copy{capacity}", capacity=capacity, shrink=True) as again:
            first = 250 - min(capacity, 64)
            assert again.bounds.tolist() == [[first, 250]]
            add(again, 5)
            ids = np.arange(max(first, 255 - capacity), 255)
            np.testing.assert_array_equal(again.take("observation", ids)[:, 0], ids)
        assert orphans(tmp_path / f"copy{capacity}") == []


def test_a_power_cut_between_the_fields_record_and_the_groups(tmp_path, monkeypatch):
    """The field names segment 1, the group does not: the rows added then were taken for sealed, and
    the next opening after a crash removed them."""
    path = tmp_path / "store"
    buffer = make(path)
    add(buffer, 8)
    buffer.flush()
    group = (path / "zarr.json").read_bytes()
    add(buffer, 8)
    buffer._rows.store.maintenance.run(durable=True)
    with buffer._rows.store.maintenance.lock:
        shutil.copytree(path, tmp_path / "cut")
    buffer.close()
    path = tmp_path / "cut"
    (path / "zarr.json").write_bytes(group)
    monkeypatch.setattr(commit_page, "boot_id", lambda: "00000000-0000-4000-8000-000000000000")
    with pytest.warns(RuntimeWarning, match="at least 8 rows"):
        buffer = make(path)
    check(buffer, 8)
    add(buffer, 20)
    buffer.close()
    assert orphans(path) == []
    with make(path) as buffer:
        check(buffer, 28)


def synced(monkeypatch):
    seen, original = [], files.sync

    def sync(paths):
        paths = list(map(Path, paths))
        seen.extend(paths)
        original(paths)

    monkeypatch.setattr(files, "sync", sync)
    return seen


def test_the_name_of_a_new_store_and_of_a_checkpoint_directory_are_durable(tmp_path, monkeypatch):
    seen = synced(monkeypatch)
    with make(tmp_path / "runs" / "store") as buffer:
        add(buffer, 3)
        buffer.flush()
        assert {tmp_path / "runs", tmp_path} <= set(seen)
        buffer.save(tmp_path / "some" / "checkpoints", 1)
        assert {tmp_path / "some", tmp_path} <= set(seen[seen.index(tmp_path) + 1 :])


@pytest.mark.parametrize("what", ["exchange", "retire", "priorities"])
def test_nothing_is_removed_before_its_new_name_is_durable(tmp_path, monkeypatch, what):
    """Else a cut may leave the old name, and the files behind it gone."""
    path = tmp_path / "store"
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4), capacity=64
    )
    add(buffer, 3)
    buffer.flush()
    for suffix in (1, 2, 3, 4):
        buffer.save(tmp_path / "checkpoints", suffix)
    log = []
    for name in ("rename", "exchange", "sync", "remove_tree"):
        original = getattr(files, name)

        def function(*arguments, name=name, original=original):
            if name == "sync":
                arguments = (list(arguments[0]),)
            if name != "remove_tree" or Path(arguments[0]).exists():
                log.append((name, arguments))
            return original(*arguments)

        monkeypatch.setattr(files, name, function)
    if what == "priorities":
        buffer.flush()
    else:
        buffer.save(tmp_path / "checkpoints", 4 if what == "exchange" else 5)
    removed = [i for i, (name, _) in enumerate(log) if name == "remove_tree"]
    assert removed
    for at in removed:
        gone = Path(log[at][1][0])
        moved = max(
            i
            for i in range(at)
            if log[i][0] in ("rename", "exchange") and gone in map(Path, log[i][1])
        )
        parents = {Path(p).parent for p in log[moved][1]}
        after = {Path(p) for name, a in log[moved:at] if name == "sync" for p in a[0]}
        assert parents & after, f"{gone} goes before {parents} are synced"
    buffer.close()


def test_the_tail_of_a_segment_whose_record_failed(tmp_path, monkeypatch):
    """It was forgotten: a file that nothing names any more, one for each failure."""
    path = tmp_path / "store"
    buffer = make(path)
    add(buffer, 7)
    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", lambda contents: files.write(Path("/nowhere/at/all"), []))
        add(buffer, 3)
        with pytest.raises(DiskReplayError):
            buffer._rows.store.maintenance.run(durable=True)
    add(buffer, 10)
    buffer.close()
    assert orphans(path) == []


def test_a_segment_that_could_not_be_deleted_is_deleted_later(tmp_path, monkeypatch):
    path = tmp_path / "store"
    buffer = make(path)
    add(buffer, 60)
    buffer.flush()
    with (
        buffer._rows.store.maintenance.lock,
        monkeypatch.context() as patched,
    ):  # the maintenance thread waits
        add(buffer, 30)

        def remove(path):
            raise StorageError(5, "no", str(path))

        patched.setattr(files, "remove", remove)
        with pytest.raises(DiskReplayError):
            buffer._rows.store.maintenance.run(durable=True)
    add(buffer, 30)
    buffer.close()
    assert orphans(path) == []


def test_what_left_while_a_large_segment_was_open_is_deleted(tmp_path):
    """A segment of frames is longer than the capacity: until it is full, the record goes by it, and
    small segments that have left stay. `close` names the true rows, and has to delete them."""
    path = tmp_path / "store"
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (97, 97), "uint8"), action_space=Discrete(4),
        capacity=300, compressor="raw", segment_rows=100,
    ) as buffer:  # fmt: skip
        frame = np.zeros((97, 97), np.uint8)
        for i in range(2000):
            buffer.add(frame, i % 4, 1.0, False, False)
    assert orphans(path) == []


def test_a_kill_while_closing_leaves_no_spares(tmp_path):
    path = tmp_path / "store"
    with make(path) as buffer:
        add(buffer, 30)
    (path / "is_final" / "live" / "spare.0.7").write_bytes(bytes(4096))  # not removed any more
    make(path).close()
    assert orphans(path) == []


def test_files_that_come_back_after_a_power_cut_in_a_store_that_was_closed(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with make(path) as buffer:
        add(buffer, 7)
        buffer.flush()
        (tmp_path / "old").write_bytes((path / "observation/c.0.0.0").read_bytes())
        add(buffer, 200)
    back = path / "observation" / "c.0.0.0"
    back.write_bytes((tmp_path / "old").read_bytes())
    monkeypatch.setattr(commit_page, "boot_id", lambda: "00000000-0000-4000-8000-000000000000")
    make(path).close()
    assert orphans(path) == []


@pytest.mark.parametrize("size", [0, 1, 20])
def test_a_shard_that_a_power_cut_left_without_its_index(tmp_path, monkeypatch, size):
    """Of none at all the store was not opened any more, though a flush had written its rows."""
    path = tmp_path / "store"
    with make(path, segment_rows=32) as buffer:
        add(buffer, 5)
        buffer.flush()
        add(buffer, 7)
        buffer._rows.store.maintenance.run()  # a block goes into a shard that is made for it
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, tmp_path / "cut")
    shards = sorted((tmp_path / "cut").glob("is_final/live/open.*/*"))
    assert shards
    for shard in shards:
        os.truncate(shard, size)
    monkeypatch.setattr(commit_page, "boot_id", lambda: "00000000-0000-4000-8000-000000000000")
    with pytest.warns(RuntimeWarning, match="rows"):
        buffer = make(tmp_path / "cut", segment_rows=32)
    with buffer:
        check(buffer, 5)


def test_a_lock_file_that_cannot_be_written_does_not_stay_locked(tmp_path, monkeypatch):
    path = tmp_path / "store"
    make(path).close()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "pwrite", fail)
        with pytest.raises(diskreplay.errors.DiskFullError):
            make(path)
    make(path).close()


def test_a_spare_that_cannot_be_removed_does_not_keep_the_store_locked(tmp_path, monkeypatch):
    path = tmp_path / "store"
    buffer = make(path)
    add(buffer, 30)
    buffer.flush()
    original = files.remove

    def remove(path):
        if path.name.startswith("spare"):
            raise StorageError(5, "no", str(path))
        original(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", remove)
        buffer.close()
    make(path).close()
    assert orphans(path) == []


def test_a_segment_that_leaves_while_it_is_recorded(tmp_path, monkeypatch):
    """Rows are added during a sync: the tail was deleted, and then to be renamed."""
    buffer = make(tmp_path / "store")
    add(buffer, 7)
    store, original = buffer._rows.store, files.sync
    with store.maintenance.lock:
        add(buffer, 3)

        def sync(paths):
            original(paths)
            store.first[:] = 8

        with monkeypatch.context() as patched:
            patched.setattr(files, "sync", sync)
            store.maintenance.run(durable=True)
    buffer.close()
    assert orphans(tmp_path / "store") == []


def test_a_load_whose_opening_fails_leaves_the_buffer_as_it_was(tmp_path, monkeypatch):
    """The new store is opened beside the old one, before the two are exchanged."""
    buffer = make(tmp_path / "store")
    add(buffer, 10)
    buffer.save(tmp_path / "checkpoints", 1)
    add(buffer, 10)
    original = files.sync

    def sync(paths):
        paths = list(paths)
        states = [p for p in paths if p.name == "state" and tmp_path / "store" not in p.parents]
        if states and len(paths) == 1:  # it is marked open
            raise StorageError(5, "no", "state")
        original(paths)

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", sync)
        with pytest.raises(StorageError) as raised:
            buffer.load(tmp_path / "checkpoints", 1)
        assert raised.value.errno == 5
    check(buffer, 20)
    add(buffer, 5)
    buffer.close()
    with make(tmp_path / "store") as buffer:
        check(buffer, 25)


def test_the_tails_of_many_envs_are_not_synced_again_and_again(tmp_path, monkeypatch):
    """Each of them is small; all together they were most of what was written to the disk."""
    envs, synced, original = 32, [], files.sync

    def sync(paths):
        paths = list(paths)
        synced.extend(paths)
        original(paths)

    buffer = diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, (84, 84), "uint8"),
        action_space=Discrete(4), capacity=envs * 64, num_envs=envs, segment_rows=8,
    )  # fmt: skip
    store, no = buffer._rows.store, np.zeros(envs, bool)
    monkeypatch.setattr(files, "sync", sync)
    with buffer:
        for step in range(12):
            frames = np.full((envs, 84, 84), step, np.uint8)
            buffer.add(frames, np.zeros(envs, int), np.zeros(envs), no, no)
        store.maintenance.run(durable=True)
        frames = store.columns["observation"]
        assert frames.files.paths.chunk(0, 0) in synced
        assert frames.files.paths.tail not in synced
        assert store.durable_count.tolist() == [8] * envs
        buffer.flush()
        assert store.durable_count.tolist() == [12] * envs


def test_many_envs_can_be_closed_at_the_interpreters_exit(tmp_path):
    """Threads cannot be had any more then."""
    code = f"""
import atexit, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import numpy as np
import diskreplay
from gymnasium.spaces import Box, Discrete
buffer = diskreplay.ReplayBuffer(
    sys.argv[1], observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
    capacity=64 * 40, num_envs=64, compressor="lz4", segment_rows=8,
)
no = np.zeros(64, bool)
for step in range(20):
    buffer.add(np.full((64, 64), step, np.uint8), no.astype(int), np.zeros(64), no, no)
atexit.register(buffer.close)
"""
    path = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with diskreplay.open(path) as buffer:
        assert buffer._rows.store.page.closed
        assert buffer.add_count == 64 * 20


def test_an_add_never_waits_for_what_has_left_to_be_deleted(tmp_path, monkeypatch):
    """An adding thread that was faster than a few segments in two seconds had to write the record,
    and wait for the disk, itself."""
    buffer = make(tmp_path / "store")
    store = buffer._rows.store
    monkeypatch.setattr(Maintenance, "wake", lambda self: None)
    monkeypatch.setattr(Maintenance, "_make_record", lambda *_: pytest.fail("it wrote a record"))
    add(buffer, 31 * 64)
    monkeypatch.undo()
    store.maintenance.run(durable=True)
    frames = store.columns["observation"]
    assert len(frames.segments.mapped) <= 64 // 8 + 2
    assert len(list(frames.files.paths.directory.glob("c.*"))) <= 64 // 8 + 2
    buffer.close()
    assert orphans(tmp_path / "store") == []


def make_wide(path, capacity):
    """Rows of 15,876 bytes: a whole number of pages takes 1,024 of them, whatever the capacity."""
    space = Dict(
        {"depth": Box(-1, 1, (63, 63), "float32"), "image": Box(0, 255, (64, 64), "uint8")}
    )
    return diskreplay.ReplayBuffer(
        path, observation_space=space, action_space=Discrete(4), capacity=capacity
    )


def add_wide(buffer, rows):
    depth, image = np.zeros((63, 63), np.float32), np.zeros((64, 64), np.uint8)
    for _ in range(rows):
        buffer.add({"depth": depth, "image": image}, 0, buffer.add_count % 1000, False, False)


def test_segments_longer_than_what_is_kept(tmp_path, monkeypatch):
    """What a record could name as durable fell behind all that was retained: nothing was deleted
    any more, and soon `add` found no slot, for good."""
    buffer = make_wide(tmp_path / "store", 156)
    add_wide(buffer, 2000)
    buffer._rows.store.maintenance.run(durable=True)  # its thread may be late
    rows = buffer._rows.store.columns["observation/image"].field.segment_rows
    with (
        buffer._rows.store.maintenance.lock
    ):  # the maintenance thread may be late, and would delete meanwhile
        add_wide(buffer, 10)  # which no record names
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
    buffer._rows.store.maintenance.run(durable=True)
    assert len(buffer._rows.store.columns["observation/image"].segments.mapped) <= 156 // rows + 2
    buffer.close()
    monkeypatch.setattr(commit_page, "boot_id", lambda: "00000000-0000-4000-8000-000000000000")
    with pytest.warns(RuntimeWarning, match="rows"):
        buffer = make_wide(tmp_path / "cut", 156)
    with buffer:
        first, count = buffer.bounds[0]
        assert 1000 < count < 2010
        np.testing.assert_array_equal(
            buffer.take("reward", np.arange(first, count)), np.arange(first, count) % 1000
        )


def test_late_maintenance_has_made_the_next_file_all_the_same(tmp_path, monkeypatch):
    """It looked for segments that are nearly full, and came when the next one had begun."""
    buffer = make_wide(tmp_path / "store", 2000)
    store, wakes, made = buffer._rows.store, [], []

    def wake():
        wakes.append(1)
        store.maintenance.run(spares=True)

    create = RawColumn._create

    def created(column, number, group):
        if column.field.name.endswith("depth"):
            made.append((number, group) not in column.spares.placed)
        return create(column, number, group)

    monkeypatch.setattr(store.maintenance, "wake", wake)
    monkeypatch.setattr(RawColumn, "_create", created)
    add_wide(buffer, 4200)
    buffer.close()
    assert made == [True, False, False, False, False]
