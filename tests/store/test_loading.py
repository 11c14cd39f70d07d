"""A store with a checkpoint's rows beside a live one: what is refused, and what is exchanged."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import (
    CorruptCheckpointError,
    FormatError,
    IncompleteCheckpointError,
    StorageError,
)
from diskreplay.store import files, loading, manifest
from diskreplay.store.field import Field
from diskreplay.store.store import Store

ROWS = 8


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (64, 64), np.uint8), action_space=Discrete(4),
        **{"capacity": None, "compressor": {"observation": "lz4"}, "segment_rows": ROWS, **options},
    )  # fmt: skip


def add(buffer, rows):
    for _ in range(rows):
        n = int(buffer.bounds[0, 1])
        buffer.add(np.full((64, 64), n % 251, np.uint8), n % 4, float(n), False, False)


@pytest.fixture
def case(tmp_path):
    """A live buffer of 30 rows, and a checkpoint of its first 20."""
    with make(tmp_path / "store") as buffer:
        add(buffer, 20)
        path = buffer.save(tmp_path / "ck", 1)
        add(buffer, 10)
        yield buffer, path


def rows_of(store):
    return store.columns["reward"].read(0, int(store.first[0]), int(store.count[0])).tolist()


def test_a_whole_checkpoint_is_opened_with_its_manifest(case):
    _buffer, path = case
    saved, contents = loading.open_checked(path)
    assert rows_of(saved) == list(range(20))
    assert contents == manifest.read(path)
    for column in saved.columns.values():
        assert set(column.segments.seals) <= set(column.segments.mapped)
    assert saved.columns["observation"].segments.seals  # what was sealed still is
    saved.close()


def test_each_file_that_is_missing_flipped_or_not_listed_is_named(case):
    _buffer, path = case
    everything = [each for each in sorted(path.rglob("*")) if each.is_file()]
    for each in everything:
        key = each.relative_to(path).as_posix()
        data = each.read_bytes()
        is_shard = key.startswith("observation/c.")
        each.unlink()
        with pytest.raises(IncompleteCheckpointError):
            loading.open_checked(path)
        if key != manifest.NAME.as_posix() and not is_shard:  # of shards the index is read
            each.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            with pytest.raises((CorruptCheckpointError, FormatError), match="nothing was loaded"):
                loading.open_checked(path)
            each.unlink()
        each.write_bytes(data)
    listing = path / manifest.NAME
    document = json.loads(listing.read_text())
    for key in list(document["files"]):
        if key == "zarr.json":
            continue
        less = {name: seal for name, seal in document["files"].items() if name != key}
        listing.write_text(json.dumps(document | {"files": less}))
        with pytest.raises(CorruptCheckpointError, match=f"damaged: {key} is not in its list"):
            loading.open_checked(path)
    listing.write_text(json.dumps(document))
    loading.open_checked(path)[0].close()


def test_a_replacement_is_beside_the_live_store_until_it_is_put_in_its_place(case, tmp_path):
    buffer, path = case
    live = buffer._rows.store
    saved, _contents = loading.open_checked(path)
    before = sorted(each.name for each in tmp_path.iterdir())
    made = loading.Replacement(live, saved, {**live.meta, "mine": 1})
    assert rows_of(made.store) == list(range(20))
    assert made.store.meta["mine"] == 1
    assert made.store.lock is not None
    assert rows_of(live) == list(range(30))
    made.discard()
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    saved.close()
    add(buffer, 1)


def test_an_exchange_that_fails_changes_nothing(case, tmp_path, monkeypatch):
    buffer, path = case
    live = buffer._rows.store
    saved, _contents = loading.open_checked(path)
    made = loading.Replacement(live, saved, live.meta)

    def refuse(paths):
        raise StorageError(5, "Input/output error", "parent")

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_dirs", refuse)
        with pytest.raises(StorageError, match="Input/output error"):
            made.put_in_place(live)
    assert not live.page.replaced[0]
    made.discard()
    saved.close()
    add(buffer, 1)
    assert rows_of(live) == list(range(31))


def test_with_a_smaller_capacity_the_newest_rows_are_taken(case, tmp_path):
    _buffer, path = case
    with make(tmp_path / "other", capacity=12) as other:
        saved, _contents = loading.open_checked(path)
        made = loading.Replacement(other._rows.store, saved, other._rows.store.meta)
        assert (made.store.first.tolist(), made.store.count.tolist()) == ([8], [20])
        assert rows_of(made.store) == list(range(8, 20))
        # Segments without such rows are left out, those of all of them linked.
        chunks = {each.name for each in made.store.path.joinpath("observation").glob("c.*")}
        assert chunks == {"c.1.0.0.0", "c.2.0.0.0"}
        shared = made.store.path / "observation" / "c.1.0.0.0"
        assert shared.samefile(path / "observation" / "c.1.0.0.0")
        assert not (made.store.path / "reward" / "c.0.0").samefile(path / "reward" / "c.0.0")
        made.discard()
        saved.close()


def test_fields_are_added_whose_rows_are_zeros(tmp_path):
    with make(tmp_path / "store", capacity=24) as buffer:
        add(buffer, 30)
    live = Store.open(tmp_path / "store", mode="a")
    more = [Field("score", (2,), np.dtype("f4")), Field("pixels", (4,), np.dtype("u1"), "lz4")]
    names = list(live.columns)
    made = loading.extend(live, more, {"more": 3})
    assert list(made.columns) == [*names, "score", "pixels"]
    assert made.meta["more"] == 3
    assert rows_of(made) == list(range(6, 30))
    for name in ("score", "pixels"):
        assert not made.columns[name].read(0, 6, 30).any()
    made.record(made.meta)
    made.mark_closed()
    made.close()
    again = Store.open(tmp_path / "store", mode="r")
    assert rows_of(again) == list(range(6, 30))
    assert list(again.columns) == [*names, "score", "pixels"]
    again.close()
