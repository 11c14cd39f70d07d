"""What a replay buffer on disk has to do beside: open late, survive, be pickled by reference."""

import contextlib
import copy
import os
import pickle
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.integrations.sb3 import (
    DiskHerReplayBuffer,
    DiskNStepReplayBuffer,
    DiskReplayBuffer,
)
from tests import processes

STACKS = spaces.Box(0, 255, (3, 6, 6), np.uint8)
VECTOR = spaces.Box(-1, 1, (5,), np.float32)
TWO = spaces.Discrete(2)


class Player:
    """Plays the same steps into any number of buffers: stacks of three noisy pictures."""

    def __init__(self, envs=2, seed=0, padding="zero"):
        self.rng, self.envs, self.padding = np.random.default_rng(seed), envs, padding
        self.stacks = np.zeros((envs, 3, 6, 6), np.uint8)
        for env in range(envs):
            self.reset(env)

    def picture(self):
        return self.rng.integers(1, 256, (6, 6), np.uint8)

    def reset(self, env):
        picture = self.picture()
        self.stacks[env] = picture if self.padding == "reset" else 0
        self.stacks[env, -1] = picture

    def step(self, *buffers, end=0.15):
        before = self.stacks.copy()
        after = np.concatenate(
            [before[:, 1:], np.stack([self.picture() for _ in range(self.envs)])[:, None]], axis=1
        )
        done = self.rng.random(self.envs) < end
        cut = done & (self.rng.random(self.envs) < 0.5)
        action = self.rng.integers(0, 2, (self.envs, 1))
        reward = self.rng.normal(size=self.envs).astype(np.float32)
        infos = [{"TimeLimit.truncated": bool(c)} for c in cut]
        for buffer in buffers:
            buffer.add(before, after.copy(), action, reward, done, infos)
        self.stacks = after
        for env in np.flatnonzero(done):
            self.reset(env)

    def play(self, steps, *buffers, **how):
        for _ in range(steps):
            self.step(*buffers, **how)


def ours(path=None, kind=DiskReplayBuffer, size=40, **options):
    options = {"frame_stack": 3, **options}
    return kind(size, STACKS, TWO, device="cpu", n_envs=2, path=path, **options)


def plain(size=40, envs=2):
    return ReplayBuffer(size, STACKS, TWO, device="cpu", n_envs=envs)


def same(one, other, slots=slice(None)):
    assert (one.pos, one.full) == (other.pos, other.full)
    for name in (
        "observations", "next_observations", "actions", "rewards", "dones", "timeouts",
    ):  # fmt: skip
        wanted, found = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert wanted.dtype == found.dtype
        np.testing.assert_array_equal(wanted[slots], found[slots], err_msg=name)


# -- each frame once


