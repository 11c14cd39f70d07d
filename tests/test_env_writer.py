"""Actors in processes of their own: every row whose `add` returned is there, in order, once."""

import errno
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import diskreplay
from diskreplay import env_writer
from diskreplay.check.verify import verify
from diskreplay.errors import (
    ClosedError,
    CorruptSegmentError,
    DiskFullError,
    DtypeError,
    ForkedError,
    InvalidInputError,
    LockedError,
    NotFiniteError,
    PriorityError,
    ReadOnlyError,
    ReentryError,
    RingFullError,
    SchemaError,
    ShapeError,
)
from diskreplay.locks import wait_for
from diskreplay.store import file_locks, files, private
from diskreplay.store.actor_ring import TAKEN, UNTIL, WRITTEN
from tests import processes
from tests.actors import make, note, step_of
from tests.effort import effort

PATIENCE = 120.0  # seconds

# What an actor does: argv is the writer's file, a count of steps, and how many it did already. It
# prints the number of each step when its `add` has returned.
ACTOR = """
import pickle, sys
from tests.actors import step_of
with open(sys.argv[1], "rb") as file:
    writer = pickle.load(file)
for number in range(int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[2])):
    writer.add(**step_of(writer.env, number))
    print(number, flush=True)
"""


def add_all(writer, start, stop):
    for number in range(start, stop):
        writer.add(**step_of(writer.env, number))


def numbers(buffer, env):
    """The numbers of the steps of an env, in the order of its rows; every field is looked at."""
    first, stop = buffer.bounds[env]
    ids = np.arange(first, stop) * buffer.num_envs + env
    found = {name: buffer.take(name, ids) for name in buffer.fields}
    steps = ~found["is_final"]
    result = found["reward"][steps].astype(int)
    wanted = [step_of(env, int(number)) for number in result]
    for name in ("observation", "action", "terminated", "truncated"):
        assert np.array_equal(found[name][steps], np.array([step[name] for step in wanted])), name
    final = np.flatnonzero(found["is_final"])
    led_to = np.repeat(-found["reward"][final - 1], 3).reshape(-1, 3)
    assert np.array_equal(found["observation"][final], led_to)
    assert np.array_equal(found["step"][final], found["step"][final - 1] + 1)
    return result.tolist()


