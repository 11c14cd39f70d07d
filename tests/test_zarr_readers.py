"""What zarr-python and tensorstore read, without diskreplay, is what was recorded."""

import inspect
import itertools
import shutil
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import zarr
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.store import files
from tests.effort import effort
from tests.naive import SideBySide, check_store, expected_array, fields_of_the_format

IMAGE_AND_VECTOR = {
    "observation/camera": ((8, 8), "uint8"),
    "observation/velocity": ((3,), "float32"),
}


@pytest.fixture(params=["raw", "lz4", "zstd"])
def compressor(request):
    return request.param


@contextmanager
def recorded(tmp_path, compressor, **options):
    """Three envs of very different length, with evicted rows and the newest segments not full."""
    options = {"capacity": 450, "num_envs": 3, "segment_rows": 8, **options}
    with SideBySide(
        tmp_path / "replay", stack_size=2, update_horizon=3, compressor=compressor, **options
    ) as both:
        both.play(47, seed=1)
        others = ["skip"] * (both.twin.num_envs - 1)
        for i in range(260):  # alone: the other envs' rows are missing from here on
            both.step([*others, "terminated, final" if i % 9 else "go on"])
        both.play(3, seed=2)
        yield both


def test_after_a_flush(tmp_path, compressor):
    with recorded(tmp_path, compressor) as both:
        both.real.flush()
        check_store(both.path, both.twin)
        both.play(50, seed=3)
        both.real.flush()
        check_store(both.path, both.twin)
        both.check_everything()  # a flush leaves the tail where rows can be added to it


def test_after_a_close_and_after_reopening(tmp_path, compressor):
    with recorded(tmp_path, compressor) as both:
        both.real.close()
        check_store(both.path, both.twin)
        both.reopen()
        both.play(30, seed=4)
        both.real.close()
        check_store(both.path, both.twin)


def test_a_checkpoint_stays_what_it_was(tmp_path, compressor):
    with recorded(tmp_path, compressor) as both:
        saved = both.real.save(tmp_path / "checkpoints", 3)
        before = both.twin.copy()
        check_store(saved, both.twin)
        both.play(200, seed=5)  # past the eviction of nearly all that was saved
        both.real.flush()
        check_store(both.path, both.twin)
        both.twin.restore(before, resume_episodes=True)
        check_store(saved, both.twin)


@pytest.mark.costly(1)
def test_a_loaded_store(tmp_path, compressor):
    with recorded(tmp_path, compressor) as both:
        both.real.save(tmp_path / "checkpoints", 3)
        before = both.twin.copy()
        both.play(100, seed=6)
        both.real.load(tmp_path / "checkpoints", 3)
        both.twin.restore(before)
        both.play(40, seed=7)
        both.real.flush()
        check_store(both.path, both.twin)


def test_dict_observations_are_nested_groups(tmp_path, compressor):
    with recorded(tmp_path, compressor, observation=IMAGE_AND_VECTOR) as both:
        both.real.flush()
        check_store(both.path, both.twin)
        group = zarr.open_group(both.path, mode="r")
        assert isinstance(group["observation"], zarr.Group)
        assert set(group["observation"].array_keys()) == {"camera", "velocity"}


@pytest.mark.costly(1)
def test_a_single_env_without_a_capacity(tmp_path, compressor):
    with recorded(tmp_path, compressor, num_envs=1, capacity=None) as both:
        both.play(4200, seed=8)  # past the smallest raw segment of every field
    assert both.twin.first == [0]
    check_store(both.path, both.twin)


def test_one_row_and_none(tmp_path, compressor):
    with SideBySide(tmp_path / "replay", num_envs=2, compressor=compressor, segment_rows=8) as both:
        both.real.flush()
        check_store(both.path, both.twin)
        both.step(["skip", "go on"])
    check_store(both.path, both.twin)


@pytest.mark.costly(1)
def test_full_segments_of_a_live_store_need_no_flush(tmp_path, compressor):
    """Sealed in the background, so it may take a moment."""
    with SideBySide(
        tmp_path / "replay", capacity=None, compressor={"observation": compressor}, segment_rows=64
    ) as both:
        both.play(70 * 64, seed=9, end=0.0)
        full = 69 * 64
        shape, dtype, value = fields_of_the_format(both.twin)["observation"]
        expected, _ = expected_array(both.twin, shape, dtype, value)
        deadline = time.monotonic() + 400
        while True:
            array = zarr.open_group(both.path, mode="r")["observation"]
            if array.shape[0] >= full and (array[:full] == expected[:full]).all():
                break
            assert time.monotonic() < deadline, "full segments are still missing"
            time.sleep(0.05)


