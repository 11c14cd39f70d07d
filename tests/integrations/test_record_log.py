"""Records in slots against arrays in memory: written in any order, with frames in common."""

import pickle
import sys
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.check.verify import verify
from diskreplay.errors import DiskFullError, InvalidInputError, ReadOnlyError, UsageError
from diskreplay.integrations import record_log
from diskreplay.integrations.record_layout import Leaf, RecordLayout
from diskreplay.integrations.record_log import RecordLog
from tests.effort import effort
from tests.test_interrupt import interrupted

SLOTS = 40
U1, F4 = np.dtype("uint8"), np.dtype("float32")


def layout(stack=1, next_of=True, following=True, camera=False):
    leaves = [Leaf(("pixels",), (2 * stack, 3), "uint8", U1, True, stack)]
    if following:
        leaves.append(Leaf(("next", "pixels"), (2 * stack, 3), "uint8", U1, True, stack))
    if camera:
        leaves += [Leaf(("camera",), (5,), "uint8", U1, True)]
        leaves += [Leaf(("next", "camera"), (5,), "uint8", U1, True)]
    leaves += [Leaf(("next", "reward"), (1,), "float32", F4, False)]
    return RecordLayout(leaves, next_of)


class Game:
    """Records as a collector gives them: stacks that slide, resets, and what breaks the rules."""

    def __init__(self, made, rng):
        self.layout, self.rng, self.state = made, rng, None

    def frames(self, name, count):
        leaf = self.layout.leaves[name]
        return self.rng.integers(0, 256, (count, *leaf.frame_shape), np.uint8)

    def record(self):
        rng, record = self.rng, {}
        if self.state is None or rng.random() < 0.15:  # a reset, padded or not
            self.state = {}
            for name, leaf in self.layout.leaves.items():
                if leaf.on_disk and leaf.key[0] != "next":
                    padded = rng.random() < 0.5
                    new = self.frames(name, 1 if padded else leaf.stack)
                    self.state[name] = np.repeat(new, leaf.stack, 0) if padded else new
        apart = rng.random() < 0.1  # what it led to has nothing to do with it
        for name, leaf in self.layout.leaves.items():
            if leaf.on_disk and leaf.key[0] != "next":
                record[name] = self.state[name].reshape(leaf.shape)
                new = self.frames(name, leaf.stack if apart else 1)
                self.state[name] = np.concatenate([self.state[name], new])[-leaf.stack :]
                following = name.replace("observation/", "observation/next_")
                if following in self.layout.leaves:
                    record[following] = self.state[name].reshape(leaf.shape)
        record["next_reward"] = np.array([rng.normal()], np.float32)
        return record

    def records(self, count):
        made = [self.record() for _ in range(count)]
        return {name: np.stack([record[name] for record in made]) for name in self.layout.leaves}


def twin(made):
    return {name: np.zeros((SLOTS, *leaf.shape), leaf.stored) for name, leaf in made.leaves.items()}


def check(log, wanted):
    for name, values in wanted.items():
        assert (log.read(name, np.arange(SLOTS)) == values).all(), name
    for pair in {log.layout.pair(name) for name in wanted} - {None}:
        for slots in (np.arange(SLOTS), np.arange(SLOTS).reshape(-1, 4)[[7, 0, 1, 7]]):
            both = log.read_both(pair[0], slots)
            if both is None:
                assert log.layout.has_back  # what a stack led to may have nothing to do with it
                continue
            for name, values in zip(pair, both, strict=True):
                assert (values == wanted[name][slots]).all(), name


LAYOUTS = {
    "plain": {"next_of": False},
    "next": {},
    "next of two": {"camera": True},
    "stack": {"stack": 3, "following": False},
    "stack, next": {"stack": 3},
    "stack, next apart": {"stack": 2, "next_of": False},
    "stack, next of two": {"stack": 4, "camera": True},
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["stream"] * 5 + ["anywhere", "look", "clear"]), st.integers(1, 50)
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", LAYOUTS)
@settings(deadline=None, max_examples=8)
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_slots_show_what_was_written_last(kind, steps, seed):
    made, rng = layout(**LAYOUTS[kind]), np.random.default_rng(seed)
    log, wanted, game, cursor = RecordLog(None, SLOTS, made), twin(made), None, 0
    game = Game(made, rng)
    try:
        reader = pickle.loads(pickle.dumps(log))
        for step, count in steps:
            if step == "look":
                log.look()
            elif step == "clear":
                log.clear()
                wanted = twin(made)
            else:
                slots = (cursor + np.arange(count)) % SLOTS
                if step == "anywhere":
                    slots = rng.integers(0, SLOTS, count)
                else:
                    cursor = int(slots[-1]) + 1
                columns = game.records(count)
                log.put(slots, columns, step == "stream")
                for name, values in columns.items():
                    for slot, value in zip(slots, values, strict=True):
                        wanted[name][slot] = value
                if step == "stream":
                    assert log.cursor == cursor - 1
            check(log, wanted)
        reader.follow()
        check(reader, wanted)
        reader.close()
    finally:
        log.close()