@pytest.mark.parametrize("padding", ["zero", "reset"])
@pytest.mark.parametrize("declared", [True, False])
def test_stacks_are_made_of_single_frames(tmp_path, padding, declared):
    player, model = Player(padding=padding), plain()
    options = {"stack_padding": padding} if declared else {}
    buffer = ours(tmp_path / "r", **options)
    for _ in range(9):
        player.play(7, model, buffer)
        same(model, buffer)
        player.reset(1)  # in the middle of an episode
    assert buffer.disk.stack_padding == padding
    assert buffer.disk.fields["observation"] == ((6, 6), np.uint8)
    retained = np.diff(buffer.disk.bounds)
    assert (retained <= 2 * 20 + 10).all()
    np.random.seed(0)  # noqa: NPY002 - what SB3 draws from
    wanted = model.sample(64)
    np.random.seed(0)  # noqa: NPY002
    for a, b in zip(wanted, buffer.sample(64), strict=True):
        assert (a is None and b is None) or (a.dtype == b.dtype and (a == b).all())


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_sample_reads_both_observations_in_one_call(tmp_path, monkeypatch, compressor):
    player, buffer = Player(), ours(tmp_path / "r", compressor=compressor)
    player.play(30, buffer)
    taken = []

    def noted(call):
        def note(self, field, ids, *rest, **options):
            taken.append((call.__name__, field, np.shape(ids)))
            return call(self, field, ids, *rest, **options)

        return note

    for name in ("take", "take_both"):
        call = getattr(diskreplay.ReplayBuffer, name)
        monkeypatch.setattr(diskreplay.ReplayBuffer, name, noted(call))
    buffer.sample(16)
    assert taken == [("take_both", "observation", (16, 3 + 1))]
    buffer.observations[2, 1], buffer.next_observations[2, 1]
    assert taken[1:] == 2 * [("take", "observation", (1, 3))]  # nothing is kept for later


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
@pytest.mark.parametrize("padding", ["zero", "reset"])
def test_tensors_of_a_sample_are_the_arrays_in_memory_of_their_own(tmp_path, compressor, padding):
    player, buffer = Player(padding=padding), ours(tmp_path / "r", compressor=compressor)
    for turn in range(12):
        player.play(5, buffer)
        if turn % 3 == 2:  # terminated, and nobody knows what it led to
            done, infos = np.array([True, False]), [{}, {}]
            before, after = player.stacks.copy(), np.concatenate(
                [player.stacks[:, 1:], player.stacks[:, -1:]], axis=1
            )  # fmt: skip
            after[0] = player.picture()
            buffer.add(before, after, np.zeros((2, 1), np.int64), np.zeros(2), done, infos)
            player.stacks = after
            player.reset(0)
        slots = np.repeat(np.arange(buffer.size()), 8)
        np.random.seed(turn)  # noqa: NPY002
        found = buffer._get_samples(slots)
        np.random.seed(turn)  # noqa: NPY002
        envs = np.random.randint(0, high=2, size=(len(slots),))  # noqa: NPY002
        wanted = buffer.observations[slots, envs], buffer.next_observations[slots, envs]
        for tensor, array in zip(
            (found.observations, found.next_observations), wanted, strict=True
        ):
            assert tensor.is_contiguous()
            np.testing.assert_array_equal(tensor.numpy(), array)
        found.observations.zero_()
        np.testing.assert_array_equal(found.next_observations.numpy(), wanted[1])


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_one_env_draws_as_several_do(tmp_path, compressor):
    both = spaces.Box(0, 255, (2, 3, 3), np.uint8), TWO
    model = ReplayBuffer(30, *both, device="cpu")
    buffer = DiskReplayBuffer(
        30, *both, device="cpu", path=tmp_path / "r", frame_stack=2, compressor=compressor
    )
    rng, stack = np.random.default_rng(0), np.zeros((1, 2, 3, 3), np.uint8)
    for step in range(70):
        after = np.concatenate([stack[:, 1:], rng.integers(0, 256, (1, 1, 3, 3), np.uint8)], 1)
        ends = step % 9 == 8
        row = np.array([[step % 2]]), np.array([step], np.float32), np.array([ends])
        infos = [{"TimeLimit.truncated": step % 18 == 8}]
        for each in (model, buffer):
            each.add(stack, after, *row, infos)
        stack = np.zeros_like(stack) if ends else after
        found = []
        for each in (model, buffer):
            np.random.seed(step)  # noqa: NPY002 - what SB3 draws from
            found.append([*each.sample(16), *each.sample(5), np.random.random()])  # noqa: NPY002
        for one, other in zip(*found, strict=True):
            if torch.is_tensor(one):
                assert one.dtype == other.dtype
                assert one.shape == other.shape
                assert (one == other).all()
            else:
                assert one == other  # no discounts, and what is drawn next


def test_tensors_of_a_sample_are_no_parts_of_each_other(tmp_path):
    buffer = DiskReplayBuffer(40, VECTOR, TWO, device="cpu", path=tmp_path / "r")
    for step in range(5):
        seen = np.full((1, 5), step, np.float32)
        buffer.add(seen, seen + 1, np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])
    found, weights = buffer.sample(8), torch.ones(5, 1, requires_grad=True)
    loss = (found.observations @ weights).sum()
    found.next_observations.mul_(2)  # `found.observations` is as it was: autograd knows that
    loss.backward()
    found.observations.mul_(weights.T)
    assert found.observations.requires_grad


def test_a_device_may_be_its_name_and_slots_a_list(tmp_path):
    player, buffer = Player(), ours(tmp_path / "r")
    player.play(12, buffer)
    slots, found = [3, 1, 4], []
    for name, asked in ((buffer.device, np.array(slots)), ("cpu", slots)):
        buffer.device = name
        np.random.seed(3)  # noqa: NPY002
        found.append(buffer._get_samples(asked))
    for one, other in zip(*found, strict=True):
        assert one is other is None or (one == other).all()


def test_a_store_at_a_mount_point_is_copied_and_pickled(tmp_path, monkeypatch):
    player, buffer = Player(), ours(tmp_path / "volume", pickle="embed")
    player.play(12, buffer)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "volume")
    still = copy.deepcopy(buffer)
    assert (still.observations[:12] == buffer.observations[:12]).all()
    still.close()
    assert pickle.dumps(buffer)


