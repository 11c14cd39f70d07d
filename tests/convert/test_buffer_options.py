"""What a buffer was made with, as JSON and back; and what is no such document."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.convert.buffer_options import make_buffer, options_of, parse_description
from diskreplay.convert.copying import convert, merge
from diskreplay.errors import DiskReplayError, FormatError

OPTIONS = {
    "observation_space": Dict({"a": Box(-1, 1, (2, 3), np.float32), "b": Discrete(4, start=-2)}),
    "action_space": Box(0, 255, (5,), np.uint8), "capacity": 60, "num_envs": 2, "stack_size": 3,
    "stack_padding": "reset", "update_horizon": 2, "gamma": 0.75, "batch_size": 11,
    "extras": {"h": ((4,), "float16"), "m": ((), "int8", "mutable")},
    "compressor": {"observation/a": "zstd", "action": "raw"}, "metadata": {"run": [1, {"x": None}]},
}  # fmt: skip


@pytest.mark.parametrize("capacity", [None, 40])
def test_a_limit_of_transitions_stays(tmp_path, capacity):
    made = OPTIONS | {"capacity": capacity, "max_transitions": 10}
    with diskreplay.ReplayBuffer(tmp_path / "one", **made) as buffer:
        document = json.loads(json.dumps(options_of(buffer)))
        assert document["max_transitions"] == 10
        with make_buffer(document, tmp_path / "two") as other:
            assert (other.max_transitions, other.capacity) == (10, buffer.capacity)
        convert(buffer, tmp_path / "three")
    with diskreplay.open(tmp_path / "three") as reader:
        assert reader.max_transitions == 10
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    with diskreplay.open(tmp_path / "both") as reader:
        assert reader.max_transitions == 20
    del document["max_transitions"]  # as it was written before there was such a limit
    with make_buffer(document, tmp_path / "four") as other:
        assert other.max_transitions is None


@pytest.mark.parametrize("kind", [diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer])
def test_another_buffer_like_it(tmp_path, kind):
    more = {}
    if kind is diskreplay.PrioritizedReplayBuffer:
        more = {"alpha": 0.25, "beta": 0.125, "weight_normalization": "buffer"}
    with kind(tmp_path / "one", **OPTIONS, **more) as buffer:
        document = json.loads(json.dumps(options_of(buffer)))
        with make_buffer(document, tmp_path / "two") as other:
            assert type(other) is kind
            assert options_of(other) == options_of(buffer)
            assert other.fields == buffer.fields
            for name in OPTIONS.keys() - {"compressor"} | more.keys():
                assert getattr(other, name) == getattr(buffer, name)
    assert document["compressor"].keys() == {
        "observation/a", "observation/b", "action", "h", "m"
    }  # fmt: skip
    assert document["compressor"]["observation/a"] == "zstd"


def test_options_that_are_given_go_before(tmp_path):
    with diskreplay.ReplayBuffer(tmp_path / "one", **OPTIONS) as buffer:
        document = options_of(buffer)
    with make_buffer(
        document, tmp_path / "two", capacity=None, gamma=0.5, compressor={"h": "lz4"}
    ) as other:
        assert other.capacity is None
        assert other.gamma == 0.5
        assert options_of(other)["compressor"] == document["compressor"] | {"h": "lz4"}
    with make_buffer(document, tmp_path / "three", compressor="raw") as other:
        assert set(options_of(other)["compressor"].values()) == {"raw"}


def test_a_schedule_is_the_training_programs_own(tmp_path):
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "one", **OPTIONS, beta=lambda _draws: 1.0
    ) as buffer:
        assert options_of(buffer)["beta"] == 0.4


def described(tmp_path):
    with diskreplay.ReplayBuffer(tmp_path / "described", **OPTIONS) as buffer:
        return options_of(buffer)


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "other"}, {"kind": []}, {"kind": None}, {"observation_space": None},
        {"observation_space": {}}, {"action_space": "Discrete(2)"}, {"extras": []},
        {"compressor": 5}, {"compressor": None}, {"path": "/tmp/elsewhere"}, {"mode": "r"},
        {"capacity": "many"}, {"capacity": -1}, {"gamma": None}, {"num_envs": 0},
        {"extras": {"h": 5}},
    ],
)  # fmt: skip
def test_a_damaged_document_makes_no_store(tmp_path, changed):
    document = described(tmp_path) | changed
    with pytest.raises(DiskReplayError):
        make_buffer(document, tmp_path / "two")
    assert not (tmp_path / "two").exists()
    assert document["num_envs"] == changed.get("num_envs", 2)  # it is the caller's


@pytest.mark.parametrize(
    "name", ["kind", "observation_space", "action_space", "extras", "compressor"]
)
def test_a_document_that_lacks_something(tmp_path, name):
    document = described(tmp_path)
    del document[name]
    with pytest.raises(FormatError, match="the description of the buffer is damaged"):
        make_buffer(document, tmp_path / "two")


# -- the text that it comes in


def parsed(tmp_path, document, **kinds):
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    return parse_description(tmp_path / "x", text, "version", 3, kinds)


def test_a_text_that_is_one(tmp_path):
    document = {"version": 3, "buffer": {}, "largest_priority": None, "more": [1]}
    assert parsed(tmp_path, document, more=list) == document
    assert parsed(tmp_path, json.dumps(document).encode()) == document
    assert parsed(tmp_path, document | {"largest_priority": 2.5})["largest_priority"] == 2.5


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", '"version"', "{}", b"\xff\xfe", "[" * 100_000,
     '{"version": ' + "[" * 100_000],
    ids=lambda text: str(text)[:10],
)  # fmt: skip
def test_a_text_that_is_none(tmp_path, text):
    with pytest.raises(FormatError, match="x: the description of the buffer it came from"):
        parsed(tmp_path, text)


@pytest.mark.parametrize("version", [2, 4, "3", None, [3]])
def test_one_of_another_version(tmp_path, version):
    with pytest.raises(FormatError, match="this diskreplay reads 3"):
        parsed(tmp_path, {"version": version, "buffer": {}, "largest_priority": None})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"buffer": []}, "'buffer' is"), ({"buffer": None}, "'buffer' is None"),
        ({"largest_priority": "1"}, "'largest_priority' is '1'"),
        ({"largest_priority": [1]}, "'largest_priority' is"), ({"more": 5}, "'more' is 5"),
    ],
)  # fmt: skip
def test_entries_of_another_type(tmp_path, changed, named):
    document = {"version": 3, "buffer": {}, "largest_priority": None, "more": [1]}
    with pytest.raises(FormatError, match=named):
        parsed(tmp_path, document | changed, more=list)


@pytest.mark.parametrize("name", ["buffer", "largest_priority", "more"])
def test_entries_that_are_missing(tmp_path, name):
    document = {"version": 3, "buffer": {}, "largest_priority": None, "more": [1]}
    del document[name]
    with pytest.raises(FormatError, match=f"'{name}' is 'missing'"):
        parsed(tmp_path, document, more=list)
