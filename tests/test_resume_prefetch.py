"""Runs that prefetch and are resumed: whenever they make their prefetchers, the batches are equal.

A run is a list of what it does. It does the first part, saves, and goes on; other runs load that
checkpoint and do the rest. They may make their prefetchers at other moments.
"""

import itertools
import json
import signal
import tempfile
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay import errors
from tests import processes
from tests.effort import effort
from tests.test_interrupt import interrupted

SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
CAPACITY = 60


def schedule(add_count):
    return 1 / (1 + add_count)


# Depth, batch size and beta. Those that are alike are told apart by the order of their making.
KINDS = [(2, 8, None), (1, 3, 0.7), (3, 8, schedule), (2, 8, 0.9)]
ALIKE = (0, 3)
SCHEDULED = 2


def make_buffer(path, prioritized, seed):
    kind = diskreplay.PrioritizedReplayBuffer if prioritized else diskreplay.ReplayBuffer
    return kind(
        path,
        observation_space=Box(0, 255, (4,), "uint8"),
        action_space=Discrete(3),
        capacity=CAPACITY,
        stack_size=2,
        update_horizon=2,
        batch_size=8,
        segment_rows=8,
        seed=seed,
    )


class Run:
    """A buffer, its prefetchers, and all batches that it gave."""

    def __init__(self, buffer, checkpoints):
        self.buffer, self.checkpoints = buffer, checkpoints
        self.prefetchers, self.seen = {}, []
        self.saves = 0

    def prefetcher(self, number):
        if number not in self.prefetchers:
            if number == ALIKE[1]:
                self.prefetcher(ALIKE[0])
            depth, size, beta = KINDS[number]
            self.prefetchers[number] = self.buffer.prefetch(depth, size, beta=beta)
        return self.prefetchers[number]

    def do(self, what, amount):
        buffer = self.buffer
        if what == "add":
            for _ in range(amount):
                i = buffer.add_count
                frame = np.full(4, i % 256, np.uint8)
                buffer.add(frame, i % 3, i / 8, i % 7 == 6, i % 11 == 10, frame + 1)
        elif what == "update":
            if isinstance(buffer, diskreplay.PrioritizedReplayBuffer):
                ids = buffer.sampleable_ids()[-3 * amount :]
                buffer.update_priorities(ids, 0.1 + ids % (amount + 2))
        elif what == "sample":
            self.keep(lambda: buffer.sample(amount))
        elif what == "take":
            prefetcher = self.prefetcher(amount % len(KINDS))
            self.keep(lambda: next(prefetcher))
        elif what == "close" and amount % len(KINDS) not in ALIKE:
            self.prefetcher(amount % len(KINDS)).close()
            del self.prefetchers[amount % len(KINDS)]
        elif what == "save":
            self.prefetcher(SCHEDULED)  # nobody else knows its schedule
            self.saves += 1
            buffer.save(self.checkpoints, self.saves)
        elif what == "flush":
            buffer.flush()

    def keep(self, draw):
        try:
            batch = draw()
        except errors.EmptyBufferError:
            self.seen.append("nothing to draw")
        else:
            self.seen.append({name: np.array(batch[name]) for name in batch.keys()})  # noqa: SIM118

    def do_all(self, steps):
        self.seen = []
        for step in steps:
            self.do(*step)
        return self.seen


def assert_equal(resumed, went_on):
    assert len(resumed) == len(went_on)
    for i, (one, other) in enumerate(zip(resumed, went_on, strict=True)):
        assert type(one) is type(other), i
        if isinstance(one, str):
            continue
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=f"{name} of draw {i}")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "update", "sample", "take", "take", "take", "close",
                         "save", "flush"]),
        st.integers(1, 6),
    ),
    max_size=14,
)  # fmt: skip
NUMBERS = st.sets(st.sampled_from(range(len(KINDS))))


