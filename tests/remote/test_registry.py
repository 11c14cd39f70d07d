"""Which checkpoint is meant, and where its files are."""

import pytest

from diskreplay.errors import CheckpointNotFoundError, CorruptCheckpointError, SuffixError
from diskreplay.remote import registry as module
from diskreplay.remote.fenced_object import Takeover
from diskreplay.remote.registry import Registry


@pytest.fixture
def pushed(run, remote):
    """A registry of three checkpoints, and what was listed."""
    with remote(run="one") as pushing:
        for suffix in (9, 10, "best"):
            run.add(60)
            pushing.push(run.save(suffix))
        listed = {each.suffix: each for each in pushing.list()}
        yield Registry(pushing._bucket, "one", takeover=Takeover(False), unsafe=False), listed


def test_the_highest_number_is_meant_unless_one_is_named(pushed):
    registry, listed = pushed
    assert registry.find(None) == listed["10"]
    for suffix, found in listed.items():
        assert registry.find(suffix) == found
    assert registry.find(9) == listed["9"]
    with pytest.raises(CheckpointNotFoundError, match=r"8 there \(has: best, 9, 10\)"):
        registry.find(8)
    with pytest.raises(SuffixError):
        registry.find("../x")


def test_where_nothing_is_published(remote):
    registry = Registry(remote()._bucket, "one", takeover=Takeover(False), unsafe=False)
    with pytest.raises(CheckpointNotFoundError, match=r"no numbered .*\(has: none\)"):
        registry.find(None)


def test_a_document_is_read_once(pushed, monkeypatch):
    registry, listed = pushed
    found = registry.document(listed["9"])
    assert (found.name, found.suffix) == ("replay", "9")
    monkeypatch.setattr(registry.bucket, "get", None)
    assert registry.document(listed["9"]) is found


def test_as_many_documents_are_kept_as_are_wanted_and_the_newest(pushed, monkeypatch):
    registry, listed = pushed
    monkeypatch.setattr(module, "KEPT", 2)
    found = {suffix: registry.document(one) for suffix, one in listed.items()}
    assert len(registry._documents) == 2
    *_, second, last = listed
    monkeypatch.setattr(registry.bucket, "get", None)
    for suffix in (second, last):
        assert registry.document(listed[suffix]) is found[suffix]


def test_a_document_that_is_missing_or_anothers_is_refused(pushed):
    registry, listed = pushed
    nine, ten = listed["9"], listed["10"]
    data, _tag = registry.bucket.get(ten.document, 1 << 20)
    registry.bucket.put(nine.document, data)
    with pytest.raises(CorruptCheckpointError, match="of replay 10 where replay 9 is expected"):
        registry.document(nine)
    registry.bucket.delete([nine.document])
    with pytest.raises(CorruptCheckpointError, match="missing; pull another checkpoint"):
        registry.document(nine)
    assert registry.document(ten).suffix == "10"


def test_objects_are_known_without_the_documents(pushed, monkeypatch):
    registry, listed = pushed
    needed = {suffix: registry.objects(one) for suffix, one in listed.items()}
    assert all(needed[s] == registry.document(one).objects.keys() for s, one in listed.items())
    registry._documents.clear()
    with monkeypatch.context() as without:
        without.setattr(registry.bucket, "get", None)
        assert {suffix: registry.objects(one) for suffix, one in listed.items()} == needed
    monkeypatch.setattr(module, "_MOST_NAMES", 1)
    registry._objects.clear()
    registry._names = 0
    for _ in range(3):
        for suffix, one in listed.items():
            assert registry.objects(one) == needed[suffix]
            assert registry._names == sum(map(len, registry._objects.values()))
            assert registry._names <= 1 + max(map(len, needed.values()))
    registry.bucket.delete([listed["9"].document])
    registry._documents.clear()
    registry._objects.clear()
    with pytest.raises(CorruptCheckpointError, match="missing"):
        registry.objects(listed["9"])
