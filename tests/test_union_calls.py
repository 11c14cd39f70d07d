"""Calls of a union and of its members amid a call of the union, on the same thread."""

import threading

import numpy as np
import pytest

import diskreplay
from diskreplay.errors import ClosedError, ReentryError, UsageError
from tests.test_interrupt import Player, interrupted, make

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def members(tmp_path):
    with make(tmp_path / "one", "one") as one, make(tmp_path / "other", "one") as other:
        for player in 40 * (Player(one), Player(other)):
            player.step()
        yield one, other


def calls_of(union, ahead, path):
    """Calls of the union, and of its members, that draw or wait for draws."""
    one, other = union.members
    ids, players = union.sample(4).id, (Player(one), Player(other))
    union.save(path / "before.npz")
    of_union = {
        "next": lambda: next(ahead), "sample": lambda: union.sample(4),
        "gather": lambda: union.gather(ids), "len": lambda: len(union), "shares": union.shares,
        "update_priorities": lambda: union.update_priorities(ids, np.ones(4)),
        "prefetch": lambda: union.prefetch(1, 4).close(),
        "save": lambda: union.save(path / "saved.npz"),
        "load": lambda: union.load(path / "before.npz"),
    }  # fmt: skip
    of_members = {
        "sample": lambda: other.sample(4), "add": players[0].step, "add other": players[1].step,
        "take": lambda: one.take("reward", [one.bounds[0, 0]]), "flush": other.flush,
        "checkpoint": lambda: other.save(path / "checkpoints", 1),
        "update": lambda: one.update_priorities(one.bounds[:, 1] - 5, [1.0]),
    }  # fmt: skip
    return of_union, of_members


def listed(members):
    """The threads that members call busy: those that maintain them stay so."""
    return set().union(*(member._busy for member in members))


class Handler:
    """Calls one thing after the other. Amid a call of the union all of it has to be refused; where
    it is not, nothing is called that might wait for ever."""

    def __init__(self, union, inner):
        self.union, self.inner, self.number = union, list(inner), 0
        self.let_in, self.refused, self.served = [], 0, 0
        self.raises = False

    def __call__(self):
        self.number += 1
        if self.union._lock._is_owned():  # len() waits for no draw
            for source in (*self.union.members, self.union):
                try:
                    len(source)
                except ReentryError:
                    continue
                self.let_in.append(self.number)
                return
        try:
            self.inner[self.number % len(self.inner)]()
            self.served += 1
        except ReentryError:
            self.refused += 1
            if self.raises:
                raise
        except UsageError:
            assert self.union._prefetchers.open  # of which there is one at a time


@pytest.mark.parametrize(
    "outer",
    ["next", "sample", "gather", "update_priorities", "len", "shares", "prefetch", "save", "load"],
)
@pytest.mark.costly(1)
def test_a_handler_that_calls_at_any_place(members, tmp_path, outer):
    """It waited for a draw, for which the union's lock was needed, which its thread had."""
    with diskreplay.ReplayUnion(members, seed=0) as union:
        ahead = union.prefetch(2, 4)
        of_union, of_members = calls_of(union, ahead, tmp_path)
        if outer == "prefetch":
            ahead.close()
            del of_union["next"]
        handler = Handler(union, [*of_members.values(), *of_union.values()])
        place, stride = 0, {"save": 7, "load": 7, "sample": 3}.get(outer, 1)
        while interrupted(of_union[outer], place, handler):
            assert handler.let_in == []
            handler.raises = not handler.raises
            for each in list(union._prefetchers.open):
                next(each)  # nothing that was cut keeps it from going on
            if outer == "prefetch":
                for each in list(union._prefetchers.open):
                    each.close()
            of_union[outer]()
            for member in members:
                assert threading.get_ident() not in member._busy
                assert not member._lock._is_owned()
            place += stride
        assert handler.refused > 5
        assert handler.served > 0
        ahead.close()
    assert listed(members) <= {thread.ident for thread in threading.enumerate()}
    for member in members:
        assert member._rows.store.rwlock._inside == 0
        Player(member).check()


