"""Whatever is wrong has its own error, changes nothing, and leaves a buffer that goes on."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay import errors, naming
from diskreplay.convert.npz import from_npz, to_npz
from diskreplay.convert.table import from_csv, to_csv
from diskreplay.pictures.report import save_report
from diskreplay.slots import Slots
from diskreplay.store import files
from diskreplay.store.system_errors import translated
from diskreplay.validation import one_of
from tests import processes
from tests.disks import alone, can_mount
from tests.permission import check_refused, run_under_modes

ROOT = Path(__file__).resolve().parent.parent
FRAME = (32, 32)
GOOD = object()


# -- helpers


def make(path, **changed):
    options = {
        "observation_space": Box(0, 255, FRAME, "uint8"),
        "action_space": Discrete(4),
        "capacity": 400,
        "stack_size": 2,
        "update_horizon": 2,
        "batch_size": 8,
        "extras": {"log_prob": ((), "float32"), "code": ((2,), "int8")},
        "segment_rows": 16,
        "seed": 3,
        **changed,
    }
    return diskreplay.PrioritizedReplayBuffer(path, **options)


def step(i, **changed):
    return {
        "observation": np.full(FRAME, i % 251, np.uint8),
        "action": i % 4,
        "reward": float(i),
        "terminated": i % 17 == 16,
        "truncated": False,
        "next_observation": np.full(FRAME, (i + 1) % 251, np.uint8),
        "log_prob": -i / 8,
        "code": np.array([i % 100, -3], np.int8),
        **changed,
    }


def record(buffer, count):
    for i in range(buffer.add_count, buffer.add_count + count):
        buffer.add(**step(i))


def vector_step(i, num_envs, **changed):
    one = step(i)
    return {k: np.stack([v] * num_envs) for k, v in one.items()} | changed


def next_batch(buffer):
    """What the next `sample` will return; the random numbers are put back."""
    state = buffer._rng.state()
    batch = buffer.sample()
    buffer._rng.restore(state)
    return {name: np.array(value) for name, value in batch.asdict().items()}


def snapshot(buffer):
    """Everything a caller can see of a buffer."""
    store = buffer._rows.store
    rows = {
        (name, env): store.columns[name].read(env, int(store.first[env]), int(store.count[env]))
        for name in store.columns
        for env in range(buffer.num_envs)
    }
    figures = {
        "len": len(buffer), "add_count": buffer.add_count, "rows": buffer.statistics().rows,
        "priorities": buffer.statistics().priorities,
    }  # fmt: skip
    return figures, rows, next_batch(buffer) if len(buffer) else {}


def assert_same(before, after):
    assert after[0] == before[0]
    for one, other in zip(before[1:], after[1:], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(other[name], one[name], err_msg=str(name))


def refused(buffer, kind, words, call):
    """`call` raises exactly `kind` with these words; the buffer is as before and goes on."""
    before = snapshot(buffer)
    with pytest.raises(errors.DiskReplayError) as caught:
        call()
    assert type(caught.value) is kind, caught.value
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"
    assert_same(before, snapshot(buffer))
    goes_on(buffer)


def goes_on(buffer):
    """Steps can be added, and are there."""
    before = buffer.add_count
    if buffer.num_envs == 1:
        id = buffer.add(**step(before))
    else:
        id = buffer.add(**vector_step(before, buffer.num_envs))
    assert buffer.add_count == before + buffer.num_envs
    row, env = divmod(int(id[0]), buffer.num_envs)
    assert buffer._rows.store.columns["reward"].read(env, row, row + 1)[0] == before
    batch = buffer.sample()
    buffer.update_priorities(batch.id, np.full(len(batch.id), 0.5))


@pytest.fixture
def buffer(tmp_path):
    with make(tmp_path / "store") as made:
        record(made, 60)
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """For the many cases that touch no file: whatever is refused leaves it as it was."""
    with make(tmp_path_factory.mktemp("shared") / "store") as made:
        record(made, 60)
        yield made


@pytest.fixture(scope="module")
def vector(tmp_path_factory):
    with make(tmp_path_factory.mktemp("vector") / "store", num_envs=3) as made:
        for i in range(40):
            made.add(**vector_step(i, 3))
        yield made


# -- the values of a step

SHAPE, DTYPE, NAN = errors.ShapeError, errors.DtypeError, errors.NotFiniteError

STEPS = {
    "observation shape": (
        {"observation": np.zeros((5, 5), np.uint8)}, SHAPE, ["observation", "(32, 32)", "(5, 5)"],
    ),
    "stacked observation": (
        {"observation": np.zeros((2, *FRAME), np.uint8)}, SHAPE, ["(32, 32)", "(2, 32, 32)"],
    ),
    "ragged observation": ({"observation": [[1, 2], [3]]}, SHAPE, ["observation"]),
    "next observation shape": (
        {"next_observation": np.zeros(3, np.uint8)}, SHAPE, ["next_observation", "(3,)"],
    ),
    "final observation shape": (
        {"terminated": True, "next_observation": np.zeros(3, np.uint8)}, SHAPE,
        ["observation", "(3,)"],
    ),
    "action shape": ({"action": [1, 2]}, SHAPE, ["action", "()", "(2,)"]),
    "reward shape": ({"reward": np.zeros(1)}, SHAPE, ["reward", "(1,)"]),
    "flag shape": ({"terminated": np.zeros(2, bool)}, SHAPE, ["terminated", "(2,)"]),
    "extra shape": ({"code": np.zeros(3, np.int8)}, SHAPE, ["code", "(2,)", "(3,)"]),
    "float observation": (
        {"observation": np.zeros(FRAME)}, DTYPE, ["observation", "float64", "uint8"],
    ),
    "complex observation": (
        {"observation": np.zeros(FRAME, complex)}, DTYPE, ["complex128", "uint8"],
    ),
    "text observation": ({"observation": np.full(FRAME, "x")}, DTYPE, ["<U1", "uint8"]),
    "object observation": ({"observation": np.full(FRAME, None)}, DTYPE, ["object", "uint8"]),
    "float final observation": (
        {"truncated": True, "next_observation": np.zeros(FRAME)}, DTYPE, ["float64", "uint8"],
    ),
    "pixel overflow": (
        {"observation": np.full(FRAME, 256, np.int32)}, DTYPE, ["observation", "256", "uint8"],
    ),
    "negative pixel": ({"observation": np.full(FRAME, -1, np.int64)}, DTYPE, ["-1", "uint8"]),
    "extra overflow": ({"code": np.array([128, 0])}, DTYPE, ["code", "128", "int8"]),
    "float action": ({"action": 1.5}, DTYPE, ["action", "float64", "int64"]),
    "action overflow": ({"action": np.uint64(2**63)}, DTYPE, ["action", str(2**63), "int64"]),
    "enormous action": ({"action": 2**70}, DTYPE, ["action"]),
    "text reward": ({"reward": "much"}, DTYPE, ["reward", "<U4"]),
    "missing reward": ({"reward": None}, DTYPE, ["reward", "object"]),
    "flag of two": ({"terminated": 2}, DTYPE, ["terminated", "bool", "2"]),
    "text flag": ({"truncated": "no"}, DTYPE, ["truncated", "bool", "no"]),
    "reward nan": ({"reward": float("nan")}, NAN, ["reward", "nan", "finite"]),
    "reward numpy nan": ({"reward": np.float32("nan")}, NAN, ["reward", "nan"]),
    "reward inf": ({"reward": float("inf")}, NAN, ["reward", "inf"]),
    "reward too large": ({"reward": 1e39}, NAN, ["reward", "1e+39", "float32"]),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_a_bad_value_is_refused(shared, case):
    changed, kind, words = STEPS[case]
    refused(shared, kind, words, lambda: shared.add(**step(7, **changed)))


VECTOR_STEPS = {
    "observation shape": (
        {"observation": np.zeros((2, *FRAME), np.uint8)}, SHAPE, ["(3, 32, 32)", "(2, 32, 32)"],
    ),
    "no env axis": ({"observation": np.zeros(FRAME, np.uint8)}, SHAPE, ["(3, 32, 32)"]),
    "scalar reward": ({"reward": 1.0}, SHAPE, ["reward", "(3,)", "()"]),
    "flags": ({"terminated": np.zeros(2, bool)}, SHAPE, ["terminated", "(3,)", "(2,)"]),
    "mask shape": ({"mask": np.ones(4, bool)}, SHAPE, ["mask", "(3,)", "(4,)"]),
    "mask dtype": ({"mask": np.ones(3)}, DTYPE, ["mask", "float64"]),
    "next mask": (
        {"next_observation_mask": np.ones(1, bool)}, SHAPE, ["next_observation_mask", "(1,)"],
    ),
    "dtype": ({"observation": np.zeros((3, *FRAME))}, DTYPE, ["observation", "float64"]),
    "overflow": ({"code": np.full((3, 2), 300)}, DTYPE, ["code", "300", "int8"]),
    "reward nan": ({"reward": np.array([0, np.nan, 0])}, NAN, ["reward", "nan", "env 1"]),
    "reward inf": ({"reward": np.array([0, 0, -np.inf])}, NAN, ["reward", "-inf", "env 2"]),
    "reward too large": ({"reward": np.array([0, 0, 1e39])}, NAN, ["reward", "env 2"]),
    "final shape": (
        {"terminated": np.ones(3, bool), "next_observation": np.zeros(3, np.uint8)}, SHAPE,
        ["observation", "(3,)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VECTOR_STEPS)
def test_a_bad_value_of_one_env_refuses_the_whole_step(vector, case):
    changed, kind, words = VECTOR_STEPS[case]
    refused(vector, kind, words, lambda: vector.add(**vector_step(7, 3, **changed)))


def test_values_of_masked_envs_are_not_looked_at(vector):
    reward = np.array([1.0, np.nan, np.inf])
    ids = vector.add(**vector_step(5, 3, reward=reward, mask=np.array([True, False, False])))
    assert ids.tolist() == [(int(vector._rows.store.count[0]) - 1) * 3]


def test_masks_over_values_of_masked_envs_are_not_looked_at(vector):
    """Of each argument that has a value for each env."""
    records, last = np.array([True, False, False]), np.ones(3, bool)
    values = vector_step(5, 3, terminated=last, next_observation_mask=last, priority=np.ones(3))
    hidden = {}
    for name, value in values.items():
        hidden[name] = np.ma.masked_array(value, mask=False)
        hidden[name][~records] = np.ma.masked
    assert len(vector.add(**hidden, mask=records)) == 1
    for name, value in hidden.items():
        kind = errors.PriorityError if name == "priority" else errors.DtypeError
        changed = partial(vector.add, **values | {name: value})
        refused(vector, kind, [f"{name}: a value for each expected", "masked"], changed)


def test_a_next_observation_is_called_so(vector, shared):
    flat, floats = np.zeros(3, np.uint8), np.zeros((3, *FRAME))
    for next_observation, kind in ((flat, errors.ShapeError), (floats, errors.DtypeError)):
        last = {"terminated": np.ones(3, bool), "next_observation": next_observation}
        changed = partial(vector.add, **vector_step(5, 3, **last))
        refused(vector, kind, ["next_observation: "], changed)
    for terminated in (True, False):
        bad = step(5, terminated=terminated, next_observation=flat)
        refused(shared, errors.ShapeError, ["next_observation: "], partial(shared.add, **bad))
    shared.add(**step(5))
    ended = partial(shared.end_episode, next_observation=floats[0])
    refused(shared, errors.DtypeError, ["next_observation: "], ended)


def test_a_next_observation_that_is_not_stored_may_be_masked():
    """One answer, whatever the space is: only its shape is looked at."""
    box, seen, hidden = Box(0, 255, (3,), "uint8"), np.zeros(3, np.uint8), np.ma.masked_all(3, "u1")
    nested = Dict({"a": box})
    for space, there, value in ((box, seen, hidden), (nested, {"a": seen}, {"a": hidden})):
        with make(None, observation_space=space, stack_size=1, extras=None) as buffer:
            buffer.add(there, 0, 0.0, False, False, next_observation=value)
            with pytest.raises(errors.DtypeError, match=r"^next_observation.*masked"):
                buffer.add(there, 0, 0.0, True, False, next_observation=value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"log_probs": 1.0}, ["'log_probs' is unknown", "log_prob"]),
        ({"log_prob": GOOD}, ["'log_prob' is missing", "code"]),
        ({"log_prob": GOOD, "logprob": 0.0}, ["'log_prob' is missing", "'logprob' is unknown"]),
    ],
)
def test_unknown_and_missing_extras(shared, changed, words):
    values = step(7) | changed
    values = {name: value for name, value in values.items() if value is not GOOD}
    refused(shared, errors.ExtrasError, words, lambda: shared.add(**values))


def test_missing_key_of_a_dict_observation(tmp_path):
    space = Dict({"camera": Box(0, 255, FRAME, "uint8"), "speed": Box(-1, 1, (2,), "float32")})
    with make(tmp_path / "store", observation_space=space, extras=None) as buffer:
        good = {"camera": np.zeros(FRAME, np.uint8), "speed": np.zeros(2, np.float32)}
        for bad in ({"camera": good["camera"]}, good | {"sound": 1}, good["camera"], None):
            with pytest.raises(errors.InvalidInputError, match="observation"):
                buffer.add(bad, 1, 0.0, False, False)
        with pytest.raises(errors.ShapeError, match="observation/speed"):
            buffer.add(good | {"speed": np.zeros(3, np.float32)}, 1, 0.0, False, False)
        assert buffer.add_count == 0
        assert buffer.add(good, 1, 0.0, False, False).tolist() == [0]


# -- priorities and ids


@pytest.mark.parametrize(
    ("ids", "priorities", "kind", "words"),
    [
        ([3, 4], [1.0, np.nan], errors.PriorityError, ["nan"]),
        ([3, 4], [np.inf, 1.0], errors.PriorityError, ["inf"]),
        ([3, 4], [1.0, -0.5], errors.PriorityError, ["-0.5"]),
        ([3, 4], [1.0], errors.ShapeError, ["(2,)", "(1,)"]),
        ([3.0, 4.0], [1.0, 1.0], errors.DtypeError, ["float64"]),
        ([[3, 4]], [[1.0, 1.0]], errors.ShapeError, ["(1, 2)"]),
        ([3, 10_000], [9.0, 9.0], errors.UnknownIdError, ["10000"]),
        ([-1, 3], [9.0, 9.0], errors.UnknownIdError, ["-1"]),
    ],
)
def test_bad_priorities(shared, ids, priorities, kind, words):
    call = lambda: shared.update_priorities(np.array(ids), np.array(priorities))  # noqa: E731
    refused(shared, kind, words, call)


def test_priorities_that_are_no_numbers(shared):
    before = snapshot(shared)
    with pytest.raises(errors.InvalidInputError, match="priorit"):
        shared.update_priorities(np.array([3]), ["high"])
    assert_same(before, snapshot(shared))


def test_bad_ids_in_gather(shared):
    final = 17  # row 16 ended an episode
    for ids, kind, word in (
        ([10_000], errors.UnknownIdError, "10000"),
        ([-1], errors.UnknownIdError, "-1"),
        ([2, final], errors.NotSampleableError, str(final)),
        ([2.5], errors.DtypeError, "float64"),
    ):
        refused(shared, kind, [word], lambda ids=ids: shared.gather(np.array(ids)))


@pytest.mark.parametrize("size", [0, -1, 2.5, "many", True])
def test_bad_batch_sizes(shared, size):
    refused(shared, errors.InvalidInputError, [repr(size)], lambda: shared.sample(size))
    refused(shared, errors.InvalidInputError, [repr(size)], lambda: shared.prefetch(size))


BAD_BETAS = [-0.1, float("nan"), float("inf"), "large", [0.4], pytest.param(10**400, id="huge")]


@pytest.mark.parametrize("beta", BAD_BETAS)
def test_bad_beta(shared, beta):
    refused(shared, errors.InvalidInputError, ["beta"], lambda: shared.sample(beta=beta))


@pytest.mark.parametrize("beta", BAD_BETAS)
@pytest.mark.parametrize("kind", [diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer])
def test_bad_beta_of_any_buffer(tmp_path, kind, beta):
    options = {"observation_space": Box(0, 1, (2,)), "action_space": Discrete(2), "capacity": 20}
    with kind(tmp_path / "store", **options) as buffer:
        buffer.add(np.zeros(2), 1, 1.0, True, False)
        with pytest.raises(errors.InvalidInputError, match="beta"):
            buffer.sample(2, beta=beta)
        assert len(buffer.sample(2, beta=np.float32(0.5)).id) == 2
        if kind is diskreplay.PrioritizedReplayBuffer:
            with pytest.raises(errors.InvalidInputError, match="beta"):
                buffer.beta = beta
            buffer.beta = np.float32(0.5)
    if kind is diskreplay.PrioritizedReplayBuffer:
        with diskreplay.open(tmp_path / "store") as buffer:
            assert buffer.beta == 0.5


def test_nothing_to_sample(tmp_path):
    with make(tmp_path / "store") as buffer:
        with pytest.raises(errors.EmptyBufferError):
            buffer.sample()
        buffer.add(**step(0))
        with pytest.raises(errors.EmptyBufferError):
            buffer.sample()
        record(buffer, 5)
        assert buffer.sample().id.max() < 5


# -- options


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"capacity": 3}, errors.CapacityError, ["3", "4"]),
        ({"capacity": 11, "num_envs": 3}, errors.CapacityError, ["11", "12"]),
        ({"capacity": 0}, errors.InvalidInputError, ["capacity", "0"]),
        ({"capacity": 10.5}, errors.InvalidInputError, ["capacity", "10.5"]),
        ({"num_envs": 0}, errors.InvalidInputError, ["num_envs", "0"]),
        ({"stack_size": 0}, errors.InvalidInputError, ["stack_size", "0"]),
        ({"update_horizon": -1}, errors.InvalidInputError, ["update_horizon", "-1"]),
        ({"batch_size": 0}, errors.InvalidInputError, ["batch_size", "0"]),
        ({"segment_rows": 0}, errors.InvalidInputError, ["segment_rows", "0"]),
        ({"gamma": 1.5}, errors.InvalidInputError, ["gamma", "1.5"]),
        ({"gamma": float("nan")}, errors.InvalidInputError, ["gamma", "nan"]),
        ({"alpha": -1}, errors.InvalidInputError, ["alpha", "-1"]),
        ({"alpha": float("nan")}, errors.InvalidInputError, ["alpha", "nan"]),
        ({"beta": -1}, errors.InvalidInputError, ["beta", "-1"]),
        ({"weight_normalization": "sum"}, errors.InvalidInputError, ["'sum'", "'batch'"]),
        ({"compressor": "gzip"}, errors.InvalidInputError, ["gzip", "lz4"]),
        ({"compressor": {"sound": "lz4"}}, errors.InvalidInputError, ["sound"]),
        ({"name": "../x"}, errors.SuffixError, ["../x"]),
        ({"extras": {"x": "float32"}}, errors.ExtrasError, ["'x'", "float32"]),
        ({"extras": {"x": ((), "nothing")}}, errors.ExtrasError, ["'x'", "nothing"]),
        ({"extras": {"x": ((), "U5")}}, errors.DtypeError, ["'x'", "U5"]),
        ({"extras": {"a b": ((), "int8")}}, errors.ExtrasError, ["'a b'"]),
        ({"extras": {"../x": ((), "int8")}}, errors.ExtrasError, ["'../x'"]),
        ({"extras": {"_x": ((), "int8")}}, errors.ExtrasError, ["'_x'"]),
        ({"extras": {1: ((), "int8")}}, errors.ExtrasError, ["1"]),
    ],
)
def test_bad_options_make_no_store(tmp_path, options, kind, words):
    with pytest.raises(errors.DiskReplayError) as caught:
        make(tmp_path / "store", **options)
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    sorted(naming.RESERVED),
)
def test_reserved_names_of_extras(tmp_path, name):
    with pytest.raises(errors.ExtrasError, match=repr(name)):
        make(tmp_path / "store", extras={name: ((), "float32")})
    assert list(tmp_path.iterdir()) == []


def test_a_space_that_cannot_be_stored(tmp_path):
    from gymnasium.spaces import Text

    with pytest.raises(errors.InvalidInputError, match="Text"):
        make(tmp_path / "store", observation_space=Text(5))
    assert list(tmp_path.iterdir()) == []


# -- directories that hold something else


def contents(path):
    return {
        p.relative_to(path).as_posix(): p.read_bytes() if p.is_file() else None
        for p in sorted(path.rglob("*"))
    }


OTHER_SCHEMAS = {
    "frame shape": (
        {"observation_space": Box(0, 255, (16, 16), "uint8")}, ["(16, 16)", "(32, 32)"],
    ),
    "frame dtype": ({"observation_space": Box(0, 1, FRAME, "float32")}, ["float32", "uint8"]),
    "more extras": ({"extras": {"x": ((), "int8")}}, ["missing"]),
    "no extras": ({"extras": None}, ["'code'", "missing"]),
    "envs": ({"num_envs": 2}, ["env(s)", "1", "2"]),
    "actions": ({"action_space": Discrete(9)}, ["action_space", "'n': 9", "'n': 4"]),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_SCHEMAS)
def test_store_of_another_schema(tmp_path, case):
    changed, words = OTHER_SCHEMAS[case]
    with make(tmp_path / "store") as buffer:
        record(buffer, 30)
        before = snapshot(buffer)
    with pytest.raises(errors.SchemaError) as caught:
        make(tmp_path / "store", **changed)
    assert all(word in str(caught.value) for word in (*words, str(tmp_path / "store")))
    with make(tmp_path / "store") as buffer:
        after = snapshot(buffer)
        # The episode under way was cut, so fewer of its rows can be sampled; the rows are the same.
        assert after[0]["add_count"] == before[0]["add_count"]
        assert_same(({}, before[1]), ({}, after[1]))
        goes_on(buffer)


@pytest.mark.parametrize("case", OTHER_SCHEMAS)
def test_checkpoint_of_another_schema(tmp_path, buffer, case):
    changed, words = OTHER_SCHEMAS[case]
    with make(tmp_path / "other", **changed) as other:
        other.save(tmp_path / "checkpoints", 1)
    refused(buffer, errors.SchemaError, words, lambda: buffer.load(tmp_path / "checkpoints", 1))


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document["attributes"]["diskreplay"])
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("version", [1, 3, 99, 0, "2", None])
def test_other_format_version(tmp_path, version):
    path = tmp_path / "store"
    with make(path) as buffer:
        record(buffer, 30)
    rewrite(path / "zarr.json", lambda a: a.update(format_version=version))
    before = contents(path)
    for attempt in (
        lambda: make(path),
        lambda: diskreplay.open(path),
        lambda: diskreplay.open(path, mode="a"),
    ):
        with pytest.raises(errors.FormatError, match=f"version {version!r}"):
            attempt()
        assert contents(path) == before
    rewrite(path / "zarr.json", lambda a: a.update(format_version=2))
    with make(path) as buffer:
        assert buffer.add_count == 30


def test_checkpoint_of_a_newer_format(tmp_path, buffer):
    at = buffer.save(tmp_path / "checkpoints", 3)
    text = (at / "zarr.json").read_text().replace('"format_version": 2', '"format_version": 7')
    (at / "zarr.json").write_text(text)
    listing = json.loads((at / "is_final/saved/manifest.json").read_text())
    listing["files"]["zarr.json"] = [len(text), google_crc32c.value(text.encode())]
    (at / "is_final/saved/manifest.json").write_text(json.dumps(listing))
    refused(
        buffer, errors.FormatError, ["version 7", "up to 2"],
        lambda: buffer.load(tmp_path / "checkpoints", 3),
    )  # fmt: skip


def test_foreign_zarr_group(tmp_path):
    import zarr

    group = zarr.create_group(tmp_path / "store")
    group.create_array("observation", shape=(4,), dtype="u1")[:] = 7
    before = contents(tmp_path)
    for attempt in (make, diskreplay.open, lambda path: diskreplay.open(path, mode="a")):
        with pytest.raises(errors.FormatError, match="not a diskreplay store"):
            attempt(tmp_path / "store")
        assert contents(tmp_path) == before


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'{"attributes": 3}'])
def test_damaged_group_document(tmp_path, text):
    path = tmp_path / "store"
    make(path).close()
    good = (path / "zarr.json").read_bytes()
    (path / "zarr.json").write_bytes(text)
    for attempt in (make, diskreplay.open):
        with pytest.raises(errors.FormatError, match=str(path)):
            attempt(path)
    (path / "zarr.json").write_bytes(good)
    make(path).close()


def test_directory_with_other_files(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.tex").write_text("work of years")
    with pytest.raises(errors.FormatError, match=r"thesis\.tex"):
        make(tmp_path / "store")
    assert (tmp_path / "store" / "thesis.tex").read_text() == "work of years"
    assert not (tmp_path / "store" / "zarr.json").exists()


def test_a_file_where_the_directory_should_be(tmp_path):
    path = tmp_path / "store"
    path.write_text("mine")
    for attempt, kind in (
        (make, errors.StorageError),
        (diskreplay.open, errors.FormatError),
        (lambda path: diskreplay.open(path, mode="a"), errors.FormatError),
    ):
        with pytest.raises(kind, match=str(path)):
            attempt(path)
    with pytest.raises(errors.StorageError, match=str(path)):
        make(path / "below")
    assert path.read_text() == "mine"


def test_no_store_there(tmp_path):
    for mode in ("r", "a"):
        with pytest.raises(errors.FormatError, match="no such directory"):
            diskreplay.open(tmp_path / "nowhere", mode=mode)
    with pytest.raises(errors.InvalidInputError, match="'w'"):
        diskreplay.open(tmp_path / "nowhere", mode="w")
    assert list(tmp_path.iterdir()) == []


# -- a second writer


def test_second_writer_in_this_process(tmp_path, buffer):
    for attempt in (make, lambda path: diskreplay.open(path, mode="a")):
        refused(
            buffer, errors.LockedError, [str(os.getpid()), 'mode="r"'],
            lambda attempt=attempt: attempt(buffer.path),
        )  # fmt: skip


def test_second_writer_in_another_process(buffer):
    code = """
