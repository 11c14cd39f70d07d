"""A learner that is killed while it saves: what it leaves goes with the next save, and nothing of
one that lives."""

import json
import random
import time
from pathlib import Path

import pytest

from diskreplay.ray import ShardedReplayBuffer, checkpoint_bucket
from tests.on_ray.workload import add, check, end, make, start_client

pytestmark = pytest.mark.usefixtures("cluster")

SAVER = """
import sys
import ray
from diskreplay.ray import ShardedReplayBuffer, sharded_checkpoint
from diskreplay.ray.sharded_checkpoint import CheckpointDirectory as Directory

address, directory, when, first = sys.argv[1:]

def halting(function):
    def halts(*arguments):
        print("halts", flush=True)
        sys.stdin.readline()
        return function(*arguments)
    return halts

ray.init(address=address, log_to_driver=False, logging_level="ERROR")
replay = ShardedReplayBuffer.connect("savers", seed=1)
if when == "parts are there":
    Directory.publish = halting(Directory.publish)
elif when == "it is published":
    sharded_checkpoint.files.remove = halting(sharded_checkpoint.files.remove)
elif when == "bucket":
    from diskreplay.ray.checkpoint_bucket import CheckpointBucket
    CheckpointBucket.publish = halting(CheckpointBucket.publish)
else:
    print("halts", flush=True)
for number in range(int(first), 1000):
    replay.save(directory, number, keep=2, attachments={"number": b"%d" % number})
    print(number, flush=True)
"""


@pytest.fixture(scope="module")
def replay(cluster, tmp_path_factory):
    with make(tmp_path_factory.mktemp("replay"), name="savers", timeout=240.0) as made:
        for number in range(3):
            with made.writer(2, 8) as writer:
                for at in range(12):
                    add(writer, [f"{number}a", f"{number}b"], at)
        yield made


def saver(directory, when, first):
    """Another learner of the same buffer, in a process of its own."""
    return start_client(SAVER, directory, when, first)


def parts_of(directory):
    """The parts that published checkpoints name, and those that are there."""
    documents = [json.loads(path.read_bytes()) for path in directory.glob("*_shards.*.json")]
    named = {Path(part["path"]).name for each in documents for part in each["shards"]}
    return named, {path.name for path in (directory / "parts").iterdir()}


def check_nothing_is_left(directory):
    named, there = parts_of(directory)
    assert there == named
    left = {path.name for path in directory.iterdir() if path.suffix != ".json"}
    assert left == {"parts", "attachments", ".savers_shards.lock"}
    assert len(list((directory / "attachments").iterdir())) == len(named) // 3


@pytest.mark.parametrize("when", ["parts are there", "it is published"])
def test_what_a_killed_saver_leaves_goes_with_the_next_save(tmp_path, replay, when):
    for number in (1, 2):
        replay.save(tmp_path, number, attachments={"number": b"%d" % number})
    process = saver(tmp_path, when, 3)
    end(process)
    named, there = parts_of(tmp_path)
    assert len(there) == 9
    assert len(named) == 6 + 3 * (when == "it is published")
    replay.save(tmp_path, 4, keep=2, attachments={"number": b"4"})
    check_nothing_is_left(tmp_path)
    assert replay.load(tmp_path) == "4"
    check(replay.sample())


def test_savers_are_killed_at_any_moment(tmp_path, replay):
    rng, first = random.Random(5), 1
    for _ in range(4):
        process = saver(tmp_path, "any", first)
        for _ in range(rng.randrange(2)):
            process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.5))
        end(process)
        first += 100
    replay.save(tmp_path, first, keep=2, attachments={"number": b"last"})
    check_nothing_is_left(tmp_path)
    assert replay.load(tmp_path) == str(first)
    check(replay.sample())


def test_nothing_of_a_living_saver_is_touched(tmp_path, replay):
    replay.save(tmp_path, 1)
    process = saver(tmp_path, "parts are there", 3)
    for number in (4, 5):
        replay.save(tmp_path, number, attachments={"number": b"other"})
    _named, there = parts_of(tmp_path)
    assert len(there) == 3 * 4
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == "3\n"
    end(process)
    follower = ShardedReplayBuffer.connect("savers", seed=2)
    assert follower.load(tmp_path, 5) == "5"
    assert follower.attachments(tmp_path, 5) == {"number": b"other"}
    check(follower.sample())
    follower.disconnect()


def test_what_a_killed_saver_leaves_in_a_bucket_goes_when_it_is_old(tmp_path, replay, monkeypatch):
    pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")
    from diskreplay.remote import RemoteCheckpoints

    url = f"file://{tmp_path}/bucket"
    replay.save(url, 1)
    process = saver(url, "bucket", 3)

    def there():
        return [
            [one.suffix.split("-")[0] for one in RemoteCheckpoints(f"{url}/parts/{name}").list()]
            for name in ("savers-0", "savers-1", "savers-2")
        ]

    follower = ShardedReplayBuffer.connect("savers", seed=2)
    follower.save(url, 4)
    assert there() == [["1", "3", "4"]] * 3  # it may live
    end(process)
    monkeypatch.setattr(checkpoint_bucket, "_GRACE_S", 0.0)
    replay.save(url, 5, keep=2)
    assert there() == [["4", "5"]] * 3
    assert follower.load(url, 4) == "4"
    follower.disconnect()
