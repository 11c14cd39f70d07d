"""cpprb's prioritized buffer: leaves, draws and weights by the formulas of the API."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.compat.cpprb import PrioritizedReplayBuffer, ReplayBuffer, create_buffer
from diskreplay.compat.cpprb import buffer as cpprb_buffer
from diskreplay.errors import InvalidInputError
from tests import processes

ROOT = Path(__file__).resolve().parents[2]
LARGE = {"shape": (8, 32, 4), "dtype": np.uint8}


def check(buffer, priorities, alpha, eps, beta=0.7):
    """Weights and odds against those of all `priorities`, by slot."""
    leaves = ((np.array(priorities) + eps) ** alpha).astype(np.float32).astype(float)
    batch = buffer.sample(400, beta=beta)
    slots = batch["indexes"]
    assert slots.dtype == np.uint64
    assert (np.diff(slots.astype(int)) >= 0).all()
    share = leaves / leaves.sum()
    counts = np.bincount(slots.astype(int), minlength=len(leaves))
    assert len(counts) == len(leaves)
    # Stratified: a leaf gets its share of the draws but for the strata at its two ends; where the
    # ring keeps further rows, its start may lie in the middle.
    assert (np.abs(counts - 400 * share) <= 2.001).all()
    of_each = (len(leaves) * share) ** -beta
    expected = of_each / (len(leaves) * share.min()) ** -beta
    assert batch["weights"].dtype == np.float32
    np.testing.assert_allclose(batch["weights"], expected[slots.astype(int)], rtol=1e-5)
    assert batch["weights"].max() <= 1 + 1e-6
    return batch


@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(1, 7),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    eps=st.sampled_from([1e-4, 0.5]),
    large=st.booleans(),
    data=st.data(),
)
def test_priorities_through_wraps(size, alpha, eps, large, data):
    draw = data.draw
    some = st.floats(0, 20, allow_subnormal=False, width=32)
    env = {"n": {"dtype": np.int64}} | ({"obs": LARGE} if large else {})
    options = {"next_of": "obs", "stack_compress": "obs"} if large else {}
    by_slot, count, largest = {}, 0, 1.0
    with PrioritizedReplayBuffer(size, env, alpha=alpha, eps=eps, **options) as buffer:
        for _ in range(draw(st.integers(1, 12))):
            k = draw(st.sampled_from([1, 1, 2, 5, 20]))
            columns = {"n": np.arange(count, count + k)}
            if large:
                columns["obs"] = columns["next_obs"] = np.zeros((k, 8, 32, 4))
            given_ones = draw(st.one_of(st.none(), st.lists(some, min_size=k, max_size=k)))
            assert buffer.add(priorities=given_ones, **columns) == count % size
            for i, priority in enumerate(given_ones or [largest] * k):
                by_slot[(count + i) % size] = count + i, priority
            count += k
            largest = max([largest, *(given_ones or [])])
            assert buffer.get_max_priority() == largest
            if draw(st.booleans()):
                slots = draw(st.lists(st.sampled_from(sorted(by_slot)), max_size=6))
                values = draw(st.lists(some, min_size=len(slots), max_size=len(slots)))
                buffer.update_priorities(slots, values)
                for slot, value in zip(slots, values, strict=True):
                    by_slot[slot] = by_slot[slot][0], value
                largest = max([largest, *values])
                assert buffer.get_max_priority() == largest
            batch = check(buffer, [by_slot[s][1] for s in sorted(by_slot)], alpha, eps)
            for slot, n in zip(batch["indexes"].tolist(), batch["n"].ravel(), strict=True):
                assert by_slot[slot][0] == n


def test_priorities_are_rounded_to_float32():
    with PrioritizedReplayBuffer(4, {"n": {}}) as buffer:
        buffer.add(n=0, priorities=3.3)
        assert buffer.get_max_priority() == float(np.float32(3.3))
        buffer.update_priorities([0.0], [7.7])
        assert buffer.get_max_priority() == float(np.float32(7.7))
        with pytest.raises(ValueError):
            buffer.update_priorities([0], [1e39])
        with pytest.raises(ValueError):
            buffer.update_priorities([0.5], [1])


def test_defaults_and_a_single_row():
    with create_buffer(1, {"done": {}}, prioritized=True) as buffer:
        assert type(buffer) is PrioritizedReplayBuffer
        buffer.add(done=1)
        batch = buffer.sample(2)
    assert list(batch) == ["done", "weights", "indexes"]
    assert batch["indexes"].tolist() == [0, 0]
    assert batch["weights"].tolist() == [1, 1]
    with create_buffer(3, {"done": {}}) as buffer:
        assert type(buffer) is ReplayBuffer


def test_weights_and_indexes_are_copies():
    with PrioritizedReplayBuffer(4, {"a": {}}) as buffer:
        buffer.add(a=[1, 2, 3], priorities=[1, 2, 3])
        first = buffer.sample(3)
        kept = {name: value.copy() for name, value in first.items()}
        buffer.update_priorities([0, 1, 2], [9, 1, 1])
        buffer.sample(3, beta=0.9)
        for name, value in kept.items():
            np.testing.assert_array_equal(first[name], value)
            first[name][...] = 0  # and they can be written to


def test_empty_and_beta_zero():
    with PrioritizedReplayBuffer(4, {"a": {}}) as buffer:
        batch = buffer.sample(0)
        assert [v.shape for v in batch.values()] == [(0, 1), (0,), (0,)]
        with pytest.raises(ValueError, match="no rows"):
            buffer.sample(3)
        buffer.add(a=[1, 2], priorities=[1, 5])
        assert (buffer.sample(5, beta=0)["weights"] == 1).all()
        buffer.clear()
        assert buffer.get_max_priority() == 1
        with pytest.raises(ValueError, match="no rows"):
            buffer.sample(3)


def test_a_weightless_row_zeroes_all_weights():
    with PrioritizedReplayBuffer(4, {"a": {}}, eps=0) as buffer:
        buffer.add(a=[1, 2, 3], priorities=[0, 1, 2])
        batch = buffer.sample(30)
        assert set(batch["indexes"].tolist()) == {1, 2}
        assert not batch["weights"].any()
        assert (buffer.sample(30, beta=0)["weights"] == 1).all()
        buffer.update_priorities([0], [1])
        check(buffer, [1, 1, 2], 0.6, 0)
        buffer.update_priorities([0, 1, 2], [0, 0, 0])
        with pytest.raises(ValueError, match="no rows"):
            buffer.sample(1)


@pytest.mark.parametrize("dtype", ["i1", "u1", "u8", "f2", "f4", "f8", np.longdouble])
def test_indexes_of_any_dtype(dtype):
    with PrioritizedReplayBuffer(300, {"a": {}}, alpha=1, eps=0) as buffer:
        buffer.add(a=np.arange(200))
        indexes, priorities = np.arange(100, dtype=dtype), np.full(100, 3.0)
        indexes.setflags(write=False)
        priorities.setflags(write=False)
        buffer.update_priorities(indexes, priorities)
        check(buffer, [3.0] * 100 + [1.0] * 100, 1, 0)


def test_refused_priorities_change_nothing():
    with PrioritizedReplayBuffer(4, {"a": {}}, alpha=1, eps=0) as buffer:
        buffer.add(a=[1, 2, 3], priorities=[1, 2, 3])
        for bad in ([1], [1, 2, 3], -1, [1, np.nan], [np.inf, 1]):
            with pytest.raises(ValueError):
                buffer.add(a=[4, 5], priorities=bad)
        with pytest.raises(ValueError):
            buffer.add(a=[4, 5], priorities=0.5)  # for two rows
        for indexes, priorities in (
            ([3], [1]), ([-1], [1]), ([0.5], [1]), ([4], [1]), ([0], [-1]), ([0], [np.nan]),
            ([0, 1], [1]), ([0, 9], [1, 1]), ([2**63], [1.0]), ([np.nan], [1]), ([0], [1e200]),
        ):  # fmt: skip
            with pytest.raises(ValueError):
                buffer.update_priorities(indexes, priorities)
        for nothing in ((None, [1]), ([0], None), ([None], [1])):
            with pytest.raises(TypeError):
                buffer.update_priorities(*nothing)
        buffer.update_priorities([], [])
        assert buffer.get_stored_size() == 3
        assert buffer.get_max_priority() == 3
        check(buffer, [1, 2, 3], 1, 0)
    with PrioritizedReplayBuffer(4, {"a": {}}, alpha=0) as buffer:  # where all leaves are 1
        for bad in (np.inf, np.nan, -1):
            with pytest.raises(ValueError):
                buffer.add(a=1, priorities=bad)
        assert buffer.get_max_priority() == 1
    for option in ({"alpha": -1}, {"eps": -1e-3}, {"eps": np.nan}):
        with pytest.raises(ValueError):
            PrioritizedReplayBuffer(4, {"a": {}}, **option)


@pytest.mark.parametrize("beta", [np.nan, -1, -1e-9, np.inf, -np.inf, None, "1", True])
def test_a_beta_that_is_no_exponent_is_refused_and_changes_nothing(beta):
    options = {"alpha": 1, "eps": 0, "check_for_update": True}
    with PrioritizedReplayBuffer(4, {"a": {}}, **options) as buffer:
        buffer.add(a=[1, 2, 3])
        before = buffer._rng.bit_generator.state
        for size in (0, 2):
            with pytest.raises(InvalidInputError, match="beta: a finite number from 0 on expected"):
                buffer.sample(size, beta)
        assert buffer._rng.bit_generator.state == before
        buffer.update_priorities([0], [9])  # nothing was sampled yet
        check(buffer, [1, 1, 1], 1, 0)


def test_check_for_update():
    options = {"alpha": 1, "eps": 0, "check_for_update": True}
    with PrioritizedReplayBuffer(3, {"a": {}}, **options) as buffer:
        buffer.add(a=[1, 2, 3])
        buffer.update_priorities([0], [9])  # nothing was sampled yet
        check(buffer, [1, 1, 1], 1, 0)
        buffer.add(a=4)  # into slot 0
        buffer.update_priorities([0, 1, 2], [7, 2, 3])
        assert buffer.get_max_priority() == 3
        check(buffer, [1, 2, 3], 1, 0)
        buffer.update_priorities([0], [7])
        check(buffer, [7, 2, 3], 1, 0)


def test_priorities_are_on_the_disk(tmp_path):
    env, options = {"obs": LARGE}, {"next_of": "obs", "stack_compress": "obs", "alpha": 1, "eps": 0}
    path = tmp_path / "store"
    zeros = np.zeros((7, 8, 32, 4))
    with PrioritizedReplayBuffer(5, env, path=path, **options) as buffer:
        buffer.add(obs=zeros, next_obs=zeros, priorities=[1, 2, 3, 4, 5, 6, 7])
        buffer.update_priorities([3], [40])
    with PrioritizedReplayBuffer(5, env, path=path, **options) as buffer:
        assert buffer.get_max_priority() == 40
        check(buffer, [6, 7, 3, 40, 5], 1, 0)
        buffer.add(obs=zeros[0], next_obs=zeros[0])
        check(buffer, [6, 7, 40, 40, 5], 1, 0)
    with PrioritizedReplayBuffer(9, env, path=path, **options) as buffer:
        check(buffer, [40, 5, 6, 7, 40], 1, 0)
    with PrioritizedReplayBuffer(3, env, path=path, **options) as buffer:
        check(buffer, [6, 7, 40], 1, 0)
        buffer.clear()
        buffer.add(obs=zeros, next_obs=zeros)
        check(buffer, [1, 1, 1], 1, 0)


def test_reopening_with_another_alpha_or_kind(tmp_path):
    path, env = tmp_path / "store", {"a": {}}
    with PrioritizedReplayBuffer(4, env, path=path, alpha=0.5, eps=0.25) as buffer:
        buffer.add(a=[1, 2, 3], priorities=[1, 2, 30])
    with PrioritizedReplayBuffer(4, env, path=path, alpha=1, eps=0) as buffer:
        check(buffer, [1, 2, 30], 1, 0)
    with ReplayBuffer(4, env, path=path) as buffer:
        buffer.add(a=4)
    with PrioritizedReplayBuffer(4, env, path=path, alpha=1, eps=0) as buffer:
        assert buffer.get_max_priority() == 30
        assert set(buffer.sample(400)["indexes"].tolist()) <= {0, 1, 2, 3}
    with ReplayBuffer(4, env, path=tmp_path / "uniform") as buffer:
        buffer.add(a=[1, 2, 3])
    with PrioritizedReplayBuffer(4, env, path=tmp_path / "uniform") as buffer:
        check(buffer, [1, 1, 1], 0.6, 1e-4)


def test_priorities_after_a_kill_are_those_of_the_last_flush(tmp_path):
    code = """
