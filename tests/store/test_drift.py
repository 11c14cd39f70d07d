"""Envs that share files and record at different speeds, against lists of their rows."""

import contextlib
import errno
import shutil
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import files, format, private
from diskreplay.store.commit_page import CommitPage
from diskreplay.store.field_paths import FieldPaths
from diskreplay.store.maintenance import Maintenance
from diskreplay.store.segment import Shard
from tests.effort import effort

FRAME = (4, 6)


class Twin:
    """A buffer, and for each env the list of what it recorded."""

    def __init__(self, path, *, num_envs, kept, compressor, frame=FRAME, **options):
        self.path, self.num_envs, self.kept = path, num_envs, kept
        self.options = dict(
            observation_space=Box(0, 255, frame, np.uint8), action_space=Discrete(9),
            capacity=None if kept is None else kept * num_envs, num_envs=num_envs,
            compressor=compressor, **options,
        )  # fmt: skip
        self.frame = frame
        self.rows = [[] for _ in range(num_envs)]
        self.left = [0] * num_envs  # before a power cut: these rows do not come back
        self.saved = None
        self.buffer = diskreplay.ReplayBuffer(path, **self.options)

    def step(self, mask, **extras):
        numbers = [len(rows) * self.num_envs + env for env, rows in enumerate(self.rows)]
        frames = np.stack([self.picture(number) for number in numbers])
        mask = np.asarray(mask, bool)
        self.buffer.add(
            frames, np.array(numbers) % 9, np.array(numbers, float), np.zeros(self.num_envs, bool),
            np.zeros(self.num_envs, bool), mask=mask, **extras,
        )  # fmt: skip
        for env in np.flatnonzero(mask).tolist():
            self.rows[env].append(numbers[env])

    def picture(self, number):
        return np.random.default_rng(number).integers(0, 4, self.frame).astype(np.uint8)

    def check(self, buffer=None):
        buffer = self.buffer if buffer is None else buffer
        for env, rows in enumerate(self.rows):
            low, high = buffer.bounds[env]
            assert high == len(rows)
            left = 0 if self.kept is None else max(0, len(rows) - self.kept)
            assert left <= low <= max(left, self.left[env])
            ids = np.arange(low, high) * self.num_envs + env
            np.testing.assert_array_equal(buffer.take("reward", ids), rows[low:])
            frames = buffer.take("observation", ids)
            for number, frame in zip(rows[low:], frames, strict=True):
                np.testing.assert_array_equal(frame, self.picture(number))

    def check_with_zarr(self):
        import zarr

        group = zarr.open_group(self.path, mode="r")
        for env, rows in enumerate(self.rows):
            low = 0 if self.kept is None else max(0, len(rows) - self.kept)
            frames = group["observation"][low : len(rows), env]
            for number, frame in zip(rows[low:], frames, strict=True):
                np.testing.assert_array_equal(frame, self.picture(number))

    def check_reader(self):
        with diskreplay.open(self.path, mode="r") as reader:
            self.check(reader)

    def kill(self):
        """Go on with what a process that is killed now leaves."""
        beside = self.path.with_name("killed")
        with self.buffer._rows.store.maintenance.lock:
            shutil.copytree(self.path, beside)
        self.buffer.close()
        shutil.rmtree(self.path)
        beside.rename(self.path)
        self.reopen()

    def cut_the_power(self):
        """The same with another boot: the rows that the record names are there, and nothing of a
        tail can be relied on."""
        beside = self.path.with_name("killed")
        with self.buffer._rows.store.maintenance.lock:
            shutil.copytree(self.path, beside)
        for tail in (beside / private.PLACE).glob("tail.*"):
            tail.write_bytes(bytes(tail.stat().st_size))
        page = private.commit_page(beside)
        data = bytearray(page.read_bytes())
        data[16:52] = b"0" * 36
        page.write_bytes(data)
        self.buffer.close()
        shutil.rmtree(self.path)
        beside.rename(self.path)
        with pytest.warns(RuntimeWarning) if self._is_ahead() else _nothing():
            self.reopen()
        for env, rows in enumerate(self.rows):
            if self.kept is not None:
                self.left[env] = max(self.left[env], len(rows) - self.kept)
            del rows[int(self.buffer.bounds[env][1]) :]

    def _is_ahead(self):
        recorded = format.read_attributes(self.path)["count"]
        return any(len(rows) > count for rows, count in zip(self.rows, recorded, strict=True))

    def reopen(self):
        self.buffer.close()
        self.buffer = diskreplay.open(self.path, mode="a")

    def save(self):
        self.buffer.save(self.path.with_name("checkpoints"), 1)
        self.saved = [list(rows) for rows in self.rows]

    def load(self):
        if self.saved is not None:
            self.buffer.load(self.path.with_name("checkpoints"), 1)
            self.rows = [list(rows) for rows in self.saved]


