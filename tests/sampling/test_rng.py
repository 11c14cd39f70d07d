"""The generator whose numbers can be put back, beside a plain list of them."""

import json
import threading

import numba
import numpy as np
import pytest

from diskreplay.errors import FormatError, InvalidInputError, UsageError
from diskreplay.locks import taking
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.rng_kernels import draw_uniform

KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]


def made(kind=np.random.PCG64):
    return ReplayableRng(np.random.Generator(kind(7)))


class Another:
    """A bit generator that is not NumPy's, with a lock of its own."""

    def __init__(self, lock, kind=np.random.PCG64):
        self._numpys, self.lock = kind(7), lock
        self.capsule = self._numpys.capsule

    @property
    def state(self):
        return self._numpys.state


def test_numbers_are_those_of_the_generator_however_they_are_asked_for():
    expected = np.random.Generator(np.random.PCG64(7)).random(1000)
    rng, chance, found = made(), np.random.default_rng(1), []
    given = 0  # of `expected`, that nobody has put back
    while given < 900:
        numbers = rng.random(int(chance.integers(0, 30)))
        np.testing.assert_array_equal(numbers, expected[given : given + len(numbers)])
        given += len(numbers)
        found.append(numbers)
        if chance.random() < 0.3:  # the last few of them were for nobody
            taken = rng.taken()
            np.testing.assert_array_equal(np.concatenate(taken), np.concatenate(found))
            kept = int(chance.integers(0, len(taken) + 1))
            rng.put_back(taken[kept:])
            given -= sum(map(len, taken[kept:]))
            found = []


@numba.njit
def take(shift, out, numbers, known, generator):
    draw_uniform(numbers, known, generator)
    out[:] = numbers + shift
    return known


