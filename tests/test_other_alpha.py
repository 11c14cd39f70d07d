"""Priorities that were saved with one alpha and are read with another, and rotten ones."""

import itertools
import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors

ROWS = 40
# Zero, and as far apart as float64 goes.
PRIORITIES = np.resize([0.0, 1e-250, 1e-9, 0.5, 1.0, 3.0, 1e9, 1e140], ROWS)


def make(path, alpha, **changed):
    options = {
        "observation_space": Box(-1, 1, (2,), "float32"), "action_space": Discrete(2),
        "capacity": 64, "seed": 1, "batch_size": 64, "alpha": alpha,
    }  # fmt: skip
    return diskreplay.PrioritizedReplayBuffer(path, **(options | changed))


def record(buffer, rows=ROWS):
    for _ in range(rows):
        buffer.add(np.zeros(2, np.float32), 0, 0.0, True, False)


def check(buffer, priorities):
    """What had no priority is not drawn, all else can be, in the order of the priorities."""
    ids = buffer.sampleable_ids()
    found = buffer.tree.get(ids % 64)
    assert np.isfinite(found).all()
    assert ((found > 0) == (priorities > 0)).all()
    ordered = found[np.argsort(priorities, kind="stable")]
    assert (ordered[1:] >= ordered[:-1] * (1 - 1e-9)).all()
    assert np.isfinite(buffer.tree.total)
    buffer.tree.check()
    for _ in range(10):
        drawn = np.isin(ids, buffer.sample().id)
        assert not (drawn & (priorities == 0)).any()


@pytest.mark.parametrize("how", ["reopened", "loaded"])
@pytest.mark.parametrize(
    ("before", "after"),
    [*itertools.permutations((0.0, 0.1, 0.6, 2.0), 2), (1e-300, 2.0), (0.5, 1e300), (2.0, 1e-300)],
)
def test_another_alpha(tmp_path, before, after, how):
    with make(tmp_path / "store", before) as buffer:
        record(buffer)
        buffer.update_priorities(np.arange(ROWS), PRIORITIES)
        buffer.save(tmp_path / "checkpoints", 1)
    path = tmp_path / ("store" if how == "reopened" else "other")
    with make(path, after) as buffer:
        if how == "loaded":
            record(buffer, 3)
            buffer.load(tmp_path / "checkpoints", 1)
        check(buffer, PRIORITIES)
        if after <= 2 and before > 0:  # else nothing is known, or all is clamped
            record(buffer, 2)  # new rows have the largest priority
            check(buffer, np.append(PRIORITIES, [1e140] * 2))


def test_between_alphas_that_lose_nothing(tmp_path):
    priorities = np.linspace(0, 4, ROWS)
    with make(tmp_path / "store", 0.6) as buffer:
        record(buffer)
        buffer.update_priorities(np.arange(ROWS), priorities)
    with make(tmp_path / "store", 1.7) as buffer:
        expected = priorities**1.7 / (priorities**1.7).sum()
        found = buffer.gather(np.arange(ROWS)).probability
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_priority_too_large_for_the_new_alpha(tmp_path):
    """New rows have the largest priority seen, which was the total's infinity."""
    with make(tmp_path / "store", 0.1) as buffer:
        record(buffer)
        buffer.update_priorities(np.arange(ROWS), np.full(ROWS, 1e250))
    with make(tmp_path / "store", 2.0) as buffer:
        record(buffer, 20)
        assert np.isfinite(buffer.tree.total)
        batch = buffer.sample()
        assert np.isfinite(batch.weight).all()
        np.testing.assert_allclose(batch.probability, 1 / 60, rtol=1e-9)
        with pytest.raises(errors.PriorityError):
            buffer.update_priorities(np.array([3]), np.array([1e250]))


def test_a_small_priority_can_be_drawn_with_any_alpha(tmp_path):
    with make(tmp_path / "store", 3.0) as buffer:
        record(buffer)
        buffer.update_priorities(np.arange(ROWS), np.full(ROWS, 1e-200))
        assert len(np.unique(buffer.sample().id)) > 20


@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_a_full_tree_of_the_largest_leaves(tmp_path, normalization):
    with make(tmp_path / "store", 1.0, weight_normalization=normalization) as buffer:
        record(buffer, 64)
        largest = 1e297
        buffer.update_priorities(buffer.sampleable_ids(), np.full(64, largest))
        assert largest * 2**36 < np.finfo(float).max, "the largest capacity there is"
        batch = buffer.sample()
        assert np.isfinite(batch.weight).all()
        np.testing.assert_allclose(batch.weight, 1)


BAD = [np.inf, -np.inf, -1.0, -1e-300, 1e308]


@pytest.mark.parametrize("mode", ["r", "a", "constructed"])
@pytest.mark.parametrize("bad", BAD)
def test_a_rotten_leaf_is_refused(tmp_path, bad, mode):
    path = tmp_path / "store"
    with make(path, 0.6) as buffer:
        record(buffer)
        buffer.update_priorities(np.arange(ROWS), np.linspace(1, 2, ROWS))
    leaf = path / "priority" / "c.0.0"
    whole = leaf.read_bytes()
    leaves = np.frombuffer(whole, "<f8").copy()
    leaves[7] = bad
    leaf.chmod(0o644)
    leaf.write_bytes(leaves.tobytes())

    def use():
        opened = make(path, 0.6) if mode == "constructed" else diskreplay.open(path, mode=mode)
        try:
            opened.sample()
        finally:
            opened.close()

    with pytest.raises(errors.FormatError, match=r"priority/c\.0\.0.*row 7 of env 0"):
        use()
    assert leaf.read_bytes() == leaves.tobytes()
    leaf.write_bytes(whole)
    with make(path, 0.6) as buffer:  # nothing else has changed, and the lock is free
        assert len(buffer) == ROWS
        np.testing.assert_allclose(
            buffer.tree.get(np.arange(ROWS)), np.linspace(1, 2, ROWS) ** 0.6, rtol=1e-12
        )


@pytest.mark.parametrize("value", [0, -1, "abc", [], None, 1e400, True])
def test_a_rotten_largest_priority(tmp_path, value):

    path = tmp_path / "store"
    with make(path, 0.6) as buffer:
        record(buffer)
    whole = (path / "zarr.json").read_text()
    document = json.loads(whole)
    document["attributes"]["diskreplay"]["largest_priority"] = value
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(errors.FormatError, match=r"largest_priority|not valid JSON"):
        make(path, 0.6)
    (path / "zarr.json").write_text(whole)
    make(path, 0.6).close()
