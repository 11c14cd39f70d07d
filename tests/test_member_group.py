"""A handler amid a call of one member of a union that calls another member."""

import gc
import os
import signal
import threading

import numpy as np
import pytest

import diskreplay
from diskreplay import member_group
from diskreplay.errors import ReentryError
from tests.test_interrupt import Player, interrupted, make

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def buffers(tmp_path):
    """Three that are alike, with rows."""
    made = [make(tmp_path / name, "one") for name in ("a", "b", "c")]
    for buffer in made:
        player = Player(buffer)
        for _ in range(40):
            player.step()
    yield made
    for buffer in made:
        buffer.close()


def calls_of(buffer, path):
    ids, player = buffer.sampleable_ids()[-4:], Player(buffer)
    buffer.save(path / "before", 1)
    return {
        "add": player.step, "sample": lambda: buffer.sample(4), "len": lambda: len(buffer),
        "update": lambda: buffer.update_priorities(ids, np.ones(4)), "flush": buffer.flush,
        "gather": lambda: buffer.gather(ids), "save": lambda: buffer.save(path / "after", 1),
        "load": lambda: buffer.load(path / "before"),
    }  # fmt: skip


def is_served(call):
    try:
        call()
    except ReentryError:
        return False
    return True


def places(call, handler, stride=1):
    """Has `handler` called at one place after the other of a call."""
    place = 0
    while interrupted(call, place, handler):
        place += stride


@pytest.mark.parametrize("outer", ["add", "sample", "gather", "update", "flush", "save", "load"])
def test_a_handler_amid_a_call_of_one_member(buffers, tmp_path, outer):
    """Another thread that drew from the union had the lock of one, and waited for the other."""
    one, other, alone = buffers
    inner, number, let_in, served = calls_of(other, tmp_path / "other"), 0, [], 0

    def handler():
        nonlocal number, served
        name = list(inner)[number % len(inner)]
        number += 1
        amid = one._lock._is_owned() or threading.get_ident() in one._busy
        if is_served(inner[name]):
            served += 1
            if amid:
                let_in.append((number, name))
        assert is_served(lambda: alone.sample(4))  # it is in no union

    with diskreplay.ReplayUnion([one, other], seed=0):
        stride = {"save": 11, "load": 47, "flush": 3}.get(outer, 1)
        places(calls_of(one, tmp_path / "one")[outer], handler, stride)
        assert let_in == []
        assert number > served > 0  # as it begins, say
    for buffer in buffers:
        Player(buffer).check()


class Drawing(threading.Thread):
    """Draws from a union until it is told to end: now and then it takes a prefetched batch."""

    def __init__(self, union):
        super().__init__(daemon=True)
        self.union, self.ended, self.error = union, threading.Event(), None

    def run(self):
        try:
            with self.union.prefetch(2, 4) as ahead:
                while not self.ended.is_set():
                    self.union.sample(4)
                    next(ahead)
        except BaseException as error:
            self.error = error


def test_it_ends_while_another_thread_draws_from_the_union(buffers, tmp_path):
    """Each waited for what the other had, for ever."""
    one, other, _ = buffers
    with diskreplay.ReplayUnion([one, other], seed=0) as union:
        drawing = Drawing(union)
        drawing.start()
        try:
            of_one, of_other = calls_of(one, tmp_path / "one"), calls_of(other, tmp_path / "other")
            for outer, inner in ((of_one, of_other), (of_other, of_one)):
                for name in ("add", "sample", "update"):
                    places(outer[name], lambda called=inner: is_served(called["add"]))
        finally:
            drawing.ended.set()
            drawing.join()
        assert drawing.error is None


def amid(buffer, call):
    """Whether a call is served amid one of `buffer`."""
    served = []
    buffer.sample(2, beta=lambda _added: served.append(is_served(call)) or 0.5)
    return served == [True]


