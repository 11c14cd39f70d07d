"""A run that was stopped and loaded in a fresh process goes on bit for bit like one that was not.

The fresh process loads what its argument says and prints the fingerprints of the batches it draws.
"""

import errno
import hashlib
import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import DiskFullError
from diskreplay.store.store import Store
from tests import processes
from tests.naive import SideBySide

# -- a run, from nothing but its step numbers


def make_buffer(path, *, prioritized, compressor, capacity=420):
    options = {"alpha": 0.6, "beta": 0.5} if prioritized else {}
    kind = diskreplay.PrioritizedReplayBuffer if prioritized else diskreplay.ReplayBuffer
    return kind(
        path,
        observation_space=Box(0, 255, (36, 36), "uint8"),
        action_space=Discrete(4),
        capacity=capacity,
        num_envs=2,
        stack_size=3,
        update_horizon=3,
        gamma=0.97,
        batch_size=16,
        extras={"log_prob": ((), "float32")},
        compressor=compressor,
        segment_rows=64,
        seed=5,
        **options,
    )


def record(buffer, start, count):
    for i in range(start, start + count):
        rng = np.random.default_rng(i)
        ended = rng.random(2) < 0.06
        truncated = ended & (rng.random(2) < 0.5)
        frames = np.broadcast_to(rng.integers(0, 256, (2, 36, 1), np.uint8), (2, 36, 36))
        buffer.add(
            frames,
            rng.integers(0, 4, 2),
            rng.normal(size=2),
            ended & ~truncated,
            truncated,
            frames // 2,
            next_observation_mask=rng.random(2) < 0.7,
            mask=np.array([True, i % 3 > 0]),
            log_prob=rng.normal(size=2).astype(np.float32),
        )


def train(buffer, start, rounds, prioritized):
    """Add, sample, learn; the fingerprints of every batch."""
    seen = []
    for i in range(rounds):
        record(buffer, start + 4 * i, 4)
        batch = buffer.sample()
        seen.append(fingerprint(batch))
        if prioritized:
            buffer.update_priorities(batch.id, np.abs(batch.reward.astype(np.float64)) + 0.1)
    return seen


