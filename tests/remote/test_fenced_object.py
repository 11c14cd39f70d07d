"""One object that several runs want to write, in a store that says who was first."""

import contextlib
import errno
import functools
import itertools
from typing import NamedTuple

import pytest

from diskreplay.errors import (
    RemoteError,
    RemoteUnavailableError,
    TakenOverError,
    UnsupportedStoreError,
)
from diskreplay.remote import fenced_object as module
from diskreplay.remote.bucket import Missing, Overtaken
from diskreplay.remote.fenced_object import FencedObject, Takeover

_nonces = itertools.count(1)


class Found(NamedTuple):
    run: str | None
    epoch: int
    nonce: int
    value: int

    def replaced(self, **changes):
        return self._replace(**changes, nonce=next(_nonces))

    def encode(self):
        return repr(tuple(self)).encode()


class Store:
    """Objects in a dictionary; each time that one is put it has another tag."""

    url = "memory://store"
    knows_conditions, fails = True, None

    def __init__(self):
        self.objects, self.tags, self.asked = {}, 0, []

    def where(self, key):
        return f"{self.url}/{key}"

    def put(self, key, data):
        self.asked.append("put")
        self.tags += 1
        self.objects[key] = bytes(data), str(self.tags)
        if self.fails:
            raise self.fails
        return str(self.tags)

    def create(self, key, data):
        self.asked.append("create")
        if key in self.objects and self.knows_conditions:
            raise Overtaken(key)
        return self.put(key, data)

    def swap(self, key, data, tag):
        self.asked.append("swap")
        if self.objects.get(key, (b"", ""))[1] != tag:
            raise Overtaken(key)
        return self.put(key, data)

    def get(self, key, most):
        if key not in self.objects:
            raise Missing(key)
        return self.objects[key]

    def size(self, key):
        return len(self.objects[key][0]) if key in self.objects else None


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return Store()


def parse(data, where):
    return Found(*eval(data.decode()))  # of this test's own making


def of(store, run, *, takeover=False, unsafe=False):
    leave = takeover if isinstance(takeover, Takeover) else Takeover(takeover)
    return FencedObject(
        store, "key", parse, lambda: Found(None, 0, 0, 0), run=run, takeover=leave, unsafe=unsafe
    )


def add(fenced, amount=1):
    for _ in fenced.tries():
        found, tag = fenced.read_to_write()
        if fenced.write(found.replaced(value=found.value + amount), tag) is not None:
            return


def test_who_was_first_publishes_and_others_are_refused(store):
    one = of(store, "one")
    assert one.read() == (Found(None, 0, 0, 0), "")
    add(one)
    add(one, 2)
    found, _tag = of(store, "other").read()
    assert (found.run, found.epoch, found.value) == ("one", 0, 3)
    with pytest.raises(TakenOverError, match="run one publishes"):
        add(of(store, "other"))
    add(of(store, "one"))  # the same run, started again
    assert of(store, "x").read()[0].value == 4


def test_a_run_takes_over_once(store):
    one, two = of(store, "one", takeover=True), of(store, "two", takeover=True)
    one.claim()
    assert store.objects == {}  # nobody else publishes
    add(one)
    two.claim()
    assert two.read()[0][:2] == ("two", 1)
    two.claim()
    assert two.read()[0].epoch == 1
    add(two)
    with pytest.raises(TakenOverError):
        add(one)
    with pytest.raises(TakenOverError):
        add(one)
    assert two.read()[0].value == 2


@pytest.mark.parametrize("how", ["claim", "add", "hold"])
def test_who_published_already_takes_over_from_nobody(store, how):
    """It had no need to: who comes after it has taken over from it."""
    one = of(store, "one", takeover=True)
    add(of(store, "one"))
    {"claim": one.claim, "add": lambda: add(one), "hold": one.hold}[how]()
    of(store, "two", takeover=True).claim()
    with pytest.raises(TakenOverError, match="run two publishes"):
        add(one)
    one.claim()
    assert store.objects["key"][0].startswith(b"('two', 1")


def test_all_runs_of_one_program_take_over_once(store):
    leave = Takeover(True)
    one, other = of(store, "one", takeover=leave), of(store, "other", takeover=leave)
    add(of(store, "old"))
    one.claim()
    add(other)  # one run of a program may follow another
    add(one)
    assert one.read()[0][:2] == ("one", 3)
    of(store, "two", takeover=True).claim()
    for each in (one, other, of(store, "third", takeover=leave)):
        with pytest.raises(TakenOverError, match="run two publishes"):
            add(each)
    plain = Takeover(False)
    with pytest.raises(TakenOverError):
        add(of(store, "x", takeover=plain))


