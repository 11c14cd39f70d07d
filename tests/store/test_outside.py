"""Nothing is made inside a store or a checkpoint, and the error names that."""

import tempfile

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.compat import cs294
from diskreplay.errors import InvalidInputError

SPACES = {"observation_space": Box(0, 1, (2,), "float32"), "action_space": Discrete(2)}


def made(path):
    buffer = diskreplay.ReplayBuffer(path, **SPACES, capacity=40)
    for step in range(9):
        buffer.add(np.zeros(2, np.float32), step % 2, 1.0, False, False)
    return buffer


def names(path):
    return sorted(path.rglob("*"))


@pytest.fixture(params=["store", "checkpoint", "closed store", "store without metadata"])
def taken(request, tmp_path):
    """A place that is taken, and what the error calls it."""
    with made(tmp_path / "store") as buffer:
        saved = buffer.save(tmp_path / "saved", 1)
        if request.param == "store":
            yield buffer.path, "store"
            return
    if request.param == "store without metadata":
        (tmp_path / "store" / "zarr.json").unlink()
    yield (saved, "checkpoint") if request.param == "checkpoint" else (buffer.path, "store")


@pytest.mark.costly(26)
@pytest.mark.parametrize("inside", ["x", "new/x", "reward/c/x", "is_final/live/x"])
@pytest.mark.parametrize("kind", ["uniform", "prioritized", "slots", "older", "linked"])
def test_no_store_is_made(tmp_path, taken, kind, inside):
    place, what = taken
    path, before = place / inside, names(place)
    if kind == "linked":
        (tmp_path / "link").symlink_to(place)
        path = tmp_path / "link" / inside
    make = {
        "prioritized": lambda: diskreplay.PrioritizedReplayBuffer(path, **SPACES, capacity=40),
        "slots": lambda: diskreplay.Slots(path, fields={"x": ((2,), "float32")}, slots=9),
        "older": lambda: cs294.ReplayBuffer(40, 1, path=path),
    }.get(kind, lambda: made(path))
    with pytest.raises(InvalidInputError, match=rf"inside the {what} {place}, .* beside it$"):
        make()
    assert names(place) == before


@pytest.mark.parametrize("inside", ["", "x", "is_final"])
def test_no_checkpoint_is_saved(tmp_path, taken, inside):
    place, what = taken
    before = names(place)
    with made(tmp_path / "other") as buffer:
        for save in (buffer.save, buffer.export_gz):
            with pytest.raises(InvalidInputError, match=rf"inside the {what} {place}, "):
                save(place / inside, 1)
    assert names(place) == before


def test_none_is_pulled(tmp_path, taken):
    pytest.importorskip("obstore")
    from diskreplay.remote import RemoteCheckpoints

    place, what = taken
    before = names(place)
    with made(tmp_path / "other") as buffer:
        buffer.save(f"file://{tmp_path}/bucket", 1)
        with RemoteCheckpoints(f"file://{tmp_path}/bucket") as remote:
            with pytest.raises(InvalidInputError, match=rf"inside the {what} {place}, "):
                remote.pull(1, place / "x")
        with pytest.raises(InvalidInputError, match=rf"inside the {what} {place}, "):
            buffer.save(f"file://{place}/x", 1)
    assert names(place) == before


def test_no_temporary_one(tmp_path, monkeypatch):
    with made(tmp_path / "store") as buffer:
        before = names(buffer.path)
        monkeypatch.setattr(tempfile, "tempdir", str(buffer.path))
        with pytest.raises(InvalidInputError, match="inside the store"):
            made(None)
        assert names(buffer.path) == before


def test_one_that_was_moved_inside_is_read_and_not_written(tmp_path):
    made(tmp_path / "store").close()
    made(tmp_path / "x").close()
    (tmp_path / "x").rename(tmp_path / "store" / "x")
    with diskreplay.open(tmp_path / "store" / "x") as reader:
        assert reader.add_count == 9
    for write in (made, lambda path: diskreplay.open(path, "a")):
        with pytest.raises(InvalidInputError, match="inside the store"):
            write(tmp_path / "store" / "x")
    (tmp_path / "store" / "x").rename(tmp_path / "x")
    with made(tmp_path / "x") as buffer:
        assert buffer.add_count == 18
    assert verify(tmp_path / "store").clean