def fingerprint(batch):
    """Of every array of the batch, with its name, dtype and shape."""
    digest = hashlib.sha256()
    for name in sorted(batch.keys()):
        array = np.ascontiguousarray(batch[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def prefetch(buffer, count):
    with buffer.prefetch(depth=2) as batches:
        return take(batches, count)


def take(batches, count):
    return [fingerprint(next(batches)) for _ in range(count)]


START, SAVED_AT, ROUNDS = 0, 320, 24


def resume(path, checkpoints, then, prioritized, compressor):
    """What the fresh process does."""
    with make_buffer(path, prioritized=prioritized, compressor=compressor) as buffer:
        buffer.load(checkpoints, 1, resume_episodes=True)
        if then == "train":
            return train(buffer, SAVED_AT, ROUNDS, prioritized)
        return prefetch(buffer, 10)


def resume_in_a_fresh_process(**arguments):
    done = processes.run(RESUME, json.dumps(arguments), check=True)
    return json.loads(done.stdout)


RESUME = """
import json, sys
from tests.test_resume import resume
print(json.dumps(resume(**json.loads(sys.argv[1]))))
"""


@pytest.fixture(params=[False, True], ids=["uniform", "prioritized"])
def prioritized(request):
    return request.param


@pytest.fixture(params=["raw", "lz4"])
def compressor(request):
    return request.param


def train_and_save(tmp_path, prioritized, compressor):
    """A buffer that has wrapped, at step SAVED_AT, just saved."""
    buffer = make_buffer(tmp_path / "live", prioritized=prioritized, compressor=compressor)
    train(buffer, START, SAVED_AT // 4, prioritized)
    buffer.save(tmp_path / "checkpoints", 1)
    return buffer


@pytest.mark.costly(2)
def test_training_goes_on_bit_for_bit(tmp_path, prioritized, compressor):
    """Into the live store for packed fields, into a new one for raw ones."""
    with train_and_save(tmp_path, prioritized, compressor) as buffer:
        uninterrupted = train(buffer, SAVED_AT, ROUNDS, prioritized)
    assert len(set(uninterrupted)) == ROUNDS
    resumed = resume_in_a_fresh_process(
        path=str(tmp_path / ("elsewhere" if compressor == "raw" else "live")),
        checkpoints=str(tmp_path / "checkpoints"),
        then="train",
        prioritized=prioritized,
        compressor=compressor,
    )
    assert resumed == uninterrupted


def test_prefetching_goes_on_bit_for_bit(tmp_path, prioritized):
    """What was drawn ahead at the moment of the save, but not taken, is drawn again."""
    with (
        train_and_save(tmp_path, prioritized, "lz4") as buffer,
        buffer.prefetch(depth=2) as batches,
    ):
        take(batches, 5)
        buffer.save(tmp_path / "checkpoints", 1)
        uninterrupted = take(batches, 10)
    assert len(set(uninterrupted)) == 10
    resumed = resume_in_a_fresh_process(
        path=str(tmp_path / "elsewhere"),
        checkpoints=str(tmp_path / "checkpoints"),
        then="prefetch",
        prioritized=prioritized,
        compressor="lz4",
    )
    assert resumed == uninterrupted


@pytest.mark.costly(2)
def test_a_load_in_the_same_process_goes_back(tmp_path, prioritized, compressor):
    """As often as one likes, and whatever was done in between."""
    with train_and_save(tmp_path, prioritized, compressor) as buffer:
        uninterrupted = train(buffer, SAVED_AT, ROUNDS, prioritized)
        for _ in range(2):
            buffer.load(tmp_path / "checkpoints", 1, resume_episodes=True)
            assert train(buffer, SAVED_AT, ROUNDS, prioritized) == uninterrupted


@pytest.mark.costly(1)
def test_the_next_batches_do_not_depend_on_resumed_episodes(tmp_path, prioritized, compressor):
    with train_and_save(tmp_path, prioritized, compressor) as buffer:
        uninterrupted = [fingerprint(buffer.sample()) for _ in range(10)]
        buffer.load(tmp_path / "checkpoints", 1)
        assert [fingerprint(buffer.sample()) for _ in range(10)] == uninterrupted


@pytest.mark.costly(2)
def test_saving_changes_nothing(tmp_path, prioritized, compressor):
    """A run that saves draws the same batches as one that does not."""
    runs = []
    for saves in (True, False):
        path = tmp_path / f"live-{saves}"
        with make_buffer(path, prioritized=prioritized, compressor=compressor) as buffer:
            seen = []
            for i in range(6):
                seen += train(buffer, 80 * i, 20, prioritized)
                if saves:
                    buffer.save(tmp_path / "checkpoints", i)
                    buffer.flush()
            runs.append(seen)
    assert runs[0] == runs[1]


def test_prefetch_and_sample_draw_the_same(tmp_path, prioritized):
    """As long as nothing is added and no priority changes, looking ahead makes no difference."""
    with train_and_save(tmp_path, prioritized, "raw") as buffer:
        plain = [fingerprint(buffer.sample()) for _ in range(10)]
        buffer.load(tmp_path / "checkpoints", 1)
        assert prefetch(buffer, 10) == plain
        buffer.load(tmp_path / "checkpoints", 1)
        assert prefetch(buffer, 4) == plain[:4]
        assert fingerprint(buffer.sample()) == plain[4]  # closing gives back what was not taken


def test_loading_drains_what_was_drawn_ahead(tmp_path, prioritized):
    with train_and_save(tmp_path, prioritized, "raw") as buffer:
        plain = [fingerprint(buffer.sample()) for _ in range(5)]
        with buffer.prefetch(depth=3) as batches:
            take(batches, 2)
            record(buffer, 9000, 50)
            buffer.load(tmp_path / "checkpoints", 1)
            assert take(batches, 5) == plain


@pytest.mark.parametrize("cut_by", ["reopening", "loading"])
def test_an_episode_that_was_cut_before_the_save_is_not_resumed(tmp_path, cut_by):
    """Only what was open when it was saved is: nothing was recorded since the cut."""
    checkpoints = tmp_path / "checkpoints"
    with SideBySide(tmp_path / "live") as both:
        for _ in range(3):
            both.step(["go on"])
        if cut_by == "reopening":
            both.reopen()
        else:
            both.real.save(checkpoints, 1)
            both.real.load(checkpoints, 1)
            both.twin.cut()
        both.real.save(checkpoints, 2)
        both.real.load(checkpoints, 2, resume_episodes=True)
        for _ in range(3):
            both.step(["go on"])
        assert both.twin.sampleable_ids() == [0, 1, 3, 4]
        both.check_everything()


@pytest.mark.parametrize(
    ("per_env", "resume_episodes"), [(20, True), (60, False), (100, True), (400, True)]
)
@pytest.mark.costly(1)
def test_loading_into_another_capacity_keeps_the_newest(
    tmp_path, prioritized, compressor, per_env, resume_episodes
):
    alpha = 0.6 if prioritized else None
    options = {
        "num_envs": 2,
        "stack_size": 3,
        "update_horizon": 3,
        "compressor": compressor,
        "segment_rows": 16,
        "alpha": alpha,
    }
    with SideBySide(tmp_path / "live", capacity=200, **options) as saved:
        saved.play(350, seed=1)
        if prioritized:
            ids = saved.twin.sampleable_ids()
            saved.update_priorities(ids, np.random.default_rng(1).uniform(0.1, 5, len(ids)))
        saved.real.save(tmp_path / "checkpoints", 1)
    with SideBySide(tmp_path / "elsewhere", capacity=2 * per_env, **options) as loaded:
        loaded.real.load(tmp_path / "checkpoints", 1, resume_episodes=resume_episodes)
        loaded.twin.restore(saved.twin.copy(), resume_episodes)
        assert loaded.twin.rows == 2 * min(per_env, 100)
        loaded.check_everything()
        loaded.counter = saved.counter
        for seed in range(4):
            loaded.play(per_env // 2, seed=seed)
            loaded.check_everything()
        loaded.reopen()
        loaded.check_everything()


@pytest.mark.parametrize("how", ["reopened", "loaded", "read"])
def test_sampling_can_be_the_first_thing(tmp_path, how):
    with make_buffer(tmp_path / "live", prioritized=True, compressor="lz4") as buffer:
        train(buffer, START, SAVED_AT // 4, True)
        buffer.save(tmp_path / "checkpoints", 1)
        expected = buffer.sample(8)
        if how == "loaded":
            buffer.load(tmp_path / "checkpoints", 1)
            assert buffer.sample(8).id.tolist() == expected.id.tolist()
    if how == "reopened":
        with make_buffer(tmp_path / "live", prioritized=True, compressor="lz4") as buffer:
            assert len(buffer.sample(8)) == 8
    if how == "read":
        with diskreplay.open(tmp_path / "live") as reader:
            assert len(reader.sample(8)) == 8
        with diskreplay.open(tmp_path / "live") as reader:
            reader.sample(8, out=reader.gather(expected.id))


def test_a_kill_after_a_save_keeps_the_priorities_of_the_save(tmp_path):
    import shutil

    import diskreplay

    with make_buffer(tmp_path / "store", prioritized=True, compressor="lz4") as buffer:
        record(buffer, 0, 100)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, np.linspace(0.5, 7, len(ids)))
        buffer.save(tmp_path / "checkpoints", 1)
        saved, largest = buffer.tree.leaves.copy(), buffer.statistics().priorities.largest_seen
        record(buffer, 100, 20)
        buffer.update_priorities(ids[-50:], np.full(50, 0.01))  # these are lost
        with buffer._rows.store.maintenance.lock:  # what a kill would leave
            shutil.copytree(tmp_path / "store", tmp_path / "killed")
        with diskreplay.open(tmp_path / "store") as reader:
            assert np.array_equal(reader.tree.leaves[saved > 0], saved[saved > 0])
    with make_buffer(tmp_path / "killed", prioritized=True, compressor="lz4") as buffer:
        there = saved > 0
        leaves = buffer.tree.leaves
        assert np.array_equal(leaves[there], saved[there])
        assert buffer.statistics().priorities.largest_seen == largest == 7
        new = (leaves > 0) & ~there
        assert new.any()
        assert np.all(leaves[new] == 7**0.6)
    with diskreplay.open(tmp_path / "checkpoints" / "replay_ckpt.1") as checkpoint:
        assert np.array_equal(checkpoint.tree.leaves[there], saved[there])


def test_an_opening_that_cannot_note_its_options_holds_nothing(tmp_path, monkeypatch):
    options = {"observation_space": Discrete(9), "action_space": Discrete(3), "capacity": 100}
    with diskreplay.ReplayBuffer(tmp_path / "store", **options) as buffer:
        buffer.add(1, 1, 0.0, False, False)

    def refuse(*_arguments, **_options):
        raise DiskFullError(errno.ENOSPC, "no room", "there")

    monkeypatch.setattr(Store, "record", refuse)
    with pytest.raises(DiskFullError) as refused:
        diskreplay.ReplayBuffer(tmp_path / "store", **options, gamma=0.5)
    monkeypatch.undo()
    # The error is kept, as notebooks keep it, and with it all that its frames have.
    assert refused.value.__traceback__ is not None
    with diskreplay.ReplayBuffer(tmp_path / "store", **options, gamma=0.5) as buffer:
        assert buffer.bounds.tolist() == [[0, 1]]
