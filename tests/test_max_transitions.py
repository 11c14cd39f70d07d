"""A capacity that counts transitions: final rows do not count, and the oldest has its stack."""

import os
import shutil
import signal

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from tests.naive import SideBySide

FRAME = Box(0, 255, (4,), np.uint8)


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2), **{"capacity": None, **options}
    )


def record(buffer, episodes, length, start=0):
    for number in range(start, start + episodes * length):
        ends = number % length == length - 1
        frame = np.full(4, number % 256, np.uint8)
        buffer.add(frame, 1, float(number), ends, False, frame if ends else None)


@pytest.mark.costly(2)
@pytest.mark.parametrize("alpha", [None, 0.6])
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("stack_size", [1, 4])
def test_transitions_leave_beside_the_twin(tmp_path, envs, stack_size, alpha):
    with SideBySide(
        tmp_path / "r", num_envs=envs, capacity=None, max_transitions=30 * envs,
        stack_size=stack_size, update_horizon=2, segment_rows=8, alpha=alpha,
    ) as both:  # fmt: skip
        for round_ in range(12):
            both.play(25, seed=round_)
            both.twin.settle_priorities()
            both.check_counts()
            both.check_gather()
            if round_ == 6:
                both.reopen()
            if round_ == 8:
                first = [(low + high - 1) // 2 for low, high in both.real.bounds]
                both.real.evict(first)
                both.twin.evict(first)
                both.check_counts()


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("stack_size", [1, 3])
def test_every_env_has_its_newest_ones_however_short_episodes_are(tmp_path, length, stack_size):
    with make(tmp_path / "r", max_transitions=20, stack_size=stack_size) as buffer:
        for number in range(200):
            record(buffer, 1, length, start=number * length)
            kept = buffer.take("reward", buffer.sampleable_ids()).tolist()
            newest = list(range(length * (number + 1)))[-20:]
            assert kept[-len(newest) :] == newest
            assert len(kept) - len(newest) < stack_size  # frames of the oldest one's stack


def test_a_capacity_in_rows_holds_beside_it(tmp_path):
    with make(tmp_path / "r", max_transitions=20, capacity=10) as buffer:
        record(buffer, 30, 1)
        assert buffer.bounds.tolist() == [[50, 60]]
        assert len(buffer) == 5
        assert (buffer.max_transitions, buffer.capacity) == (20, 10)
        record(buffer, 1, 40, start=0)
        assert len(buffer) == 9  # the final row behind the newest


@pytest.mark.parametrize("how", ["open", "reader", "load"])
def test_a_smaller_one_and_who_else_reads(tmp_path, how):
    with make(tmp_path / "r", max_transitions=50) as buffer:
        record(buffer, 100, 3)
        buffer.save(tmp_path / "c", 1)
        bounds = buffer.bounds.tolist()
    if how == "reader":
        with diskreplay.open(tmp_path / "r") as reader:
            assert (reader.max_transitions, reader.bounds.tolist()) == (50, bounds)
            assert len(reader) == 50
        return
    if how == "load":
        with make(tmp_path / "other", max_transitions=12) as buffer:
            buffer.load(tmp_path / "c", 1)
            ids = buffer.sampleable_ids()
            assert buffer.take("reward", ids).tolist() == list(range(288, 300))
        return
    with pytest.raises(errors.CapacityError, match="shrink"):
        make(tmp_path / "r", max_transitions=20, capacity=1000)
    with diskreplay.open(tmp_path / "r") as reader:
        assert reader.bounds.tolist() == bounds
    with make(tmp_path / "r", max_transitions=20, shrink=True) as buffer:
        ids = buffer.sampleable_ids()
        assert buffer.take("reward", ids).tolist() == list(range(280, 300))
        assert buffer.bounds[0, 0] > bounds[0][0]
    assert verify(tmp_path / "r").findings == ()
    with make(tmp_path / "r", capacity=None) as buffer:  # whatever comes from now on stays
        record(buffer, 40, 2)
        assert len(buffer) == 100


def test_what_a_kill_brings_back_leaves_again(tmp_path):
    options = {"max_transitions": 40, "segment_rows": 8}
    make(tmp_path / "r", **options).close()
    child = os.fork()
    if not child:
        buffer = make(tmp_path / "r", **options)
        record(buffer, 100, 3)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with make(tmp_path / "r", **options) as buffer:
        assert buffer.take("reward", buffer.sampleable_ids()).tolist() == list(range(260, 300))
        record(buffer, 10, 3, start=300)
        assert buffer.take("reward", buffer.sampleable_ids()).tolist() == list(range(290, 330))
    assert verify(tmp_path / "r").findings == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"max_transitions": 50}, {"max_transitions": 20}),
        ({"max_transitions": 20}, {"max_transitions": 50}),
        ({"max_transitions": 20}, {"capacity": None}),
        ({}, {"max_transitions": 20}),
        ({"capacity": 60}, {"capacity": 30}),
        ({"capacity": 30}, {"capacity": 60}),
        ({"capacity": 60}, {"capacity": None}),
    ],
)
@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.costly(4)
def test_a_reader_goes_by_what_the_next_writer_keeps(tmp_path, before, after, follow):
    def seen(buffer):
        bounds, ids = buffer.bounds.tolist(), buffer.sampleable_ids()
        rows = bounds, len(buffer), buffer.take("reward", ids).tolist()
        return *rows, buffer.capacity, buffer.max_transitions

    path = tmp_path / "r"
    with make(path, **before) as buffer:
        record(buffer, 40, 3)
        first = seen(buffer)
    with diskreplay.open(path, follow=follow) as reader:
        assert seen(reader) == first
        for round_ in range(2):
            with make(path, **after, shrink=True) as buffer:
                assert seen(reader) == (seen(buffer) if follow else first)
                if follow:
                    for more in range(10):
                        record(buffer, 5, 3, start=120 + 150 * round_ + 15 * more)
                        assert seen(reader) == seen(buffer)
                last = seen(buffer)
            assert seen(reader) == (last if follow else first)