class _nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_error):
        pass


LARGE = (34, 34)  # more than a KiB: raw segments have the rows of one env together


@pytest.mark.parametrize(
    ("compressor", "frame"), [("lz4", FRAME), ("raw", FRAME), ("raw", LARGE), ("zstd", LARGE)]
)
@pytest.mark.costly(2)
def test_an_env_that_records_nothing_while_others_go_round(tmp_path, compressor, frame):
    twin = Twin(tmp_path / "s", num_envs=3, kept=64, compressor=compressor, frame=frame,
                segment_rows=8)  # fmt: skip
    for _ in range(5):
        twin.step([True, True, True])
    for _ in range(640):
        twin.step([True, False, True])
    twin.check()
    for _ in range(100):  # through segments that were sealed, and others that are gone
        twin.step([False, True, False])
    twin.check()
    twin.buffer.flush()
    twin.check_with_zarr()
    twin.check_reader()
    twin.reopen()
    twin.check()
    twin.kill()
    twin.check()
    twin.buffer.close()


def with_a_slow_env(path, monkeypatch, compressor, rows):
    """Rows 8 to 15 are sealed, or have left, without the second env, which comes to them next. No
    upkeep but what is asked for."""
    monkeypatch.setattr(Maintenance, "wake", lambda self: None)
    twin = Twin(path, num_envs=2, kept=40, compressor=compressor, segment_rows=8, env_group=2,
                frame=(64, 64))  # fmt: skip
    for number in range(rows):
        twin.step([True, number < 8])
    return twin


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_an_env_that_comes_to_a_segment_just_when_it_has_left(tmp_path, monkeypatch, compressor):
    """The file that is made for it is not the one that is to be deleted."""
    twin = with_a_slow_env(tmp_path / "live", monkeypatch, compressor, rows=68)
    store, of_segment, threads = twin.buffer._rows.store, FieldPaths.of_segment, []

    def add():
        for _ in range(40):
            twin.step([False, True])
        for column in store.packed_columns:
            column.pack(store.count)

    def paths(self, number, group):
        if self.field.name == "observation" and number == 1:
            threads.append(threading.Thread(target=add))
            threads[-1].start()
            # Where the lock is held it waits for that, and else for nothing.
            if not store.columns["observation"].files.changing._is_owned():
                threads[-1].join()
        return of_segment(self, number, group)

    monkeypatch.setattr(FieldPaths, "of_segment", paths)
    store.maintenance.run(durable=True)
    (adding,) = threads
    adding.join()
    twin.buffer.flush()
    assert verify(twin.path).findings == ()
    twin.kill()
    twin.check()
    twin.buffer.close()


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_a_file_that_could_not_be_deleted_is_still_a_checkpoints(tmp_path, monkeypatch, compressor):
    """Also when an env comes to its rows, and gets a file by that name."""
    twin = with_a_slow_env(tmp_path / "live", monkeypatch, compressor, rows=50)
    checkpoint = twin.buffer.save(tmp_path / "checkpoints", 1)
    saved = [list(rows) for rows in twin.rows]
    for _ in range(10):
        twin.step([True, False])

    def refuse(path):
        raise StorageError(errno.EIO, "no", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", refuse)
        with pytest.raises(StorageError):
            twin.buffer._rows.store.maintenance.run(durable=True)
    for _ in range(30):
        twin.step([False, True])
    twin.buffer.flush()
    twin.check()
    assert verify(checkpoint).findings == ()
    assert verify(twin.path).findings == ()
    twin.reopen()
    twin.check()
    twin.buffer.close()
    twin.rows = saved
    with diskreplay.open(checkpoint) as reader:
        twin.check(reader)


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
@pytest.mark.costly(1)
def test_checkpoints_never_change_when_an_env_comes_to_a_sealed_segment(tmp_path, compressor):
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor=compressor, segment_rows=8)
    for _ in range(3):
        twin.step([True, True])
    for _ in range(2000):
        twin.step([True, False])
    twin.buffer.flush()
    twin.save()
    files = [path for path in twin.path.with_name("checkpoints").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    for _ in range(300):
        twin.step([False, True])
    twin.check()
    assert {path: path.read_bytes() for path in files} == before
    twin.load()
    twin.check()
    twin.buffer.close()


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_a_segment_that_was_sealed_twice_since_the_record_is_the_one_that_is_there(
    tmp_path, compressor
):
    """The record knows the checksum of the first file. It must not be taken for that of the
    second one by a writer that opens the store after a kill."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor=compressor, frame=(64, 64),
                segment_rows=8)  # fmt: skip
    maintenance = twin.buffer._rows.store.maintenance
    for _ in range(3):
        twin.step([True, True])
    for _ in range(60):
        twin.step([True, False])
    maintenance.run(durable=True)
    maintenance._record_due += 3600
    sealed = format.read_document(twin.path / "observation" / "zarr.json")
    assert "0/0" in sealed["attributes"]["diskreplay"]["seals"]
    for _ in range(7):
        twin.step([False, True])
    for _ in range(80):
        twin.step([True, False])
    maintenance.run()
    assert twin.buffer._rows.store.columns["observation"].segments.mapped[0, 0].seal is not None
    twin.kill()
    twin.check()
    twin.save()
    (checkpoint,) = twin.path.with_name("checkpoints").iterdir()
    assert verify(checkpoint).findings == ()
    twin.buffer.close()
    assert verify(twin.path).findings == ()


def test_two_fields_come_back_to_sealed_segments_at_the_same_time(tmp_path, monkeypatch):
    """The keeper copies a sealed shard while an adding thread copies one of another field: neither
    gets the other's bytes."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=8,
                extras={"hidden": ((64, 64), "uint8")})  # fmt: skip
    hidden = np.random.default_rng(1).integers(0, 255, (200, 2, 64, 64)).astype(np.uint8)

    def step(number, mask):
        twin.step(mask, hidden=hidden[number])

    for number in range(3):
        step(number, [True, True])
    for number in range(3, 83):
        step(number, [True, False])
    store = twin.buffer._rows.store
    store.maintenance.run(durable=True)
    columns = store.columns["observation"], store.columns["hidden"]
    assert all(column.segments.mapped[0, 0].seal is not None for column in columns)
    rename, met = files.rename, threading.Barrier(2, timeout=400)

    def meet(source, target):
        if source.name.startswith("unsealed"):
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait()  # both are written, and none is in its place
        rename(source, target)

    monkeypatch.setattr(files, "rename", meet)
    keeper = threading.Thread(target=columns[0].reopen_sealed, args=[(0, 0)])
    keeper.start()
    columns[1].reopen_sealed((0, 0))
    keeper.join()
    monkeypatch.undo()
    assert not met.broken
    for number in range(3, 20):
        step(number, [False, True])
    twin.check()
    found = twin.buffer.take("hidden", np.arange(83) * 2)
    np.testing.assert_array_equal(found, hidden[:83, 0])
    twin.buffer.close()
    assert verify(twin.path).findings == ()


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_the_first_rows_of_a_slow_env_outlast_a_close(tmp_path, compressor):
    """Their segment has left for the other env, and they are in the tail: the close writes its
    file, and must not delete it."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=40, compressor=compressor, frame=(64, 64),
                segment_rows=8)  # fmt: skip
    for _ in range(49):
        twin.step([True, False])
    twin.step([True, True])
    twin.buffer.flush()
    twin.check_with_zarr()
    twin.reopen()
    twin.check()
    for _ in range(3):
        twin.step([True, False])
    twin.reopen()
    twin.check()
    twin.buffer.close()
    assert verify(twin.path).findings == ()


def test_no_bytes_that_nothing_names_after_a_power_cut(tmp_path):
    """What a flush had of the tail goes back there: the open shard must not keep it too."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=16)
    for _ in range(11):
        twin.step([True, True])
    twin.buffer._rows.store.maintenance.run()
    assert list((twin.path / private.PLACE).glob("open.*/0.0"))
    twin.buffer.flush()
    twin.cut_the_power()
    twin.check()
    for _ in range(20):
        twin.step([True, True])
    twin.buffer.close()
    assert verify(twin.path).findings == ()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 40), st.integers(1, 7)),
        st.sampled_from(
            [
                ("check",),
                ("flush",),
                ("kill",),
                ("power",),
                ("reopen",),
                ("save",),
                ("load",),
                ("reader",),
                ("upkeep",),
            ]
        ),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.parametrize(
    ("compressor", "frame", "kept"),
    [("lz4", FRAME, 40), ("lz4", LARGE, None), ("raw", FRAME, 40), ("raw", LARGE, 24)],
)
@settings(
    max_examples=effort(6, 12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=OPERATIONS, group=st.sampled_from([None, 1, 2]))
@pytest.mark.costly(2)
def test_any_walk(tmp_path, compressor, frame, kept, operations, group):
    path = tmp_path / "walk"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    twin = Twin(path / "s", num_envs=3, kept=kept, compressor=compressor, frame=frame,
                segment_rows=8, env_group=group)  # fmt: skip
    for name, *details in operations:
        match name:
            case "steps":
                times, bits = details
                for _ in range(times):
                    twin.step([bits >> env & 1 for env in range(3)])
            case "check":
                twin.check()
            case "flush":
                twin.buffer.flush()
                twin.check_with_zarr()
            case "kill":
                twin.kill()
            case "power":
                twin.cut_the_power()
            case "reopen":
                twin.reopen()
            case "save":
                twin.save()
            case "load":
                twin.load()
            case "reader":
                twin.check_reader()
            case "upkeep":
                twin.buffer._rows.store.maintenance.run(durable=True)
    twin.check()
    twin.buffer.close()
    assert verify(twin.path).findings == ()
    twin.check_with_zarr()
    twin.check_reader()


@pytest.mark.costly
def test_a_reader_follows_envs_that_drift(tmp_path):
    twin = Twin(tmp_path / "s", num_envs=3, kept=50, compressor="lz4", segment_rows=8)
    rng = np.random.default_rng(4)
    with diskreplay.open(twin.path, mode="r") as reader:
        for turn in range(60):
            bits = int(rng.integers(1, 8))
            for _ in range(int(rng.integers(1, 30))):
                twin.step([bits >> env & 1 for env in range(3)])
            if turn % 7 == 3:
                twin.buffer.flush()
            if turn % 11 == 5:
                twin.buffer._rows.store.maintenance.run(durable=True)
            twin.check(reader)
        twin.reopen()
        twin.step([True, True, True])
        twin.check(reader)
    twin.buffer.close()


def test_the_page_says_what_is_in_shards(tmp_path):
    twin = Twin(tmp_path / "s", num_envs=2, kept=64, compressor="lz4", segment_rows=16)
    for _ in range(37):
        twin.step([True, True])
    twin.buffer._rows.store.maintenance.run()
    page = CommitPage(private.commit_page(twin.path), 2, 1, writable=False)
    assert page.count.tolist() == [37, 37]
    assert page.packed.tolist() == [[32, 32]]
    twin.buffer.close()
    assert not list((twin.path / private.PLACE).glob("tail.*"))
    assert not list((twin.path / private.PLACE).glob("open.*"))


def test_a_shard_whose_writer_was_killed_before_it_had_an_index(tmp_path):
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=32)
    for _ in range(36):
        twin.step([True, True])
    killed, maintenance = tmp_path / "killed", twin.buffer._rows.store.maintenance
    maintenance.run()
    with maintenance.lock:
        shutil.copytree(twin.path, killed)
    twin.buffer.close()
    (tail,) = killed.glob("is_final/live/tail.*")  # it has the rows from 32 on
    shard = tail.with_name(f"open{tail.suffix}") / "1.0"
    shard.parent.mkdir(exist_ok=True)
    shard.write_bytes(b"")
    assert verify(killed).findings == ()
    with diskreplay.open(killed, mode="a") as buffer:
        twin.check(buffer)


