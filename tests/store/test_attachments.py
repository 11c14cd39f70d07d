"""A checkpoint belongs to a run: files that are saved with the rows, how many are kept, and which
there are."""

import datetime
import errno
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.store import files
from tests import processes


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (16,), "uint8"), action_space=Discrete(4),
        capacity=200, segment_rows=16, seed=1, **options,
    )  # fmt: skip


def add(buffer, rows):
    for _ in range(rows):
        n = buffer.add_count
        buffer.add(np.full(16, n % 256, np.uint8), n % 4, float(n), n % 10 == 9, False)


@pytest.fixture
def buffer(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 50)
        yield buffer


def contents(root):
    """Every file and directory below `root`."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def everything(tmp_path):
    (tmp_path / "config.yaml").write_text("lr: 1")
    return {
        "agent.pt": b"weights" * 1000,
        "empty": b"",
        "nets/critic.pt": lambda path: path.write_bytes(b"critic"),
        "nets/target critic-1.pt": bytearray(b"target"),
        "config.yaml": tmp_path / "config.yaml",
        "view": memoryview(np.arange(6, dtype=np.uint8))[::2],
    }


MANIFEST = "is_final/saved/manifest.json"
EXPECTED = {
    "agent.pt": b"weights" * 1000, "empty": b"", "nets/critic.pt": b"critic",
    "nets/target critic-1.pt": b"target", "config.yaml": b"lr: 1", "view": b"\0\2\4",
}  # fmt: skip


def test_attachments_are_saved_with_the_rows_and_found_again(tmp_path, buffer):
    before = datetime.datetime.now(datetime.UTC)
    at = buffer.save(tmp_path / "ckpt", 7, attachments=everything(tmp_path))
    assert at == tmp_path / "ckpt" / "replay_ckpt.7"
    (tmp_path / "config.yaml").write_text("lr: 2")
    assert verify(at).findings == ()
    rows = buffer.bounds.tolist()
    add(buffer, 30)
    for found in (
        buffer.load(tmp_path / "ckpt"), buffer.load(tmp_path / "ckpt", 7),
        *diskreplay.checkpoints(tmp_path / "ckpt"),
    ):  # fmt: skip
        assert isinstance(found, diskreplay.Checkpoint)
        assert (found.number, found.suffix, found.name, found.path) == (7, "7", "replay", at)
        assert {name: path.read_bytes() for name, path in found.attachments.items()} == EXPECTED
        assert before <= found.saved_at <= datetime.datetime.now(datetime.UTC)
        assert (found.rows, found.whole, found.trouble) == (50, True, None)
    assert buffer.bounds.tolist() == rows
    with pytest.raises(AttributeError):
        found.path = tmp_path


def test_one_attachment_by_its_name(tmp_path, buffer):
    directory = tmp_path / "ckpt"
    for number in (9, 10, "best"):
        written = {"agent.pt": f"{number}".encode(), "nets/critic.pt": b"c"}
        buffer.save(directory, number, attachments=written)
    buffer.save(tmp_path / "other", 3, attachments={})
    of = diskreplay.attachment
    assert of(directory).read_bytes() == b"10"  # as `load` takes it: not by the text of the suffix
    assert of(directory) == buffer.load(directory).attachments["agent.pt"]
    assert of(directory, 9).read_bytes() == b"9"
    assert of(str(directory), "best", "nets/critic.pt").read_bytes() == b"c"
    assert of(directory / "replay_ckpt.9", name="agent.pt") == of(directory, 9)
    with pytest.raises(errors.InvalidInputError, match=r"'x\.pt'; it has: agent\.pt, nets/critic"):
        of(directory, name="x.pt")
    with pytest.raises(errors.InvalidInputError, match="it has: none"):
        of(tmp_path / "other")
    with pytest.raises(errors.CheckpointNotFoundError, match="7"):
        of(directory, 7)
    with pytest.raises(errors.CheckpointNotFoundError, match="other name"):
        of(directory, prefix="other name")


def test_a_damaged_attachment_is_not_handed_out(tmp_path, buffer):
    at = buffer.save(tmp_path / "ckpt", 1, attachments={"agent.pt": b"abc", "fine.pt": b"x"})
    file = diskreplay.attachment(tmp_path / "ckpt")
    file.chmod(0o644)
    file.write_bytes(b"abd")
    assert diskreplay.attachment(tmp_path / "ckpt", name="fine.pt").read_bytes() == b"x"
    with pytest.raises(errors.CorruptCheckpointError, match=r"agent\.pt"):
        diskreplay.attachment(tmp_path / "ckpt")
    (at / "zarr.json").unlink()
    with pytest.raises(errors.IncompleteCheckpointError, match=r"zarr\.json"):
        diskreplay.attachment(tmp_path / "ckpt", name="fine.pt")


def test_an_attachment_while_a_run_saves(tmp_path, buffer):
    """Each of many is one that was whole, though all but the newest go."""
    done = threading.Event()

    def save():
        try:
            for number in range(12):
                attached = {"agent.pt": b"%d" % number}
                buffer.save(tmp_path / "ckpt", number, attachments=attached, keep=1)
        finally:
            done.set()

    buffer.save(tmp_path / "ckpt", 0, attachments={"agent.pt": b"0"}, keep=1)
    thread = threading.Thread(target=save)
    thread.start()
    found = []
    try:
        while not done.is_set():
            path = diskreplay.attachment(tmp_path / "ckpt")
            found.append(int(path.parents[3].name.rpartition(".")[2]))
    finally:
        thread.join()
    assert found == sorted(found)
    assert diskreplay.attachment(tmp_path / "ckpt").read_bytes() == b"11"


def test_every_attachment_is_in_the_manifest_and_never_written_to_again(tmp_path, buffer):
    import google_crc32c

    at = buffer.save(tmp_path / "ckpt", 7, attachments=everything(tmp_path))
    manifest = json.loads((at / MANIFEST).read_text())
    for name, data in EXPECTED.items():
        entry = manifest["files"][f"is_final/saved/attachments/{name}"]
        assert entry == [len(data), google_crc32c.value(data)]
        assert (at / "is_final/saved/attachments" / name).stat().st_mode & 0o777 == 0o444
    assert datetime.datetime.fromisoformat(manifest["saved_at"]).utcoffset() == datetime.timedelta(
        0
    )


def test_without_attachments(tmp_path, buffer):
    for given in (None, {}):
        at = buffer.save(tmp_path / "ckpt", 1, attachments=given)
        assert not (at / "is_final/saved/attachments").exists()
        assert buffer.load(tmp_path / "ckpt").attachments == {}


def test_a_checkpoint_that_is_replaced_takes_its_attachments_with_it(tmp_path, buffer):
    buffer.save(tmp_path / "ckpt", "best", attachments={"old.pt": b"1", "both.pt": b"2"})
    add(buffer, 1)
    buffer.save(tmp_path / "ckpt", "best", attachments={"new.pt": b"3", "both.pt": b"4"})
    found = buffer.load(tmp_path / "ckpt", "best")
    assert found.number is None
    assert {name: path.read_bytes() for name, path in found.attachments.items()} == {
        "new.pt": b"3", "both.pt": b"4",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "a/../b", "/etc/passwd", "a/", "/a", "a//b", "a\\b", ".hidden",
        "a/.b", "a\n", "é", "a.", "a ", "C:x", "x" * 101, "/".join(["x" * 99] * 5), 7, None, b"a",
        Path("a"),
    ],
    ids=lambda name: repr(name)[:20],
)  # fmt: skip
def test_names_that_are_refused(tmp_path, buffer, name):
    with pytest.raises(errors.InvalidInputError, match="attachment"):
        buffer.save(tmp_path / "ckpt", 1, attachments={"fine.pt": b"", name: b""})
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize(
    "names", [("a", "A"), ("a", "a/b"), ("a/b", "a"), ("nets/a", "Nets/b"), ("a/b/c", "A/B")]
)
def test_names_that_are_one_on_some_file_system(tmp_path, buffer, names):
    with pytest.raises(errors.InvalidInputError, match=f"attachment '{names[1]}'"):
        buffer.save(tmp_path / "ckpt", 1, attachments=dict.fromkeys(names, b""))
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("source", [None, 7, "text", ["a"], {"a": 1}, np.zeros(3)], ids=repr)
def test_what_cannot_be_attached(tmp_path, buffer, source):
    with pytest.raises(errors.InvalidInputError, match=r"attachment 'x\.pt'"):
        buffer.save(tmp_path / "ckpt", 1, attachments={"x.pt": source})
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(errors.InvalidInputError, match=str(path)):
            buffer.save(tmp_path / "ckpt", 1, attachments={"x.pt": path})
    with pytest.raises(errors.InvalidInputError, match="attachments: a dict"):
        buffer.save(tmp_path / "ckpt", 1, attachments=[("x.pt", b"")])
    assert not (tmp_path / "ckpt").exists()


def raising(path):
    path.write_bytes(b"half")
    raise RuntimeError("CUDA error")


def link_to_a_file(path):
    path.symlink_to("/etc/hostname")


def hard_link(path):
    other = path.parents[7] / "elsewhere"
    other.write_bytes(b"may change")
    os.link(other, path)


def another_file(path):
    path.write_bytes(b"good")
    path.with_suffix(".tmp").write_bytes(b"forgotten")


def deeper(path):
    path.write_bytes(b"good")
    path.with_name("more").mkdir()
    path.with_name("more").joinpath("x").write_bytes(b"forgotten")


def outside_of_its_place(path):
    path.write_bytes(b"good")
    path.parents[3].joinpath("zarr.json").write_bytes(b"forged")


@pytest.mark.parametrize(
    ("writer", "words"),
    [
        (raising, "RuntimeError: CUDA error"),
        (lambda path: None, "agent.pt is missing"),
        (lambda path: path.mkdir(), "agent.pt is a directory"),
        (link_to_a_file, "agent.pt is a link"),
        (hard_link, "agent.pt is a link"),
        (os.mkfifo, "no regular file"),
        (another_file, "agent.tmp is there and was not asked for"),
        (deeper, "more"),
        (outside_of_its_place, "zarr.json is there and was not asked for"),
        (lambda path: shutil.rmtree(path.parent), "missing"),
    ],
)
def test_a_writer_that_fails_leaves_what_was_there(tmp_path, buffer, writer, words):
    directory = tmp_path / "a" / "b" / "c" / "ckpt"
    buffer.save(directory, 1, attachments={"agent.pt": b"old"})
    before = contents(directory)
    add(buffer, 3)
    for suffix in (1, 2):
        with pytest.raises(errors.AttachmentError, match=r"'agent\.pt'") as caught:
            buffer.save(directory, suffix, attachments={"first": b"1", "agent.pt": writer})
        assert words in str(caught.value)
        if writer is raising:
            assert isinstance(caught.value.__cause__, RuntimeError)
        assert contents(directory) == before
    buffer.save(directory, 1, attachments={"agent.pt": b"new"})
    assert buffer.load(directory).attachments["agent.pt"].read_bytes() == b"new"


def test_a_disk_that_is_full_leaves_no_checkpoint(tmp_path, buffer, monkeypatch):
    directory = tmp_path / "ckpt"
    buffer.save(directory, 1)
    before = contents(directory)

    def full(path, _pieces, **_options):
        raise errors.DiskFullError(28, "full", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        with pytest.raises(errors.DiskFullError, match=r"agent\.pt"):
            buffer.save(directory, 2, attachments={"agent.pt": b"x"})
    assert contents(directory) == before


def out_of_space(path):
    path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def over_quota(path):
    try:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    except OSError as error:
        raise RuntimeError("cannot save the network") from error


def says_nothing_of_it(path):
    try:
        out_of_space(path)
    except OSError:
        raise RuntimeError("unexpected pos 832 vs 726")  # noqa: B904


@pytest.mark.parametrize("writer", [out_of_space, over_quota, says_nothing_of_it])
def test_a_writer_that_meets_a_full_disk(tmp_path, buffer, writer):
    directory = tmp_path / "ckpt"
    buffer.save(directory, 1)
    before = contents(directory)
    with pytest.raises(errors.DiskFullError, match=r"agent\.pt.*free some space") as caught:
        buffer.save(directory, 2, attachments={"agent.pt": writer})
    assert caught.value.errno in (errno.ENOSPC, errno.EDQUOT)
    assert type(caught.value.__cause__) in (OSError, RuntimeError)
    assert contents(directory) == before


def test_a_directory_that_goes_while_it_is_saved_to(tmp_path, buffer, monkeypatch):
    walk = os.walk

    def goes(top, *arguments):
        found = list(walk(top, *arguments))
        shutil.rmtree(tmp_path / "saved")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "walk", goes)
        with pytest.raises(errors.StorageError, match="cannot look at the file"):
            buffer.save(tmp_path / "saved", 1, attachments={"notes.txt": b"one"})
    buffer.save(tmp_path / "saved", 1, attachments={"notes.txt": b"two"})


def test_a_writer_that_fails_after_a_disk_was_full(tmp_path, buffer):
    """Who answers a full disk by a save learns of what is wrong now."""
    try:
        out_of_space(tmp_path / "file")
    except OSError:
        with pytest.raises(errors.AttachmentError, match="ValueError"):
            buffer.save(tmp_path / "ckpt", 1, attachments={"agent.pt": raising_late})


def after_a_full_log(_path):
    """On another disk, of whose error no file is known."""
    try:
        with open("/dev/full", "wb", 0) as file:
            file.write(b"line")
    except OSError:
        raise KeyError("optimizer")  # noqa: B904


def of_a_full_log(_path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/full")


@pytest.mark.parametrize("writer", [after_a_full_log, of_a_full_log])
def test_another_disk_that_is_full_is_not_the_checkpoint_s(tmp_path, buffer, writer):
    with pytest.raises(errors.AttachmentError, match=r"agent\.pt"):
        buffer.save(tmp_path / "ckpt", 1, attachments={"agent.pt": writer})


def raising_late(_path):
    raise ValueError("no network")


def test_ctrl_c_in_a_writer_leaves_no_checkpoint(tmp_path, buffer):
    def interrupted(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    buffer.save(tmp_path / "ckpt", 1)
    before = contents(tmp_path / "ckpt")
    with pytest.raises(KeyboardInterrupt):
        buffer.save(tmp_path / "ckpt", 2, attachments={"agent.pt": interrupted})
    assert contents(tmp_path / "ckpt") == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.store.test_attachments import add, make
buffer = make(Path(sys.argv[1]) / "killed")
add(buffer, 40)
def writer(path):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
buffer.save(Path(sys.argv[1]) / "ckpt", 1, attachments={"agent.pt": b"old"})
add(buffer, 40)
buffer.save(Path(sys.argv[1]) / "ckpt", 1, attachments={"first.pt": b"1", "agent.pt": writer})
"""