import sys, diskreplay
try:
    diskreplay.open(sys.argv[1], mode="a")
except diskreplay.LockedError as error:
    print(error)
"""
    before = snapshot(buffer)
    said = processes.run(code, buffer.path, check=True).stdout
    assert f"process {os.getpid()}" in said
    assert str(buffer.path) in said
    assert_same(before, snapshot(buffer))
    goes_on(buffer)


def test_the_lock_is_free_after_close(tmp_path):
    make(tmp_path / "store").close()
    make(tmp_path / "store").close()


# -- checkpoints


@pytest.mark.parametrize(
    "suffix",
    [
        *("../x", "", ".x", "a/b", "..", ".", "a b", "x\n", "é"),
        *(True, 1.0, np.float32(1), -1, np.int8(-1), b"1", Path("1"), (1,), [1], np.arange(1)),
        None,
    ],
    ids=repr,
)
def test_invalid_suffix(tmp_path, buffer, suffix):
    """What is neither an integer nor a legal string; to `load`, None is the newest."""
    directory = tmp_path / "checkpoints"
    buffer.save(directory, 1)
    before = contents(tmp_path)
    for call in (buffer.save, buffer.export_gz, *([] if suffix is None else [buffer.load])):
        refused(
            buffer, errors.SuffixError, [repr(suffix)],
            lambda call=call: call(directory, suffix),
        )  # fmt: skip
    assert contents(directory) == {k[12:]: v for k, v in before.items() if k[:12] == "checkpoints/"}


def test_suffixes_that_are_the_same_number(tmp_path, buffer):
    directory = tmp_path / "checkpoints"
    for suffix in (7, np.int64(7), np.uint8(7), "7"):
        assert buffer.save(directory, suffix) == directory / "replay_ckpt.7"
    buffer.load(directory, np.int32(7))
    buffer.load(directory, None)


@pytest.mark.parametrize("inside", ["", "checkpoints", "a/b"])
def test_checkpoints_inside_the_store(tmp_path, buffer, inside):
    """A load replaces the store's directory, and would take them with it."""
    (tmp_path / "link").symlink_to(buffer.path)
    real = buffer.path / inside
    for directory in (real, tmp_path / "link" / inside):
        for call in (buffer.save, buffer.export_gz):
            refused(
                buffer, errors.InvalidInputError,
                [str(real), f"is inside the store {buffer.path}", "choose a path beside it"],
                lambda call=call, directory=directory: call(directory, 1),
            )  # fmt: skip


