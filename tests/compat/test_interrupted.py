"""Ctrl-C in the middle of an `add`, a `clear` or a `load`, as in a notebook: who goes on has what
was given, in each of the older APIs. The oracle is a buffer that was never interrupted."""

import contextlib
import itertools
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from numpy.testing import assert_array_equal

from diskreplay import compat
from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import UsageError
from diskreplay.store.row_writer import RowWriter
from tests.effort import effort

COMPAT = str(Path(compat.__file__).parent)
ROWS, SIZE = 36, 16


class Env:
    action_space, num_frames = Discrete(99), 1


class Of:
    """A buffer of one of the older APIs, what is put into it, and all that can be seen of it."""

    def taken(self):
        ring = self.buffer._ring
        return 0 if ring is None else ring.count

    def weigh(self):
        pass


class OfRainbow(Of):
    def __init__(self, prioritized=False, path=None):
        kind = rainbow.PrioritizedReplayBuffer if prioritized else rainbow.ReplayBuffer
        self.buffer, self.prioritized = kind(2, SIZE, batch_size=4, path=path), prioritized

    def add(self, i):
        self.buffer.store([i, i], i, float(i), [i + 1, i + 1], i % 7 == 6)

    def weigh(self):
        if self.prioritized:
            self.buffer.update_priorities([1, 2], [3.0, 0.5])

    def state(self):
        b = self.buffer
        found = [b.obs_buf, b.next_obs_buf, b.acts_buf, b.rews_buf, b.done_buf, b.ptr, len(b)]
        found += [b._ring.column("step")]
        if self.prioritized:
            slots = np.arange(len(b))
            found += [b.sum_tree[slots], b.min_tree[slots], b.max_priority, b.tree_ptr]
        return found


