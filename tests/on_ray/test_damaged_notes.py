"""What a shard and a coordinator note for themselves is read as other metadata are."""

import asyncio
import json

import pytest

from diskreplay.errors import FormatError
from diskreplay.ray.coordinator import Coordinator
from diskreplay.ray.env_leases import EnvLeases
from diskreplay.ray.noted_parts import NotedParts
from diskreplay.ray.shard_parts import ShardParts
from diskreplay.store.tempfiles import Workspace
from tests.on_ray.without_ray import answer, local_shard

DAMAGED = {
    "deep": b"[" * 100_000, "deep objects": b'{"a":' * 100_000, "cut": b'{"a": ', "empty": b"",
    "text": b"\xff\xfe", "number": b"7", "other": b'[[1], "x", null]',
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_notes_of_a_dead_saver_that_rotted_are_none(tmp_path, name):
    room = Workspace(tmp_path / "r_shards.1.json", "tmp")
    (room.path / "parts.json").write_bytes(DAMAGED[name])
    room.release()
    assert [notes.parts for notes in NotedParts.left(tmp_path, "r_.*")] == [[]]


def test_notes_of_a_dead_saver_are_read(tmp_path):
    notes = NotedParts(Workspace(tmp_path / "r_shards.1.json", "tmp"))
    notes.add([(0, "a"), (3, "b")])
    notes._room.release()
    assert [notes.parts for notes in NotedParts.left(tmp_path, "r_.*")] == [[(0, "a"), (3, "b")]]


@pytest.mark.parametrize("name", DAMAGED)
def test_leases_that_rotted_are_named(tmp_path, name):
    path = tmp_path / "leases.json"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(FormatError, match=str(path)):
        EnvLeases(path, 4)


def test_a_lease_for_ever_is_read(tmp_path):
    token, envs = EnvLeases(tmp_path / "leases.json", 4).take(2, float("inf"))
    assert envs == [0, 1]
    assert EnvLeases(tmp_path / "leases.json", 4).free() == [2, 3]
    assert token in (tmp_path / "leases.json").read_text()


@pytest.mark.parametrize("name", DAMAGED)
def test_plans_of_a_load_that_rotted_are_named(tmp_path, name):
    coordinator = Coordinator({"name": "r"}, None, tmp_path / "counts")
    asyncio.run(coordinator.begin_load("x", 3, 4))
    assert asyncio.run(coordinator.load_under_way()) == "x"
    coordinator._load.write_bytes(DAMAGED[name])
    with pytest.raises(FormatError, match=str(coordinator._load)):
        asyncio.run(coordinator.load_under_way())
    parts = ShardParts(0, tmp_path, "r-0")
    assert parts._noted() == {}
    parts._note.write_bytes(DAMAGED[name])
    with pytest.raises(FormatError, match=str(parts._note)):
        parts._noted()


@pytest.mark.parametrize("name", DAMAGED)
def test_a_shard_whose_identity_rotted_says_so(tmp_path, name):
    shard = local_shard(tmp_path)
    assert answer(shard.call("state")).add_count == 0
    shard.made.close()
    path = tmp_path / "shard-0" / "shard.json"
    kept = json.loads(path.read_text())
    path.write_bytes(DAMAGED[name])
    again = local_shard(tmp_path)  # the actor lives, and whoever asks is told
    with pytest.raises(FormatError, match=str(path)):
        answer(again.call("open"))
    path.write_text(json.dumps(kept))
    answer(again.call("open"))
    assert answer(again.call("state")).add_count == 0
    again.made.close()