def test_the_copy_of_a_flush_does_not_stand_for_an_open_shard_that_was_deleted(tmp_path):
    """A block that was not full at the flush has zeros in the copy where rows have come since."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=32)
    for _ in range(11):
        twin.step([True, True])
    twin.buffer.flush()
    for _ in range(9):
        twin.step([True, True])
    maintenance = twin.buffer._rows.store.maintenance
    maintenance.run(durable=True)
    killed = tmp_path / "killed"
    with maintenance.lock:
        shutil.copytree(twin.path, killed)
    twin.buffer.close()
    (shard,) = killed.glob("is_final/live/open.*/0.0")
    assert (killed / "observation" / "c.0.0.0.0").exists()
    shard.unlink()
    for mode in ("a", "r"):
        with pytest.raises(diskreplay.CorruptSegmentError, match=r"rows 11 to 15 of env 0"):
            diskreplay.open(killed, mode=mode)
    report = verify(killed)
    assert [(s.env, s.start, s.stop) for f in report.findings for s in f.rows] == [
        (0, 11, 16), (1, 11, 16)
    ]  # fmt: skip
    assert repair(killed).set_aside == (5, 5)
    with diskreplay.open(killed, mode="r") as reader:
        for number in (*range(22), *range(32, 40)):
            (frame,) = reader.take("observation", [number])
            np.testing.assert_array_equal(frame, twin.picture(number))


def test_a_sealed_segment_does_not_stand_for_the_copy_that_a_slow_env_went_on_in(tmp_path):
    """It was sealed amid a block of that env, which has zeros there where rows have come since."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=16)
    maintenance = twin.buffer._rows.store.maintenance
    for _ in range(3):
        twin.step([True, True])
    for _ in range(90):
        twin.step([True, False])
    maintenance.run(durable=True)
    for name, mask in (("before", [True, False]), ("after", [False, True])):
        for _ in range(10):
            twin.step(mask)
        maintenance.run(durable=True)
        with maintenance.lock:
            shutil.copytree(twin.path, tmp_path / name)
    twin.buffer.close()
    before, after = tmp_path / "before", tmp_path / "after"
    assert not list(before.glob("is_final/live/open.*/0.0"))
    assert verify(before).findings == ()
    for mode in ("r", "a"):
        diskreplay.open(before, mode=mode).close()
    (shard,) = after.glob("is_final/live/open.*/0.0")
    assert (after / "observation" / "c.0.0.0.0").exists()
    shard.unlink()
    for mode in ("a", "r"):
        with pytest.raises(diskreplay.CorruptSegmentError, match=r"rows 3 to 7 of env 1"):
            diskreplay.open(after, mode=mode)
    report = verify(after)
    assert [(s.env, s.start, s.stop) for f in report.findings for s in f.rows] == [(1, 3, 8)]
    assert repair(after).set_aside == (0, 5)
    with diskreplay.open(after, mode="r") as reader:
        for number in (*range(0, 2 * 103, 2), 1, 3, 5):
            (frame,) = reader.take("observation", [number])
            np.testing.assert_array_equal(frame, twin.picture(number))