@pytest.mark.costly
@settings(max_examples=effort(12, 60, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    begin=st.integers(0, 2 * CAPACITY), before=STEPS, after=STEPS, made_early=NUMBERS,
    made_at_load=NUMBERS, used_before=NUMBERS, prioritized=st.booleans(), data=st.data(),
)  # fmt: skip
def test_when_prefetchers_are_made_does_not_matter(
    begin, before, after, made_early, made_at_load, used_before, prioritized, data
):
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as directory:
        place = Path(directory)
        with make_buffer(place / "one", prioritized, 1) as buffer:
            run = Run(buffer, place / "one checkpoints")
            for number in made_early:
                run.prefetcher(number)
            run.do_all([("add", begin), *before])
            buffer.save(place / "saved", 1)
            went_on = run.do_all(after)

            # The same buffer goes back to it, with whatever prefetchers it has now.
            buffer.load(place / "saved", 1, resume_episodes=True)
            assert_equal(run.do_all(after), went_on)
        with make_buffer(place / "two", prioritized, 2) as buffer:
            run = Run(buffer, place / "two checkpoints")
            run.do("add", 20)
            for number in used_before:
                run.do("take", number)
            buffer.load(place / "saved", 1, resume_episodes=True)
            for number in made_at_load:
                run.prefetcher(number)
            middle = data.draw(st.integers(0, len(after)), label="saved again after")
            resumed = list(run.do_all(after[:middle]))
            run.prefetcher(SCHEDULED)
            buffer.save(place / "saved", 2)
            resumed_once = resumed + run.do_all(after[middle:])
        # That save is one more than the first run made: what was under way is drawn anew. A third
        # run, resumed from it, goes on as the second did.
        with make_buffer(place / "three", prioritized, 3) as buffer:
            run = Run(buffer, place / "three checkpoints")
            buffer.load(place / "saved", 2, resume_episodes=True)
            assert_equal(run.do_all(after[middle:]), resumed_once[len(resumed) :])
        assert_equal(resumed, went_on[: len(resumed)])


def prefetching_run(path, checkpoints, *, resumed, rounds=12):
    """The loop that everybody writes: a prefetcher is made once there is enough to learn from."""
    seen, batches = [], None
    with make_buffer(path, True, 5) as buffer:
        if resumed:
            buffer.load(checkpoints, 1, resume_episodes=True)
        run = Run(buffer, checkpoints)
        for i in range(6 if resumed else 0, rounds):
            run.do("add", 10)
            if batches is None:
                batches = buffer.prefetch(2)
            batch = next(batches)
            seen.append(batch.id.tolist())
            buffer.update_priorities(batch.id, 0.1 + batch.id % 5)
            if i == 5 and not resumed:
                run.do("save", 0)
    return seen


def test_a_prefetcher_that_is_made_lazily_after_the_load(tmp_path):
    """Rows were added since: the batches under way at the save were drawn without them."""
    went_on = prefetching_run(tmp_path / "one", tmp_path / "saved", resumed=False)
    resumed = prefetching_run(tmp_path / "two", tmp_path / "saved", resumed=True)
    assert resumed == went_on[6:]


def test_a_run_that_needs_no_prefetcher_lets_go_of_what_was_under_way(tmp_path):
    with make_buffer(tmp_path / "one", True, 5) as buffer:
        Run(buffer, None).do("add", 40)
        with buffer.prefetch(2) as batches:
            next(batches)
            buffer.save(tmp_path / "saved", 1)
            went_on = [next(batches).id.tolist() for _ in range(6)]
    with make_buffer(tmp_path / "two", True, 6) as buffer:
        buffer.load(tmp_path / "saved", 1)
        beside = buffer.sample().id.tolist()
        assert beside == went_on[2]  # the two under way come from a prefetcher
        buffer.load(tmp_path / "saved", 1)
        buffer.prefetch(2).close()
        assert [buffer.sample().id.tolist() for _ in range(6)] == went_on


def test_batches_that_wait_hold_nothing_up(tmp_path):
    """No thread, no rwlock: rows come and go, and a dropped buffer lets go of its store."""
    import gc
    import threading

    with make_buffer(tmp_path / "one", True, 5) as buffer:
        Run(buffer, None).do("add", 40)
        with buffer.prefetch(2) as batches:
            next(batches)
            buffer.save(tmp_path / "saved", 1)
            expected = [np.array(next(batches).observation) for _ in range(2)]
    before = set(threading.enumerate())
    buffer = make_buffer(tmp_path / "two", True, 6)
    buffer.load(tmp_path / "saved", 1)
    Run(buffer, None).do("add", 5 * CAPACITY)  # their rows have left long ago
    assert {t for t in set(threading.enumerate()) - before if "prefetch" in t.name} == set()
    batches = buffer.prefetch(2)
    for wanted in expected:
        np.testing.assert_array_equal(next(batches).observation, wanted)
    batches.close()
    buffer.load(tmp_path / "saved", 1)
    del buffer, batches
    gc.collect()
    make_buffer(tmp_path / "two", True, 6).close()


def test_several_prefetchers_draw_in_the_order_in_which_they_are_asked(tmp_path):
    """Whichever of their threads comes first."""
    with (
        make_buffer(tmp_path / "one", False, 5) as buffer,
        make_buffer(tmp_path / "two", False, 5) as twin,
    ):
        for each in (buffer, twin):
            Run(each, None).do("add", 40)
        with buffer.prefetch(2, 8) as one, buffer.prefetch(1, 5) as other:
            waiting = {8: [], 5: []}
            for _ in range(50):
                for batches, size, depth in ((one, 8, 2), (other, 5, 1)):
                    while len(waiting[size]) <= depth:
                        waiting[size].append(twin.sample(size).id.tolist())
                    assert next(batches).id.tolist() == waiting[size].pop(0)


@pytest.mark.parametrize(
    "damaged",
    [
        3, None, {"depth": 2}, [[2, 8, 0.4]], [[2, 8, 0.4, 0, 1]], [[0, 8, 0.4, 0]],
        [[-1, 8, 0.4, 0]], [[2, 0, 0.4, 0]], [[2**40, 8, 0.4, 0]], [[2, 2**40, 0.4, 0]],
        [[2, 8, -1.0, 0]], [[2, 8, [], 0]], [[2, 8, "x", 0]], [[True, 8, 0.4, 0]],
        [["2", 8, 0.4, 0]], [[2.0, 8, 0.4, 0]], [[2, 8, 0.4, 0], 5], [[2, 8, 1e999, 0]],
        [[2, 8, 10**400, 0]],
        [[2, 8, 0.4, -2]], [[2, 8, 0.4, 1]], [[2, 8, 0.4, False]], [[2, 8, 0.4, 0.0]],
    ],
)  # fmt: skip
def test_a_checkpoint_that_says_nonsense_of_it_is_refused(tmp_path, damaged):
    from diskreplay.prefetch import UnderWay

    with pytest.raises(errors.FormatError, match="prefetch"):
        UnderWay.parse(damaged, 100)
    right = [(2, 8, 0.4, 1), (1, 3, None, 0), (1, 3, 0.0, -1)]
    assert UnderWay.parse(json.loads(json.dumps(right)), 100) == right


def test_depth_is_bounded(tmp_path):
    with make_buffer(tmp_path / "one", False, 5) as buffer:
        for depth in (0, -1, 1.5, 10**6, True):
            with pytest.raises(errors.InvalidInputError, match="depth"):
                buffer.prefetch(depth)


def with_prefetch(saved, entries):
    """A checkpoint that says this of its prefetchers, with checksums that fit."""
    document = json.loads((saved / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["prefetch"] = entries
    data = json.dumps(document).encode()
    (saved / "zarr.json").write_bytes(data)
    contents = json.loads((saved / "is_final/saved/manifest.json").read_text())
    contents["files"]["zarr.json"] = [len(data), google_crc32c.value(data)]
    (saved / "is_final/saved/manifest.json").write_text(json.dumps(contents))


@pytest.mark.costly(4)
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(
    ("entries", "taken"),
    [
        ([[1024, 1 << 30, None, 0]], False),
        ([[4, 1 << 24, None, turn] for turn in range(1000)], False),
        ([[2, 8, None, -1]] * 1025, False),
        ([[1024, 1 << 30, None, -1]], True),  # nothing of it was under way
        ([[2, 8, None, 0], [2, 8, None, 0]], True),
        ([[3, 500, 1e308, 0]], True),
    ],
)
def test_prefetchers_that_are_too_much(tmp_path, prioritized, entries, taken):
    """More than this machine can have had under way is refused, and nothing has changed."""
    with make_buffer(tmp_path / "one", prioritized, 5) as buffer:
        run = Run(buffer, tmp_path)
        run.do("add", 40)
        with_prefetch(buffer.save(tmp_path / "saved", 1), entries)
        run.do("add", 5)
        if not taken:
            with pytest.raises(errors.FormatError, match="prefetch"):
                buffer.load(tmp_path / "saved", 1)
            assert buffer.add_count == 45
        else:
            buffer.load(tmp_path / "saved", 1)
            assert buffer.add_count == 40
        run.do("add", 5)
        assert len(buffer.sample(8).id) == 8
        buffer.save(tmp_path / "saved", 2)
        buffer.load(tmp_path / "saved", 2)


class Stopped(BaseException):
    """As Ctrl-C: no handler of errors takes it."""


@pytest.mark.parametrize("error", [ValueError, Stopped])
def test_a_schedule_that_raises_does_not_break_a_load(tmp_path, error):
    """`load` calls no schedule: the exception comes from the call that draws, and may be over."""
    broken = False

    def beta(add_count):
        if broken:
            raise error("no exponent")
        return schedule(add_count)

    def make(path):
        return diskreplay.PrioritizedReplayBuffer(
            path, observation_space=Box(0, 255, (4,), "uint8"), action_space=Discrete(3),
            capacity=CAPACITY, batch_size=8, segment_rows=8, seed=5, beta=beta,
        )  # fmt: skip

    with make(tmp_path / "one") as buffer:
        Run(buffer, None).do("add", 40)
        with buffer.prefetch(2) as batches:
            next(batches)
            buffer.save(tmp_path / "saved", 1)
            expected = [np.array(next(batches).weight) for _ in range(2)]
    with make(tmp_path / "two") as buffer:
        Run(buffer, None).do("add", 7)
        broken = True
        buffer.load(tmp_path / "saved", 1)
        assert buffer.add_count == 40
        with buffer.prefetch(2) as batches:
            if error is Stopped:
                for _ in range(2):
                    with pytest.raises(Stopped):
                        next(batches)
                broken = False
                for wanted in expected:
                    np.testing.assert_array_equal(next(batches).weight, wanted)
            else:
                with pytest.raises(ValueError, match="no exponent"):
                    next(batches)
            broken = False
            for _ in range(4):
                next(batches)
        buffer.save(tmp_path / "saved", 2)


def test_a_load_draws_nothing(tmp_path):
    """Batches under way take memory and time: they are drawn by the first call that they matter to.
    A buffer that is closed, or loads again, before has not drawn them."""
    with make_buffer(tmp_path / "one", True, 5) as buffer:
        Run(buffer, None).do("add", 40)
        with buffer.prefetch(2) as batches:
            next(batches)
            buffer.save(tmp_path / "saved", 1)
            went_on = [next(batches).id.tolist() for _ in range(4)]
    with make_buffer(tmp_path / "two", True, 6) as buffer:
        for _ in range(3):
            buffer.load(tmp_path / "saved", 1)
    with make_buffer(tmp_path / "two", True, 6) as buffer:
        assert [buffer.sample().id.tolist() for _ in range(4)] == went_on


@pytest.mark.parametrize("before", [0, 2])
def test_ctrl_c_amid_a_take_loses_no_more_than_that_batch(tmp_path, before):
    """And a run that is saved after it is resumed as it goes on. Ctrl-C amid the first take, where
    all that was under way is drawn, could lose the numbers of one of these batches."""
    with make_buffer(tmp_path / "one", True, 5) as buffer:
        Run(buffer, None).do("add", 40)
        batches = buffer.prefetch(3)
        next(batches)
        buffer.save(tmp_path / "first", 1)
        wanted = [next(batches).id.tolist() for _ in range(12)]

    def is_cut(number):
        one.load(tmp_path / "first", 1)
        with one.prefetch(3) as batches:
            taken = [next(batches).id.tolist() for _ in range(before)]
            cut = interrupted(lambda: taken.append(next(batches).id.tolist()), number, ctrl_c)
            one.save(tmp_path / "second", 1)
            other.load(tmp_path / "second", 1)
            went_on = [next(batches).id.tolist() for _ in range(5)]
            with other.prefetch(3) as again:
                assert [next(again).id.tolist() for _ in range(5)] == went_on, number
            lost = taken + went_on != wanted[: len(taken) + 5]
            behind = len(taken) + lost
            assert went_on == wanted[behind : behind + 5], number
        return cut, lost

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with make_buffer(tmp_path / "two", True, 6) as one:
            with make_buffer(tmp_path / "three", True, 7) as other:
                step = effort(17, 5, 1)
                end = next(number for number in itertools.count(0, step) if not is_cut(number)[0])
                found = [is_cut(number) for number in range(max(end - step - 12, 0), end)]
    finally:
        signal.signal(signal.SIGINT, handler)
    assert end > (40 if before else 300)
    # Nobody but its caller can keep what a function returns.
    assert 0 < sum(lost for _cut, lost in found) < 15


def ctrl_c():
    signal.raise_signal(signal.SIGINT)  # a real one, which waits for what must not stop


def test_so_many_prefetchers_and_no_more(tmp_path):
    with make_buffer(tmp_path / "one", False, 5) as buffer:
        Run(buffer, None).do("add", 20)
        for _ in range(1024):
            buffer.prefetch(1)
        with pytest.raises(errors.UsageError, match="close"):
            buffer.prefetch(1)
        buffer.save(tmp_path / "saved", 1)
        buffer.load(tmp_path / "saved", 1)


FORKED = """
import os, sys
from pathlib import Path
import diskreplay
from tests.test_resume_prefetch import Run, make_buffer

with make_buffer(Path(sys.argv[1]), False, 1) as buffer:
    Run(buffer, None).do("add", 40)
    batches = buffer.prefetch(2)
    next(batches)
    child = os.fork()
    if not child:
        try:
            next(batches)
        except diskreplay.ForkedError:
            batches.close()  # nothing there to wait for
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    next(batches)
"""


def test_a_forked_child_is_told_so_and_does_not_wait_for_a_thread_that_is_not_there(tmp_path):
    processes.run(FORKED, tmp_path / "store", check=True)
