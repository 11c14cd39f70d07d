"""Batches read ahead: which ones, how many, and what becomes of them."""

import gc
import signal
import threading
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay import errors
from diskreplay.batch_reader import BatchReader
from diskreplay.prefetch import Prefetcher
from diskreplay.sequence_reader import SequenceReader
from tests import processes
from tests.effort import effort

FRAME = (40, 40)


def make(path, *, prioritized=True, **changed):
    options = {
        "observation_space": Box(0, 255, FRAME, "uint8"),
        "action_space": Discrete(4),
        "capacity": 300,
        "stack_size": 3,
        "update_horizon": 2,
        "batch_size": 16,
        "segment_rows": 32,
        "compressor": "lz4",
        "seed": 11,
        **changed,
    }
    kind = diskreplay.PrioritizedReplayBuffer if prioritized else diskreplay.ReplayBuffer
    return kind(path, **options)


def record(buffer, count):
    for i in range(buffer.add_count, buffer.add_count + count):
        buffer.add(
            np.full(FRAME, i % 251, np.uint8), i % 4, i / 7, i % 23 == 22, i % 31 == 30,
            np.full(FRAME, (i + 1) % 251, np.uint8),
        )  # fmt: skip


def kept(batch):
    """A copy of all arrays: a prefetched batch is valid until the next one is taken."""
    return {name: np.array(value) for name, value in batch.asdict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def learn(buffer, batch):
    """Priorities that depend on the batch and on nothing else."""
    if isinstance(buffer, diskreplay.PrioritizedReplayBuffer):
        buffer.update_priorities(batch["id"], 0.1 + (batch["id"] * 7919 % 13))


class HandDriven:
    """What `prefetch` is documented to be, in words of `sample`: batches wait in a list."""

    def __init__(self, buffer, depth, **options):
        self.buffer, self.options = buffer, options
        self.waiting = [kept(buffer.sample(**options)) for _ in range(depth)]

    def take(self):
        self.waiting.append(kept(self.buffer.sample(**self.options)))
        return self.waiting.pop(0)


def threads():
    return {t for t in threading.enumerate() if t.name == "diskreplay prefetch"}


@pytest.fixture(autouse=True)
def no_leaked_threads():
    before = threads()
    yield
    assert threads() <= before


# -- which batches


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("depth", "readers"), [(1, 1), (1, 2), (2, 1), (5, 3)])
@pytest.mark.costly(3)
def test_each_batch_was_drawn_depth_takes_ago(tmp_path, depth, readers, prioritized):
    with (
        make(tmp_path / "one", prioritized=prioritized) as buffer,
        make(tmp_path / "two", prioritized=prioritized) as twin,
    ):
        record(buffer, 100)
        record(twin, 100)
        by_hand = HandDriven(twin, depth)
        with buffer.prefetch(depth, threads=readers) as ahead:
            assert ahead.depth == depth
            for _ in range(60):  # over wraps of the ring
                one, other = kept(next(ahead)), by_hand.take()
                assert_equal(one, other)
                learn(buffer, one)
                learn(twin, other)
                record(buffer, 9)
                record(twin, 9)


@pytest.mark.parametrize("there", [0, 1, 2])
def test_no_more_threads(tmp_path, monkeypatch, there):
    """What a limit of a container says no to: fewer do, and without any nothing is drawn."""
    start = threading.Thread.start
    started = []

    def limited(thread):
        if thread.name == "diskreplay prefetch":
            if len(started) == there:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    with make(tmp_path / "one") as buffer, make(tmp_path / "two") as twin:
        record(buffer, 100)
        record(twin, 100)
        by_hand = HandDriven(twin, 3)
        with buffer.prefetch(3, threads=4) as ahead:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", limited)
                if there:
                    for _ in range(10):
                        assert_equal(kept(next(ahead)), by_hand.take())
                    assert len(started) == there
                else:
                    for _ in range(2):
                        with pytest.raises(errors.UsageError, match=r"start a thread.*ulimit"):
                            next(ahead)
                    buffer.save(tmp_path / "saved", 1)
            for _ in range(10):
                assert_equal(kept(next(ahead)), by_hand.take())


