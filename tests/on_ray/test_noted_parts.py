"""Parts of checkpoints that are to go, noted on the disk; without a cluster."""

import json

import pytest

from diskreplay.errors import StoreError
from diskreplay.ray.noted_parts import NotedParts
from diskreplay.store.tempfiles import Workspace
from tests.on_ray.without_ray import LocalActor, use_local_actors

NAMES = r"r_shards\..*"


class Shard:
    def __init__(self):
        self.removed, self.error = [], None

    def remove(self, paths):
        if self.error:
            raise self.error
        self.removed += paths


@pytest.fixture
def shards(monkeypatch):
    use_local_actors(monkeypatch)
    return [LocalActor(Shard()) for _ in range(2)]


def noted(tmp_path, number=1):
    return NotedParts(Workspace(tmp_path / f"r_shards.{number}.json", "tmp"))


PARTS = [(0, "/a/r-0_ckpt.1"), (1, "/a/r-1_ckpt.1"), (1, "/a/r-1_ckpt.2"), (5, "/a/r-5_ckpt.2")]


def test_what_no_checkpoint_names_is_removed_by_the_shard_that_has_it(tmp_path, shards):
    notes = noted(tmp_path)
    notes.add(PARTS[:1])
    notes.add(PARTS[1:])
    (found,) = tmp_path.rglob("parts.json")
    assert [tuple(part) for part in json.loads(found.read_text())] == PARTS
    assert notes.remove_unnamed(shards, {"r-1_ckpt.1"}, 1.0) is True
    assert shards[0].made.removed == ["/a/r-0_ckpt.1"]
    # There were six shards: the sixth one's are on what is the second one now.
    assert shards[1].made.removed == ["/a/r-1_ckpt.2", "/a/r-5_ckpt.2"]
    assert list(tmp_path.iterdir()) == []


def test_where_all_are_named_no_shard_is_asked(tmp_path, shards):
    notes = noted(tmp_path)
    notes.add(PARTS)
    named = {path.rpartition("/")[2] for _, path in PARTS}
    assert notes.remove_unnamed(shards, named, 1.0) is True
    assert [each.asked for each in shards] == [[], []]


def test_notes_stay_for_the_next_save_where_a_shard_does_not_answer(tmp_path, shards):
    notes = noted(tmp_path)
    notes.add(PARTS)
    assert list(NotedParts.left(tmp_path, NAMES)) == []  # its saver lives
    shards[1].is_away = True
    assert notes.remove_unnamed(shards, (), 1.0) is False
    assert len(shards[0].made.removed) == 1
    shards[1].is_away = False
    for left in NotedParts.left(tmp_path, NAMES):
        assert left.parts == PARTS
        assert left.remove_unnamed(shards, (), 1.0) is True
    assert len(shards[1].made.removed) == 3
    assert list(NotedParts.left(tmp_path, NAMES)) == []


def test_notes_stay_where_it_is_not_known_what_is_named(tmp_path, shards):
    notes = noted(tmp_path)
    notes.add(PARTS)
    assert notes.remove_unnamed(shards, None, 1.0) is False
    assert [each.asked for each in shards] == [[], []]
    assert [left.parts for left in NotedParts.left(tmp_path, NAMES)] == [PARTS]


def test_a_shard_that_cannot_remove_them_is_warned_of(tmp_path, shards):
    notes = noted(tmp_path)
    notes.add(PARTS)
    shards[0].made.error = StoreError("read-only")
    with pytest.warns(RuntimeWarning, match="could not be removed; .*: read-only"):
        assert notes.remove_unnamed(shards, (), 1.0) is False
    assert len(list(NotedParts.left(tmp_path, NAMES))) == 1


@pytest.mark.parametrize("text", [None, "", "{", "[[1]]", "3", '[["x", "y"]]'])
def test_a_saver_that_died_before_it_had_asked_has_left_nothing(tmp_path, shards, text):
    notes = noted(tmp_path)
    if text is not None:
        notes._path.write_text(text)
    notes._room.release()
    for left in NotedParts.left(tmp_path, NAMES):
        assert left.parts == []
        assert left.remove_unnamed(shards, (), 1.0) is True
    assert list(tmp_path.iterdir()) == []
