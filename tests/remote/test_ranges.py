"""A published checkpoint as a Zarr group: the same values, and only the bytes that are needed."""

import dataclasses
import json

import numpy as np
import pytest
import zarr

import diskreplay
from diskreplay.errors import CorruptCheckpointError
from tests.remote.conftest import Run


@pytest.fixture
def published(tmp_path, anywhere):
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(1500)
    path = run.save(1)
    one = anywhere()
    one.push(path)
    run.buffer.close()
    return one, path


def test_the_same_values(published):
    one, path = published
    here, there = zarr.open_group(path, mode="r"), one.zarr()
    assert sorted(here.array_keys()) == sorted(there.array_keys())
    assert dict(here.attrs) == dict(there.attrs)
    for name in here.array_keys():
        assert (here[name][:] == there[name][:]).all()
        assert here[name].attrs == there[name].attrs


def test_only_what_is_needed(published):
    one, _path = published
    asked = []
    get_range = one._bucket.get_range

    def counted(key, start, length):
        asked.append(length)
        return get_range(key, start, length)

    one._bucket.get_range = counted
    observations = one.zarr()["observation"]
    asked.clear()
    rows = np.arange(701, 717)
    assert (observations[700][0] == rows.astype("uint8")).all()
    assert sum(asked) < 5000
    assert len(asked) <= 4


def test_zeros_at_the_end_of_a_file_are_not_put(published):
    one, path = published
    registry = one._reading()
    found = registry.document(registry.find(1))
    shorter = [
        key for key, part in found.parts.items() if part.length < (path / key).stat().st_size
    ]
    assert shorter
    reward = one.zarr()["reward"]
    assert reward[1499][0] == 1500
    assert (reward[1500:] == 0).all()


def test_more_than_memory_is_not_made(published):
    """Zeros at a file's end take no room in the store: a manifest may name any length."""
    one, _path = published
    registry = one._reading()
    at = registry.find(1)
    found = registry.document(at)
    listing = json.loads(found.listing)
    key = next(key for key in listing["files"] if key.startswith("reward/c"))
    listing["files"][key][0] = 1 << 50
    registry.remember(at.document, dataclasses.replace(found, listing=json.dumps(listing)))
    with pytest.raises(CorruptCheckpointError, match=f"{key}.*of memory"):
        one.zarr()["reward"][:]


def test_nothing_is_written(published):
    one, _path = published
    with pytest.raises((ValueError, zarr.errors.BaseZarrError)):
        one.zarr()["reward"][0] = 1
    with pytest.raises((ValueError, zarr.errors.BaseZarrError)):
        one.zarr().create_array("more", shape=(1,), dtype="f4")
