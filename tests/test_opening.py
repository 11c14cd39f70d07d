"""`diskreplay.open` goes by the options in the store: those that make no sense are refused at once,
before memory is asked for, and others are taken.
"""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors

ROWS = 60
NAMES = "stack_size", "update_horizon", "batch_size"


def make(path, capacity, **changed):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (8, 8), "uint8"), action_space=Discrete(3),
        capacity=capacity, seed=1, **changed,
    )  # fmt: skip


def add(buffer, count):
    for i in range(count):
        buffer.add(np.full((8, 8), i, np.uint8), i % 3, i, False, False)


def change(path, **options):
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"] |= options
    (path / "zarr.json").write_text(json.dumps(document))


def make_store(directory, capacity):
    with make(directory / "store", capacity) as buffer:
        add(buffer, ROWS)


@pytest.fixture(params=[None, 100])
def store(request, filled, tmp_path):
    """A store that keeps all rows, or 100 of an env."""
    filled(make_store, request.param)
    return tmp_path / "store", request.param


@pytest.mark.costly(44)
@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("value", [2**30, 2**21, 2**40, 2**64, 0, -1, 1.5, "4", None, [4], True])
@pytest.mark.parametrize("name", NAMES)
def test_refused(store, mode, name, value):
    path, capacity = store
    if name == "batch_size":
        # 2**30 may be: that a machine has memory for it is looked at below.
        value = 2**31 if value in (2**21, 2**30) else value
    change(path, **{name: value})
    with pytest.raises(errors.DiskReplayError) as caught:
        diskreplay.open(path, mode)
    assert str(path) in str(caught.value) or (capacity and "capacity" in str(caught.value))
    with make(path, capacity) as buffer:  # nothing was changed
        assert int(buffer.bounds[0, 1]) == ROWS
        assert buffer.sample().observation.shape == (32, 8, 8)


def test_a_batch_that_no_memory_holds(tmp_path):
    """Each number may be, and all of them together may not."""
    with make(tmp_path / "store", None) as buffer:
        add(buffer, ROWS)
    change(tmp_path / "store", stack_size=2**19, update_horizon=2**20, batch_size=2**24)
    with pytest.raises(errors.FormatError, match="GiB"):
        diskreplay.open(tmp_path / "store")


def test_more_than_the_rows_of_an_env(tmp_path):
    """With a capacity, the window of a transition is within the rows that an env keeps."""
    with make(tmp_path / "store", 100) as buffer:
        add(buffer, ROWS)
    change(tmp_path / "store", stack_size=90, update_horizon=11)
    with pytest.raises(errors.DiskReplayError, match="101"):
        diskreplay.open(tmp_path / "store")
    change(tmp_path / "store", stack_size=50, update_horizon=10, batch_size=7)
    with diskreplay.open(tmp_path / "store") as reader:
        assert reader.sample().observation.shape == (7, 50, 8, 8)


@pytest.mark.parametrize("name", ["stack_size", "update_horizon"])
def test_what_could_not_be_opened_cannot_be_made(name, tmp_path):
    with pytest.raises(errors.InvalidInputError, match=f"{name}: at most 1048576 expected"):
        make(tmp_path / "store", None, **{name: 2**20 + 1})
