"""How windows are drawn: evenly, by priority, new ones first; and what is refused."""

import gc
import random
import threading
import time
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.errors import (
    CapacityError,
    ClosedError,
    EmptyBufferError,
    InvalidInputError,
    NotSampleableError,
    PriorityError,
    ShapeError,
    UnknownIdError,
    UsageError,
)
from diskreplay.prefetch import Prefetcher
from diskreplay.sequence_reader import SequenceReader
from diskreplay.sequences import Sequences
from tests.sequences.playing import Play

# Chi-square by degrees of freedom: what a fair draw exceeds once in a thousand.
FAIR = {19: 43.82, 29: 58.30}


def make_buffer(path, **options):
    options = {
        "observation_space": Box(0, 255, (3,), "uint8"), "action_space": Discrete(4),
        "capacity": 200, "extras": {"h": ((2,), "float32"), "log_prob": ((), "float32")},
    } | options  # fmt: skip
    return diskreplay.ReplayBuffer(path, **options)


def play(buffer, steps, length=10, start=0):
    """Episodes of so many steps, which terminate with a final row."""
    for i in range(start, start + steps):
        seen = np.full(3, i % 256, np.uint8)
        buffer.add(
            seen, i % 4, float(i), i % length == length - 1, False,
            next_observation=seen, h=np.full(2, i, np.float32), log_prob=-i,
        )  # fmt: skip