@pytest.mark.parametrize(("capacity", "transitions"), [(3, 0), (20, 15)])
def test_what_a_transition_is_does_not_change_for_a_reader(tmp_path, capacity, transitions):
    with make(tmp_path / "r", update_horizon=3, stack_size=4) as buffer:
        record(buffer, 1, 100)
    with diskreplay.open(tmp_path / "r") as reader:
        assert len(reader) == 100
        with make(tmp_path / "r", capacity=capacity, shrink=True) as buffer:
            record(buffer, 1, 10, start=100)
            assert reader.bounds.tolist() == buffer.bounds.tolist()
            assert (reader.capacity, reader.update_horizon, reader.stack_size) == (capacity, 3, 4)
            assert len(reader) == transitions  # of the oldest rows the stacks are not whole
            batch = reader.gather(reader.sampleable_ids())
            assert batch.observation.shape == (transitions, 4, 4)


def test_files_follow_the_transitions_and_not_the_rows(tmp_path):
    with make(tmp_path / "r", max_transitions=64, segment_rows=8) as buffer:
        record(buffer, 1, 5000)
        buffer.flush()
        segments = buffer.statistics().segments
        record(buffer, 1, 5000, start=5000)
        buffer.flush()
        assert buffer.statistics().segments <= segments + len(buffer.fields)
        assert len(buffer) == 64


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "x", 2])
def test_what_is_no_number_of_transitions_is_refused(tmp_path, wrong):
    with pytest.raises((errors.InvalidInputError, errors.CapacityError), match="max_transitions"):
        make(tmp_path / "r", max_transitions=wrong, num_envs=3)
    assert not (tmp_path / "r").exists()


def test_info_says_how_full_it_is(tmp_path):
    from diskreplay.inspection.overview import overview_of

    with make(tmp_path / "r", max_transitions=50) as buffer:
        record(buffer, 10, 1)
    found = overview_of(tmp_path / "r")
    assert (found.fill, found.options["max_transitions"], found.rows) == (0.2, 50, 20)


def test_what_is_kept_depends_on_nothing_that_has_left(tmp_path):
    """A part of an episode begins at a late step, and has no frames before it."""
    steps = np.array([0, 1, 0, 5, 6, 7, 8, 9], np.int32)
    none = np.zeros(len(steps), bool)
    rows = {
        "observation": np.arange(len(steps), dtype=np.float32)[:, None],
        "action": np.zeros(len(steps), int), "reward": np.ones(len(steps), np.float32),
        "terminated": none, "truncated": none, "step": steps, "is_final": none,
    }  # fmt: skip
    options = {
        "observation_space": Box(0, 99, (1,), np.float32), "action_space": Discrete(2),
        "capacity": None, "max_transitions": 5, "stack_size": 4,
    }  # fmt: skip
    for at_once in (8, 1):
        path = tmp_path / str(at_once)
        with diskreplay.ReplayBuffer(path, **options) as buffer:
            for start in range(0, 8, at_once):
                buffer.extend({n: v[start : start + at_once] for n, v in rows.items()})
            expected = buffer.bounds.tolist(), buffer.sampleable_ids().tolist()
            assert expected == ([[3, 8]], [6])
            with diskreplay.open(path) as reader:
                assert (reader.bounds.tolist(), reader.sampleable_ids().tolist()) == expected
            with buffer._rows.store.maintenance.lock:
                shutil.copytree(path, tmp_path / f"{at_once}-killed")
        with diskreplay.ReplayBuffer(tmp_path / f"{at_once}-killed", **options) as again:
            assert (again.bounds.tolist(), again.sampleable_ids().tolist()) == expected
