"""The documents of checkpoints of all shards, in a directory; which are there, and which go."""

import json

import pytest

from diskreplay.errors import CheckpointNotFoundError, CorruptCheckpointError, InvalidInputError
from diskreplay.ray.sharded_checkpoint import (
    CheckpointDirectory,
    attachments_of,
    checked,
    in_order,
    superfluous,
    wanted,
)
from diskreplay.store import files


def document(suffix="1", **changed):
    return {
        "format": 1, "suffix": suffix, "num_shards": 2, "num_envs": 4,
        "shards": [{"path": "a"}, {"path": "b"}], "rng": {}, "inserts": 0, "samples": 0, **changed,
    }  # fmt: skip


def test_what_is_published_is_read(tmp_path):
    directory, wait_s = CheckpointDirectory(tmp_path / "x", "replay"), 0.0
    for suffix in ("9", "10", "best"):
        with directory.saving(suffix, [], wait_s) as part:
            assert part.startswith(f"{suffix}-")
            path = directory.publish(document(suffix, attachments={"net": "0"}), None, {})
        assert path == tmp_path / "x" / f"replay_shards.{suffix}.json"
    assert directory.suffixes() == ["9", "10", "best"]
    assert directory.read(None)["suffix"] == "10"
    assert directory.read(9)["suffix"] == "9"
    assert directory.read("best") == document("best", attachments={"net": "0"})
    assert attachments_of(directory.read("best")) == {"net": "0"}
    assert attachments_of(document()) == {}


def test_a_document_is_written_where_the_next_save_removes_what_a_kill_leaves(
    tmp_path, monkeypatch
):
    directory, moved = CheckpointDirectory(tmp_path, "replay"), []
    rename = files.rename

    def noting(source, target):
        moved.append((source.parent.name, target))
        rename(source, target)

    with directory.saving("1", [], 0.0):
        monkeypatch.setattr(files, "rename", noting)
        path = directory.publish(document("1"), None, {})
    ((place, _target),) = [(place, target) for place, target in moved if target == path]
    assert place.startswith(".replay_shards.1.json.tmp-")
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == []


def test_what_is_another_buffers_or_none(tmp_path):
    directory = CheckpointDirectory(tmp_path, "re.play")
    for name in (
        "replay_shards.1.json",
        "reXplay_shards.2.json",
        "re.play_shards..json",
        "re.play_shards.3.json.tmp",
        "re.play_shards.a b.json",
        "re.play_shards.4",
    ):
        (tmp_path / name).write_text("{}")  # fmt: skip
    assert directory.suffixes() == []
    (tmp_path / "re.play_shards.5.json").write_text(json.dumps(document("5")))
    assert directory.suffixes() == ["5"]
    assert CheckpointDirectory(tmp_path / "gone", "replay").suffixes() == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", "{}", "\xff", "[" * 100_000,
     *(json.dumps(document(**changed)) for changed in (
        {"format": 2}, {"format": None}, {"shards": {}}, {"shards": [{"path": "a"}]},
        {"num_shards": 3}, {"shards": [{"path": "a"}, {}]}, {"shards": [{"path": "a"}, 5]},
        {"shards": [{"path": "a"}, {"path": None}]},
     ))],
    ids=lambda text: text[-40:],
)  # fmt: skip
def test_a_document_that_is_damaged(tmp_path, text):
    (tmp_path / "replay_shards.1.json").write_bytes(text.encode("latin-1"))
    directory = CheckpointDirectory(tmp_path, "replay")
    for suffix in (None, 1):
        with pytest.raises(CorruptCheckpointError, match=r"replay_shards\.1\.json: damaged"):
            directory.read(suffix)


@pytest.mark.parametrize("name", sorted(document()))
def test_a_document_that_lacks_something(name):
    lacking = document()
    del lacking[name]
    with pytest.raises(CorruptCheckpointError, match=rf"where: damaged, .*'{name}'"):
        checked(lacking, "where")
    assert checked(document(), "where") == document()


def test_one_that_is_not_there(tmp_path):
    directory = CheckpointDirectory(tmp_path, "replay")
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of a number is there"):
        directory.read(None)
    (tmp_path / "replay_shards.best.json").write_text(json.dumps(document("best")))
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of a number is there"):
        directory.read(None)
    with pytest.raises(CheckpointNotFoundError, match=r"'7'; there are \['best'\]"):
        directory.read(7)
    with pytest.raises(InvalidInputError):
        directory.read("../best")
    with pytest.raises(CorruptCheckpointError, match="missing; load another checkpoint"):
        directory.attachment({}, "0")


def test_which_is_wanted():
    there = ["2", "10", "best"]
    assert wanted(there, None, "x") == "10"
    assert wanted(there, 2, "x") == "2"
    assert wanted(there, "best", "x") == "best"


def test_numbers_come_first_in_their_order():
    assert in_order(["b", "10", "9", "a", "007"]) == ["007", "9", "10", "a", "b"]


@pytest.mark.parametrize(
    ("there", "written", "keep", "gone"),
    [
        (["1", "2", "10"], "11", None, []), (["1", "2", "10"], "10", None, ["10"]),
        (["1", "2", "10"], "11", 2, ["1", "2"]), (["1", "2", "10"], "10", 2, ["1", "10"]),
        (["1", "2", "best"], "best", 1, ["1", "best"]), (["1", "2", "best"], "3", 1, ["1", "2"]),
        (["5", "6"], "1", 2, []), (["5", "6"], "1", 1, ["5"]),
    ],
)  # fmt: skip
def test_which_go_when_one_has_been_written(there, written, keep, gone):
    """None of a text goes by itself; one written anew replaces what was there."""
    assert superfluous(there, written, keep) == gone
