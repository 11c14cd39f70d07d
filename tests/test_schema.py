"""Which fields a buffer has, and how each is compressed."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from diskreplay.errors import ExtrasError, InvalidInputError
from diskreplay.schema import Schema

FRAMES, SMALL = Box(0, 255, (32, 32), np.uint8), Box(-1, 1, (3,), np.float32)
ACTION = Discrete(4)
SPACE = Dict({"camera": FRAMES, "pose": SMALL, "wide": Box(-1, 1, (256,), np.float32)})
EXTRAS = {"map": ((32, 32), "uint8"), "h": ((256,), "float32", "mutable"), "p": ((), np.float64)}


def made(observation=SPACE, action=ACTION, extras=EXTRAS, compressor="auto", new=()):
    return Schema.of(observation, action, extras, compressor, new)


def test_fields_in_the_order_in_which_values_are_handed_over():
    schema = made(action=Tuple([Discrete(2), SMALL]))
    assert schema.names == [
        "observation/camera", "observation/pose", "observation/wide", "action/0", "action/1",
        "reward", "terminated", "truncated", "step", "is_final", "map", "h", "p",
    ]  # fmt: skip
    assert [field.name for field in schema.fields] == schema.names
    assert not schema.is_flat
    assert schema.shapes["map"] == ((32, 32), np.dtype("u1"))
    assert [field.mutable for field in schema.extras.values()] == [False, True, False]
    flat = made(FRAMES, extras=None)
    assert flat.is_flat
    assert flat.extras == {}
    assert not made(Dict({"a": SMALL})).is_flat


@pytest.mark.parametrize(
    ("compressor", "expected"),
    [
        # Frames are packed by themselves: of uint8, and not too small to be worth it.
        ("auto", {"observation/camera": "lz4", "map": "lz4"}),
        ("raw", {}),
        # For all: observations are, whatever their size, and what is large.
        ("zstd", {"observation/camera": "zstd", "observation/pose": "zstd",
                  "observation/wide": "zstd", "map": "zstd"}),
        # For some: as it is said; the others by themselves.
        ({"p": "lz4", "observation/camera": "raw"}, {"p": "lz4", "map": "lz4"}),
        ({"action": "zstd", "map": "auto"},
         {"action": "zstd", "observation/camera": "lz4", "map": "lz4"}),
    ],
)  # fmt: skip
def test_how_fields_are_compressed(compressor, expected):
    schema = made(compressor=compressor)
    found = {f.name: f.compressor for f in schema.fields if f.compressor != "raw"}
    assert found == expected


@pytest.mark.parametrize(("rows", "packed"), [(1023, False), (1024, True)])
def test_frames_of_a_kibibyte_are_worth_it(rows, packed):
    assert made(Box(0, 255, (rows,), np.uint8)).observations[0].packed == packed
    extras = {"x": ((rows // 4,), "float32"), "y": ((rows,), "uint8")}
    assert made(extras=extras, compressor="lz4").extras["y"].packed == packed


@pytest.mark.parametrize(
    "compressor",
    [None, 5, ["lz4"], "gzip", "", {"camera": "lz4"}, {"reward": "lz4"}, {5: "lz4", "x": "lz4"},
     {None: "raw"}, {"map": "gzip"}, {"h": "lz4"}],
)  # fmt: skip
def test_compressors_that_are_none_or_of_no_field(compressor):
    with pytest.raises(InvalidInputError, match=r"compressor|compressed"):
        made(compressor=compressor)


@pytest.mark.parametrize(
    "extras",
    [5, [1], "h", {"x": 5}, {"x": ()}, {"x": ((), )}, {"x": ((), "float32", "fixed")},
     {"x": ((), "float32", "mutable", 1)}, {"x": ((), "nothing")}, {"x": (("a",), "float32")},
     {"x": ((float("inf"),), "float32")}, {"x": ((float("nan"),), "float32")}, {"x": (None, "u1")},
     {"reward": ((), "u1")}, {5: ((), "u1")}, {"": ((), "u1")}],
    ids=str,
)  # fmt: skip
def test_extras_that_are_not_declared_as_they_have_to_be(extras):
    with pytest.raises(ExtrasError):
        made(extras=extras)


def test_extras_that_a_store_may_lack():
    assert made(new=["p", "h"]).new_extras == {"p", "h"}
    for new in ("p", 5, None, ["x"], ["observation/pose"], [5], [["p"]], [None]):
        with pytest.raises(ExtrasError, match=r"^new_extras: "):
            made(new=new)


def test_as_json_and_back():
    schema = made(compressor="zstd")
    parsed = Schema.parse(json.loads(json.dumps(schema.describe())))
    assert parsed.names == schema.names
    assert parsed.shapes == schema.shapes
    assert parsed.extra_specs == schema.extra_specs == {
        "map": ((32, 32), np.dtype("u1")), "h": ((256,), np.dtype("f4"), "mutable"),
        "p": ((), np.dtype("f8")),
    }  # fmt: skip
    assert (parsed.observation.space, parsed.action.space) == (SPACE, Discrete(4))


def test_memory_of_a_transition_of_a_batch():
    """The frames of the stack and of the next one, which share all but the rows in between."""
    schema = made(FRAMES, SMALL, {"h": ((10,), "float64")})
    assert schema.transition_bytes(4, 3) == (4 + 3) * 1024 + 12 + 80 + 64
