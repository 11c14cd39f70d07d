"""Saved priorities that cannot be what a writer saved, each damage by itself."""

import json

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.check import priority_check
from diskreplay.check.snapshot import Snapshot
from diskreplay.store import format

ROWS, ENVS = 700, 2


@pytest.fixture
def store(tmp_path):
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "store", observation_space=Discrete(9), action_space=Discrete(9), capacity=None,
        num_envs=ENVS,
    ) as buffer:  # fmt: skip
        ones, no = np.ones(ENVS, int), np.zeros(ENVS, bool)
        for _ in range(ROWS):
            buffer.add(ones, ones, ones, no, no)
        buffer.update_priorities(buffer.sampleable_ids(), np.arange(len(buffer)) + 1.0)
    return tmp_path / "store"


def checked(store):
    return priority_check.check(store / "priority", Snapshot(store))


def chunks(store):
    return [store / "priority" / format.priority_key(number)
            for number in format.priority_chunks(store / "priority")]  # fmt: skip


def test_what_a_writer_saved_is_sound(store):
    found = checked(store)
    assert found.faults == []
    assert found.expected == {store / "priority" / "zarr.json", *chunks(store)}
    assert set(found.seals) == set(chunks(store))
    for path, seal in found.seals.items():
        data = path.read_bytes()
        assert (seal.size, seal.crc32c) == (len(data), google_crc32c.value(data))


@pytest.mark.parametrize("bad", [-1.0, np.inf])
def test_a_leaf_that_cannot_be(store, bad):
    path = chunks(store)[0]
    leaves = np.frombuffer(path.read_bytes()).copy()
    leaves[[3, 5]] = bad
    path.write_bytes(leaves.tobytes())
    assert checked(store).faults == [(path, "2 priorities are negative or not finite")]


def test_a_leaf_behind_the_last_row(store):
    path = chunks(store)[-1]
    leaves = np.frombuffer(path.read_bytes()).copy()
    assert np.isnan(leaves[-1])
    leaves[-1] = 1.0
    path.write_bytes(leaves.tobytes())
    assert checked(store).faults == [(path, "there are priorities behind the last row")]


def test_a_file_that_is_missing_or_cut(store):
    path = chunks(store)[0]
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    ((where, what),) = checked(store).faults
    assert where == path
    assert f"{len(data) - 8} bytes found, {len(data)} expected" in what
    path.unlink()
    ((where, what),) = checked(store).faults
    assert where == path
    assert path not in checked(store).seals


def test_metadata_of_something_else(store):
    path = store / "priority" / "zarr.json"
    document = json.loads(path.read_text())
    for change, message in (
        ({"shape": [ROWS + 1, ENVS]}, f"{ROWS + 1} rows found, {ROWS} expected"),
        ({"shape": [ROWS - 1, ENVS]}, f"{ROWS - 1} rows found, {ROWS} expected"),
        ({"data_type": "float32"}, "the metadata are damaged"),
        ({"shape": 3}, "the metadata are damaged"),
    ):
        path.write_text(json.dumps(document | change))
        ((where, what),) = checked(store).faults
        assert where == path
        assert message in what
