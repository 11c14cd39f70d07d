"""The checkpoints of a directory, by their names, and which of them are superfluous."""

import datetime
import json
import os

import pytest

from diskreplay.errors import InvalidInputError, StorageError
from diskreplay.store import listing, manifest
from diskreplay.store.listing import Checkpoint, checkpoints, disk_usage, remove, superfluous
from diskreplay.store.segment import Seal

WHEN = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)


def make(directory, name, whole=True, first=(2, 0), count=(9, 4), files=()):
    """A checkpoint as far as a listing looks at it."""
    path = directory / name
    (path / manifest.NAME).parent.mkdir(parents=True)
    attributes = {"format_version": 2, "first": list(first), "count": list(count)}
    group = json.dumps({"attributes": {"diskreplay": attributes}})
    (path / "zarr.json").write_text(group)
    seals = {"zarr.json": Seal(len(group), 0)}
    for file, size in files:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_bytes(bytes(size))
        seals[file] = Seal(size, 0)
    if whole:
        (path / manifest.NAME).write_bytes(manifest.encode(seals, WHEN))
    return path


def names(found):
    return [one.path.name for one in found]


def test_one_checkpoint(tmp_path):
    inside = f"{manifest.ATTACHMENTS.as_posix()}/net.pt"
    path = make(tmp_path, "replay_ckpt.7", files=[(inside, 3)])
    (one,) = checkpoints(tmp_path)
    assert one == Checkpoint(path, "replay", "7", WHEN, {"net.pt": path / inside}, 11, None)
    assert one.number == 7
    assert one.whole


def test_texts_come_before_numbers_and_numbers_by_their_size(tmp_path):
    for suffix in ("10", "9", "best", "2", "a.b", "007", "-5", "1e3", "old_one"):
        make(tmp_path, f"replay_ckpt.{suffix}")
    expected = ["-5", "1e3", "a.b", "best", "old_one", "2", "007", "9", "10"]
    found = checkpoints(tmp_path)
    assert [one.suffix for one in found] == expected
    assert [one.number for one in found][5:] == [2, 7, 9, 10]
    assert {one.number for one in found[:5]} == {None}


@pytest.mark.parametrize(
    "name",
    ["replay", "replay_ckpt", "replay_ckpt.", "replay_ckpt..1", ".replay_ckpt.1", "_ckpt.1",
     "replay_ckpt.a b", ".replay_ckpt.1.tmp-0123456789abcdef", "replay_ckpt.\u0661"],
)  # fmt: skip
def test_what_is_named_otherwise_is_none(tmp_path, name):
    make(tmp_path, name)
    assert checkpoints(tmp_path, None) == []


def test_each_buffer_has_its_own_and_none_means_all(tmp_path):
    for name in ("replay_ckpt.2", "b_ckpt.1", "replay_ckpt.1", "a_ckpt.3", "a_ckpt.b_ckpt.4"):
        make(tmp_path, name)
    (tmp_path / "replay_ckpt.9").touch()  # a file
    assert names(checkpoints(tmp_path)) == ["replay_ckpt.1", "replay_ckpt.2"]
    assert names(checkpoints(tmp_path, "b")) == ["b_ckpt.1"]
    assert checkpoints(tmp_path, "a_ckpt.b")[0].number == 4
    assert names(checkpoints(tmp_path, None)) == [
        "a_ckpt.3", "a_ckpt.b_ckpt.4", "b_ckpt.1", "replay_ckpt.1", "replay_ckpt.2",
    ]  # fmt: skip


def test_one_that_is_not_whole_says_why(tmp_path):
    make(tmp_path, "replay_ckpt.1", whole=False)
    path = make(tmp_path, "replay_ckpt.2", files=[("a", 5)])
    (path / "a").write_bytes(bytes(4))
    (make(tmp_path, "replay_ckpt.3") / "zarr.json").write_text("{}")
    for number, wrong in ((4, {"count": 5}), (5, {"first": None})):
        path = make(tmp_path, f"replay_ckpt.{number}")
        group = json.loads((path / "zarr.json").read_text())
        group["attributes"]["diskreplay"] |= wrong
        (path / "zarr.json").write_text(json.dumps(group))
    (tmp_path / "replay_ckpt.6").mkdir()
    one, two, three, four, five, six = checkpoints(tmp_path)
    assert "manifest.json: missing" in one.trouble
    assert one.rows == 11
    assert "4 bytes found, 5 expected" in two.trouble
    assert "no 'diskreplay' attribute" in three.trouble
    assert "damaged attributes" in four.trouble
    assert "damaged attributes" in five.trouble
    assert "no zarr.json" in six.trouble
    for each in (one, two, three, four, five, six):
        assert not each.whole
        assert each.saved_at is None
        assert each.attachments == {}


def test_a_directory_that_is_none(tmp_path):
    assert checkpoints(tmp_path / "gone") == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot list the directory"):
        checkpoints(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StorageError, match="which is not there"):
        checkpoints(tmp_path / "link")
    with pytest.raises(InvalidInputError, match=r"^directory: .* a URL"):
        checkpoints("s3://bucket/x")


