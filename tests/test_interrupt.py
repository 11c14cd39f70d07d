"""Ctrl-C at any place of `add`, `extend`, `sample` and the like; and then people go on."""

import contextlib
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.store import files, reading_pool
from diskreplay.store.segments import Segments
from tests.effort import effort

PACKAGE = str(Path(diskreplay.__file__).parent)
DUNDER = ("__enter__", "__exit__")
WHOLE = ("reserve", "_reserve_raw", "run", "record", "_switch", "_take_lock", "_shut", "_restore",
         "delete_left")  # fmt: skip
FRAME = (4, 4)
OPTIONS = {
    "observation_space": Box(0, 255, FRAME, "uint8"), "action_space": Discrete(3),
    "capacity": 80, "stack_size": 2, "update_horizon": 2, "segment_rows": 8, "seed": 0,
    "compressor": "lz4",
}  # fmt: skip


def ctrl_c():
    raise KeyboardInterrupt


def interrupted(call, number, handler=ctrl_c):
    """Whether the call was still under way after so many chances to interrupt it.

    What the handler raises ends the call, and goes no further.

    Signals are seen where a function of the package begins or ends, and where one that it called
    has ended. An ``__enter__`` or ``__exit__`` is left whole, since nobody can guard each place of
    those, and so is what is put off till it is done (`signals.undisturbed`).
    """
    left, whole = [number], []

    def look(frame, event, _argument):
        code = frame.f_code
        if code.co_name in WHOLE and code.co_filename.startswith(PACKAGE):
            {"call": whole.append, "return": whole.remove}.get(event, id)(frame)
        inside = not whole and code.co_filename.startswith(PACKAGE) and code.co_name not in DUNDER
        if inside and event in ("call", "return", "c_return"):
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                handler()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        pass
    except diskreplay.DiskReplayError as error:
        if diskreplay.ReentryError not in (type(error), type(error.__cause__)):
            raise
    finally:
        sys.setprofile(before)
    return left[0] < 0


# What was cut may hold an open file, or a generator.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


class Player:
    """Records steps that say in every field which they are. What was interrupted may count or not,
    so the next step is told by what is there."""

    def __init__(self, buffer):
        self.buffer, self.envs, self.steps = buffer, buffer.num_envs, 0

    def step(self, *, call="add"):
        self.steps += 1
        stamp = self.steps % 250
        end = self.steps % 7 == 6
        if call == "put":
            frame = np.full(FRAME, stamp, np.uint8)
            self.buffer.put({"observation": frame, "reward": float(stamp), "terminated": end})
        elif call == "extend":
            size = 3
            self.buffer.extend(
                {
                    "observation": np.full((size, *FRAME), stamp, np.uint8),
                    "action": np.zeros(size, int),
                    "reward": np.array([stamp, stamp, 0.0 if end else stamp]),
                    "terminated": np.array([False, end, False]),
                    "truncated": np.zeros(size, bool),
                    "step": np.arange(size),
                    "is_final": np.array([False, False, end]),
                }
            )
        elif self.envs > 1:
            frames = np.full((self.envs, *FRAME), stamp, np.uint8)
            ends, no = np.full(self.envs, end), np.zeros(self.envs, bool)
            rewards = np.full(self.envs, float(stamp))
            self.buffer.add(frames, np.zeros(self.envs, int), rewards, ends, no, frames + 1)
        else:
            frame = np.full(FRAME, stamp, np.uint8)
            self.buffer.add(frame, 0, float(stamp), end, False, frame + 1)

    def check(self):
        """Memory and store agree, rows are whole, episodes follow each other."""
        buffer, rows = self.buffer, self.buffer._rows
        slots = isinstance(buffer, SlotBuffer)  # which nobody draws from: no index to go wrong
        if not slots:
            sampled = len(buffer)
            assert rows.index.count.tolist() == rows.store.count.tolist()
        transitions = 0
        for env in range(self.envs):
            first, count = buffer.bounds[env].tolist()
            ids = np.arange(first, count) * self.envs + env
            frame, reward, ended, final, step = buffer.take(
                ["observation", "reward", "terminated", "is_final", "step"], ids
            )
            moves = ~final
            np.testing.assert_array_equal(frame[moves, 0, 0], reward[moves])
            assert (frame == frame[:, :1, :1]).all()
            follows = step[1:] == step[:-1] + 1
            assert (follows | (step[1:] == 0)).all()
            assert not (follows & final[:-1]).any()
            assert not (follows & ended[:-1] & ~final[1:]).any(), "an episode goes on after its end"
            transitions += int(moves.sum())
        if buffer.capacity // self.envs > int(rows.store.count.max()):
            assert buffer.add_count == transitions
        assert slots or sampled == len(buffer.sampleable_ids())
        if hasattr(buffer, "tree"):
            buffer.tree.check()
            leaves = np.count_nonzero(buffer.tree.leaves)
            assert leaves == sampled, "a transition that is never drawn, or no transition"