@pytest.mark.parametrize("inside", ["", "a/b"])
def test_checkpoints_inside_a_checkpoint(tmp_path, buffer, inside):
    """It goes with all that is in it when it is replaced or retired."""
    saved = buffer.save(tmp_path / "checkpoints", 7)
    before = contents(saved)
    for call in (buffer.save, buffer.export_gz):
        refused(
            buffer, errors.InvalidInputError,
            [f"is inside the checkpoint {saved}", "choose a path beside it"],
            lambda call=call: call(saved / inside, 8),
        )  # fmt: skip
    assert contents(saved) == before


def test_missing_checkpoint(tmp_path, buffer):
    directory = tmp_path / "checkpoints"
    kind = errors.CheckpointNotFoundError
    refused(buffer, kind, [str(directory)], lambda: buffer.load(directory))
    refused(buffer, kind, ["replay_ckpt.4", "none"], lambda: buffer.load(directory, 4))
    buffer.save(directory, 7)
    refused(buffer, kind, ["replay_ckpt.4", "7"], lambda: buffer.load(directory, 4))
    assert issubclass(kind, FileNotFoundError)


def files_of(path):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())


def test_each_file_of_a_checkpoint_removed_in_turn(tmp_path, buffer):
    at = buffer.save(tmp_path / "checkpoints", 1)
    record(buffer, 5)
    before = snapshot(buffer)
    names = files_of(at)
    assert {"zarr.json", "is_final/saved/manifest.json", "observation/c.0.0.0.0"} <= set(names)
    for name in names:
        (at / name).rename(tmp_path / "aside")
        with pytest.raises(FileNotFoundError) as caught:
            buffer.load(tmp_path / "checkpoints", 1)
        assert type(caught.value) is errors.IncompleteCheckpointError, name
        assert name in str(caught.value)
        (tmp_path / "aside").rename(at / name)
        assert not list(tmp_path.glob(".*")), name
    assert_same(before, snapshot(buffer))
    goes_on(buffer)
    buffer.load(tmp_path / "checkpoints", 1)
    assert buffer.add_count == 60


