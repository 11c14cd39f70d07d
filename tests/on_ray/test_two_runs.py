"""Two runs that save checkpoints of shards to one URL; without a cluster.

The learners are `CheckpointBucket`, and their shards push parts as `ShardParts` does. One of them
is stopped for a while, and the other takes over.
"""

import datetime
import functools
import itertools

import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.errors import TakenOverError
from diskreplay.ray import checkpoint_bucket
from diskreplay.ray.checkpoint_bucket import CheckpointBucket
from diskreplay.ray.destination import Bucket

pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")

_numbers = itertools.count()


class Learner:
    def __init__(self, url, place, run, *, takeover=True, shards=2):
        from diskreplay.remote import RemoteCheckpoints

        where = RemoteCheckpoints(url, takeover=takeover)
        self.place, self.shards = place / run, shards
        self.there = CheckpointBucket(Bucket.of(where), "pong", run)

    def push(self, part, number):
        """As shard `number` does."""
        name, place = f"pong-{number}", self.place / str(next(_numbers))
        with diskreplay.ReplayBuffer(
            place / name, observation_space=Discrete(300), action_space=Discrete(3), capacity=20,
            name=name,
        ) as buffer:  # fmt: skip
            buffer.add(next(_numbers) % 300, 0, 0.0, False, False)
            path = buffer.save(place / "outgoing", part)
        with self.there.bucket.part(name, self.there.run) as remote:
            remote.push(path)

    def save(self, number, amid=lambda part: None, attached=None):
        with self.there.saving(str(number), [None] * self.shards, 1.0) as part:
            amid(part)
            for shard in range(self.shards):
                self.push(part, shard)
            self.publish(part, number, attached or {})

    def publish(self, part, number, attached):
        shards = [
            {"name": f"pong-{shard}", "suffix": part, "digest": "0" * 64, "count": [1],
             "transitions": 1}
            for shard in range(self.shards)
        ]  # fmt: skip
        document = {
            "suffix": str(number), "num_shards": self.shards, "shards": shards,
            "num_envs": self.shards, "env_group": 1, "rng": {}, "inserts": 0, "samples": 0,
            "attachments": {name: name for name in attached},
        }  # fmt: skip
        self.there.publish(document, 4, attached)

    def check(self):
        """All parts that are named are there, and whole."""
        for suffix in self.there.suffixes():
            for part in self.there.read(suffix)["shards"]:
                with self.there.bucket.part(part["name"]) as remote:
                    assert remote.verify(part["suffix"], deep=True).clean


@pytest.fixture
def learner(tmp_path):
    return functools.partial(Learner, f"file://{tmp_path}/bucket", tmp_path)


def test_shards_of_a_run_that_was_replaced_push_nothing(learner):
    learner("old").save(0)
    first, second = learner("first"), learner("second")
    first.save(1)

    def stopped(part):
        second.there.claim(2)
        second.save(2)

    with pytest.raises(TakenOverError, match="run second publishes"):
        first.save(9, stopped)
    for number in (3, 4):
        second.save(number)
    assert second.there.suffixes() == ["1", "2", "3", "4"]
    second.check()


@pytest.mark.parametrize("shards", [2, 3])
def test_nor_where_no_part_has_been_pushed_yet(learner, shards):
    """To the place of a shard that is new with the other run, too."""
    first, second = learner("first", shards=3), learner("second", shards=shards)

    def stopped(part):
        second.there.claim(shards)

    with pytest.raises(TakenOverError, match="run second publishes"):
        first.save(9, stopped)
    second.save(1)
    second.check()


def test_a_run_that_is_stopped_while_it_takes_over(learner, monkeypatch):
    """Between the object of all shards and those of their parts."""
    learner("old").save(0)
    first, second = learner("first"), learner("second")
    of_parts = first.there._of_parts

    def stopped(*arguments, **how):
        second.there.claim(2)
        second.save(1)
        of_parts(*arguments, **how)

    monkeypatch.setattr(first.there, "_of_parts", stopped)
    for _ in range(2):
        with pytest.raises(TakenOverError, match="run second publishes"):
            first.there.claim(2)
    second.save(2)
    assert second.there.suffixes() == ["0", "1", "2"]
    second.check()


def test_a_run_that_is_stopped_before_it_removes_old_parts(learner, monkeypatch):
    """For longer than parts of dead savers are left alone."""
    first, second = learner("first"), learner("second")
    of_parts = first.there._of_parts

    def stopped(names, what, **how):
        if not how:  # those that it removes, not those that it takes hold of
            second.there.claim(2)
            second.save(2, attached={"a" * 64: b"two"})
            second.save(3, attached={"b" * 64: b"three"})
            a_day_later(monkeypatch)
        of_parts(names, what, **how)

    monkeypatch.setattr(first.there, "_of_parts", stopped)
    with pytest.warns(RuntimeWarning, match="parts of older ones could not be removed"):
        first.save(1, attached={"c" * 64: b"one"})
    assert second.there.suffixes() == ["1", "2", "3"]
    second.check()
    for suffix, sha256 in (("1", "c"), ("2", "a"), ("3", "b")):
        assert second.there.attachment(second.there.read(suffix), sha256 * 64)
    second.save(4)


def test_attachments_that_another_run_has_published_stay(learner, monkeypatch):
    first, second = learner("first"), learner("second")
    first.save(1)
    second.there.claim(2)
    second.save(2, attached={"a" * 64: b"two"})
    a_day_later(monkeypatch)
    first.there._is_swept = False
    with pytest.warns(RuntimeWarning, match="run second publishes"):
        first.there._remove_left()
    assert second.there.attachment(second.there.read(2), "a" * 64) == b"two"


def a_day_later(monkeypatch):
    from diskreplay.remote import collector

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(hours=25)

    class Module:
        timedelta, UTC, datetime = datetime.timedelta, datetime.UTC, Later

    monkeypatch.setattr(collector, "datetime", Module)
    monkeypatch.setattr(checkpoint_bucket, "datetime", Module)