@pytest.fixture
def buffer(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        yield buffer


def chi_square(counts, expected):
    return float((np.square(counts - expected) / expected).sum())


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_are_drawn_evenly(buffer, stride):
    play(buffer, 60 if stride == 2 else 30)
    view = buffer.sequences(1, stride=stride, seed=3)
    assert len(view) == 30
    drawn = np.concatenate([view.sample(300).anchor for _ in range(20)])
    counts = np.array([(drawn == anchor).sum() for anchor in view.anchors()])
    # With a stride draws are stratified, which is more even than chance.
    assert chi_square(counts, 6000 / 30) < FAIR[29]
    assert counts.min() > 0


def test_nearly_no_row_is_an_anchor(buffer):
    play(buffer, 150, length=50)
    view = buffer.sequences(50, seed=1)
    assert len(view) == 3
    batch = view.sample(100)
    assert set(batch.anchor.tolist()) == {0, 51, 102}
    assert (batch.probability == 1 / 3).all()


@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_windows_are_drawn_in_proportion_to_a_power_of_their_priority(buffer, normalization):
    play(buffer, 20)
    view = buffer.sequences(
        1, prioritized=True, alpha=0.5, seed=3, weight_normalization=normalization
    )
    anchors = view.anchors()
    priorities = np.arange(20.0)
    assert view.update_priorities(anchors, priorities) == 0
    chances = np.sqrt(priorities) / np.sqrt(priorities).sum()
    drawn = [view.sample(200, beta=0.7) for _ in range(30)]
    for each in (view, buffer.sequences(3, name="even")):  # the second one has no use for it
        with pytest.raises(InvalidInputError, match="beta"):
            each.sample(8, beta="x")
    found = np.concatenate([batch.anchor for batch in drawn])
    counts = np.array([(found == anchor).sum() for anchor in anchors])
    assert counts[0] == 0
    assert chi_square(counts[1:], 6000 * chances[1:]) < FAIR[19]
    of_anchor = dict(zip(anchors.tolist(), chances.tolist(), strict=True))
    for batch in drawn:
        wanted = np.array([of_anchor[anchor] for anchor in batch.anchor.tolist()])
        np.testing.assert_allclose(batch.probability, wanted, rtol=1e-9)
        weights = (20 * wanted) ** -0.7
        largest = weights.max() if normalization == "batch" else (20 * chances[1]) ** -0.7
        np.testing.assert_allclose(batch.weight, weights / largest, rtol=1e-5)


def test_new_windows_have_the_largest_priority(buffer):
    play(buffer, 20)
    view = buffer.sequences(1, prioritized=True, alpha=1, seed=3)
    view.update_priorities(view.anchors(), np.full(20, 0.5))
    view.update_priorities([3], [7.0])
    view.update_priorities([3], [0.5])
    play(buffer, 10, start=20)
    probability = view.gather(view.anchors()).probability
    np.testing.assert_allclose(probability, [0.5 / 80] * 20 + [7 / 80] * 10)
    assert view.update_priorities([0, 1, 10], [1, 1, 1]) == 1  # 10 is a final row


def test_windows_that_left_are_ignored(buffer):
    play(buffer, 20)
    view = buffer.sequences(3, prioritized=True)
    first = view.anchors()[0]
    play(buffer, 300, start=20)
    assert view.update_priorities([first], [2.0]) == 1
    assert first not in view.anchors()
    with pytest.raises(NotSampleableError, match="names no window"):
        view.gather([first])


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_online_gives_each_new_window_once(tmp_path, num_envs, prioritized):
    rng = random.Random(4)
    game = Play(tmp_path / "replay", rng, num_envs=num_envs, kept=80)
    with game.buffer as buffer:
        for _ in range(30):
            game.step()
        views = [
            buffer.sequences(3, ends=ends, online=True, prioritized=prioritized, name=ends, seed=1)
            for ends in ("inside", "shift", "pad", "cross")
        ]
        before = [set(view.anchors().tolist()) for view in views]
        seen = [[] for _ in views]
        for _ in range(40):
            for _ in range(4):
                game.step()
            for view, old, found in zip(views, before, seen, strict=True):
                new = set(view.anchors().tolist()) - old
                if len(view) == 0:
                    continue
                batch = view.sample(5 * num_envs)
                waiting = new - set(found)
                given = batch.anchor[: len(waiting)].tolist()
                assert set(given) <= waiting
                assert len(set(given)) == min(len(waiting), 5 * num_envs)
                found += given
                np.testing.assert_allclose(batch.probability, view.gather(batch.anchor).probability)
        assert all(len(found) == len(set(found)) > 20 for found in seen)


def test_a_batch_is_filled_again(buffer):
    play(buffer, 100)
    view = buffer.sequences(4, burn_in=2, seed=1)
    batch = view.sample(8)
    memory = batch.observation
    again = view.sample(8, out=batch)
    assert again is batch
    assert batch.observation.ctypes.data == memory.ctypes.data
    wanted = view.gather(batch.anchor)
    for name in wanted:
        if name not in ("weight", "probability"):
            np.testing.assert_array_equal(batch[name], wanted[name], err_msg=name)
    with pytest.raises(InvalidInputError, match="SequenceBatch expected"):
        view.sample(8, out=buffer.sample(8))


def test_batches_do_not_share_memory(buffer):
    play(buffer, 100)
    view = buffer.sequences(4, returns_to_go=1.0, seed=1)
    batches = [view.sample(8) for _ in range(6)]
    kept = [{name: array.copy() for name, array in batch.asdict().items()} for batch in batches]
    view.sample(8)
    view.sample(8, out=view.sample(8))
    for batch, before in zip(batches, kept, strict=True):
        for name, array in before.items():
            np.testing.assert_array_equal(batch[name], array, err_msg=name)


@pytest.mark.parametrize(
    "name",
    ["observation", "action", "log_prob", "reward", "is_terminal", "learn", "returns", "id",
     "anchor", "weight", "probability"],
)  # fmt: skip
@pytest.mark.parametrize("look", [lambda array: array, lambda array: array[3:].T, memoryview])
@pytest.mark.costly(6)
def test_what_is_kept_of_a_batch_stays_as_it_is(buffer, name, look):
    play(buffer, 100)
    view = buffer.sequences(4, seed=1)
    kept = [look(view.sample(8)[name]) for _ in range(10)]
    before = [np.array(each) for each in kept]
    gc.collect()
    out = view.sample(8)
    for _ in range(20):
        view.sample(8)
        view.sample(8, out=out)
    for each, array in zip(kept, before, strict=True):
        np.testing.assert_array_equal(each, array)


@pytest.mark.parametrize("name", ["observation", "action", "log_prob", "reward", "anchor"])
def test_the_next_batch_knows_nothing_of_a_shape_or_flag_that_was_set(buffer, name):
    play(buffer, 100)
    view = buffer.sequences(4, seed=1)
    shape = view.sample(8)[name].shape
    for _ in range(6):
        batch = view.sample(8)
        for array in (batch[name], batch.window()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5, of shapes
                array.shape = (-1,)
            array.flags.writeable = False
        del batch, array
        again = view.sample(8)
        assert again[name].shape == shape
        assert again[name].flags.writeable
        assert again.window().ndim > 1


def test_no_windows_read_by_threads(buffer):
    play(buffer, 100)
    assert buffer.sequences(4).gather([], threads=2).reward.shape == (0, 5)
    buffer.clear()
    assert buffer.sequences(4).gather([]).reward.shape == (0, 5)


@pytest.mark.parametrize("threads", [True, 0, 1.5, [1], np.array([1, 2])])
def test_bad_threads(buffer, threads):
    play(buffer, 100)
    with pytest.raises(InvalidInputError, match="threads"):
        buffer.sequences(4).sample(8, threads=threads)


@pytest.mark.parametrize("name", ["observation", "log_prob", "reward", "is_terminal", "anchor"])
def test_memory_that_nobody_looks_at_is_used_again(buffer, name):
    play(buffer, 100)
    view, places = buffer.sequences(4, seed=1), set()
    for _ in range(30):
        batch = view.sample(8)
        places.add(batch[name].__array_interface__["data"][0])
        assert len(view.sample(5)) == 5  # of another size
    assert len(places) <= 6


@pytest.mark.parametrize("ends", ["pad", "cross"])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("out", [False, True])
def test_whoever_has_one_array_of_a_batch_keeps_it(tmp_path, stack, ends, out):
    """Also a part of it, of a batch that is gone, or that others have looked at in part."""

    def leaves(value):
        if isinstance(value, dict):
            return [leaf for each in value.values() for leaf in leaves(each)]
        return [value]

    space = Dict({"a": Box(0, 255, (3,), "uint8"), "b": Box(0, 255, (2, 2), "uint8")})
    with make_buffer(tmp_path / "replay", observation_space=space, stack_size=stack) as buffer:
        for i in range(100):
            seen = {"a": np.full(3, i, np.uint8), "b": np.full((2, 2), i, np.uint8)}
            buffer.add(
                seen, i % 4, float(i), i % 10 == 9, False, h=np.full(2, i, np.float32), log_prob=i
            )
        view = buffer.sequences(4, ends=ends, state="h", returns_to_go=1.0, seed=1)
        names = list(view.sample(8).keys())
        assert {"observation", "action", "h", "log_prob", "returns_to_go", "learn"} <= set(names)
        for name in [*names, "observation/a"]:
            batch = view.sample(8, out=view.sample(8)) if out else view.sample(8)
            shown = batch.window(name) if "/" in name else batch[name]
            kept = [leaf[3:] for leaf in leaves(shown)]
            before = [leaf.copy() for leaf in kept]
            del batch, shown
            for _ in range(5):
                other = view.sample(8)
                for others in (other.asdict(), view.sample(8, out=other).asdict()):
                    for leaf in leaves(others):
                        assert not any(np.shares_memory(leaf, mine) for mine in kept), name
            for leaf, was in zip(kept, before, strict=True):
                np.testing.assert_array_equal(leaf, was)


@pytest.mark.parametrize("again", [False, True])
def test_another_thread_that_draws_amid_a_call_gets_other_memory(buffer, again):
    """Wherever that thread has its turn once memory was given back."""

    class Remembered(list):
        def append(self, memory):
            super().append(memory)
            if not others:
                others.append(None)
                thread = threading.Thread(target=lambda: others.append(view.sample(8)))
                thread.start()
                thread.join()

    play(buffer, 100)
    view = buffer.sequences(4, seed=1)
    out, others = view.sample(8) if again else None, []
    reader = view._view._reader
    reader._kept = Remembered(reader._kept)
    batch, other = view.sample(8, out=out), others[1]
    for name in batch:
        assert not np.shares_memory(batch[name], other[name]), name
        if name not in ("weight", "probability"):
            np.testing.assert_array_equal(batch[name], view.gather(batch.anchor)[name])


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_that_nobody_has_looked_at_keeps_its_windows(buffer, again):
    play(buffer, 100)
    view, twin = buffer.sequences(4, seed=1), buffer.sequences(4, seed=1, name="twin")
    batches = [view.sample(8) for _ in range(6)]
    if again:
        assert len([twin.sample(8) for _ in batches]) == 6  # the same numbers
        batches = [view.sample(8, out=batch) for batch in batches]
    for batch in batches:
        for name, expected in twin.sample(8).asdict().items():
            np.testing.assert_array_equal(batch[name], expected)
            assert batch[name] is getattr(batch, name)


def test_names_have_one_order(buffer):
    """Whatever was looked at first, and wherever the windows were read into."""
    play(buffer, 60)
    view = buffer.sequences(5, returns_to_go=1.0, seed=1)
    expected = list(view.sample(4))
    assert expected[:3] == ["observation", "action", "reward"]
    for first in expected:
        batch = view.sample(4)
        assert batch[first] is batch[first]
        assert list(batch) == list(batch.asdict()) == expected
        assert list(view.sample(4, out=batch)) == expected
    other = buffer.sequences(5, returns_to_go=1.0, seed=2, name="other")
    assert list(other.sample(4, out=batch)) == expected


def test_state_and_fields(buffer):
    play(buffer, 40)
    view = buffer.sequences(4, burn_in=2, state=("h",), seed=1)
    batch = view.sample(8)
    assert batch.h.shape == (8, 2)
    assert batch.log_prob.shape == (8, 7)
    first = batch.id[np.arange(8), batch.observed.argmax(axis=1)]
    np.testing.assert_array_equal(batch.h, buffer.take("h", first))
    view = buffer.sequences(4, fields=["log_prob"], name="few")
    assert "action" not in view.sample(2)
    assert "h" not in view.sample(2)
    view = buffer.sequences(4, fields=["action"], state="h", name="others")
    assert view.sample(2).action.shape == (2, 5)
    assert view.sample(2).h.shape == (2, 2)


def test_nested_spaces(tmp_path):
    space = Dict({"a": Box(0, 255, (2, 2), "uint8"), "b": Box(-1, 1, (3,), "float32")})
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=space, action_space=Dict({"x": Discrete(3)}),
        capacity=100, stack_size=2,
    ) as buffer:  # fmt: skip
        for i in range(20):
            seen = {"a": np.full((2, 2), i, np.uint8), "b": np.full(3, i / 20, np.float32)}
            buffer.add(seen, {"x": i % 3}, 0.0, False, False)
        batch = buffer.sequences(3, n_step=2).gather([5])
        assert batch.observation["a"][0, :, :, 0, 0].tolist() == [
            [4, 5], [5, 6], [6, 7], [7, 8], [8, 9]
        ]  # fmt: skip
        assert batch.observation["b"].shape == (1, 5, 2, 3)
        assert batch.action["x"].tolist() == [[2, 0, 1, 2, 0]]


def test_priority_is_between_the_mean_and_the_largest_error(buffer):
    view = buffer.sequences(3, eta=0.75)
    td = [[-4.0, 1.0, 9.0], [1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]
    learn = [[True, True, False], [True, True, True], [False, False, False]]
    assert view.priority(td, learn).tolist() == [0.75 * 4 + 0.25 * 2.5, 1.0, 0.0]
    with pytest.raises(ShapeError, match="one shape"):
        view.priority(td, learn[:2])


def test_prefetched_batches_are_those_of_the_order_of_calls(tmp_path):
    def run(name, pauses):
        with make_buffer(tmp_path / name) as buffer:
            play(buffer, 60)
            view = buffer.sequences(3, prioritized=True, seed=5)
            found = []
            with view.prefetch(3, 4) as batches:
                for i in range(20):
                    batch = next(batches)
                    found.append((batch.anchor.tolist(), batch.reward.tolist()))
                    pauses(i)
                    view.update_priorities(batch.anchor, np.arange(1.0, 5.0) + i)
                    play(buffer, 2, start=60 + 2 * i)
            found.append(view.sample(4).anchor.tolist())
            return found

    waiting = threading.Event()
    slow = run("slow", lambda i: waiting.wait(0.005 * (i % 3)))
    assert run("fast", lambda i: None) == slow


def test_one_prefetcher_at_a_time(buffer):
    play(buffer, 20)
    view = buffer.sequences(3)
    with view.prefetch(2, 3) as batches:
        assert next(batches).reward.shape == (3, 4)
        with pytest.raises(UsageError, match="a prefetcher already"):
            view.prefetch(2, 3)
    view.prefetch(2, 3).close()


def test_online_windows_that_a_prefetcher_gives_back_come_again(buffer):
    play(buffer, 20)
    view = buffer.sequences(3, online=True, seed=1)
    play(buffer, 20, start=20)
    new = view.anchors()[view.anchors() >= 22].tolist()
    with view.prefetch(3, 4) as batches:
        found = next(batches).anchor.tolist()
    while len(found) < len(new):
        found += view.sample(4).anchor.tolist()
    assert found == new


@pytest.mark.parametrize("saves", [False, True])
def test_a_new_window_comes_once_whoever_draws_beside_a_prefetcher(tmp_path, saves):
    """Of what a prefetcher had under way, not of what others were handed since it drew that."""
    with make_buffer(tmp_path / "replay") as buffer:
        play(buffer, 20)
        view = buffer.sequences(3, online=True, seed=1)
        play(buffer, 60, start=20)
        new = view.anchors()[view.anchors() >= 22].tolist()
        batches, found = view.prefetch(2, 4), []
        for _ in range(3):
            found += next(batches).anchor.tolist()  # and two more are under way
            found += view.sample(4).anchor.tolist()
        if saves:
            buffer.save(tmp_path / "saved", 1)
        else:
            batches.close()
        found += view.sample(4).anchor.tolist()
        beside = list(found)
        while len(beside) < len(new):
            beside += (next(batches) if saves else view.sample(4)).anchor.tolist()
        assert sorted(beside[: len(new)]) == new
    if not saves:
        return
    with make_buffer(tmp_path / "resumed") as buffer:
        view = buffer.sequences(3, online=True, seed=2)
        buffer.load(tmp_path / "saved", 1)
        batches = view.prefetch(2, 4)
        found[-4:] = view.sample(4).anchor.tolist()
        while len(found) < len(new):
            found += next(batches).anchor.tolist()
        assert found == beside


def test_a_reader_keeps_its_new_windows_where_the_writer_opens_with_another_capacity(tmp_path):
    buffer = make_buffer(tmp_path / "replay")
    play(buffer, 5)
    buffer.flush()
    with diskreplay.open(tmp_path / "replay") as reader:
        view = reader.sequences(3, online=True, seed=1)
        play(buffer, 30, start=5)
        buffer.flush()
        new = view.anchors()[view.anchors() >= view.sample(4).anchor[0]].tolist()
        buffer.close()
        with make_buffer(tmp_path / "replay", capacity=400) as buffer:
            buffer.flush()
            assert view.sample(8).anchor.tolist() == new[4:12]


def read_again(read):
    """The same where each third try finds that a live store changed under its reader."""
    tries = iter(range(10**6))

    def tried(reader, drawn, *arguments):
        if next(tries) % 3 == 1:
            drawn.guard.release()
            return None
        return read(reader, drawn, *arguments)

    return tried


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_new_window_comes_once_where_a_draw_is_made_again(buffer, monkeypatch, prefetch):
    play(buffer, 20)
    view = buffer.sequences(3, online=True, seed=1)
    play(buffer, 60, start=20)
    new = view.anchors()[view.anchors() >= 22].tolist()
    monkeypatch.setattr(SequenceReader, "read", read_again(SequenceReader.read))
    guard, take_spare = Sequences._new_guard, Prefetcher._take_spare

    def slow_guard(it):  # the thread may draw the next batch before this one is drawn again
        time.sleep(0.02 if threading.current_thread() is threading.main_thread() else 0)
        return guard(it)

    monkeypatch.setattr(Sequences, "_new_guard", slow_guard)
    monkeypatch.setattr(Prefetcher, "_take_spare", lambda it: time.sleep(0.005) or take_spare(it))
    batches, found = view.prefetch(1, 4) if prefetch else None, []
    while len(found) < len(new):
        found += (next(batches) if prefetch else view.sample(4)).anchor.tolist()
    assert found[: len(new)] == new


def test_ctrl_c_as_a_draw_is_made_again_loses_no_window(buffer, monkeypatch):
    """The thread finds that a live store changed under its reader, and so does this one twice."""
    play(buffer, 20)
    view = buffer.sequences(3, online=True, seed=1)
    play(buffer, 60, start=20)
    new, read, cuts = view.anchors()[view.anchors() >= 22].tolist(), SequenceReader.read, [1, 1]

    def cut(reader, drawn, *arguments):
        if threading.current_thread() is not threading.main_thread():
            drawn.guard.release()
            return None
        if cuts:
            cuts.pop()
            raise KeyboardInterrupt
        return read(reader, drawn, *arguments)

    monkeypatch.setattr(SequenceReader, "read", cut)
    found = []
    with view.prefetch(2, 4) as batches:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        while len(found) < len(new):
            found += next(batches).anchor.tolist()
    assert found[: len(new)] == new


def test_new_windows_that_were_put_back_and_left_do_not_come(tmp_path):
    with make_buffer(tmp_path / "replay", capacity=100) as buffer:
        play(buffer, 20)
        view = buffer.sequences(3, online=True, seed=1)
        play(buffer, 20, start=20)
        with view.prefetch(3, 4) as batches:
            next(batches)
        first = int(buffer.save(tmp_path / "saved", 1).name[-1])
        play(buffer, 90, start=40)
        assert int(buffer.bounds[0, 0]) > 26
        found, new = [], view.anchors().tolist()
        while len(found) < len(new):
            found += view.sample(4).anchor.tolist()
        assert found[: len(new)] == new
        buffer.load(tmp_path / "saved", first)
        assert view.sample(4).anchor.tolist() == view.anchors()[view.anchors() >= 26][:4].tolist()


def test_online_windows_that_are_apart(tmp_path):
    """Each new row comes once, also where the run was saved, at any moment."""
    with make_buffer(tmp_path / "replay") as buffer:
        play(buffer, 30)
        view = buffer.sequences(4, ends="cross", ahead=0, online=4)
        first = due = int(view.anchors()[-1]) + 1
        drawn = []
        for i in range(30, 90):
            play(buffer, 1, start=i)
            if i % 9 == 0:
                buffer.save(tmp_path / "saved", i)
                buffer.load(tmp_path / "saved", i)
            batch = view.sample(1)
            if batch.anchor[0] in (due, due + 1):  # a final row is no anchor
                drawn += batch.id[0].tolist()
                due = int(batch.anchor[0]) + 4
        assert len(set(drawn)) == len(drawn)
        left_out = set(range(first, due)) - set(drawn)
        assert buffer.take("is_final", sorted(left_out)).all()
        assert due > int(buffer.bounds[0, 1]) - 5


def test_views_by_name(buffer):
    play(buffer, 20)
    view = buffer.sequences(3)
    assert buffer.sequences(3).rng is view.rng
    assert buffer.sequences(3, name="other").rng is not view.rng
    with pytest.raises(InvalidInputError, match="close"):
        buffer.sequences(4)
    view.close()
    view.close()
    with pytest.raises(ClosedError, match="view 'sequences' is closed"):
        view.sample()
    assert len(buffer.sequences(4)) == 14
    assert "4 + 1 rows" in repr(buffer.sequences(4))
    with pytest.raises(InvalidInputError, match="differ in case only"):
        buffer.sequences(4, name="Sequences")


def test_a_buffer_that_is_dropped_lets_go_of_its_store(tmp_path):
    buffer = make_buffer(tmp_path / "replay")
    play(buffer, 20)
    view = buffer.sequences(3)
    view.sample()
    del view
    gc.disable()
    try:
        del buffer
        make_buffer(tmp_path / "replay").close()  # else it is locked
    finally:
        gc.enable()


def test_new_windows_that_nobody_got_come_again(buffer):
    play(buffer, 20)
    view = buffer.sequences(3, online=True, prioritized=True, seed=1)
    view.update_priorities(view.anchors(), np.zeros(len(view)))
    play(buffer, 10, start=20)
    new = view.anchors()[view.anchors() >= 22].tolist()
    view.update_priorities(new, np.zeros(len(new)))
    with pytest.raises(EmptyBufferError, match="all priorities are 0"):
        view.sample(len(new) + 1)
    assert view.sample(len(new)).anchor.tolist() == new


def test_an_empty_view(buffer):
    view = buffer.sequences(12, ends="pad")
    with pytest.raises(EmptyBufferError, match="no window of 12 rows"):
        view.sample()
    assert len(view) == 0
    play(buffer, 9)
    with pytest.raises(EmptyBufferError):
        view.sample()
    play(buffer, 1, start=9)
    assert view.gather([0]).observed.sum() == 11  # ten rows and the final one
    ranked = buffer.sequences(3, prioritized=True, name="ranked")
    ranked.update_priorities(ranked.anchors(), np.zeros(len(ranked)))
    with pytest.raises(EmptyBufferError, match="all priorities are 0"):
        ranked.sample()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"length": 0}, InvalidInputError, "length"),
        ({"length": 2.5}, InvalidInputError, "length"),
        ({"burn_in": -1}, InvalidInputError, "burn_in"),
        ({"stride": 0}, InvalidInputError, "stride"),
        ({"ends": "wrap"}, InvalidInputError, "'inside', 'shift', 'pad' or 'cross'"),
        ({"n_step": 3, "ahead": 2}, InvalidInputError, "ahead=3"),
        ({"n_step": 0}, InvalidInputError, "n_step"),
        ({"length": 195, "ahead": 9}, CapacityError, "larger capacity"),
        ({"state": "nothing"}, InvalidInputError, "h, log_prob"),
        ({"fields": ["reward"]}, InvalidInputError, "fields"),
        ({"name": "a b"}, InvalidInputError, "no name for a view"),
        ({"name": "../x"}, InvalidInputError, "no name for a view"),
        ({"alpha": -1}, InvalidInputError, "alpha"),
        ({"beta": float("nan")}, InvalidInputError, "beta"),
        ({"eta": 2}, InvalidInputError, "eta"),
        ({"returns_to_go": 1.5}, InvalidInputError, "returns_to_go"),
        ({"weight_normalization": "all"}, InvalidInputError, "weight_normalization"),
        ({"batch_size": 0}, InvalidInputError, "batch_size"),
    ],
)
def test_options_that_make_no_sense(buffer, options, error, match):
    with pytest.raises(error, match=match):
        buffer.sequences(**{"length": 3} | options)
    buffer.sequences(3)


