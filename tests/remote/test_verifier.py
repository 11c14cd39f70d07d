"""What a check of published checkpoints says of objects that are missing, cut or rotten."""

import pytest

from diskreplay.remote.fenced_object import Takeover
from diskreplay.remote.registry import Registry
from diskreplay.remote.verifier import verify


@pytest.fixture
def case(run, remote):
    """A registry, its checkpoints and which objects each needs."""
    with remote(run="one", pack_bytes=2000) as pushing:
        for number in (1, 2):
            run.add(600)
            pushing.push(run.save(number))
        registry = Registry(pushing._bucket, "one", takeover=Takeover(False), unsafe=False)
        listed = pushing.list()
        yield registry, listed, {c.suffix: registry.document(c).objects for c in listed}


def checked(case, deep=False):
    registry, listed, _needed = case
    fresh = Registry(registry.bucket, "one", takeover=Takeover(False), unsafe=False)
    return verify(fresh, listed, deep=deep, concurrency=3)


@pytest.mark.parametrize("deep", [False, True])
def test_all_is_there(case, deep):
    _registry, _listed, needed = case
    found = checked(case, deep)
    every = {key: length for objects in needed.values() for key, length in objects.items()}
    assert found.clean
    assert (found.checkpoints, found.findings) == (("1", "2"), ())
    assert (found.objects, found.bytes) == (len(every), sum(every.values()))


@pytest.mark.parametrize("deep", [False, True])
def test_an_object_that_is_missing_or_cut_is_named_with_who_needs_it(case, deep):
    registry, _listed, needed = case
    both = next(iter(needed["1"].keys() & needed["2"].keys()))
    mine = next(iter(needed["2"].keys() - needed["1"].keys()))
    data, _tag = registry.bucket.get(mine, 1 << 30)
    registry.bucket.put(mine, data[:-1])
    registry.bucket.delete([both])
    found = checked(case, deep)
    assert not found.clean
    assert len(found.findings) == 2
    (missing,) = (each for each in found.findings if both in each)
    (cut,) = (each for each in found.findings if mine in each)
    assert missing.endswith("(checkpoints 1, 2)")
    assert cut.endswith("(checkpoints 2)")
    if not deep:
        assert ": missing (" in missing
        assert f"{len(data) - 1:,} bytes found, {len(data):,} expected" in cut


def test_only_a_deep_look_finds_rot(case):
    registry, _listed, needed = case
    key = max(needed["2"], key=needed["2"].get)
    data, _tag = registry.bucket.get(key, 1 << 30)
    registry.bucket.put(key, bytes([data[0] ^ 1]) + data[1:])
    assert checked(case).clean
    ((finding),) = checked(case, deep=True).findings
    assert key in finding
    assert "; pull" not in finding


def test_a_document_that_is_missing_costs_its_checkpoint_alone(case):
    registry, listed, needed = case
    registry.bucket.delete([listed[0].document])
    found = checked(case)
    ((finding),) = found.findings
    assert finding.endswith("(checkpoint 1)")
    assert found.checkpoints == ("1", "2")
    assert found.objects == len(needed["2"])
