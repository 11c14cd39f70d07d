"""What paths lead to: links, places that are not there yet, and what is no path."""

import os
from pathlib import Path

import pytest

from diskreplay.errors import InvalidInputError, StorageError
from diskreplay.store.paths import (
    file_system,
    identity,
    is_in_memory,
    is_of_one_machine,
    is_remote,
    resolved,
)


class Directory(os.PathLike):
    def __init__(self, path):
        self._path = path

    def __fspath__(self):
        return self._path


def test_urls_and_what_pushes_are_remote():
    class Pushing:
        def push(self):
            """Something to call."""

    assert is_remote("s3://bucket/x")
    assert is_remote("file:///x")
    assert is_remote(Pushing())
    for place in ("/x", "x:/y", "s3:x", Path("s3://bucket"), None, 5, object()):
        assert not is_remote(place)


def test_links_are_followed_and_the_rest_is_still_to_be_made(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "twice").symlink_to(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    real = tmp_path.resolve() / "real"
    for path in ("link", "twice", tmp_path / "link", "./real/", "link/../link", Directory("twice")):
        assert resolved(path) == real
    for path in ("link/new/deep", tmp_path / "twice" / "new" / "deep"):
        assert resolved(path) == real / "new" / "deep"
    assert resolved("new") == real.parent / "new"
    assert isinstance(resolved("new"), Path)
    (tmp_path / "file").touch()
    assert resolved("file/below") == real.parent / "file" / "below"  # who opens it says so


@pytest.mark.parametrize(
    "path",
    [None, 5, b"bytes", ["x"], Directory(b"bytes"), object()],
    ids=lambda path: str(path)[:8],
)
def test_what_is_of_another_type(path):
    with pytest.raises(InvalidInputError, match=r"^place: a str or a Path expected, found "):
        resolved(path, "place")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", Path("a\0b")])
def test_what_no_file_can_be_called(path):
    with pytest.raises(InvalidInputError, match=r"^path: .* no file can have such a name"):
        resolved(path)


def test_a_url_is_no_local_path():
    with pytest.raises(InvalidInputError, match=r"^path: 's3://bucket/x': a URL"):
        resolved("s3://bucket/x")


def test_a_path_made_of_a_url_is_refused(tmp_path, monkeypatch):
    """Rows would be recorded in a directory ``s3:`` here."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"^path: 's3:/bucket/x': a URL"):
        resolved(Path("s3://bucket/x"))
    for text in ("s3:/bucket/x", f"file:{tmp_path}"):  # with a slash less than a URL has
        with pytest.raises(InvalidInputError, match="a URL"):
            resolved(text)
    (tmp_path / "s3:").mkdir()  # who has such a directory means it
    assert resolved(Path("s3:/bucket/x")) == tmp_path / "s3:/bucket/x"


@pytest.mark.parametrize("below", ["", "store", "store/deep"])
def test_a_link_to_what_is_not_there(tmp_path, below):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(StorageError, match=r"a link to .*gone, which is not there") as caught:
        resolved(tmp_path / "link" / below)
    assert caught.value.filename == str(tmp_path / "link")
    assert isinstance(caught.value, OSError)
    (tmp_path / "gone").mkdir()
    assert resolved(tmp_path / "link" / below) == (tmp_path / "gone" / below).resolve()


def test_what_a_kill_between_two_renames_has_left_aside_is_put_back_by_an_opening(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "go[n]e")
    (tmp_path / ".go[n]e.old-0123456789abcdef" / "aside").mkdir(parents=True)
    assert resolved(tmp_path / "link") == (tmp_path / "go[n]e").resolve()
    with pytest.raises(StorageError):  # it is the store, and nothing is inside it
        resolved(tmp_path / "link" / "inside")
    (tmp_path / "other").symlink_to(tmp_path / "gonne")  # a name is no pattern
    with pytest.raises(StorageError):
        resolved(tmp_path / "other")


@pytest.mark.parametrize("below", ["", "x"])
def test_links_in_a_circle(tmp_path, below):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(StorageError):
        resolved(tmp_path / "one" / below)


def test_a_file_system_is_named_by_where_it_is_mounted():
    said = file_system(Path("/proc/self/status"))
    assert said == "the file system at /proc (proc)"
    assert file_system(Path("/proc")) == said
    assert "/proc " not in file_system(Path("/process"))  # whose name only begins like it
    assert file_system(Path("/gone/deep")).startswith("the file system at / (")


def test_of_two_mounts_the_inner_one_and_the_later_one(monkeypatch):
    mounts = (
        "a / ext4 rw 0 0\nb /data xfs rw 0 0\nc /data/my\\040disk ext2 rw 0 0\n"
        "d /data/my\\040disk tmpfs rw 0 0\ne /database btrfs rw 0 0\n"
        "f /other/\udcff ext4 rw 0 0\n"  # bytes that are no text
    )
    monkeypatch.setattr(Path, "read_bytes", lambda _self: os.fsencode(mounts))
    monkeypatch.setattr(os.path, "realpath", os.fspath)
    said = "the file system at {} ({})".format
    assert file_system(Path("/data/my disk/x")) == said("/data/my disk", "tmpfs")
    assert file_system(Path("/data/my")) == said("/data", "xfs")
    assert file_system(Path("/databases")) == said("/", "ext4")
    assert file_system(Path("/")) == said("/", "ext4")


def test_where_the_mounts_are_not_known(monkeypatch):
    def refuse(_self):
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert file_system(Path("/")) == "its file system"


def test_a_file_system_in_memory():
    with open("/proc/self/mounts") as file:
        kinds = {point: kind for _device, point, kind, *_rest in map(str.split, file)}
    if kinds.get("/dev/shm") == "tmpfs":
        assert is_in_memory("/dev/shm")
        assert is_of_one_machine("/dev/shm")
    assert not is_in_memory("/proc")
    assert not is_of_one_machine("/proc")
    assert not is_of_one_machine("/gone/deep")
    assert not is_in_memory("/gone/deep")


def test_what_is_replaced_has_another_identity(tmp_path):
    path = tmp_path / "x"
    assert identity(path) is None
    path.write_bytes(b"1")
    found = identity(path)
    assert identity(path) == found
    path.write_bytes(b"12")
    assert identity(path) != found
    path.write_bytes(b"1")
    os.utime(path, ns=(5, 5))
    assert identity(path) != found
    found = identity(path)
    (tmp_path / "y").write_bytes(b"1")
    os.utime(tmp_path / "y", ns=(5, 5))
    (tmp_path / "y").replace(path)
    assert identity(path) != found
    assert identity(path / "below") is None
