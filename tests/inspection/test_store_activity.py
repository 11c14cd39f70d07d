"""Who writes, when, and what is beside."""

import datetime
import json
import os
import subprocess
import sys

import pytest

from diskreplay.inspection import store_activity
from diskreplay.inspection.store_activity import Writer, checkpoints_beside, last_write, writer_of
from diskreplay.store import file_locks, private


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def made(path):
    private.directory(path).mkdir(parents=True)
    return path


def test_no_lock_file_no_writer(tmp_path):
    assert writer_of(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the locks that are held")
def test_a_lock_that_is_held_and_let_go(tmp_path):
    fd = private.hold(made(tmp_path))
    assert writer_of(tmp_path) == Writer(os.getpid(), True)
    file_locks.unlock(fd)
    assert writer_of(tmp_path) == Writer(os.getpid(), False)


def test_another_file_of_the_same_process_does_not_count(tmp_path):
    private.lock_file(made(tmp_path)).write_text(f"{os.getpid()}\n")
    fd = private.hold(made(tmp_path / "other"))
    if sys.platform == "linux":
        assert writer_of(tmp_path) == Writer(os.getpid(), False)
    file_locks.unlock(fd)


def test_where_locks_are_not_listed(tmp_path, monkeypatch, gone):
    monkeypatch.setattr(store_activity, "_LOCKS", tmp_path / "nothing")
    lock = private.lock_file(made(tmp_path))
    lock.write_text(f"{os.getpid()}\n")
    assert writer_of(tmp_path) == Writer(os.getpid(), None)
    lock.write_text(f"{gone}\n")
    assert writer_of(tmp_path) == Writer(gone, False)


@pytest.mark.parametrize(("text", "holds"), [("", False), ("rubbish", None), ("-1", None)])
def test_a_lock_file_without_a_number(tmp_path, text, holds):
    private.lock_file(made(tmp_path)).write_text(text)
    assert writer_of(tmp_path) == Writer(None, holds)


def test_the_last_write_is_the_newest(tmp_path):
    assert last_write(tmp_path) is None
    page = private.commit_page(made(tmp_path))
    for path, when in ((page, 2000), (tmp_path / "zarr.json", 1000)):
        path.write_text("")
        os.utime(path, (when, when))
    assert last_write(tmp_path) == 2000
    manifest = tmp_path / "is_final/saved/manifest.json"
    manifest.parent.mkdir()
    manifest.write_text("")
    os.utime(manifest, (500, 500))
    assert last_write(tmp_path) == 500  # of a checkpoint, whenever its files were linked


def whole(path, when):
    """As little as a checkpoint can be. It says when it was saved; its files are of another
    time, as those of a copy."""
    document = {"attributes": {"diskreplay": {"format_version": 2, "first": [0], "count": [0]}}}
    (path / "zarr.json").write_text(json.dumps(document))
    contents = {
        "saved_at": datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat(),
        "files": {"zarr.json": [(path / "zarr.json").stat().st_size, 0]},
    }
    (path / "is_final/saved").mkdir(parents=True)
    (path / "is_final/saved/manifest.json").write_text(json.dumps(contents))


def test_the_last_write_of_a_checkpoint_is_what_it_says(tmp_path):
    whole(tmp_path, 700)
    assert last_write(tmp_path) == 700


def test_checkpoints_beside(tmp_path):
    for name, when in (
        ("a_ckpt.7", 30),
        ("checkpoints/a_ckpt.10", 20),
        ("my-ckpts/b_ckpt.best", 10),
    ):
        (tmp_path / name).mkdir(parents=True)
        whole(tmp_path / name, when)
    for name in ("other/a_ckpt.1", "a_ckpt.8", ".a_ckpt.9.tmp-1", "replay"):
        (tmp_path / name).mkdir(parents=True)  # elsewhere, not whole, hidden, no checkpoint
    whole(tmp_path / "other" / "a_ckpt.1", 1)
    whole(tmp_path / ".a_ckpt.9.tmp-1", 1)
    os.utime(tmp_path / "a_ckpt.8", (25, 25))
    found = checkpoints_beside(tmp_path / "replay")
    assert [(beside.suffix, beside.saved, beside.whole) for beside in found] == [
        ("best", 10, True), ("10", 20, True), ("8", 25, False), ("7", 30, True),
    ]  # fmt: skip
    assert found[0].path == tmp_path / "my-ckpts" / "b_ckpt.best"
    assert checkpoints_beside(tmp_path / "nowhere" / "replay") == []
