"""Spaces as JSON and back, with the Gymnasium that is installed and as older ones have them."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from diskreplay import spaces
from diskreplay.errors import FormatError

ALL = [
    Box(-1, 2, (3,), "float32"),
    Box(np.arange(4, dtype=np.float64), np.arange(4, dtype=np.float64) + 1, dtype=np.float64),
    Box(0, 255, (2, 3), "uint8"),
    Box(-np.inf, np.inf, (), "float32"),
    Discrete(5),
    Discrete(5, start=-2),
    MultiBinary(4),
    MultiBinary((2, 3)),
    MultiDiscrete([2, 3]),
    MultiDiscrete([[2, 3], [4, 5]], dtype=np.int8),
    Dict({"b": Box(0, 1, (2,), "float32"), "a": Tuple([Discrete(2), MultiBinary(3)])}),
]


class NoStart(MultiDiscrete):
    """As before Gymnasium 0.29."""

    def __init__(self, nvec, dtype=np.int64, seed=None):
        super().__init__(nvec, dtype=dtype, seed=seed)
        vars(self).pop("start", None)


class NoDtype(Discrete):
    """As before Gymnasium 1.2.2."""

    def __init__(self, n, seed=None, start=0):
        super().__init__(n, seed=seed, start=start)


@pytest.mark.parametrize("space", ALL, ids=str)
def test_there_and_back(space):
    document = json.loads(json.dumps(spaces.describe(space)))
    again = spaces.parse(document)
    assert again == space
    assert spaces.describe(again) == document
    assert spaces.alike(document, spaces.describe(again))


def test_a_space_that_cannot_start_elsewhere(monkeypatch):
    document = spaces.describe(MultiDiscrete([3, 4], dtype=np.int32))
    assert document["start"] == [0, 0]
    monkeypatch.setattr(spaces.spaces, "MultiDiscrete", NoStart)
    old = NoStart([3, 4], np.int32)
    assert not hasattr(old, "start")
    assert spaces.describe(old) == document
    found = spaces.parse(document)
    assert found.nvec.tolist() == [3, 4]
    assert found.dtype == np.int32
    with pytest.raises(FormatError, match=r"starts at \[0, 1\], which takes gymnasium 0.29"):
        spaces.parse(document | {"start": [0, 1]})


def test_a_space_whose_type_cannot_be_chosen(monkeypatch):
    document = spaces.describe(Discrete(3, start=2))
    monkeypatch.setattr(spaces.spaces, "Discrete", NoDtype)
    assert spaces.describe(spaces.parse(document)) == document
    with pytest.raises(FormatError, match=r"Discrete space of int32, which takes gymnasium 1.2.2"):
        spaces.parse(document | {"dtype": "int32"})


@pytest.mark.parametrize(
    "damage",
    [{"type": "Text"}, {"nvec": "x"}, {"nvec": [0, -1]}, {"dtype": "float7"}, {"start": [[1]]},
     {"nvec": [2] * 3}],
)  # fmt: skip
def test_a_damaged_description_is_refused(damage):
    with pytest.raises(FormatError, match="damaged"):
        spaces.parse(spaces.describe(MultiDiscrete([2, 3])) | damage)
