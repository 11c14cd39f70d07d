"""One open buffer a process and path."""

import gc
import os
import shutil
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors, shared_buffer
from tests.test_interrupt import interrupted

OPTIONS = {
    "observation_space": Box(0, 255, (4,), np.uint8), "action_space": Discrete(2), "capacity": 64,
}  # fmt: skip


def add(buffer):
    return buffer.add(np.zeros(4, np.uint8), 1, 1.0, False, False).tolist()


def test_all_handles_of_a_path_have_one_buffer(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    one = diskreplay.shared(tmp_path / "r", **OPTIONS)
    assert not (tmp_path / "r").exists()
    assert not one.is_open
    with diskreplay.shared(tmp_path / "link" / "r", **OPTIONS) as other:
        assert add(other.buffer) == [0]
        assert one.buffer is other.buffer
        assert one.is_open
    assert add(one.buffer) == [1]  # one of two was closed
    assert "open" in repr(one)
    one.close()
    one.close()
    assert not one.is_open
    with pytest.raises(errors.ClosedError, match="handle"):
        one.buffer  # noqa: B018
    with diskreplay.ReplayBuffer(tmp_path / "r", **OPTIONS) as alone:  # the lock is free
        assert alone.add_count == 2


def test_other_options_are_refused_while_it_is_open(tmp_path):
    with diskreplay.shared(tmp_path / "r", **OPTIONS) as one:
        with diskreplay.shared(tmp_path / "r", **OPTIONS | {"capacity": 32}) as two:
            assert two.buffer.capacity == 32  # nobody had used the others
        assert one.buffer.capacity == 32
        for other in ({"capacity": 64}, {"capacity": 32, "gamma": 0.5}):
            with pytest.raises(errors.UsageError, match=list(other)[-1]):
                diskreplay.shared(tmp_path / "r", **OPTIONS | other)
        with pytest.raises(errors.UsageError, match="prioritized"):
            diskreplay.shared(tmp_path / "r", prioritized=True, **OPTIONS | {"capacity": 32})
        assert add(one.buffer) == [0]


def remove(path):
    while path.exists():  # the maintenance thread may just make a file in it
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("how", ["deleted", "moved"])
@pytest.mark.parametrize("capacity", [64, 32])  # other options are no matter then
def test_a_directory_that_is_gone_is_not_shared(tmp_path, how, capacity):
    old = diskreplay.shared(tmp_path / "r", **OPTIONS)
    add(old.buffer)
    if how == "deleted":
        remove(tmp_path / "r")
    else:
        (tmp_path / "r").rename(tmp_path / "moved")
    with diskreplay.shared(tmp_path / "r", **OPTIONS | {"capacity": capacity}) as new:
        assert len(new.buffer.sampleable_ids()) == 0
        for _ in range(5):
            add(new.buffer)
        assert add(old.buffer) == [1]
        with diskreplay.shared(tmp_path / "r", **OPTIONS | {"capacity": capacity}) as third:
            assert third.buffer is new.buffer
        with pytest.raises(errors.StoreMovedError, match=how):
            old.buffer.close()
        old.close()
        with diskreplay.shared(tmp_path / "r", **OPTIONS | {"capacity": capacity}) as third:
            assert third.buffer is new.buffer
    with diskreplay.open(tmp_path / "r") as found:
        assert found.add_count == 5
    if how == "moved":
        with diskreplay.open(tmp_path / "moved") as found:
            assert found.add_count == 2


def test_older_handles_do_not_take_the_path_again(tmp_path):
    old, other = (diskreplay.shared(tmp_path / "r", **OPTIONS) for _ in range(2))
    add(old.buffer)
    remove(tmp_path / "r")
    new = diskreplay.shared(tmp_path / "r", **OPTIONS)
    with pytest.raises(errors.StoreMovedError):
        old.buffer.close()
    with pytest.raises(errors.ClosedError, match="newer handles"):
        add(other.buffer)
    add(new.buffer)
    new.close()
    del new
    gc.collect()
    assert other.buffer.add_count == 1  # nobody else has it now
    with diskreplay.shared(tmp_path / "r", **OPTIONS) as third:
        assert third.buffer is other.buffer
    old.close()
    other.close()


def test_what_is_dropped_lets_go(tmp_path):
    handles = [diskreplay.shared(tmp_path / "r", prioritized=True, **OPTIONS) for _ in range(3)]
    assert isinstance(handles[1].buffer, diskreplay.PrioritizedReplayBuffer)
    add(handles[0].buffer)
    del handles[1:]
    gc.collect()
    assert add(handles[0].buffer) == [1]
    handles.clear()
    gc.collect()
    with diskreplay.shared(tmp_path / "r", prioritized=True, **OPTIONS) as again:
        assert again.buffer.add_count == 2


def test_a_constructor_that_fails_is_tried_again(tmp_path):
    with (
        diskreplay.shared(tmp_path / "r", **OPTIONS) as handle,
        diskreplay.ReplayBuffer(tmp_path / "r", **OPTIONS) as holder,
    ):
        with pytest.raises(errors.LockedError):
            handle.buffer  # noqa: B018
        holder.close()
        assert add(handle.buffer) == [0]


def test_a_forked_child_has_none_of_its_parents(tmp_path):
    with diskreplay.shared(tmp_path / "r", **OPTIONS) as handle:
        add(handle.buffer)
        child = os.fork()
        if child == 0:
            try:
                with diskreplay.shared(tmp_path / "r", **OPTIONS) as own:
                    own.buffer  # noqa: B018
            except errors.LockedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert add(handle.buffer) == [1]


def refuses(call):
    with pytest.raises(errors.ReentryError):
        call()


@pytest.mark.parametrize("whose", ["a path's", "a temporary one's", "a member's beside it"])
def test_calls_amid_one_of_a_shared_buffer(tmp_path, whose):
    """Another thread that closed the buffer had the lock, and waited for the end of that call."""
    path = None if whose == "a temporary one's" else tmp_path / "r"
    one = diskreplay.shared(path, prioritized=True, **OPTIONS)
    other, twin = (diskreplay.shared(tmp_path / "other", **OPTIONS) for _ in range(2))
    for _ in range(4):
        add(one.buffer)
    calls = {
        "shared": lambda: diskreplay.shared(tmp_path / "third", **OPTIONS).close(),
        "buffer": lambda: other.buffer, "close": twin.close,
    }  # fmt: skip
    tried = []

    def schedule(_added):
        for name, call in calls.items():
            refuses(call)
            tried.append(name)
        return 0.5

    with diskreplay.PrioritizedReplayBuffer(tmp_path / "beside", **OPTIONS) as beside:
        for _ in range(4):
            add(beside)
        with diskreplay.ReplayUnion([one.buffer, beside], seed=0):
            (beside if whose == "a member's beside it" else one.buffer).sample(2, beta=schedule)
    assert tried == list(calls)
    for call in calls.values():
        call()
    one.close()
    other.close()


def test_it_ends_while_another_thread_makes_and_closes_handles(tmp_path):
    with diskreplay.shared(tmp_path / "r", **OPTIONS) as one:
        ended, errors_there = threading.Event(), []

        def make_and_close():
            try:
                while not ended.is_set():
                    diskreplay.shared(tmp_path / "r", **OPTIONS).close()
            except BaseException as error:
                errors_there.append(error)

        refused = []

        def handler():
            try:
                diskreplay.shared(tmp_path / "r", **OPTIONS).close()
            except errors.ReentryError:
                refused.append(1)

        thread = threading.Thread(target=make_and_close, daemon=True)
        add(one.buffer)
        thread.start()
        try:
            for call in (lambda: add(one.buffer), one.buffer.flush):
                place = 0
                while interrupted(call, place, handler):
                    place += 1
        finally:
            ended.set()
            thread.join()
        assert errors_there == []
        assert len(refused) > 10


def test_a_handler_amid_opening(tmp_path):
    """One of the two was told that the store was locked."""
    place, refused, served = 0, 0, 0
    one = diskreplay.shared(tmp_path / "r", **OPTIONS)

    def handler():
        nonlocal refused, served
        try:
            one.buffer  # noqa: B018
            served += 1
        except errors.ReentryError:
            refused += 1

    def look():
        assert one.buffer.capacity == 64

    while interrupted(look, place, handler):
        assert add(one.buffer)
        one.close()
        one = diskreplay.shared(tmp_path / "r", **OPTIONS)
        place += 31
    assert refused > 5
    assert served > 0
    one.close()


def test_a_child_of_another_thread(tmp_path):
    """The thread that opens a buffer is not in the child: its lock was never let go of there."""
    inside, goes_on = threading.Event(), threading.Event()

    def hold():
        with shared_buffer._lock:
            inside.set()
            goes_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        try:
            taken = shared_buffer._lock.acquire(blocking=False)
        finally:
            os._exit(0 if taken else 1)
    goes_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