class OfKerasGym(Of):
    def __init__(self, path=None):
        self.buffer = keras_gym.ExperienceReplayBuffer(Env(), SIZE, 8, bootstrap_n=2, path=path)

    def add(self, i):
        self.buffer.add(np.full(3, i, np.uint8), i, float(i), i % 7 == 6, i // 7)

    def state(self):
        b = self.buffer
        b.random_seed = 3
        drawn = b.sample() if len(b) > 8 else []
        return [b._s, b._a, b._r, b._d, b._e, len(b), b._ring.column("step"), *drawn]


class OfReagent(Of):
    def __init__(self, prioritized=False, path=None, **options):
        pytest.importorskip("torch")
        from diskreplay.compat import reagent

        kind = reagent.PrioritizedReplayBuffer if prioritized else reagent.ReplayBuffer
        self.buffer = kind((20,), 3, SIZE, 4, update_horizon=2, path=path, **options)
        self.buffer.generation = 0  # public attributes are saved too
        self.prioritized = prioritized

    def add(self, i):
        priority = [1.0 + i % 5] * self.prioritized
        self.buffer.add(np.full(20, i, np.uint8), i, float(i), i % 7 == 6, *priority)

    def weigh(self):
        if self.prioritized:
            self.buffer.set_priority(np.array([4, 5], np.int32), np.array([9.0, 0.5]))

    def state(self):
        b = self.buffer
        found = [b.add_count, b.cursor(), b._is_index_valid, *b._store.values()]
        found += [b._ring.column("step"), *b._small.values(), b.generation]
        if b.size:
            found += b.sample_all_valid_transitions()
        if self.prioritized:
            found += [b.sum_tree.leaves, b.sum_tree.max_recorded_priority]
        return found


class OfCs294(Of):
    def __init__(self, path=None):
        self.buffer = cs294.ReplayBuffer(SIZE, 3, path=path)

    def add(self, i):
        b = self.buffer
        before = b.next_idx
        try:
            slot = b.store_frame(np.full((2, 2, 1), i, np.uint8))
        except KeyboardInterrupt:
            slot = before
            if b.next_idx == before:
                slot = b.store_frame(np.full((2, 2, 1), i, np.uint8))
        if i % 10 == 9:  # the frame before gets its effect only now
            self._effect(slot - 1, i - 1)
        if i % 10 not in (3, 8):  # a frame that gets no effect, or gets it late
            self._effect(slot, i)

    def _effect(self, slot, i):
        effect = slot % SIZE, i, float(i), i % 7 == 6
        try:
            self.buffer.store_effect(*effect)
        except KeyboardInterrupt:
            with contextlib.suppress(UsageError):  # the row is whole already
                self.buffer.store_effect(*effect)

    def state(self):
        b = self.buffer
        np.random.seed(1)  # noqa: NPY002 - the one it draws from
        drawn = b.sample(4) if b.can_sample(4) else []
        found = [b.obs, b.action, b.reward, b.done, b.next_idx, b.num_in_buffer]
        if b.num_in_buffer:
            found.append(b.encode_recent_observation())
        return [*found, b._ring.column("step"), b._ring.column("is_final"), *drawn]


class OfCpprb(Of):
    def __init__(self, prioritized=False, given=False, shape=3, path=None, **options):
        kind = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
        columns = {"obs": {"shape": shape, "dtype": np.uint8}, "act": {}, "rew": {}, "done": {}}
        if options.setdefault("next_of", "obs") is None:
            columns["next_obs"] = columns["obs"]
        self.buffer = kind(SIZE, columns, path=path, **options)
        self.prioritized, self.given, self.shape = prioritized, given, shape

    def taken(self):
        waiting = self.buffer._nstep._steps.get("done", ()) if self.buffer.is_Nstep() else ()
        return super().taken() + len(waiting)

    def add(self, i):
        before = self.taken()
        try:
            self._add(i)
        except KeyboardInterrupt:
            if self.taken() == before:
                self._add(i)
        if i % 7 == 6:
            try:
                self.buffer.on_episode_end()
            except KeyboardInterrupt:
                self.buffer.on_episode_end()

    def _add(self, i):
        if self.shape == 3:
            obs, following = np.full(3, i, np.uint8), np.full(3, i + 1, np.uint8)
        else:  # stacks that move on by one frame, but for one now and then
            frames = np.ones(self.shape, np.uint8) * np.arange(4, dtype=np.uint8)
            obs, following = frames + np.uint8(i if i % 6 else 50), frames + np.uint8(i + 1)
        priorities = {"priorities": 1.0 + i / 4} if self.given else {}
        self.buffer.add(
            obs=obs, act=i, rew=float(i), done=i % 7 == 6, next_obs=following, **priorities
        )

    def weigh(self):
        if self.prioritized:
            self.buffer.update_priorities([1, 2], [3.0, 0.5])

    def state(self):
        b = self.buffer
        b._rng = np.random.default_rng(3)
        np.random.seed(3)  # noqa: NPY002 - the one it draws from
        rows = b.get_all_transitions()
        found = [*rows.values(), b.get_next_index(), b.get_stored_size()]
        found += [*b._resident._small.values(), b.get_current_episode_len(), b._ring.column("step")]
        if len(rows["done"]):
            found += b.sample(6).values()
        if b.is_Nstep():
            found += b._nstep._steps.values()
        if self.prioritized:
            slots = b._ring.slots(b._resident.rows(np.arange(SIZE)))
            found += [b._ring.weights.leaves[slots[: len(rows["done"])]], b.get_max_priority()]
            found += [b._ring.weights.total, b._ring.notes["newest_weight"]]
        return found


STACKS = {"shape": (16, 16, 4), "next_of": "obs", "stack_compress": "obs"}
NSTEP = {"next_of": None, "Nstep": {"size": 3, "rew": "rew", "next": "next_obs"}}
FACADES = {
    "rainbow": OfRainbow,
    "rainbow prioritized": partial(OfRainbow, prioritized=True),
    "keras-gym": OfKerasGym,
    "reagent": OfReagent,
    "reagent prioritized": partial(OfReagent, prioritized=True),
    "cs294": OfCs294,
    "cpprb": OfCpprb,
    "cpprb prioritized": partial(OfCpprb, prioritized=True),
    "cpprb stacks": partial(OfCpprb, prioritized=True, given=True, **STACKS),
    "cpprb n-step": partial(OfCpprb, prioritized=True, given=True, **NSTEP),
}


def same(found, expected):
    return len(found) == len(expected) and all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True)
    )


