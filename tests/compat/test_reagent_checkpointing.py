"""Checkpoints of ReAgent's buffers: the original's files, read and written, and our own."""

import gzip
import json
import os
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from diskreplay.compat.reagent import (  # noqa: E402
    CHECKPOINT_DURATION,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayElement,
)
from diskreplay.convert.unpickling import pickled_sum_tree  # noqa: E402
from diskreplay.errors import (  # noqa: E402
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DiskFullError,
    FormatError,
    SchemaError,
    StorageError,
    SuffixError,
)
from diskreplay.store import files  # noqa: E402
from tests.compat.reagent_model import load_array, original_sum_tree, save_array  # noqa: E402
from tests.compat.test_reagent_buffer import (  # noqa: E402
    SLOW,
    add_to_both,
    check_batch,
    check_state,
    make,
    make_model,
    setups,
)

pytestmark = pytest.mark.usefixtures("small_columns")


def fill_both(buffer, model, setup, rng, rows, prioritized):
    for _ in range(rows):
        add_to_both(buffer, model, setup, rng, prioritized)


@pytest.mark.parametrize("prioritized", [False, True])
@settings(SLOW, max_examples=6)
@given(setup=setups())
def test_what_the_original_saved_is_loaded(prioritized, setup, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ckpt")
    rng = np.random.default_rng(setup["seed"])
    with make(setup, prioritized) as buffer:
        model = make_model(setup)
        rows = int(rng.integers(0, 3 * setup["capacity"]))
        with make(setup, prioritized) as other:
            fill_both(other, model, setup, rng, rows, prioritized)
        model.save(directory, 3, prioritized=prioritized)
        fill_both(buffer, make_model(setup), setup, rng, 5, prioritized)
        buffer.load(directory, "3")
        check_state(buffer, model)
        if prioritized:
            assert buffer.sum_tree.leaves.tolist() == model.priorities
        # The episode goes on where it was.
        fill_both(buffer, model, setup, rng, setup["capacity"], prioritized)
        check_state(buffer, model)
        flags = {} if prioritized else {
            "everything": setup["everything"], "timeline": setup["timeline"],
        }  # fmt: skip
        check_batch(buffer.sample_all_valid_transitions(), model, model.valid(), **flags)


def test_priorities_of_slots_without_a_row_are_loaded_too(tmp_path):
    with PrioritizedReplayBuffer((2,), 1, 8, 4) as buffer:
        buffer.add(np.ones(2, np.uint8), 0, 1.0, 0, 2.0)
        buffer.set_priority(np.array([5], np.int32), [0.25])
        buffer.save(tmp_path, 1)
        buffer.set_priority(np.array([5], np.int32), [3.0])
        buffer.load(tmp_path, 1)
        assert buffer.sum_tree.leaves.tolist() == [2.0, 0, 0, 0, 0, 0.25, 0, 0]


@pytest.mark.parametrize("prioritized", [False, True])
@settings(SLOW, max_examples=6)
@given(setup=setups())
def test_the_original_loads_what_is_saved(prioritized, setup, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ckpt") / "made"
    rng = np.random.default_rng(setup["seed"])
    with make(setup, prioritized) as buffer:
        model = make_model(setup)
        fill_both(buffer, model, setup, rng, int(rng.integers(1, 3 * setup["capacity"])),
                  prioritized)  # fmt: skip
        buffer.save(directory, 7)
    names = {f"$store$_{name}" for name in model.elements} | {"add_count"}
    names |= {"sum_tree"} if prioritized else set()
    assert {name.split("_ckpt.")[0] for name in os.listdir(directory)} == names
    for name in model.elements:
        found = load_array(directory, f"$store$_{name}", 7)
        np.testing.assert_array_equal(found, model.array(name))
        assert found.dtype == model.elements[name][1]
    assert load_array(directory, "add_count", 7) == len(model.rows)
    if prioritized:
        with original_sum_tree() as kind:
            with gzip.open(directory / "sum_tree_ckpt.7.gz", "rb") as file:
                tree = pickle.load(file)
            assert type(tree) is kind
            expected = kind(model.priorities)
        assert len(tree.nodes) == len(expected.nodes)
        for level, wanted in zip(tree.nodes, expected.nodes, strict=True):
            np.testing.assert_array_equal(level, wanted)
        assert tree.max_recorded_priority == 4.0 or max(model.priorities) < 4.0


def some_rows(buffer, rows=7, prioritized=False):
    more = [1.5] if prioritized else []
    for i in range(rows):
        buffer.add(np.full((2,), i + 1, np.uint8), i, float(i), i % 4 == 3, *more)


def small(kind=ReplayBuffer, **options):
    return kind((2,), 2, 10, 4, **options)


def snapshot(buffer):
    return (
        {name: buffer._store[name].numpy().tolist() for name in buffer._store},
        int(buffer.add_count), buffer._is_index_valid.tolist(), buffer.cursor(),
    )  # fmt: skip


def test_old_files_are_removed_and_suffixes_checked(tmp_path):
    with small() as buffer:
        some_rows(buffer)
        buffer.note = "kept"
        buffer.table = np.arange(3)
        for iteration in range(6):
            buffer.save(tmp_path, iteration)
        left = {int(name.split(".")[-2]) for name in os.listdir(tmp_path)}
        assert left == set(range(6 - CHECKPOINT_DURATION, 6))
        assert (tmp_path / "note_ckpt.5.gz").exists()
        for suffix in ("../6", "a/b", ""):
            with pytest.raises(SuffixError):
                buffer.save(tmp_path, suffix)
            with pytest.raises(SuffixError):
                buffer.load(tmp_path, suffix)
        buffer.note, buffer.table = "other", np.zeros(1)
        buffer.load(tmp_path, 5)
        assert buffer.note == "kept"
        assert buffer.table.tolist() == [0, 1, 2]
        buffer.missing = 1
        with pytest.raises(CheckpointNotFoundError, match="missing_ckpt"):
            buffer.load(tmp_path, 5)


def test_own_checkpoints_and_both_kinds_in_one_directory(tmp_path):
    with small(PrioritizedReplayBuffer, checkpoint_format="native") as buffer:
        some_rows(buffer, 12, prioritized=True)
        buffer.set_priority(np.array([3], np.int32), [4.0])
        before, leaves = snapshot(buffer), buffer.sum_tree.leaves
        buffer.save(tmp_path, 1)
        some_rows(buffer, 3, prioritized=True)
        buffer.load(tmp_path, 1)
        assert snapshot(buffer) == before
        np.testing.assert_array_equal(buffer.sum_tree.leaves, leaves)
        assert buffer.sum_tree.max_recorded_priority == 4.0
    with small(PrioritizedReplayBuffer) as buffer:
        buffer.load(tmp_path, 1)
        assert snapshot(buffer) == before
        some_rows(buffer, 1, prioritized=True)
        after = snapshot(buffer)
        buffer.save(tmp_path, 1)
        buffer.load(tmp_path, 1)  # both are there: its own kind
        assert snapshot(buffer) == after


def test_loading_into_a_store_on_disk(tmp_path):
    with small() as buffer:
        some_rows(buffer, 17)
        before = snapshot(buffer)
        buffer.save(tmp_path / "ckpt", 1)
    with small(path=tmp_path / "replay") as buffer:
        buffer.load(tmp_path / "ckpt", 1)
    with small(path=tmp_path / "replay") as buffer:
        assert snapshot(buffer) == before
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "replay"]


def test_what_does_not_fit_or_is_damaged_changes_nothing(tmp_path):
    class Shell:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    with small(PrioritizedReplayBuffer) as good:
        some_rows(good, 12, prioritized=True)
        good.save(tmp_path, 1)
    original = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def raw(name, data):
        (tmp_path / f"{name}_ckpt.1.gz").write_bytes(data)

    def huge():
        save_array(tmp_path, "$store$_observation", 1, np.zeros((10, 2), np.uint8))
        with gzip.open(tmp_path / "$store$_observation_ckpt.1.gz", "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (10, 2**50)}
            np.lib.format.write_array_header_1_0(file, header)

    def more_than_declared():
        with gzip.open(tmp_path / "$store$_reward_ckpt.1.gz", "ab") as file:
            file.write(bytes(1000))

    observation = original["$store$_observation_ckpt.1.gz"]
    flipped = bytearray(observation)
    flipped[-5] ^= 1  # the checksum
    column = "$store$_observation"
    cases = [
        (SchemaError, lambda: save_array(tmp_path, column, 1, np.ones(10))),
        (SchemaError, lambda: save_array(tmp_path, column, 1, np.ones((9, 2), np.uint8))),
        (SchemaError, lambda: save_array(tmp_path, column, 1, np.ones((10, 2), np.float32))),
        (CorruptCheckpointError, lambda: raw(column, observation[:-12])),
        (CorruptCheckpointError, lambda: raw(column, bytes(flipped))),
        (CorruptCheckpointError, lambda: raw(column, b"no gzip at all")),
        (CorruptCheckpointError, lambda: raw(column, gzip.compress(b"no array"))),
        (CorruptCheckpointError, huge),
        (CorruptCheckpointError, more_than_declared),
        (CorruptCheckpointError, lambda: save_array(tmp_path, "add_count", 1, np.array(-3))),
        (CorruptCheckpointError, lambda: save_array(tmp_path, "add_count", 1, np.zeros(2))),
        (CorruptCheckpointError, lambda: raw("sum_tree", gzip.compress(pickle.dumps(Shell())))),
        (CorruptCheckpointError, lambda: raw("sum_tree", gzip.compress(pickle.dumps({})))),
        (CheckpointNotFoundError, lambda: os.unlink(tmp_path / "sum_tree_ckpt.1.gz")),
        (CorruptCheckpointError, lambda: raw("sum_tree", gzip.compress(too_large))),
    ]
    leaves = np.zeros(10)
    leaves[-1] = 1e301  # of a slot that no row is in
    too_large = pickled_sum_tree(leaves, 1.0)
    with small(PrioritizedReplayBuffer) as buffer:
        some_rows(buffer, 5, prioritized=True)
        before, leaves = snapshot(buffer), buffer.sum_tree.leaves
        for error, damage in cases:
            for name, data in original.items():
                (tmp_path / name).write_bytes(data)
            damage()
            with pytest.raises(error):
                buffer.load(tmp_path, 1)
            assert snapshot(buffer) == before
            np.testing.assert_array_equal(buffer.sum_tree.leaves, leaves)
        with pytest.raises(FileNotFoundError):
            buffer.load("/does/not/exist", "3")
        assert issubclass(SchemaError, ValueError)
        for name, data in original.items():
            (tmp_path / name).write_bytes(data)
        buffer.load(tmp_path, 1)
        assert snapshot(buffer) != before
    assert not (tmp_path / "pwned").exists()


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    with small() as buffer:
        some_rows(buffer)
        buffer.save(tmp_path, 1)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        some_rows(buffer)
        write, calls = files.write, []

        def failing(path, pieces, **options):
            calls.append(path)
            if len(calls) == 3:
                raise StorageError(5, "broken", str(path))
            write(path, pieces, **options)

        monkeypatch.setattr(files, "write", failing)
        with pytest.raises(StorageError):
            buffer.save(tmp_path, 1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.costly(1)
def test_an_own_checkpoint_is_loaded_into_a_larger_buffer_whole_or_not_at_all(
    tmp_path, monkeypatch
):
    with small(checkpoint_format="native") as buffer:
        some_rows(buffer, 17)  # the ring has gone round: rows move to other slots
        valid = buffer.sample_all_valid_transitions().action.tolist()
        buffer.save(tmp_path / "ckpt", 1)
    allocate, failures = files.allocate, 0
    with ReplayBuffer((2,), 2, 30, 4, path=tmp_path / "replay") as buffer:
        some_rows(buffer, 5)
        before = snapshot(buffer), buffer.sample_all_valid_transitions().state.tolist()
        while True:
            left = failures

            def full(path, size):
                nonlocal left
                if not left:
                    raise DiskFullError(28, "full", str(path))
                left -= 1
                return allocate(path, size)

            monkeypatch.setattr(files, "allocate", full)
            try:
                buffer.load(tmp_path / "ckpt", 1)
            except DiskFullError:
                failures += 1
            else:
                break
            finally:
                monkeypatch.setattr(files, "allocate", allocate)
            now = snapshot(buffer), buffer.sample_all_valid_transitions().state.tolist()
            assert now == before
        assert sorted(buffer.sample_all_valid_transitions().action.tolist()) == sorted(valid)
        assert buffer.cursor() == 10
    assert failures > 2
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "replay"]


def test_an_own_checkpoint_of_another_stack_size_changes_nothing(tmp_path):
    with ReplayBuffer((2,), 3, 10, 4, checkpoint_format="native") as buffer:
        some_rows(buffer)
        buffer.save(tmp_path, 1)
    with small() as buffer:
        some_rows(buffer, 4)
        before = snapshot(buffer)
        named = re.escape(str(tmp_path / "replay_ckpt.1")) + ": written with stack_size=3"
        with pytest.raises(SchemaError, match=named):
            buffer.load(tmp_path, 1)
        some_rows(buffer, 1)
        assert int(buffer.add_count) == before[1] + 2  # with the padding of a new episode
        assert buffer._store["action"].tolist()[:6] == [*before[0]["action"][:5], 0]


@pytest.mark.parametrize(
    ("note", "value"),
    [
        ("weighed", "x"), ("weighed", None), ("weighed", 2.5), ("max_recorded_priority", "x"),
        ("max_recorded_priority", None), ("max_recorded_priority", -1.0), ("newest_weight", "x"),
    ],
)  # fmt: skip
def test_damaged_notes_are_refused_and_change_nothing(note, value, tmp_path):
    kind = PrioritizedReplayBuffer
    with small(kind, checkpoint_format="native", path=tmp_path / "replay") as buffer:
        some_rows(buffer, prioritized=True)
        buffer.flush()
        notes = dict(buffer._ring.notes)
        buffer._ring.notes[note] = value
        buffer._ring.save(tmp_path / "ckpt", 1)
        buffer._ring.notes = notes
        some_rows(buffer, 2, prioritized=True)
        before, leaves = snapshot(buffer), buffer.sum_tree.leaves
        saved = tmp_path / "ckpt" / "replay_ckpt.1" / "zarr.json"
        with pytest.raises(FormatError, match=f"{re.escape(str(saved))}: {note} is damaged"):
            buffer.load(tmp_path / "ckpt", 1)
        assert snapshot(buffer) == before
        np.testing.assert_array_equal(buffer.sum_tree.leaves, leaves)
        some_rows(buffer, 3, prioritized=True)
    live = tmp_path / "replay" / "zarr.json"
    found = json.loads(live.read_text())
    found["attributes"]["diskreplay"]["notes"][note] = value
    live.write_text(json.dumps(found))
    with pytest.raises(FormatError, match=f"{re.escape(str(live))}: {note} is damaged"):
        small(kind, path=tmp_path / "replay")


def test_a_store_of_another_stack_size_is_refused_before_it_is_changed(tmp_path):
    path = tmp_path / "replay"
    with small(path=path) as buffer:
        some_rows(buffer, 17)
        before = snapshot(buffer)
    found = os.stat(path).st_ino, (path / "zarr.json").read_bytes()
    with pytest.raises(SchemaError, match="written with stack_size=2"):
        ReplayBuffer((2,), 3, 30, 4, path=path)  # larger: the rows would move to other slots
    assert (os.stat(path).st_ino, (path / "zarr.json").read_bytes()) == found
    with small(path=path) as buffer:
        assert snapshot(buffer) == before


def test_extras_of_another_name_in_the_store(tmp_path):
    extras = [ReplayElement("priority_of", (), np.float32), ReplayElement("state_", (2,), np.int8)]
    with small(extra_storage_types=extras) as buffer:
        buffer.add(np.ones(2, np.uint8), 1, 2.0, 1, 0.5, [1, 2])
        buffer.save(tmp_path, 1)
        buffer.load(tmp_path, 1)
        assert load_array(tmp_path, "$store$_state_", 1)[1].tolist() == [1, 2]
        assert buffer.sample_all_valid_transitions().priority_of.tolist() == [[0.0, 0.5]]