def make(path, kind, **more):
    if kind == "ring":
        given = "observation_space", "action_space", "capacity", "segment_rows", "compressor"
        options = {name: OPTIONS[name] for name in given}
        return SlotBuffer(path, facade="test", **options)
    envs = 3 if kind == "vector" else 1
    return diskreplay.PrioritizedReplayBuffer(
        path, **(OPTIONS | {"capacity": 80 * envs, "num_envs": envs}), **more
    )


@pytest.mark.parametrize("boundary", [False, True])
@pytest.mark.parametrize(
    ("kind", "call"), [("one", "add"), ("one", "extend"), ("vector", "add"), ("ring", "put")]
)
@pytest.mark.costly(1)
def test_recording(tmp_path, kind, call, boundary):
    """`boundary`: the row goes to another segment than the one before."""
    path = tmp_path / "store"
    with make(path, kind) as buffer:
        player, number, happened = Player(buffer), 0, 0
        for _ in range(20):
            player.step(call=call)
        while True:
            for _ in range(number % 3):
                player.step(call=call)
            while boundary and buffer._rows.store.count[0] % 8 not in (0, 7):
                player.step(call=call)
            if not interrupted(lambda: player.step(call=call), number):
                break
            happened += 1
            player.step(call=call)
            player.check()
            number += 1
        assert happened > 15
        buffer.flush()
        count = buffer._rows.store.count.tolist()
    assert [str(finding) for finding in verify(path).findings] == []
    with diskreplay.open(path) as reader:
        assert reader.bounds[:, 1].tolist() == count
        player.buffer = reader
        player.check()