def test_one_that_goes_while_it_is_looked_at_is_not_listed(tmp_path, monkeypatch):
    make(tmp_path, "replay_ckpt.1")
    make(tmp_path, "replay_ckpt.2")
    found = Checkpoint.found

    def late(path, name, suffix):
        if suffix == "1":
            remove([found(path, name, suffix)])
        return found(path, name, suffix)

    monkeypatch.setattr(listing.Checkpoint, "found", late)
    assert names(checkpoints(tmp_path)) == ["replay_ckpt.2"]


# -- how much they take, and which can go


def test_bytes_of_its_own_and_shared_ones(tmp_path):
    path = make(tmp_path, "replay_ckpt.1", files=[("a/one", 9000), ("a/two", 50_000)])
    os.link(path / "a" / "two", tmp_path / "other")
    (one,) = checkpoints(tmp_path)
    own, shared = disk_usage(one)
    assert shared == os.stat(tmp_path / "other").st_blocks * 512
    files = [file for file in path.rglob("*") if file.is_file()]
    assert own + shared == sum(os.stat(file).st_blocks * 512 for file in files)
    assert own >= 9000
    assert disk_usage(Checkpoint.found(tmp_path / "gone", "x", "1")) == (0, 0)


def test_all_but_the_newest_are_superfluous_of_each_name(tmp_path):
    for name in ("a_ckpt.1", "a_ckpt.2", "a_ckpt.10", "b_ckpt.5", "a_ckpt.best"):
        make(tmp_path, name)
    assert names(superfluous(tmp_path, 1)) == ["a_ckpt.1", "a_ckpt.2"]
    assert names(superfluous(tmp_path, 2)) == ["a_ckpt.1"]
    assert superfluous(tmp_path, 3) == []
    for wrong in (0, -1):
        with pytest.raises(InvalidInputError, match="keep: a positive integer"):
            superfluous(tmp_path, wrong)


def test_one_that_is_not_whole_keeps_none_from_being_kept(tmp_path):
    """It goes too, unless its number is above all that are kept: somebody may look at it."""
    for number in range(1, 8):
        make(tmp_path, f"replay_ckpt.{number}", whole=number in (2, 3, 5))
    assert names(superfluous(tmp_path, 1)) == [f"replay_ckpt.{n}" for n in (1, 2, 3, 4)]
    assert names(superfluous(tmp_path, 2)) == [f"replay_ckpt.{n}" for n in (1, 2, 4)]
    assert names(superfluous(tmp_path, 3)) == [f"replay_ckpt.{n}" for n in (1, 4)]


def test_where_none_is_whole_none_goes(tmp_path):
    for number in range(3):
        make(tmp_path, f"replay_ckpt.{number}", whole=False)
    assert superfluous(tmp_path, 1) == []


def test_those_that_are_removed_are_gone_and_of_a_link_the_link(tmp_path):
    for number in (1, 2, 3):
        make(tmp_path, f"replay_ckpt.{number}")
    make(tmp_path / "disk", "replay_ckpt.4")
    (tmp_path / "replay_ckpt.4").symlink_to(tmp_path / "disk" / "replay_ckpt.4")
    one, _two, three, four = checkpoints(tmp_path)
    remove([one, three, four])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "replay_ckpt.2"]
    assert checkpoints(tmp_path / "disk")[0].whole


def suffixes(found):
    return [one.suffix for one in found]


def linked(directory, suffix, to):
    (directory / f"replay_ckpt.{suffix}").symlink_to(to)


@pytest.mark.parametrize("suffix", ["best", "9", "08"])
@pytest.mark.parametrize(
    "to", ["replay_ckpt.1", "./replay_ckpt.1/", "../ckpt/replay_ckpt.1", "replay_ckpt.1/.", None]
)
def test_what_a_link_leads_to_stays_with_it(tmp_path, suffix, to):
    directory = tmp_path / "ckpt"
    directory.mkdir()
    for number in (1, 2, 3):
        make(directory, f"replay_ckpt.{number}")
    linked(directory, suffix, to or directory / "replay_ckpt.1")
    kept = ["1", suffix] if suffix != "best" else ["best", "1", "3"]
    gone = superfluous(directory, 1)
    assert suffixes(gone) == sorted({"1", "2", "3"} - {*kept})
    remove(gone)
    assert sorted(suffixes(checkpoints(directory))) == sorted(kept)
    assert all(one.whole for one in checkpoints(directory))


def test_links_to_links_and_links_that_go(tmp_path):
    for number in (1, 2, 3, 8):
        make(tmp_path, f"replay_ckpt.{number}")
    linked(tmp_path, 4, "replay_ckpt.1")
    linked(tmp_path, 5, "replay_ckpt.2")
    (tmp_path / "latest").symlink_to("replay_ckpt.5")
    linked(tmp_path, "round", "replay_ckpt.round")
    assert suffixes(superfluous(tmp_path, 1)) == ["1", "3", "4"]
    (tmp_path / "latest").unlink()
    assert suffixes(superfluous(tmp_path, 1)) == ["1", "2", "3", "4", "5"]
