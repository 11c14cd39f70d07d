"""What is noted about a store: kept, changed, saved, read along; never in the way of its rows."""

import json
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.convert.npz import from_npz, to_npz

KINDS = (diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer)
NOTES = {"env_id": "CartPole-v1", "seed": 3, "by": ["a", None, True], "more": {"x": 0.5, "é": "ß"}}


def make(path, kind=diskreplay.ReplayBuffer, **changed):
    options = {
        "observation_space": Box(-1, 1, (2,)), "action_space": Discrete(2), "capacity": 100,
        "seed": 0, **changed,
    }  # fmt: skip
    return kind(path, **options)


def record(buffer, count=5):
    for _ in range(count):
        buffer.add(np.zeros(2, np.float32), 0, 0.0, False, False)


def stored(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]["metadata"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_kept_and_merged_at_a_reopening(tmp_path, kind):
    path = tmp_path / "store"
    with make(path, kind, metadata=NOTES) as buffer:
        assert buffer.metadata == stored(path) == NOTES
    with make(path, kind) as buffer:
        assert buffer.metadata == NOTES
    merged = NOTES | {"seed": 4, "new": []}
    with make(path, kind, metadata={"seed": 4, "new": []}) as buffer:
        assert buffer.metadata == stored(path) == merged
    with diskreplay.open(path, mode="a") as buffer:
        assert buffer.metadata == merged
        record(buffer)
    assert stored(path) == merged


@pytest.mark.parametrize("kind", KINDS)
def test_none_is_none(tmp_path, kind):
    with make(tmp_path / "store", kind) as buffer:
        assert buffer.metadata == {}
        buffer.set_metadata(NOTES)
        buffer.set_metadata({})
        assert buffer.metadata == stored(tmp_path / "store") == {}


def test_a_change_is_durable_at_once_and_seen_by_readers(tmp_path):
    path = tmp_path / "store"
    with make(path, metadata={"old": 1}) as buffer:
        record(buffer)
        with diskreplay.open(path) as reader:
            assert reader.metadata == {"old": 1}
            buffer.set_metadata(NOTES)  # in place of all
            assert buffer.metadata == stored(path) == reader.metadata == NOTES
            buffer.set_metadata({**buffer.metadata, "seed": 8})
            assert reader.metadata["seed"] == 8
            record(buffer)
            buffer.flush()
            assert reader.metadata["seed"] == 8
            with pytest.raises(errors.ReadOnlyError):
                reader.set_metadata({})
    with pytest.raises(errors.ClosedError):
        buffer.set_metadata({})


def test_it_is_a_copy(tmp_path):
    given = {"list": [1, {"deep": 2}]}
    with make(tmp_path / "store", metadata=given) as buffer:
        given["list"][1]["deep"] = buffer.metadata["list"][1]["deep"] = 3
        buffer.metadata["more"] = 1
        assert buffer.metadata == {"list": [1, {"deep": 2}]}
        buffer.set_metadata(given)
        given["list"].append(4)
        assert buffer.metadata == {"list": [1, {"deep": 3}]}


def test_checkpoints_have_it_and_load_brings_it_back(tmp_path):
    with make(tmp_path / "store", metadata={"run": 1}) as buffer:
        record(buffer)
        path = buffer.save(tmp_path / "checkpoints", 1)
        buffer.set_metadata({"run": 2})
        with diskreplay.open(path) as checkpoint:
            assert checkpoint.metadata == {"run": 1}
        buffer.load(tmp_path / "checkpoints", 1)
        assert buffer.metadata == stored(tmp_path / "store") == {"run": 1}
    with make(tmp_path / "other", metadata={"run": 3}) as buffer:
        buffer.load(tmp_path / "checkpoints", 1)
        assert buffer.metadata == {"run": 1}


def test_a_checkpoint_that_has_none_leaves_it(tmp_path):
    """One of another program, say."""
    frames = {"observation_space": Box(0, 255, (2, 2), "uint8")}
    with make(tmp_path / "store", **frames, metadata=NOTES) as buffer:
        for _ in range(5):
            buffer.add(np.ones((2, 2), np.uint8), 0, 0.0, False, False)
        buffer.export_gz(tmp_path / "gz", 1)
    with make(tmp_path / "other", **frames, metadata=NOTES) as buffer:
        buffer.load(tmp_path / "gz", 1)
        assert buffer.add_count == 5
        assert buffer.metadata == NOTES


def test_exports_carry_it(tmp_path):
    with make(tmp_path / "store", metadata=NOTES) as buffer:
        record(buffer)
        to_npz(buffer, tmp_path / "rows.npz")
    with from_npz(tmp_path / "rows.npz", tmp_path / "back") as back:
        assert back.metadata == NOTES


def test_numpy_values_and_tuples_become_json(tmp_path):
    given = {"seed": np.int64(3), "lr": np.float32(0.5), "sizes": (1, (2,)), "on": np.True_,
             "matrix": np.arange(4).reshape(2, 2), "none": None}  # fmt: skip
    expected = {"seed": 3, "lr": 0.5, "sizes": [1, [2]], "on": True, "matrix": [[0, 1], [2, 3]],
                "none": None}  # fmt: skip
    with make(tmp_path / "store", metadata=given) as buffer:
        assert buffer.metadata == stored(tmp_path / "store") == expected


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def circle():
    value = {}
    value["x"] = [value]
    return value


NO_METADATA = [
    (5, "a dict expected, found int"),
    ([("a", 1)], "a dict expected, found list"),
    ("text", "a dict expected"),
    ({1: 2}, "the key 1 is no text"),
    ({"a": {"b": [0, object()]}}, r"metadata\['a'\]\['b'\]\[1\]: <object.*is no JSON"),
    ({"f": len}, r"metadata\['f'\].*is no JSON"),
    ({"s": {1, 2}}, "is no JSON"),
    ({"b": b"x"}, "is no JSON"),
    ({"nan": float("nan")}, "is no JSON"),
    ({"inf": np.float64(np.inf)}, "is no JSON"),
    ({"nan": np.array([np.nan])}, r"\['nan'\]\[0\]"),
    ({"large": 2**64}, "64 bits"),
    ({"small": -(2**63) - 1}, "64 bits"),
    ({"complex": 1j}, "is no JSON"),
    ({"lone": "\ud800"}, "is no text"),
    ({"\ud800": 1}, "is no text"),
    ({"long": "x" * (64 << 10)}, "bytes as JSON, at most 65536"),
    ({str(i): "ß" * 100 for i in range(400)}, "at most 65536"),
    (deep(40), "at most 32 levels"),
    (circle(), "at most 32 levels"),
]


@pytest.mark.parametrize(("found", "says"), NO_METADATA)
def test_what_is_none_is_refused_and_changes_nothing(tmp_path, found, says):
    with pytest.raises(errors.InvalidInputError, match=says):
        make(tmp_path / "new", metadata=found)
    assert not (tmp_path / "new").exists()
    with make(tmp_path / "store", metadata=NOTES) as buffer:
        with pytest.raises(errors.InvalidInputError, match=says):
            buffer.set_metadata(found)
        assert buffer.metadata == stored(tmp_path / "store") == NOTES


def test_the_largest_fits_and_both_together_may_not(tmp_path):
    long = {"a": "x" * 40_000}
    with make(tmp_path / "store", metadata=long):
        pass
    with pytest.raises(errors.InvalidInputError, match="80"):
        make(tmp_path / "store", metadata={"b": "x" * 40_000})
    with make(tmp_path / "store", metadata={"a": "y"}) as buffer:  # which is not locked either
        assert buffer.metadata == {"a": "y"}


def test_a_disk_that_refuses_leaves_it(tmp_path, monkeypatch):
    with make(tmp_path / "store", metadata=NOTES) as buffer:
        with monkeypatch.context() as patched:

            def full(*_arguments, **_more):
                raise errors.DiskFullError("full")

            patched.setattr(buffer._rows.store, "record", full)
            with pytest.raises(errors.DiskFullError):
                buffer.set_metadata({"other": 1})
        assert buffer.metadata == NOTES
        record(buffer)
    assert stored(tmp_path / "store") == NOTES


HOSTILE = [5, None, "x", [], [1], {"a": "\ud800"}, deep(200), {"x": "y" * 70_000}, {"n": 10**30}]


def damage(path, value):
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["metadata"] = value
    (path / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
def test_damaged_metadata_keep_nobody_from_the_rows(tmp_path, value):
    path = tmp_path / "store"
    with make(path, metadata=NOTES) as buffer:
        record(buffer)
    damage(path, value)
    with pytest.warns(UserWarning, match="damaged metadata left out") as warned:
        reader = diskreplay.open(path)
    assert str(path) in str(warned[0].message)
    with reader:
        assert reader.metadata == {}
        assert reader.add_count == 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer = make(path, metadata={"seed": 1})
    with buffer:
        assert buffer.metadata == stored(path) == {"seed": 1}
        assert buffer.add_count == 5


def test_a_damaged_warning_comes_before_a_load_changes_anything(tmp_path):
    """Where warnings are errors, the buffer is as it was."""
    with make(tmp_path / "store", metadata=NOTES) as buffer:
        record(buffer)
        checkpoint = buffer.save(tmp_path / "checkpoints", 1)
        record(buffer)
        damage(checkpoint, 5)
        with pytest.raises((UserWarning, errors.CheckpointError)):
            buffer.load(tmp_path / "checkpoints", 1)
        assert buffer.add_count == 10
        assert buffer.metadata == NOTES


def test_stores_without_any_open(tmp_path):
    path = tmp_path / "store"
    with make(path, metadata=NOTES) as buffer:
        record(buffer)
    document = json.loads((path / "zarr.json").read_text())
    del document["attributes"]["diskreplay"]["metadata"]
    (path / "zarr.json").write_text(json.dumps(document))
    with diskreplay.open(path) as reader:
        assert reader.metadata == {}
    with make(path, metadata={"seed": 1}) as buffer:
        assert buffer.metadata == {"seed": 1}
