"""What an open store says of its rows, beside lists of them."""

import json
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import CapacityError, FormatError, InvalidInputError
from diskreplay.store.open_store import OWN_KEYS, group_attributes
from diskreplay.store.store import Store

ENVS = 3


@pytest.fixture(params=[1, 2, 3])
def case(request, tmp_path):
    """A store of uneven envs whose rows were noted: whether each is a final one."""
    rng, rows = np.random.default_rng(0), [[] for _ in range(ENVS)]
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, (3,), np.uint8), capacity=ENVS * 40,
        action_space=Discrete(90), num_envs=ENVS, env_group=request.param, segment_rows=8,
    ) as buffer:  # fmt: skip
        for _ in range(70):
            mask, end = rng.random(ENVS) < 0.7, rng.random(ENVS) < 0.2
            numbers = buffer.bounds[:, 1] % 90
            frames = np.repeat(numbers[:, None], 3, axis=1).astype(np.uint8)
            buffer.add(frames, numbers, numbers, end, np.zeros(ENVS, bool), frames, mask=mask)
            for env in np.flatnonzero(mask).tolist():
                rows[env] += [False, True] if end[env] else [False]
        yield buffer, rows


def test_which_rows_are_final_ones(case):
    buffer, rows = case
    store = buffer._rows.store
    count = np.array([len(each) for each in rows])
    assert store.count.tolist() == count.tolist()
    first = store.first
    for back in (0, 1, 7):
        asked = np.maximum(count - back, first)
        expected = [sum(each[:n]) for each, n in zip(rows, asked.tolist(), strict=True)]
        assert store.finals_at(asked).tolist() == expected
        assert store.transitions_at(asked).tolist() == (asked - expected).tolist()
    between = [sum(each[f : n - 3]) for each, f, n in zip(rows, first, count, strict=True)]
    assert store.finals_between(first, count - 3).tolist() == between
    with diskreplay.open(buffer.path) as reader:
        found = reader._rows.store
        assert found.finals_at(count).tolist() == [sum(each) for each in rows]
    assert store.attributes(count, first)["transitions"] == [len(e) - sum(e) for e in rows]


def test_rows_of_each_env_and_the_newest(case):
    buffer, rows = case
    store = buffer._rows.store
    start = store.first + np.array([0, 3, 1])
    stop = store.count - np.array([2, 0, 5])
    finals = store.spans("is_final", start, stop).tolist()
    expected = []
    for each, low, high in zip(rows, start.tolist(), stop.tolist(), strict=True):
        expected += each[low:high]
    assert finals == expected
    assert store.newest("is_final", False).tolist() == [each[-1] for each in rows]
    nothing = store.spans("step", start, start)
    assert nothing.shape == (0,)


def test_the_newest_of_an_env_without_rows(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Discrete(9), action_space=Discrete(9), capacity=60,
        num_envs=3,
    ) as buffer:  # fmt: skip
        mask = np.array([False, True, False])
        buffer.add(np.full(3, 4), np.full(3, 7), np.ones(3), mask, ~mask, mask=mask)
        found = buffer._rows.store.newest("action", -1)
        assert found.tolist() == [-1, 7, -1]


def test_its_attributes_are_its_own_and_what_the_buffer_keeps(case):
    buffer, _rows = case
    store = buffer._rows.store
    store.meta["mine"] = 3
    found = store.attributes(store.count, store.first)
    rows = store.first, store.count, store.durable_transitions
    assert set(group_attributes(store.fields, 120, *rows, {})) == OWN_KEYS
    assert found["mine"] == 3
    assert set(found) == OWN_KEYS | set(store.meta)
    assert found["capacity"] == 120
    assert found["created_by"] == f"diskreplay {diskreplay.__version__}"
    assert store.rows_per_env == store.rows_per_env_before == 40
    assert not store.is_resized


@pytest.mark.parametrize(
    "change",
    [{"num_envs": 0}, {"fields": 3}, {"count": [1, 2]}, {"first": [99] * ENVS}, {"capacity": -1},
     {"transitions": [10**6] * ENVS}, {"capacity": 1 << 45}],
)  # fmt: skip
def test_attributes_that_make_no_sense_are_refused(tmp_path, case, change):
    buffer, _rows = case
    path = buffer.save(tmp_path / "ck", 1)
    copy = shutil.copytree(path, tmp_path / "copy")
    document = json.loads((copy / "zarr.json").read_text())
    document["attributes"]["diskreplay"] |= change
    (copy / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="damaged attributes"):
        Store.open(copy, mode="r")


def test_only_some_columns_are_opened(case):
    buffer, _rows = case
    store = Store.open(buffer.path, mode="r", only=("step", "reward"))
    assert list(store.columns) == ["reward", "step"]
    assert len(store.fields) == 7
    store.close()


FRAMES = Box(0, 255, (84, 84), np.uint8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"segment_rows": 1 << 30}, "'observation': 1073741824 rows of 7056 bytes"),
        ({"segment_rows": 1 << 30, "compressor": "raw"}, "'observation': .* too large"),
        ({"observation_space": Box(0, 255, (1 << 29,), np.uint8)}, "'observation': .* too large"),
        ({"num_envs": 1 << 18, "capacity": 1 << 22}, "num_envs: an integer from 1 to 131072"),
        ({"capacity": 1 << 36, "segment_rows": 1}, "segments of 'observation' are too many"),
        ({"extras": {f"x{n}": ((), "int8") for n in range(5000)}}, "fields expected, found 5007"),
    ],
    ids=["rows", "raw", "large", "envs", "capacity", "fields"],
)
def test_sizes_that_no_store_can_have_are_refused_before_anything_is_made(tmp_path, options, said):
    sizes = {"observation_space": FRAMES, "action_space": Discrete(4), "capacity": 10_000}
    with pytest.raises(InvalidInputError, match=said):
        diskreplay.ReplayBuffer(tmp_path / "store", **(sizes | options))
    assert not (tmp_path / "store").exists()


def test_a_capacity_of_more_segments_than_there_can_be_is_refused(tmp_path):
    sizes = {"observation_space": FRAMES, "action_space": Discrete(4), "segment_rows": 8}
    diskreplay.ReplayBuffer(tmp_path / "store", **sizes, capacity=1000).close()
    with pytest.raises(CapacityError, match="segments of 'observation' are too many"):
        diskreplay.ReplayBuffer(tmp_path / "store", **sizes, capacity=1 << 36)
    diskreplay.ReplayBuffer(tmp_path / "store", **sizes, capacity=2000).close()