def test_batch_size_and_beta_schedule(tmp_path):
    def beta(add_count):
        return add_count / 1000

    with make(tmp_path / "one") as buffer, make(tmp_path / "two") as twin:
        record(buffer, 100)
        record(twin, 100)
        learn(buffer, kept(buffer.sample()))
        learn(twin, kept(twin.sample()))
        by_hand = HandDriven(twin, 2, batch_size=5, beta=beta)
        with buffer.prefetch(2, 5, beta=beta) as ahead:
            for _ in range(10):
                one = kept(next(ahead))
                assert len(one["id"]) == 5
                assert_equal(one, by_hand.take())
                record(buffer, 4)
                record(twin, 4)


def test_priorities_are_depth_updates_old(tmp_path):
    """All priority is moved to one row: the batches under way are the last without it."""
    with make(tmp_path / "store") as buffer:
        record(buffer, 80)
        ids = np.arange(int(buffer._rows.store.count[0]))
        buffer.update_priorities(ids, np.where(ids == 3, 1.0, 0.0))
        with buffer.prefetch(3) as ahead:
            assert set(next(ahead).id.tolist()) == {3}
            buffer.update_priorities(ids, np.where(ids == 7, 1.0, 0.0))
            drawn = [set(next(ahead).id.tolist()) for _ in range(5)]
        assert drawn == [{3}, {3}, {3}, {7}, {7}]


def test_closing_puts_the_batches_under_way_back(tmp_path):
    """Draws that nobody took come again, so a loop that prefetched and one that did not agree."""
    with make(tmp_path / "one") as buffer, make(tmp_path / "two") as twin:
        for each in (buffer, twin):
            record(each, 100)
        with buffer.prefetch(4) as ahead:
            for _ in range(7):
                assert_equal(kept(next(ahead)), kept(twin.sample()))
        for _ in range(8):
            assert_equal(kept(buffer.sample()), kept(twin.sample()))


STEPS = st.lists(
    st.sampled_from(["take", "take", "take", "add", "learn", "sample", "save", "load", "again"]),
    max_size=40,
)


@given(
    depth=st.integers(1, 4), readers=st.integers(2, 4), prioritized=st.booleans(), steps=STEPS,
    size=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=effort(8, 15), deadline=None)
def test_what_is_drawn_does_not_depend_on_how_many_threads_read(
    tmp_path_factory, depth, readers, prioritized, steps, size
):
    """The same calls on two stores, one with a single thread."""
    place = tmp_path_factory.mktemp("threads")
    with (
        make(place / "one", prioritized=prioritized) as one,
        make(place / "many", prioritized=prioritized) as many,
    ):
        both = [one, many]
        ahead = []
        for buffer, threads_ in zip(both, (1, readers), strict=True):
            record(buffer, 60)
            buffer.save(place / "saved" / buffer.path.name, 0)
            ahead.append(buffer.prefetch(depth, size, threads=threads_))
        for number, step in enumerate(steps):
            found = []
            for at, buffer in enumerate(both):
                if step in ("take", "learn"):
                    found.append(kept(next(ahead[at])))
                elif step == "sample":
                    found.append(kept(buffer.sample(size)))
                elif step == "add":
                    record(buffer, 7)
                elif step == "save":
                    buffer.save(place / "saved" / buffer.path.name, number)
                elif step == "load":
                    buffer.load(place / "saved" / buffer.path.name)
                else:
                    ahead[at].close()
                    ahead[at] = buffer.prefetch(depth, size, threads=(1, readers)[at])
                if step == "learn":
                    learn(buffer, found[at])
            if found:
                assert_equal(*found)


@pytest.mark.parametrize("readers", [1, 3])
def test_two_prefetchers(tmp_path, readers):
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
        with (
            buffer.prefetch(2, threads=readers) as one,
            buffer.prefetch(3, 4, threads=readers) as other,
        ):
            for _ in range(20):
                assert next(one).observation.shape == (16, 3, *FRAME)
                assert next(other).observation.shape == (4, 3, *FRAME)
                record(buffer, 3)
        buffer.sample()