@pytest.mark.parametrize("call", ["add", "extend"])
@pytest.mark.costly(1)
def test_no_zarr_reader_finds_what_was_written_and_does_not_count(tmp_path, call):
    """Also when its segment is sealed, or the store closed, before that env comes again."""
    import zarr

    path, number = tmp_path / "store", 0
    options = OPTIONS | {"num_envs": 2, "capacity": None, "stack_size": 1, "update_horizon": 1}
    steps = np.arange(40) % 8

    def look():
        group, count = zarr.open_group(path, mode="r"), buffer.bounds[:, 1].tolist()
        assert count[0] < count[1]
        for name in buffer.fields:
            assert not group[name][count[0] : count[1], 0].any(), name

    def extend(env, rows):
        ones, no = np.ones(rows, int), np.zeros(rows, bool)
        buffer.extend(
            {"observation": np.ones((rows, *FRAME), np.uint8), "action": ones, "reward": ones,
             "terminated": no, "truncated": steps[:rows] == 7, "step": steps[:rows],
             "is_final": no}, env,
        )  # fmt: skip

    def one():
        if call == "extend":
            return extend(0, 8)
        frames, end = np.ones((2, *FRAME), np.uint8), np.ones(2, bool)
        return buffer.add(frames, end, end * 1.0, end, ~end, frames, mask=np.array([True, False]))

    buffer = diskreplay.ReplayBuffer(path, **options)
    while interrupted(one, number):
        while buffer.bounds[1, 1] < buffer.bounds[0, 1] + 10:
            extend(1, 40)
        if number % effort(7, 3) == 0:
            buffer.flush()
            look()
        number += 1
    assert number > 15
    # The last one may have had more places than the next, having let go of segments too.
    assert any(interrupted(one, place) for place in range(number // 2, 15, -1))
    for _ in range(60):  # so far ahead that the segments of the slow one are sealed
        extend(1, 40)
    buffer.flush()
    look()
    buffer.close()
    assert [str(finding) for finding in verify(path).findings] == []
    buffer = diskreplay.open(path)
    look()
    buffer.close()


def test_priorities_outlive_an_interrupted_step(tmp_path):
    with make(tmp_path / "store", "one") as buffer:
        player = Player(buffer)
        for _ in range(30):
            player.step()
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, 1.0 + ids)
        known = dict(zip(ids.tolist(), buffer.tree.leaves[ids].tolist(), strict=True))
        largest = buffer.tree.leaves.max()
        for number in range(0, 60, 3):
            assert interrupted(player.step, number)
        leaves = buffer.tree.leaves
        for id_ in buffer.sampleable_ids().tolist():
            assert leaves[id_ % 80] == known.get(id_, largest)


@pytest.mark.parametrize("call", ["sample", "sample with threads", "gather", "take"])
def test_sampling(tmp_path, call, monkeypatch):
    """A segment could never be sealed again if a reader's stay had no end."""
    monkeypatch.setattr(reading_pool, "_PART_BYTES", 1)
    with make(tmp_path / "store", "one") as buffer:
        player, number = Player(buffer), 0
        for _ in range(40):
            player.step()
        calls = {
            "sample": lambda: buffer.sample(4),
            "sample with threads": lambda: buffer.sample(4, threads=2, contiguous=True),
            "gather": lambda: buffer.gather(buffer.sampleable_ids()[:3]),
            "take": lambda: buffer.take("observation", buffer.sampleable_ids()[:3]),
        }
        while interrupted(calls[call], number):
            player.step()
            number += 1
        assert number > 15
        for _ in range(30):
            player.step()
        buffer.flush()
        assert buffer._rows.store.rwlock._inside == 0
        player.check()


@pytest.mark.costly(1)
@pytest.mark.parametrize("call", ["sample", "gather", "update_priorities", "len"])
def test_a_union(tmp_path, call):
    """None of its members is left locked, busy or with a reader inside."""
    with make(tmp_path / "one", "one") as one, make(tmp_path / "other", "one") as other:
        players, number = (Player(one), Player(other)), 0
        for player in 40 * players:
            player.step()
        union = diskreplay.ReplayUnion([one, other], seed=0)
        ids = union.sample(4).id
        calls = {
            "sample": lambda: union.sample(4),
            "gather": lambda: union.gather(ids),
            "update_priorities": lambda: union.update_priorities(ids, np.ones(4)),
            "len": lambda: len(union),
        }
        while interrupted(calls[call], number):
            for buffer in (one, other):
                assert not buffer._lock._is_owned()
                assert threading.get_ident() not in buffer._busy
                assert buffer._rows.store.rwlock._inside == 0
            calls[call]()
            number += 1
        assert number > 15
        for player in players:
            player.step()
            player.check()


@pytest.mark.parametrize("call", ["next", "close"])
def test_prefetching(tmp_path, call):
    """No two batches get the same memory, and no thread is left behind."""
    with make(tmp_path / "store", "one") as buffer:
        player, number = Player(buffer), 0
        for _ in range(40):
            player.step()
        batches = [buffer.prefetch(2, 4)]
        calls = {"next": lambda: next(batches[0]), "close": lambda: batches[0].close()}
        while interrupted(calls[call], number):
            if call == "close":
                batches[0].close()
                assert not prefetching()
                batches[0] = buffer.prefetch(2, 4)
            for _ in range(5):
                batch = next(batches[0])
                expected = buffer.gather(batch.id.copy())
                time.sleep(0.002)  # the next ones are read
                for name in ("observation", "next_observation", "id"):
                    np.testing.assert_array_equal(batch[name], expected[name])
            number += 1
        assert number > 5
        batches[0].close()
        assert not prefetching()
        assert buffer._rows.store.rwlock._inside == 0


def prefetching():
    return [each for each in threading.enumerate() if each.name == "diskreplay prefetch"]


@pytest.mark.costly
def test_loading(tmp_path):
    """The rows are those of before or the loaded ones, and all of them."""
    path = tmp_path / "store"
    with make(path, "one") as buffer:
        player = Player(buffer)
        for _ in range(30):
            player.step()
        buffer.save(tmp_path / "checkpoints", 1)
        saved, number, kept = buffer.add_count, 0, 0
        while True:
            for _ in range(9):
                player.step()
            live = buffer.add_count
            if not interrupted(lambda: buffer.load(tmp_path / "checkpoints", 1), number):
                break
            assert buffer.add_count in (live, saved)
            kept += buffer.add_count == live
            player.check()
            player.step()
            number += effort(197, 97, 29)
        assert kept > effort(10, 20)
        player.check()
        assert buffer.add_count == saved
        player.step()
    assert [str(finding) for finding in verify(path).findings] == []
    make(path, "one").close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "store"]