def test_a_subclass_that_makes_other_tensors_is_asked(tmp_path):
    class Doubled(DiskReplayBuffer):
        def to_torch(self, array, copy=True):
            return super().to_torch(array, copy) * 2

    player, buffer, model = Player(), ours(kind=Doubled), ours()
    player.play(12, buffer, model)
    drawn = []
    for each in (model, buffer):
        np.random.seed(3)  # noqa: NPY002
        drawn.append(each.sample(16))
    assert (drawn[1].rewards == 2 * drawn[0].rewards).all()
    assert (drawn[1].observations == 2 * drawn[0].observations).all()


def test_frames_may_be_along_the_last_axis(tmp_path):
    space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    model = ReplayBuffer(30, space, TWO, device="cpu")
    buffer = DiskReplayBuffer(30, space, TWO, device="cpu", frame_stack=3)
    player = Player(envs=1)

    class Turned:
        def add(self, obs, next_obs, *rest):
            for each in (model, buffer):
                each.add(np.moveaxis(obs, 1, -1), np.moveaxis(next_obs, 1, -1), *rest)

    player.play(50, Turned())
    same(model, buffer)
    assert buffer.disk.fields["observation"] == ((6, 6), np.uint8)


def test_indexing_is_as_an_arrays(tmp_path):
    player, model, buffer = Player(), plain(), ours()
    player.play(15, model, buffer)
    rng = np.random.default_rng(1)
    slots, envs = rng.integers(-20, 20, 9), rng.integers(-2, 2, 9)
    keys = [
        3, -2, slice(2, 9), slice(None, None, 3), Ellipsis, (4, 1), (slice(3, 6), 1),
        (slice(3, 6), slice(None), 1), (slots, envs), (slots, envs, slice(None)), (slots, 1),
        (slots,), (slots[:, None], envs[None]), (3, envs), (slots, envs, 2, slice(1, 3)),
        (slice(0, 0),), (np.arange(20) % 3 == 0), (..., 0), ([1, 2], [0, 1]),
    ]  # fmt: skip
    for name in ("observations", "next_observations"):
        wanted, found = getattr(model, name), getattr(buffer, name)
        assert (wanted.shape, wanted.dtype, len(wanted)) == (found.shape, found.dtype, len(found))
        assert (wanted.nbytes, wanted.ndim, wanted.size) == (found.nbytes, found.ndim, found.size)
        for key in keys:
            np.testing.assert_array_equal(wanted[key], found[key], err_msg=str(key))
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(one, other)
        for wrong in (20, (0, 2), (slots + 30, envs)):
            with pytest.raises(IndexError):
                found[wrong]
        with pytest.raises(errors.InvalidInputError, match="use `add`"):
            found[0] = 1


def test_a_stack_that_does_not_slide_is_refused_and_nothing_lost(tmp_path):
    player, model, buffer = Player(), plain(), ours(tmp_path / "r")
    player.play(5, model, buffer)
    stacks, none, info = player.stacks.copy(), np.zeros(2), [{}, {}]
    wrong = np.roll(stacks, 1, axis=2)
    with pytest.raises(errors.InvalidInputError, match="frame_stack=1"):
        buffer.add(stacks, wrong, none, none, none, info)
    after = np.concatenate([stacks[:, 1:], stacks[:, :1]], axis=1)
    with pytest.raises(errors.NotFiniteError):
        buffer.add(stacks, after, none, none + np.nan, none, info)
    same(model, buffer)
    player.play(30, model, buffer)
    same(model, buffer)


def test_episodes_may_begin_with_any_stack_but_not_all(tmp_path):
    """After `reset`, or in an environment that was restored, the older frames are known."""
    player, model, buffer = Player(), plain(200), ours(tmp_path / "r", size=200)
    player.play(8, model, buffer)
    for _ in range(3):
        player.stacks[1] = player.rng.integers(1, 256, (3, 6, 6))
        player.play(8, model, buffer, end=0.05)
        same(model, buffer)
    buffer.close()
    assert verify(tmp_path / "r").findings == ()
    again = ours(tmp_path / "r", size=200)
    same(model, again)
    ids = again.disk.sampleable_ids()
    rows, envs = np.divmod(ids, 2)
    batch = again.disk.gather(ids)
    for slot in range(again.pos):  # and natively, too
        for env in range(2):
            at = np.flatnonzero((again._ring.rows[slot, env] == rows) & (envs == env))
            np.testing.assert_array_equal(batch.observation[at[0]], model.observations[slot, env])
    wrong = ours(tmp_path / "w", size=200, stack_padding="zero")
    with pytest.raises(errors.InvalidInputError, match="stack_padding"):
        Player(padding="reset").play(200, wrong)


