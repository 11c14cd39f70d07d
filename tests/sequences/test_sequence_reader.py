"""The same windows, however many threads read them."""

import os
import random

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.errors import CorruptSegmentError, InvalidInputError
from diskreplay.store import batch_kernels, read_job, reading_pool
from tests.sequences.playing import Play
from tests.test_prefetch import assert_equal, kept


@pytest.fixture(autouse=True)
def parts_of_one_window(monkeypatch):
    """However small the batches of a test are, many threads read them, some rows at a time."""
    monkeypatch.setattr(reading_pool, "_PART_BYTES", 1)


@pytest.mark.costly
@given(
    seed=st.integers(0, 2**32), num_envs=st.sampled_from([1, 3]), stack=st.sampled_from([1, 3]),
    ends=st.sampled_from(["shift", "pad", "cross"]), readers=st.integers(2, 5),
    compressor=st.sampled_from(["raw", "lz4"]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_threads_change_nothing_of_what_is_read(
    tmp_path_factory, seed, num_envs, stack, ends, readers, compressor
):
    play = Play(
        tmp_path_factory.mktemp("store") / "replay", random.Random(seed), num_envs=num_envs,
        kept=60, stack_size=stack, compressor=compressor, frame=(40,),
    )  # fmt: skip
    with play.buffer as buffer:
        for _ in range(80):
            play.step()
        view = buffer.sequences(4, burn_in=3, ends=ends, state="h")
        anchors = view.anchors()
        if not len(anchors):
            return
        expected = kept(view.gather(anchors))
        out = view.gather(anchors)
        for given_ in (None, out):
            assert_equal(kept(view.gather(anchors, threads=readers, out=given_)), expected)
        batch = view.sample(9, threads=readers)
        assert_equal(
            {name: value for name, value in kept(batch).items() if name != "weight"},
            {n: v for n, v in kept(view.gather(batch.anchor)).items() if n != "weight"},
        )


def test_each_thread_takes_its_parts(tmp_path, monkeypatch):
    """Also where nobody comes to help, and where who comes is late."""
    play = Play(tmp_path / "replay", random.Random(1), frame=(50,), compressor="lz4")
    with play.buffer as buffer:
        for _ in range(150):
            play.step()
        view = buffer.sequences(5, ends="cross")
        anchors = view.anchors()
        expected = kept(view.gather(anchors))
        offered = []
        monkeypatch.setattr(
            reading_pool.pool, "offer", lambda job, helpers: offered.append((job, helpers))
        )
        assert_equal(kept(view.gather(anchors, threads=3)), expected)
        ((job, helpers),) = offered
        assert helpers == 2
        assert len(job) == read_job.JOB + 3 * 4
        assert not job[read_job.JOB :].any()
        batch_kernels.help_read(job)


def test_rot_is_named_alike(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (8, 8), "uint8"),
        action_space=Discrete(2), capacity=400, segment_rows=64, compressor="lz4",
    ) as buffer:  # fmt: skip
        for frame in np.random.default_rng(0).integers(0, 256, (300, 8, 8), dtype=np.uint8):
            buffer.add(frame, 0, 0.0, False, False)
        buffer.flush()
        shard = sorted((tmp_path / "replay" / "observation").glob("c.*"))[2]
        with shard.open("r+b") as file:
            for at in (-40, -300):
                file.seek(at, os.SEEK_END)
                file.write(b"rot")
        view, found = buffer.sequences(40), set()
        for threads in (1, 2, 4, 4):
            with pytest.raises(CorruptSegmentError) as raised:
                view.gather(view.anchors(), threads=threads)
            found.add(str(raised.value))
        assert len(found) == 1


@pytest.mark.parametrize("threads", [0, 65, 1.5, "2", True])
def test_threads_that_cannot_be(tmp_path, threads):
    play = Play(tmp_path / "replay", random.Random(0))
    with play.buffer as buffer:
        for _ in range(40):
            play.step()
        view = buffer.sequences(1)
        union = diskreplay.ReplayUnion([buffer])
        anchor, id_ = view.anchors()[:1], buffer.sampleable_ids()[:1]
        for call in (
            view.sample, union.sample, lambda **how: view.gather(anchor, **how),
            lambda **how: union.gather(id_, **how),
        ):  # fmt: skip
            with pytest.raises(InvalidInputError, match="threads"):
                call(threads=threads)


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # since NumPy 2.5
def test_what_was_set_on_an_array_does_not_come_back(tmp_path):
    """Shapes and flags belong to the batch that has the array, and not to its memory."""
    play = Play(tmp_path / "replay", random.Random(2))
    with play.buffer as buffer:
        for _ in range(150):
            play.step()
        windows = buffer.sequences(4, batch_size=8)
        batch = windows.sample()
        batch.reward.shape = (40,)
        batch.is_first.setflags(write=False)
        del batch
        batch = windows.sample()
        assert batch.reward.shape == (8, 5)
        assert batch.is_first.flags.writeable