def test_the_copy_of_a_flush_does_not_stand_for_a_rotten_block_after_a_power_cut(tmp_path):
    """It has the block of before, with fewer rows."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=32)
    for _ in range(11):
        twin.step([True, True])
    twin.buffer.flush()
    for _ in range(9):
        twin.step([True, True])
    maintenance, cut = twin.buffer._rows.store.maintenance, tmp_path / "cut"
    maintenance.run(durable=True)
    with maintenance.lock:
        shutil.copytree(twin.path, cut)
    twin.buffer.close()
    page = private.commit_page(cut)
    data = bytearray(page.read_bytes())
    data[16:52] = b"0" * 36
    page.write_bytes(data)
    (shard,) = cut.glob("is_final/live/open.*/0.0")
    data = bytearray(shard.read_bytes())
    offset, length = np.frombuffer(data, "<i8", 2, 32)  # rows 8 to 15 of the first env
    data[offset + length // 2] ^= 1
    shard.write_bytes(data)
    with pytest.warns(RuntimeWarning):
        buffer = diskreplay.open(cut, mode="a")
    with buffer:
        for number in (*range(16), *range(17, 32, 2)):
            (frame,) = buffer.take("observation", [number])
            np.testing.assert_array_equal(frame, twin.picture(number))
        for row in (8, 11, 15):
            with pytest.raises(diskreplay.CorruptSegmentError, match="rows 8 to 15"):
                buffer.take("observation", [2 * row])


def test_a_file_with_the_same_blocks_and_more_rows_is_another_one(tmp_path):
    """The rows that came since the flush are zeros: so are those that a block does not have."""
    twin = Twin(tmp_path / "s", num_envs=1, kept=None, compressor="lz4", segment_rows=8,
                extras={"hidden": ((1024,), "uint8")})  # fmt: skip
    store, killed = twin.buffer._rows.store, tmp_path / "killed"
    for number in range(10):
        if number == 6:
            twin.buffer.flush()
            store.maintenance._record_due += 3600
        hidden = np.full(1024, number < 6, np.uint8)
        twin.buffer.add(twin.picture(number), 0, 0.0, False, False, hidden=hidden)
    store.maintenance.run()
    with store.maintenance.lock:
        shutil.copytree(twin.path, killed)
    twin.buffer.close()
    assert verify(killed).findings == ()
    for mode in ("r", "a"):
        with diskreplay.open(killed, mode=mode) as buffer:
            hidden = buffer.take("hidden", np.arange(10))
            np.testing.assert_array_equal(hidden[:, 0], [1] * 6 + [0] * 4)


def test_a_segment_that_was_sealed_since_the_flush_that_is_recorded(tmp_path):
    """After a kill it is not taken for the copy which that flush wrote: closing names its own
    checksum."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=16)
    for _ in range(11):
        twin.step([True, True])
    twin.buffer.flush()
    maintenance = twin.buffer._rows.store.maintenance
    maintenance._record_due += 3600
    for _ in range(9):
        twin.step([True, True])
    maintenance.run()
    assert twin.buffer._rows.store.columns["observation"].segments.mapped[0, 0].seal is not None
    twin.kill()
    twin.check()
    twin.buffer.close()
    assert verify(twin.path).findings == ()
    twin.reopen()
    twin.check()
    twin.buffer.close()


