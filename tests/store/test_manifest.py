"""The manifest of a checkpoint: what it may say, and whether the files are as it says."""

import datetime
import json
import os

import pytest

from diskreplay.errors import (
    CorruptCheckpointError,
    FormatError,
    IncompleteCheckpointError,
    StorageError,
)
from diskreplay.store import manifest
from diskreplay.store.segment import Seal

UTC = datetime.UTC
WHEN = datetime.datetime(2024, 2, 29, 23, 59, 58, 123456, tzinfo=UTC)
FILES = {"zarr.json": Seal(2, 5), "a/c.0.0": Seal(7, 2**32 - 1)}


def written(files=FILES, when=WHEN):
    return json.loads(manifest.encode(files, when))


def test_what_is_written_comes_back():
    assert written() == {
        "saved_at": "2024-02-29T23:59:58.123456+00:00",
        "files": {"zarr.json": [2, 5], "a/c.0.0": [7, 2**32 - 1]},
    }
    assert manifest.parse(written()) == (FILES, WHEN)
    east = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    assert written(when=WHEN.astimezone(east)) == written()


def test_one_of_before_the_time_was_noted():
    document = written()
    del document["saved_at"]
    assert manifest.parse(document) == (FILES, None)


def test_attachments_are_the_files_below_one_directory():
    inside = "is_final/saved/attachments"
    files = FILES | {
        f"{inside}/net.pt": Seal(1, 2), f"{inside}/deep/er": Seal(3, 4),
        "is_final/saved/attachments.txt": Seal(5, 6), f"x/{inside}/no": Seal(7, 8),
    }  # fmt: skip
    found = manifest.parse(written(files)).attachments
    assert found == {"net.pt": Seal(1, 2), "deep/er": Seal(3, 4)}


@pytest.mark.parametrize("files", [None, [], "zarr.json", 3, {}, {"a": [1, 2]}])
def test_what_lists_no_checkpoint(files):
    with pytest.raises(ValueError, match="does not list the files of a checkpoint"):
        manifest.parse({"files": files})


@pytest.mark.parametrize(
    "key",
    ["", "/", "/etc/passwd", "../x", "a/../../x", "a/..", ".", "a/./b", "a//b", "a/", "a\0b"],
)
def test_a_path_that_leads_elsewhere(key):
    with pytest.raises(ValueError, match="no path below the checkpoint"):
        manifest.parse({"files": {"zarr.json": [2, 5], key: [1, 2]}})


@pytest.mark.parametrize("key", ["..a", "a..b", "...", ".hidden", "a b", "\u00fc/\u00f6"])
def test_names_that_only_look_like_it(key):
    assert key in manifest.parse({"files": {"zarr.json": [2, 5], key: [1, 2]}}).files


@pytest.mark.parametrize("key", ["a\ud800", "\udcff/b"])
def test_half_a_character_is_in_no_path(key):
    with pytest.raises(ValueError, match="half a character"):
        manifest.parse({"files": {"zarr.json": [2, 5], key: [1, 1]}})


@pytest.mark.parametrize(
    "entry", [None, 5, "12", {"a": 1}, [], [1], [1, 2, 3], [-1, 2], [1, -1], [1, 2**32], [1, None],
              [True, 2], [1.5, 2], ["1", 2]],
)  # fmt: skip
def test_an_entry_that_is_no_length_and_checksum(entry):
    with pytest.raises(ValueError, match="entry 'x'"):
        manifest.parse({"files": {"zarr.json": [2, 5], "x": entry}})


@pytest.mark.parametrize("when", ["", "yesterday", "2024-02-30T00:00:00+00:00", 5, [], True,
                                  "2024-02-29T23:59:58", "2024-02-29"])  # fmt: skip
def test_a_time_that_is_none_or_has_no_zone(when):
    with pytest.raises(ValueError, match="saved_at is damaged"):
        manifest.parse(written() | {"saved_at": when})


# -- on the disk


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "zarr.json").write_bytes(b"{}")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.0.0").write_bytes(bytes(7))
    (tmp_path / manifest.NAME).parent.mkdir(parents=True)
    (tmp_path / manifest.NAME).write_bytes(manifest.encode(FILES, WHEN))
    return tmp_path


def test_a_whole_one(checkpoint):
    assert manifest.read_whole(checkpoint) == manifest.read(checkpoint) == (FILES, WHEN)
    assert manifest.is_checkpoint(checkpoint)
    assert manifest.was_checkpoint(checkpoint)


def test_one_whose_manifest_is_gone(checkpoint):
    (checkpoint / manifest.NAME).unlink()
    assert not manifest.is_checkpoint(checkpoint)
    assert manifest.was_checkpoint(checkpoint)
    with pytest.raises(IncompleteCheckpointError, match=r"manifest\.json: missing"):
        manifest.read(checkpoint)
    assert not manifest.was_checkpoint(checkpoint / "a")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"files": 3}', '{"files": {}}'])
def test_one_whose_manifest_is_damaged(checkpoint, text):
    (checkpoint / manifest.NAME).write_text(text)
    with pytest.raises((CorruptCheckpointError, FormatError), match=r"manifest\.json: "):
        manifest.read(checkpoint)
    assert manifest.is_checkpoint(checkpoint)


def test_files_that_are_missing_are_counted(checkpoint):
    (checkpoint / "a" / "c.0.0").unlink()
    with pytest.raises(IncompleteCheckpointError, match=r"a/c\.0\.0 missing; nothing was loaded"):
        manifest.read_whole(checkpoint)
    (checkpoint / "zarr.json").unlink()
    with pytest.raises(IncompleteCheckpointError, match=r"zarr\.json and 1 more missing"):
        manifest.read_whole(checkpoint)
    (checkpoint / "a").rmdir()
    (checkpoint / "a").touch()  # a file where a directory was
    with pytest.raises(FileNotFoundError, match=r"zarr\.json and 1 more missing"):
        manifest.read_whole(checkpoint)


@pytest.mark.parametrize("size", [0, 6, 8])
def test_a_file_of_another_length(checkpoint, size):
    (checkpoint / "a" / "c.0.0").write_bytes(bytes(size))
    with pytest.raises(CorruptCheckpointError, match=f"{size} bytes found, 7 expected"):
        manifest.read_whole(checkpoint)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/hosts", path)])
def test_what_is_no_file(checkpoint, make):
    """A link may lead out of the checkpoint."""
    (checkpoint / "a" / "c.0.0").unlink()
    make(checkpoint / "a" / "c.0.0")
    with pytest.raises(CorruptCheckpointError, match="no regular file"):
        manifest.read_whole(checkpoint)


def test_a_name_that_no_file_can_have(checkpoint):
    files = FILES | {"x" * 300: Seal(1, 2)}
    (checkpoint / manifest.NAME).write_bytes(manifest.encode(files, WHEN))
    with pytest.raises((CorruptCheckpointError, StorageError), match="is damaged"):
        manifest.read_whole(checkpoint)
