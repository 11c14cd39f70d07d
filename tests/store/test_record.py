"""What the record says of a store, beside google-crc32c and the files themselves."""

import errno
import json

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.store import files, priorities, private
from diskreplay.store.record import write_group

pytestmark = pytest.mark.usefixtures("no_upkeep")  # each test says what is written, and when
ROWS = 8


@pytest.fixture(params=["lz4", "raw"])
def buffer(request, tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, (64, 64), np.uint8),
        action_space=Discrete(4), capacity=None, segment_rows=ROWS,
        compressor={"observation": request.param},
    ) as made:  # fmt: skip
        yield made


def add(buffer, rows):
    for _ in range(rows):
        n = buffer.add_count
        buffer.add(np.full((64, 64), n % 251, np.uint8), n % 4, float(n), False, False)


def said(buffer, field=None):
    path = buffer.path / field / "zarr.json" if field else buffer.path / "zarr.json"
    return json.loads(path.read_text())["attributes"]["diskreplay"]


def parts(buffer):
    store = buffer._rows.store
    return store, store._record, store.count.copy(), store.first.copy()


def test_rows_are_named_when_they_are_written_and_not_before(buffer):
    add(buffer, 20)
    assert said(buffer)["count"] == [0]
    store, record, count, first = parts(buffer)
    record.write(count, first)
    found = said(buffer)
    assert (found["count"], found["first"], found["transitions"]) == ([20], [0], [20])
    assert store.durable_count.tolist() == [20]
    assert store.durable_first.tolist() == [0]
    assert store.durable_transitions.tolist() == [20]
    assert json.loads((buffer.path / "reward" / "zarr.json").read_text())["shape"] == [20, 1]
    store.meta["more"] = 7
    add(buffer, 3)
    record.repeat()
    found = said(buffer)
    assert (found["count"], found["more"]) == ([20], 7)  # of the same rows as before


def test_documents_of_fields_are_written_where_seals_have_changed(buffer, monkeypatch):
    written = []
    replace = files.replace

    def noted(contents, **options):
        written.extend(path.parent.name for path in contents)
        replace(contents, **options)

    monkeypatch.setattr(files, "replace", noted)
    store, record, count, first = parts(buffer)
    names = set(store.columns)
    record.write(count, first)
    assert set(written) == names | {"store"}
    written.clear()
    add(buffer, 3)
    record.write(store.count.copy(), first)
    assert written == ["store"]
    written.clear()
    record.forget_documents()
    record.write(store.count.copy(), first)
    assert set(written) == names | {"store"}
    written.clear()
    add(buffer, ROWS)
    store.maintenance.run(durable=True)
    assert set(written) == {"observation", "store"}  # of which a segment was sealed


def test_seals_are_those_of_the_files(buffer):
    add(buffer, 2 * ROWS + 3)
    store, record, *_ = parts(buffer)
    store.maintenance.run()
    record.write(store.count.copy(), store.first.copy())
    for name, column in store.columns.items():
        found = said(buffer, name)
        assert set(found) == {"seals"}  # segments of small fields have more rows
        assert set(found["seals"]) == ({"0/0", "1/0"} if name == "observation" else set())
        for key, (size, crc, *_pieces) in found["seals"].items():
            data = column.files.paths.chunk(*map(int, key.split("/"))).read_bytes()
            assert size == len(data)
            if not column.field.packed:
                assert crc == google_crc32c.value(data)


def test_a_store_that_is_closed_has_the_checksums_of_what_was_open(buffer):
    add(buffer, ROWS + 3)
    path, packed = buffer.path, buffer._rows.store.columns["observation"].field.compressor
    buffer.close()
    for name in ("reward", "observation"):
        found = json.loads((path / name / "zarr.json").read_text())["attributes"]["diskreplay"]
        is_small = name == "reward"
        assert set(found["seals"]) == (set() if is_small else {"0/0"})
        ((key, (size, crc, *_)),) = found["open"].items()
        assert key == ("0/0" if is_small else "1/0")
        (segment,) = path.glob(f"{name}/c.{key.replace('/', '.')}*")
        assert size == segment.stat().st_size
        if is_small or packed == "raw":
            assert crc == google_crc32c.value(segment.read_bytes())