def test_unions_that_share_a_member_are_one_group(buffers):
    """A call of the third waits for a draw from it and the second, and that for the first."""
    a, b, c = buffers
    assert amid(a, c.flush)
    with diskreplay.ReplayUnion([a, b], seed=0) as of_a:
        assert amid(a, c.flush)
        of_c = diskreplay.ReplayUnion([b, c], seed=0)
        assert not amid(a, c.flush)
        assert not amid(c, a.flush)
        assert not amid(c, lambda: of_a.sample(2))
        of_c.close()
        of_c.close()
        assert amid(a, c.flush)
        assert not amid(a, b.flush)
        windows = of_a.sequences(3, name="windows")
        windows.close()
        assert not amid(a, b.flush)
    assert amid(a, b.flush)
    assert [len(each) > 0 and each._group for each in buffers] == [None, None, None]


def test_a_union_that_is_dropped_is_in_no_group(buffers):
    a, b, c = buffers
    union = diskreplay.ReplayUnion([a, b], seed=0)
    assert not amid(a, b.flush)
    del union
    gc.collect()
    assert amid(a, b.flush)
    with diskreplay.ReplayUnion([b, c], seed=0):
        assert amid(a, b.flush)
        assert not amid(b, c.flush)


def test_unions_made_and_closed_by_several_threads(buffers):
    """Whoever comes last knows of all the others."""
    a, b, c = buffers
    errors = []

    def make_and_close(members):
        try:
            for _ in range(60):
                with diskreplay.ReplayUnion(members, seed=0):
                    for member in members:
                        len(member)
                    assert all(member._group is not None for member in members)
        except BaseException as error:
            errors.append(error)

    with diskreplay.ReplayUnion([a, b], seed=0):
        threads = [
            threading.Thread(target=make_and_close, args=(members,))
            for members in ([a, c], [b, c], [c, a, b])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert amid(a, c.flush)
        assert not amid(a, b.flush)
    assert [len(each) > 0 and each._group for each in buffers] == [None, None, None]


def test_ctrl_c_amid_close_of_a_union(buffers):
    """Closed again, it kept what it had opened, and its members stood in its group."""
    a, b, _ = buffers
    b.flush()
    before, place = signal.signal(signal.SIGINT, signal.default_int_handler), 0
    try:
        while True:
            union = diskreplay.ReplayUnion([a, b.path], seed=0)
            cut = interrupted(union.close, place, lambda: signal.raise_signal(signal.SIGINT))
            union.close()
            assert union.members[1].closed
            assert len(a)
            assert a._group is None
            if not cut:
                break
            place += 1
        assert place > 15
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_a_union_is_made(buffers):
    """The members stood in its group ever after."""
    a, b, _ = buffers
    place, made = 0, []
    while interrupted(lambda: made.append(diskreplay.ReplayUnion([a, b], seed=0)), place):
        for union in made:
            union.close()
        made.clear()
        gc.collect()
        assert amid(a, b.flush), place
        place += 1
    assert place > 15
    made[0].close()


def test_a_child_does_not_ask_what_it_may_not_call(buffers):
    """A thread of the child may have the number of one that maintained the writer in the parent:
    its calls of a reader beside that writer got a ReentryError."""
    writer, other, _ = buffers
    other.flush()
    told, tell = os.pipe()
    with diskreplay.open(other.path) as reader, diskreplay.ReplayUnion([writer, reader], seed=0):
        assert not amid(reader, writer.flush)
        writer._busy.add(threading.get_ident())  # as that of a thread that is not in the child
        child = os.fork()
        if not child:
            try:
                os.write(tell, b"served" if is_served(lambda: reader.sample(2)) else b"refused")
            finally:
                os._exit(0)
        writer._busy.discard(threading.get_ident())
        os.waitpid(child, 0)
        assert os.read(told, 20) == b"served"
    os.close(told)
    os.close(tell)


def test_unions_cost_nothing_when_they_are_gone(buffers):
    """Of one buffer that lives long: nothing of them is kept, and a call looks at none of them."""
    a, b, _ = buffers
    before = set(member_group._memberships)  # of other tests
    for number in range(500):
        union = diskreplay.ReplayUnion([a, b], seed=0)
        if number % 2:
            union.close()
        del union
    gc.collect()
    assert len(a)
    assert a._group is None
    assert member_group._memberships <= before
