"""Reverb's rule: the error stays inside its bounds, and both sides can always go on."""

import dataclasses
import random

import pytest

from diskreplay import InvalidInputError
from diskreplay.ray.rate_limiter import MinSize, SampleToInsertRatio


@pytest.mark.parametrize(("ratio", "buffer"), [(8.0, 400.0), (0.5, 40.0), (3.7, 100.0)])
def test_the_error_is_inside_its_bounds_at_every_point_of_random_calls(ratio, buffer):
    limiter, rng = SampleToInsertRatio(ratio, 100, buffer), random.Random(1)
    limiter.check_chunks(16, 32)
    inserts = samples = passed = 0
    for _ in range(100_000):
        inserting, count = rng.random() < rng.choice([0.1, 0.9]), rng.randint(1, 16)
        if inserting and limiter.can_insert(inserts, samples, count):
            inserts += count
        elif not inserting and limiter.can_sample(inserts, samples, 2 * count):
            samples += 2 * count
        else:
            continue
        passed += 1
        if inserts < 100:
            assert samples == 0
        else:
            error = (inserts - 100) * ratio - samples
            assert -buffer <= error <= buffer
        assert limiter.can_insert(inserts, samples, 16) or limiter.can_sample(inserts, samples, 32)
    assert passed > 20_000


def test_inserts_are_free_until_there_are_enough():
    limiter = SampleToInsertRatio(8.0, 1000, 50.0)
    assert limiter.can_insert(0, 0, 1000)
    assert not limiter.can_insert(0, 0, 1007)
    assert not limiter.can_sample(999, 0, 1)
    assert limiter.can_sample(1000, 0, 50)
    assert not limiter.can_sample(1000, 0, 51)


def test_min_size_lets_all_pass_from_there_on():
    limiter = MinSize(10)
    assert not limiter.can_sample(9, 0, 1)
    assert limiter.can_sample(10, 10**9, 10**6)
    assert limiter.can_insert(10**9, 0, 10**6)


def test_chunks_that_would_wait_for_each_other_are_refused():
    limiter = SampleToInsertRatio(8.0, 100, 100.0)
    limiter.check_chunks(16, 32)
    with pytest.raises(InvalidInputError, match="at least 144 expected"):
        limiter.check_chunks(32, 32)
    # And these do: neither side can go on where the error is in the middle.
    stuck = [
        samples for samples in range(2000)
        if not limiter.can_insert(200, samples, 32) and not limiter.can_sample(200, samples, 32)
    ]  # fmt: skip
    assert stuck


@pytest.mark.parametrize(
    "arguments", [(0, 1, 9), (-1, 1, 9), (float("nan"), 1, 9), (8, 0, 9), (8, 1.5, 9), (8, 1, 7),
                  (8, 1, float("inf")), (True, 1, 9), ("8", 1, 9), (8j, 1, 9), (8, 1, True),
                  (1, 1, True), (8, 1, "9"), (8, True, 9), (8, "1", 9), (8, 1, 9j)],
)  # fmt: skip
def test_figures_that_make_no_sense_are_refused(arguments):
    with pytest.raises(InvalidInputError):
        SampleToInsertRatio(*arguments)


def test_what_is_pickled_of_a_limiter_is_its_parameters():
    for limiter in (MinSize(10), SampleToInsertRatio(2.0, 10, 50.0)):
        names = [field.name for field in dataclasses.fields(limiter)]
        assert sorted(vars(limiter)) == sorted(names)


def test_a_limiter_of_parameters_alone_limits_as_one_that_was_made():
    made = SampleToInsertRatio(2.0, 10, 50.0)
    read = SampleToInsertRatio.__new__(SampleToInsertRatio)  # as pickle does
    read.__dict__.update(samples_per_insert=2.0, min_size_to_sample=10, error_buffer=50.0)
    assert read == made
    assert not read.can_insert(10, 0, 26)
    assert not read.can_sample(10, 0, 51)
    assert read.figures(10, 3) == made.figures(10, 3)
    with pytest.raises(InvalidInputError, match="at least 1500 expected"):
        read.check_chunks(1000, 1000)
