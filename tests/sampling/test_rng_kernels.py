"""Numbers that a kernel draws beside those of NumPy's own function."""

import numpy as np
import pytest

from diskreplay.jit import kernel
from diskreplay.sampling.rng_kernels import draw_uniform


@kernel("float64[::1], int64, int64")
def drawn(numbers, known, generator):
    draw_uniform(numbers, known, generator)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
@pytest.mark.parametrize("known", [0, 3, 10])
def test_they_are_the_generators_next_ones_behind_those_that_are_known(kind, known):
    generator = np.random.Generator(kind(5))
    generator.random(3)
    same = np.random.Generator(kind(5))
    same.random(3)
    numbers = np.full(10, -1.0)
    with generator.bit_generator.lock:
        drawn(numbers, known, generator.bit_generator.ctypes.bit_generator.value)
    assert (numbers[:known] == -1.0).all()
    assert numbers[known:].tolist() == same.random(10 - known).tolist()
    assert generator.random() == same.random()