def test_shards_of_segments_that_are_not_full_are_written_again_when_rows_came(buffer):
    add(buffer, ROWS + 3)
    store, record, count, _first = parts(buffer)
    written, flushed = record.write_partial_shards(count)
    if not store.packed_columns:
        assert (written, flushed) == ({}, {})
        return
    assert written
    live = private.directory(buffer.path)
    assert all(made.parent == live and made.exists() for made in written)
    assert all(place.parent == buffer.path / "observation" for place in written.values())
    again, _ = record.write_partial_shards(count)
    assert again == written  # nobody has said that they are in their places
    for made, place in written.items():
        files.rename(made, place)
    record.note_flushed(flushed)
    assert record.write_partial_shards(count)[0] == {}
    add(buffer, 1)
    assert record.write_partial_shards(store.count.copy())[0]
    record.note_all_flushed(store.count.copy())
    assert record.write_partial_shards(store.count.copy())[0] == {}


def test_priorities_of_a_checkpoint_are_kept_with_what_belongs_to_them(buffer, tmp_path):
    store, record, *_ = parts(buffer)
    written = tmp_path / "ck" / "priority"
    priorities.write(written, priorities.Unsaved(np.arange(4.0).reshape(4, 1), 0.5), 0)
    priorities.share(buffer.path, written)
    meta = {priorities.LARGEST: 3.0, priorities.VIEWS: {}, "next_step": [99]}
    record.keep_priorities(["priority"], meta)
    assert priorities.read(buffer.path / "priority", 1).leaves.ravel().tolist() == [0, 1, 2, 3]
    assert (store.meta[priorities.LARGEST], store.meta[priorities.VIEWS]) == (3.0, {})
    assert store.meta["next_step"] != [99]


def test_the_group_is_built_among_the_private_files(buffer, monkeypatch):
    builds = []
    replace = files.replace

    def noted(contents, *, build=None):
        builds.append(build)
        replace(contents, build=build)

    monkeypatch.setattr(files, "replace", noted)
    write_group(buffer.path, {"a": 1})
    assert builds == [private.directory(buffer.path)]
    assert said(buffer) == {"a": 1}
    _store, record, count, first = parts(buffer)
    record.write(count, first)


def test_documents_that_a_full_disk_refused_are_written_with_the_next_record(buffer, monkeypatch):
    store = buffer._rows.store

    def refuse(_contents, **_options):
        raise errors.DiskFullError(errno.ENOSPC, "no room", "there")

    add(buffer, ROWS + 1)
    monkeypatch.setattr(files, "replace", refuse)
    with pytest.raises(errors.DiskFullError):
        store.maintenance.run(durable=True)
    monkeypatch.undo()
    assert said(buffer, "observation")["seals"] == {}
    store.maintenance.run(durable=True)
    assert set(said(buffer, "observation")["seals"]) == {"0/0"}


def test_what_a_record_that_failed_should_have_said_no_later_one_says(buffer, monkeypatch):
    buffer.set_metadata({"run": 1})
    store, real = buffer._rows.store, files.replace

    def refuse(contents, **options):
        if store.path / "zarr.json" in contents:
            raise errors.DiskFullError(errno.ENOSPC, "no room", "there")
        real(contents, **options)

    monkeypatch.setattr(files, "replace", refuse)
    with pytest.raises(errors.DiskFullError):
        buffer.set_metadata({"run": 2})
    monkeypatch.undo()
    assert buffer.metadata == {"run": 1}
    add(buffer, ROWS)
    store.maintenance.run(durable=True)
    assert said(buffer)["metadata"] == {"run": 1}


@pytest.mark.parametrize("failing", ["sync", "rename"])
def test_a_flush_that_failed_leaves_nothing_in_a_store_that_is_closed(
    tmp_path, monkeypatch, failing
):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, (64, 64), np.uint8),
        action_space=Discrete(4), capacity=None, segment_rows=ROWS,
    ) as buffer:  # fmt: skip
        add(buffer, ROWS - 1)

        def refuse(*_arguments):
            raise errors.StorageError(errno.EIO, "refused", "there")

        with monkeypatch.context() as patched:
            patched.setattr(files, failing, refuse)
            with pytest.raises(errors.StorageError, match="refused"):
                buffer.flush()
        add(buffer, ROWS)
        # The segment is sealed: no flush comes to write it again.
        buffer._rows.store.maintenance.run(durable=True)
    assert not verify(tmp_path / "store").findings