def test_bad_priorities_change_nothing(buffer):
    play(buffer, 20)
    view = buffer.sequences(3, prioritized=True)
    before = view.gather(view.anchors()).probability
    with pytest.raises(PriorityError, match="position 1"):
        view.update_priorities([0, 1], [1.0, -1.0])
    with pytest.raises(PriorityError):
        view.update_priorities([0, 1], [5.0, float("nan")])
    with pytest.raises(UnknownIdError):
        view.update_priorities([0, 999], [5.0, 1.0])
    with pytest.raises(ShapeError):
        view.update_priorities([0, 1], [5.0])
    np.testing.assert_array_equal(view.gather(view.anchors()).probability, before)
    with pytest.raises(UsageError, match="prioritized=True"):
        buffer.sequences(3, name="even").update_priorities([0], [1.0])
    with pytest.raises(UnknownIdError):
        view.gather([999])


def test_a_reader_has_its_own_priorities(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        play(buffer, 20)
        with diskreplay.open(tmp_path / "replay", seed=2) as reader:
            view = reader.sequences(3, prioritized=True)
            view.update_priorities(view.anchors(), np.eye(len(view))[2])
            assert set(view.sample(20).anchor.tolist()) == {2}
            play(buffer, 20, start=20)
            assert len(view) == 32
            assert len(set(view.sample(50).anchor.tolist())) > 5


def test_windows_are_those_of_the_rows_while_others_come_and_go(tmp_path):
    """Nothing that was drawn is evicted while it is read."""
    with make_buffer(tmp_path / "replay", capacity=64, segment_rows=8) as buffer:
        play(buffer, 64)
        view = buffer.sequences(8, burn_in=4, ends="cross", prioritized=True, seed=1)
        stop, failures = threading.Event(), []

        def learn():
            try:
                while not stop.is_set():
                    batch = view.sample(8)
                    shown = np.where(batch.transition, batch.h[..., 0], batch.observation[..., 0])
                    seen = batch.observation[..., 0]
                    there = batch.transition
                    assert (shown[there] % 256 == seen[there]).all()
                    assert (batch.reward[there] == batch.h[..., 0][there]).all()
                    view.update_priorities(batch.anchor, np.ones(8))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=learn) for _ in range(2)]
        for thread in threads:
            thread.start()
        play(buffer, 3000, start=64)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures


