"""Where parts of checkpoints go, as it is sent to shards; without a cluster."""

import pickle

import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.errors import InvalidInputError, TakenOverError
from diskreplay.ray.destination import Bucket

pytest.importorskip("obstore", reason="needs obstore: pip install diskreplay[cloud]")


def test_a_path_is_none_and_a_url_is_kept(tmp_path):
    from diskreplay.remote import RemoteCheckpoints

    assert Bucket.of(tmp_path) is None
    assert Bucket.of(str(tmp_path)) is None
    url = f"file://{tmp_path}/bucket"
    found = Bucket.of(url)
    assert found.url == url
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    with RemoteCheckpoints(url, run="mine", concurrency=3) as remote:
        found = Bucket.of(remote)
        assert found.url == url
        assert found.how["concurrency"] == 3
        assert found.how == remote.options


def test_a_store_without_a_url_is_refused(tmp_path):
    from obstore.store import LocalStore

    from diskreplay.remote import RemoteCheckpoints

    with RemoteCheckpoints(LocalStore(tmp_path)) as remote:
        assert not remote.has_url
        with pytest.raises(InvalidInputError, match="is no URL; each shard reaches the store"):
            Bucket.of(remote)


def test_each_shard_has_a_place_of_its_own_and_publishes_as_the_run(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Discrete(3), action_space=Discrete(3), capacity=20
    ) as buffer:
        buffer.add(0, 0, 0.0, False, False)
        path = buffer.save(tmp_path / "ck", 1)
    bucket = Bucket.of(f"file://{tmp_path}/bucket")
    with bucket.part("r-3", "one") as part, bucket.part("r-3", None) as reading:
        assert part.url == reading.url == f"file://{tmp_path}/bucket/parts/r-3"
        part.push(path)
        assert [(each.suffix, each.run) for each in reading.list()] == [("1", "one")]
    with bucket.part("r-3", "two") as other, pytest.raises(TakenOverError):
        other.push(path)
    with bucket.part("r-4", None) as reading:
        assert reading.list() == []
