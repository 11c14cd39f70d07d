"""Stores and checkpoints behind links, moved while they are open, and without locks."""

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.convert.copying import convert
from diskreplay.errors import (
    DiskReplayError,
    LockedError,
    StorageError,
    StoreMovedError,
    StorePermissionError,
)
from diskreplay.store.listing import checkpoints, remove, superfluous
from tests.disks import alone, can_mount


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
        **{"capacity": 400, "compressor": "lz4", "segment_rows": 16, **options},
    )  # fmt: skip


def add(buffer, rows, start=0):
    for _ in range(rows):
        number = start + buffer.add_count
        buffer.add(np.full(64, number % 251, np.uint8), number % 4, float(number), False, False)


def rows_of(buffer):
    """The rewards of all rows, the first of which says where they began."""
    first, count = buffer.bounds[0].tolist()
    rewards = buffer.take("reward", np.arange(first, count)).astype(int)
    observations = buffer.take("observation", np.arange(first, count))
    np.testing.assert_array_equal(observations[:, 7], rewards % 251)
    return rewards.tolist()


def rows_in(path):
    assert verify(path).findings == ()
    with diskreplay.open(path) as reader:
        return rows_of(reader)


def snapshot(directory):
    return {
        path.relative_to(directory): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


# -- links


def test_a_store_behind_a_link(tmp_path):
    """The link was exchanged, and the store could not be opened any more."""
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    link.symlink_to(Path("disk") / "real")
    real.mkdir()
    with make(link) as buffer:
        assert buffer.path == real
        add(buffer, 40)
        buffer.save(tmp_path / "checkpoints", 1)
        add(buffer, 20)
        buffer.load(tmp_path / "checkpoints", 1)
        assert rows_of(buffer) == list(range(40))
        add(buffer, 5)
        with diskreplay.open(link) as reader:
            assert reader.path == real
            assert rows_of(reader) == list(range(45))
    assert link.is_symlink()
    assert names_in(tmp_path) == ["checkpoints", "disk", "link"]
    assert names_in(tmp_path / "disk") == ["real"]
    with make(link) as buffer:
        assert rows_of(buffer) == list(range(45))
        with pytest.raises(LockedError):
            make(real)


def test_links_that_lead_nowhere(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
        for call in (
            lambda: make(loop), lambda: diskreplay.open(loop), lambda: diskreplay.open(loop, "a"),
            lambda: buffer.save(loop, 1), lambda: buffer.load(loop, 1),
            lambda: convert(tmp_path / "store", loop, overwrite=True),
        ):  # fmt: skip
            with pytest.raises(StorageError, match="loop") as caught:
                call()
            assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("name", ["zarr.json", "is_final/saved/manifest.json", "reward"])
def test_a_file_that_is_a_link_to_itself(tmp_path, name):
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
        saved = Path(buffer.save(tmp_path, 1))
        (saved / name).rename(saved / "before")
        (saved / name).symlink_to(saved / name)
        with pytest.raises(DiskReplayError):
            buffer.load(tmp_path, 1)
        assert rows_of(buffer) == list(range(10))
        for look in (lambda: diskreplay.open(saved).close(), lambda: verify(saved)):
            with contextlib.suppress(DiskReplayError):  # and no error of another kind
                look()


def test_a_link_to_a_store_that_a_kill_has_left_aside(tmp_path):
    """It leads nowhere between the two renames that stand in for an exchange."""
    with make(tmp_path / "real") as buffer:
        add(buffer, 10)
    room = tmp_path / f".real.load-{16 * '0'}"
    room.mkdir()
    (tmp_path / "real").rename(room / "aside")
    (tmp_path / "link").symlink_to("real")
    with make(tmp_path / "link") as buffer:
        assert rows_of(buffer) == list(range(10))
    assert names_in(tmp_path) == ["link", "real"]


def test_a_link_to_a_disk_that_is_not_mounted(tmp_path):
    """The directory was made where it led to, and the run began anew, with no word."""
    disk, runs = tmp_path / "mnt" / "disk", tmp_path / "runs"
    runs.mkdir()
    (runs / "second").symlink_to(disk)
    (runs / "first").symlink_to("second")
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
        buffer.save(tmp_path / "checkpoints", 1)
        calls = (
            make, diskreplay.open, lambda path: diskreplay.open(path, "a"),
            lambda path: buffer.save(path, 1), buffer.load, diskreplay.checkpoints,
            lambda path: buffer.export_gz(path, 1), lambda path: convert(buffer.path, path),
        )  # fmt: skip
        for path in (runs / "first", runs / "first" / "replay", runs / "second" / "a" / "b"):
            for call in calls:
                with pytest.raises(StorageError, match="mount the disk") as caught:
                    call(path)
                assert caught.value.errno == errno.ENOENT
                link = runs / path.relative_to(runs).parts[0]
                assert caught.value.filename == str(link)
                assert f"a link to {disk}" in str(caught.value)
        (tmp_path / "mnt").mkdir()  # the place to mount disks at; it may hold others
        for path in (runs / "first", runs / "second", runs / "first" / "replay"):
            for call in calls:
                with pytest.raises(StorageError, match="mount the disk"):
                    call(path)
        assert names_in(tmp_path / "mnt") == []
        disk.mkdir()
        with make(runs / "first" / "replay") as other:
            assert other.path == disk / "replay"
        buffer.load(tmp_path / "checkpoints")
    assert names_in(tmp_path) == ["checkpoints", "mnt", "runs", "store"]


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
        monkeypatch.chdir(here)
        here.rmdir()
        for call in (
            lambda: make("replay"), lambda: diskreplay.open("replay"),
            lambda: diskreplay.open("replay", "a"), lambda: buffer.save("checkpoints", 1),
            lambda: buffer.load("checkpoints"), lambda: diskreplay.checkpoints("checkpoints"),
            lambda: buffer.export_gz("gz", 1), lambda: convert(tmp_path / "store", "copy"),
        ):  # fmt: skip
            with pytest.raises(StorageError, match=r"working directory .* is gone") as caught:
                call()
            assert caught.value.errno == errno.ENOENT
        buffer.save(tmp_path / "checkpoints", 1)  # with absolute paths all goes on
        buffer.load(tmp_path / "checkpoints")


@pytest.mark.skipif(sys.platform != "linux", reason="a place that takes no directories: /proc")
def test_a_place_that_takes_no_directories(tmp_path):
    """Its parent was made again and again, until Python's stack was full."""
    with make(tmp_path / "store") as buffer:
        for call in (
            lambda: make("/proc/foo"), lambda: make("/proc/foo/bar"),
            lambda: buffer.save("/proc/foo", 1), lambda: buffer.export_gz("/proc/foo", 1),
            lambda: convert(tmp_path / "store", "/proc/foo"),
        ):  # fmt: skip
            with pytest.raises(StorageError, match=r"^/proc/.*choose another place") as caught:
                call()
            assert caught.value.errno == errno.ENOENT


def test_a_file_where_a_directory_is_to_be(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("notes")
    with make(tmp_path / "store") as buffer:
        add(buffer, 5)
        for path in (text, text / "below"):
            for call in (make, lambda path: buffer.save(path, 1)):
                with pytest.raises(StorageError) as caught:
                    call(path)
                assert str(caught.value).startswith(f"{text}: a file; a directory expected")
    assert text.read_text() == "notes"
    assert names_in(tmp_path) == ["store", "text.txt"]


def test_a_store_of_another_user(tmp_path, monkeypatch):
    """As the system refuses it to others; tests may run as root, whom nothing is refused."""
    with make(tmp_path / "store") as buffer:
        add(buffer, 10)
    real = os.open

    def refuse(path, flags, *arguments, **options):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    for call in (
        lambda: make(tmp_path / "store"),
        lambda: diskreplay.open(tmp_path / "store", "a"),
    ):
        with pytest.raises(StorePermissionError, match=r"diskreplay\.open\(path\)") as caught:
            call()
        assert str(caught.value).startswith(f"{tmp_path / 'store'}: ")
    with diskreplay.open(tmp_path / "store") as reader:
        assert rows_of(reader) == list(range(10))


def test_checkpoints_that_are_links(tmp_path):
    """Moved to another disk and linked back: once such a one was to be retired, no save worked any
    more."""
    directory, attic = tmp_path / "checkpoints", tmp_path / "attic"
    attic.mkdir()
    with make(tmp_path / "store") as buffer:
        for number in range(1, 4):
            add(buffer, 20)
            path = buffer.save(directory, number)
            path.rename(attic / path.name)
            path.symlink_to(attic / path.name)
        before = snapshot(attic)
        assert [c.number for c in checkpoints(directory) if c.whole] == [1, 2, 3]
        buffer.load(directory, 2)
        assert rows_of(buffer) == list(range(40))
        buffer.load(directory)
        assert rows_of(buffer) == list(range(60))
        add(buffer, 20)
        for number in (4, 5, 6):  # 1 and 2 are retired
            buffer.save(directory, number)
        assert names_in(directory) == [f"replay_ckpt.{number}" for number in (3, 4, 5, 6)]
        assert (directory / "replay_ckpt.3").is_symlink()
        buffer.save(directory, 3)  # replaces the link
        assert not (directory / "replay_ckpt.3").is_symlink()
        assert rows_in(directory / "replay_ckpt.3") == list(range(80))
        (directory / "replay_ckpt.7").symlink_to(attic / "gone")
        buffer.save(directory, 7)  # also one that leads nowhere
        assert rows_in(directory / "replay_ckpt.7") == list(range(80))
        (directory / "replay_ckpt.9").symlink_to(attic / "replay_ckpt.1")
        (directory / "replay_ckpt.8").symlink_to(attic / "replay_ckpt.1")
        remove(superfluous(directory, 1))
        assert names_in(directory) == ["replay_ckpt.9"]
    assert snapshot(attic) == before


def test_a_file_where_a_checkpoint_is_to_be(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 5)
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "replay_ckpt.1").write_text("notes")
        with pytest.raises(StorageError, match=r"replay_ckpt\.1"):
            buffer.save(tmp_path / "checkpoints", 1)
        assert names_in(tmp_path / "checkpoints") == ["replay_ckpt.1"]
        assert (tmp_path / "checkpoints" / "replay_ckpt.1").read_text() == "notes"


def test_convert_onto_a_link(tmp_path):
    """It left a store where the link was, and the link beside it."""
    (tmp_path / "disk").mkdir()
    with make(tmp_path / "disk" / "real") as buffer:
        add(buffer, 40)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "real")
    convert(link, link, compressor="zstd", overwrite=True)
    assert link.is_symlink()
    assert rows_in(link) == list(range(40))
    with diskreplay.open(link) as reader:
        fields = reader.zarr().attrs["diskreplay"]["fields"]
    assert {"name": "observation", "compressor": "zstd"}.items() <= fields[0].items()
    assert names_in(tmp_path) == ["disk", "link"]
    assert names_in(tmp_path / "disk") == ["real"]


# In a mount namespace of its own: what is mounted goes with the process.
ELSEWHERE = """
import ctypes, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
root = Path(sys.argv[2])
disk = root / "disk"
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
import numpy as np
from test_places import add, make, names_in, rows_in, rows_of
assert os.stat(disk).st_dev != os.stat(root).st_dev
for name in ("store", "checkpoints"):
    (disk / name).mkdir()
    (root / name).symlink_to(disk / name)
with make(root / "store") as buffer:
    assert buffer.path == disk / "store"
    add(buffer, 40)
    assert buffer.save(root / "checkpoints", 1) == disk / "checkpoints" / "replay_ckpt.1"
    buffer.save(root / "here", 2)  # copies
    add(buffer, 20)
    buffer.load(root / "checkpoints", 1)
    assert rows_of(buffer) == list(range(40))
    add(buffer, 20)
    buffer.load(root / "here")
    assert rows_of(buffer) == list(range(40))
    (root / "here" / "replay_ckpt.3").symlink_to(disk / "checkpoints" / "replay_ckpt.1")
with make(root / "other") as buffer:
    buffer.load(root / "here", 3)
    assert rows_of(buffer) == list(range(40))
assert rows_in(root / "store") == list(range(40))
assert names_in(disk) == ["checkpoints", "store"]
assert names_in(root) == ["checkpoints", "disk", "here", "other", "store"]
print("done")
"""


def test_links_to_another_file_system(tmp_path):
    command = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("may not make a mount namespace")
    found = subprocess.run(
        [*command, sys.executable, "-c", ELSEWHERE, str(Path(__file__).parent), str(tmp_path)],
        stdout=subprocess.PIPE, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert found.stdout == "done\n"


# -- moved while it is open


CALLS = {
    "flush": lambda buffer, root: buffer.flush(),
    "save": lambda buffer, root: buffer.save(root / "checkpoints", 2),
    "load": lambda buffer, root: buffer.load(root / "checkpoints", 1),
    "add": lambda buffer, root: add(buffer, 5000),
    "close": lambda buffer, root: buffer.close(),
}


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
@pytest.mark.parametrize("there", ["nothing", "another store"])
@pytest.mark.parametrize("rows", [40, 48, 64])
def test_no_segment_is_made_where_a_moved_store_was(tmp_path, rows, there, compressor):
    """An add that began a segment made the directories anew, or wrote into another store, and the
    rows in it were lost."""
    path, moved = tmp_path / "replay", tmp_path / "old"
    options = {"compressor": compressor, "capacity": 20_000}
    buffer = make(path, **options)
    add(buffer, rows)
    buffer.flush()  # the segments of the first 48 rows are full then
    path.rename(moved)
    if there == "another store":
        with make(path, **options) as other:
            add(other, 200)
            with pytest.raises(StoreMovedError):
                add(buffer, 20_000)
            assert rows_of(other) == list(range(200))
    else:
        with pytest.raises(StoreMovedError):
            add(buffer, 20_000)
        assert not path.exists()
    added = buffer.add_count
    with pytest.raises(StoreMovedError):
        buffer.close()
    assert path.exists() == (there == "another store")
    if path.exists():
        assert rows_in(path) == list(range(200))
    with make(moved, **options) as again:
        assert rows_of(again) == list(range(added))


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("there", ["nothing", "another store", "a file"])
@pytest.mark.costly(6)
def test_a_store_that_is_moved_while_it_is_open(tmp_path, call, there, compressor):
    """Another run made a store at the old path, and the first one closed: it wrote its own records
    there, and most of the other's rows were gone."""
    path, moved = tmp_path / "replay", tmp_path / "old"
    options = {"compressor": compressor, "capacity": 2000}
    buffer = make(path, **options)
    add(buffer, 40)
    buffer.save(tmp_path / "checkpoints", 1)
    add(buffer, 30)
    path.rename(moved)
    if there == "another store":
        with make(path, **options) as other:
            add(other, 200)
    elif there == "a file":
        path.write_text("something")
    before = snapshot(tmp_path) if there != "another store" else snapshot(path)
    add(buffer, 3)  # fits into what is mapped, and is there as well
    with pytest.raises(StoreMovedError) as caught:
        CALLS[call](buffer, tmp_path)
    assert str(path) in str(caught.value)
    if sys.platform == "linux":
        assert str(moved) in str(caught.value)
    rows = buffer._rows.add_count
    assert rows >= 73
    if call != "close":
        buffer.sample(4)
        with pytest.raises(LockedError):
            make(moved, **options)
        with pytest.raises(StoreMovedError):
            buffer.close()
    buffer.close()
    assert buffer.closed
    if there == "another store":
        assert snapshot(path) == before
        assert rows_in(path) == list(range(200))
    assert names_in(tmp_path / "checkpoints") == ["replay_ckpt.1"]
    assert not [name for name in names_in(tmp_path) if name.startswith(".")]
    with make(moved, **options) as again:
        assert rows_of(again) == list(range(rows))


def test_save_makes_no_directory_at_the_old_place(tmp_path):
    """It was there again, with nothing in it, when the error was raised."""
    (tmp_path / "run").mkdir()
    buffer = make(tmp_path / "run" / "replay")
    add(buffer, 40)
    (tmp_path / "run").rename(tmp_path / "old")
    with pytest.raises(StoreMovedError, match=r"^/.*old/replay"):
        buffer.save(tmp_path / "run" / "checkpoints", 1)
    assert names_in(tmp_path) == ["old"]
    with pytest.raises(StoreMovedError):
        buffer.close()


def test_a_store_that_is_moved_there_and_back(tmp_path):
    with make(tmp_path / "replay") as buffer:
        add(buffer, 40)
        (tmp_path / "replay").rename(tmp_path / "old")
        with pytest.raises(StoreMovedError):
            buffer.flush()
        (tmp_path / "old").rename(tmp_path / "replay")
        buffer.flush()
        (tmp_path / "replay").rename(tmp_path / "old")
        (tmp_path / "replay").symlink_to("old")  # it is at its path still
        add(buffer, 40)
        buffer.save(tmp_path / "checkpoints", 1)
    assert rows_in(tmp_path / "old") == list(range(80))


def test_a_store_that_is_removed_while_it_is_open(tmp_path):
    buffer = make(tmp_path / "replay")
    add(buffer, 40)
    while (tmp_path / "replay").exists():  # the maintenance thread may just make a file in it
        shutil.rmtree(tmp_path / "replay", ignore_errors=True)
    with pytest.raises(StoreMovedError, match="deleted"):
        buffer.close()
    assert buffer.closed
    assert names_in(tmp_path) == []


def test_a_store_whose_parent_is_moved_and_its_threads(tmp_path):
    before = set(threading.enumerate())
    (tmp_path / "run").mkdir()
    buffer = make(tmp_path / "run" / "replay")
    add(buffer, 40)
    (tmp_path / "run").rename(tmp_path / "old")
    with pytest.raises(StoreMovedError, match="old/replay"):
        buffer.close()
    assert rows_in(tmp_path / "old" / "replay") == list(range(40))
    assert not set(threading.enumerate()) - before


def test_a_reader_of_a_store_that_is_moved(tmp_path):
    """It does not take the rows of the one that is made at the old path for its own."""
    writer = make(tmp_path / "replay")
    add(writer, 40)
    with diskreplay.open(tmp_path / "replay") as reader:
        assert rows_of(reader) == list(range(40))
        (tmp_path / "replay").rename(tmp_path / "old")
        with make(tmp_path / "replay") as other:
            add(other, 300, start=1000)
            add(writer, 5)
            with pytest.raises(StoreMovedError, match="old"):
                rows_of(reader)
    with pytest.raises(StoreMovedError):
        writer.close()


def test_an_older_api_whose_store_is_moved(tmp_path):
    from diskreplay.compat.rainbow import ReplayBuffer

    buffer = ReplayBuffer(4, 100, 8, path=tmp_path / "replay")
    for number in range(30):
        buffer.store(np.full(4, number), 1, float(number), np.full(4, number + 1), number % 9 == 8)
    (tmp_path / "replay").rename(tmp_path / "old")
    with pytest.raises(StoreMovedError, match="old"):
        buffer.close()
    with ReplayBuffer(4, 100, 8, path=tmp_path / "old") as again:
        assert len(again) == 30
    assert names_in(tmp_path) == ["old"]


# -- file systems that keep the names of open files


def test_nothing_is_left_where_a_removed_file_has_a_name_while_it_is_open(tmp_path, monkeypatch):
    """As on NFS, and most file systems in user space: its directory cannot be removed till then."""
    unlink, close, hidden = os.unlink, os.close, {}

    def is_open(fd, path):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{fd}") == str(path)

    def unlink_or_hide(path, **where):
        opened = [int(fd) for fd in os.listdir("/proc/self/fd") if is_open(fd, path)]
        if not opened:
            return unlink(path, **where)
        hidden[opened[0]] = Path(path).with_name(f".hidden{len(hidden)}")
        return os.rename(path, hidden[opened[0]])

    def close_and_forget(fd):
        close(fd)
        if fd in hidden:
            unlink(hidden.pop(fd))

    monkeypatch.setattr(os, "unlink", unlink_or_hide)
    monkeypatch.setattr(os, "close", close_and_forget)
    with make(tmp_path / "store") as buffer:
        add(buffer, 40)
        for number in (1, 2, 2, 3):
            buffer.save(tmp_path / "checkpoints", number, keep=2)
        buffer.load(tmp_path / "checkpoints", 2)
        assert rows_of(buffer) == list(range(40))
    assert names_in(tmp_path / "checkpoints") == ["replay_ckpt.2", "replay_ckpt.3"]
    assert names_in(tmp_path) == ["checkpoints", "store"]


# -- without locks


@pytest.mark.parametrize("code", ["ENOLCK", "ENOTSUP", "EOPNOTSUPP", "EINVAL", "ENOSYS"])
def test_a_file_system_that_refuses_locks_is_named(tmp_path, monkeypatch, code):
    def refuse(_fd, _how):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    with make(tmp_path / "store") as buffer:
        add(buffer, 5)
    monkeypatch.setattr(fcntl, "flock", refuse)
    for call in (
        lambda: make(tmp_path / "store"),
        lambda: make(tmp_path / "new"),
        lambda: diskreplay.open(tmp_path / "store", "a"),
    ):
        with pytest.raises(StorageError, match="refuses locks") as caught:
            call()
        assert caught.value.errno == getattr(errno, code)
        if sys.platform == "linux":
            mounts = [
                line.split(" ")[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()
            ]
            inside = [(point, kind) for point, kind in mounts
                      if f"{tmp_path}/".startswith(point.rstrip("/") + "/")]  # fmt: skip
            point, kind = max(inside, key=lambda mount: len(mount[0]))
            assert f"{point} ({kind})" in str(caught.value)
    with diskreplay.open(tmp_path / "store") as reader:  # needs none
        assert rows_of(reader) == list(range(5))


def test_checkpoints_on_a_file_system_that_refuses_locks(tmp_path, monkeypatch):
    """What a dead saver left there cannot be told from what a living one builds: it stays a day."""
    directory, flock = tmp_path / "checkpoints", fcntl.flock

    def refuse(fd, how):
        if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(directory):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", refuse)
    with make(tmp_path / "store") as buffer:
        add(buffer, 40)
        buffer.save(directory, 1)
        left = directory / ".replay_ckpt.1.tmp-0123456789abcdef"
        (left / "replay_ckpt.1").mkdir(parents=True)
        (left / "lock").touch()
        buffer.save(directory, 1)
        assert names_in(directory) == [left.name, "replay_ckpt.1"]
        old = time.time() - 25 * 3600
        os.utime(left, (old, old))
        buffer.save(directory, 2)
        assert names_in(directory) == ["replay_ckpt.1", "replay_ckpt.2"]
        buffer.load(directory, 1)
        assert rows_of(buffer) == list(range(40))


def leave_a_mount(base):
    """A store that is the root of a file system: what it refuses, and the way out of it."""
    place, inside = base / "volume", base / "volume" / "replay"
    with make(place) as buffer:
        add(buffer, 50)
        buffer.save(base / "checkpoints", 1)
        add(buffer, 30)
        before = rows_of(buffer)
        with pytest.raises(StorageError, match="mounted at this very directory") as caught:
            buffer.load(base / "checkpoints")
        assert caught.value.errno == errno.EBUSY
        assert not [name for name in os.listdir(base) if name.startswith(".volume")]
        assert rows_of(buffer) == before
        add(buffer, 5)
    names = os.listdir(place)
    inside.mkdir()
    for name in names:
        (place / name).rename(inside / name)
    with make(inside) as buffer:
        assert buffer.add_count == 85
        buffer.load(base / "checkpoints")
        assert buffer.add_count == 50


LEAVE_A_MOUNT = """
import subprocess, sys
from pathlib import Path
from tests.disks import mount
from tests.test_places import leave_a_mount

base = Path(sys.argv[1])
(base / "volume").mkdir()
if sys.argv[2] == "bind":
    (base / "there").mkdir()
    subprocess.run(["mount", "--bind", base / "there", base / "volume"], check=True)
else:
    mount(base / "volume")
leave_a_mount(base)
"""


@pytest.mark.parametrize("how", ["bind", "of its own"])
@pytest.mark.costly(1)
def test_a_file_system_mounted_at_the_store_itself(tmp_path, how, monkeypatch):
    if can_mount():
        command, options = alone("-c", LEAVE_A_MOUNT, tmp_path, how)
        done = subprocess.run(command, capture_output=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "volume")
    leave_a_mount(tmp_path)