def test_a_process_that_is_killed_in_a_writer_leaves_the_old_checkpoint(tmp_path):
    done = processes.run(KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL
    (found,) = diskreplay.checkpoints(tmp_path / "ckpt")
    assert (found.rows, found.whole, list(found.attachments)) == (40, True, ["agent.pt"])
    with make(tmp_path / "killed") as buffer:
        buffer.save(tmp_path / "ckpt", 2)  # removes what was left
    names = {path.name for path in (tmp_path / "ckpt").iterdir()}
    assert names == {"replay_ckpt.1", "replay_ckpt.2"}


def test_attachments_are_durable_before_the_checkpoint_has_its_name(tmp_path, buffer, monkeypatch):
    synced, renamed = set(), []
    sync, rename = files.sync, files.rename

    def noting_sync(paths):
        paths = list(map(Path, paths))
        synced.update(path.name for path in paths)
        sync(paths)

    def noting_rename(source, target):
        if target.name == "replay_ckpt.3":
            renamed.append(set(synced))
        rename(source, target)

    monkeypatch.setattr(files, "sync", noting_sync)
    monkeypatch.setattr(files, "rename", noting_rename)
    buffer.save(tmp_path / "ckpt", 3, attachments={"nets/agent.pt": b"x", "env": b"y"})
    ((*names,),) = renamed
    assert {"agent.pt", "nets", "env", "attachments", "manifest.json"} <= set(names)


# -- writers and the buffer


def test_a_writer_may_use_the_buffer_while_another_thread_adds(tmp_path, buffer):
    """It is called without the lock. The rows are those of the moment after it."""
    seen = []

    def writer(path):
        other = threading.Thread(target=add, args=(buffer, 20))
        other.start()
        other.join(400)
        assert not other.is_alive(), "add waits for the writer"
        batch = buffer.sample(8)
        buffer.update_priorities(batch.id, np.ones(8))
        buffer.flush()
        seen.append(buffer.statistics().rows)
        buffer.save(tmp_path / "other", 1)
        path.write_bytes(b"x")

    buffer.save(tmp_path / "ckpt", 1, attachments={"agent.pt": writer})
    assert seen == [70]
    assert [c.rows for c in diskreplay.checkpoints(tmp_path / "ckpt")] == [70]
    assert [c.rows for c in diskreplay.checkpoints(tmp_path / "other")] == [70]


def test_a_writer_that_closes_the_buffer(tmp_path):
    buffer = make(tmp_path / "store")
    add(buffer, 5)

    def writer(path):
        path.write_bytes(b"x")
        buffer.close()

    with pytest.raises(errors.ClosedError):
        buffer.save(tmp_path / "ckpt", 1, attachments={"agent.pt": writer})
    assert list((tmp_path / "ckpt").iterdir()) == []


def test_attachments_do_not_disturb_what_is_drawn(tmp_path, buffer):
    buffer.save(tmp_path / "ckpt", 1)
    expected = [buffer.sample(8).id.tolist() for _ in range(5)]
    buffer.load(tmp_path / "ckpt", 1)
    buffer.save(tmp_path / "ckpt", 2, attachments={"agent.pt": b"x"})
    buffer.load(tmp_path / "ckpt")
    assert [buffer.sample(8).id.tolist() for _ in range(5)] == expected


# -- damage


@pytest.mark.parametrize("harm", ["flip", "short", "long", "missing", "link", "directory"])
@pytest.mark.parametrize("name", ["agent.pt", "nets/critic.pt"])
def test_a_damaged_attachment_is_named_and_nothing_is_loaded(tmp_path, buffer, name, harm):
    at = buffer.save(tmp_path / "ckpt", 1, attachments=everything(tmp_path))
    add(buffer, 5)
    path = at / "is_final/saved/attachments" / name
    path.chmod(0o644)
    data = path.read_bytes()
    if harm == "flip":
        path.write_bytes(data[:3] + bytes([data[3] ^ 1]) + data[4:])
    elif harm in ("short", "long"):
        path.write_bytes(data[:-1] if harm == "short" else data + b"x")
    else:
        path.rename(tmp_path / "away")
        if harm == "link":
            path.symlink_to(tmp_path / "away")
        elif harm == "directory":
            path.mkdir()
    count, state = buffer.add_count, buffer.rng.bit_generator.state
    with pytest.raises(errors.CorruptCheckpointError, match=name):
        buffer.load(tmp_path / "ckpt")
    assert (buffer.add_count, buffer.rng.bit_generator.state) == (count, state)
    add(buffer, 1)
    assert path in {finding.path for finding in verify(at).findings}
    (found,) = diskreplay.checkpoints(tmp_path / "ckpt")
    assert found.whole == (harm == "flip")
    assert name in (found.trouble or name)


def test_a_file_that_nobody_attached_is_named(tmp_path, buffer):
    at = buffer.save(tmp_path / "ckpt", 1, attachments={"agent.pt": b"x"})
    (at / "is_final/saved/attachments" / "more").write_bytes(b"x")
    assert [(f.kind, f.path.name) for f in verify(at).findings] == [("orphan", "more")]


# -- how many are kept, and which there are


def saved(directory):
    return [one.suffix for one in diskreplay.checkpoints(directory)]


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("keep", "left"),
    [(1, ["6"]), (np.int64(3), ["4", "5", "6"]), (None, [*"0123456"]), (100, [*"0123456"])],
)
def test_so_many_checkpoints_are_kept(tmp_path, buffer, keep, left):
    for number in range(7):
        buffer.save(tmp_path, number, keep=None)
    buffer.save(tmp_path, "best", keep=keep)
    assert saved(tmp_path) == ["best", *left]
    buffer.save(tmp_path, 2, keep=1)  # below the highest, and just written
    assert saved(tmp_path) == ["best", "2", "6"]
    for number in range(7, 12):
        buffer.save(tmp_path, number)
    assert saved(tmp_path) == ["best", "8", "9", "10", "11"]


