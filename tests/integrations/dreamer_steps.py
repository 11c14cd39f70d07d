"""Steps as DreamerV3's driver hands them over."""

import random

import numpy as np


def steps(seed, count, workers=3, start=0):
    """Steps of some workers in no order, with episodes: pairs of a worker and a step."""
    rng, at = random.Random(seed), [0] * workers
    for number in range(start, start + count):
        worker = rng.randrange(workers)
        is_last = rng.random() < 0.15
        yield (
            worker,
            {
                "image": np.full((2, 2, 3), number % 256, np.uint8),
                "info/speed": np.float32(number / 2),
                "reward": np.float32(number),
                "is_first": np.bool_(at[worker] == 0),
                "is_last": np.bool_(is_last),
                "is_terminal": np.bool_(is_last and rng.random() < 0.5),
                "action": np.int32(number % 7),
                "dyn/deter": np.full(4, -number, np.float16),
                "log/seen": 3,
            },
        )
        at[worker] = 0 if is_last else at[worker] + 1
