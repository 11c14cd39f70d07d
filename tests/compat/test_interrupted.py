"""Ctrl-C in the middle of an `add`, as in a notebook: who goes on has what was given, in each of
the older APIs. The oracle is a buffer that got the same rows and was never interrupted."""

import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from numpy.testing import assert_array_equal

from diskreplay import compat
from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from diskreplay.ring import Ring

COMPAT = str(Path(compat.__file__).parent)
ROWS, SIZE = 40, 16


class Env:
    action_space, num_frames = Discrete(ROWS), 1


class OfRainbow:
    def __init__(self, prioritized=False):
        kind = rainbow.PrioritizedReplayBuffer if prioritized else rainbow.ReplayBuffer
        self.buffer, self.prioritized = kind(2, SIZE, batch_size=4), prioritized

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


class OfKerasGym:
    def __init__(self):
        self.buffer = keras_gym.ExperienceReplayBuffer(Env(), SIZE, 8, bootstrap_n=2)

    def add(self, i):
        self.buffer.add(np.full(3, i, np.uint8), i, float(i), i % 7 == 6, i // 7)

    def weigh(self):
        pass

    def state(self):
        b = self.buffer
        b.random_seed = 3
        drawn = b.sample() if len(b) > 8 else []
        return [b._s, b._a, b._r, b._d, b._e, len(b), b._ring.column("step"), *drawn]


class OfReagent:
    def __init__(self, prioritized=False):
        pytest.importorskip("torch")
        from diskreplay.compat import reagent

        kind = reagent.PrioritizedReplayBuffer if prioritized else reagent.ReplayBuffer
        # Frames that are too large to be kept in memory too, and small ones that are.
        self.buffer = kind((20,), 3, SIZE, 4, update_horizon=2)
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
        found += [b._ring.column("step"), *b._small.values()]
        if b.size:
            found += b.sample_all_valid_transitions()
        if self.prioritized:
            found += [b.sum_tree.leaves, b.sum_tree.max_recorded_priority]
        return found


class OfCs294:
    def __init__(self):
        self.buffer = cs294.ReplayBuffer(SIZE, 3)

    def add(self, i):
        b = self.buffer
        before = b.next_idx
        try:
            slot = b.store_frame(np.full((2, 2, 1), i, np.uint8))
        except KeyboardInterrupt:  # it came while older frames were written
            assert b.next_idx == before
            slot = b.store_frame(np.full((2, 2, 1), i, np.uint8))
        if i % 5 != 3:  # else a frame that gets no effect
            b.store_effect(slot, i, float(i), i % 7 == 6)

    def weigh(self):
        pass

    def state(self):
        b = self.buffer
        np.random.seed(1)  # noqa: NPY002 - the one it draws from
        drawn = b.sample(4) if b.can_sample(4) else []
        found = [b.obs, b.action, b.reward, b.done, b.next_idx, b.num_in_buffer]
        return [*found, b._ring.column("step"), b._ring.column("is_final"), *drawn]


class OfCpprb:
    def __init__(self, prioritized=False):
        kind = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
        columns = {"obs": {"shape": 3}, "act": {}, "done": {}}
        self.buffer = kind(SIZE, columns, next_of="obs")
        self.prioritized = prioritized

    def add(self, i):
        obs, following = np.full(3, i), np.full(3, i + 1)
        self.buffer.add(obs=obs, act=i, done=i % 7 == 6, next_obs=following)

    def weigh(self):
        if self.prioritized:
            self.buffer.update_priorities([1, 2], [3.0, 0.5])

    def state(self):
        b = self.buffer
        found = [*b.get_all_transitions().values(), b.get_next_index(), b.get_stored_size()]
        if self.prioritized:
            found += [b._ring.weights.leaves[: len(found[0])], b.get_max_priority()]
        return found


FACADES = {
    "rainbow": OfRainbow,
    "rainbow prioritized": lambda: OfRainbow(prioritized=True),
    "keras-gym": OfKerasGym,
    "reagent": OfReagent,
    "reagent prioritized": lambda: OfReagent(prioritized=True),
    "cs294": OfCs294,
    "cpprb": OfCpprb,
    "cpprb prioritized": lambda: OfCpprb(prioritized=True),
}


def check(found, expected):
    assert len(found.state()) == len(expected.state())
    for a, b in zip(found.state(), expected.state(), strict=True):
        assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", FACADES)
@pytest.mark.parametrize("at", [0, 1, 6, 7, 15, 25, 30])
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

    for method in ("put", "add", "add_frame"):
        monkeypatch.setattr(Ring, method, interrupting(getattr(Ring, method)))
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
            check(interrupted, whole)
    assert fired == 1


@pytest.mark.parametrize("name", [n for n in FACADES if n.split()[0] not in ("cs294", "cpprb")])
def test_an_interruption_between_any_two_lines(name):
    """Of one `add`, in the code of the older API: the row is there, or it is given again."""
    before, line = sys.gettrace(), 0
    while True:
        interrupted, whole = FACADES[name](), FACADES[name]()
        for i in range(20):
            interrupted.add(i), whole.add(i)
        interrupted.weigh(), whole.weigh()
        left = line

        def trace(frame, event, _argument):
            nonlocal left
            if not frame.f_code.co_filename.startswith(COMPAT):
                return None
            if event == "line":
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            interrupted.add(20)
        except KeyboardInterrupt:
            sys.settrace(before)
            whole.add(20)
            if interrupted.buffer._ring.count != whole.buffer._ring.count:
                interrupted.add(20)
        else:
            break
        finally:
            sys.settrace(before)
        for i in range(21, ROWS):
            interrupted.add(i), whole.add(i)
            if i in (21, ROWS - 1):
                check(interrupted, whole)
        line += 1
    assert line > 10