def test_the_next_episodes_stack_after_a_termination_is_not_stored(tmp_path):
    player, buffer = Player(), ours(tmp_path / "r")
    player.play(3, buffer, end=0)
    before = player.stacks.copy()
    player.reset(0)
    player.reset(1)
    zeros = np.zeros(2)
    buffer.add(before, player.stacks.copy(), zeros, zeros, np.ones(2), {})
    np.testing.assert_array_equal(buffer.observations[3], before)
    assert not buffer.next_observations[3].any()
    player.play(3, buffer, end=0)
    assert buffer.disk.take("is_final", np.arange(14)).sum() == 0


# -- opening


def test_nothing_is_made_before_it_is_needed(tmp_path):
    buffer = ours(tmp_path / "r")
    assert (buffer.pos, buffer.full, buffer.size(), buffer.disk) == (0, False, 0, None)
    assert not np.asarray(buffer.observations).any()
    buffer.reset()
    with pytest.raises(ValueError, match="high"):
        buffer.sample(4)
    pickle.loads(pickle.dumps(buffer))
    copy.deepcopy(buffer).close()
    buffer.close()
    assert list(tmp_path.iterdir()) == []


def test_one_for_evaluation_beside_the_run(tmp_path):
    player, buffer = Player(), ours(tmp_path / "r")
    player.play(10, buffer)
    code = f"""
import numpy as np
from gymnasium import spaces
from diskreplay import errors
from diskreplay.integrations.sb3 import DiskReplayBuffer
space = spaces.Box(0, 255, (3, 6, 6), np.uint8)
buffer = DiskReplayBuffer(40, space, spaces.Discrete(2), n_envs=2, path={str(tmp_path / "r")!r},
                          frame_stack=3)
print("made")
try:
    buffer.pos
except errors.LockedError:
    print("locked")
"""
    run = processes.run(code, check=True, imports=["torch"])
    assert run.stdout.split() == ["made", "locked"]
    player.play(3, buffer)
    assert buffer.pos == 13