@pytest.mark.parametrize(
    ("rows", "windows"),
    [
        ([5, 6, 7, 20, 21, 22], [[4, 5, 6, 7], [19, 20, 21, 22]]),  # slices of one length
        ([5, 6, 7, 8, 30, 31], [[4, 5, 6], [6, 7, 8], [29, 30, 31]]),  # two that touch
        ([5, 6, 7, 20, 21], [[4, 5], [5, 6], [6, 7], [19, 20], [20, 21]]),
        ([9], [[8, 9]]),
        ([-1, 4, 5, 9], [[-1, -1], [3, 4], [4, 5], [8, 9]]),  # nothing was written to the first
    ],
)
def test_frames_that_records_have_in_common_are_one_window(rows, windows):
    made = layout()
    names = "observation/pixels", "observation/next_pixels"
    assert [made.pair(name) for name in (*names, "next_reward")] == [names, names, None]
    assert made.both(names[0], np.array(rows), None).tolist() == windows


def test_stacks_that_do_not_slide_are_no_windows():
    made, rows = layout(stack=2), np.array([9, -1, 4])
    both = made.both("observation/pixels", rows, np.array([1, 0, 1], np.uint8))
    assert both.tolist() == [[7, 8, 9], [-1, -1, -1], [2, 3, 4]]
    assert made.both("observation/pixels", rows, np.array([1, 0, 2], np.uint8)) is None


def test_frames_are_stored_once(tmp_path):
    made = layout(stack=4)
    log, rng = RecordLog(tmp_path / "store", 1000, made), np.random.default_rng(0)
    frames = rng.integers(0, 256, (304, 2, 3), np.uint8)
    stacks = np.stack([frames[i : i + 4].reshape(8, 3) for i in range(301)])
    for start in range(0, 300, 7):
        part = slice(start, min(start + 7, 300))
        after = slice(part.start + 1, part.stop + 1)
        log.put(
            np.arange(300)[part],
            {
                "observation/pixels": stacks[part], "observation/next_pixels": stacks[after],
                "next_reward": np.zeros((part.stop - part.start, 1), np.float32),
            },
        )  # fmt: skip
    assert int(log.buffer.bounds[0, 1]) == 304  # and none twice
    assert (log.read("observation/next_pixels", np.arange(300)) == stacks[1:]).all()
    log.close()
    assert verify(tmp_path / "store").findings == ()


def test_dead_rows_leave():
    made = layout(next_of=False)
    log, game = RecordLog(None, 200, made), Game(made, np.random.default_rng(0))
    for start in range(0, 3000, 30):
        log.put(np.arange(start, start + 30) % 200, game.records(30))
    first, count = log.buffer.bounds[0]
    assert count == 3000  # in a ring nothing is written twice
    assert count - first <= 200 + 64
    log.close()


def test_a_store_is_found_again(tmp_path):
    made, rng = layout(stack=2), np.random.default_rng(0)
    log, wanted, game = RecordLog(tmp_path / "store", SLOTS, made), twin(made), Game(made, rng)
    for _ in range(20):
        slots, columns = rng.integers(0, SLOTS, 9), game.records(9)
        log.put(slots, columns, True)
        for name, values in columns.items():
            wanted[name][slots] = values
    cursor = log.cursor
    log.close()
    again = RecordLog(tmp_path / "store", SLOTS, RecordLayout.parse(made.described()))
    check(again, wanted)
    assert again.cursor == cursor
    again.close()


