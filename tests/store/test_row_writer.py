"""The next row of the only env: what is written before a kernel commits it, and where."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.sampling.row_index import RowIndex
from diskreplay.store import row_writer

FRAME, SEGMENT, ROWS = (64, 64), 8, 40  # a page a frame: segments are as short as one likes
EXTRAS = {"half": ((), np.float16), "pair": ((2,), np.int32), "number": ((), np.int64)}


@pytest.fixture(params=["raw", "lz4"])
def buffer(request, tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, FRAME, np.uint8),
        action_space=Discrete(100), extras=EXTRAS, capacity=None, segment_rows=SEGMENT,
        compressor=request.param,
    ) as made:  # fmt: skip
        yield made


def values_of(row):
    return {
        "observation": np.full(FRAME, row + 1, np.uint8), "action": row + 1, "half": row / 2 + 1,
        "pair": np.array([row + 1, -row]), "number": None if row % 3 == 0 else row + 1,
    }  # fmt: skip


def place(buffer, row, values):
    store = buffer._rows.store
    return store.writer.place(row, [values.get(name) for name in store.columns])


def test_rows_are_placed_and_counted_only_when_the_kernel_commits_them(buffer):
    count, index = buffer._rows.store.count, RowIndex(64, 1, 1, 1, 0.9)
    for row in range(ROWS):
        place(buffer, row, values_of(97))  # of a step that was refused: the next one replaces it
        address = place(buffer, row, values_of(row))
        assert count.tolist() == [row]
        index.append_one(row, 0, row / 4, address)
        assert count.tolist() == [row + 1]
    ids = np.arange(ROWS)
    for name in values_of(0):
        found = buffer.take(name, ids)
        for row in range(ROWS):
            value = values_of(row)[name]
            np.testing.assert_array_equal(found[row], 0 if value is None else value)
    np.testing.assert_array_equal(buffer.take("step", ids), ids)
    np.testing.assert_array_equal(buffer.take("reward", ids), ids / 4)
    assert not buffer.take("is_final", ids).any()


def test_rows_that_others_write_between_do_not_move_it(buffer):
    writer, names = buffer._rows.store.writer, list(buffer._rows.store.columns)
    index = RowIndex(64, 1, 1, 1, 0.9)
    for row in range(0, ROWS, 2):
        index.append_one(row, 0, 0.0, place(buffer, row, values_of(row)))
        others = values_of(row + 1) | {"reward": 0.0, "step": row + 1, "number": 7}
        writer.append_row([others.get(name) for name in names], None)
    ids = np.arange(ROWS)
    np.testing.assert_array_equal(buffer.take("action", ids), ids + 1)
    np.testing.assert_array_equal(buffer.take("observation", ids)[:, -1, -1], ids + 1)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_are_written_before_they_count_as_other_processors_see_it(
    tmp_path, monkeypatch, num_envs
):
    """In whatever order a processor shows its stores to others: a fence stands in between."""
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, FRAME, np.uint8),
        action_space=Discrete(100), capacity=None, num_envs=num_envs, compressor="raw",
    ) as buffer:  # fmt: skip
        store, seen = buffer._rows.store, []
        columns, kinds = list(store.columns.values()), buffer._kind.schema.shapes.values()
        values = [np.ones((num_envs, *shape), dtype) for shape, dtype in kinds]

        def noted():
            row = int(store.count[0])  # the first that does not count yet, and what is in it
            seen.append((row, int(columns[0].rows(0, 0)[row].min())))

        monkeypatch.setattr(row_writer, "barrier", noted)
        writer, envs = store.writer, np.arange(num_envs)
        if num_envs == 1:
            writer.append_row([value[0] for value in values], None)
        else:
            writer.append(envs, values, envs[:0], [])
        assert (store.count[0], seen) == (1, [(0, 1)])
        writer.extend([(env, [value[:1] for value in values]) for env in envs.tolist()])
        assert (store.count[0], seen[1:]) == (2, [(1, 1), (2, 0)])  # and before what is said of it