def test_a_path_that_holds_something_else(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("full", "file"):
        with pytest.raises(errors.FormatError, match="something else"):
            ours(tmp_path / name)
    (tmp_path / "empty").mkdir()
    ours(tmp_path / "empty")
    player, buffer = Player(), ours(tmp_path / "r")
    player.play(3, buffer)
    buffer.close()
    with pytest.raises(errors.SchemaError, match="observation"):
        ours(tmp_path / "r", frame_stack=1)
    with pytest.raises(errors.SchemaError, match="stack_padding"):
        ours(tmp_path / "r", stack_padding="reset").size()


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame_stack": 0}, {"frame_stack": 4}, {"frame_stack": 1.5}, {"frame_stack": {"x": 2}},
        {"frame_axis": 1}, {"pickle": "all"}, {"stack_padding": "edge"}, {"prefetch": -1},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_make_no_sense(tmp_path, wrong):
    with pytest.raises(errors.InvalidInputError, match=next(iter(wrong))):
        ours(tmp_path / "r", **wrong)


def play_and_die(path, steps):
    player, buffer = Player(), ours(path)
    player.play(steps, buffer, end=0.05)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("steps", [1, 17, 90])
def test_a_killed_run_has_all_but_the_newest_transitions(tmp_path, steps):
    child = os.fork()
    if child == 0:
        play_and_die(tmp_path / "r", steps)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    player, model = Player(), plain()
    player.play(steps, model, end=0.05)
    buffer = ours(tmp_path / "r")
    kept = min(steps - 1, 20)  # the ring's newest slot is one step older
    assert buffer.size() >= min(kept, 20)
    slots = (model.pos - 2 - np.arange(kept - 1)) % 20
    found = (buffer.pos - 1 - np.arange(kept - 1)) % 20
    if buffer.pos == model.pos:  # both episodes had just ended
        slots = (model.pos - 1 - np.arange(kept - 1)) % 20
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(
            np.asarray(getattr(model, name))[slots], np.asarray(getattr(buffer, name))[found]
        )
    player.play(25, model, buffer, end=0.05)
    buffer.close()


def test_a_run_that_goes_on_after_a_close_is_as_one_that_was_not_closed(tmp_path):
    player, model, buffer = Player(), plain(), ours(tmp_path / "r")
    for _ in range(6):
        player.play(11, model, buffer)
        buffer.close()
        same(model, buffer)
        buffer.close()
        buffer = ours(tmp_path / "r")
        for env in range(2):
            player.reset(env)
    same(model, buffer)


def test_reset_forgets_the_rows_on_disk(tmp_path):
    player, model, buffer = Player(), plain(), ours(tmp_path / "r")
    player.play(30, buffer)
    buffer.reset()
    assert (buffer.size(), len(buffer.disk), buffer.disk.add_count) == (0, 0, 0)
    player.play(9, model, buffer)
    same(model, buffer, slice(0, 9))


# -- pickles and copies


@pytest.mark.parametrize("embed", [True, False])
def test_a_pickle_goes_back_to_its_rows(tmp_path, embed):
    player, model = Player(), plain()
    buffer = ours(tmp_path / "r", pickle="embed" if embed else "reference")
    player.play(33, model, buffer)
    stacks = player.stacks.copy()
    model.dones[3, 1] = buffer.dones[3, 1] = 1  # what a framework changes in memory
    data = pickle.dumps(buffer)
    assert embed or len(data) < 4000
    player.play(30, buffer)
    again = pickle.loads(data)
    same(model, again)
    with pytest.raises(errors.UsageError, match="another replay buffer"):
        buffer.sample(4)
    player.stacks = stacks  # its environments go on where they were
    player.play(25, model, again)
    same(model, again)
    again.close()


def test_without_a_path_a_pickle_has_all_rows(tmp_path):
    player, model, buffer = Player(), plain(), ours()
    player.play(33, model, buffer)
    data = pickle.dumps(buffer)
    buffer.close()
    again = pickle.loads(data)
    same(model, again)
    player.play(25, model, again)
    same(model, again)


def test_a_pickle_in_another_process(tmp_path):
    player, model, buffer = Player(), plain(), ours(tmp_path / "r")
    player.play(33, model, buffer)
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(buffer))
    player.play(7, buffer)
    buffer.close()
    code = f"""
import pickle, numpy as np
buffer = pickle.loads(open({str(tmp_path / "buffer.pkl")!r}, "rb").read())
np.savez({str(tmp_path / "seen.npz")!r}, **{{
    name: np.asarray(getattr(buffer, name))
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "pos")}})
"""
    processes.run(code, check=True, cwd=tmp_path, imports=["torch"])
    with np.load(tmp_path / "seen.npz") as seen:
        for name in seen:
            np.testing.assert_array_equal(np.asarray(getattr(model, name)), seen[name])


def test_a_pruned_checkpoint_is_said_to_be_one(tmp_path):
    player, buffer = Player(), ours(tmp_path / "r", keep=2)
    player.play(5, buffer)
    pickles = [pickle.dumps(buffer) for _ in range(3)]
    assert len(diskreplay.checkpoints(tmp_path / "r.checkpoints")) == 2
    with pytest.raises(errors.CheckpointNotFoundError, match="keep=2"):
        pickle.loads(pickles[0])
    player.play(2, buffer)
    assert pickle.loads(pickles[2]).pos == 5


@pytest.mark.parametrize("replaced", ["before", "after"])
def test_a_checkpoint_that_is_replaced_as_its_pickle_is_loaded(tmp_path, monkeypatch, replaced):
    """Rows, actions and rewards are of one of the two."""
    player, buffer, models = Player(), ours(tmp_path / "r"), {"before": plain(), "after": plain()}
    player.play(33, buffer, *models.values())
    data = pickle.dumps(buffer)
    [made] = diskreplay.checkpoints(tmp_path / "r.checkpoints")
    player.play(9, buffer, models["before"])
    later = buffer._save(buffer._ring, tmp_path / "later", 1, None)

    def amid(buffer, *arguments, **options):
        monkeypatch.undo()
        if replaced == "after":
            found = load(buffer, *arguments, **options)
        shutil.rmtree(made.path)
        shutil.copytree(later, made.path)
        return found if replaced == "after" else load(buffer, *arguments, **options)

    load = diskreplay.ReplayBuffer.load
    monkeypatch.setattr(diskreplay.ReplayBuffer, "load", amid)
    same(models[replaced], pickle.loads(data))


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_copy_stays_as_it_was_and_is_only_read(tmp_path, on_disk):
    player, model, buffer = Player(), plain(), ours(tmp_path / "r" if on_disk else None)
    player.play(33, model, buffer)
    still = copy.deepcopy(buffer)
    player.play(30, buffer)
    same(model, still)
    with pytest.raises(errors.ReadOnlyError, match="copy"):
        player.play(1, still)
    if on_disk:
        assert len(list(tmp_path.iterdir())) == 2
    buffer.close()
    del buffer
    same(model, still)
    still.close()
    assert [path.name for path in tmp_path.iterdir()] == ["r"] * on_disk


