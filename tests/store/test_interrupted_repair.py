"""What a repair that could not tidy up leaves beside a store, and what the next opening does."""

import contextlib
import itertools
import os
from types import SimpleNamespace

import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import files, tempfiles


def record(path):
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 1, (2,), "float32"), action_space=Discrete(2), capacity=20
    )
    with buffer:
        buffer.add([0.0, 0.0], 1, 1.0, False, False)


def left_behind(path):
    return sorted(each.name for each in path.parent.iterdir() if each.name.startswith("."))


@pytest.mark.parametrize("within", [None, "store/c/0", "store/reward/c/0"])
def test_an_opening_removes_what_has_no_store_in_it(tmp_path, within):
    path = tmp_path / "store"
    record(path)
    room = tempfiles.Workspace(path, "repair")
    if within is not None:
        (room.path / within).parent.mkdir(parents=True)
        (room.path / within).write_bytes(b"half")
    room.release()
    assert len(left_behind(path)) == 1
    record(path)
    assert left_behind(path) == []


@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("rename", range(8))
@pytest.mark.costly(3)
@pytest.mark.filterwarnings("ignore:.*a repair of it was cut off")
def test_what_a_repair_replaces_is_kept_where_directories_cannot_be_exchanged(
    tmp_path, monkeypatch, rename, kills
):
    """Three renames stand in for the exchange, after two of notes: killed before one of them, or
    one of them fails."""
    path = tmp_path / "store"
    record(path)
    (path / "reward" / "zarr.json").write_bytes(b"rot")
    monkeypatch.setattr(files, "_libc", SimpleNamespace())
    rename_, seen = os.rename, itertools.count()

    def failing(source, target):
        if ".repair-" in f"{source}{target}" and next(seen) == rename:
            if kills:
                os._exit(9)
            raise OSError(5, "Input/output error")
        rename_(source, target)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(os, "rename", failing)
            repair(path)
        except BaseException:
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == ((9 if kills else 1) if rename < 7 else 0)
    with contextlib.suppress(diskreplay.FormatError):  # not exchanged yet
        record(path)
    assert left_behind(path) == []
    if not verify(path).clean:
        repair(path)
    kept = [each / "reward" / "zarr.json" for each in tmp_path.glob("store.repair-*")]
    assert [each.read_bytes() for each in kept] == [b"rot"]
    record(path)
    assert verify(path).clean


def test_an_unlink_that_fails_while_a_repair_tidies_up(tmp_path, monkeypatch):
    path = tmp_path / "store"
    record(path)
    rotten = path / "reward" / "zarr.json"
    rotten.write_bytes(b"rot")
    remove = files.remove

    def failing(victim):
        if ".repair-" in str(victim):
            raise StorageError(5, "cannot remove", str(victim))
        remove(victim)

    monkeypatch.setattr(files, "remove", failing)
    with pytest.raises(StorageError), pytest.warns(RuntimeWarning, match="cut off"):
        repair(path)
    monkeypatch.undo()
    assert len(left_behind(path)) == 1
    record(path)
    assert left_behind(path) == []
    assert (tmp_path / "store.repair-1" / "reward" / "zarr.json").read_bytes() == b"rot"
    assert verify(path).clean
    with diskreplay.open(path) as reader:
        assert reader.add_count == 2


@pytest.mark.parametrize("kills", [True, False])
def test_half_a_note_is_none(tmp_path, monkeypatch, kills):
    """A repair writes down what it has built. Cut amid that, it has not replaced anything yet."""
    path = tmp_path / "store"
    record(path)
    (path / "reward" / "zarr.json").write_bytes(b"rot")
    write = files.write

    def half(target, pieces, **options):
        if target.name.startswith("built"):
            write(target, [b"".join(pieces)[:1]])
            if kills:
                os._exit(9)
            raise StorageError(28, "No space left on device", str(target))
        write(target, pieces, **options)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(files, "write", half)
            repair(path)
        except StorageError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (9 if kills else 1)
    repair(path)
    assert verify(path).clean
    kept = [each.relative_to(tmp_path) for each in tmp_path.glob("store.repair-*/reward/zarr.json")]
    assert [each.parts[0] for each in kept] == ["store.repair-1"]
    assert left_behind(path) == []