def test_each_file_of_a_checkpoint_cut_short(tmp_path, buffer):
    at = buffer.save(tmp_path / "checkpoints", 1)
    record(buffer, 5)
    before = snapshot(buffer)
    for name in files_of(at):
        whole = (at / name).read_bytes()
        if (at / name).stat().st_nlink > 1:  # the live store's own segment: a copy of it instead
            (at / name).unlink()
        for cut in {0, len(whole) // 2, len(whole) - 1} - {len(whole)}:
            (at / name).write_bytes(whole[:cut])
            with pytest.raises((errors.CheckpointError, errors.FormatError)) as caught:
                buffer.load(tmp_path / "checkpoints", 1)
            assert name in str(caught.value)
        (at / name).write_bytes(whole)
    assert_same(before, snapshot(buffer))
    goes_on(buffer)
    buffer.load(tmp_path / "checkpoints", 1)
    assert buffer.add_count == 60


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b"nonsense", b'{"files": 3}', b'{"files": {}}',
        b'{"files": {"zarr.json": 7}}', b'{"files": {"zarr.json": []}}',
        b'{"files": {"zarr.json": ["a", 1]}}',
        b'{"files": {"../../secret": [1, 2], "zarr.json": [1, 2]}}',
    ],
)  # fmt: skip
def test_damaged_manifest(tmp_path, buffer, text):
    at = buffer.save(tmp_path / "checkpoints", 1)
    (at / "is_final/saved/manifest.json").write_bytes(text)
    before = snapshot(buffer)
    with pytest.raises((errors.CheckpointError, errors.FormatError), match=str(at)):
        buffer.load(tmp_path / "checkpoints", 1)
    assert_same(before, snapshot(buffer))
    goes_on(buffer)