def test_n_steps_are_drawn_as_by_the_original(tmp_path):
    from stable_baselines3.common.buffers import NStepReplayBuffer

    model = NStepReplayBuffer(40, STACKS, TWO, device="cpu", n_envs=2, n_steps=4, gamma=0.9)
    buffer = ours(tmp_path / "r", DiskNStepReplayBuffer, n_steps=4, gamma=0.9)
    player = Player()
    for _ in range(4):
        player.play(13, model, buffer)
        np.random.seed(5)  # noqa: NPY002
        wanted = model.sample(50)
        np.random.seed(5)  # noqa: NPY002
        for a, b in zip(wanted, buffer.sample(50), strict=True):
            assert (a == b).all()


# -- values of all kinds


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "float32", "float64"])
def test_observations_of_any_type(tmp_path, dtype):
    space = spaces.Box(0, 100, (2, 3), dtype)
    model = ReplayBuffer(20, space, TWO, device="cpu")
    buffer = DiskReplayBuffer(20, space, TWO, device="cpu", path=tmp_path / "r")
    rng, seen = np.random.default_rng(0), np.zeros((1, 2, 3), dtype)
    for step in range(50):
        led = (rng.random((1, 2, 3)) * 99).astype(dtype)
        if np.dtype(dtype).kind == "f" and step % 5 == 0:
            led[0, 0, 0] = np.nan  # equal to itself, bit for bit
        for each in (model, buffer):
            each.add(seen, led, np.array([step % 2]), np.ones(1), np.array([step % 7 == 6]), [{}])
        seen = led
    same(model, buffer)
    assert np.diff(buffer.disk.bounds).item() <= 20 + 4 + 20 // 16 + 2
    # Each observation once: those of finished episodes have a final row.
    assert buffer.disk.take("is_final", np.arange(*buffer.disk.bounds[0])).sum() <= 4


@pytest.mark.costly(19)
@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(7), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(5), VECTOR,
     spaces.Dict({"a": VECTOR}), spaces.Dict({"a": STACKS}),
     spaces.Dict({"a": spaces.Discrete(5), "b": VECTOR, "c": STACKS})],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("action", [TWO, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3),
                                    spaces.Box(-2, 2, (2, 2), np.float64)],
                         ids=lambda space: type(space).__name__)  # fmt: skip
def test_spaces(tmp_path, space, action, n_envs):
    from stable_baselines3.common.buffers import DictReplayBuffer

    named = isinstance(space, spaces.Dict)
    model = (DictReplayBuffer if named else ReplayBuffer)(20, space, action, "cpu", n_envs=n_envs)
    buffer = DiskReplayBuffer(20, space, action, "cpu", n_envs=n_envs, path=tmp_path / "r")
    space.seed(0)
    action.seed(0)

    def observe():
        them = [space.sample() for _ in range(n_envs)]
        if named:
            return {key: np.stack([one[key] for one in them]) for key in them[0]}
        return np.stack(them)

    seen = observe()
    for step in range(25):
        led, did = observe(), np.stack([action.sample() for _ in range(n_envs)])
        for each in (model, buffer):
            each.add(
                copy.deepcopy(seen), copy.deepcopy(led), did, np.ones(n_envs),
                np.full(n_envs, step % 5 == 4),
                [{}, {"TimeLimit.truncated": step % 10 == 9}][-n_envs:],
            )  # fmt: skip
        seen = led
    for name in ("observations", "next_observations"):
        one, other = getattr(model, name), getattr(buffer, name)
        for key in one if named else [Ellipsis]:
            np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(other[key]))
    np.testing.assert_array_equal(model.actions, buffer.actions)
    assert model.actions.dtype == buffer.actions.dtype
    buffer.close()
    again = DiskReplayBuffer(20, space, action, "cpu", n_envs=n_envs, path=tmp_path / "r")
    assert again.pos == model.pos
    np.testing.assert_array_equal(model.actions, again.actions)
    again.close()
    with diskreplay.open(tmp_path / "r") as reader:
        assert reader.sample(4).reward.shape == (4,)