def test_the_leaves_of_the_tree_are_an_array(tmp_path):
    """With alpha 1 a leaf is the priority itself."""
    with recorded(tmp_path, "auto", alpha=1.0) as both:
        ids = both.twin.sampleable_ids()
        both.update_priorities(ids, np.random.default_rng(0).uniform(0.1, 3, len(ids)).tolist())
        both.real.flush()
        read = zarr.open_group(both.path, mode="r")["priority"][:]
        for id in ids:
            t, env = divmod(id, both.twin.num_envs)
            assert read[t, env] == pytest.approx(both.twin.leaf(id), rel=1e-6)
        others = set(both.twin.known_ids()) - set(ids)
        retained = [id for id in others if id // 3 >= both.twin.first[id % 3]]
        assert not any(read[divmod(id, 3)] > 0 for id in retained)  # zero, or no number at all


def test_tensorstore_reads_the_same(tmp_path, compressor):
    tensorstore = pytest.importorskip("tensorstore")
    with recorded(tmp_path, compressor, observation=IMAGE_AND_VECTOR) as both:
        both.real.close()
    for name, (shape, dtype, value) in fields_of_the_format(both.twin).items():
        store = {"driver": "file", "path": str(both.path / name)}
        array = tensorstore.open({"driver": "zarr3", "kvstore": store}, open=True).result()
        expected, retained = expected_array(both.twin, shape, dtype, value)
        assert array.shape == expected.shape, name
        read = np.asarray(array.read().result())
        np.testing.assert_array_equal(read[retained], expected[retained], err_msg=name)


NESTED = {
    "observation_space": Dict(camera=Box(0, 255, (32, 32), "uint8"), body=Box(-1, 1, (3,))),
    "action_space": Discrete(4),
    "extras": {"hidden": ((1024,), "uint8")},
    "capacity": 64,
    "segment_rows": 8,
    "compressor": {"observation/camera": "lz4"},
}
OF_THE_FORMAT = {
    "observation", "observation/camera", "observation/body", "action", "reward", "terminated",
    "truncated", "step", "is_final", "hidden",
}  # fmt: skip


def members(path):
    """All that Zarr takes for a part of the group; a warning of anything else is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(path, mode="r")
        found = {name for name, _node in group.members(max_depth=None)}
        assert {name for name, _node in group.members()} == {n for n in found if "/" not in n}
    return found


@pytest.mark.costly
def test_zarr_sees_the_fields_and_nothing_else(tmp_path, monkeypatch):
    """Looked at after every step of a writer: tails, spares, records, priorities half built."""
    path, seen, steps = tmp_path / "replay", [], itertools.count()

    def double(original):
        def function(*arguments, **options):
            result = original(*arguments, **options)
            if (path / "zarr.json").exists() and next(steps) % effort(3, 1) == 0:
                seen.append(members(path))
            return result

        return function

    with diskreplay.PrioritizedReplayBuffer(path, **NESTED) as buffer:
        for name in ("make_dirs", "allocate", "write", "sync", "rename", "exchange", "remove"):
            assert inspect.isfunction(getattr(files, name))
            monkeypatch.setattr(files, name, double(getattr(files, name)))
        for i in range(90):
            frame = {"camera": np.full((32, 32), i, np.uint8), "body": np.zeros(3)}
            buffer.add(frame, 1, 0.0, False, False, hidden=np.full(1024, i))
            if i % 40 == 39:
                buffer.flush()
        buffer.save(tmp_path / "checkpoints", 1)
    monkeypatch.undo()
    assert len(seen) > 50
    assert all(OF_THE_FORMAT <= found <= OF_THE_FORMAT | {"priority"} for found in seen)
    assert members(path) == OF_THE_FORMAT | {"priority"}


def test_trees_and_consolidated_metadata(tmp_path):
    path = tmp_path / "replay"
    with diskreplay.ReplayBuffer(path, **NESTED) as buffer:
        frame = {"camera": np.ones((32, 32), np.uint8), "body": np.zeros(3)}
        for _ in range(20):
            buffer.add(frame, 1, 0.0, False, False, hidden=np.ones(1024, np.uint8))
        saved = buffer.save(tmp_path / "checkpoints", 1, attachments={"nets/agent.pt": b"weights"})
        copy = tmp_path / "copy"
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, copy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for group in (path, saved):
                assert "camera" in str(zarr.open_group(group, mode="r").tree())
                assert members(group) == OF_THE_FORMAT
            warnings.filterwarnings("ignore", message="Consolidated metadata")  # not in Zarr v3 yet
            together = zarr.consolidate_metadata(str(copy))
        assert set(together.metadata.consolidated_metadata.flattened_metadata) == OF_THE_FORMAT
