"""A shard's parts of checkpoints: saved, pushed and loaded, also amid deaths; without a cluster."""

import json
import shutil
import threading

import numpy as np
import pytest

import diskreplay
from diskreplay.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    RemoteError,
    ShardsLostError,
)
from diskreplay.ray.destination import Bucket
from diskreplay.ray.resharding import PartPiece
from diskreplay.ray.shard_parts import ShardParts, digest
from diskreplay.store import manifest
from tests.on_ray.without_ray import BUFFER, frames

ENVS = 2


class Case:
    """A buffer with a row for each number, and its parts."""

    def __init__(self, directory):
        self.directory = directory / "shard"
        self.buffer = diskreplay.PrioritizedReplayBuffer(
            self.directory / "store", num_envs=ENVS, env_group=1, capacity=None, name="r-0",
            **BUFFER,
        )  # fmt: skip
        self.parts = self.opened()
        self.added = 0

    def opened(self):
        return ShardParts(0, self.directory, "r-0")

    def add(self, rows):
        for _ in range(rows):
            numbers = self.added + 1000 * np.arange(ENVS)
            no = np.zeros(ENVS, bool)
            self.buffer.add(
                frames(numbers), numbers % 5, numbers % 7, no, no, number=numbers
            )  # fmt: skip
            self.added += 1

    def numbers(self):
        count = int(self.buffer.bounds[0, 1])
        return self.buffer.take("number", np.arange(count * ENVS)).reshape(count, ENVS)

    def whole(self, part):
        return [PartPiece(part, 0, ENVS)]


@pytest.fixture
def case(tmp_path):
    made = Case(tmp_path)
    made.add(10)
    yield made
    made.buffer.close()


@pytest.fixture
def bucket(tmp_path):
    pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")
    return Bucket.of(f"file://{tmp_path}/bucket")


def pushed(parts, suffix):
    while not parts.is_pushed(suffix):
        pass


def test_a_part_says_what_it_is(case, tmp_path):
    part = case.parts.save(case.buffer, str(tmp_path / "ck"), "one", None)
    path = tmp_path / "ck" / "r-0_ckpt.one"
    assert part == {
        "path": str(path), "digest": digest(path), "count": [10, 10], "transitions": 20,
    }  # fmt: skip
    (path / manifest.NAME).write_text((path / manifest.NAME).read_text() + " ")
    assert digest(path) != part["digest"]


def test_a_part_is_loaded_once_however_often_it_is_asked_for(case, tmp_path):
    part = case.parts.save(case.buffer, str(tmp_path / "ck"), "one", None)
    case.add(5)
    case.parts.prepare(case.whole(part), None, "load 1")
    assert len(case.numbers()) == 15
    with pytest.raises(CheckpointError, match="another load came between"):
        case.parts.load(case.buffer, "load 2")
    case.parts.load(case.buffer, "load 1")
    assert len(case.numbers()) == 10
    case.added = 10
    case.add(3)
    case.opened().load(case.buffer, "load 1")  # asked again, of another process
    case.parts.prepare(case.whole(part), None, "load 1")
    case.parts.load(case.buffer, "load 1")
    assert len(case.numbers()) == 13
    case.parts.prepare(case.whole(part), None, "load 2")
    case.parts.load(case.buffer, "load 2")
    assert len(case.numbers()) == 10


def test_a_process_that_died_between_the_load_and_its_note_loads_no_more(case, tmp_path):
    part = case.parts.save(case.buffer, str(tmp_path / "ck"), "one", None)
    case.parts.prepare(case.whole(part), None, "load 1")
    note = case.directory / "load.json"
    before = note.read_text()
    case.parts.load(case.buffer, "load 1")
    case.add(2)
    note.write_text(before)
    case.opened().load(case.buffer, "load 1")
    assert len(case.numbers()) == 12
    assert json.loads(note.read_text()) == {"load": "load 1", "path": None}


