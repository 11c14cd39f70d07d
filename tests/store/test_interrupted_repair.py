"""What a repair that could not tidy up leaves beside a store, and what the next opening does."""

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
    with pytest.raises(StorageError):
        repair(path)
    monkeypatch.undo()
    assert len(left_behind(path)) == 1
    record(path)
    assert left_behind(path) == []
    assert (tmp_path / "store.repair-1" / "reward" / "zarr.json").read_bytes() == b"rot"
    assert verify(path).clean
    with diskreplay.open(path) as reader:
        assert reader.add_count == 2
