"""What rows in slots consist of, and what a store has for each field."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.slot_fields import SlotFields

FIELDS = {
    "observation": ((4, 8, 8), np.uint8), "next": ((4, 8, 8), np.uint8),
    "action": ((), np.int64), "reward": ((), np.float32), "done": ((), np.bool_),
    "large": ((600,), np.float32),
}  # fmt: skip
SHARED = {"next_of": {"next": "observation"}, "stack": {"next": 4}}


def made(fields=FIELDS, sizes=(10, 6), min_bytes=1024, **options):
    return SlotFields(fields, sizes, min_bytes, **options)


def test_lanes_lie_one_behind_the_other():
    found = made(sizes=[10, 0, 6])
    assert found.total == 16
    assert found.offsets.tolist() == [0, 10, 10]
    assert found.lanes(np.arange(16)).tolist() == [0] * 10 + [2] * 6
    assert made(sizes=[5]).lanes(np.array([4, 0])).tolist() == [0, 0]


def test_small_fields_are_in_memory_too():
    assert set(made().resident) == {"observation", "next", "action", "reward", "done"}
    assert set(made(min_bytes=0).resident) == set()
    assert set(made(min_bytes=8).resident) == {"reward", "done"}
    assert set(made(**SHARED).resident) == {"action", "reward", "done"}  # frames are not


def test_fields_with_the_names_of_a_store_are_its_own():
    found = made()
    assert found.stored["observation"] == "observation"
    assert found.stored["reward"] == "reward"
    assert found.schema.observation.space.shape == (4, 8, 8)
    assert found.schema.action.space.shape == ()
    given = dict(zip(found.schema.names, found.given, strict=True))
    assert given["slot"] is None
    assert given["step"] is None
    assert {name for name in found.given if name} == set(FIELDS)
    wrong = made({"reward": ((2,), np.float32), "terminated": ((), np.uint8)})
    assert wrong.stored["reward"] != "reward"
    assert wrong.stored["terminated"] != "terminated"


def test_nested_observations_are_a_dict_unless_there_is_a_whole_one():
    parts = {"observation/a": ((2,), np.uint8), "observation/b": ((), np.int8)}
    found = made(parts)
    assert isinstance(found.schema.observation.space, spaces.Dict)
    assert set(found.schema.observation.space.spaces) == {"a", "b"}
    both = made({**parts, "observation": ((3,), np.uint8)})
    assert isinstance(both.schema.observation.space, spaces.Box)
    assert both.stored["observation/a"] != "observation/a"
    deep = made({"observation/a/b": ((2,), np.uint8)})
    assert deep.stored["observation/a/b"] != "observation/a/b"
    assert deep.schema.observation.space.shape == (1,)  # of nothing


def test_frames_that_are_shared_are_stored_once():
    found = made(**SHARED)
    assert found.stored["next"] == found.stored["observation"]
    assert found.schema.shapes[found.stored["next"]][0] == (8, 8)
    assert found.stored["observation"] != "observation"  # frames of what rows led to
    assert "back" in found.schema.names
    (chain,) = found.chains.chains
    assert (chain.now, chain.following, chain.stack) == ("observation", "next", 4)
    alone = made(stack={"observation": 2})
    assert alone.stored["observation"] == "observation"
    assert alone.schema.shapes["observation"][0] == (2, 8, 8)
    assert "back" not in alone.schema.names


@pytest.mark.parametrize(("sizes", "slack"), [([100], [64]), ([1000, 8], [125, 64])])
def test_there_is_room_for_what_is_shown_and_an_eighth_more(sizes, slack):
    found = made(sizes=sizes)
    assert found.slack.tolist() == slack
    assert found.capacity == len(sizes) * (sizes[0] + slack[0])
    shared = made(sizes=sizes, **SHARED)
    reach = shared.chains.reach
    assert shared.capacity >= len(sizes) * (sizes[0] * (1 + reach) + slack[0])


@pytest.mark.parametrize("options", [{}, SHARED, {"stack": {"observation": np.int64(4)}}])
def test_what_is_described_is_parsed(options):
    found = made(**options)
    attributes = json.loads(json.dumps(found.describe()))
    again = SlotFields.parse(attributes)
    assert again.specs == found.specs
    assert again.sizes.tolist() == found.sizes.tolist()
    assert again.min_bytes == found.min_bytes
    assert again.chains.chains == found.chains.chains
    assert again.stored == found.stored
    assert again.describe() == found.describe()


@pytest.mark.parametrize(
    "change",
    [None, {"fields": None}, {"fields": {}}, {"fields": {"a": [[0], "int8"]}}, {"sizes": [-1]},
     {"sizes": []}, {"sizes": [1.5]}, {"min_bytes": -1}, {"min_bytes": None}, {"stack": {"x": 2}},
     {"next_of": 3}, {"fields": {"a": [[1], "object"]}}],
)  # fmt: skip
def test_attributes_that_make_no_sense_are_refused(change):
    attributes = made().describe()
    if change is None:
        attributes = {}
    else:
        attributes["slots"] |= change
    with pytest.raises(FormatError, match="slots is missing or damaged"):
        SlotFields.parse(attributes)


def test_names_that_are_no_fields():
    found = made()
    found.check(["reward", "large"])
    with pytest.raises(InvalidInputError, match="no field 'nothing'"):
        found.check(["reward", "nothing"])
    for options, message in (
        ({"fields": {}}, "at least one"), ({"sizes": []}, "a number for each lane"),
        ({"compressor": {"nothing": "lz4"}}, "nothing"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            made(**options)
