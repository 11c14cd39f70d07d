"""Descriptions of spaces, with the Gymnasium that is installed and as older ones have them."""

import copy
import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from diskreplay import spaces
from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError, ShapeError
from diskreplay.stored_space import StoredSpace

NESTED = Dict({"b": Box(0, 1, (2,), "float32"), "a": Tuple([Discrete(2), MultiBinary(3)])})
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
    NESTED,
]
DOCUMENTS = [spaces.describe(space, "observation") for space in ALL]


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
    document = json.loads(json.dumps(spaces.describe(space, "observation")))
    found = StoredSpace(document, "observation")
    assert found.space == space
    assert found.space is found.space
    assert spaces.describe(found.space, "observation") == document
    assert found.is_alike(document)
    assert StoredSpace.of(space, "observation").space is space


def test_leaves():
    found = StoredSpace(spaces.describe(NESTED, "observation"), "observation")
    assert found.leaves == [
        ("observation/a/0", (), np.dtype(np.int64)),
        ("observation/a/1", (3,), np.dtype(np.int8)),
        ("observation/b", (2,), np.dtype(np.float32)),
    ]
    assert found.names == ["observation/a/0", "observation/a/1", "observation/b"]
    flat = StoredSpace(spaces.describe(ALL[2], "action"), "action")
    assert flat.leaves == [("action", (2, 3), np.dtype(np.uint8))]


@pytest.mark.parametrize("space", ALL, ids=str)
def test_the_leaves_are_those_of_values(space):
    found = StoredSpace.of(space, "observation")
    value = space.sample()
    parts = found.flatten(value)
    for part, (_name, shape, dtype) in zip(parts, found.leaves, strict=True):
        assert np.shape(part) == shape
        assert np.asarray(part).dtype == dtype
    again = found.unflatten(parts)
    assert space.contains(again)
    for part, same in zip(parts, found.flatten(again), strict=True):
        assert part is same


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"^next_observation: a dict with keys \['a', 'b'\] expected, found int"),
        ({"a": (1, [0, 0, 1])}, r"^next_observation: a dict .* found \['a'\]"),
        ({"a": 7, "b": [0, 1]}, r"^next_observation/a: a tuple of 2 expected, found 7"),
        ({"a": (1,), "b": [0, 1]}, r"^next_observation/a: a tuple of 2 expected, found \(1,\)"),
    ],
)
def test_values_that_are_put_together_otherwise(value, message):
    with pytest.raises(ShapeError, match=message):
        StoredSpace.of(NESTED, "observation").flatten(value, "next_")


def test_alike_but_for_bounds():
    found = StoredSpace.of(Dict({"a": Box(0, 1, (2,), "float32")}), "observation")
    wider = spaces.describe(Dict({"a": Box(-9, 9, (2,), "float32")}), "observation")
    longer = spaces.describe(Dict({"a": Box(0, 1, (3,), "float32")}), "observation")
    assert found.is_alike(wider)
    for other in (longer, {**wider, "order": []}, None, 3, [wider], {}):
        assert not found.is_alike(other)


@pytest.mark.parametrize(
    ("space", "message"),
    [(Dict({}), "empty Dict"), (Tuple([]), "empty Tuple"), (Dict({"a": Tuple([])}), "empty Tuple"),
     (Dict({"..": Discrete(2)}), "'..'"), (Dict({"a": Discrete(2), "A": Discrete(2)}), "case")],
)  # fmt: skip
def test_spaces_without_fields(space, message):
    with pytest.raises(InvalidInputError, match=message):
        StoredSpace.of(space, "observation")


def test_a_space_that_cannot_start_elsewhere(monkeypatch):
    document = spaces.describe(MultiDiscrete([3, 4], dtype=np.int32), "action")
    assert document["start"] == [0, 0]
    old = NoStart([3, 4], np.int32)
    assert not hasattr(old, "start")
    assert spaces.describe(old, "action") == document
    monkeypatch.setattr(gymnasium.spaces, "MultiDiscrete", NoStart)
    found = StoredSpace(document, "action").space
    assert found.nvec.tolist() == [3, 4]
    assert found.dtype == np.int32
    later = StoredSpace(document | {"start": [0, 1]}, "action")
    with pytest.raises(FormatError, match=r"starts at \[0, 1\], which takes gymnasium 0.29"):
        _ = later.space


