"""Checkpoints of all shards in an object store."""

import json

import numpy as np
import pytest

from diskreplay import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidInputError,
    ShardsLostError,
    TakenOverError,
)
from diskreplay.remote import RemoteCheckpoints
from tests.on_ray.workload import add, check, killing_amid_save, make
from tests.remote import servers
from tests.remote.conftest import moto  # noqa: F401

pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")
pytestmark = pytest.mark.usefixtures("cluster")
PATIENCE = 240


def start(path, shards, **options):
    options = {
        "num_shards": shards, "num_envs": 8, "env_group": 2, "capacity": 8 * 100,
        "segment_rows": 16, "name": "bucket", "timeout": PATIENCE,
    } | options  # fmt: skip
    return make(path, **options)


def fill(replay, name="", steps=30):
    for number in range(4):
        with replay.writer(2, 8) as writer:
            for at in range(steps):
                add(writer, [f"{name}{number}a", f"{name}{number}b"], at)
    batch = replay.sample(128)
    replay.update_priorities(batch.id, batch.reward + 0.5, batch.generation)


@pytest.fixture(params=["moto", "directory"])
def where(request, tmp_path):
    """Makes what `save` and `load` are given."""
    if request.param == "directory":
        return lambda **how: RemoteCheckpoints(f"file://{tmp_path}/bucket/pong", **how)
    pytest.importorskip("moto", reason="needs moto: pip install diskreplay[servers]")
    endpoint, faults = request.getfixturevalue("moto")
    faults.reset()
    url = f"s3://bucket/{servers.own(tmp_path)}"
    return lambda **how: RemoteCheckpoints(url, storage_options=servers.options(endpoint), **how)


def numbers_drawn(replay, batches=20):
    found = set()
    for _ in range(batches):
        batch = replay.sample(256)
        check(batch)
        found |= set(batch.number.tolist())
    return found


def test_saved_by_two_shards_and_loaded_by_two_three_and_one(where, tmp_path):
    with start(tmp_path / "two", 2) as replay:
        fill(replay)
        said = replay.save(where(), 1, attachments={"agent.pt": b"one"})
        assert said.endswith("/shards.json")
        everything = numbers_drawn(replay)
        totals = [handle.state.mass.total for handle in replay._client.handles]
        replay.load(where(), 1)
        expected = [replay.sample().number.tolist() for _ in range(3)]
        fill(replay, "later", 5)
        replay.save(where(), 2, attachments={"agent.pt": b"two"})
    # The same run, on its disks, goes on; another one has to say that it takes its place.
    with start(tmp_path / "two", 2) as replay:
        replay.load(where(), 1)
        assert [replay.sample().number.tolist() for _ in range(3)] == expected
        replay.save(where(), 3)
    for shards in (3, 1):
        with start(tmp_path / f"to{shards}", shards) as replay:
            with pytest.raises(TakenOverError):
                replay.save(where(), 9)
            assert replay.load(where(), 1) == "1"
            assert replay.attachments(where(), 1) == {"agent.pt": b"one"}
            now = [handle.state.mass.total for handle in replay._client.handles]
            assert sum(now) == pytest.approx(sum(totals), rel=1e-12)
            assert numbers_drawn(replay) <= everything
            assert replay.attachments(where()) == {}  # that of 3
            with pytest.raises(CheckpointNotFoundError, match=r"there are \['1', '2', '3'\]"):
                replay.load(where(), 9)
            assert not (tmp_path / f"to{shards}" / "shard-0" / "incoming").exists()


def test_what_retention_leaves_and_another_run_that_takes_over(where, tmp_path):
    with start(tmp_path / "old", 2) as old:
        fill(old)
        for number in range(4):
            old.save(where(), number, keep=2, attachments={"n": str(number).encode()})
        with pytest.raises(CheckpointNotFoundError, match=r"there are \['2', '3'\]"):
            old.load(where(), 1)
        with RemoteCheckpoints(where().url + "/parts/bucket-0", **where().options) as parts:
            left = sorted(one.suffix.partition("-")[0] for one in parts.list())
            assert left == ["2", "3"]
            assert parts.verify(deep=True).clean
    with start(tmp_path / "new", 4) as new:
        mine = where(takeover=True)
        assert new.load(mine) == "3"
        fill(new, "new", 5)
        new.save(mine, 4)
        assert new.attachments(mine, 3) == {"n": b"3"}
    with start(tmp_path / "old", 2) as old:
        with pytest.raises(TakenOverError):
            old.save(where(), 5)
        assert old.load(where(), 4) == "4"  # to read is for all
        check(old.sample(256))


def test_a_shard_that_dies_while_it_pushes_publishes_nothing(tmp_path, monkeypatch):
    where = RemoteCheckpoints(f"file://{tmp_path}/bucket/pong")
    with start(tmp_path / "replay", 2) as replay:
        fill(replay)
        replay.save(where, 1)
        killing_amid_save(monkeypatch, replay.shards()[1]["pid"])
        with pytest.raises(ShardsLostError, match="shard 1 died while it saved"):
            replay.save(where, 2)
        published = json.loads((tmp_path / "bucket/pong/shards.json").read_text())
        assert list(published["checkpoints"]) == ["1"]
        replay.load(where)
        assert replay.save(where, 2)


def test_a_shard_is_restored_from_the_bucket(tmp_path):
    where = f"file://{tmp_path}/bucket/pong"
    with start(tmp_path / "replay", 2) as replay:
        fill(replay)
        replay.save(where, 1)
        before = replay._client.handles[1].state.mass.total
        replay._client.refresh()
        ids = replay.sample(256)
        fill(replay, "later", 3)
        replay.restore_shard(1, where)
        assert replay._client.handles[1].state.mass.total == pytest.approx(before)
        ids = ids.id[(ids.id >> 48) == 1]
        assert len(replay.gather(ids)) == len(ids)


def test_what_is_damaged_or_makes_no_sense(tmp_path):
    import obstore

    where = f"file://{tmp_path}/bucket/pong"
    with start(tmp_path / "replay", 2) as replay:
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint of a number"):
            replay.load(where)
        with pytest.raises(InvalidInputError, match="needs one"):
            replay.save(RemoteCheckpoints(obstore.store.MemoryStore()), 1)
        with pytest.raises(InvalidInputError, match="ftp found, one of"):
            replay.save("ftp://there", 1)
        fill(replay)
        replay.save(where, 1, attachments={"a": b"x"})
        generation = replay.sample().generation[0]
        (attached,) = (tmp_path / "bucket/pong/attachments").glob("*/*")
        attached.write_bytes(b"y")
        with pytest.raises(CorruptCheckpointError, match="'a'"):
            replay.attachments(where)
        for pack in (tmp_path / "bucket/pong/parts").glob("bucket-1/packs/*"):
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)
        with pytest.raises(CorruptCheckpointError):
            replay.load(where)
        assert replay.sample().generation[0] == generation  # nothing has changed
        (tmp_path / "bucket/pong/shards.json").write_text('{"format": 1}')
        with pytest.raises(CorruptCheckpointError, match="damaged"):
            replay.load(where)
        assert np.isfinite(replay.sample().weight).all()
