"""Tianshou's replay buffers on disk beside its own: the same batches, killed, reopened, pickled."""

import copy
import os
import pickle
import signal
import subprocess
import sys
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
from diskreplay.integrations.disk_batch import leaves
from diskreplay.slot_view import SlotView

ATARI = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
ENVS = 3


def reached(achieved, desired):
    return -(np.abs(achieved - desired).sum(-1) > 0.5).astype(np.float64)


GOALS = {"compute_reward_fn": reached, "horizon": 12, "future_k": 4}


class Player:
    """Plays the same steps into any number of buffers."""

    def __init__(self, seed=0, *, goals=False, stack=False, envs=ENVS):
        self.rng, self.goals, self.stack, self.envs = (
            np.random.default_rng(seed),
            goals,
            stack,
            envs,
        )
        self.seen = [self.observation() for _ in range(envs)]
        self.length = np.zeros(envs, int)

    def observation(self):
        picture = self.rng.integers(0, 256, (34, 34), np.uint8)
        if self.stack:
            return np.stack([picture // 2, picture])
        if self.goals:
            return {
                "observation": picture, "achieved_goal": self.rng.integers(0, 3, 2).astype(float),
                "desired_goal": self.rng.integers(0, 3, 2).astype(float),
            }  # fmt: skip
        return picture

    def step(self, *buffers):
        led = [self.observation() for _ in range(self.envs)]
        self.length += 1
        done = (self.rng.random(self.envs) < 0.15) | (self.length == 10)
        cut = done & (self.rng.random(self.envs) < 0.5)
        ids = np.flatnonzero(self.rng.random(self.envs) < 0.9) if self.envs > 1 else np.arange(1)
        values = {
            "obs": self.seen, "act": self.rng.integers(0, 4, self.envs), "obs_next": led,
            "rew": self.rng.normal(size=self.envs), "terminated": done & ~cut, "truncated": cut,
            "info": [{"time": float(n)} for n in self.length],
        }  # fmt: skip
        batch = Batch({name: self.chosen(value, ids) for name, value in values.items()})
        results = []
        if len(ids):
            for buffer in buffers:
                if hasattr(buffer, "buffers"):
                    results.append(buffer.add(batch, buffer_ids=ids))
                else:
                    results.append(buffer.add(batch[0]))
        for at in ids:
            self.seen[at] = self.observation() if done[at] else led[at]
            self.length[at] *= not done[at]
        return results

    @staticmethod
    def chosen(value, ids):
        picked = [value[at] for at in ids]
        if picked and isinstance(picked[0], dict):
            return Batch.stack([Batch(each) for each in picked])
        return np.array(picked)


def alike(one, other):
    """Whether two batches are the same, bit for bit and type for type."""
    found, wanted = dict(leaves(one)), dict(leaves(other))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        assert type(found[path]) is type(value), path
        assert found[path].dtype == value.dtype, path
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def drawn(buffer, size, seed):
    np.random.seed(seed)  # noqa: NPY002 - what Tianshou draws by, beside its own generators
    return buffer.sample(size)


def compare(disk, plain, rng, sizes=(1, 7, 0)):
    assert len(disk) == len(plain)
    if not len(plain.sample_indices(0)):
        sizes = (0,)  # no transition has a whole stack
    for size in sizes:
        seed = int(rng.integers(2**31))
        (found, at), (wanted, there) = drawn(disk, size, seed), drawn(plain, size, seed)
        np.testing.assert_array_equal(at, there)
        alike(found, wanted)
        if hasattr(plain, "update_weight") and len(at):
            weights = rng.random(len(at))
            disk.update_weight(at, weights)
            plain.update_weight(at, weights)
    for ask in ("prev", "next") if len(plain) else ():
        at = rng.integers(0, max(len(plain), 1), 9)
        np.testing.assert_array_equal(getattr(disk, ask)(at), getattr(plain, ask)(at))
    np.testing.assert_array_equal(disk.unfinished_index(), plain.unfinished_index())
    if len(plain):
        for one in (0, [0]):
            alike(Batch(obs=disk.get(one, "obs")), Batch(obs=plain.get(one, "obs")))


def make(name, disk=None, **options):
    """One of Tianshou's own, or with options for the disk one of ours."""
    where, prefix = (tianshou.data, "") if disk is None else (ours, "Disk")
    kind, disk = getattr(where, prefix + name), disk or {}
    if name == "CachedReplayBuffer":
        return kind(tianshou.data.ReplayBuffer(50, **options), ENVS, 12, **disk)
    if "Vector" in name:
        return kind(60, ENVS, **options, **disk)
    return kind(20, **options, **disk)


KINDS = {
    "plain": ("ReplayBuffer", {}),
    "vector": ("VectorReplayBuffer", {}),
    "vector of frames": ("VectorReplayBuffer", ATARI),
    "vector of whole stacks": ("VectorReplayBuffer", {**ATARI, "sample_avail": True}),
    "prioritized": ("PrioritizedReplayBuffer", {"alpha": 0.6, "beta": 0.4, "stack_num": 2}),
    "prioritized vector": ("PrioritizedVectorReplayBuffer", {"alpha": 0.6, "beta": 0.4}),
    "prioritized vector of frames": (
        "PrioritizedVectorReplayBuffer", {"alpha": 0.7, "beta": 0.5, "weight_norm": False, **ATARI}
    ),
    "cached": ("CachedReplayBuffer", {"stack_num": 3}),
    "goals": ("HERReplayBuffer", GOALS),
    "vector of goals": ("HERVectorReplayBuffer", {**GOALS, "ignore_obs_next": True}),
}  # fmt: skip


def player(kind, seed=0):
    name, options = KINDS[kind]
    return Player(
        seed, goals="HER" in name, stack="save_only_last_obs" in options,
        envs=ENVS if "Vector" in name or "Cached" in name else 1,
    )  # fmt: skip


@pytest.mark.parametrize("min_bytes", [2, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_original(kind, min_bytes):
    name, options = KINDS[kind]
    plays, rng = player(kind), np.random.default_rng(1)
    disk, plain = make(name, {"min_bytes": min_bytes}, **options), make(name, **options)
    for step in range(75):
        results = plays.step(disk, plain)
        if results:
            for found, wanted in zip(*results, strict=True):
                np.testing.assert_array_equal(found, wanted)
        if step % 15 == 14:
            compare(disk, plain, rng)
    on_disk = [path for path, value in leaves(disk._meta) if isinstance(value, SlotView)]
    assert any(path.startswith("obs") for path in on_disk)
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
    name, options = KINDS[kind]
    plays = player(kind)
    disk, plain = make(name, {"path": tmp_path / "replay"}, **options), make(name, **options)
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
sys.path.insert(0, sys.argv[2])
from test_tianshou import KINDS, make, player

name, options = KINDS[sys.argv[3]]
plays, buffer = player(sys.argv[3]), make(name, {"path": sys.argv[1]}, **options)
while len(buffer) < 45 or sys.argv[3] != "cached":  # no transition leaves there
    plays.step(buffer)
    print("added", flush=True)
    buffer.sample(3)
input()
"""


@pytest.mark.parametrize("kind", ["plain", "vector of frames", "cached"])
def test_what_was_added_outlives_a_kill(tmp_path, kind):
    name, options = KINDS[kind]
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "replay", os.path.dirname(__file__), kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
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
        plain = next(each for each in twins if each[:].rew.tolist() == disk[:].rew.tolist())
        alike(disk[:], plain[:])
        np.testing.assert_array_equal(disk.last_index, plain.last_index)
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


@pytest.mark.parametrize("where", ["temporary", "reference", "embed"])
@pytest.mark.parametrize("kind", ["plain", "vector of frames", "prioritized vector", "cached"])
def test_pickles_go_on_where_they_were(tmp_path, kind, where):
    name, options = KINDS[kind]
    plays = player(kind)
    options_of_disk = {}
    if where != "temporary":
        options_of_disk = {"path": tmp_path / "replay", "pickle": where}
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


@pytest.mark.parametrize("kind", ["plain", "vector of frames", "prioritized vector"])
def test_a_checkpoint_has_all_that_is_drawn_by(tmp_path, kind):
    name, options = KINDS[kind]
    plays = player(kind)
    disk = make(name, {"path": tmp_path / "replay"}, **options)
    for _ in range(30):
        plays.step(disk)
    drawn(disk, 5, 0)
    disk.save(tmp_path / "saved", 7, attachments={"note": b"seven"})
    before, later = copy.deepcopy(plays), [drawn(disk, 6, 3)]
    for _ in range(10):
        plays.step(disk)
        later.append(drawn(disk, 6, 4))
    disk.close()
    again = make(name, {"path": tmp_path / "other"}, **options)
    found = again.load(tmp_path / "saved")
    assert found.attachments["note"].read_bytes() == b"seven"
    batches = [drawn(again, 6, 3)]
    for _ in range(10):
        before.step(again)
        batches.append(drawn(again, 6, 4))
    for (one, at), (other, there) in zip(batches, later, strict=True):
        np.testing.assert_array_equal(at, there)
        alike(one, other)
    again.close()


def test_a_run_is_saved_with_its_network(tmp_path):
    torch = pytest.importorskip("torch")
    from diskreplay.integrations.run_state import RunState

    disk, plays = make("ReplayBuffer", {"path": tmp_path / "replay"}), player("plain")
    for _ in range(15):
        plays.step(disk)
    net = torch.nn.Linear(2, 2)
    run = RunState(disk, tmp_path / "saved", modules={"net": net})
    run.save(15, loss=0.5)
    wanted, weight = disk[:], net.weight.detach().clone()
    # The environment begins anew, so the episode under way is over.
    last = disk.unfinished_index()
    wanted.truncated[last], wanted.done[last] = True, True
    for _ in range(9):
        plays.step(disk)
    torch.nn.init.zeros_(net.weight)
    assert run.load() == (15, {"loss": 0.5})
    alike(disk[:], wanted)
    assert (net.weight == weight).all()
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
    ],
)
def test_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        player("plain").step(make("ReplayBuffer", options))


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