import os, signal, sys
from diskreplay.compat.cpprb import PrioritizedReplayBuffer
buffer = PrioritizedReplayBuffer(4, {"a": {}}, path=sys.argv[1], alpha=1, eps=0)
buffer.add(a=[1, 2], priorities=[5, 6])
buffer.flush()
buffer.update_priorities([0], [2])
buffer.add(a=[3, 4, 5], priorities=[1, 1, 1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = processes.run(code, tmp_path / "store")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with PrioritizedReplayBuffer(4, {"a": {}}, path=tmp_path / "store", alpha=1, eps=0) as buffer:
        assert buffer.get_max_priority() == 6
        check(buffer, [6, 6, 6, 6], 1, 0)  # slot 1 has the 6 that was flushed


def with_alpha(alpha, path, size=8):
    return PrioritizedReplayBuffer(size, {"a": {}}, path=path, alpha=alpha, eps=0)


GIVEN = [1, 2, 3, 4, 5, 6, 7, 100]


def test_a_kill_after_an_opening_with_another_alpha_leaves_priorities(tmp_path):
    """The rows move, since the size is another one: their leaves and the alpha go together."""
    code = """
import os, signal, sys
from diskreplay.compat.cpprb import PrioritizedReplayBuffer
PrioritizedReplayBuffer(16, {"a": {}}, path=sys.argv[1], alpha=0.4, eps=0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with with_alpha(0.8, tmp_path / "store") as buffer:
        buffer.add(a=range(8), priorities=GIVEN)
    done = processes.run(code, tmp_path / "store")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with with_alpha(0.4, tmp_path / "store", 16) as buffer:
        check(buffer, GIVEN, 0.4, 0)
        assert buffer.get_max_priority() == 100


@pytest.mark.parametrize("size", [8, 16])
def test_an_opening_with_another_alpha_that_fails_leaves_priorities(tmp_path, monkeypatch, size):
    with with_alpha(0.8, tmp_path / "store") as buffer:
        buffer.add(a=range(8), priorities=GIVEN)

    def interrupt(*_arguments):
        raise KeyboardInterrupt  # Ctrl-C while columns are read into memory

    with monkeypatch.context() as patched:
        patched.setattr(cpprb_buffer, "Resident", interrupt)
        with pytest.raises(KeyboardInterrupt):
            with_alpha(0.4, tmp_path / "store", size)
    with with_alpha(0.4, tmp_path / "store", size) as buffer:
        check(buffer, GIVEN, 0.4, 0)


KILLED_AMID_FLUSH = """
import os, signal, sys
from diskreplay.compat.cpprb import PrioritizedReplayBuffer
from diskreplay.store import priorities
alpha, eps = map(float, sys.argv[2:4])
buffer = PrioritizedReplayBuffer(16, {"a": {}}, path=sys.argv[1], alpha=alpha, eps=eps)
buffer.update_priorities([0], [float(sys.argv[4])])
replace = priorities.replace
def replaced(*args, **options):
    replace(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)  # the record is still that of before
priorities.replace = replaced
buffer.flush()
"""

KILLED_WITHOUT_FLUSH = """
import os, signal, sys
from diskreplay.compat.cpprb import PrioritizedReplayBuffer
alpha, eps = map(float, sys.argv[2:4])
buffer = PrioritizedReplayBuffer(16, {"a": {}}, path=sys.argv[1], alpha=alpha, eps=eps)
buffer.add(a=[8, 9])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.costly(4)
@pytest.mark.parametrize("then", [(0.5, 0.0), (1.0, 0.0), (0.5, 3.0), (0.7, 0.5)])
@pytest.mark.parametrize("killed", [(1.0, 0.0), (0.5, 3.0), (0.25, 1.0)])
def test_a_kill_amid_the_flush_of_another_alpha_or_eps_leaves_priorities(tmp_path, killed, then):
    """What made the leaves is replaced with them, in one step: they are converted once."""
    path = tmp_path / "store"
    with PrioritizedReplayBuffer(16, {"a": {}}, path=path, alpha=0.5, eps=0) as buffer:
        buffer.add(a=range(8), priorities=GIVEN)
    for code in (KILLED_AMID_FLUSH, KILLED_WITHOUT_FLUSH):
        done = processes.run(code, path, *killed, 250)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with PrioritizedReplayBuffer(16, {"a": {}}, path=path, alpha=then[0], eps=then[1]) as buffer:
        assert buffer.get_max_priority() == 250
        leaves = buffer._tree().leaves[:10]
        # The first one was set before the kill. Rows after it have the largest priority.
        expected = (np.array([250, *GIVEN[1:], 250, 250]) + then[1]) ** then[0]
        np.testing.assert_allclose(leaves, expected, rtol=1e-4)


def test_priorities_of_a_store_that_has_no_notes_beside_them(tmp_path):
    """As stores had it before: the notes of the record say what made the leaves."""
    with with_alpha(0.5, tmp_path / "store") as buffer:
        buffer.add(a=range(8), priorities=GIVEN)
    metadata = tmp_path / "store" / "priority" / "zarr.json"
    document = json.loads(metadata.read_text())
    assert document["attributes"].pop("diskreplay")["notes"]["alpha"] == 0.5
    metadata.write_text(json.dumps(document))
    with with_alpha(1.0, tmp_path / "store") as buffer:
        check(buffer, GIVEN, 1.0, 0)
