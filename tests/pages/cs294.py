"""The loop of the page plays until the environment has enough."""

import contextlib

import numpy as np
import pytest

import diskreplay
from tests.old_gym import Enough, OldEnv

CHANGED = {"1_000_000": "1_000"}


@contextlib.contextmanager
def around(_said):
    choose = lambda history: history.shape[-1] % 3  # noqa: E731
    with pytest.raises(Enough):
        yield {"env": OldEnv((8, 8, 1)), "choose": choose, "np": np}
    with diskreplay.open("runs/mario/replay") as reader:
        assert reader.bounds.tolist() == [[0, 60]]
