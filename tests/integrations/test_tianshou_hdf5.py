"""Files of HDF5: Tianshou's own buffers and ours are made of them, whoever wrote them."""

import tracemalloc

import numpy as np
import pytest

pytest.importorskip("tianshou")

from tianshou.data import Batch

from diskreplay import InvalidInputError
from diskreplay.integrations import tianshou_hdf5
from tests.integrations.tianshou_twins import GOALS, KINDS, alike, compare, drawn, make, player


def written(kind, tmp_path, least=1024):
    """Ours, Tianshou's own with the same transitions, and a player that goes on."""
    name, options = KINDS[kind]
    disk = make(name, {"path": tmp_path / "replay", "min_bytes": least}, **options)
    plain, plays = make(name, **options), player(kind)
    for _ in range(40):
        plays.step(disk, plain)
    disk.save_hdf5(str(tmp_path / "ours.h5"))
    plain.save_hdf5(str(tmp_path / "own.h5"))
    return disk, plain, plays


def parts_of(buffer):
    """The buffers inside of one, wherever it has them."""
    parts = list(getattr(buffer, "buffers", []))
    parts += [buffer.main_buffer] if "main_buffer" in buffer.__dict__ else []
    return parts + list(buffer.__dict__.get("cached_buffers", []))


def check_same(found, wanted):
    for one, other in zip([found, *parts_of(found)], [wanted, *parts_of(wanted)], strict=True):
        assert type(one) is type(other)
        assert one.__dict__.keys() == other.__dict__.keys()
        assert type(one._meta) is Batch
        assert one._meta.get_keys() == other._meta.get_keys()
        assert len(one) == len(other)
        if len(other._meta.get_keys()):
            alike(one._meta, other._meta)
        np.testing.assert_array_equal(one.unfinished_index(), other.unfinished_index())
        np.testing.assert_array_equal(one.last_index, other.last_index)
    assert len(parts_of(found)) == len(parts_of(wanted))


@pytest.mark.parametrize("least", [16, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_tianshou_makes_of_ours_what_it_makes_of_its_own(tmp_path, kind, least):
    disk, plain, plays = written(kind, tmp_path, least)
    disk.close()
    found, wanted = (type(plain).load_hdf5(str(tmp_path / name)) for name in ("ours.h5", "own.h5"))
    check_same(found, wanted)
    for size in (0, 9):
        (rows, at), (others, there) = drawn(found, size, 3), drawn(wanted, size, 3)
        np.testing.assert_array_equal(at, there)
        alike(rows, others)
    for _ in range(4):
        one, other = plays.step(found, wanted) or (((),), ((),))
        for value, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(value, expected)
    check_same(found, wanted)
    alike(drawn(found, 0, 4)[0], drawn(wanted, 0, 4)[0])


@pytest.mark.parametrize("kind", ["vector of frames", "cached"])
def test_who_reads_a_file_needs_nothing_of_ours(tmp_path, kind):
    written(kind, tmp_path)[0].close()
    assert b"diskreplay" not in (tmp_path / "ours.h5").read_bytes()


@pytest.mark.parametrize("file", ["ours.h5", "own.h5"])
@pytest.mark.parametrize("kind", ["prioritized vector", "cached", "vector of goals"])
def test_ours_goes_on_from_either_file(tmp_path, kind, file):
    disk, plain, plays = written(kind, tmp_path)
    disk.close()
    again = type(disk).load_hdf5(str(tmp_path / file))
    rng = np.random.default_rng(0)
    compare(again, plain, rng)
    for _ in range(20):
        plays.step(again, plain)
    compare(again, plain, rng)
    for one, other in zip(parts_of(again), parts_of(plain), strict=True):
        alike(Batch(rew=one.rew), Batch(rew=other.rew))
    again.close()


@pytest.mark.parametrize("file", ["ours.h5", "own.h5"])
def test_goals_of_a_loaded_buffer_are_relabelled_in_memory(tmp_path, file):
    disk, plain = make("HERVectorReplayBuffer", {}, **GOALS), make("HERVectorReplayBuffer", **GOALS)
    for step in range(12):
        seen = np.full((3, 1), step)
        goals = {
            "observation": seen,
            "achieved_goal": np.full((3, 200), step),
            "desired_goal": np.full((3, 200), 99),
        }
        ends = np.full(3, step % 3 == 2)
        batch = Batch(
            obs=goals, obs_next=goals, act=np.zeros(3), rew=np.zeros(3), terminated=ends,
            truncated=np.zeros(3, np.bool_),
        )  # fmt: skip
        for buffer in (disk, plain):
            buffer.add(batch, buffer_ids=np.arange(3))
    disk.save_hdf5(str(tmp_path / "ours.h5"))
    plain.save_hdf5(str(tmp_path / "own.h5"))
    disk.close()
    again = type(disk).load_hdf5(str(tmp_path / file))
    field = again._there.names["obs/desired_goal"]
    slots = np.arange(again.maxsize)
    before = again.disk.read(field, slots)
    drawn(again, 16, 0)
    assert (np.asarray(again.obs.desired_goal) != before).any()
    np.testing.assert_array_equal(again.disk.read(field, slots), before)
    again.close()


def test_rows_are_read_some_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tianshou_hdf5, "_AT_ONCE", 64 << 10)
    disk = make("VectorReplayBuffer", {"path": tmp_path / "replay"})
    size = 64 << 10
    for step in range(20):
        disk.add(
            Batch(
                obs=np.full((3, size), step, np.uint8), obs_next=np.zeros((3, size), np.uint8),
                act=np.zeros(3), rew=np.zeros(3), terminated=np.zeros(3, np.bool_),
                truncated=np.zeros(3, np.bool_),
            ),
            buffer_ids=np.arange(3),
        )  # fmt: skip
    disk.save_hdf5(str(tmp_path / "before.h5"))  # what is imported by the first one is not counted
    tracemalloc.start()
    disk.save_hdf5(str(tmp_path / "ours.h5"), compression="gzip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < disk._meta.obs.nbytes / 2
    again = make("VectorReplayBuffer").load_hdf5(str(tmp_path / "ours.h5"))
    for each in (again._meta, *(part._meta for part in again.buffers)):
        assert (each.obs[:, 0] == np.arange(len(each.obs)) % 20).all()
    disk.close()


def test_what_cannot_be_pickled_is_refused(tmp_path):
    name, options = KINDS["vector of goals"]
    disk = make(name, {}, **{**options, "compute_reward_fn": lambda one, other: one[:, 0]})
    player("vector of goals").step(disk)
    with pytest.raises(InvalidInputError, match=r"ours\.h5: buffers cannot be pickled"):
        disk.save_hdf5(str(tmp_path / "ours.h5"))
    disk.close()