@pytest.mark.parametrize("keep", [0, -1, True, 1.0, "4", np.float64(4)], ids=repr)
def test_numbers_to_keep_that_are_refused(tmp_path, buffer, keep):
    with pytest.raises(errors.InvalidInputError, match="keep"):
        buffer.save(tmp_path / "ckpt", 1, keep=keep)
    assert not (tmp_path / "ckpt").exists()


def test_checkpoints_are_listed_in_their_order(tmp_path, buffer):
    assert diskreplay.checkpoints(tmp_path / "none") == []
    for suffix in (10, "9", "best", 200, "07", 7, "a.b"):
        buffer.save(tmp_path / "ckpt", suffix, keep=None)
    (tmp_path / "ckpt" / "notes").mkdir()
    (tmp_path / "ckpt" / "replay_ckpt.300").write_bytes(b"a file")
    with make(tmp_path / "eval", name="eval") as other:
        add(other, 3)
        other.save(tmp_path / "ckpt", 5)
    assert saved(tmp_path / "ckpt") == ["a.b", "best", "07", "7", "9", "10", "200"]
    found = diskreplay.checkpoints(tmp_path / "ckpt")
    assert [one.number for one in found] == [None, None, 7, 7, 9, 10, 200]
    assert buffer.load(tmp_path / "ckpt").path == found[-1].path
    assert [c.rows for c in diskreplay.checkpoints(tmp_path / "ckpt", "eval")] == [3]
    assert len(diskreplay.checkpoints(tmp_path / "ckpt", None)) == 8
    buffer.save(tmp_path / "ckpt", 201, keep=4)  # 07 and 7 are two checkpoints
    assert saved(tmp_path / "ckpt") == ["a.b", "best", "9", "10", "200", "201"]
    with pytest.raises(errors.StorageError):
        diskreplay.checkpoints(tmp_path / "ckpt" / "replay_ckpt.300")