def test_a_kill_between_a_blocks_append_its_entry_and_the_reuse_of_its_places(
    tmp_path, monkeypatch
):
    """Stores as they are at each of these moments have every row, and go on."""
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=32)
    for _ in range(11):
        twin.step([True, True])
    twin.buffer.flush()
    moments = {}

    def note(name):
        moments[name] = tmp_path / name / "s"
        shutil.copytree(twin.path, moments[name])

    enter = Shard.enter

    def slowly(shard, places, lengths, packed, envs, stops):
        if not moments:
            note("appended")
            end, before = shard.end, np.zeros(2, np.int64)
            half = shard.mapping.array[: shard.field.index_bytes].view("<i8").reshape(-1, 2)
            half[places[0], 0] = end
            note("an entry half written")
            enter(shard, places, lengths, before.ctypes.data, envs, stops)
            note("named")
            shard.end = end
        enter(shard, places, lengths, packed, envs, stops)
        if len(moments) == 3:
            note("said to be there")

    monkeypatch.setattr(Shard, "enter", slowly)
    for _ in range(5):
        twin.step([True, True])
    twin.buffer._rows.store.maintenance.run()
    monkeypatch.undo()
    assert len(moments) == 4
    twin.buffer.close()
    full = [list(rows) for rows in twin.rows]
    for name, path in moments.items():
        twin.path = path
        page = CommitPage(private.commit_page(path), 2, 1, writable=False)
        twin.rows = [rows[:count] for rows, count in zip(full, page.count.tolist(), strict=True)]
        assert verify(path).findings == (), name
        twin.check_reader()
        twin.reopen()
        twin.check()
        for _ in range(40):
            twin.step([True, True])
        twin.reopen()
        twin.check()
        twin.buffer.close()
        assert verify(path).findings == (), name


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (1 << 20, None), (-8, None), (2**62, None), (3, None), (None, 1 << 20), (None, -1),
        (2**62, 2**62),
    ],
)  # fmt: skip
def test_an_entry_of_an_open_shard_that_points_outside_of_it(tmp_path, offset, length):
    twin = Twin(tmp_path / "s", num_envs=2, kept=None, compressor="lz4", segment_rows=32)
    for _ in range(20):
        twin.step([True, True])
    maintenance = twin.buffer._rows.store.maintenance
    maintenance.run()
    killed = tmp_path / "killed"
    with maintenance.lock:
        shutil.copytree(twin.path, killed)
    twin.buffer.close()
    (shard,) = killed.glob("is_final/live/open.*/0.0")
    data = bytearray(shard.read_bytes())
    entry = np.frombuffer(data, "<i8", 2, 32)  # rows 8 to 15 of the first env
    entry[:] = [entry[0] if offset is None else offset, entry[1] if length is None else length]
    shard.write_bytes(data)
    assert {(s.env, s.start, s.stop) for f in verify(killed).findings for s in f.rows} == {
        (0, 8, 16)
    }  # fmt: skip
    for mode in ("r", "a"):
        with diskreplay.open(killed, mode=mode) as buffer:
            for row in (7, 16):
                (frame,) = buffer.take("observation", [2 * row])
                np.testing.assert_array_equal(frame, twin.picture(2 * row))
            for row in (8, 15):
                with pytest.raises(diskreplay.CorruptSegmentError, match="rows 8 to 15"):
                    buffer.take("observation", [2 * row])