def wait_until(condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.costly
def test_actors_in_processes(tmp_path):
    """16 of them: all rows, in order, once, and a clean store."""
    with make(tmp_path / "a", 16) as buffer:
        writers = buffer.env_writers(rows=32)
        assert [writer.env for writer in writers] == list(range(16))
        actors = [start(ACTOR, note(tmp_path / str(w.env), w), 100, 0) for w in writers]
        for actor in actors:
            assert actor.communicate()[0].split()[-1] == "99"
            assert actor.returncode == 0
        buffer.drain()
        for env in range(16):
            assert numbers(buffer, env) == list(range(100))
        assert buffer.add_count == 1600
        assert verify(tmp_path / "a").findings == ()
    assert sorted(os.listdir(private.directory(tmp_path / "a"))) == ["lock", "state"]
    assert verify(tmp_path / "a").findings == ()


def test_the_same_as_add(tmp_path):
    """Dict spaces, extras, stacks, final rows, ends that were cut: what `add` makes of them."""
    space = Dict({"frame": Box(0, 255, (40, 40), "uint8"), "place": Box(-9, 9, (2,), "float32")})
    options = {
        "observation_space": space, "stack_size": 4, "stack_padding": "reset",
        "update_horizon": 3, "extras": {"mark": ((2,), "float16"), "note": ((), "float16")},
        "kind": diskreplay.PrioritizedReplayBuffer, "seed": 3, "capacity": 300,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    with make(tmp_path / "a", 1, **options) as one, make(tmp_path / "b", 1, **options) as other:
        (writer,) = one.env_writers(rows=5, automatic=False)
        for number in range(400):
            seen, led = (
                {"frame": rng.integers(0, 255, (40, 40), np.uint8),
                 "place": rng.random(2, np.float32)} for _ in range(2)
            )  # fmt: skip
            step = {
                "observation": seen, "action": np.int64(number % 5), "reward": number * 0.5,
                "terminated": number % 11 == 10, "truncated": np.bool_(number % 13 == 12),
                "next_observation": led if number % 3 else None, "mark": rng.random(2),
                "note": number, "priority": [None, 2.0, 0.5][number % 3],
            }  # fmt: skip
            for each in (writer, other):
                each.add(**step)
                if number % 50 == 17:
                    each.end_episode()
                if number % 50 == 33:
                    each.end_episode(next_observation=led)
            assert writer.waiting
            assert one.drain() >= 1
            assert not writer.waiting
        assert np.array_equal(one.bounds, other.bounds)
        ids = np.arange(*one.bounds[0])
        for name in one.fields:
            assert np.array_equal(one.take(name, ids), other.take(name, ids)), name
        assert one.sampleable_ids().tolist() == other.sampleable_ids().tolist()
        assert np.array_equal(one.tree.leaves, other.tree.leaves)
        found, same = one.sample(64), other.sample(64)
        assert np.array_equal(found.id, same.id)
        assert np.array_equal(found.observation["frame"], same.observation["frame"])
        writer.close()


def test_a_full_ring_blocks(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(rows=4, automatic=False)
        done = []
        assert writer.waiting == 0

        def act():
            for number in range(6):
                writer.add(**step_of(0, number))
                done.append(number)

        actor = threading.Thread(target=act)
        actor.start()
        wait_until(lambda: writer.waiting == 4)
        assert not actor.join(0.2)
        assert done == [0, 1, 2, 3]
        assert buffer.drain(1.0) == 4
        actor.join(PATIENCE)
        assert done == list(range(6))
        buffer.drain()
        assert numbers(buffer, 0) == list(range(6))
        with pytest.raises(InvalidInputError, match="at least 2"):
            buffer.env_writers(rows=1)


LEARNER = """
import pickle, sys, time
import diskreplay
from diskreplay import env_writer
from pathlib import Path
from tests.actors import make, note
buffer = make(sys.argv[1], int(sys.argv[2]))
for writer in buffer.env_writers(rows=16, timeout=float(sys.argv[4])):
    note(Path(f"{sys.argv[3]}.{writer.env}"), writer)
print("open", flush=True)
time.sleep(1000)
"""


def start(code, *arguments, **options):
    return processes.Process(code, *arguments, stdout=-1, **options)


def end(process):
    process.kill()
    with process:
        pass


def learner(tmp_path, envs, timeout=600.0):
    process = start(LEARNER, tmp_path / "a", envs, tmp_path / "writer", timeout)
    assert process.stdout.readline() == "open\n"
    return process


def test_a_dead_learner_is_reported(tmp_path):
    process = learner(tmp_path, 1, timeout=0.0)
    writer = pickle.loads((tmp_path / "writer.0").read_bytes())
    writer.add(**step_of(0, 0))
    end(process)
    number = 0
    while 16 - writer.waiting >= 2:
        number += 1
        writer.add(**step_of(0, number))
    with pytest.raises(RingFullError, match="no process has had the store open"):
        add_all(writer, number + 1, number + 3)
    assert writer.waiting in (15, 16)  # a final row needs a second place
    waiting = writer.waiting
    with make(tmp_path / "a", 1) as buffer:  # takes them before anything else
        found = numbers(buffer, 0)
        assert found == list(range(found[-1] + 1))
        assert buffer.bounds[0, 1] >= waiting
        writer.add(**step_of(0, found[-1] + 1))  # the step that was refused
        buffer.drain()
        assert numbers(buffer, 0) == list(range(found[-1] + 2))
    with pytest.raises(ClosedError, match="the buffer was closed"):
        writer.add(**step_of(0, 99))
    writer.close()
    with make(tmp_path / "a", 1) as buffer:
        assert numbers(buffer, 0) == list(range(found[-1] + 2))
        assert verify(tmp_path / "a").findings == ()


@pytest.mark.costly(1)
@pytest.mark.parametrize("seed", range(int(os.environ.get("DISKREPLAY_KILLS", "6")) // 2))
def test_kills_of_learner_and_actor(tmp_path, seed):
    """Killed in turn, amid what they are doing: no row whose `add` returned is lost or twice."""
    rng = np.random.default_rng(seed)
    acknowledged = [-1, -1]
    process = learner(tmp_path, 2)
    for turn in range(6):
        actors = [
            start(ACTOR, tmp_path / f"writer.{env}", 100_000, acknowledged[env] + 1)
            for env in range(2)
        ]
        wanted = [acknowledged[env] + int(rng.integers(5, 400)) for env in range(2)]
        for env, actor in enumerate(actors):
            while acknowledged[env] < wanted[env]:
                acknowledged[env] = int(actor.stdout.readline())
        if turn % 2:
            end(process)
            process = learner(tmp_path, 2)  # the actors that live go on
        for env, actor in enumerate(actors):
            for _ in range(20):
                acknowledged[env] = int(actor.stdout.readline())
        for env, actor in enumerate(actors):
            actor.kill()
            with actor:
                lines = actor.stdout.read().split("\n")[:-1]  # a number that was cut is none
            acknowledged[env] = max([acknowledged[env], *map(int, lines)])
            # One more may be there, whose `add` was done and not said.
            acknowledged[env] = settled(tmp_path, process, env, acknowledged[env])
    end(process)
    with make(tmp_path / "a", 2) as buffer:
        for env in range(2):
            assert numbers(buffer, env) == list(range(acknowledged[env] + 1))
        assert verify(tmp_path / "a").findings == ()


def settled(tmp_path, process, env, acknowledged):
    """The last step of an env, when all that its ring had is in the store."""
    writer = pickle.loads((tmp_path / f"writer.{env}").read_bytes())
    wait_until(lambda: not writer.waiting)
    writer.close()
    with diskreplay.open(tmp_path / "a") as reader:
        last = numbers(reader, env)[-1]
    assert acknowledged <= last <= acknowledged + 1
    return last


@pytest.mark.costly
def test_a_kill_at_steps_of_taking(tmp_path):
    """What a learner was amid is found by the next one: nothing twice, nothing left out."""
    at, lines = 0, []
    while True:
        path = tmp_path / str(at)
        buffer = make(path, 2)
        writers = buffer.env_writers(rows=16, automatic=False)
        for writer in writers:
            for number in range(9):
                writer.add(**step_of(writer.env, number))
        left = [at]

        def trace(frame, event, argument, left=left, path=path, lines=lines):
            name = frame.f_code.co_filename
            if not name.endswith(("actor_rings.py", "actor_ring.py", "row_writer.py")):
                return trace if name.endswith(("actor_rows.py", "indexed_store.py")) else None
            if event == "line":
                left[0] -= 1
                if left[0] == -1:
                    lines.append(frame.f_lineno)
                    snapshot(path, path.with_suffix(".killed"))
            return trace

        maintenance = buffer._rows.store.maintenance
        maintenance.pausing.add(threading.get_ident())  # files are not moved while they are copied
        wait_for(maintenance.lock)
        sys.settrace(trace)
        try:
            buffer.drain()
        finally:
            sys.settrace(None)
            maintenance.pausing.clear()
        for writer in writers:
            writer.close()
        buffer.close()
        if left[0] >= 0:
            break
        with make(path.with_suffix(".killed"), 2) as again:
            for env in range(2):
                assert numbers(again, env) == list(range(9)), lines[-1]
        shutil.rmtree(path)
        shutil.rmtree(path.with_suffix(".killed"))
        at += effort(9, 5)
    assert len(set(lines)) > effort(10, 15)


def snapshot(path, target):
    """What a kill would leave: the files as they are, without the locks."""
    shutil.copytree(path, target)


def test_an_actor_dies_amid_its_episode(tmp_path):
    with make(tmp_path / "a", 1, update_horizon=1) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        for number in range(3):
            writer.add(**step_of(0, number))
        path = note(tmp_path / "writer", writer)
        with pytest.raises(LockedError, match=rf"in process {os.getpid()}"):
            pickle.loads(path.read_bytes()).add(**step_of(0, 3))
        del writer  # as its death does
        again = pickle.loads(path.read_bytes())
        for number in range(3, 5):
            again.add(**step_of(0, number))
        buffer.drain()
        assert buffer.take("step", np.arange(5)).tolist() == [0, 1, 2, 0, 1]
        assert buffer.sampleable_ids().tolist() == [0, 1, 3]
        again.close()
        with pytest.raises(ClosedError, match="this writer is closed"):
            again.add(**step_of(0, 5))


def test_an_episode_goes_on_over_the_learners_death(tmp_path):
    process = learner(tmp_path, 1)
    writer = pickle.loads((tmp_path / "writer.0").read_bytes())
    for number in range(3):
        writer.add(**step_of(0, number))
    wait_until(lambda: not writer.waiting)
    end(process)
    writer.add(**step_of(0, 3))
    with make(tmp_path / "a", 1) as buffer:
        writer.add(**step_of(0, 4))
        buffer.drain()
        assert buffer.take("step", np.arange(5)).tolist() == list(range(5))
        assert buffer.sampleable_ids().tolist() == [0, 1, 2]
        writer.close()


def test_a_forked_child_is_refused(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers()
        writer.add(**step_of(0, 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            try:
                writer.add(**step_of(0, 1))
            except LockedError:
                os._exit(7)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        writer.add(**step_of(0, 1))
        buffer.drain()
        assert numbers(buffer, 0) == [0, 1]
        writer.close()


def test_a_step_comes_with_what_it_led_to(tmp_path):
    """A batch could have zeros for it, where both were at two ends of the ring."""
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(rows=3, automatic=False)
        for number in range(6, 6 + 14 * 7, 14):  # all of them end an episode
            writer.add(**step_of(0, number))
            while buffer._take_some():
                assert buffer.take("is_final", [buffer.bounds[0, 1] - 1])
        writer.close()
        assert numbers(buffer, 0) == list(range(6, 6 + 14 * 7, 14))


def test_threads_that_share_a_writer_lose_nothing(tmp_path):
    """Two rows got one place of the ring, and one of them was lost."""
    steps, before = effort(1000, 5000), sys.getswitchinterval()
    with make(tmp_path / "a", 1, capacity=None) as buffer:
        (writer,) = buffer.env_writers()
        halves = [range(steps), range(steps, 2 * steps)]
        threads = [threading.Thread(target=add_all, args=(writer, h[0], h[-1] + 1)) for h in halves]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        writer.close()
        buffer.flush()
        assert buffer.add_count == 2 * steps
        found = numbers(buffer, 0)
        for half in halves:
            assert [number for number in found if number in half] == list(half)


@pytest.mark.parametrize("pickled", [False, True])
def test_an_add_amid_a_call_of_the_buffer_is_refused(tmp_path, pickled):
    """It waited for room in its ring, and who takes the rows for the end of that call: for ever."""
    with make(tmp_path / "a", 1, kind=diskreplay.PrioritizedReplayBuffer) as buffer:
        (writer,) = buffer.env_writers(4)
        if pickled:
            writer = pickle.loads(pickle.dumps(writer))
        add_all(writer, 0, 5)
        buffer.drain()
        tried = []

        def schedule(_added):
            for call in (lambda: writer.add(**step_of(0, 9)), writer.end_episode):
                with pytest.raises(ReentryError, match="called amid another call"):
                    call()
                tried.append(call)
            assert writer.waiting == 0
            return 0.5

        buffer.sample(1, beta=schedule)
        assert len(tried) == 2
        buffer.sample(1, beta=lambda _: writer.close() or 0.5)  # which waits for nothing
        (writer,) = buffer.env_writers(4)
        writer.add(**step_of(0, 5))
        buffer.drain()
        assert numbers(buffer, 0) == list(range(6))
        writer.close()


@pytest.mark.parametrize("automatic", [False, True])
def test_a_close_that_is_refused_leaves_actors_as_they_are(tmp_path, automatic):
    """Their `add` was refused from then on, though the buffer was open; and `close` waited for ever
    where the thread that takes rows waited for the call that it came amid."""
    with make(tmp_path / "a", 1, kind=diskreplay.PrioritizedReplayBuffer) as buffer:
        (writer,) = buffer.env_writers(automatic=automatic)
        add_all(writer, 0, 5)
        buffer.drain()
        with pytest.raises(ReentryError, match="called amid another call"):
            buffer.sample(1, beta=lambda _: buffer.close())
        writer.add(**step_of(0, 5))
        if automatic:
            wait_until(lambda: buffer.add_count == 6)
        buffer.drain()
        assert numbers(buffer, 0) == list(range(6))
        writer.close()


def test_a_signal_handler_that_adds_amid_an_add_is_refused(tmp_path, monkeypatch):
    """Its row got the place of the other one, which was lost."""
    came, handler = [], signal.getsignal(signal.SIGUSR1)

    def act(*_):
        for call in (lambda: writer.add(**step_of(0, 9)), writer.end_episode, writer.close):
            with pytest.raises(ReentryError, match="env 0: called amid another call"):
                call()
            came.append(call)

    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers()
        writer.add(**step_of(0, 0))
        put = type(writer._ring).put

        def cut(*given):
            signal.raise_signal(signal.SIGUSR1)
            put(*given)

        try:
            signal.signal(signal.SIGUSR1, act)
            monkeypatch.setattr(type(writer._ring), "put", cut)
            writer.add(**step_of(0, 1))
        finally:
            signal.signal(signal.SIGUSR1, handler)
        monkeypatch.undo()
        assert len(came) == 3
        writer.add(**step_of(0, 2))
        writer.close()
        buffer.drain()
        assert numbers(buffer, 0) == [0, 1, 2]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_ctrl_c_right_behind_a_row_loses_none(tmp_path, monkeypatch, number, taken):
    """The next step got the place of the one that was there already, and was never taken."""
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        add_all(writer, 0, number)
        publish = type(writer._ring).publish

        def cut(ring, written):
            publish(ring, written)
            raise KeyboardInterrupt

        monkeypatch.setattr(type(writer._ring), "publish", cut)
        with pytest.raises(KeyboardInterrupt):
            add_all(writer, number, number + 1)
        monkeypatch.undo()
        if taken:
            buffer.drain()
        add_all(writer, number + 1, number + 5)
        writer.close()
        buffer.drain()
        assert numbers(buffer, 0) == list(range(number + 5))
        ids = np.arange(*buffer.bounds[0])
        steps, begins = buffer.take("step", ids), buffer.take("is_final", ids)
        follow = steps[1:] == steps[:-1] + 1
        assert (follow | begins[:-1] | (steps[1:] == 0)).all()


def test_rows_are_counted_while_an_add_waits_on_another_thread(tmp_path):
    """Also where the thread that looks was there before the other one had taken the ring."""
    begun, looked = threading.Event(), threading.Event()

    def wait_for_room():
        with writer._turn():
            begun.set()
            found.append(looked.wait(PATIENCE))

    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(rows=4, automatic=False)
        found = []
        thread = threading.Thread(target=wait_for_room)
        thread.start()
        assert begun.wait(PATIENCE)
        assert writer.waiting == 0
        looked.set()
        thread.join()
        assert found == [True]
        writer.close()


def test_close_ends_an_add_that_waits_on_another_thread(tmp_path):
    errors = []

    def fill():
        try:
            add_all(writer, 0, 100)
        except ClosedError as error:
            errors.append(error)

    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(rows=4, automatic=False)
        thread = threading.Thread(target=fill)
        thread.start()
        wait_until(lambda: writer.waiting >= 3)
        writer.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert "this writer is closed" in str(errors[0])
        buffer.drain()
        added = buffer.add_count
        assert numbers(buffer, 0) == list(range(added))
        (writer,) = buffer.env_writers(rows=4)  # nobody has the ring
        writer.add(**step_of(0, added))
        writer.close()
        buffer.drain()
        assert numbers(buffer, 0) == list(range(added + 1))


def test_a_child_forked_amid_an_add_of_another_thread_waits_for_nobody(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(rows=4, automatic=False)
        thread = threading.Thread(target=add_all, args=(writer, 0, 8))
        thread.start()
        wait_until(lambda: writer.waiting >= 3)  # the next one waits for room
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE))
            try:
                writer.add(**step_of(0, 9))
            except LockedError:
                os._exit(7)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        while thread.is_alive():
            buffer.drain(0.01)
        writer.close()
        buffer.drain()
        assert numbers(buffer, 0) == list(range(8))


def check_a_ring_of_a_killed_actor(directory, code):
    """That another one goes on with it when the process that runs `code` has added a row and was
    killed, though a child of that is still there."""
    with make(directory / "a", 1) as buffer:
        (writer,) = buffer.env_writers()
        with start(code, note(directory / "w", writer), stdin=-1) as actor:
            assert actor.wait() == -signal.SIGKILL
            writer.add(**step_of(0, 1))
            buffer.drain()
            assert numbers(buffer, 0) == [0, 1]
            writer.close()


def test_a_child_that_outlives_its_parent_holds_no_ring(tmp_path):
    code = """
import os, pickle, sys, time
writer = pickle.load(open(sys.argv[1], "rb"))
from tests.actors import step_of
writer.add(**step_of(0, 0))
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    check_a_ring_of_a_killed_actor(tmp_path, code)


def test_a_ring_that_a_last_child_still_has_is_waited_for(tmp_path):
    """As a child has it that was forked just before its actor was killed, until it first runs."""
    code = """
import os, pickle, subprocess, sys
from tests.actors import step_of
writer = pickle.load(open(sys.argv[1], "rb"))
writer.add(**step_of(0, 0))
subprocess.Popen(["sleep", "0.5"], pass_fds=[writer._lock], stdout=subprocess.DEVNULL)
os.kill(os.getpid(), 9)
"""
    check_a_ring_of_a_killed_actor(tmp_path, code)


def test_what_an_add_refuses_leaves_nothing(tmp_path):
    with make(tmp_path / "a", 1, kind=diskreplay.PrioritizedReplayBuffer) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        good = step_of(0, 0)
        for error, wrong in (
            (ShapeError, {"observation": np.zeros(4, np.float32)}),
            (DtypeError, {"action": 1.5}),
            (NotFiniteError, {"reward": np.inf}),
            (PriorityError, {"priority": np.nan}),
            (PriorityError, {"priority": -1.0}),
            (PriorityError, {"priority": "a"}),
            (PriorityError, {"priority": np.inf}),
            (diskreplay.ExtrasError, {"mask": True}),
        ):
            with pytest.raises(error):
                writer.add(**good | wrong)
        assert writer.waiting == 0
        writer.close()
    with make(tmp_path / "b", 1) as buffer:
        (writer,) = buffer.env_writers()
        with pytest.raises(InvalidInputError, match="draws uniformly"):
            writer.add(**good, priority=1.0)
        writer.close()


def test_some_envs(tmp_path):
    with make(tmp_path / "a", 4) as buffer:
        writers = buffer.env_writers(envs=[3, 1], automatic=False)
        assert [writer.env for writer in writers] == [3, 1]
        for writer in writers:
            writer.add(**step_of(writer.env, 0))
        mask = np.array([True, False, True, False])
        frame = np.zeros((4, 3), np.float32)
        buffer.add(frame, [0] * 4, np.zeros(4), mask & False, mask & False, mask=mask)
        buffer.add(frame, [0] * 4, np.zeros(4), mask & False, mask & False)  # also of their envs
        assert buffer.drain() == 2
        assert buffer.bounds[:, 1].tolist() == [2, 2, 2, 2]
        for wrong in ([4], [-1], [0, 0], ["a"], [True, 2.0]):
            with pytest.raises(InvalidInputError, match="envs"):
                buffer.env_writers(envs=wrong)
        with pytest.raises(InvalidInputError, match="timeout"):
            buffer.env_writers(timeout=-1)
        for wrong in ("no", None, 2, [True]):
            with pytest.raises(InvalidInputError, match="automatic: a bool expected"):
                buffer.env_writers(automatic=wrong)
        with pytest.raises(LockedError, match="an actor writes to"):
            buffer.env_writers(rows=99, envs=[3])
        for writer in writers:
            writer.close()
        buffer.env_writers(rows=99, envs=[3])
        with diskreplay.open(tmp_path / "a") as reader, pytest.raises(ReadOnlyError):
            reader.env_writers()


def test_save_has_what_was_added_before(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers()
        for number in range(40):
            writer.add(**step_of(0, number))
            if number % 10 == 9:
                saved = buffer.save(tmp_path / "saved", number)
                with diskreplay.open(saved) as reader:
                    assert numbers(reader, 0) == list(range(number + 1))
                assert not private.directory(saved).exists()
        writer.close()
    with make(tmp_path / "b", 1) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        writer.add(**step_of(0, 0))
        with diskreplay.open(buffer.save(tmp_path / "saved", 1)) as reader:
            assert not reader.bounds.any()
        buffer.flush()
        assert writer.waiting == 1
        writer.close()
    with make(tmp_path / "b", 1) as buffer:
        assert numbers(buffer, 0) == [0]


def test_load_drops_what_waits_and_the_actor_goes_on(tmp_path):
    with make(tmp_path / "a", 1, update_horizon=1, stack_size=2) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        for number in range(3):
            writer.add(**step_of(0, number))
        buffer.drain()
        buffer.save(tmp_path / "saved", 1)
        for number in range(3, 5):
            writer.add(**step_of(0, number))
        buffer.drain()
        writer.add(**step_of(0, 5))
        buffer.load(tmp_path / "saved", 1)
        assert writer.waiting == 0
        assert numbers(buffer, 0) == [0, 1, 2]
        for number in range(6, 10):  # the end of an episode, and another one
            writer.add(**step_of(0, number))
        buffer.drain()
        assert numbers(buffer, 0) == [0, 1, 2, 6, 7, 8, 9]
        # The rest of an episode: its first row has no whole stack, here none is left of it.
        assert buffer.take("step", np.arange(8)).tolist() == [0, 1, 2, 6, 7, 0, 1, 2]
        assert 3 not in buffer.sampleable_ids()
        buffer.clear()
        writer.add(**step_of(0, 10))
        buffer.drain()
        assert numbers(buffer, 0) == [10]
        assert verify(tmp_path / "a").findings == ()
        writer.close()


def test_load_goes_on_with_open_episodes(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers()
        for number in range(3):
            writer.add(**step_of(0, number))
        buffer.save(tmp_path / "saved", 1)
        writer.add(**step_of(0, 3))
        path = note(tmp_path / "w", writer)
        writer.close()
        buffer.load(tmp_path / "saved", 1, resume_episodes=True)
        (again,) = buffer.env_writers()
        again.add(**step_of(0, 3))
        buffer.drain()
        assert buffer.take("step", np.arange(4)).tolist() == [0, 1, 2, 3]
        again.close()
        taken_over = pickle.loads(path.read_bytes())
        taken_over.add(**step_of(0, 4))
        buffer.drain()
        assert buffer.take("step", np.arange(5)).tolist() == [0, 1, 2, 3, 0]
        taken_over.close()


def test_close_while_an_actor_writes(tmp_path):
    buffer = make(tmp_path / "a", 1)
    (writer,) = buffer.env_writers(rows=8)
    done, refused = [], []

    def act():
        try:
            for number in range(1_000_000):
                writer.add(**step_of(0, number))
                done.append(number)
        except ClosedError as error:
            refused.append(error)

    actor = threading.Thread(target=act)
    actor.start()
    wait_until(lambda: len(done) > 100)
    buffer.close()
    actor.join(PATIENCE)
    assert refused
    writer.close()
    with make(tmp_path / "a", 1) as buffer:
        assert numbers(buffer, 0) == done
        assert verify(tmp_path / "a").findings == ()


def test_another_capacity(tmp_path):
    buffer = make(tmp_path / "a", 2, capacity=200)
    writers = buffer.env_writers()
    for number in range(60):
        for writer in writers:
            writer.add(**step_of(writer.env, number))
    buffer.close()
    for writer in writers:
        writer.close()
    with make(tmp_path / "a", 2, capacity=60, shrink=True) as buffer:
        (writer, _) = buffer.env_writers(automatic=False)
        for number in range(60, 90):
            writer.add(**step_of(0, number))
        buffer.drain()
        assert numbers(buffer, 0)[-1] == 89
        assert (np.diff(buffer.bounds)[:, 0] == 30).all()
        writer.close()


# -- rings that are not what they should be


def killed(tmp_path, rows=5):
    """A store whose learner was killed with rows in the ring of its only env."""
    process = learner(tmp_path, 1)
    process.send_signal(signal.SIGSTOP)
    writer = pickle.loads((tmp_path / "writer.0").read_bytes())
    add_all(writer, 0, rows)
    end(process)
    writer.close()
    return private.ring(tmp_path / "a", 0)


def test_a_ring_that_was_cut(tmp_path):
    path = killed(tmp_path)
    whole = path.read_bytes()
    for data in (whole[:100], whole[:-4096], whole + b"\0" * 4096, b"X" + whole[1:]):
        path.write_bytes(data)
        with pytest.raises(CorruptSegmentError, match=r"ring\.0: .* lost|bytes found"):
            make(tmp_path / "a", 1)
    for at, value in ((WRITTEN, 99), (TAKEN, 99), (UNTIL, 99), (WRITTEN, -1)):
        words = np.frombuffer(bytearray(whole), "<i8").copy()
        words[at] = value
        path.write_bytes(words.tobytes())
        with pytest.raises(CorruptSegmentError, match="damaged"):
            make(tmp_path / "a", 1)
    path.write_bytes(whole)
    with make(tmp_path / "a", 1) as buffer:
        assert numbers(buffer, 0) == list(range(5))


def test_a_ring_of_another_space_and_of_another_store(tmp_path):
    path = killed(tmp_path)
    with make(tmp_path / "b", 1, observation_space=Box(-1, 1, (7,), "float32")) as other:
        other.env_writers()
        foreign = private.ring(tmp_path / "b", 0).read_bytes()
    mine = path.read_bytes()
    path.write_bytes(foreign)
    with pytest.raises(SchemaError, match="other spaces or extras"):
        make(tmp_path / "a", 1)
    path.unlink()
    make(tmp_path / "c", 1).close()
    private.ring(tmp_path / "c", 0).write_bytes(mine)  # of the same form, and another's
    with make(tmp_path / "c", 1) as buffer:
        assert not buffer.bounds.any()


def test_a_ring_of_before_a_power_cut(tmp_path):
    path = killed(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"another boot".ljust(56, b"\0") + data[64:])
    writer = pickle.loads((tmp_path / "writer.0").read_bytes())
    with pytest.raises(ClosedError, match="another machine"):
        writer.add(**step_of(0, 0))
    with pytest.warns(RuntimeWarning, match=r"rows that an actor had added are lost \(5\)"):
        buffer = make(tmp_path / "a", 1)
    with buffer:
        assert not buffer.bounds.any()
        assert not path.exists()
        with pytest.raises(ClosedError, match="the buffer was closed, or its directory"):
            writer.add(**step_of(0, 0))


def test_a_ring_that_was_made_anew(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        (old,) = buffer.env_writers(rows=8)
        (new,) = buffer.env_writers(rows=16)
        with pytest.raises(ClosedError, match="made anew"):
            old.add(**step_of(0, 0))
        new.add(**step_of(0, 0))
        new.close()


def test_new_extras_wait_until_actors_are_gone(tmp_path):
    killed(tmp_path)
    more = {"extras": {"more": ((), "float32")}, "new_extras": ["more"]}
    with pytest.raises(SchemaError, match="actor's rows, which have no 'more'"):
        make(tmp_path / "a", 1, **more)
    make(tmp_path / "a", 1).close()
    with make(tmp_path / "a", 1, **more) as buffer:
        assert numbers(buffer, 0) == list(range(5))


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    with make(tmp_path / "a", 1) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        for number in range(5):
            writer.add(**step_of(0, number))
        refused = files.allocate

        def full(path, size):
            raise diskreplay.DiskFullError(28, "full", str(path))

        monkeypatch.setattr(files, "allocate", full)
        with pytest.raises(diskreplay.DiskFullError):
            buffer.drain()
        assert writer.waiting == 6 - 1
        monkeypatch.setattr(files, "allocate", refused)
        assert buffer.drain() == 5
        assert numbers(buffer, 0) == list(range(5))
        writer.close()


def test_repair_keeps_what_waits(tmp_path):
    killed(tmp_path)
    diskreplay_repair(tmp_path / "a")
    with make(tmp_path / "a", 1) as buffer:
        assert numbers(buffer, 0) == list(range(5))


def diskreplay_repair(path):
    from diskreplay.check.repair import repair

    repair(path)


def test_a_dropped_buffer_ends_its_thread(tmp_path):
    buffer = make(tmp_path / "a", 1)
    buffer.env_writers()
    (keeper,) = (t for t in threading.enumerate() if t.name.startswith("diskreplay actors"))
    del buffer
    keeper.join(PATIENCE)
    assert not keeper.is_alive()
    make(tmp_path / "a", 1).close()


def test_a_child_of_the_learner_makes_no_writers(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        buffer._pid += 1
        try:
            for call in (buffer.env_writers, buffer.drain):
                with pytest.raises(ForkedError):
                    call()
        finally:
            buffer._pid -= 1


def pairs(buffer):
    buffer.drain()
    batch = buffer.gather(buffer.sampleable_ids())
    return np.c_[batch.observation[:, 0], batch.next_observation[:, 0]].tolist()


def step(value, terminated=False, led_to=None):
    seen = None if led_to is None else np.full(3, led_to, np.float32)
    return (np.full(3, value, np.float32), 0, 1.0, terminated, False, seen)


@pytest.mark.parametrize("rows", [8, 16])
def test_a_ring_made_anew_goes_on_with_no_episode_of_before(tmp_path, rows):
    with make(tmp_path / "a", 1, update_horizon=1) as buffer:
        (writer,) = buffer.env_writers(rows=8)
        for number in range(3):
            writer.add(*step(100 + number))
        writer.close()  # amid its episode
        buffer.drain()
        (writer,) = buffer.env_writers(rows=rows)
        for number in range(3):
            writer.add(*step(500 + number))
        assert pairs(buffer) == [[100, 101], [101, 102], [500, 501], [501, 502]]
        assert buffer.take("step", np.arange(6)).tolist() == [0, 1, 2, 0, 1, 2]
        writer.close()


def test_a_first_ring_goes_on_with_no_episode_of_before(tmp_path):
    with make(tmp_path / "a", 1, update_horizon=1) as buffer:
        for number in range(3):
            buffer.add(*step(100 + number))
        (writer,) = buffer.env_writers(rows=8)
        for number in range(2):
            writer.add(*step(500 + number))
        assert pairs(buffer) == [[100, 101], [101, 102], [500, 501]]
        writer.close()


@pytest.mark.parametrize("came", ["before", "before, and waited", "after", "after buffer.add"])
def test_who_goes_on_with_the_episode_of_a_checkpoint(tmp_path, came):
    """Also where the steps are those that come next: only who came after the load."""
    with make(tmp_path / "a", 1, update_horizon=1) as buffer:
        (writer,) = buffer.env_writers(rows=8, automatic=False)
        writer.add(*step(100))
        writer.add(*step(101))
        buffer.drain()
        buffer.save(tmp_path / "c", 1)
        writer.add(*step(102, True, 103))
        if came == "before":
            writer.add(*step(200))
            writer.add(*step(201))
        buffer.drain()
        if came == "before, and waited":
            writer.close()
            (writer,) = buffer.env_writers(rows=8, automatic=False)
            assert writer.waiting == 0  # it has the ring
        buffer.load(tmp_path / "c", 1, resume_episodes=True)
        if came.startswith("after"):
            writer.close()
            (writer,) = buffer.env_writers(rows=8, automatic=False)
        if came == "after buffer.add":
            buffer.add(*step(102, True, 103))
            for number in range(2):
                buffer.add(*step(300 + number))
        writer.add(*step(202))
        writer.add(*step(203))
        expected = {
            "before": [[100, 101], [202, 203]],
            "before, and waited": [[100, 101], [202, 203]],
            "after": [[100, 101], [101, 202], [202, 203]],
            "after buffer.add": [
                [100, 101], [101, 102], [102, 103], [300, 301], [202, 203]
            ],
        }[came]  # fmt: skip
        found = pairs(buffer)
        assert [each for each in found if each[0] != 101 or each in expected] == expected
        assert not any(a == 101 and b == 202 for a, b in found) or came == "after"
        writer.close()


@pytest.mark.parametrize("in_use", ["held", "waiting"])
def test_rings_of_another_length_are_made_for_all_envs_or_none(tmp_path, in_use):
    with make(tmp_path / "a", 3, update_horizon=1) as buffer:
        writers = buffer.env_writers(rows=8, automatic=in_use == "held")
        writers[2].add(*step(0))
        if in_use == "waiting":
            writers[2].close()
        says = "which an actor writes to" if in_use == "held" else "1 wait to be taken"
        with pytest.raises(LockedError, match=says):
            buffer.env_writers(rows=16, automatic=in_use != "held")
        assert buffer._rings.by_itself == (in_use == "held")
        writers[0].add(*step(1))  # its ring is the one of before
        writers[1].add(*step(1))
        buffer.save(tmp_path / "c", 1)
        with diskreplay.open(tmp_path / "c" / "replay_ckpt.1") as reader:
            assert reader.add_count == (3 if in_use == "held" else 0)
        for writer in writers:
            writer.close()
        buffer.drain()
        assert len(buffer.env_writers(rows=16)) == 3
        assert buffer.add_count == 3


def test_ctrl_c_while_a_ring_is_taken_holds_it_for_nobody(tmp_path, monkeypatch):
    with make(tmp_path / "a", 1, update_horizon=1) as buffer:
        (writer,) = buffer.env_writers(rows=8)
        calls = [(file_locks, "try_lock"), (files, "is_at"), (env_writer, "ActorRing")]
        for module, name in calls:
            real = getattr(module, name)

            def then_interrupt(*given, _real=real, **options):
                monkeypatch.undo()
                found = _real(*given, **options)
                signal.raise_signal(signal.SIGINT)
                return found

            monkeypatch.setattr(module, name, then_interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.add(*step(0))
            monkeypatch.undo()
            writer.add(*step(1))
            writer.close()
            (writer,) = buffer.env_writers(rows=8)
        writer.close()


def test_options_are_noted_while_no_row_of_an_actor_comes(tmp_path, monkeypatch):
    buffer = make(tmp_path / "store", 1)
    (writer,) = buffer.env_writers()
    writer.add(**step_of(0, 0))
    buffer.close()  # the ring stays: its actor is there
    whole, held = diskreplay.ReplayBuffer._record, []

    def noted(self, **how):
        held.append(self._lock._is_owned())
        whole(self, **how)

    monkeypatch.setattr(diskreplay.ReplayBuffer, "_record", noted)
    buffer = make(tmp_path / "store", 1, gamma=0.5)
    assert buffer._thread is not None  # which takes rows whenever it gets the lock
    assert held == [True]
    buffer.close()
    writer.close()


def test_a_longer_ring_that_the_disk_has_no_room_for_leaves_the_one_before(tmp_path, monkeypatch):
    with make(tmp_path / "store", 1) as buffer:
        (writer,) = buffer.env_writers(rows=8)

        def refuse(*_arguments):
            raise DiskFullError(errno.ENOSPC, "no room", "there")

        with monkeypatch.context() as patched:
            patched.setattr(files, "allocate", refuse)
            with pytest.raises(DiskFullError):
                buffer.env_writers(rows=16)
        writer.add(**step_of(0, 0))
        with pytest.raises(LockedError, match="an actor writes to"):
            buffer.env_writers(rows=16)
        writer.close()
        buffer.drain()
        (longer,) = buffer.env_writers(rows=16)
        with pytest.raises(ClosedError, match="made anew"):
            writer_of(writer).add(**step_of(0, 1))
        longer.add(**step_of(0, 1))
        buffer.drain()
        assert buffer.bounds.tolist() == [[0, 2]]
        longer.close()


def writer_of(writer):
    """Another one of the same ring, as a process that it was sent to has it."""
    return pickle.loads(pickle.dumps(writer))
