"""Checkpoints of all shards, and what clients do amid deaths; without a cluster."""

import numpy as np
import pytest

from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidInputError,
    SchemaError,
    ShardsLostError,
)
from diskreplay.ray import sharded_checkpoints
from diskreplay.ray.client import Client
from diskreplay.ray.coordinator import Coordinator
from diskreplay.ray.sharded_checkpoints import (
    CheckpointPlaces,
    ShardedCheckpoints,
    ask_each,
    finish_load,
    read_attachments,
)
from diskreplay.sampling.rng import ReplayableRng
from tests.on_ray.without_ray import LocalActor, frames, local_shard, use_local_actors

ENVS = 4


class Prefetcher:
    """Has asked for some batches ahead."""

    def __init__(self):
        self.calls = []

    def pause(self):
        self.calls.append("pause")
        return [np.array([0.25, 0.5])]

    def resume(self):
        self.calls.append("resume")


class Run:
    """A client of some shards, each of which has envs of all."""

    def __init__(self, directory, shards):
        self.directory = directory
        envs = ENVS // shards
        self.actors = [
            local_shard(directory, number, shards, envs, env_group=1) for number in range(shards)
        ]
        options = {
            "name": "r", "num_shards": shards, "num_envs": ENVS, "env_group": 1,
            "envs": [envs] * shards, "timeout": 1.0, "shard_timeout": 1.0,
            "buffer": {"beta": 0.4, "alpha": 0.6},
        }  # fmt: skip
        self.coordinator = LocalActor(Coordinator(options, None, directory / "counts"))
        self.client = Client(
            self.coordinator, options, None, self.actors,
            ReplayableRng(np.random.default_rng(1)),
        )  # fmt: skip
        self.prefetcher = Prefetcher()

    def add(self, start, stop):
        base = 0
        for actor in self.actors:
            buffer = actor.made._checked()
            envs = base + np.arange(buffer.num_envs)
            base += buffer.num_envs
            for row in range(start, stop):
                numbers = 1000 * envs + row
                no = np.zeros(len(envs), bool)
                if len(envs) == 1:
                    numbers, no = numbers[0], no[0]
                buffer.add(
                    frames(numbers), numbers % 5, numbers % 7, no, no, number=numbers
                )  # fmt: skip
        self.client.refresh()

    def rows(self):
        """The numbers of the rows of each env, of all shards."""
        found = []
        for actor in self.actors:
            buffer = actor.made._checked()
            for env, count in enumerate(buffer.bounds[:, 1].tolist()):
                ids = np.arange(count) * buffer.num_envs + env
                found.append(buffer.take("number", ids).tolist())
        return found

    def at(self, place):
        places = CheckpointPlaces(self.client)
        return ShardedCheckpoints(self.client, places.at(place), [self.prefetcher])

    def ask(self, method, *arguments):
        return self.coordinator.call(method, *arguments).answer

    def close(self):
        for actor in self.actors:
            actor.made.close()