# -- a load and a clear take open views along


def plain(path=None, rows=0):
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=Box(-1, 1, (2,)), action_space=Discrete(5), capacity=500, seed=0,
        batch_size=4,
    )  # fmt: skip
    go_on(buffer, rows)
    return buffer


def go_on(buffer, rows):
    for number in range(rows):
        buffer.add(np.zeros(2, np.float32), 0, float(number), False, False)


def anchors_of(prefetcher, batches=3):
    return [next(prefetcher).anchor.tolist() for _ in range(batches)]


@pytest.mark.parametrize("where", ["before the load", "after it", "the same buffer"])
def test_a_prefetcher_goes_on_whenever_it_is_made(tmp_path, where):
    buffer = plain(tmp_path / "one", 50)
    prefetcher = buffer.sequences(2, batch_size=4).prefetch(2)
    next(prefetcher)
    buffer.save(tmp_path / "saved", 1)
    go_on(buffer, 100)
    wanted = anchors_of(prefetcher)
    if where == "the same buffer":
        resumed, again = buffer, prefetcher
    else:
        resumed = plain(tmp_path / "other", 7)
        view = resumed.sequences(2, batch_size=4)
        if where == "before the load":
            again = view.prefetch(2)
            next(again)
    resumed.load(tmp_path / "saved", 1, resume_episodes=True)
    if where == "after it":
        again = view.prefetch(2)
    go_on(resumed, 100)
    assert anchors_of(again) == wanted
    buffer.close(), resumed.close()


