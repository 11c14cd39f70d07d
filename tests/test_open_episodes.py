"""Which rows begin an episode, by the rule of the row index; and what of it a record may say."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.errors import FormatError
from diskreplay.open_episodes import late_starts, parse_begins, parse_parts
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.row_index_kernels import EPISODE, FINAL, TERMINATED, TRUNCATED


def test_late_starts_are_where_the_row_index_begins_another_episode():
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(400):
        size = int(rng.integers(0, 12))
        step = np.cumsum(rng.choice([1, 1, 1, 1, 0, 2], size)) + int(rng.integers(0, 3))
        step[rng.random(size) < 0.1] = 0
        terminated, truncated, final = (rng.random(size) < share for share in (0.15, 0.15, 0.3))
        index = RowIndex(20, 1, 1, 1, 0.9)
        flags = TERMINATED * terminated + TRUNCATED * truncated + FINAL * final
        index.append(
            np.zeros(size, np.int64), step.astype(np.int32), flags.astype(np.uint8),
            np.zeros(size, np.float32),
        )  # fmt: skip
        numbers = index.ring[:size, EPISODE]
        begins = np.append([False], numbers[1:] != numbers[:-1])[:size]
        late = late_starts(step.astype(np.int32), terminated | truncated, final)
        assert late.tolist() == (begins & (step != 0)).tolist()
        seen += int(late.sum())
    assert seen > 300


@pytest.mark.parametrize("size", [0, 1, 2])
def test_of_the_first_row_nothing_is_known(size):
    yes = np.ones(size, np.bool_)
    late = late_starts(np.full(size, 5, np.int32), yes, ~yes)
    assert late.tolist() == [False, True][:size]


STORE = SimpleNamespace(num_envs=2, path=Path("x"))


def test_begins_in_a_record():
    assert parse_begins({}, STORE) == set()
    assert parse_begins({"begins": [3, 2**62, 0]}, STORE) == {0, 3, 2**62}
    for wrong in (None, 5, "3", {}, [-1], [1.0], [True], [None], [2**62 + 1], [[1]]):
        with pytest.raises(FormatError, match=r"x/zarr\.json: damaged \(begins"):
            parse_begins({"begins": wrong}, STORE)


def test_parts_in_a_record():
    assert not parse_parts({}, STORE)
    assert parse_parts({"parts": [[1, 0, 5, 2]]}, STORE)
    for wrong in (None, 5, [5], [[1, 0]], [[2, 0, 5]], [[0, 5, 5]], [[0, -1, 5]], [[0, 0, 5, "1"]]):
        with pytest.raises(FormatError, match=r"x/zarr\.json: damaged \(parts"):
            parse_parts({"parts": wrong}, STORE)
