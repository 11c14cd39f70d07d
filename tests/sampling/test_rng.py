"""The generator whose numbers can be put back, beside a plain list of them."""

import json

import numpy as np
import pytest

from diskreplay.errors import FormatError
from diskreplay.sampling.rng import ReplayableRng

KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]


def made(kind=np.random.PCG64):
    return ReplayableRng(np.random.Generator(kind(7)))


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