def test_a_prefetcher_of_another_depth_draws_from_what_is_there_when_it_is_asked(tmp_path):
    with plain(tmp_path / "one", 50) as buffer:
        prefetcher = buffer.sequences(2, batch_size=4).prefetch(2)
        next(prefetcher)
        buffer.save(tmp_path / "saved", 1)
        prefetcher.close()
        view = buffer.sequences(2, batch_size=4, name="other")
        other = view.prefetch(1)
        next(other)
        buffer.load(tmp_path / "saved", 1)
        go_on(buffer, 400)
        assert max(map(max, anchors_of(other, 9))) > 300


def test_windows_that_come_after_a_clear_or_a_load_are_new_whenever_one_looks(tmp_path):
    with plain(tmp_path / "one", 50) as buffer:
        buffer.save(tmp_path / "saved", 1)
        view = buffer.sequences(2, ahead=1, online=True)
        buffer.load(tmp_path / "saved", 1)
        go_on(buffer, 20)
        assert sorted(view.sample(18).anchor.tolist()) == list(range(50, 68))
        buffer.clear()
        go_on(buffer, 60)
        assert view.sample(58).anchor.tolist() == list(range(58))


def test_after_a_clear_a_prefetcher_has_batches_of_the_new_rows(tmp_path):
    with plain(tmp_path / "one", 50) as buffer:
        view = buffer.sequences(2, batch_size=4)
        prefetcher = view.prefetch(2)
        next(prefetcher)
        buffer.clear()
        go_on(buffer, 20)
        assert max(map(max, anchors_of(prefetcher))) < 20


def test_a_load_takes_the_generator_of_a_view_back_at_once(tmp_path):
    with plain(tmp_path / "one", 50) as buffer:
        view = buffer.sequences(2)
        before = view.rng.bit_generator.state
        buffer.save(tmp_path / "saved", 1)
        view.sample(4)
        assert view.rng.bit_generator.state != before
        buffer.load(tmp_path / "saved", 1)
        assert view.rng.bit_generator.state == before