def test_a_place_is_held_before_anybody_publishes_there(store):
    one = of(store, "one", takeover=True)
    one.hold()
    one.hold()
    assert store.asked == ["create", "put", "create"]  # the last one is the probe
    with pytest.raises(TakenOverError, match="run one publishes"):
        of(store, "two").hold()


@pytest.mark.parametrize("was_used", [True, False])
@pytest.mark.parametrize("answer", ["is lost", "is asked for twice"])
def test_a_program_that_was_not_told_that_it_has_taken_over(store, was_used, answer):
    """Its swap was done, and another one has taken over from it since."""
    if was_used:
        add(of(store, "old"))
    one, two = of(store, "one", takeover=True), of(store, "two", takeover=True)
    name = "swap" if was_used else "create"
    call, read = getattr(store, name), one.read

    def done_and_taken_over(*arguments):
        call(*arguments)
        delattr(store, name)
        two.hold()
        if answer == "is lost":
            one.read = unreachable
            raise RemoteUnavailableError(5, "no answer")
        raise Overtaken

    def unreachable():
        raise RemoteUnavailableError(5, "no answer")

    setattr(store, name, done_and_taken_over)
    with pytest.raises(RemoteUnavailableError if answer == "is lost" else TakenOverError):
        one.hold()
    one.read = read
    for _ in range(2):
        with pytest.raises(TakenOverError, match="run two publishes"):
            one.hold()
    one.claim()
    assert one.read()[0].run == "two"
    add(two)


@pytest.mark.parametrize("answer", ["is lost", "is asked for twice"])
def test_a_takeover_that_was_not_done_may_be_tried_again(store, answer):
    add(of(store, "old"))
    one, swap = of(store, "one", takeover=True), store.swap

    def failing(*_arguments):
        store.swap = swap
        if answer == "is lost":
            raise RemoteUnavailableError(5, "no answer")
        raise Overtaken

    store.swap = failing
    if answer == "is lost":
        with pytest.raises(RemoteUnavailableError):
            one.hold()
    of(store, "two", takeover=True).hold()  # from the old one, too
    one.hold()
    assert one.read()[0][:2] == ("one", 2)


def test_a_run_of_the_same_name_in_another_program_is_not_the_program(store):
    """It has published as `shared` and then as `own`. The program in its place is `shared` now."""
    leave = Takeover(True)
    shared, own = of(store, "shared", takeover=leave), of(store, "own", takeover=leave)
    add(of(store, "old"))
    add(shared)
    add(own)
    of(store, "two", takeover=True).hold()
    again = of(store, "shared", takeover=True)
    again.hold()
    with pytest.raises(TakenOverError, match="run shared publishes"):
        add(own)
    add(again)


def test_a_claim_does_not_pass_from_one_run_of_a_program_to_another(store):
    leave = Takeover(True)
    one, other = of(store, "one", takeover=leave), of(store, "other", takeover=leave)
    add(of(store, "old"))
    add(one)
    other.claim()
    assert one.read()[0].run == "one"


class Replaced(Exception):
    """What a run is told that has been replaced."""


@pytest.mark.parametrize("was_used", [True, False])
def test_who_is_replaced_while_it_takes_hold_changes_nothing(store, was_used):
    """Stopped before any of its requests, for as long as another one takes."""
    stops = itertools.count()
    while replaced_at(store, next(stops), was_used):
        pass
    assert next(stops) > 4


def replaced_at(store, stop, was_used):
    """Whether there is a request of that number."""
    store.objects.clear()
    if was_used:
        add(of(store, "old"))
    one, others, requests = of(store, "one", takeover=True), [], []

    def check():
        if others:
            raise Replaced

    def stopped(call, *arguments):
        requests.append(call)
        if len(requests) == stop + 1:
            others.append("two")
            of(store, "two", takeover=True).hold()
        return call(*arguments)

    names = "get", "swap", "create"
    for name in names:
        setattr(store, name, functools.partial(stopped, getattr(store, name)))
    with contextlib.suppress(Replaced, TakenOverError):
        one.hold(check)
    for name in names:
        delattr(store, name)
    if not others:
        return False
    of(store, "two", takeover=True).hold()  # it tries again where the first one came after it
    with pytest.raises((Replaced, TakenOverError)):
        one.hold(check)
    assert one.read()[0].run == "two"
    return True