def test_a_checkpoint_is_not_opened_for_writing(tmp_path, buffer):
    at = buffer.save(tmp_path / "checkpoints", 1)
    before = contents(at)
    for attempt in (make, lambda path: diskreplay.open(path, mode="a")):
        refused(
            buffer, errors.FormatError, ["checkpoint", "mode='r'"],
            lambda attempt=attempt: attempt(at),
        )  # fmt: skip
    assert contents(at) == before


# -- the disk


def full(path, *_arguments):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise translated(error, path, "cannot allocate the segment")


@pytest.mark.parametrize("num_envs", [1, 2])
def test_full_disk_while_adding(tmp_path, monkeypatch, num_envs):
    # Raw and with room: evicted segments and sealed tails are used again without allocating.
    options = {"num_envs": num_envs, "compressor": "raw", "capacity": 2000}
    with make(tmp_path / "store", **options) as buffer:

        def add(i):
            buffer.add(**(step(i) if num_envs == 1 else vector_step(i, num_envs)))

        for i in range(40):
            add(i)
        with monkeypatch.context() as patched:
            patched.setattr(files, "allocate", full)
            added = 0

            def add_until_refused():
                nonlocal added
                while added < 200:  # spares are used up first
                    add(40 + added)
                    added += 1

            with pytest.raises(errors.DiskFullError) as caught:
                add_until_refused()
            assert caught.value.errno == errno.ENOSPC
            assert str(tmp_path / "store") in str(caught.value)
            before = snapshot(buffer)
            with pytest.raises(errors.DiskFullError):
                add(40 + added)
            assert_same(before, snapshot(buffer))
            buffer.update_priorities(buffer.sample().id, np.ones(8))
        before = snapshot(buffer)
        goes_on(buffer)
        assert buffer.add_count == before[0]["add_count"] + num_envs
    with make(tmp_path / "store", **options) as buffer:
        rewards = buffer._rows.store.columns["reward"].read(0, 0, 40)
        is_final = buffer._rows.store.columns["is_final"].read(0, 0, 40)
        assert rewards[~is_final].tolist() == list(range((~is_final).sum()))


def test_full_disk_while_creating(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(files, "allocate", full)
        patched.setattr(files, "write", full)
        with pytest.raises(errors.DiskFullError, match="free some space"):
            make(tmp_path / "store")
    with make(tmp_path / "store") as buffer:
        record(buffer, 10)
        goes_on(buffer)


def test_full_disk_while_saving(tmp_path, monkeypatch, buffer):
    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        refused(
            buffer, errors.DiskFullError, ["free some space"],
            lambda: buffer.save(tmp_path / "checkpoints", 1),
        )  # fmt: skip
        assert files_of(tmp_path / "checkpoints") == []
    buffer.save(tmp_path / "checkpoints", 1)


def test_full_disk_while_loading(tmp_path, monkeypatch, buffer):
    buffer.save(tmp_path / "checkpoints", 1)
    record(buffer, 7)
    for name in ("allocate", "write"):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, full)
            refused(
                buffer, errors.DiskFullError, ["free some space"],
                lambda: buffer.load(tmp_path / "checkpoints", 1),
            )  # fmt: skip
            assert not list(tmp_path.glob(".*"))
    buffer.load(tmp_path / "checkpoints", 1)
    assert buffer.add_count == 60


