"""Tianshou's replay buffers on disk beside its own: the same batches, killed, reopened, pickled."""

import contextlib
import copy
import pickle
import signal
import subprocess
import warnings

import numpy as np
import pytest

pytest.importorskip("tianshou")
import tianshou.data
from tianshou.data import Batch

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.integrations import tianshou as ours
from diskreplay.integrations.batch_leaves import leaves
from diskreplay.slot_view import SlotView
from tests import processes
from tests.integrations.tianshou_twins import (
    ENVS,
    KINDS,
    alike,
    compare,
    drawn,
    make,
    player,
    shared,
)


@pytest.mark.costly(19)
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("min_bytes", [2, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_original(kind, min_bytes, shares):
    name, options = KINDS[kind]
    plays, rng = player(kind), np.random.default_rng(1)
    how = {"min_bytes": min_bytes, **(shared(kind) if shares else {})}
    disk, plain = make(name, how, **options), make(name, **options)
    for step in range(75):
        results = plays.step(disk, plain)
        if results:
            for found, wanted in zip(*results, strict=True):
                np.testing.assert_array_equal(found, wanted)
        if step % 15 == 14:
            compare(disk, plain, rng)
    on_disk = [path for path, value in leaves(disk._meta) if isinstance(value, SlotView)]
    assert any(path.startswith("obs") for path in on_disk)
    has_pairs = "obs_next" in plain._meta.get_keys()
    assert bool(disk.disk.next_of) == (shares and has_pairs)
    assert ("act" in on_disk) == (min_bytes == 2)
    for buffer in (disk, plain):
        buffer.reset()
    for _ in range(20):
        plays.step(disk, plain)
    compare(disk, plain, rng)
    disk.close()


def cut(plain):
    """What a buffer that is opened again does to the episodes that were under way."""
    for buffer in getattr(plain, "buffers", [plain]):
        for at in buffer.unfinished_index():
            buffer._meta.truncated[at] = buffer._meta.done[at] = True
        buffer._ep_return, buffer._ep_len, buffer._ep_start_idx = 0.0, 0, buffer._insertion_idx


def finish_cached(plain):
    """The episodes under way are over, and go to the main buffer."""
    for lane, cached in enumerate(plain.cached_buffers, 1):
        if len(cached):
            index = plain.main_buffer.update(cached)
            cached.reset()
            plain._lengths[0], plain._lengths[lane] = len(plain.main_buffer), 0
            plain.last_index[0], plain.last_index[lane] = index[-1], plain._offset[lane]
            plain.main_buffer._ep_start_idx = plain.main_buffer._insertion_idx


def check_reopened(disk, plain, plays):
    cut(plain)
    if hasattr(plain, "cached_buffers"):
        finish_cached(plain)
    rng = np.random.default_rng(2)
    compare(disk, plain, rng)
    for step in range(40):
        plays.step(disk, plain)
        if step % 10 == 9:
            compare(disk, plain, rng, sizes=(5,))


@pytest.mark.parametrize("steps", [3, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_that_is_opened_again_goes_on(tmp_path, kind, steps):
    """With the options of the disk that the store was made with."""
    name, options = KINDS[kind]
    plays, how = player(kind), {"path": tmp_path / "replay", **shared(kind)}
    disk, plain = make(name, how, **options), make(name, **options)
    for _ in range(steps):
        plays.step(disk, plain)
    compare(disk, plain, np.random.default_rng(1), sizes=(4,))
    disk.close()
    assert verify(tmp_path / "replay").findings == ()
    disk = make(name, {"path": tmp_path / "replay"}, **options)
    if hasattr(plain, "_restore_cache"):
        plain._restore_cache()
    check_reopened(disk, plain, plays)
    disk.close()


KILLED = """
import sys
from tests.integrations.tianshou_twins import KINDS, make, player, shared

name, options = KINDS[sys.argv[2]]
how = {"path": sys.argv[1], **shared(sys.argv[2])}
plays, buffer = player(sys.argv[2]), make(name, how, **options)
while len(buffer) < 45 or sys.argv[2] != "cached":  # no transition leaves there
    plays.step(buffer)
    print("added", flush=True)
    buffer.sample(3)
input()
"""


def started(code, *arguments):
    return processes.Process(
        code, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        imports=["tests.integrations.tianshou_compiled"],
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "vector of frames", "cached", "vector that slides"])
def test_what_was_added_outlives_a_kill(tmp_path, kind):
    name, options = KINDS[kind]
    child = started(KILLED, tmp_path / "replay", kind)
    with child.stdin, child.stdout:
        told = sum(
            1 for _, _line in zip(range(15 if kind == "cached" else 57), child.stdout, strict=False)
        )
        child.send_signal(signal.SIGKILL)
        told += len(child.stdout.readlines())
    assert child.wait() == -signal.SIGKILL
    disk = make(name, {"path": tmp_path / "replay"}, **options)
    twins = []
    for added in range(told, told + 2):  # the last call may have been done, and not have said so
        plays, plain = player(kind), make(name, **options)
        for _ in range(added):
            plays.step(plain)
        cut(plain)
        if kind == "cached":
            finish_cached(plain)
        twins.append(plain)
    if kind == "cached":
        # In which order the last episodes came to the main buffer depends on the moment, and
        # whether all environments of the last call were done.
        found = disk[:].rew.tolist()
        told, tried = (set(plain[:].rew.tolist()) for plain in twins)
        assert told <= set(found) <= tried
        assert len(found) == len(set(found))
    else:
        # Of the last call some environments may have been done.
        lanes = [getattr(each, "buffers", [each]) for each in (disk, *twins)]
        for found, *wanted in zip(*lanes, strict=True):
            plain = next(each for each in wanted if each[:].rew.tolist() == found[:].rew.tolist())
            alike(found[:], plain[:])
            np.testing.assert_array_equal(found.last_index, plain.last_index)
    disk.close()


def test_an_episode_that_was_moved_when_the_process_died_is_there_once(tmp_path):
    name, options = KINDS["cached"]
    for moved in (False, True):
        path = tmp_path / f"replay{moved}"
        disk, plain = make(name, {"path": path}, **options), make(name, **options)
        plays = player("cached", seed=5)
        for _ in range(12):
            plays.step(disk, plain)
        if moved:  # as if it died before the cached buffer knew of it
            for lane, cached in enumerate(disk.cached_buffers, 1):
                if len(cached):
                    disk.main_buffer.update(cached)
                    assert len(disk._rows.order(lane))
        disk.close()
        disk = make(name, {"path": path}, **options)
        if not moved:
            check_reopened(disk, plain, plays)
        else:
            cut(plain)
            finish_cached(plain)
            assert disk[:].rew.tolist() == plain[:].rew.tolist()
        disk.close()


def test_data_that_are_there_are_copied_to_the_disk():
    rng = np.random.default_rng(0)
    data = {
        "obs": rng.integers(0, 255, (30, 40, 40), np.uint8), "act": rng.integers(0, 3, 30),
        "rew": rng.normal(size=30), "terminated": np.arange(30) == 29,
        "truncated": np.zeros(30, bool), "done": np.arange(30) == 29,
        "obs_next": rng.integers(0, 255, (30, 40, 40), np.uint8),
    }  # fmt: skip
    disk = ours.DiskReplayBuffer.from_data(**data)
    alike(disk[:], tianshou.data.ReplayBuffer.from_data(**data)[:])
    assert isinstance(disk.obs, SlotView)
    disk.set_array_at_key(np.ones((30, 40, 40), np.uint8), "obs")
    assert (disk[:].obs == 1).all()
    disk.close()


@pytest.mark.parametrize("min_bytes", [2, 1024])
@pytest.mark.parametrize("next_of", [False, True])
def test_of_more_transitions_than_there_is_room_for_the_last_ones_stay(
    tmp_path, min_bytes, next_of
):
    """An episode of a `CachedReplayBuffer`, say, that is longer than the main buffer."""
    source, plain = tianshou.data.ReplayBuffer(30), tianshou.data.ReplayBuffer(12)
    options = {"path": tmp_path / "rows", "min_bytes": min_bytes, "next_of": next_of}
    disk = ours.DiskReplayBuffer(12, **options)
    for t in range(20):
        step = {"obs": np.full(3, t), "obs_next": np.full(3, t + 1), "act": t, "rew": float(t)}
        source.add(Batch(**step, terminated=t % 6 == 5, truncated=False, info={}))
    assert disk.update(source).tolist() == plain.update(source).tolist()
    rows = np.arange(12)
    alike(disk._meta[rows], plain._meta[rows])
    disk.close()
    disk = ours.DiskReplayBuffer(12, **options)
    assert disk.sample_indices(0).tolist() == plain.sample_indices(0).tolist()
    for name in ("obs", "obs_next", "act", "rew", "terminated"):
        np.testing.assert_array_equal(disk._meta[rows][name], plain._meta[rows][name])
    disk.close()


@pytest.mark.parametrize("steps", [0, 5, 17])
@pytest.mark.parametrize("more", [0, 2])
def test_set_batch_leaves_the_same_transitions(tmp_path, steps, more):
    plain, disk = tianshou.data.ReplayBuffer(12), ours.DiskReplayBuffer(12, path=tmp_path / "rows")

    def add(t):
        step = {"obs": np.full(3, t), "act": t, "rew": float(t), "obs_next": np.full(3, t + 1)}
        for buffer in (plain, disk):
            buffer.add(Batch(**step, terminated=t % 6 == 5, truncated=False, info={}))

    add(0)
    for t in range(1, 1 + steps):
        add(t)
    batch = copy.deepcopy(plain._meta)
    batch.act[:] += 100
    for buffer in (plain, disk):
        buffer.set_batch(copy.deepcopy(batch))
    for t in range(more):
        add(t)
    disk.close()
    disk = ours.DiskReplayBuffer(12, path=tmp_path / "rows")
    rows = plain.sample_indices(0)
    assert disk.sample_indices(0).tolist() == rows.tolist()
    assert disk[rows].act.tolist() == plain[rows].act.tolist()
    disk.close()


def test_what_are_no_numbers_stays_in_memory_with_a_warning():
    disk, batch = make("ReplayBuffer", {}), {
        "obs": np.zeros(3), "act": 1, "rew": 1.0, "terminated": False, "truncated": False,
        "obs_next": np.zeros(3), "info": {"said": "hello", "at": 3.0},
    }  # fmt: skip
    with pytest.warns(UserWarning, match="info/said"):
        disk.add(Batch(batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.add(Batch(batch))
    assert disk.info.said[:2].tolist() == ["hello", "hello"]
    disk.close()


def test_keys_that_come_up_late_stay_in_memory_with_a_warning(tmp_path):
    batch = {
        "obs": np.zeros(300), "act": 1, "rew": 1.0, "terminated": False, "truncated": False,
        "obs_next": np.zeros(300), "info": {"at": 3.0},
    }  # fmt: skip
    late = {**batch, "info": {"at": 3.0, "lives": 4.0}}
    disk = make("ReplayBuffer", {"path": tmp_path / "replay"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.add(Batch(batch))
    with pytest.warns(UserWarning, match="info/lives: .*not in the first"):
        disk.add(Batch(late))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.add(Batch(late))
    assert disk.info.lives[:3].tolist() == [0.0, 4.0, 4.0]
    assert disk.info.at[:3].tolist() == [3.0, 3.0, 3.0]
    disk.close()


def test_any_keys_are_kept_and_come_back(tmp_path):
    """With those that no directory can be called, and those that a store has for its own."""
    odd = {
        "episode/r": 1.5, "a~b": {"c/d": 2.5, "~1": 3.5}, "episode_1r": 4.5, "Zeit in \u00b5s": 5.5
    }  # fmt: skip
    batch = {
        "obs": np.zeros(300), "act": 1, "rew": 1.25, "terminated": False, "truncated": False,
        "obs_next": np.zeros(300), "info": odd, "reward": np.arange(3.0), "observation": {"q": 7},
        "sequence_number": 0.5, "action": 8,
    }  # fmt: skip
    disk = make("ReplayBuffer", {"path": tmp_path / "replay", "next_of": True})
    plain = make("ReplayBuffer")
    for _ in range(3):
        for buffer in (disk, plain):
            buffer.add(Batch(batch))
    alike(disk[:3], plain[:3])
    disk.save_hdf5(str(tmp_path / "ours.hdf5"))
    plain.save_hdf5(str(tmp_path / "own.hdf5"))
    found, wanted = (
        tianshou.data.ReplayBuffer.load_hdf5(str(tmp_path / name))
        for name in ("ours.hdf5", "own.hdf5")
    )
    alike(found[:3], wanted[:3])
    disk.close()
    disk = make("ReplayBuffer", {"path": tmp_path / "replay"})
    cut(plain)
    alike(disk[:3], plain[:3])
    disk.close()


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_reset_took_out_does_not_come_back(tmp_path, kind, one):
    """Also where only one of the buffers inside of another is reset."""
    name, options = KINDS[kind]
    plays, how = player(kind), {"path": tmp_path / "replay", **shared(kind)}
    disk, plain = make(name, how, **options), make(name, **options)
    for _ in range(2):
        for _ in range(30):
            plays.step(disk, plain)
        disk.save(tmp_path / "checkpoints", 0)
        kept = len(disk)
        for buffer in (disk, plain):
            if one and hasattr(plain, "buffers"):
                buffer.buffers[-1].reset()
                buffer._lengths[-1] = 0
                buffer.last_index[-1] = buffer._offset[-1]
            else:
                buffer.reset()
        disk.close()
        disk = make(name, {"path": tmp_path / "replay"}, **options)
        cut(plain)
        if hasattr(plain, "cached_buffers"):
            finish_cached(plain)
        assert len(disk) == len(plain)
        if len(plain):
            compare(disk, plain, np.random.default_rng(1), sizes=(0,))
    assert disk.load(tmp_path / "checkpoints").suffix == "0"
    assert len(disk) == kept
    disk.close()


def test_of_a_reset_buffer_that_is_opened_again_only_new_transitions_are_drawn(tmp_path):
    """By their weights, which Tianshou's own reset leaves as they are."""
    name, options = KINDS["prioritized vector"]
    plays, how = player("prioritized vector"), {"path": tmp_path / "replay"}
    disk = make(name, how, **options)
    for _ in range(60):
        plays.step(disk)
    disk.reset()
    disk.close()
    disk = make(name, how, **options)
    for _ in range(4):
        plays.step(disk)
    there = set(disk.sample_indices(0).tolist())
    assert 0 < len(there) <= 4 * ENVS
    assert set(drawn(disk, 200, 1)[1].tolist()) <= there
    disk.close()


RESET = """
import sys
from tests.integrations.tianshou_twins import KINDS, make, player

name, options = KINDS["vector of frames"]
plays, buffer = player("vector of frames"), make(name, {"path": sys.argv[1]}, **options)
for _ in range(20):
    plays.step(buffer)
buffer.reset()
print("reset", flush=True)
input()
"""


def test_an_array_of_any_key_is_written_to_the_disk(tmp_path):
    batch = {
        "obs": np.zeros(300), "act": 1, "rew": 1.25, "terminated": False, "truncated": False,
        "obs_next": np.zeros(300), "info": {}, "a~b/c": np.zeros(300), "Rew": 7.0,
        "Observation": np.ones(300),
    }  # fmt: skip
    disk = make("ReplayBuffer", {"path": tmp_path / "replay"})
    for _ in range(3):
        disk.add(Batch(batch))
    values = np.random.default_rng(1).random((disk.maxsize, 300))
    disk.set_array_at_key(values, "a~b/c")
    disk.close()
    disk = make("ReplayBuffer", {"path": tmp_path / "replay"})
    found = disk[:3]
    np.testing.assert_array_equal(found["a~b/c"], values[:3])
    assert (found.rew.tolist(), found.Rew.tolist()) == ([1.25] * 3, [7.0] * 3)
    assert (found.obs.sum(), found.Observation.sum()) == (0, 900)
    assert disk._there.names["obs"] == "observation"
    disk.close()


def test_a_checkpoint_says_which_values_are_whose(tmp_path):
    """Keys that become one name of a file are not taken for each other."""

    def with_info(path, info):
        disk = make("ReplayBuffer", {"path": path})
        disk.add(Batch({
            "obs": np.zeros(3), "act": 1, "rew": 1.0, "terminated": False, "truncated": False,
            "obs_next": np.zeros(3), "info": info,
        }))  # fmt: skip
        return disk

    saved = with_info(tmp_path / "one", {"v\u00e9": 1.0, "v\u00e8": 2.0})
    saved.save(tmp_path / "saved", 1)
    saved.close()
    for number, info in enumerate(
        [{"v\u00e8": 0.0, "v\u00e9": 0.0}, {"v:a": 0.0, "v;b": 0.0}, {"v\u00e9": 0.0, "v;": 0.0}]
    ):
        disk = with_info(tmp_path / f"other{number}", info)
        try:
            disk.load(tmp_path / "saved")
        except errors.SchemaError:
            assert number
        else:
            assert dict(leaves(disk[0].info)) == {"v\u00e9": 1.0, "v\u00e8": 2.0}
        disk.close()


def test_a_reset_outlives_a_kill(tmp_path):
    child = started(RESET, tmp_path / "replay")
    with child.stdin, child.stdout:
        assert child.stdout.readline() == "reset\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    name, options = KINDS["vector of frames"]
    disk = make(name, {"path": tmp_path / "replay"}, **options)
    assert len(disk) == 0
    disk.close()


def test_a_copy_of_a_buffer_inside_is_tianshous_own(tmp_path):
    disk, plays = make("VectorReplayBuffer", {"path": tmp_path / "replay"}), player("vector")
    for _ in range(9):
        plays.step(disk)
    sizes = [len(part) for part in disk.buffers]
    for copied in (copy.deepcopy(disk.buffers[0]), pickle.loads(pickle.dumps(disk.buffers[0]))):
        assert type(copied) is tianshou.data.ReplayBuffer
        alike(copied[:], disk.buffers[0][:])
        copied.reset()
    assert [len(part) for part in disk.buffers] == sizes
    disk.close()
    disk = make("VectorReplayBuffer", {"path": tmp_path / "replay"})
    assert [len(part) for part in disk.buffers] == sizes
    disk.close()


def test_whatever_reads_stores_understands_it(tmp_path):
    disk, plays = make("VectorReplayBuffer", {"path": tmp_path / "replay"}), player("vector")
    for _ in range(15):
        plays.step(disk)
    rewards = sorted(disk[:].rew.astype(np.float32).tolist())
    disk.close()
    with diskreplay.open(tmp_path / "replay") as reader:
        assert reader.num_envs == ENVS
        assert reader.observation_space.shape == (34, 34)
        first, count = reader.bounds.T
        rows = np.concatenate(
            [np.arange(f, c) * 3 + e for e, (f, c) in enumerate(zip(first, count, strict=True))]
        )
        found = set(reader.take("reward", rows).tolist())
        assert found == set(rewards)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pickle": "never"}, errors.InvalidInputError, "pickle"),
        ({"compressor": {"frames": "lz4"}}, errors.InvalidInputError, "'frames' is no array"),
        ({"stack": {"obs_next": 2}}, errors.InvalidInputError, "'obs_next' is no array of obs"),
        ({"compressor": None}, errors.InvalidInputError, "compressor"),
        ({"compressor": ["lz4"]}, errors.InvalidInputError, "compressor"),
        ({"compressor": {"obs": "lz4", 1: "raw", 2: "raw"}}, errors.InvalidInputError, "1 is no"),
        (
            {"compressor": {"obs": "lz4", "obs_next": "raw"}, "next_of": True},
            errors.InvalidInputError,
            "obs_next and obs|obs and obs_next",
        ),
        ({"stack": {"obs": 5}}, errors.InvalidInputError, "'obs' of shape .* cannot be 5 frames"),
        ({"stack": 5}, errors.InvalidInputError, r"a dict says which .* there are \['obs'\]"),
        ({"stack": 0}, errors.InvalidInputError, "stack"),
        ({"next_of": {"obs_next": "obs"}}, errors.InvalidInputError, "next_of: False or True"),
        ({"next_of": "no"}, errors.InvalidInputError, "next_of: False or True"),
    ],
)
def test_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        player("plain").step(make("ReplayBuffer", options))


def test_frames_that_cannot_be_shared_are_named_as_they_are_given():
    """Not as the store has them, which has an `observation` for `obs`."""
    step = {"act": 0, "rew": 0.0, "terminated": False, "truncated": False, "info": {}}
    camera, radar = np.zeros((4, 20, 20), np.uint8), np.zeros((7, 300))
    seen = {"camera": camera, "radar": radar}
    buffer = ours.DiskReplayBuffer(20, stack=4)
    with pytest.raises(errors.InvalidInputError, match=r"'obs/radar' of shape \(7, 300\)"):
        buffer.add(Batch(obs=seen, obs_next=seen, **step))
    assert len(buffer) == 0
    buffer = ours.DiskReplayBuffer(20, stack={"obs/camera": 4})
    buffer.add(Batch(obs=seen, obs_next=seen, **step))
    assert buffer.disk.stack == {"observation/camera": 4, "obs_next/camera": 4}
    buffer.close()
    buffer = ours.DiskReplayBuffer(20, next_of=True)
    with pytest.raises(errors.InvalidInputError, match=r"'obs_next' is .* and 'obs' is"):
        buffer.add(Batch(obs=camera, obs_next=radar, **step))


def test_a_path_with_something_else_is_refused(tmp_path):
    from gymnasium.spaces import Box, Discrete

    diskreplay.ReplayBuffer(
        tmp_path / "other", observation_space=Box(0, 1, (2,)), action_space=Discrete(2), capacity=9
    ).close()
    diskreplay.Slots(tmp_path / "slots", {"a": ((), "int8")}, 20).close()
    for name in ("other", "slots"):
        with pytest.raises(errors.SchemaError, match="Tianshou"):
            make("ReplayBuffer", {"path": tmp_path / name})
    disk = make("ReplayBuffer", {"path": tmp_path / "mine"})
    player("plain").step(disk)
    with pytest.raises(errors.LockedError):
        make("ReplayBuffer", {"path": tmp_path / "mine"})
    disk.close()
    with pytest.raises(errors.SchemaError, match="slots are"):
        ours.DiskReplayBuffer(21, path=tmp_path / "mine")


def step(number, ends=False):
    frame = np.full((32, 32), number, np.uint8)
    return Batch(obs=frame, act=0, rew=0.0, terminated=ends, truncated=False, info={})


def test_indices_from_the_end_give_what_the_original_gives():
    plain = tianshou.data.ReplayBuffer(10, stack_num=4, ignore_obs_next=True)
    disk = ours.DiskReplayBuffer(10, stack_num=4, ignore_obs_next=True)
    with contextlib.closing(disk):
        for number in range(20):
            for buffer in (plain, disk):
                buffer.add(step(number, number in (13, 16)))
        for index in [*([at] for at in range(-10, 10)), [-4, 6, -1, 2], np.array([-5, 5])]:
            found, wanted = disk[index], plain[index]
            np.testing.assert_array_equal(found.obs, wanted.obs)
            np.testing.assert_array_equal(found.obs_next, wanted.obs_next)


def test_arrays_on_disk_have_what_arrays_have_that_reads():
    plain, disk = tianshou.data.ReplayBuffer(10), ours.DiskReplayBuffer(10)
    with contextlib.closing(disk):
        for number in range(5):
            for buffer in (plain, disk):
                buffer.add(step(number))
        assert isinstance(disk.obs, SlotView)
        for name in ("mean", "max", "sum", "flatten", "tolist", "argmax"):
            np.testing.assert_array_equal(getattr(disk.obs, name)(), getattr(plain.obs, name)())
        assert disk.obs[:3].max() == 2
        assert disk.obs.itemsize == plain.obs.itemsize
        for name in ("fill", "flat", "T", "ravel"):  # what is written to them would be lost
            with pytest.raises(AttributeError, match=name):
                getattr(disk.obs, name)


def test_one_in_memory_takes_transitions_of_one_on_disk_one_by_one():
    """As docs/tianshou.md says."""
    memory = tianshou.data.ReplayBuffer(20)
    with contextlib.closing(ours.DiskReplayBuffer(10)) as disk:
        for number in range(5):
            disk.add(step(number))
        for index in disk.sample_indices(0):
            memory.add(disk[index])
        assert len(memory) == 5
        np.testing.assert_array_equal(memory.obs[:5], disk.obs[:5])
