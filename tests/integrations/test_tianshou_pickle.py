"""Pickles, copies and files of Tianshou's buffers on disk: who reads one goes on as its own do."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("tianshou")

from diskreplay import errors
from tests.integrations.tianshou_twins import (
    KINDS,
    alike,
    compare,
    make,
    player,
    shared,
)


@pytest.mark.parametrize("where", ["temporary", "reference", "embed"])
@pytest.mark.parametrize(
    "kind", ["plain", "vector of frames", "prioritized vector", "cached", "vector that slides"]
)
def test_pickles_go_on_where_they_were(tmp_path, kind, where):
    name, options = KINDS[kind]
    plays = player(kind)
    options_of_disk = shared(kind) if "slides" in kind else {}
    if where != "temporary":
        options_of_disk |= {"path": tmp_path / "replay", "pickle": where}
    disk, plain = make(name, options_of_disk, **options), make(name, **options)
    for _ in range(40):
        plays.step(disk, plain)
    data = pickle.dumps(disk)
    again = pickle.loads(data)
    rng = np.random.default_rng(1)
    compare(again, plain, rng)
    if where == "reference":
        assert len(data) < 100_000
        with pytest.raises(errors.UsageError, match="another replay buffer"):
            disk.sample(1)
    else:
        disk.close()
    for _ in range(30):
        plays.step(again, plain)
    if "buffers" not in plain.__dict__:
        compare(again, plain, rng)
    again.close()


def test_a_copy_has_rows_of_its_own(tmp_path):
    disk, plays = make("VectorReplayBuffer", {"path": tmp_path / "replay"}), player("vector")
    plain = make("VectorReplayBuffer")
    for _ in range(20):
        plays.step(disk, plain)
    made = copy.deepcopy(disk)
    plays.step(disk)
    alike(made[:], plain[:])
    made.close()
    disk.close()


def test_a_pickle_without_its_checkpoint_says_so(tmp_path):
    disk = make("ReplayBuffer", {"path": tmp_path / "replay", "keep": 1})
    player("plain").step(disk)
    data = pickle.dumps(disk)
    pickle.dumps(disk)
    with pytest.raises(errors.CheckpointNotFoundError, match="keep=1"):
        pickle.loads(data)
    disk.close()


@pytest.mark.parametrize("kind", ["plain", "vector of frames"])
def test_files_of_tianshou_are_those_of_the_original(tmp_path, kind):
    name, options = KINDS[kind]
    plays = player(kind)
    disk, plain = make(name, {}, **options), make(name, **options)
    for _ in range(20):
        plays.step(disk, plain)
    disk.save_hdf5(tmp_path / "disk.h5", compression="gzip")
    plain.save_hdf5(tmp_path / "plain.h5")
    again = type(plain).load_hdf5(tmp_path / "disk.h5")
    ours_again = type(disk).load_hdf5(tmp_path / "plain.h5")
    for each in (again, ours_again, disk):
        alike(each[np.arange(12)], plain[np.arange(12)])
    disk.close()
    ours_again.close()