def test_envs_of_several_parts_are_put_together(case, tmp_path):
    one = case.parts.save(case.buffer, str(tmp_path / "ck"), "one", None)
    case.add(4)
    two = case.parts.save(case.buffer, str(tmp_path / "ck"), "two", None)
    case.parts.prepare([PartPiece(two, 1, 2), PartPiece(one, 0, 1)], None, "load")
    case.parts.load(case.buffer, "load")
    assert case.buffer.bounds[:, 1].tolist() == [14, 10]
    assert case.buffer.take("number", np.arange(14) * ENVS).tolist() == list(range(1000, 1014))
    assert case.buffer.take("number", np.arange(10) * ENVS + 1).tolist() == list(range(10))
    assert not (case.directory / "incoming").exists()


def test_parts_that_are_not_there_or_are_others_are_refused(case, tmp_path):
    part = case.parts.save(case.buffer, str(tmp_path / "ck"), "one", None)
    with pytest.raises(CorruptCheckpointError, match="its manifest is not the one"):
        case.parts.prepare(case.whole(part | {"digest": "0" * 64}), None, "load")
    with pytest.raises(CheckpointError):
        case.parts.load(case.buffer, "load")
    (tmp_path / "ck" / "r-0_ckpt.one" / manifest.NAME).unlink()
    with pytest.raises(CheckpointNotFoundError, match="not there for shard 0"):
        case.parts.prepare(case.whole(part), None, "load")
    assert len(case.numbers()) == 10


def test_a_part_is_pushed_and_pulled(case, bucket):
    part = case.parts.save(case.buffer, bucket, "one", "run")
    assert {name: value for name, value in part.items() if name != "digest"} == {
        "name": "r-0",
        "suffix": "one",
        "count": [10, 10],
        "transitions": 20,
    }
    pushed(case.parts, "one")
    assert not list((case.directory / "outgoing").glob("*"))
    case.add(5)
    case.parts.prepare(case.whole(part), bucket, "load")
    case.parts.sweep()  # what is to be loaded stays
    case.parts.load(case.buffer, "load")
    assert len(case.numbers()) == 10
    assert not (case.directory / "incoming").exists()


def test_what_a_push_failed_for_is_raised_where_it_is_asked_about(case, bucket):
    case.parts.save(case.buffer, bucket, "one", "run")
    pushed(case.parts, "one")
    case.parts.save(case.buffer, bucket, "two", "another")
    with pytest.raises(RemoteError):
        pushed(case.parts, "two")
    with pytest.raises(ShardsLostError, match="started again while it pushed"):
        case.opened().is_pushed("two")
    assert not list((case.directory / "outgoing").glob("*"))


def test_a_push_that_goes_on_is_not_done(case, bucket, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(ShardParts, "_push", lambda *arguments: go_on.wait(300) and None)
    case.parts.save(case.buffer, bucket, "one", "run")
    assert case.parts.is_pushed("one") is False
    (case.directory / "outgoing" / "mine").mkdir()
    case.parts.sweep()  # it is this process that pushes
    assert (case.directory / "outgoing" / "mine").exists()
    case.opened().sweep()
    assert not (case.directory / "outgoing").exists()
    go_on.set()
    pushed(case.parts, "one")


def test_what_a_killed_process_was_amid_is_swept(case, tmp_path):
    part = case.parts.save(case.buffer, str(tmp_path / "ck"), "one", None)
    incoming = case.directory / "incoming"
    incoming.mkdir()
    case.opened().sweep()
    assert not incoming.exists()
    case.parts.prepare(case.whole(part), None, "load")
    incoming.mkdir()
    case.opened().sweep()
    assert incoming.exists()  # it may be what is to be loaded


def test_parts_are_removed_and_none_is_saved_that_was_given_up(case, tmp_path):
    place = tmp_path / "ck"
    case.parts.save(case.buffer, str(place), "one", None)
    kept = case.parts.save(case.buffer, str(place), "two", None)
    other = place / "no checkpoint"
    other.mkdir()
    case.parts.remove([str(place / "r-0_ckpt.one"), str(place / "r-0_ckpt.three"), str(other)])
    assert sorted(path.name for path in place.iterdir()) == ["no checkpoint", "r-0_ckpt.two"]
    assert kept["path"] == str(place / "r-0_ckpt.two")
    with pytest.raises(ShardsLostError, match="checkpoint three was given up"):
        case.parts.save(case.buffer, str(place), "three", None)
    shutil.rmtree(place)