def test_a_write_that_is_overtaken_is_tried_again(store):
    one, again = of(store, "one"), of(store, "one")
    add(one)
    found, tag = one.read_to_write()
    add(again, 10)
    assert one.write(found.replaced(value=99), tag) is None
    assert one.read()[0].value == 11
    add(one)
    assert one.read()[0].value == 12


def test_a_swap_that_was_done_is_known_whatever_the_answer(store):
    one = of(store, "one")
    add(one)
    found, tag = one.read_to_write()
    store.fails = RemoteUnavailableError(5, "no answer", "key")
    assert one.write(found.replaced(value=5), tag) == store.objects["key"][1]
    store.fails = None
    assert one.read()[0].value == 5
    found, tag = one.read_to_write()
    wanted = found.replaced(value=6)
    store.swap("key", wanted.encode(), tag)
    assert one.write(wanted, tag) is not None  # the client has asked twice
    real = store.swap

    def refuse(*arguments):
        raise RemoteUnavailableError(5, "not done", "key")

    store.swap = refuse
    found, tag = one.read_to_write()
    with pytest.raises(RemoteUnavailableError):
        one.write(found.replaced(value=7), tag)
    store.swap = real
    assert one.read()[0].value == 6


def test_a_store_that_knows_no_conditions_is_found_out_or_trusted(store):
    store.knows_conditions = False
    with pytest.raises(UnsupportedStoreError, match="unsafe_single_writer=True"):
        add(of(store, "one"))
    store.objects.clear()
    trusting = of(store, "one", unsafe=True)
    add(trusting)
    add(trusting)
    assert trusting.read()[0].value == 2
    trusting.put_object("a", b"xy")
    assert store.objects["a"][0] == b"xy"
    assert "create" not in store.asked[-3:]


def test_the_store_is_probed_once(store):
    one = of(store, "one")
    add(one)
    assert store.asked == ["create", "put", "create"]
    store.asked.clear()
    add(one)
    assert store.asked == ["swap", "put"]
    store.asked.clear()
    add(of(store, "one"))
    assert store.asked == ["create", "swap", "put"]


def test_somebody_who_always_writes_is_given_up(store, monkeypatch):
    one = of(store, "one")
    add(one)
    monkeypatch.setattr(one, "write", lambda *arguments: None)
    with pytest.raises(RemoteUnavailableError, match="somebody else has written"):
        add(one)


def test_an_object_of_its_contents_is_put_once(store):
    one = of(store, "one")
    one.put_object("a", b"xyz")
    one.put_object("a", b"xyz")
    assert store.asked.count("put") == 1
    store.put("b", b"half")
    assert not one.has_put("b", b"whole")
    with pytest.raises(RemoteError, match="has not the 5 bytes"):
        one.put_object("b", b"whole")
    sizes = iter([None, 3])
    store.size = lambda key: next(sizes)
    one.put_object("a", b"xyz")  # it was deleted in between, and somebody has put it again
    store.size = lambda key: None
    with pytest.raises(RemoteUnavailableError, match="that it is there, and that it is not"):
        one.put_object("a", b"xyz")


def test_what_is_denied_to_be_looked_at_is_put_once_more(store):
    """Without the right to list, S3 says so of what was deleted in between."""
    one = of(store, "one")
    one.put_object("a", b"xyz")
    answers = iter([RemoteError(errno.EACCES, "denied", "a"), None])
    asked = []

    def look(key):
        asked.append(key)
        answer = next(answers)
        if answer is not None:
            raise answer
        del store.objects[key]

    store.size = look
    assert one.has_put("a", b"xyz")
    assert asked == ["a", "a"]
    answers = iter([RemoteError(errno.EACCES, "denied", "a")] * 3)
    with pytest.raises(RemoteError, match="denied"):  # also what is there
        one.has_put("a", b"xyz")
    assert len(asked) == 4
    answers = iter([RemoteError(errno.EINVAL, "clock", "a")])
    with pytest.raises(RemoteError, match="clock"):
        one.has_put("a", b"xyz")
    assert len(asked) == 5