@pytest.mark.costly(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_draws_the_same_numbers(kind):
    expected = made(kind).random(400)
    rng, chance, given = made(kind), np.random.default_rng(2), 0
    while given < 300:
        rng.taken()
        size = int(chance.integers(0, 30))
        if chance.random() < 0.3:
            np.testing.assert_array_equal(rng.random(size), expected[given : given + size])
        else:
            out = np.empty(size)
            known = rng.draw(size, take, 0.0, out)
            np.testing.assert_array_equal(out, expected[given : given + size])
            assert 0 <= known <= size
        given += size
        (numbers,) = rng.taken()
        kept = int(chance.integers(0, size + 1)) if chance.random() < 0.5 else size
        rng.put_back([numbers[kept:]])
        given -= size - kept


@pytest.mark.parametrize("lock", [threading.RLock, threading.Lock], ids=["now", "NumPy 1.26"])
def test_a_draw_that_is_cut_leaves_nothing_noted_and_nothing_lost(lock):
    """Numbers that were returned come again; memory that nobody has written to is no number."""
    rng = ReplayableRng(np.random.Generator(Another(lock())))
    returned = np.linspace(0, 0.5, 4)
    rng.put_back([returned])

    def cut(*arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rng.draw(6, cut)
    assert rng.taken() == []
    out = np.empty(4)
    rng.draw(4, take, 0.0, out)
    np.testing.assert_array_equal(out, returned)
    (noted,) = rng.taken()
    np.testing.assert_array_equal(noted, returned)


def test_a_call_for_numbers_that_is_cut_loses_none_that_were_returned(monkeypatch):
    rng, returned = made(), np.linspace(0, 0.5, 4)
    rng.put_back([returned])

    class Cut:
        def random(self, size):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rng, "rng", Cut())
        with pytest.raises(KeyboardInterrupt):
            rng.random(6)
    assert rng.taken() == []
    np.testing.assert_array_equal(rng.random(4), returned)


def test_a_handler_that_raises_stop_iteration_breaks_no_draw():
    """It ends loops: the draw raises, and the next one has the generator's lock again."""
    rng, out = made(), np.empty(3)

    class Waits:
        stops = True

        def acquire(self):
            if self.stops:
                raise StopIteration  # as a signal handler does while the lock is waited for
            return True

        def release(self):
            pass

    rng._lock = lock = Waits()
    rng._taken_lock, rng._is_reentrant = taking(lock), True
    with pytest.raises(UsageError, match="StopIteration"):
        rng.draw(3, take, 0.0, out)
    assert rng.taken() == []
    lock.stops = False
    rng.draw(3, take, 0.0, out)
    np.testing.assert_array_equal(out, made().random(3))


def test_a_kernel_has_the_generator_to_itself():
    """NumPy's functions wait for the same lock, on other threads."""
    rng, seen = ReplayableRng(np.random.Generator(Another(threading.RLock()))), []

    def look():
        seen.append(rng.rng.bit_generator.lock.acquire(blocking=False))
        if seen[-1]:
            rng.rng.bit_generator.lock.release()

    def failing(_numbers, _known, _generator):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rng.draw(3, failing)
    look()
    assert seen == [False, True]


@pytest.mark.parametrize("lock", [threading.Lock, threading.RLock])
def test_a_signal_handler_may_draw_from_the_same_generator(lock):
    """It runs amid all that is Python, and NumPy 1.26 has a lock that is taken once only."""
    rng, free = ReplayableRng(np.random.Generator(Another(lock()))), []

    def disturbed(out, *numbers):
        free.append(rng.rng.bit_generator.lock.acquire(blocking=False))
        if free[-1]:
            rng.rng.bit_generator.lock.release()
        return take(0.0, out, *numbers)

    first, second, out = rng.random(2), np.empty(3), np.empty(4)
    rng.put_back([first])
    rng.draw(3, disturbed, second)
    rng.draw(4, disturbed, out)
    assert free == [True, True]
    np.testing.assert_array_equal(np.concatenate([second, out]), made().random(7))


class Derived(np.random.PCG64):
    pass


class Unreadable(Another):
    @property
    def state(self):
        return {"bit_generator": "PCG64", "state": object()}


@pytest.mark.parametrize("unknown", [Derived(7), Unreadable(threading.Lock())])
def test_a_generator_that_could_not_be_read_again_is_refused(unknown):
    with pytest.raises(InvalidInputError, match=f"found one of {type(unknown).__name__}"):
        ReplayableRng(np.random.Generator(unknown))


def test_a_kernel_draws_from_the_generator_that_was_taken_over():
    rng, other = made(np.random.PCG64), made(np.random.MT19937)
    rng.restore(other.state())
    out = np.empty(9)
    rng.draw(9, take, 0.0, out)
    np.testing.assert_array_equal(out, other.random(9))


def test_what_is_put_back_twice_comes_in_its_order():
    rng = made()
    one, two = rng.random(3).copy(), rng.random(2).copy()
    rng.put_back([two])
    rng.put_back([one])
    np.testing.assert_array_equal(rng.random(4), [*one, two[0]])
    assert rng.random(1) == two[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("into", [np.random.PCG64, np.random.MT19937])
def test_a_saved_state_goes_on(kind, into):
    rng = made(kind)
    rng.random(5)
    rng.rng.integers(0, 9, 3, np.uint8)  # half a word is left of it
    rng.taken()
    rng.put_back([rng.random(3)])
    saved = json.loads(json.dumps(rng.state()))
    other = made(into)
    before = other.rng
    other.restore(saved)
    assert (other.rng is before) == (kind is into)
    np.testing.assert_array_equal(other.random(10), rng.random(10))
    np.testing.assert_array_equal(other.rng.integers(0, 9, 9), rng.rng.integers(0, 9, 9))


def test_another_generator_follows_from_the_name_and_what_comes_next():
    rng = made()
    one = rng.derived("a").random(3)
    assert (rng.derived("a").random(3) == one).all()
    assert (rng.derived("b").random(3) != one).any()
    np.testing.assert_array_equal(rng.random(4), made().random(4))  # nothing was taken
    assert (rng.derived("a").random(3) != one).any()


def damaged():
    def put(*path):
        def change(state):
            *way, last, value = path
            for step in way:
                state = state[step]
            state[last] = value

        return change

    words = ["bit_generator", "state", "state"]
    yield np.random.PCG64, put("returned", [1.0])
    yield np.random.PCG64, put("returned", [-0.1])
    yield np.random.PCG64, put("returned", [float("nan")])
    yield np.random.PCG64, put("returned", [[0.5]])
    yield np.random.PCG64, put("returned", "x")
    yield np.random.PCG64, put("bit_generator", "bit_generator", "Generator")
    yield np.random.PCG64, put("bit_generator", "bit_generator", "nothing")
    yield np.random.PCG64, put("bit_generator", None)
    yield np.random.PCG64, put(*words, -1)
    yield np.random.PCG64, put(*words, 1 << 128)
    yield np.random.MT19937, put("bit_generator", "state", "pos", 625)
    yield np.random.MT19937, put("bit_generator", "state", "pos", -1)
    yield np.random.Philox, put("bit_generator", "buffer_pos", 5)


@pytest.mark.parametrize(("kind", "change"), list(damaged()))
def test_a_damaged_state_is_refused_and_nothing_is_taken_over(kind, change):
    rng = made(kind)
    state = json.loads(json.dumps(rng.state()))
    change(state)
    with pytest.raises(FormatError, match="generator's saved state is damaged"):
        rng.restore(state)
    np.testing.assert_array_equal(rng.random(3), made(kind).random(3))
