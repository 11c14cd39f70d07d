"""Stores as files that ReAgent and Dopamine load, beside a model of their rings."""

import gzip
import os
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.convert import gz_checkpoint, gz_writing
from diskreplay.convert.unpickling import unpickled
from diskreplay.errors import InvalidInputError
from tests.convert.gz_rings import COLUMNS, Ring, load_array

SLOW = settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.mark.costly
@SLOW
@given(
    stack=st.integers(1, 4), capacity=st.integers(8, 40), rows=st.integers(1, 50),
    flavour=st.sampled_from(["reagent", "dopamine"]), seed=st.integers(0, 9999),
)  # fmt: skip
def test_a_store_is_written_as_the_originals_have_it(
    tmp_path_factory, stack, capacity, rows, flavour, seed
):
    directory = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(seed)
    ring, step = Ring(1000, stack), 0
    with diskreplay.ReplayBuffer(
        None, observation_space=spaces.Box(0, 255, (2, 2), np.uint8), stack_size=stack,
        action_space=spaces.Discrete(4), capacity=None, extras={"q": ((2,), np.float32)},
        update_horizon=2,
    ) as buffer:  # fmt: skip
        for _ in range(rows):
            terminated, truncated = rng.random() < 0.2, rng.random() < 0.2
            row = (rng.integers(1, 255, (2, 2)).astype(np.uint8), int(rng.integers(4)),
                   float(rng.integers(5)))  # fmt: skip
            q = rng.integers(0, 9, 2).astype(np.float32)
            after = rng.integers(1, 255, (2, 2)).astype(np.uint8) if rng.random() < 0.5 else None
            buffer.add(*row, terminated, truncated, after, q=q)
            is_last = terminated or truncated
            terminal = terminated or (flavour == "reagent" and is_last)
            ring.add((*row, int(terminal), q, is_last, 0, step))
            step = 0 if is_last else step + 1
        gz_checkpoint.write(buffer, directory, 1, flavour=flavour, capacity=capacity)
    kept = ring.rows[-capacity:]
    lacks_older = len(ring.rows) > capacity
    ring.rows, ring.capacity = kept, capacity
    slots = ring.slots()
    for at, (name, shape, dtype) in enumerate(COLUMNS):
        found = load_array(directory, f"$store$_{name}")
        assert (found.shape, found.dtype) == ((capacity, *shape), dtype)
        zero = np.zeros(shape, dtype)
        expected = [zero if row is None else np.asarray(row[at], dtype) for row in slots]
        np.testing.assert_array_equal(found, np.stack(expected))
    assert load_array(directory, "add_count") == len(kept) + capacity * lacks_older
    names = {name.split("_ckpt.")[0] for name in os.listdir(directory)}
    if flavour == "dopamine":
        expected = [(len(kept) - 2 + i) % capacity for i in range(stack + 2)]
        assert load_array(directory, "invalid_range").tolist() == expected
        with gzip.open(directory / "episode_end_indices_ckpt.1.gz", "rb") as file:
            ended = {i for i, row in enumerate(slots) if row is not None and row[5]}
            assert pickle.load(file) == ended
        assert "episode_end_indices" in names
    else:
        assert names == {"add_count", *(f"$store$_{name}" for name, *_ in COLUMNS)}
    # And back.
    path = gz_checkpoint.read(directory, 1, directory / "back", stack_size=stack)
    with diskreplay.open(path) as back:
        ids = np.arange(*back.bounds[0])
        rows = [row for row in kept if row is not None]
        assert back.take("reward", ids).tolist() == [row[2] for row in rows]


def make(kind=diskreplay.ReplayBuffer, **options):
    spaces_ = {
        "observation_space": spaces.Box(0, 255, (2,), np.uint8),
        "action_space": spaces.Discrete(4),
    }
    return kind(None, **{"capacity": 20, "stack_size": 2, **spaces_, **options})


def add(buffer, rows, *, ends=6):
    for i in range(rows):
        buffer.add(np.full(2, i + 1, np.uint8), i % 4, float(i), i % ends == ends - 1, False)


def tree_of(directory):
    with gzip.open(directory / "sum_tree_ckpt.1.gz", "rb") as file:
        return unpickled(file.read(), "here")