def fill_a_disk(path, make_room):
    """Record into a new store at `path` until there is no room, and on after `make_room`."""
    buffer = make(path, compressor="raw", capacity=None)
    with pytest.raises(errors.DiskFullError, match="free some space"):
        record(buffer, 5000)
    reached = buffer.add_count
    assert reached > 100
    before = snapshot(buffer)
    with pytest.raises(errors.DiskFullError):
        record(buffer, 1)
    assert_same(before, snapshot(buffer))
    make_room()
    record(buffer, 20)
    buffer.close()
    with diskreplay.open(path) as reader:
        assert reader.add_count == reached + 20
        rewards = reader._rows.store.columns["reward"].read(0, 0, int(reader._rows.store.count[0]))
        is_final = reader._rows.store.columns["is_final"].read(
            0, 0, int(reader._rows.store.count[0])
        )
        assert rewards[~is_final].tolist() == list(range(reached + 20))


ON_A_DISK = """
import sys
from pathlib import Path
from tests.disks import mount
from tests.test_bad_input import fill_a_disk
disk = sys.argv[1]
mount(disk, "size=1m")
fill_a_disk(Path(disk, "store"), lambda: mount(disk, "remount", "size=8m"))
print("filled")
"""


def test_a_disk_that_is_really_full(tmp_path, monkeypatch):
    """Where nothing can be mounted, the same with a counted budget."""
    if can_mount():
        command, options = alone("-c", ON_A_DISK, tmp_path)
        done = subprocess.run(command, capture_output=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout == "filled\n"
        return
    budget, allocate = [1 << 20], files.allocate

    def counted(path, size):
        if budget[0] < size:
            full(path)
        budget[0] -= size
        return allocate(path, size)

    monkeypatch.setattr(files, "allocate", counted)
    fill_a_disk(tmp_path / "store", monkeypatch.undo)


NO_PATHS = {
    "NUL": "a\0b", "bytes": b"name", "number": 5, "list": ["a"], "surrogate": "a\ud800",
    "URL": "s3://bucket/run",
}  # fmt: skip
WAYS = {
    "make": ("path", lambda buffer, path: make(path)),
    "shared": ("path", lambda buffer, path: diskreplay.shared(path)),
    "open": ("path", lambda buffer, path: diskreplay.open(path)),
    "append": ("path", lambda buffer, path: diskreplay.open(path, "a")),
    "union": ("path", lambda buffer, path: diskreplay.ReplayUnion([buffer, path])),
    "checkpoints": ("directory", lambda buffer, path: diskreplay.checkpoints(path)),
    "attachment": ("directory", lambda buffer, path: diskreplay.attachment(path)),
    "save": ("checkpoint_dir", lambda buffer, path: buffer.save(path, 1)),
    "load": ("checkpoint_dir", lambda buffer, path: buffer.load(path)),
    "save a union": ("path", lambda buffer, path: diskreplay.ReplayUnion([buffer]).save(path)),
    "load a union": ("path", lambda buffer, path: diskreplay.ReplayUnion([buffer]).load(path)),
    "read slots": ("path", lambda buffer, path: Slots.reader(path)),
    "read npz": ("path", lambda buffer, path: from_npz(path, "new")),
    "read csv": ("path", lambda buffer, path: from_csv(path, "new")),
    "write npz": ("path", lambda buffer, path: to_npz(buffer, path)),
    "write csv": ("path", lambda buffer, path: to_csv(buffer, path)),
    "report": ("path", lambda buffer, path: save_report(buffer, path)),
}


@pytest.mark.parametrize("kind", NO_PATHS)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_path(shared, tmp_path, monkeypatch, way, kind):
    if kind == "URL" and way in ("save", "load"):
        return  # they take one
    monkeypatch.chdir(tmp_path)
    argument, call = WAYS[way]
    with pytest.raises(errors.InvalidInputError) as caught:
        call(shared, NO_PATHS[kind])
    words = {"URL": "local disk", "NUL": "no path", "surrogate": "no path"}
    if way != "union":
        assert str(caught.value).startswith(f"{argument}: ")
        assert words.get(kind, "a str or a Path expected") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


WITHOUT_PERMISSION = """
import sys
from gymnasium.spaces import Box, Discrete
import diskreplay
options = dict(observation_space=Box(0, 255, (32, 32), "uint8"), action_space=Discrete(4),
    capacity=400, extras={"log_prob": ((), "float32"), "code": ((2,), "int8")})
store, fresh, checkpoints = sys.argv[1:]
def attempt(what, call):
    try:
        call()
    except diskreplay.DiskReplayError as error:
        print(what, type(error).__name__, isinstance(error, PermissionError), error.errno, error)
    else:
        print(what, "went through")
attempt("reopen", lambda: diskreplay.PrioritizedReplayBuffer(store, **options))
attempt("append", lambda: diskreplay.open(store, mode="a"))
attempt("create", lambda: diskreplay.PrioritizedReplayBuffer(fresh, **options))
with diskreplay.PrioritizedReplayBuffer(None, **options) as own:
    attempt("save", lambda: own.save(checkpoints, 1))
    own.add(own.observation_space.sample(), 1, 1.0, False, False, log_prob=0.0, code=[1, 2])
    print("add_count", own.add_count)
with diskreplay.open(store) as reader:
    print("read", reader.add_count, len(reader.sample(4).id))
"""


def test_read_only_directory(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 30)
    place = tmp_path / "read-only"
    shutil.copytree(tmp_path / "store", place / "store")
    (place / "checkpoints").mkdir()
    writable = [place, *place.rglob("*")]
    for path in writable:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = contents(place)
    try:
        places = (place / "store", place / "fresh", place / "checkpoints")
        said = run_under_modes(WITHOUT_PERMISSION, *places).splitlines()
        assert contents(place) == before
    finally:
        for path in writable:
            path.chmod(0o755 if path.is_dir() else 0o644)
    for line, what in zip(said[:4], ("reopen", "append", "create", "save"), strict=True):
        assert line.startswith(f"{what} StorePermissionError True {errno.EACCES} "), said
        assert str(place) in line
        assert "owner and mode" in line
    assert said[4:] == ["add_count 1", "read 30 4"]


LOCKED_OUT = """
import os, sys
from gymnasium.spaces import Box, Discrete
import diskreplay
options = dict(observation_space=Box(0, 255, (32, 32), "uint8"), action_space=Discrete(4),
    capacity=400, extras={"log_prob": ((), "float32"), "code": ((2,), "int8")})
store, checkpoints, own_store, own_checkpoints, inner = sys.argv[1:]
def make(path):
    return diskreplay.PrioritizedReplayBuffer(path, **options)
def add(buffer):
    buffer.add(buffer.observation_space.sample(), 1, 1.0, False, False, log_prob=0.0, code=[1, 2])
own = make(own_store)
for _ in range(30):
    add(own)
own.save(own_checkpoints, 1)
attempt("read", lambda: diskreplay.open(store))
attempt("append", lambda: diskreplay.open(store, mode="a"))
attempt("reopen", lambda: make(store))
attempt("union", lambda: diskreplay.ReplayUnion([own, store]))
attempt("load the newest", lambda: own.load(checkpoints))
attempt("load a number", lambda: own.load(checkpoints, 1))
attempt("attachment", lambda: diskreplay.attachment(checkpoints, name="a"))
attempt("list", lambda: diskreplay.checkpoints(checkpoints))
attempt("save", lambda: own.save(checkpoints, 2))
for place in (own_store, own_store + "/is_final", own_store + "/is_final/live"):
    os.chmod(place, int(inner, 8))
    attempt("load into " + os.path.relpath(place, own_store), lambda: own.load(own_checkpoints))
    os.chmod(place, 0o755)
os.chmod(own_checkpoints, int(inner, 8))
attempt("save beside", lambda: own.save(own_checkpoints, 3))
attempt("load", lambda: own.load(own_checkpoints))
os.chmod(own_checkpoints, 0o755)
add(own)
assert own.add_count == 31
own.save(own_checkpoints, 4)
own.load(own_checkpoints)
own.close()
"""


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_directory_that_may_not_be_entered(tmp_path, mode):
    """That of another user, or of this one, whose mode changes while it is open."""
    with make(tmp_path / "theirs") as buffer:
        record(buffer, 30)
        buffer.save(tmp_path / "saved", 1, attachments={"a": b"x"})
    closed = [tmp_path / "theirs", tmp_path / "saved"]
    for path in closed:
        path.chmod(mode)
    places = [*closed, tmp_path / "own", tmp_path / "own-saved", f"{mode:o}"]
    try:
        said = run_under_modes(LOCKED_OUT, *places).splitlines()
    finally:
        for path in closed:
            path.chmod(0o755)
    assert len(said) == 14
    for line in said:
        check_refused(line, tmp_path)


NOT_LISTED = """
import pathlib, sys
from gymnasium.spaces import Box, Discrete
import diskreplay
from diskreplay.check.verify import verify
from diskreplay.cli.transfer import _told_from
from diskreplay.convert import gz_checkpoint, output
from diskreplay.inspection.overview import overview_of
from diskreplay.inspection.recorded_times import recorded_times
store, saved, empty = map(pathlib.Path, sys.argv[1:])
spaces = dict(observation_space=Box(0, 255, (32, 32), "uint8"), action_space=Discrete(4))
own = diskreplay.ReplayBuffer(None, capacity=40, **spaces)
def sample(path):
    with diskreplay.open(path) as buffer:
        buffer.sample()
attempt("read", lambda: sample(store))
attempt("append", lambda: diskreplay.open(store, mode="a"))
attempt("read a checkpoint", lambda: sample(saved / "replay_ckpt.1"))
attempt("list", lambda: diskreplay.checkpoints(saved))
attempt("load", lambda: own.load(saved))
attempt("create", lambda: diskreplay.ReplayBuffer(empty, capacity=40, **spaces))
attempt("verify", lambda: verify(store))
attempt("look", lambda: overview_of(store))
attempt("look at times", lambda: recorded_times(store, own.bounds[:, 1]))
attempt("newest", lambda: gz_checkpoint.newest(empty))
attempt("found", lambda: gz_checkpoint.found(empty, 1))
attempt("export", output.new_files(empty, ".parquet", overwrite=True).__enter__)
attempt("import", lambda: _told_from(empty))
"""
NEEDING = {  # a package that may not be installed
    "ray": """
from diskreplay.ray.sharded_checkpoint import CheckpointDirectory
attempt("shards", lambda: CheckpointDirectory(empty, "replay").suffixes())
""",
    "torch": """
from diskreplay.compat import reagent
from diskreplay.integrations import cleanrl
attempt("CleanRL", lambda: cleanrl.ReplayBuffer(100, *spaces.values(), path=empty))
attempt("ReAgent", lambda: reagent.ReplayBuffer(
    observation_shape=(4,), stack_size=1, replay_capacity=9, batch_size=2, path=empty
))
""",
}


def test_a_directory_that_may_be_entered_but_not_listed(tmp_path):
    with make(tmp_path / "theirs") as buffer:
        record(buffer, 30)
        buffer.save(tmp_path / "saved", 1)
    (tmp_path / "empty").mkdir()
    installed = (code for name, code in NEEDING.items() if importlib.util.find_spec(name))
    code = NOT_LISTED + "".join(installed)
    places = [tmp_path / "theirs", tmp_path / "saved", tmp_path / "empty"]
    closed = [Path(base) for place in places for base, _dirs, _names in os.walk(place)]
    for path in closed:
        path.chmod(0o311)
    try:
        said = run_under_modes(code, *places).splitlines()
    finally:
        for path in closed:
            path.chmod(0o755)
    assert len(said) == code.count("attempt(") >= 13
    for line in said:
        check_refused(line, tmp_path)


# -- the wrong moment


def test_closed_buffer(tmp_path):
    buffer = make(tmp_path / "store")
    record(buffer, 20)
    ids = buffer.sample().id
    buffer.close()
    buffer.close()
    for call in (
        lambda: buffer.add(**step(1)),
        buffer.sample,
        lambda: buffer.gather(ids),
        lambda: buffer.update_priorities(ids, np.ones(len(ids))),
        buffer.prefetch,
        buffer.flush,
        buffer.end_episode,
        buffer.statistics,
        lambda: len(buffer),
        lambda: buffer.save(tmp_path / "checkpoints", 1),
        lambda: buffer.load(tmp_path / "checkpoints", 1),
    ):
        with pytest.raises(errors.ClosedError, match=str(tmp_path / "store")):
            call()
    assert buffer.closed
    assert "closed" in repr(buffer)
    assert not (tmp_path / "checkpoints").exists()
    with make(tmp_path / "store") as again:
        assert again.add_count == 20


def test_read_only_buffer(tmp_path, buffer):
    at = buffer.save(tmp_path / "checkpoints", 1)
    for path in (buffer.path, at):
        before = contents(at)
        with diskreplay.open(path) as reader:
            for call in (
                lambda reader=reader: reader.add(**step(1)),
                lambda reader=reader: reader.update_priorities(np.array([3]), np.ones(1)),
                reader.flush,
                reader.end_episode,
                lambda reader=reader: reader.save(tmp_path / "others", 1),
                lambda reader=reader: reader.load(tmp_path / "checkpoints", 1),
            ):
                refused_reader(reader, call)
        assert contents(at) == before
    assert not (tmp_path / "others").exists()
    goes_on(buffer)


def refused_reader(reader, call):
    before = snapshot(reader)
    with pytest.raises(errors.ReadOnlyError, match='mode="r"'):
        call()
    assert_same(before, snapshot(reader))


def test_a_buffer_is_not_pickled(shared):
    import copy
    import pickle

    refused(shared, errors.InvalidInputError, ["pickled"], lambda: pickle.dumps(shared))
    refused(shared, errors.InvalidInputError, ["copied"], lambda: copy.deepcopy(shared))


FORKED = """
import os, sys
from gymnasium.spaces import Box, Discrete
import numpy as np
import diskreplay

path = None if sys.argv[1] == "temporary" else sys.argv[1]
how = sys.argv[2]
buffer = diskreplay.PrioritizedReplayBuffer(path, observation_space=Box(0, 255, (32, 32), "uint8"),
    action_space=Discrete(4), capacity=400, segment_rows=16, compressor="lz4", seed=1)

def add(i):
    return buffer.add(np.full((32, 32), i % 251, np.uint8), i % 4, float(i), False, False)

def listing():
    return sorted((str(p), p.stat().st_mtime_ns) for p in buffer.path.rglob("*")
        if "spare" not in p.name)

from pathlib import Path
for i in range(50):
    add(i)
buffer.flush()
before = listing()
sys.stdout.flush()
child = os.fork()
if child == 0:
    for call in (lambda: add(50), buffer.flush, lambda: buffer.save("/nowhere/at/all", 1),
                 lambda: buffer.load("/nowhere/at/all", 1), buffer.end_episode,
                 lambda: buffer.update_priorities(np.array([1]), np.array([1.0]))):
        try:
            call()
        except diskreplay.ForkedError as error:
            assert str(os.getpid()) in str(error) and str(os.getppid()) in str(error), error
        else:
            os._exit(3)
    if how == "close":
        buffer.close()
        assert buffer.closed
    elif how == "drop":
        del add, call
        buffer = None
        import gc; gc.collect()
    elif how == "_exit":
        os._exit(0)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert listing() == before
assert (buffer.path / "is_final" / "live" / "lock").exists()
try:
    diskreplay.open(buffer.path, mode="a")
except diskreplay.LockedError:
    pass
else:
    sys.exit("the child freed the lock")
for i in range(50, 100):
    add(i)
assert buffer.add_count == 100
batch = buffer.sample(32)
assert (batch.observation[:, 0, 0] == batch.id % 251).all()
directory = buffer.path
buffer.close()
print(directory.exists())
"""


@pytest.mark.costly(2)
@pytest.mark.parametrize("how", ["exit", "_exit", "close", "drop"])
@pytest.mark.parametrize("temporary", [False, True])
def test_fork(tmp_path, how, temporary):
    place = "temporary" if temporary else tmp_path / "store"
    said = processes.run(FORKED, place, how, check=True).stdout
    assert said.splitlines() == [str(not temporary)]
    if not temporary:
        with diskreplay.open(tmp_path / "store") as reader:
            assert reader.add_count == 100


@pytest.mark.parametrize("key", ["zarr.json", "a/b", "..", "a..b", ".hidden", "x" * 201, ""])
def test_keys_that_cannot_be_directories(tmp_path, key):
    space = Dict({key: Box(0, 1, (2,), "float32")})
    with pytest.raises(errors.InvalidInputError, match="directory"):
        make(tmp_path / "store", observation_space=space)
    assert list(tmp_path.iterdir()) == []


# -- the wrong store, the wrong checkpoint, a file that is gone


@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"observation_space": Box(0, 255, (8, 8), "uint8")},
        {"action_space": Discrete(5)},
        {"num_envs": 2},
        {"extras": None},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_another_store_and_a_smaller_capacity(tmp_path, wrong, shrink):
    """It said that the capacity was too small, and that ``shrink=True`` would do."""
    with make(tmp_path / "store") as buffer:
        record(buffer, 100)
    before = contents(tmp_path / "store")
    with pytest.raises(errors.SchemaError, match="store"):
        make(tmp_path / "store", **wrong, capacity=40, shrink=shrink)
    after = contents(tmp_path / "store")
    lock = "is_final/live/lock"
    assert {**after, lock: None} == {**before, lock: None}
    with pytest.raises(errors.CapacityError, match="shrink=True"):
        make(tmp_path / "store", capacity=40)
    with make(tmp_path / "store") as buffer:
        assert buffer.add_count >= 100