def cut_at_the_end_of_a_stack(call, number):
    """Whether the call had one more `ExitStack` than so many, at the first line of whose `__exit__`
    Ctrl-C came; and the error, whose traceback refers to all that is there."""
    left, code = [number], contextlib.ExitStack.__exit__.__code__

    def look(frame, event, _argument):
        if event == "call" and frame.f_code is code:
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt as error:
        return left[0] < 0, error
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    return left[0] < 0, None


@pytest.mark.parametrize("call", ["save", "delete_left"])
def test_no_stack_that_ctrl_c_cuts_keeps_a_lock(tmp_path, call, monkeypatch):
    """Python looks for signals before the first line of its `__exit__`, and it lets go of nothing
    then."""
    with make(tmp_path / "store", "one") as buffer:
        player, maintenance = Player(buffer), buffer._rows.store.maintenance
        columns = buffer._rows.store.columns.values()

        def save():
            buffer.save(tmp_path / "checkpoints", player.steps)

        def delete_left():
            """With a first Ctrl-C before, which is put off."""
            forget = Segments.forget

            def forgets(*arguments):
                if not told:
                    told.append(1)
                    signal.raise_signal(signal.SIGINT)
                return forget(*arguments)

            told = []
            with monkeypatch.context() as patch, maintenance.lock:
                patch.setattr(Segments, "forget", forgets)
                for _ in range(30):
                    player.step()
                maintenance.run(durable=True)
            assert told

        for _ in range(100):
            player.step()
        number, had_one, errors = 0, True, []
        while had_one:
            had_one, error = cut_at_the_end_of_a_stack(locals()[call], number)
            errors.append(error)
            locks = [maintenance.lock, buffer._rows.store.rwlock, buffer._lock]
            locks += [column.files.changing for column in columns]
            held = [lock for lock in locks if lock._is_owned()]
            for lock in held:  # or the buffer could not be closed
                lock.release()
            assert not held
            assert not maintenance.pausing
            assert threading.get_ident() not in buffer._busy
            number += 1
        player.check()


@pytest.mark.parametrize("name", ["flush", "close"])
def test_ctrl_c_waits_for_what_must_not_stop(tmp_path, monkeypatch, name):
    """A real signal amid a flush: it is done, and then the signal is heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        buffer, replace, seen = make(tmp_path / "store", "one"), files.replace, []

        def interrupting(contents, **options):
            if not seen:
                seen.append(1)
                signal.raise_signal(signal.SIGINT)
            replace(contents, **options)

        player = Player(buffer)
        for _ in range(13):
            player.step()
        monkeypatch.setattr(files, "replace", interrupting)
        with pytest.raises(KeyboardInterrupt):
            getattr(buffer, name)()
        assert seen
        assert buffer._rows.store.durable_count.tolist() == buffer._rows.store.count.tolist()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        buffer.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert verify(tmp_path / "store").clean