def numbers(rows):
    return [list(range(1000 * env, 1000 * env + rows)) for env in range(ENVS)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    use_local_actors(monkeypatch)
    made = Run(tmp_path / "run", 2)
    made.add(0, 10)
    yield made
    made.close()


def test_all_shards_go_back_together_with_the_generator_and_the_counts(run, tmp_path):
    run.ask("acquire_insert", 40, 1.0)
    before = run.client.rng.state()
    path = run.at(tmp_path / "ck").save(3, None, None)
    assert path.name == "r_shards.3.json"
    assert run.prefetcher.calls == ["pause", "resume"]
    put_back = run.client.rng.state()
    assert put_back != before  # what was drawn ahead comes again
    run.add(10, 15)
    run.ask("acquire_insert", 20, 1.0)
    run.client.rng.random(7)
    run.client.note_largest(50.0)
    assert run.rows() == numbers(15)
    assert run.at(tmp_path / "ck").load(None) == "3"
    assert run.prefetcher.calls == ["pause", "resume"] * 2
    assert run.rows() == numbers(10)
    assert run.ask("counts") == (40, 0)
    assert run.client.rng.state() == put_back
    assert run.client.largest == 1.0
    assert [h.state.add_count for h in run.client.handles] == [20, 20]
    assert run.ask("load_under_way") is None


def test_priorities_that_were_set_before_are_saved(run, tmp_path):
    handle = run.client.handles[1]
    generation = handle.actor.made._checked().generation
    handle.add_update(np.full(1, generation), np.array([4]), np.array([9.0]))
    run.at(tmp_path / "ck").save(3, None, None)
    assert handle.waiting == 0
    handle.actor.made._checked().update_priorities([4], [1.0])
    handle.add_update(np.full(1, generation), np.array([4]), np.array([2.0]))
    run.at(tmp_path / "ck").load(3)
    assert handle.waiting == 0  # of ids that are void
    assert handle.actor.made._checked().tree.get(np.array([4]))[0] == pytest.approx(9.0**0.6)


def test_another_number_of_shards_gets_the_same_envs(run, tmp_path):
    run.at(tmp_path / "ck").save(3, None, {"net": b"weights"})
    for shards in (1, 4):
        other = Run(tmp_path / f"other{shards}", shards)
        other.add(0, 2)
        other.at(tmp_path / "ck").load(3)
        assert other.rows() == numbers(10)
        assert other.at(tmp_path / "ck").attachments(3) == {"net": b"weights"}
        other.close()
    other = Run(tmp_path / "other", 2)
    other.client.options["envs"] = [2, 3]
    with pytest.raises(SchemaError, match="num_envs is 4 in the checkpoint"):
        other.at(tmp_path / "ck").load(3)
    other.close()


def test_a_shard_that_is_lost_makes_no_checkpoint(run, tmp_path):
    run.at(tmp_path / "ck").save(3, None, None)
    run.actors[1].faults = ["before"]
    with pytest.raises(ShardsLostError, match="shard 1 died while it saved"):
        run.at(tmp_path / "ck").save(4, None, None)
    assert run.prefetcher.calls == ["pause", "resume"] * 2
    with pytest.raises(CheckpointNotFoundError):
        run.at(tmp_path / "ck").load(4)
    run.at(tmp_path / "ck").save(4, None, None)
    assert run.at(tmp_path / "ck").load(None) == "4"


def test_a_part_that_is_missing_changes_nothing(run, tmp_path):
    run.at(tmp_path / "ck").save(3, None, None)
    (part,) = (tmp_path / "ck").glob("**/r-1_ckpt*/is_final/saved/manifest.json")
    part.unlink()
    run.add(10, 12)
    with pytest.raises(CheckpointNotFoundError):
        run.at(tmp_path / "ck").load(3)
    assert run.rows() == numbers(12)
    assert run.ask("load_under_way") is None


@pytest.mark.parametrize("lost", [0, 1])
def test_the_next_client_finishes_a_load_whose_client_was_killed(run, tmp_path, lost):
    run.at(tmp_path / "ck").save(3, None, None)
    run.add(10, 12)
    finish_load(run.client)  # there is none
    assert run.rows() == numbers(12)
    run.actors[lost].faults = [None, "before"]  # what is asked second is the load
    with pytest.raises(ShardsLostError, match="some shards may have loaded"):
        run.at(tmp_path / "ck").load(3)
    assert run.ask("load_under_way") is not None
    finish_load(run.client)
    assert run.rows() == numbers(10)
    assert run.ask("load_under_way") is None


def test_a_load_that_cannot_be_finished_is_warned_of(run, tmp_path):
    run.at(tmp_path / "ck").save(3, None, None)
    run.ask("begin_load", "of somebody else", 0, 0)
    with pytest.warns(RuntimeWarning, match="that could not be finished"):
        finish_load(run.client)


def test_the_first_error_of_several_shards_is_raised_when_all_have_answered(run):
    run.actors[0].made.state = lambda: (_ for _ in ()).throw(CorruptCheckpointError("first"))
    with pytest.raises(CorruptCheckpointError, match="first"):
        ask_each(run.client, "state", [(), ()])
    assert run.actors[1].asked[-1] == "state"
    del run.actors[0].made.state
    assert ask_each(run.client, "counts", [([0],), ([0, 1],)]) == [[10], [10, 10]]


def test_one_shard_gets_the_rows_of_a_checkpoint(run, tmp_path):
    run.at(tmp_path / "ck").save(3, None, None)
    run.add(10, 12)
    checkpoints = run.at(tmp_path / "ck")
    checkpoints.restore_shard(1, None)
    assert run.rows() == [*numbers(12)[:2], *numbers(10)[2:]]
    assert run.client.handles[1].state.add_count == 20
    for number in (-1, 2):
        with pytest.raises(InvalidInputError, match=f"0 to 1 expected, found {number}"):
            checkpoints.restore_shard(number, 3)
    run.actors[0].is_away = True
    with pytest.raises(ShardsLostError, match="shard 0 does not answer"):
        checkpoints.restore_shard(0, 3)


def test_attachments_are_held_against_their_checksums(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"of a file")
    attached = {"a/b": b"bytes", "c": tmp_path / "file"}
    assert {name: data for name, (_sha, data) in read_attachments(attached).items()} == {
        "a/b": b"bytes", "c": b"of a file"
    }  # fmt: skip
    assert read_attachments(None) == {}
    checkpoints = run.at(tmp_path / "ck")
    checkpoints.save(3, None, attached)
    assert checkpoints.attachments(None) == {"a/b": b"bytes", "c": b"of a file"}
    there = type(checkpoints._there)
    monkeypatch.setattr(there, "attachment", lambda self, document, sha256: b"others")
    with pytest.raises(CorruptCheckpointError, match="its bytes are not those that were saved"):
        checkpoints.attachments(3)


def test_a_url_is_taken_over_once(run, tmp_path):
    pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")
    places = CheckpointPlaces(run.client)
    url = f"file://{tmp_path}/bucket"
    one = places.at(url)
    assert places.at(url) is one
    assert places.at(f"{url}2") is not one
    assert places.at(tmp_path) is not places.at(tmp_path)
    assert one.run == run.ask("run")
    ShardedCheckpoints(run.client, one, [run.prefetcher]).save(1, None, None)
    run.add(10, 11)
    ShardedCheckpoints(run.client, places.at(url), [run.prefetcher]).load(None)
    assert run.rows() == numbers(10)


def test_a_push_is_waited_for_and_not_for_ever(run, tmp_path, monkeypatch):
    checkpoints = run.at(tmp_path / "ck")
    answers = [False, False, True]

    class Actor:
        def is_pushed(self, part):
            return answers.pop(0)

    checkpoints._wait_pushed(LocalActor(Actor()), "1")  # of a directory nothing is asked
    assert len(answers) == 3
    monkeypatch.setattr(type(checkpoints._there), "bucket", "bucket", raising=False)
    monkeypatch.setattr(sharded_checkpoints.time, "sleep", lambda seconds: None)
    checkpoints._wait_pushed(LocalActor(Actor()), "1")
    assert answers == []
    answers += [False] * 9
    monkeypatch.setattr(sharded_checkpoints, "_LONG", -1.0)
    with pytest.raises(ShardsLostError, match="has not pushed its part"):
        checkpoints._wait_pushed(LocalActor(Actor()), "1")


@pytest.mark.parametrize("harm", ["schema", "damaged", "missing"])
def test_what_one_shard_cannot_load_is_loaded_by_none(run, tmp_path, harm, monkeypatch):
    """And no load is under way then: who connects next would try it again."""
    run.at(tmp_path / "ck").save(3, None, None)
    run.add(10, 15)
    (part,) = (tmp_path / "ck" / "parts").glob("r-1_ckpt*")
    files = (path for path in (part / "reward").rglob("*") if path.is_file())
    chunk = next(path for path in files if path.name != "zarr.json")
    error = CorruptCheckpointError
    if harm == "schema":
        kind, error = run.actors[1].made._buffer._kind, SchemaError

        def refuse(_saved):
            raise SchemaError("another extra")

        monkeypatch.setattr(kind, "check_opened", refuse)
    elif harm == "missing":
        chunk.unlink()
    else:
        data = bytearray(chunk.read_bytes())
        data[len(data) // 2] ^= 255
        chunk.unlink()  # it is a link
        chunk.write_bytes(data)
    with pytest.raises(error):
        run.at(tmp_path / "ck").load(None)
    assert run.rows() == numbers(15)
    assert run.ask("load_under_way") is None


def test_a_load_that_cannot_be_finished_is_told_and_nobody_is_kept_from_connecting(run, tmp_path):
    run.ask("begin_load", "gone", 1, 2)
    with pytest.warns(RuntimeWarning, match="could not be finished"):
        finish_load(run.client)
    assert run.rows() == numbers(10)
