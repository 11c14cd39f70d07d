"""Stores of format version 2, as an earlier version wrote them, open and hold what they should."""

import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import diskreplay
from diskreplay.store.rwlock import ReadGuard

DATA = Path(__file__).resolve().parent / "data"
sys.path.insert(0, str(DATA))
import make_golden as golden  # noqa: E402

from tests.copies import unpack  # noqa: E402

CASES = sorted(golden.CASES)


@pytest.fixture
def unpacked(tmp_path, request):
    case = request.param
    with tarfile.open(DATA / "golden" / f"format2_{case}.tar.gz") as tar:
        unpack(tar, tmp_path)
    return case, tmp_path


def every_case(test):
    return pytest.mark.parametrize("unpacked", CASES, indirect=True, ids=CASES)(test)


def leaves(value):
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [np.asarray(value)]


def check_rows(buffer, case, steps):
    """Every field of every retained row, read one by one."""
    store = buffer._rows.store
    envs = golden.schedule(buffer.num_envs, steps)
    assert store.count.tolist() == [len(rows) for rows in envs]
    assert buffer.add_count == steps * buffer.num_envs
    kept = buffer.capacity and buffer.capacity // buffer.num_envs
    for env, rows in enumerate(envs):
        first = max(0, len(rows) - kept) if kept else 0
        assert store.first[env] == first
        guard = ReadGuard()  # the maintenance thread may seal a segment meanwhile
        store.rwlock.acquire_read(guard)
        stored = {name: store.columns[name].read(env, first, len(rows)) for name in store.columns}
        guard.release()
        for i, (row, step, how) in enumerate(rows[first:]):
            final = how == "final"
            expected = {
                "reward": golden.reward(row, env), "log_prob": golden.log_prob(row, env),
                "hidden": golden.hidden(row, env),
                "terminated": how == "terminated", "truncated": how == "truncated",
            }  # fmt: skip
            expected = {n: np.zeros_like(v) if final else v for n, v in expected.items()}
            expected |= {"step": step, "is_final": final}
            actions = [leaf * (not final) for leaf in leaves(golden.action(case, row, env))]
            for name, wanted in expected.items():
                np.testing.assert_array_equal(stored[name][i], wanted, err_msg=f"{name} {row}")
            for field, wanted in (
                ("observation", leaves(golden.observation(case, row, env))), ("action", actions),
            ):  # fmt: skip
                found = [stored[n][i] for n in sorted(stored) if n.split("/")[0] == field]
                for one, other in zip(found, wanted, strict=True):
                    assert one.dtype == other.dtype
                    np.testing.assert_array_equal(one, other, err_msg=f"{field} {row}")


def sampleable(buffer, steps):
    """(env, row, rows of the window) of each transition, by the rules of the format."""
    kept = buffer.capacity and buffer.capacity // buffer.num_envs
    for env, rows in enumerate(golden.schedule(buffer.num_envs, steps)):
        first = max(0, len(rows) - kept) if kept else 0
        for row, step, how in rows[first:]:
            if how == "final" or row - min(step, buffer.stack_size - 1) < first:
                continue
            for n in range(1, buffer.update_horizon + 1):
                ended = rows[row + n - 1][2]
                has_final = row + n < len(rows) and rows[row + n][2] == "final"
                if ended == "terminated" or (ended == "truncated" and has_final):
                    yield env, row, step, n, ended, has_final
                    break
                if ended or row + n >= len(rows) or rows[row + n][1] == 0:
                    break
            else:
                yield env, row, step, buffer.update_horizon, "", True


def check_transitions(buffer, case, steps):
    """Every transition that can be sampled, and no other."""
    found = list(sampleable(buffer, steps))
    assert len(buffer) == len(found) > 0
    ids = np.array([row * buffer.num_envs + env for env, row, *_ in found])
    batch = buffer.gather(ids)
    for i, (env, row, step, n, ended, has_next) in enumerate(found):
        terms = [0.5**k * float(golden.reward(row + k, env)) for k in range(n)]
        assert batch.reward[i] == sum(terms)
        assert batch.steps[i] == n
        assert batch.terminated[i] == (ended == "terminated")
        assert batch.truncated[i] == (ended == "truncated")
        assert batch.discount[i] == (0 if ended == "terminated" else 0.5**n)
        assert batch.log_prob[i] == golden.log_prob(row, env)
        check_stack(batch.observation, i, case, row, env, step)
        if has_next:
            check_stack(batch.next_observation, i, case, row + n, env, step + n)


def check_stack(stacks, i, case, row, env, step):
    for k in range(3):
        found = [leaf[i, 2 - k] for leaf in stack_leaves(stacks)]
        wanted = leaves(golden.observation(case, row - k, env))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other if k <= step else np.zeros_like(other))


def stack_leaves(value):
    return leaves(value)


@pytest.mark.costly(2)
@every_case
def test_read(unpacked):
    case, path = unpacked
    with diskreplay.open(path / "store") as buffer:
        assert buffer.mode == "r"
        check_rows(buffer, case, golden.STEPS)
        check_transitions(buffer, case, golden.STEPS)
    with diskreplay.open(path / "checkpoints" / "replay_ckpt.50") as buffer:
        check_rows(buffer, case, 50)
        check_transitions(buffer, case, 50)


@pytest.mark.costly(2)
@every_case
def test_write(unpacked):
    case, path = unpacked
    with golden.make(path / "store", case) as buffer:
        check_rows(buffer, case, golden.STEPS)
        check_transitions(buffer, case, golden.STEPS)
        golden.record(buffer, case, 0, 1)  # steps go on
        assert buffer.add_count == (golden.STEPS + 1) * buffer.num_envs
        buffer.sample()
    with diskreplay.open(path / "store", mode="a") as buffer:
        assert buffer.add_count == (golden.STEPS + 1) * buffer.num_envs
        buffer.load(path / "checkpoints")
        check_rows(buffer, case, 50)


@pytest.mark.costly(2)
@every_case
def test_load(unpacked):
    """The rows, and the very batches that the run which saved drew next."""
    case, path = unpacked
    with golden.make(path / "fresh", case) as buffer:
        buffer.load(path / "checkpoints", 50, resume_episodes=True)
        check_rows(buffer, case, 50)
        check_transitions(buffer, case, 50)
        for ids in np.load(path / "next_ids.npy"):
            np.testing.assert_array_equal(buffer.sample().id, ids)
        golden.record(buffer, case, 50)
        check_rows(buffer, case, golden.STEPS)
        check_transitions(buffer, case, golden.STEPS)


@pytest.mark.parametrize("unpacked", ["prioritized"], indirect=True)
def test_priorities(unpacked):
    _case, path = unpacked
    with diskreplay.open(path / "store") as buffer:
        assert (buffer.alpha, buffer.beta) == (0.5, 0.25)
        ids = np.array([row for _env, row, *_ in sampleable(buffer, golden.STEPS)])
        leaf = np.where(ids < golden.STEPS, golden.priority(ids) ** 0.5, 5.0)
        np.testing.assert_allclose(buffer.gather(ids).probability, leaf / leaf.sum(), rtol=1e-12)


def test_the_golden_files_are_small():
    names = {path.name for path in (DATA / "golden").iterdir()}
    assert names >= {f"format2_{case}.tar.gz" for case in CASES}
    for path in (DATA / "golden").iterdir():
        assert path.stat().st_size < 200 << 10
