"""The generation of a store's row numbers: whether an id still means the same transition."""

import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.store import commit_page, generation


def make(path):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 1, (2,)), action_space=Discrete(2), capacity=100
    )


def add(buffer, rows):
    for _ in range(rows):
        buffer.add(np.zeros(2, np.float32), 0, 1.0, False, False)


def test_it_stays_over_a_reopening_and_grows_with_a_load_and_a_clear(tmp_path):
    with make(tmp_path / "store") as buffer:
        first = buffer.generation
        add(buffer, 5)
        buffer.save(tmp_path, 1)
    with make(tmp_path / "store") as buffer:
        assert buffer.generation == first
        seen = [first]
        for change in (lambda: buffer.load(tmp_path), buffer.clear, lambda: buffer.load(tmp_path)):
            change()
            seen.append(buffer.generation)
        assert seen == sorted(set(seen))
        with diskreplay.open(tmp_path / "store") as reader:
            assert reader.generation == seen[-1]
    with make(tmp_path / "store") as buffer:
        assert buffer.generation == seen[-1]


def test_a_store_made_anew_where_one_was_lost_has_another(tmp_path):
    with make(tmp_path / "store") as buffer:
        lost = buffer.generation
    shutil.rmtree(tmp_path / "store")
    with make(tmp_path / "store") as buffer:
        assert buffer.generation > lost


def test_rows_dropped_after_a_power_cut_raise_it_and_a_kill_does_not(tmp_path, monkeypatch):
    buffer = make(tmp_path / "store")
    add(buffer, 8)
    buffer.flush()
    group = (tmp_path / "store" / "zarr.json").read_bytes()
    add(buffer, 8)
    for name in ("killed", "cut"):
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(tmp_path / "store", tmp_path / name)
        (tmp_path / name / "zarr.json").write_bytes(group)
    before = buffer.generation
    buffer.close()
    with make(tmp_path / "killed") as buffer:
        assert (buffer.generation, len(buffer)) == (before, 15)
    monkeypatch.setattr(commit_page, "boot_id", lambda: "00000000-0000-4000-8000-000000000000")
    with pytest.warns(RuntimeWarning, match="at least 8 rows"):
        buffer = make(tmp_path / "cut")
    after = buffer.generation
    assert after > before
    shutil.copytree(tmp_path / "cut", tmp_path / "again")  # killed before anything else is written
    buffer.close()
    with make(tmp_path / "again") as buffer:
        assert buffer.generation == after


@pytest.mark.parametrize(
    "meta", [{}, {"generation": "7"}, {"generation": -1}, {"generation": True}]
)
def test_a_store_without_one_has_0(meta):
    assert generation.current(meta) == 0
    assert generation.following(meta) > 1_000_000
