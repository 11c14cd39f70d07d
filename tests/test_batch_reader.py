"""The same batches, however many threads read them and however they lie in memory."""

import os
import threading
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay import errors
from diskreplay.store import reading_pool
from diskreplay.store.reading_pool import pool
from tests.test_prefetch import assert_equal, kept

FRAME = (6, 5)


@pytest.fixture(autouse=True)
def parts_of_one_window(monkeypatch):
    """However small the batches of a test are, many threads read them."""
    monkeypatch.setattr(reading_pool, "_PART_BYTES", 1)


def make(path, **changed):
    options = {
        "observation_space": Box(0, 255, FRAME, "uint8"), "action_space": Discrete(4),
        "capacity": 400, "segment_rows": 32, "compressor": "lz4", "seed": 3, **changed,
    }  # fmt: skip
    return diskreplay.PrioritizedReplayBuffer(path, **options)


def record(buffer, steps, seed=0):
    """Episodes of all lengths that end in all ways, with and without their last observations."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        frames = rng.integers(0, 4, (2, buffer.num_envs, *FRAME)).astype(np.uint8)
        ended = rng.random((2, buffer.num_envs)) < 0.08
        action, reward = rng.integers(4, size=buffer.num_envs), rng.random(buffer.num_envs)
        step = [frames[0], action, reward, *ended, frames[1]]
        if buffer.num_envs == 1:
            step = [value[0] for value in step]
        if rng.random() < 0.5:
            step[5] = None
        buffer.add(*step)


LIVES = {
    "num_envs": st.integers(1, 3),
    "stack_size": st.integers(1, 5),
    "update_horizon": st.integers(1, 6),
    "stack_padding": st.sampled_from(["zero", "reset"]),
    "compressor": st.sampled_from(["raw", "lz4", "zstd"]),
}


@pytest.mark.costly
@given(life=st.fixed_dictionaries(LIVES), steps=st.integers(30, 200), readers=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_threads_and_places_change_nothing_of_what_is_read(tmp_path_factory, life, steps, readers):
    with make(tmp_path_factory.mktemp("store") / "store", **life) as buffer:
        record(buffer, steps)
        ids = buffer.sampleable_ids()
        if not len(ids):
            return
        expected = kept(buffer.gather(ids))
        out = buffer.gather(ids)
        for threads in (1, readers):
            for contiguous in (True, False):
                for given_ in (None, out):
                    batch = buffer.gather(ids, threads=threads, contiguous=contiguous, out=given_)
                    assert_equal(kept(batch), expected)
                    if contiguous:
                        assert batch.observation.flags.c_contiguous
                        assert batch.next_observation.flags.c_contiguous
                        assert not np.shares_memory(batch.observation, batch.next_observation)
                        assert batch.window() is None


def test_a_prefetcher_gives_contiguous_stacks_also_of_what_a_load_has_drawn(tmp_path):
    with make(tmp_path / "store", stack_size=3) as buffer:
        record(buffer, 100)
        with buffer.prefetch(2) as ahead:
            next(ahead)
            buffer.save(tmp_path / "saved", 1)
            expected = [kept(next(ahead)) for _ in range(4)]
    with make(tmp_path / "resumed", stack_size=3) as resumed:
        resumed.load(tmp_path / "saved", 1)
        resumed.prefetch(5).close()  # draws what was under way, for nobody yet
        with resumed.prefetch(2, contiguous=True) as ahead:
            for each in expected:
                batch = next(ahead)
                assert_equal(kept(batch), each)
                assert batch.observation.flags.c_contiguous
                assert batch.next_observation.flags.c_contiguous


def test_leaves_of_dicts_are_contiguous_too(tmp_path):
    space = Dict({"camera": Box(0, 255, FRAME, "uint8"), "speed": Box(-1, 1, (3,), "float32")})
    with make(tmp_path / "store", observation_space=space, stack_size=2) as buffer:
        for i in range(50):
            seen = {"camera": np.full(FRAME, i, np.uint8), "speed": np.full(3, i, np.float32)}
            buffer.add(seen, 0, 0.0, i % 9 == 8, False)
        ids = buffer.sampleable_ids()
        plain = buffer.gather(ids)
        batch = buffer.gather(ids, contiguous=True, threads=2)
        plain.separate_stacks()
        for name in ("observation", "next_observation"):
            for leaf in ("camera", "speed"):
                for found in (batch, plain):
                    assert found[name][leaf].flags.c_contiguous
                np.testing.assert_array_equal(batch[name][leaf], plain[name][leaf])


@pytest.mark.parametrize("threads", [0, 65, 1.5, "2", True])
def test_threads_that_cannot_be(tmp_path, threads):
    with make(tmp_path / "store") as buffer:
        record(buffer, 30)
        for call in (buffer.sample, buffer.prefetch, lambda **how: buffer.gather([0], **how)):
            with pytest.raises(errors.InvalidInputError, match="threads"):
                call(threads=threads)


def test_rot_that_any_thread_finds_is_named_as_a_single_one_names_it(tmp_path):
    with make(tmp_path / "store", segment_rows=64, update_horizon=2) as buffer:
        rng = np.random.default_rng(0)
        for i in range(300):
            buffer.add(rng.integers(0, 256, FRAME).astype(np.uint8), i % 4, 0.5, False, False)
        buffer.flush()
        ids = buffer.sampleable_ids()
        path = sorted((tmp_path / "store" / "observation").glob("c.*"))[2]
        with path.open("r+b") as shard:
            for at in (-40, -300):
                shard.seek(at, os.SEEK_END)
                shard.write(b"rot")
        found = set()
        for threads in (1, 2, 4, 4, 4):
            with pytest.raises(errors.CorruptSegmentError) as raised:
                buffer.gather(ids, threads=threads)
            found.add(str(raised.value))
        assert len(found) == 1
        buffer.gather(ids[:50], threads=4)


@pytest.mark.parametrize("there", [0, 1])
def test_fewer_threads_read_where_no_more_are_to_be_had(tmp_path, monkeypatch, there):
    start, started = threading.Thread.start, []

    def limited(thread):
        if thread.name == "diskreplay reading":
            if len(started) == there:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    with make(tmp_path / "store") as buffer:
        record(buffer, 200)
        ids = buffer.sampleable_ids()
        expected = kept(buffer.gather(ids))
        monkeypatch.setattr(threading.Thread, "start", limited)
        monkeypatch.setattr(pool, "_threads", [])
        for _ in range(3):
            assert_equal(kept(buffer.gather(ids, threads=4)), expected)
        assert len(started) == there


def test_a_pool_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch):
    """All of its threads may be at other batches, or wait for the GIL."""
    with make(tmp_path / "store") as buffer:
        record(buffer, 60)
        ids = buffer.sampleable_ids()
        expected = kept(buffer.gather(ids))
        offered = []
        monkeypatch.setattr(pool, "offer", lambda job, helpers: offered.append((job, helpers)))
        assert_equal(kept(buffer.gather(ids, threads=3)), expected)
        assert [helpers for _, helpers in offered] == [2]
        buffer._rows._batch_reader._kernels.help_read(offered[0][0])  # late: nothing is left


def test_a_job_that_never_begins_holds_nobody_up():
    from diskreplay.store import batch_kernels, read_job

    job = np.zeros(read_job.JOB + 4, np.int64)
    job[read_job.TAKEN] = -1
    batch_kernels.help_read(job)
    assert job[read_job.TAKEN] == -1


def test_a_forked_child_has_threads_of_its_own(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
        buffer.flush()
        expected = kept(buffer.gather(buffer.sampleable_ids(), threads=3))
    with diskreplay.open(tmp_path / "store", mode="r") as reader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads: it is what is tested
            child = os.fork()
        if not child:
            try:
                mine = kept(reader.gather(reader.sampleable_ids(), threads=3))
                assert_equal(mine, expected)
                alive = [t for t in threading.enumerate() if t.name == "diskreplay reading"]
                os._exit(7 if len(alive) == 2 else 6)
            except BaseException:
                os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert_equal(kept(reader.gather(reader.sampleable_ids(), threads=3)), expected)


def test_closing_while_others_read(tmp_path):
    """Nothing is unmapped under a thread that reads."""
    for _ in range(5):
        buffer = make(tmp_path / "store", stack_size=4)
        record(buffer, 150)
        read, stop = threading.Semaphore(0), []

        def sample(buffer=buffer, read=read, stop=stop):
            try:
                while True:
                    buffer.sample(64, threads=3)
                    read.release()
            except errors.ClosedError:
                stop.append(True)

        samplers = [threading.Thread(target=sample) for _ in range(2)]
        for each in samplers:
            each.start()
        for _ in range(10):
            read.acquire()
        buffer.close()
        for each in samplers:
            each.join()
        assert stop == [True, True]