def test_only_one_writes(tmp_path):
    made = layout()
    log, game = RecordLog(tmp_path / "store", SLOTS, made), Game(made, np.random.default_rng(0))
    log.put(np.arange(3), game.records(3))
    reader = pickle.loads(pickle.dumps(log))
    with pytest.raises(ReadOnlyError, match="reads along"):
        reader.put(np.arange(3), game.records(3))
    other = RecordLog(tmp_path / "store", SLOTS, made)
    with pytest.raises(UsageError, match="has this store now"):
        log.read("next_reward", np.arange(3))
    reader.close()
    other.close()
    log.close()


def test_a_full_disk_takes_nothing(monkeypatch):
    made = layout(stack=2)
    log, wanted = RecordLog(None, SLOTS, made), twin(made)
    game = Game(made, np.random.default_rng(0))

    def put(slots):
        columns = game.records(len(slots))
        log.put(slots, columns)
        for name, values in columns.items():
            wanted[name][slots] = values

    put(np.arange(10))
    real = type(log.buffer).extend

    def full(*_arguments):
        raise DiskFullError(28, "No space left on device", "segment")

    monkeypatch.setattr(type(log.buffer), "extend", full)
    with pytest.raises(DiskFullError):
        put(np.arange(5, 15))
    monkeypatch.setattr(type(log.buffer), "extend", real)
    check(log, wanted)
    put(np.arange(12, 20))
    check(log, wanted)
    log.close()


def test_leaves_that_cannot_share_frames_are_refused():
    apart = [
        Leaf(("pixels",), (4, 3), "uint8", U1, True),
        Leaf(("next", "pixels"), (4,), "uint8", U1, True),
    ]
    with pytest.raises(InvalidInputError, match="have to be alike"):
        RecordLayout(apart, next_of=True)
    RecordLayout(apart)
    with pytest.raises(InvalidInputError, match="cannot be 3 frames"):
        RecordLayout([Leaf(("pixels",), (4, 3), "uint8", U1, True, 3)])


@pytest.mark.parametrize("call", ["read", "read_both"])
def test_a_thread_never_has_half_of_what_another_writes(call):
    """At each line of a read another thread writes there: frames that go on from those of the
    record before, or do not."""
    made = layout(stack=3)
    log, number = RecordLog(None, SLOTS, made), 0
    now, led = "observation/pixels", "observation/next_pixels"

    def record(value):
        columns = {name: np.full((1, 6, 3), value, np.uint8) for name in (now, led)}
        columns[led] += value % 2  # what an odd one led to is something else
        return {**columns, "next_reward": np.zeros((1, 1), np.float32)}

    def write():
        log.put(np.zeros(1, np.int64), record(number + 1))

    def look(frame, event, _argument):
        if frame.f_code.co_filename == record_log.__file__ and event in ("call", "line"):
            left[0] -= event == "line"
            if left[0] == 0:
                thread = threading.Thread(target=write)
                thread.start()
                thread.join()
            return look
        return None

    log.put(np.zeros(1, np.int64), record(number))
    while True:
        left, before = [number + 1], sys.gettrace()
        sys.settrace(look)
        try:
            found = getattr(log, call)(now, np.zeros(1, np.int64))
        finally:
            sys.settrace(before)
        if left[0] > 0:
            break
        number += 1
        found = found if call == "read" or found is None else found[0]
        assert found is None or np.unique(found).tolist() in ([number - 1], [number])
    assert number > 5
    log.close()


@pytest.mark.costly(1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # amid a generator
@pytest.mark.parametrize("kind", ["plain", "stack, next"])
def test_ctrl_c_at_any_place_of_a_put(kind):
    """Memory shows what a look at the store alone shows, and what comes next goes on from there."""
    made = layout(**LAYOUTS[kind])
    log, game, number = RecordLog(None, SLOTS, made), Game(made, np.random.default_rng(0)), 0

    def put(count, records):
        slots = (log.cursor or 0) + 1 + np.arange(count)
        log.put(slots % SLOTS, records, True)

    for _ in range(30):
        put(3, game.records(3))
    # Made before: the layout, which is asked for them, is of the package too.
    while interrupted(partial(put, 2, game.records(2)), number):
        put(1, game.records(1))
        shown = {name: log.read(name, np.arange(SLOTS)) for name in made.leaves}
        before = log.cursor, log._needed
        log.look()
        check(log, shown)
        assert (log.cursor, log._needed) == before
        number += effort(3, 1)
    assert number > 100
    log.close()