def test_the_disk_holds_a_store_like_any_other(tmp_path):
    player, buffer = Player(), ours(tmp_path / "r")
    player.play(30, buffer)
    assert isinstance(buffer.disk, diskreplay.ReplayBuffer)
    buffer.close()
    with diskreplay.open(Path(tmp_path / "r")) as reader:
        assert reader.stack_size == 3
        assert reader.sample(8).observation.shape == (8, 3, 6, 6)


# -- hindsight


class Goals:
    """What HER asks of environments."""

    def env_method(self, name, achieved, desired, infos, indices):
        assert name == "compute_reward"
        return [-(np.abs(achieved - desired).sum(axis=-1) > 0.5).astype(np.float32)]


def goals(kind, **options):
    names = "observation", "achieved_goal", "desired_goal"
    space = spaces.Dict({name: spaces.Box(-9, 9, (2,), np.float32) for name in names})
    return kind(60, space, TWO, Goals(), "cpu", n_envs=2, **options)


class GoalPlayer:
    """Plays the same steps into any number of buffers; an episode's end is the next one's start."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.seen = self.observe()

    def observe(self):
        return {
            name: self.rng.normal(size=(2, 2)).astype(np.float32)
            for name in ("observation", "achieved_goal", "desired_goal")
        }

    def play(self, steps, *buffers):
        for _ in range(steps):
            led, done = self.observe(), self.rng.random(2) < 0.2
            action = self.rng.integers(0, 2, (2, 1))
            for buffer in buffers:
                buffer.add(dict(self.seen), dict(led), action, -np.ones(2), done, [{}, {}])
            self.seen = led


def test_her_goes_on_after_pickles_and_reopenings(tmp_path):
    model, buffer = goals(HerReplayBuffer), goals(DiskHerReplayBuffer, path=tmp_path / "r")

    def check(ours):
        np.testing.assert_array_equal(model.ep_start, ours.ep_start)
        np.testing.assert_array_equal(model.ep_length, ours.ep_length)
        np.random.seed(3)  # noqa: NPY002
        wanted = model.sample(40)
        np.random.seed(3)  # noqa: NPY002
        found = ours.sample(40)
        for name in ("observations", "next_observations"):
            for key, value in getattr(wanted, name).items():
                assert (getattr(found, name)[key] == value).all()
        assert (wanted.rewards == found.rewards).all()

    player = GoalPlayer()
    player.play(50, model, buffer)
    check(buffer)
    again = pickle.loads(pickle.dumps(buffer))
    assert again.env is None
    again.set_env(Goals())
    check(again)
    still = copy.deepcopy(again)
    player.play(20, model, again)
    check(again)
    assert still.pos == 50 % 30
    for each in (model, again):
        each.dones[each.pos - 1] = 1
        for env in range(2):  # the last episodes are over, as they are after a reopening
            each._compute_episode_length(env)
    again.close()
    reopened = goals(DiskHerReplayBuffer, path=tmp_path / "r")
    assert reopened.pos == model.pos
    # Of an episode whose beginning was overwritten HER draws nothing; here what is there of it.
    whole = model.ep_length > 0
    np.testing.assert_array_equal(model.ep_length[whole], reopened.ep_length[whole])
    np.testing.assert_array_equal(model.ep_start[whole], reopened.ep_start[whole])
    reopened.sample(40)
    player.play(10, reopened)
    assert (reopened._current_ep_start <= 30).all()


# -- after an opening


def walk(buffer, episode, steps, envs=1, first=0):
    """One episode's steps: observations 100 * episode + step, of which the env's number is the
    thousands, and the episode's number as each reward."""
    for step in range(first, first + steps):
        seen = 1000.0 * np.arange(envs)[:, None] + 100 * episode + step
        buffer.add(
            seen.astype(np.float32), (seen + 1).astype(np.float32), np.zeros((envs, 1), int),
            np.full(envs, float(episode)), np.zeros(envs, bool), [{}] * envs,
        )  # fmt: skip


