"""Where checkpoints of all shards are published, without any shard: savers that meet there."""

import contextlib
import hashlib
import json
import os
import time

import pytest
from ray import exceptions

from diskreplay import CorruptCheckpointError
from diskreplay.ray import noted_parts
from diskreplay.ray.checkpoint_bucket import CheckpointBucket
from diskreplay.ray.destination import Bucket
from diskreplay.ray.sharded_checkpoint import CheckpointDirectory

DAY = 24 * 3600


def document(suffix, part, attachments):
    return {
        "format": 1, "suffix": suffix, "num_shards": 1, "num_envs": 1, "shards": [part],
        "rng": {}, "inserts": 0, "samples": 0, "attachments": attachments,
    }  # fmt: skip


def test_a_sweep_leaves_what_a_living_saver_has_attached_again(tmp_path):
    """A dead saver had put the same bytes two days before."""
    pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")
    data = b"config"
    sha256 = hashlib.sha256(data).hexdigest()

    def saver():
        return CheckpointBucket(Bucket.of(f"file://{tmp_path}/bucket"), "n", "run")

    def publish(to, suffix, token, attached):
        part = {"name": "n-0", "suffix": token}
        named = dict.fromkeys(attached, sha256)
        to.publish(document(suffix, part, named), None, dict.fromkeys(named.values(), data))

    dead, first, second = saver(), saver(), saver()

    def dies(*_arguments):
        raise ZeroDivisionError

    dead._catalog.write = dies
    with pytest.raises(ZeroDivisionError):
        publish(dead, "4", "4-dead", ["config"])
    left = [path for path in (tmp_path / "bucket/attachments").rglob("*") if path.is_file()]
    assert len(left) == 1
    os.utime(left[0], (time.time() - 2 * DAY,) * 2)
    write = first._catalog.write

    def overtaken(*arguments):  # the other one publishes and sweeps before
        first._catalog.write = write
        with second.saving("6", [], 0.0) as token:
            publish(second, "6", token, [])
        return write(*arguments)

    first._catalog.write = overtaken
    with first.saving("5", [], 0.0) as token:
        publish(first, "5", token, ["config"])
    found = saver()
    assert found.suffixes() == ["5", "6"]
    assert found.attachment(found.read("5"), sha256) == data
    assert not left[0].exists()


class Lost:
    """A shard that does not answer."""

    asked = 0

    def call(self, *_arguments, again):
        Lost.asked += 1
        return again


def test_a_shard_that_is_away_is_waited_for_once_whatever_dead_savers_left(tmp_path, monkeypatch):
    def answer(_call, _timeout):
        raise exceptions.GetTimeoutError

    monkeypatch.setattr(noted_parts, "wait", lambda _calls, _timeout: False)
    monkeypatch.setattr(noted_parts, "answer", answer)
    for number in range(5):
        Lost.asked = 0
        with contextlib.suppress(ZeroDivisionError):
            with CheckpointDirectory(tmp_path, "n").saving(str(number), [Lost()], 0.0):
                raise ZeroDivisionError
        assert Lost.asked == 1 + (number > 0)  # for its own parts, and those of one before


@pytest.mark.parametrize("part", [{"name": "n-0"}, {"path": 7}, "n-0", None])
def test_a_damaged_document_keeps_no_other_from_being_published(tmp_path, part):
    (tmp_path / "n_shards.1.json").write_text(json.dumps(document("1", part, {})))
    place = CheckpointDirectory(tmp_path, "n")
    with place.saving("2", [], 0.0) as token:
        path = str(place.parts / f"n-0_ckpt.{token}")
        place.publish(document("2", {"path": path}, {}), None, {})
    assert place.read("2")["shards"] == [{"path": path}]
    with pytest.raises(CorruptCheckpointError, match="shard 0 has no path"):
        place.read("1")