def check(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(np.asarray(a), np.asarray(b))


def shown(buffer):
    return [np.asarray(part).copy() for part in buffer.state()]  # some parts are the live ones


def filled(make, rows, path=None):
    buffer = make(path=path)
    for i in range(rows):
        if i == 15:
            buffer.weigh()
        buffer.add(i)
    return buffer


def life_from(buffer, first, make, path):
    """What is seen: at once, after the rows from `first` on, and of the store reopened."""
    seen = [shown(buffer)]
    for i in range(first, ROWS):
        buffer.add(i)
    seen.append(shown(buffer))
    buffer.buffer.close()
    if path is not None:
        buffer = make(path=path)
        seen.append(shown(buffer))
        buffer.add(ROWS)
        seen.append(shown(buffer))
        buffer.buffer.close()
    return seen


@contextlib.contextmanager
def interrupted_at(line):
    """Ctrl-C ahead of a line of the older APIs, counted as they run; gives how many did. As on a
    second Ctrl-C nothing is promised, there is one."""
    before, ran = sys.gettrace(), [0]

    def trace(frame, event, _argument):
        # Not in what they stand on: a tracer's exception may come between the end of a `with` and
        # its `__exit__`, where no signal is seen, and would leave the lock held.
        name = frame.f_code.co_filename
        if not name.startswith(COMPAT) or name.endswith("slot_buffer.py"):
            return None
        if event == "line":
            ran[0] += 1
            if ran[0] == line + 1:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield ran
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("name", [n for n in FACADES if "n-step" not in n])
@pytest.mark.parametrize("at", [0, 1, 6, 7, 15, 25, 30])
@pytest.mark.costly(10)
def test_rows_that_were_committed_stay_and_the_next_follow_them(name, at, monkeypatch):
    interrupted, whole = FACADES[name](), FACADES[name]()
    armed = False

    def interrupting(method):
        def call(self, *args, **kwargs):
            nonlocal armed
            found = method(self, *args, **kwargs)
            if armed and self is interrupted.buffer._ring:
                armed = False
                raise KeyboardInterrupt
            return found

        return call

    for method in ("put", "add_frame"):
        monkeypatch.setattr(SlotBuffer, method, interrupting(getattr(SlotBuffer, method)))
    fired = 0
    for i in range(ROWS):
        for each in (interrupted, whole):
            if i == max(at - 1, 10):
                each.weigh()
        whole.add(i)
        armed = i == at
        try:
            interrupted.add(i)
        except KeyboardInterrupt:
            if interrupted.buffer._ring.count != whole.buffer._ring.count:
                interrupted.add(i)  # it was a row of ReAgent's padding
        fired += i == at and not armed
        armed = False
        if i in (at, at + 1, ROWS - 1):
            check(interrupted.state(), whole.state())
    assert fired == 1


STRIDE = {"cpprb stacks": 3, "cpprb n-step": 5}  # of the lines that are tried, which are many
# Rows that are interrupted: the first one, with which some make their store, and a later one.
AT = {"rainbow": (0, 20), "keras-gym": (0, 20), "cs294": (0, 25, 29), "cpprb n-step": (20, 22)}


@pytest.mark.parametrize(("name", "at"), [(n, at) for n in FACADES for at in AT.get(n, (20,))])
@pytest.mark.costly(2)
def test_an_interruption_between_any_two_lines(name, at, tmp_path):
    """Of one `add`, in the code of the older API: the row is there, or it is given again."""
    make = FACADES[name]
    whole = filled(make, at + 1, tmp_path / "whole")
    taken, expected = whole.taken(), life_from(whole, at + 1, make, tmp_path / "whole")
    first = (at + len(name)) % effort(2, 2, 1)  # what many have in common is tried at each line
    for tried in itertools.count():
        line = first + tried * STRIDE.get(name, 1) * effort(2, 2, 1)
        path = None if tried % 4 else tmp_path / str(tried)
        buffer = filled(make, at, path)
        with interrupted_at(line) as ran:
            with contextlib.suppress(KeyboardInterrupt):
                buffer.add(at)
        if ran[0] <= line:
            break
        if buffer.taken() != taken:
            buffer.add(at)
        for found, known in zip(life_from(buffer, at + 1, make, path), expected, strict=False):
            check(found, known)
    assert tried > effort(5, 5, 10)


@pytest.mark.parametrize("at", [25, 29])
def test_an_effect_that_is_not_given_again(at):
    """Interrupted between any two lines, it is there, or the frame has none."""

    def life(line):
        of = filled(OfCs294, at)
        slot = of.buffer.store_frame(np.full((2, 2, 1), at, np.uint8))
        if at == 29:  # late, for the frame before, the last of its episode
            slot -= 1
        with interrupted_at(line) as ran:
            with contextlib.suppress(KeyboardInterrupt):
                of.buffer.store_effect(slot, at, float(at), True)
        of.buffer.store_frame(np.full((2, 2, 1), at + 1, np.uint8))
        return [shown(of), *life_from(of, at + 2, OfCs294, None)], ran[0]

    without, with_it = life(0)[0], life(-1)[0]
    outcomes = set()
    for line in itertools.count():
        found, ran = life(line)
        if ran <= line:
            break
        is_there = same(found[0], with_it[0])
        outcomes.add(is_there)
        for a, b in zip(found, with_it if is_there else without, strict=True):
            check(a, b)
    assert outcomes == {False, True}


def clear(of, _directory):
    of.buffer.clear()


def load(of, directory):
    of.buffer.load(directory, 1)


def load_transitions(of, directory):
    of.buffer.load_transitions(directory / "rows.npz")


CALLS = {
    clear: ["keras-gym", "cpprb prioritized", "cpprb stacks", "cpprb n-step"],
    load_transitions: ["cpprb prioritized", "cpprb stacks"],
    load: ["reagent prioritized", "reagent native"],
}


@pytest.mark.parametrize(("call", "name"), [(c, name) for c in CALLS for name in CALLS[c]])
@pytest.mark.costly(2)
def test_a_call_that_replaces_rows_is_whole_or_was_not(call, name, tmp_path):
    """Interrupted ahead of some of the last lines, where the old gives way to the new, and
    of some of the many before."""
    make = FACADES[name.removesuffix(" native")]
    if name.endswith(" native"):
        make = partial(make, checkpoint_format="native")
    donor = make()
    for i in range(50, 63):
        donor.add(i)
    if call is load:
        donor.buffer.generation = 1
        donor.buffer.save(tmp_path, 1)
    elif call is load_transitions:
        donor.buffer.save_transitions(tmp_path / "rows.npz")

    def interrupted(line, path):
        of = filled(make, 21, path)
        with interrupted_at(line) as ran:
            with contextlib.suppress(KeyboardInterrupt):
                call(of, tmp_path)
        return of, ran[0]

    interrupted(-1, None)  # the first time, more is run
    path = tmp_path / "before"
    before = life_from(filled(make, 21, path), 21, make, path)
    path = tmp_path / "after"
    of, lines = interrupted(-1, path)
    if call is clear and name != "keras-gym":  # which shows nothing before its first row
        path = tmp_path / "fresh"
        of = make(path=path)
    after = life_from(of, 21, make, path)
    assert not same(before[0], after[0])
    outcomes = set()
    last = max(lines - 30, 0)
    places = [*range(0, last, last // 3 + 1), *range(last, lines, effort(5, 3))]
    for tried, line in enumerate(places):
        path = None if tried % 4 else tmp_path / str(line)
        of, ran = interrupted(line, path)
        assert ran > line
        is_done = same(of.state(), after[0])
        outcomes.add(is_done)
        if not is_done:
            check(of.state(), before[0])
            if tried % 2:  # then it is called again
                call(of, tmp_path)
                is_done = True
        expected = after if is_done else before
        for found, known in zip(life_from(of, 21, make, path), expected, strict=False):
            check(found, known)
    assert outcomes == {False, True}


@pytest.mark.parametrize("name", CALLS[load_transitions])
@pytest.mark.parametrize(("commits", "rows"), [(1, 4), (2, 8), (3, 10)])
def test_of_a_file_that_is_loaded_a_prefix_stays(name, commits, rows, tmp_path, monkeypatch):
    """Rows are appended in portions; those that were committed before Ctrl-C stay."""
    make = FACADES[name]
    for path, count in (("rows.npz", 10), ("prefix.npz", rows)):
        donor = make()
        for i in range(49, 49 + count):
            donor.add(i)
        donor.buffer.save_transitions(tmp_path / path)
    whole, interrupted = filled(make, 21), filled(make, 21)
    whole.buffer.load_transitions(tmp_path / "prefix.npz")
    extend, left = RowWriter.extend, commits

    def interrupting(self, *args):
        nonlocal left
        extend(self, *args)
        left -= 1
        if not left:
            raise KeyboardInterrupt

    monkeypatch.setattr("diskreplay.store.row_writer.MOST_AT_ONCE", 4)
    monkeypatch.setattr(RowWriter, "extend", interrupting)
    with pytest.raises(KeyboardInterrupt):
        load_transitions(interrupted, tmp_path)
    monkeypatch.undo()
    check(interrupted.state(), whole.state())
    for i in range(59, 63):  # the first follows the last row of the whole file
        interrupted.add(i), whole.add(i)
    seen = [
        [*each.buffer.get_all_transitions().values(), *each.buffer.sample(9).values()]
        for each in (interrupted, whole)
        if each.state()  # which seeds
    ]
    check(*seen)


def test_priorities_of_rainbow_are_set_in_both_trees_or_in_none():
    """Wherever a handler of a signal raises amid them; and none is above the largest one."""
    buffer, rng = rainbow.PrioritizedReplayBuffer(2, 16, 4, alpha=0.5), np.random.default_rng(0)
    for _ in range(16):
        buffer.store(np.zeros(2), 0, 0.0, np.zeros(2), False)
    slots, before = np.arange(8), signal.getsignal(signal.SIGALRM)

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    try:
        for attempt in range(effort(1000, 3000)):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(5e-6, 2e-4))
                buffer.update_priorities(slots, np.full(8, 2.0 + attempt))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
            leaves = buffer.sum_tree[slots]
            assert_array_equal(leaves, buffer.min_tree[slots])
            largest = buffer.max_priority**buffer.alpha
            assert largest * (1 + 1e-12) >= leaves.max()  # NumPy's power may be another one's
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