def test_a_checkpoint_by_its_own_path(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 30)
        rows = buffer.add_count
        saved = int(np.diff(buffer.bounds).sum())
        first = buffer.save(tmp_path / "checkpoints", 1)
        record(buffer, 30)
        buffer.save(tmp_path / "checkpoints", 2)
        loaded = buffer.load(first)
        assert (loaded.path, loaded.number, loaded.rows) == (first, 1, saved)
        assert buffer.add_count == rows
        buffer.load(tmp_path / "checkpoints")
        buffer.load(diskreplay.checkpoints(tmp_path / "checkpoints")[0].path)
        assert buffer.add_count == rows
        with pytest.raises(errors.CheckpointNotFoundError, match="a checkpoint itself") as caught:
            buffer.load(first, 2)
        assert f"give {tmp_path / 'checkpoints'} to load 2" in str(caught.value)
        assert buffer.add_count == rows


def test_checkpoints_that_are_not_there(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 30)
        buffer.save(tmp_path / "checkpoints", 1)
        for suffix in (None, 3):
            with pytest.raises(errors.CheckpointNotFoundError, match="no such directory"):
                buffer.load(tmp_path / "nothing", suffix)
    with make(tmp_path / "other", name="foo") as buffer:
        for suffix in (None, 1):
            with pytest.raises(errors.CheckpointNotFoundError, match="there are some of 'replay'"):
                buffer.load(tmp_path / "checkpoints", suffix)
    (tmp_path / "empty").mkdir()
    with make(tmp_path / "third") as buffer:
        with pytest.raises(errors.CheckpointNotFoundError) as caught:
            buffer.load(tmp_path / "empty")
        assert ";" not in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "rows"),
    [
        ("observation/c.2.0.0.0", "rows 32 to 47 of env 0 and of 1 more env;"),
        ("observation/c.6.0.0.0", "rows 96 to 99 of env 0 and of 1 more env;"),
        ("reward/c.0.0", "rows 0 to 99 of env 0 and of 1 more env;"),
    ],
)
def test_a_file_of_the_store_is_gone(tmp_path, gone, rows):
    """It was said that nothing was lost, and that calling again would do."""
    with make(tmp_path / "store", num_envs=2, extras=None) as buffer:
        for i in range(100):
            both = np.full((2, *FRAME), i, np.uint8)
            buffer.add(both, [1, 2], [i, i], [False, False], [False, False])
        checkpoint = buffer.save(tmp_path / "checkpoints", 1)
        with diskreplay.open(tmp_path / "store") as reader:  # beside a writer
            assert reader.add_count == 200
        whole = tmp_path / "copy"
        shutil.copytree(checkpoint, whole)
        for at in (checkpoint, whole):
            (at / gone).unlink()
            with pytest.raises(errors.CorruptSegmentError, match=rows) as caught:
                diskreplay.open(at)
            assert str(caught.value).startswith(f"{at / gone}: missing")
            assert "load another checkpoint" in str(caught.value)
    (tmp_path / "store" / gone).unlink()
    for call in (
        lambda: diskreplay.open(tmp_path / "store"),
        lambda: diskreplay.open(tmp_path / "store", "a"),
        lambda: make(tmp_path / "store", num_envs=2, extras=None),
    ):
        with pytest.raises(errors.CorruptSegmentError, match=rows) as caught:
            call()
        assert str(caught.value).startswith(f"{tmp_path / 'store' / gone}: missing")
        assert f"diskreplay verify {tmp_path / 'store'} --repair" in str(caught.value)


def test_a_value_that_is_none_of_the_choices_is_said_with_all_of_them():
    one_of("axis", None, ("auto", None, -1))
    with pytest.raises(errors.InvalidInputError) as caught:
        one_of("axis", "x" * 90, ("auto", None, -1))
    assert str(caught.value) == f"axis: 'auto', None or -1 expected, found '{'x' * 59}"