@pytest.mark.parametrize("horizon", [1, 3])
def test_each_slot_has_its_leaf_and_the_newest_the_largest(tmp_path, horizon):
    kind, alpha = diskreplay.PrioritizedReplayBuffer, 0.5
    with make(kind, alpha=alpha, update_horizon=horizon, capacity=40) as buffer:
        add(buffer, 17)
        given_ = buffer.sampleable_ids()
        buffer.update_priorities(given_, (given_ + 1.0) ** 2)
        buffer.update_priorities(given_[:1], [400.0])  # the largest one that was seen
        buffer.update_priorities(given_[:1], [1.0])
        gz_writing.write(buffer, tmp_path, 1)
    rewards = load_array(tmp_path, "$store$_reward")
    padding = load_array(tmp_path, "$store$_observation")[:, 0] == 0
    tree = tree_of(tmp_path)
    expected = np.zeros(40)
    for slot in np.flatnonzero(~padding).tolist():
        row = int(rewards[slot])
        expected[slot] = row + 1.0 if row in given_ else 20.0  # 400 ** alpha
    expected[20:] = 0
    np.testing.assert_allclose(tree.leaves[:40], expected)
    assert not tree.leaves[40:].any()
    assert tree.max_recorded_priority == pytest.approx(20.0)


def test_a_beginning_that_is_evicted_has_no_padding(tmp_path):
    with make(capacity=12, stack_size=3) as buffer:
        add(buffer, 20, ends=15)  # rows 8 to 19: 8 to 14 of the first episode
        gz_writing.write(buffer, tmp_path, 1, capacity=30)
    shown = load_array(tmp_path, "$store$_observation")[:, 0].tolist()
    expected = [*range(9, 16), 0, 0, *range(16, 21)]
    assert shown == expected + [0] * (30 - len(expected))
    assert load_array(tmp_path, "add_count") == len(expected)


@pytest.mark.parametrize(("rows", "counted"), [(12, 12), (13, 24), (40, 24)])
def test_a_full_ring_says_whether_older_rows_are_gone(tmp_path, rows, counted):
    """By a count above its slots, with the cursor at the first of them."""
    with make(capacity=12, stack_size=1) as buffer:
        add(buffer, rows)
        gz_writing.write(buffer, tmp_path, 1, flavour="dopamine")
    assert load_array(tmp_path, "add_count") == counted
    assert load_array(tmp_path, "invalid_range").tolist() == [11, 0]


def test_the_padding_is_that_of_the_buffer_that_loads_it(tmp_path):
    with make(stack_size=2) as buffer:
        add(buffer, 9, ends=4)
        for stack in (1, 4):
            gz_writing.write(buffer, tmp_path, 1, stack_size=stack, flavour="dopamine")
            shown = load_array(tmp_path, "$store$_observation")[:, 0].tolist()
            none = [0] * (stack - 1)
            expected = [*none, 1, 2, 3, 4, *none, 5, 6, 7, 8, *none, 9]
            kept = expected[-20:]
            assert shown == kept + [0] * (20 - len(kept))
            with gzip.open(tmp_path / "episode_end_indices_ckpt.1.gz", "rb") as file:
                assert pickle.load(file) == {kept.index(4), kept.index(8)}


def test_columns_are_read_in_pieces_and_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(gz_writing, "_BYTES_AT_ONCE", 14)  # seven observations
    seen = []
    with make(stack_size=1) as buffer:
        add(buffer, 16, ends=100)
        gz_writing.write(buffer, tmp_path, 1, progress=lambda *at: seen.append(at))
    assert seen[:3] == [(7, 16), (14, 16), (16, 16)]
    assert [at for at in seen if at[0] == at[1]] == [(16, 16)] * 3
    assert load_array(tmp_path, "$store$_observation")[:16, 0].tolist() == list(range(1, 17))
    assert not load_array(tmp_path, "$store$_observation")[16:].any()


def test_what_such_files_cannot_hold_is_refused(tmp_path):
    with make() as buffer, pytest.raises(InvalidInputError, match="flavour"):
        gz_writing.write(buffer, tmp_path, 1, flavour="zip")
    nested = spaces.Dict({"a": spaces.Discrete(3)})
    for options in ({"num_envs": 2}, {"observation_space": nested}, {"action_space": nested}):
        with make(**options) as buffer, pytest.raises(InvalidInputError, match="one env"):
            gz_writing.write(buffer, tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_buffer_is_written_as_empty_slots(tmp_path):
    with make() as buffer:
        gz_writing.write(buffer, tmp_path, 1, flavour="dopamine")
    assert load_array(tmp_path, "$store$_reward").tolist() == [0.0] * 20
    assert load_array(tmp_path, "add_count") == 0
