"""A store at a glance, beside what the buffer and the system say of it."""

import json
import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import FormatError
from diskreplay.inspection import overview as module
from diskreplay.inspection.overview import overview_of
from diskreplay.store import manifest, private

ENVS, ROWS = 2, 8  # rows of a segment


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (8, 8), np.uint8), action_space=Discrete(3),
        **{"num_envs": ENVS, "capacity": None, "segment_rows": ROWS, "stack_size": 2,
           "compressor": {"observation": "lz4"}, **options},
    )  # fmt: skip


def record(buffer, rows, *, ends=5):
    for _ in range(rows):
        at = int(buffer.bounds[0, 1])
        frame = np.full((ENVS, 8, 8), at % 251, np.uint8)
        end = np.array([at % ends == ends - 1, False])
        buffer.add(frame, [at % 3] * ENVS, [1.0] * ENVS, end, [False] * ENVS, frame)


def on_disk(path):
    """Bytes that the files in a directory take."""
    files = (each for each in path.glob("*") if each.is_file())
    return sum(512 * each.stat().st_blocks for each in files)


@pytest.fixture
def path(tmp_path):
    with make(tmp_path / "store") as buffer:
        record(buffer, 30)
    return tmp_path / "store"


def test_its_figures_are_those_of_the_buffer_and_the_system(path):
    found = overview_of(path)
    with diskreplay.open(path) as buffer:
        bounds = buffer.bounds
        rows = int((bounds[:, 1] - bounds[:, 0]).sum())
        episodes = buffer.episodes()
        assert found.bounds == bounds.tolist()
        assert (found.rows, found.transitions) == (rows, buffer.add_count)
        assert found.retained == int(episodes.rows.sum()) == 60
        assert found.episodes == len(episodes)
        assert set(found.fields) == set(buffer.fields)
        for name, (shape, dtype) in buffer.fields.items():
            field = found.fields[name]
            assert (field.shape, field.dtype) == (shape, dtype.name)
            assert field.raw_bytes == rows * dtype.itemsize * int(np.prod(shape))
            assert field.disk_bytes == on_disk(path / name)
            assert field.ratio == field.raw_bytes / field.disk_bytes
            assert field.segments == len(list((path / name).glob("c.*")))
            assert field.missing == []
            assert field.tail_bytes == 0
    assert found.raw_bytes == sum(field.raw_bytes for field in found.fields.values())
    assert found.disk_bytes == sum(field.disk_bytes for field in found.fields.values())
    assert found.ratio == found.raw_bytes / found.disk_bytes
    assert found.segments == sum(field.segments for field in found.fields.values())
    assert (found.what, found.kind, found.closed, found.writing) == (
        "live store", "uniform", True, False
    )  # fmt: skip
    assert found.capacity is found.fill is None
    assert found.options["stack_size"] == 2
    assert "max_transitions" not in found.options
    newest = max(each.stat().st_mtime for each in path.rglob("*"))
    assert found.last_write <= newest
    assert found.path == str(path)


@pytest.mark.parametrize(
    ("options", "of"), [({"capacity": 120}, "rows"), ({"max_transitions": 120}, "retained")]
)
def test_how_full_it_is(tmp_path, options, of):
    with make(tmp_path / "store", **options) as buffer:
        record(buffer, 30)
    found = overview_of(tmp_path / "store")
    assert found.rows > found.retained == 60
    assert found.fill == getattr(found, of) / 120


def test_a_store_that_rows_come_to(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with make(path) as buffer:
        record(buffer, 11)
        found = overview_of(path, patience=0.0)
        assert (found.writing, found.closed) == (False, False)
        assert found.writer.pid == os.getpid()
        tail = next(private.directory(path).glob("*tail*")).stat().st_blocks * 512
        assert found.tail_bytes == tail == found.fields["observation"].tail_bytes
        waits = []

        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                record(buffer, 1)

        of_module = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep)
        monkeypatch.setattr(module, "time", of_module)  # other threads sleep as before
        found = overview_of(path, patience=300.0)
        assert found.writing
        assert waits == [15.0] * 3
        assert found.rows == 11 * 2 + 2  # as it was when it was opened
    assert not overview_of(path).writing


def test_files_that_are_missing_are_named(path):
    (path / "observation" / "c.1.0.0.0").unlink()
    (path / "reward" / "c.0.0").unlink()
    found = overview_of(path)
    assert found.fields["observation"].missing == ["observation/c.1.0.0.0"]
    assert found.fields["reward"].missing == ["reward/c.0.0"]
    assert found.fields["action"].missing == []


def test_a_checkpoint_and_what_is_beside(path, tmp_path):
    with make(path) as buffer:
        saved = [buffer.save(tmp_path / "checkpoints", number) for number in (1, 2)]
    found = overview_of(saved[0])
    assert (found.what, found.writer, found.closed) == ("checkpoint", None, True)
    assert [each.path for each in found.checkpoints] == [saved[1]]
    assert found.rows == overview_of(path).rows
    (saved[0] / manifest.NAME).unlink()
    assert overview_of(saved[0]).what == "checkpoint without its manifest"


def test_an_empty_one(tmp_path):
    make(tmp_path / "store").close()
    found = overview_of(tmp_path / "store")
    assert (found.rows, found.episodes, found.segments, found.retained) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.update(kind="other"),
        lambda a: a.pop("observation_space"),
        lambda a: a["fields"][0].update(shape=[9, 9]),
        lambda a: a["fields"].pop(0),
        lambda a: a.update(extras={"more": [[], "int8"]}),
        lambda a: a.update(fields=None),
    ],
)  # fmt: skip
def test_attributes_that_no_buffer_would_open_are_refused(path, tmp_path, damage):
    copy = shutil.copytree(path, tmp_path / "copy")
    document = json.loads((copy / "zarr.json").read_text())
    damage(document["attributes"]["diskreplay"])
    (copy / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"zarr\.json: damaged attributes"):
        overview_of(copy)