HARM = {
    "no manifest": lambda at: (at / MANIFEST).unlink(),
    "a manifest of nonsense": lambda at: (at / MANIFEST).write_bytes(b"\xff{"),
    "no attributes": lambda at: (at / "zarr.json").unlink(),
    "an attribute of another kind": lambda at: (at / "zarr.json").write_text(
        (at / "zarr.json").read_text().replace('"count": [', '"count": ["x", ')
    ),
    "a date of nonsense": lambda at: (at / MANIFEST).write_text(
        (at / MANIFEST).read_text().replace('"saved_at": "2', '"saved_at": "x')
    ),
    "nothing in it": lambda at: (shutil.rmtree(at), at.mkdir()),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_broken_checkpoint_is_listed_as_broken(tmp_path, buffer, harm):
    for number in (1, 2, 3):
        at = buffer.save(tmp_path / "ckpt", number)
    HARM[harm](at)
    *whole, broken = diskreplay.checkpoints(tmp_path / "ckpt")
    assert [one.whole for one in whole] == [True, True]
    assert (broken.number, broken.whole, broken.attachments) == (3, False, {})
    assert str(at) in broken.trouble
    with pytest.raises(errors.DiskReplayError):
        buffer.load(tmp_path / "ckpt")


def test_a_checkpoint_of_before_says_no_date(tmp_path, buffer):
    at = buffer.save(tmp_path / "ckpt", 1)
    document = json.loads((at / MANIFEST).read_text())
    del document["saved_at"]
    (at / MANIFEST).write_text(json.dumps(document))
    assert buffer.load(tmp_path / "ckpt").saved_at is None
    assert verify(at).findings == ()


def test_a_checkpoint_of_another_library_says_which_it_was(tmp_path, buffer):
    buffer.export_gz(tmp_path / "gz", 12)
    found = buffer.load(tmp_path / "gz")
    assert (found.number, found.path, found.rows) == (12, tmp_path / "gz", 50)
    assert (found.saved_at, found.attachments, found.trouble) == (None, {}, None)