@pytest.mark.parametrize("takes", [False, True])
def test_draws_are_the_same_whatever_a_handler_calls(members, tmp_path, takes):
    """Of a prefetcher from which the handler takes, too: no batch comes twice, none is left out."""

    def taken(handled, enough):
        found = []
        with diskreplay.ReplayUnion(members, seed=3) as union:
            ahead = union.prefetch(2, 4)

            def take():
                batch = next(ahead)
                found.append((batch.id.tolist(), batch.weight.tolist()))

            of_union, of_members = calls_of(union, ahead, tmp_path)
            inner = [of_members[name] for name in ("sample", "take", "flush", "checkpoint")]
            inner += [of_union[name] for name in ("gather", "len", "save")]
            handler = Handler(union, [*inner, take] if takes else inner)
            place = 0
            while len(found) < enough:
                interrupted(take, place % 60, handler if handled else int)
                place += 1
            assert handler.let_in == []
            assert handler.refused > 5 or not handled
        return found

    disturbed = taken(True, 120)
    calm = taken(False, len(disturbed))
    if takes:  # what is about to be returned as the handler comes is noted behind what that takes
        disturbed.sort()
        calm.sort()
    assert disturbed == calm


@pytest.mark.parametrize("threads", [1, 2])
def test_no_call_begins_on_a_thread_that_draws_for_the_union(members, tmp_path, threads):
    """Of a `__del__` say, which may run there: it would wait for its own thread."""
    served, refused = [], []

    def call_all(batch):
        if threading.current_thread() is threading.main_thread():
            return batch
        for name, call in calls.items():
            try:
                call()
            except ReentryError:
                refused.append(name)
            else:
                served.append(name)
                break  # what comes next may wait for ever
        return batch

    with diskreplay.ReplayUnion(members, seed=0) as union:
        with union.prefetch(2, 4, threads=threads, map=call_all) as ahead:
            of_union, of_members = calls_of(union, ahead, tmp_path)
            lengths = {"len one": lambda: len(members[0]), "len other": lambda: len(members[1])}
            calls = {**lengths, **of_union, **of_members}
            calls.pop("prefetch")
            for _ in range(4):
                next(ahead)
    assert served == []
    assert set(refused) == set(calls)
    assert listed(members) <= {thread.ident for thread in threading.enumerate()}


def test_a_prefetcher_is_closed_once_where_a_finalizer_closes_it_too(
    members, tmp_path, monkeypatch
):
    """Signals wait till it is closed; a `__del__` does not. It ended with a ValueError, or waited
    for ever."""
    monkeypatch.setattr("tests.test_interrupt.WHOLE", ())
    with diskreplay.ReplayUnion(members, seed=0) as union:
        of_union, of_members = calls_of(union, iter(()), tmp_path)
        ahead = union.prefetch(2, 4)
        inner = [lambda: ahead.close(), of_members["sample"], of_union["sample"]]
        handler, place = Handler(union, inner), 0
        while True:
            next(ahead)
            cut = interrupted(ahead.close, place, handler)
            assert handler.let_in == []
            if not cut:
                break
            assert union._prefetchers.open == []
            assert not any(thread.is_alive() for thread in ahead._threads)
            ahead = union.prefetch(2, 4)
            place += 1
        assert handler.refused > 20


def test_no_prefetcher_that_a_handler_opens_outlives_the_union(members):
    """It stood in the lists of the members, with its threads, and could be closed no more."""
    place, opened, refused = 0, 0, 0
    while True:
        union = diskreplay.ReplayUnion(members, seed=0)
        made = []

        def handler(union=union, made=made):
            try:
                made.append(union.prefetch(1, 4))
            except (ReentryError, ClosedError):
                return

        cut = interrupted(union.close, place, handler)
        for ahead in made:
            assert not any(thread.is_alive() for thread in ahead._threads)
        opened, refused = opened + len(made), refused + (not made)
        assert all(member._views.prefetching == [] for member in members)
        with pytest.raises(ClosedError):
            union.sample(4)
        if not cut:
            break
        place += 1
    assert opened > 5
    assert refused > 5