WALK = spaces.Box(-1e6, 1e6, (1,))
OPEN_N_STEPS = """
import os, sys
from tests.integrations.test_sb3_disk import *
buffer = DiskNStepReplayBuffer(
    100, WALK, TWO, "cpu", 2, path=sys.argv[1], n_steps=3, gamma=1.0,
    handle_timeout_termination=False,
)
walk(buffer, 1, 6, 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_n_steps_never_go_on_into_the_episode_after_an_opening(tmp_path, end):
    """Whatever `handle_timeout_termination` says: SB3 sums on where nothing says done."""
    path, steps = tmp_path / "r", 6
    options = {"path": path, "n_steps": 3, "gamma": 1.0, "handle_timeout_termination": False}
    if end == "closed":
        with contextlib.closing(DiskNStepReplayBuffer(100, WALK, TWO, "cpu", 2, **options)) as one:
            walk(one, 1, steps, 2)
    else:
        done = processes.run(OPEN_N_STEPS, path)
        assert done.returncode == -signal.SIGKILL, done.stderr
        steps -= 1  # nobody knows what the newest ones led to
    buffer = DiskNStepReplayBuffer(100, WALK, TWO, "cpu", 2, **options)
    assert buffer.pos == steps
    walk(buffer, 2, 9, 2)
    np.random.seed(0)  # noqa: NPY002
    drawn = buffer.sample(600)
    found = set()
    for seen, led, reward, over in zip(
        *(getattr(drawn, name)[:, 0].tolist()
          for name in ("observations", "next_observations", "rewards", "dones")), strict=True,
    ):  # fmt: skip
        env, at = divmod(seen, 1000)
        episode, step = divmod(at, 100)
        taken = min(3, (steps if episode == 1 else 9) - step)
        assert (led, reward, over) == (seen + taken, episode * taken, 0)
        found.add((env, episode, step))
    assert len(found) == 2 * (steps + 9)
    buffer.close()


def test_an_episode_that_begins_with_a_later_stack_is_told_from_one_that_goes_on(tmp_path):
    """Its first transition may have the step that would have come next."""
    options = {"path": tmp_path / "r", "frame_stack": 3, "n_steps": 2, "gamma": 1.0}
    player = Player(1)
    buffer = DiskNStepReplayBuffer(40, STACKS, TWO, "cpu", 1, **options)
    for _ in range(2):  # steps 0 and 1; then 2 is both the next one and where a stack of 3 begins
        player.step(buffer, end=0)
    player.stacks = player.rng.integers(1, 256, (1, 3, 6, 6), np.uint8)
    for _ in range(3):
        player.step(buffer, end=0)
    buffer.close()
    buffer = DiskNStepReplayBuffer(40, STACKS, TWO, "cpu", 1, **options)
    assert buffer.pos == 5
    assert buffer.timeouts[:5, 0].tolist() == [0, 1, 0, 0, 1]
    assert not buffer.dones.any()
    buffer.close()


@pytest.mark.parametrize("kind", [DiskReplayBuffer, DiskNStepReplayBuffer, DiskHerReplayBuffer])
@pytest.mark.parametrize("copied", [False, True])
def test_what_had_no_path_of_its_own_is_empty_once_it_is_closed(tmp_path, kind, copied):
    path = tmp_path / "r" if copied else None
    if kind is DiskHerReplayBuffer:
        buffer, player = goals(kind, path=path), GoalPlayer()
    else:
        buffer, player = ours(path, kind), Player()
    player.play(15, buffer)
    closed = copy.deepcopy(buffer) if copied else buffer
    assert closed.size() == 15
    closed.close()
    assert (closed.pos, closed.full, closed.size()) == (0, False, 0)
    for values in (closed.rewards, closed.dones, closed.actions, closed.timeouts):
        assert not values.any()
    if kind is DiskHerReplayBuffer:
        assert not closed.ep_length.any()
        with pytest.raises(RuntimeError, match="before the end of the first episode"):
            closed.sample(3)
    type(player)().play(15, closed)  # as a new one
    assert closed.size() == 15
    assert not np.array_equal(closed.rewards, np.zeros_like(closed.rewards))
    if copied:
        assert buffer.size() == 15
        buffer.sample(4)
        buffer.close()
    closed.close()


def test_her_draws_at_once_from_a_store_that_was_there(tmp_path):
    buffer = goals(DiskHerReplayBuffer, path=tmp_path / "r")
    GoalPlayer().play(20, buffer)
    buffer.close()
    buffer = goals(DiskHerReplayBuffer, path=tmp_path / "r")
    assert len(buffer.sample(8).rewards) == 8
    buffer.close()