@pytest.mark.parametrize("when", ["sealed", "while it is sealed"])
def test_a_full_segment_that_is_sealed_is_not_handed_over(tmp_path, when):
    """The adding thread sees that a segment is open and far behind. Before it says so, the
    maintenance thread seals it, being full; its file may be deleted next, and then nobody can seal
    it a second time."""
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, FRAME, np.uint8),
        action_space=Discrete(9), capacity=64, compressor="raw", segment_rows=8,
    ) as buffer:  # fmt: skip
        for number in range(6):
            buffer.add(np.full(FRAME, number, np.uint8), 0, 0.0, False, False)
        store = buffer._rows.store
        column = store.columns["observation"]
        (segment,) = column.segments.list_open()
        giving = column.hand_over(np.array([10**6]), np.zeros(1, np.int64))
        with store.maintenance.lock:
            next(giving)
            if when == "sealed":
                column.seal(segment)
                assert list(giving) == []
                assert not segment.is_handed_over
            else:
                assert list(giving) == []
                assert segment.is_handed_over
                column.seal(segment)
            files.remove(segment.path)  # as when it has left
            assert list(column.seal_handed()) == []
            (tmp_path / "file").write_bytes(bytes(segment.mapping.array))
            shutil.move(tmp_path / "file", segment.path)
