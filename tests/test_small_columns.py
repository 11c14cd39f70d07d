"""The row index that is read from a store, beside the one that was kept while rows came."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay import errors, small_columns
from diskreplay.sampling import row_index_kernels

OPTIONS = {"observation_space": Box(-1, 1, (2,), "float32"), "action_space": Discrete(2)}


def known(buffer):
    """Step, flags and reward of each retained row, by its id, and what can be sampled."""
    rows = buffer._rows.indexed()
    index = rows.index
    ids = small_columns.ids_between(index.first, index.count)
    of_rows = index.ring[ids % index.size, :3] & [-1, ~row_index_kernels.CLOSES, -1]  # worked out
    return dict(zip(ids.tolist(), of_rows.tolist(), strict=True)), index.sampleable_ids().tolist()


@pytest.mark.costly
@given(
    st.integers(1, 5).flatmap(
        lambda envs: st.tuples(
            st.lists(
                st.tuples(
                    st.lists(st.booleans(), min_size=envs, max_size=envs),
                    st.lists(st.booleans(), min_size=envs, max_size=envs),
                ),
                max_size=60,
            ),
            st.integers(1, envs),
            st.sampled_from([8 * envs, 40 * envs, None]),
        )
    )
)
@settings(max_examples=20, deadline=None)
def test_as_kept_while_rows_came(case):
    steps, env_group, capacity = case
    envs = len(steps[0][0]) if steps else 1
    where = Path(tempfile.mkdtemp())
    try:
        options = OPTIONS | {
            "capacity": capacity, "num_envs": envs, "env_group": min(env_group, envs)
        }  # fmt: skip
        buffer = diskreplay.ReplayBuffer(where / "live", **options, stack_size=2, update_horizon=2)
        with diskreplay.open(where / "live", mode="r") as reader:
            for number, (mask, ended) in enumerate(steps):
                value = np.full((envs, 2), number / 100, np.float32)
                if envs == 1:
                    args = value[0], 0, float(number), ended[0], False, value[0]
                else:
                    ends = np.array(ended)
                    rewards, no = np.full(envs, float(number)), np.zeros(envs, bool)
                    args = value, np.zeros(envs, int), rewards, ends, no, value
                buffer.add(*args, mask=np.array(mask))
                if number % 10 == 9:
                    len(reader)  # it follows
                    assert known(reader) == known(buffer)
            kept = known(buffer)
            buffer.close()
        with diskreplay.open(where / "live", mode="r") as reader:
            assert known(reader) == kept
    finally:
        shutil.rmtree(where)


def test_a_step_that_cannot_be_is_named_by_its_row(tmp_path):
    with diskreplay.ReplayBuffer(tmp_path / "live", **OPTIONS, capacity=64, num_envs=4) as buffer:
        values = np.zeros((4, 2), np.float32), np.zeros(4, int), np.zeros(4)
        for _ in range(6):
            buffer.add(*values, np.zeros(4, bool), np.zeros(4, bool))
    (segment,) = (tmp_path / "live/step").glob("c.*")
    segment.chmod(0o600)
    steps = np.memmap(segment, np.int32, "r+")
    steps[4 * 3 + 2] = -5
    steps.flush()
    with (
        diskreplay.open(tmp_path / "live", mode="r") as reader,
        pytest.raises(errors.CorruptSegmentError, match="row"),
    ):
        len(reader)