# -- how many, and in which memory


def test_never_more_and_never_less_than_depth_under_way(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
        drawn = 0
        draw = buffer._draw

        def counted(*arguments):
            nonlocal drawn
            drawn += 1
            return draw(*arguments)

        monkeypatch.setattr(buffer, "_draw", counted)
        with buffer.prefetch(3) as ahead:
            buffer._draw_pending()
            assert drawn == 0  # so that it does not matter when it was made
            for taken in range(1, 10):
                next(ahead)
                buffer._draw_pending()
                assert drawn == 3 + taken


def test_a_batch_is_valid_until_the_next_one_is_taken(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
        memory = set()
        with buffer.prefetch(2) as ahead:
            for _ in range(30):
                batch = next(ahead)
                before = kept(batch)
                record(buffer, 40)  # seals, evicts, and leaves the reader all the time it needs
                assert_equal(before, kept(batch))
                frames = batch.observation[:, -1, 0, 0]
                np.testing.assert_array_equal(frames, buffer_frames(batch))
                memory.add(batch.observation.__array_interface__["data"][0])
        assert len(memory) <= 4  # two under way, one in hand, one just given back


def buffer_frames(batch):
    """Row to frame: each 31 or 23 steps a final row comes in between, so go by the reward."""
    horizon = np.where(batch.steps == 2, 2, 1)
    first = (batch.reward * 7 - np.where(horizon == 2, 0.99, 0)) / np.where(horizon == 2, 1.99, 1)
    return np.round(first).astype(np.int64) % 251


# -- closing


def test_close(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 60)
        ahead = buffer.prefetch()
        assert iter(ahead) is ahead
        next(ahead)
        assert len(threads()) == 1
        ahead.close()
        assert not threads()
        ahead.close()
        with pytest.raises(errors.ClosedError, match="prefetch"):
            next(ahead)
        next(iter(buffer.prefetch()))  # another one, which the buffer closes


def test_closing_the_buffer_closes_its_prefetchers(tmp_path):
    buffer = make(tmp_path / "store")
    record(buffer, 60)
    first, second = buffer.prefetch(1), buffer.prefetch(4)
    next(first)
    buffer.close()
    assert not threads()
    for ahead in (first, second):
        with pytest.raises(errors.ClosedError):
            next(ahead)
        ahead.close()
    with pytest.raises(errors.ClosedError):
        buffer.prefetch()


def test_a_prefetcher_that_was_dropped_keeps_no_thread_after_the_buffer(tmp_path):
    buffer = make(tmp_path / "store")
    record(buffer, 60)
    next(buffer.prefetch())
    gc.collect()
    record(buffer, 60)
    buffer.save(tmp_path / "checkpoints", 1)
    buffer.close()
    assert not threads()


@pytest.mark.parametrize("readers", [1, 3])
def test_closing_midway_leaves_the_gate_open(tmp_path, readers):
    """Batches under way hold the store's `rwlock`; if one were lost, no segment could be sealed."""
    with make(tmp_path / "store") as buffer:
        record(buffer, 60)
        for _ in range(10):
            with buffer.prefetch(6, threads=readers) as ahead:
                next(ahead)
                assert len(threads()) == readers
        record(buffer, 700)
        buffer.flush()
        buffer.sample()


# -- errors


@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("beta", ["x", -0.5, float("nan")])
def test_a_beta_that_is_none_is_refused_by_the_call(tmp_path, beta, prioritized):
    with make(tmp_path / "store", prioritized=prioritized) as buffer:
        record(buffer, 30)
        view = buffer.sequences(3, prioritized=prioritized)
        with diskreplay.ReplayUnion([buffer]) as union:
            for each in (buffer, view, union):
                with pytest.raises(errors.InvalidInputError, match="beta"):
                    each.prefetch(2, beta=beta)
                with each.prefetch(2, beta=0.5) as ahead:  # nothing is left of the refused one
                    assert len(next(ahead).weight)


def test_nothing_to_sample(tmp_path):
    with make(tmp_path / "store") as buffer:
        with buffer.prefetch() as ahead:
            for _ in range(2):
                with pytest.raises(errors.EmptyBufferError):
                    next(ahead)
            record(buffer, 30)
            next(ahead)


@pytest.mark.parametrize("readers", [1, 2])
def test_an_error_of_the_background_thread_comes_with_its_batch(tmp_path, monkeypatch, readers):
    with make(tmp_path / "store") as buffer, make(tmp_path / "twin") as twin:
        record(buffer, 60)
        record(twin, 60)
        with make(tmp_path / "third") as third:
            record(third, 60)
            rotten = [kept(third.sample())["id"].tolist() for _ in range(3)][-1]
        reader = buffer._rows._batch_reader
        gather, calls = reader._rows, []

        def third_fails(column, ids):
            calls.append(threading.current_thread())
            if ids.tolist() == rotten:
                raise errors.CorruptSegmentError("rotten")
            return gather(column, ids)

        monkeypatch.setattr(reader, "_rows", third_fails)
        with buffer.prefetch(2, threads=readers) as ahead:
            for i in range(8):
                expected = kept(twin.sample())
                if i == 2:
                    with pytest.raises(errors.CorruptSegmentError, match="rotten"):
                        next(ahead)
                else:
                    assert_equal(kept(next(ahead)), expected)
            assert all(thread.name == "diskreplay prefetch" for thread in calls)
        record(buffer, 400)
        buffer.flush()


@pytest.mark.parametrize(
    ("kind", "what"),
    [("buffer", "map"), *((k, w) for k in ("view", "union of views") for w in ("map", "reading"))],
)
def test_an_error_says_which_new_windows_it_has_taken_along(tmp_path, monkeypatch, kind, what):
    expected = undisturbed_draws(tmp_path / "twin", kind, 4)
    read, reads = SequenceReader.read, []

    def fails(batch):
        if ids(batch) == expected[1]:
            raise KeyError("unknown")
        return batch

    def rots(reader, drawn, *arguments):
        reads.append(1)
        if len(reads) == (2 if kind == "view" else 4):  # of a union its second member's
            drawn.guard.release()
            raise errors.CorruptSegmentError("rotten")
        return read(reader, drawn, *arguments)

    if what == "reading":
        monkeypatch.setattr(SequenceReader, "read", rots)
    sources = Sources(tmp_path / "own")
    source, _ = sources.get(kind)
    with source.prefetch(2, map=fails if what == "map" else None) as ahead:
        assert ids(next(ahead)) == expected[0]
        with pytest.raises((KeyError, errors.CorruptSegmentError)) as caught:
            next(ahead)
        assert [ids(next(ahead)) for _ in range(2)] == expected[2:]
        if kind == "buffer":
            assert not len(ahead.lost)
            assert not hasattr(caught.value, "__notes__")
        else:
            assert source.gather(ahead.lost)["id"].tolist() == expected[1]
            assert str(ahead.lost.tolist()) in "".join(caught.value.__notes__)
    sources.close()


def test_a_save_on_another_thread_comes_before_or_after_a_take(tmp_path, monkeypatch):
    """It puts back what is under way: between asking for a batch and taking the oldest, nothing was
    left to take."""
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)

        def put_back():  # as a save does, and takes its time
            with buffer._lock, buffer._prefetchers.drained():
                time.sleep(0.1)

        with buffer.prefetch(2) as ahead:
            saver, ask = threading.Thread(target=put_back), ahead._ask

            def ask_while_another_saves():
                ask()
                if not saver.ident:
                    saver.start()
                    saver.join(0.05)

            monkeypatch.setattr(ahead, "_ask", ask_while_another_saves)
            for _ in range(5):
                kept(next(ahead))
            saver.join()


def test_an_error_of_the_draw_comes_in_its_turn_and_is_over_with_its_cause(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 60)
        with buffer.prefetch(2) as ahead:
            next(ahead)
            ids = np.arange(int(buffer._rows.store.count[0]))
            buffer.update_priorities(ids, np.zeros(len(ids)))
            for _ in range(ahead.depth):  # drawn before
                next(ahead)
            with pytest.raises(errors.EmptyBufferError):
                next(ahead)
            buffer.update_priorities(ids, np.ones(len(ids)))
            for _ in range(4):
                assert len(next(ahead).id) == 16
            assert len(ahead._jobs) == ahead.depth


# -- Ctrl-C


@pytest.fixture
def ctrl_c():
    """What Python does by itself where nobody has said anything else."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    signal.raise_signal(signal.SIGINT)


class Sources:
    """A buffer, a view, a union and a union of views, with the same rows each time."""

    def __init__(self, path):
        self.path = path
        options = {"prioritized": False, "capacity": None, "batch_size": 4}
        self.buffers = [make(path / name, **options) for name in ("one", "other")]
        self.union = diskreplay.ReplayUnion(self.buffers, mixture=[0.5, 0.5], seed=1)
        sequences = {"online": True, "batch_size": 4}
        self.view = self.buffers[0].sequences(2, name="own", **sequences)
        self.views = self.union.sequences(2, name="all", **sequences)
        for buffer in self.buffers:
            record(buffer, 100)

    def get(self, kind):
        """What draws, and what saves it."""

        def save():
            self.buffers[0].save(self.path / "saved", 1)

        return {
            "buffer": (self.buffers[0], save),
            "view": (self.view, save),
            "union": (self.union, lambda: self.union.save(self.path / "union")),
            "union of views": (self.views, lambda: self.views.save(self.path / "union")),
        }[kind]

    def close(self):
        for each in (self.views, self.union, *self.buffers):
            each.close()


KINDS = ["buffer", "view", "union", "union of views"]


def ids(batch):
    return batch["id"].tolist()


def undisturbed_draws(path, kind, count):
    """What comes where nobody presses anything."""
    sources = Sources(path)
    with sources.get(kind)[0].prefetch(2) as ahead:
        found = [ids(next(ahead)) for _ in range(count)]
    sources.close()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_as_batches_are_put_back_loses_none(tmp_path, monkeypatch, ctrl_c, kind):
    cancel, pressed = Prefetcher._cancel, []

    def cancels(prefetcher):
        found = cancel(prefetcher)
        if not pressed:
            pressed.append(press())
        return found

    sources = Sources(tmp_path / "cut")
    source, save = sources.get(kind)
    with source.prefetch(2) as ahead:
        found = [ids(next(ahead))]
        with monkeypatch.context() as patch:
            patch.setattr(Prefetcher, "_cancel", cancels)
            with pytest.raises(KeyboardInterrupt):
                save()
        found += [ids(next(ahead)) for _ in range(3)]
    sources.close()
    assert found == undisturbed_draws(tmp_path / "twin", kind, 4)


@pytest.mark.parametrize("call", ["next", "save"])
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_as_somebody_waits_for_a_batch_loses_none(tmp_path, ctrl_c, kind, call):
    """The second batch is not ready until Ctrl-C was heard."""
    expected = undisturbed_draws(tmp_path / "twin", kind, 4)
    waiting, heard = threading.Event(), threading.Event()

    def slow(batch):
        if ids(batch) == expected[1] and not heard.is_set():
            assert waiting.wait(60)
            time.sleep(0.05)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert heard.wait(60)
        return ids(batch)

    def cut(ahead):
        waiting.set()
        next(ahead) if call == "next" else save()

    sources = Sources(tmp_path / "cut")
    source, save = sources.get(kind)
    with source.prefetch(2, map=slow, threads=2) as ahead:
        found = [next(ahead)]
        with pytest.raises(KeyboardInterrupt):
            cut(ahead)
        heard.set()
        for _ in range(3):
            found.append(next(ahead))
            assert len(ahead._jobs) == ahead.depth
    sources.close()
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_second_ctrl_c_keeps_from_closing_can_be_closed(tmp_path, monkeypatch, ctrl_c, kind):
    sources = Sources(tmp_path / "cut")
    source, _ = sources.get(kind)
    ahead, pending = source.prefetch(2), type(source)._draw_pending
    found = [ids(next(ahead))]
    with monkeypatch.context() as patch:
        patch.setattr(type(source), "_draw_pending", lambda it: (pending(it), press(), press()))
        with pytest.raises(KeyboardInterrupt):
            ahead.close()
    found.append(ids(next(ahead)))
    ahead.close()
    found += [ids(source.sample()) for _ in range(2)]
    sources.close()
    assert found == undisturbed_draws(tmp_path / "twin", kind, 4)


def test_ctrl_c_as_resumed_batches_are_read_loses_none(tmp_path, monkeypatch, ctrl_c):
    """They are drawn and read by the first take after a `load`."""
    sources = Sources(tmp_path / "cut")
    source, save = sources.get("buffer")
    ahead = source.prefetch(2)
    found = [ids(next(ahead))]
    save()
    ahead.close()
    source.load(tmp_path / "cut" / "saved")
    read, pressed = BatchReader.read, []

    def reads(*arguments):
        if len(pressed) < 2:
            pressed.append(press())
        return read(*arguments)

    with source.prefetch(2) as ahead:
        with monkeypatch.context() as patch:
            patch.setattr(BatchReader, "read", reads)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    next(ahead)
        found += [ids(next(ahead)) for _ in range(3)]
    sources.close()
    assert found == undisturbed_draws(tmp_path / "twin", "buffer", 4)


# -- save and load


def test_two_runs_that_save_during_prefetch_are_equal(tmp_path):
    def run(name):
        seen = []
        with make(tmp_path / name) as buffer:
            record(buffer, 90)
            with buffer.prefetch(3) as ahead:
                for i in range(30):
                    batch = kept(next(ahead))
                    seen.append(batch)
                    learn(buffer, batch)
                    record(buffer, 5)
                    if i % 7 == 3:
                        buffer.save(tmp_path / f"{name} checkpoints", i)
        return seen

    for one, other in zip(run("one"), run("two"), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_run_resumed_where_it_saved_draws_the_same(tmp_path, prioritized):
    def go_on(buffer, ahead):
        seen = []
        for _ in range(12):
            batch = kept(next(ahead))
            seen.append(batch)
            learn(buffer, batch)
        return seen

    with make(tmp_path / "store", prioritized=prioritized) as buffer:
        record(buffer, 90)
        with buffer.prefetch(3) as ahead:
            for _ in range(5):
                learn(buffer, kept(next(ahead)))
            buffer.save(tmp_path / "checkpoints", 1)
            went_on = go_on(buffer, ahead)
    with make(tmp_path / "fresh", prioritized=prioritized, seed=99) as buffer:
        buffer.load(tmp_path / "checkpoints", 1)
        with buffer.prefetch(3) as ahead:
            resumed = go_on(buffer, ahead)
    for one, other in zip(went_on, resumed, strict=True):
        assert_equal(one, other)


def test_load_during_prefetch(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 90)
        buffer.save(tmp_path / "checkpoints", 1)
        with buffer.prefetch(3) as ahead:
            before = [kept(next(ahead)) for _ in range(6)]
            record(buffer, 150)
            next(ahead)
            buffer.load(tmp_path / "checkpoints", 1)
            assert buffer.add_count == 90
            for expected in before:
                assert_equal(kept(next(ahead)), expected)


def test_load_that_fails_leaves_the_prefetcher_as_it_was(tmp_path):
    with make(tmp_path / "store") as buffer, make(tmp_path / "twin") as twin:
        record(buffer, 90)
        record(twin, 90)
        with buffer.prefetch(3) as ahead:
            for i in range(8):
                if i % 3 == 1:
                    with pytest.raises(errors.CheckpointNotFoundError):
                        buffer.load(tmp_path / "checkpoints", 1)
                assert_equal(kept(next(ahead)), kept(twin.sample()))


def test_load_of_an_empty_checkpoint_during_prefetch(tmp_path):
    """There is nothing to draw: the load is done, and the next take says what is missing."""
    with make(tmp_path / "store") as buffer:
        buffer.save(tmp_path / "checkpoints", 1)
        record(buffer, 90)
        with buffer.prefetch(2) as ahead:
            next(ahead)
            buffer.load(tmp_path / "checkpoints", 1)
            assert buffer.add_count == 0
            with pytest.raises(errors.EmptyBufferError):
                next(ahead)
            record(buffer, 30)
            for _ in range(5):
                assert next(ahead).id.max() < 30


READER = """
import sys
import numpy as np
import diskreplay
from tests.test_prefetch import buffer_frames, make, record

with make(sys.argv[1]) as buffer:
    record(buffer, 60)
    with diskreplay.open(sys.argv[1]) as reader, reader.prefetch(2, 8) as ahead:
        for _ in range(40):
            record(buffer, 11)
            batch = next(ahead)
            np.testing.assert_array_equal(batch.observation[:, -1, 0, 0], buffer_frames(batch))
"""


def test_a_reader_prefetches_what_another_buffer_writes(tmp_path):
    """In a process of its own: threads that wait for each other could not be stopped here."""
    processes.run(READER, tmp_path / "store", check=True)


# -- what is made of them


def test_map_is_called_on_the_thread_and_its_result_is_given(tmp_path):
    called = []

    def image(batch):
        called.append(threading.current_thread().name)
        return batch.id.copy(), batch.observation.astype("float32") / 255

    with make(tmp_path / "one") as buffer, make(tmp_path / "two") as twin:
        record(buffer, 100)
        record(twin, 100)
        with buffer.prefetch(2, map=image) as ahead, twin.prefetch(2) as plain:
            for _ in range(30):
                ids, image_of = next(ahead)
                batch = next(plain)
                np.testing.assert_array_equal(ids, batch.id)
                np.testing.assert_array_equal(image_of, batch.observation.astype("float32") / 255)
                record(buffer, 3)
                record(twin, 3)
    assert set(called) == {"diskreplay prefetch"}


def test_what_map_raises_comes_with_its_batch(tmp_path):
    def picky(batch):
        if batch.id[0] % 3 == 0:
            raise ZeroDivisionError(f"{batch.id[0]}")
        return batch

    with make(tmp_path / "one") as buffer, make(tmp_path / "two") as twin:
        record(buffer, 100)
        record(twin, 100)
        with buffer.prefetch(3, map=picky) as ahead:
            for _ in range(30):
                expected = twin.sample()
                if expected.id[0] % 3 == 0:
                    with pytest.raises(ZeroDivisionError, match=str(expected.id[0])):
                        next(ahead)
                else:
                    assert_equal(kept(next(ahead)), kept(expected))


def test_map_of_batches_that_a_load_draws(tmp_path):
    """They are drawn before anybody says what to make of them."""
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
        with buffer.prefetch(2) as ahead:
            next(ahead)
            buffer.save(tmp_path / "ckpt", 1)
            expected = [kept(next(ahead))["id"] for _ in range(4)]
        buffer.load(tmp_path / "ckpt")
    with make(tmp_path / "other") as buffer:
        buffer.load(tmp_path / "ckpt")
        record(buffer, 0)
        with buffer.prefetch(2, map=lambda batch: batch.id.copy()) as ahead:
            for ids in expected:
                np.testing.assert_array_equal(next(ahead), ids)


def test_map_that_is_none_or_gives_none(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
        with pytest.raises(errors.InvalidInputError, match="map: a function of a batch expected"):
            buffer.prefetch(map="to_torch")
        with buffer.prefetch(map=print) as ahead:
            with pytest.raises(errors.InvalidInputError, match="map: print returned None"):
                next(ahead)