def test_a_space_whose_type_cannot_be_chosen(monkeypatch):
    document = spaces.describe(Discrete(3, start=2), "action")
    monkeypatch.setattr(gymnasium.spaces, "Discrete", NoDtype)
    assert spaces.describe(StoredSpace(document, "action").space, "action") == document
    other = StoredSpace(document | {"dtype": "int32"}, "action")
    with pytest.raises(FormatError, match=r"Discrete space of int32, which takes gymnasium 1.2.2"):
        _ = other.space


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        (2, {"dtype": ">f4"}), (2, {"dtype": "float7"}), (2, {"shape": [-1]}), (2, {"shape": 3}),
        (2, {"low": {"base64": "/w==", "count": 1}, "high": {"base64": "AA==", "count": 1}}),
        (2, {"low": {"base64": "AAAA", "count": 3}}), (2, {"low": {"base64": "AA==", "count": 2}}),
        (3, {"low": {"base64": "AADAfw==", "count": 1}}),  # no number
        (4, {"n": 0}), (4, {"n": True}), (4, {"n": 2.0}), (4, {"dtype": "float32"}),
        (4, {"dtype": "int8", "n": 300}), (6, {"n": [0]}), (6, {"n": "4"}),
        (8, {"nvec": "x"}), (8, {"nvec": [0, -1]}), (8, {"start": [[1]]}), (8, {"nvec": [2] * 3}),
        (8, {"nvec": [10**30, 2]}), (10, {"order": ["a"]}), (10, {"spaces": [1, 2]}),
        (10, {"spaces": {"a": 3, "b": 4}}), (0, {"type": "Text"}), (0, {"type": ["Box"]}),
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused(at, damage):
    with pytest.raises(FormatError, match="the description of a space is damaged"):
        StoredSpace(DOCUMENTS[at] | damage, "observation")


@pytest.mark.parametrize("document", [None, 3, [], "Box", {}, {"type": "Dict"}])
def test_what_is_no_description_is_refused(document):
    with pytest.raises(FormatError, match="damaged"):
        StoredSpace(document, "observation")


def test_more_levels_than_there_is_room_for():
    document = DOCUMENTS[4]
    for _ in range(3000):
        document = {"type": "Tuple", "spaces": [document]}
    with pytest.raises(FormatError, match="damaged"):
        StoredSpace(document, "observation")


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-3, 300) | st.floats() | st.text()
    | st.sampled_from(["int8", "float64", "bool", "Dict", "Tuple", "Box", "Discrete", "/w=="])
)  # fmt: skip
VALUES = SCALARS | st.lists(st.integers(-1, 5), max_size=3) | st.lists(SCALARS, max_size=2)


def _places(document, path=()):
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inside:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


@given(st.data())
def test_a_description_that_is_taken_makes_a_space(data):
    """Damage that is found when the space is asked for would be found too late: the rows would be
    read as fields of something else by then."""
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    *path, last = data.draw(st.sampled_from(list(_places(document))))
    inside = document
    for key in path:
        inside = inside[key]
    if isinstance(inside, dict) and data.draw(st.booleans()):
        del inside[last]
    else:
        inside[last] = data.draw(VALUES)
    try:
        found = StoredSpace(document, "observation")
    except DiskReplayError:
        return
    if all(size < 1 << 20 for _name, shape, _dtype in found.leaves for size in shape):
        space, says = None, ""
        try:
            space = found.space
        except FormatError as error:
            says = str(error)
        if space is None:
            assert "which takes gymnasium" in says  # an older one is installed
        else:
            assert StoredSpace.of(space, "observation").leaves == found.leaves


def test_opening_a_store_does_not_import_gymnasium(tmp_path):
    """It takes longer to import than the store to open."""
    from diskreplay import PrioritizedReplayBuffer

    with PrioritizedReplayBuffer(
        tmp_path / "store", observation_space=NESTED, action_space=Discrete(3), capacity=100, seed=1
    ) as buffer:
        for step in range(20):
            buffer.add(NESTED.sample(), step % 3, 1.0, False, False)
    program = (
        "import sys, diskreplay; buffer = diskreplay.open(sys.argv[1], mode='a'); "
        "buffer.sample(4); buffer.flush(); assert 'gymnasium' not in sys.modules; "
        "print(buffer.observation_space)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(NESTED)), done.stderr


def test_a_space_that_was_changed_or_is_too_deep_is_no_damaged_store():
    changed = Box(0, 1, (2,), np.float32)
    changed.low[0] = 5
    with pytest.raises(InvalidInputError, match="observation: no space that can be stored"):
        StoredSpace.of(changed, "observation")
    deep = Discrete(2)
    for _ in range(900):
        deep = Dict({"a": deep})
    with pytest.raises(InvalidInputError, match="observation"):
        StoredSpace.of(deep, "observation")
