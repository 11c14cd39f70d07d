"""A store that was copied by hard links: what is written to the one does not change the other."""

import os
import subprocess

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import files, own_files
from tests.permission import run_under_modes
from tests.processes import run

ROWS, MORE = 300, 40


def opened(path, compressor):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (40, 40), "uint8"), action_space=Discrete(2),
        capacity=1000, compressor=compressor, segment_rows=16,
        extras={"note": ((300,), "float32", "mutable")},
    )  # fmt: skip


def add(buffer, rows, value=None):
    for row in range(rows) if value is None else [value] * rows:
        frame = np.full((40, 40), row % 250, "uint8")
        buffer.add(frame, 0, float(row), False, False, note=np.full(300, row, "float32"))


def values(path):
    with diskreplay.open(path) as reader:
        rows = np.arange(*reader.bounds[0])
        return [reader.take(name, rows).tobytes() for name in ("observation", "reward", "note")]


@pytest.fixture(params=["raw", "lz4"])
def both(request, tmp_path):
    with opened(tmp_path / "store", request.param) as buffer:
        add(buffer, ROWS)
    subprocess.run(["cp", "-al", tmp_path / "store", tmp_path / "backup"], check=True)
    return tmp_path / "store", tmp_path / "backup", request.param


@pytest.mark.parametrize("written_to", [0, 1])
def test_what_is_written_to_one_does_not_change_the_other(both, written_to):
    *paths, compressor = both
    path, other = paths[written_to], paths[1 - written_to]
    before = values(other)
    with opened(path, compressor) as buffer:
        add(buffer, MORE, 7)
        buffer.write("note", [ROWS - 1], np.full((1, 300), 100, "float32"))
    assert values(other) == before
    with opened(other, compressor) as buffer:  # without a warning
        assert buffer.add_count == ROWS
        add(buffer, MORE, 9)
    assert not verify(path).findings
    assert not verify(other).findings
    with diskreplay.open(path) as reader:
        assert (reader.take("reward", np.arange(ROWS, ROWS + MORE)) == 7).all()


def test_what_is_never_written_to_stays_shared(both):
    path, other, compressor = both
    opened(path, compressor).close()
    sealed = [p for p in path.rglob("c.*") if not p.stat().st_mode & 0o222]
    assert sealed
    for one in sealed:
        assert os.path.samefile(one, other / one.relative_to(path))


def test_a_cut_amid_it_leaves_both_whole(both, monkeypatch):
    """The page comes last: so the next opening knows that there is more to do."""
    path, other, compressor = both
    rename, left = files.rename, 3

    def cut(source, target):
        nonlocal left
        if source.name == "unsealed.own":
            left -= 1
            if not left:
                raise StorageError(5, "no more", str(target))
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(files, "rename", cut)
        with pytest.raises(StorageError, match="no more"):
            opened(path, compressor)
    before = values(other)
    with opened(path, compressor) as buffer:
        add(buffer, MORE, 7)
    assert values(other) == before
    assert not list(path.rglob("unsealed*"))


@pytest.mark.parametrize("closed", [False, True])
def test_readers_go_on_with_the_store_and_not_with_the_copy(tmp_path, closed):
    """They have the page mapped that is the copy's by now, and saw no row for ever."""
    path, copy = tmp_path / "store", tmp_path / "backup"
    buffer = opened(path, "raw")
    add(buffer, ROWS)
    if closed:
        buffer.close()
    with diskreplay.open(path) as reader:
        buffer.close()
        subprocess.run(["cp", "-al", path, copy], check=True)
        with diskreplay.open(copy) as of_copy:
            with opened(path, "raw") as buffer:
                add(buffer, MORE, 7)
                assert reader.add_count == ROWS + MORE
                assert (reader.take("reward", np.arange(ROWS, ROWS + MORE)) == 7).all()
                add(buffer, MORE, 8)
                assert reader.add_count == ROWS + 2 * MORE
                assert of_copy.add_count == ROWS
            with opened(copy, "raw") as other:  # whose page is the one from before
                add(other, 1, 9)
                assert of_copy.add_count == ROWS + 1
                assert reader.add_count == ROWS + 2 * MORE
    assert not verify(copy).findings


def test_a_full_disk_leaves_no_copy_that_is_not_whole(both, monkeypatch):
    path, other, compressor = both
    before = values(other)

    def full(source, target):
        target.write_bytes(source.read_bytes()[:100])
        raise StorageError(28, "full", str(target))

    with monkeypatch.context() as patched:
        patched.setattr(files, "copy", full)
        with pytest.raises(StorageError, match="full"):
            opened(path, compressor)
    assert not list(path.rglob("unsealed*"))
    assert values(path) == values(other) == before


def test_readers_go_on_after_a_kill_behind_the_exchange_of_the_page(tmp_path, monkeypatch):
    path, rename = tmp_path / "store", files.rename
    with opened(path, "raw") as buffer:
        add(buffer, ROWS)

    def killed(source, target):
        rename(source, target)
        if target.name == "state":
            raise SystemExit("killed")

    with diskreplay.open(path) as reader:
        subprocess.run(["cp", "-al", path, tmp_path / "backup"], check=True)
        with monkeypatch.context() as patched:
            patched.setattr(files, "rename", killed)
            with pytest.raises(SystemExit, match="killed"):
                opened(path, "raw")
        with opened(path, "raw") as buffer:
            add(buffer, MORE)
            assert reader.add_count == ROWS + MORE


def test_all_other_files_have_lasting_names_before_the_page(both, monkeypatch):
    """It is what the next opening looks at: after a power cut too."""
    path, _other, compressor = both
    rename, sync_dirs, lasting, own = files.rename, files.sync_dirs, set(), {}

    def renamed(source, target):
        rename(source, target)
        if source.name == "unsealed.own":
            own[target] = set(lasting)
            lasting.discard(target.parent)

    def synced(paths):
        paths = list(paths)
        sync_dirs(paths)
        lasting.update(paths)

    with monkeypatch.context() as patched:
        patched.setattr(files, "rename", renamed)
        patched.setattr(files, "sync_dirs", synced)
        opened(path, compressor).close()
    *others, page = own
    assert (page, len(others) > 3) == (path / "is_final/live/state", True)
    assert {one.parent for one in others} <= own[page]


def test_what_a_kill_left_may_have_been_copied_too(both):
    """A copy into it would be one into the other store's file, which that one goes on with."""
    path, other, compressor = both
    left = path / "is_final" / "live" / "unsealed.own"
    left.write_bytes(b"half of it")
    os.link(left, other / left.relative_to(path))
    for one in both[:2]:
        with opened(one, compressor) as buffer:
            add(buffer, MORE, 7)
    assert not os.path.samefile(path / "is_final/live/state", other / "is_final/live/state")
    for one in both[:2]:
        assert not verify(one).findings


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
OTHER = 65534

MAKE = """
import os, sys
from tests.store.test_own_files import ROWS, add, opened
path, compressor, closed = sys.argv[1:]
buffer = opened(path, compressor)
add(buffer, ROWS)
if closed == "True":
    buffer.close()
os._exit(0)  # as if it were killed
"""

GO_ON = """
import sys
import diskreplay
from tests.store.test_own_files import MORE, ROWS, add
path, checkpoints = sys.argv[1:]
def go_on():
    with diskreplay.open(path, mode="a") as buffer:
        add(buffer, 3 * MORE, 7)
        buffer.flush()
        buffer.save(checkpoints, 1)
attempt("go on", go_on)
"""


def give_away(path):
    """To another user, as if it were of a run as that one."""
    os.chown(path, OTHER, OTHER)
    if path.is_dir() or path.stat().st_mode & 0o222:
        path.chmod(path.stat().st_mode | 0o222)


@needs_root
@pytest.mark.parametrize("compressor", ["raw", "lz4"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_store_of_another_user_who_lets_all_write(tmp_path, compressor, closed):
    """Nobody else can make their files read-only once they are full."""
    path = tmp_path / "store"
    run(MAKE, path, compressor, closed, check=True)
    for each in [path, *path.rglob("*")]:
        give_away(each)
    said = run_under_modes(GO_ON, path, tmp_path / "checkpoints")
    assert said == "go on: went through\n"
    assert not list(path.rglob("unsealed*"))
    assert not verify(path).findings
    (made,) = diskreplay.checkpoints(tmp_path / "checkpoints")
    with diskreplay.open(path) as reader, diskreplay.open(made.path) as saved:
        for each in (reader, saved):
            rewards = each.take("reward", np.arange(ROWS + 3 * MORE))
            assert rewards.tolist() == [*range(ROWS), *[7] * 3 * MORE]


@needs_root
def test_what_is_not_for_this_user_to_replace_is_refused_at_once(tmp_path):
    path = tmp_path / "store"
    with opened(path, "raw") as buffer:
        add(buffer, ROWS)
    for each in [path / "zarr.json", path / "priority", *(path / "priority").iterdir()]:
        os.chown(each, OTHER, OTHER)

    def there():
        return {each: each.stat().st_ino for each in path.rglob("*")}

    before = there()
    said = run_under_modes(GO_ON, path, tmp_path / "checkpoints")
    assert "priority: it belongs to nobody, who has written to the store, and root may" in said
    assert f"`chown -R root {path}`" in said
    assert there() == before


@needs_root
@pytest.mark.parametrize("at", range(1, 6))
def test_a_cut_amid_what_was_another_users(tmp_path, monkeypatch, at):
    """The next opening does the rest, also if what told of the other user is this one's by then;
    and readers follow."""
    path, rename, left = tmp_path / "store", files.rename, at
    with opened(path, "raw") as buffer:
        add(buffer, ROWS)
    *_others, shard = sorted((path / "observation").glob("c.*"))
    others = [path / "zarr.json", path / "action/zarr.json", shard, *path.glob("is_final/c.*")]
    for each in others:
        give_away(each)

    def cut(source, target):
        nonlocal left
        left -= source.name == "unsealed.own"
        if not left:
            raise StorageError(5, "no more", str(target))
        rename(source, target)

    # Root may act for anybody.
    monkeypatch.setattr(own_files, "is_ours_to_seal", lambda path, mode: False)
    with diskreplay.open(path) as reader:
        assert reader.add_count == ROWS
        with monkeypatch.context() as patched:
            patched.setattr(files, "rename", cut)
            with pytest.raises(StorageError, match="no more"):
                opened(path, "raw")
        with opened(path, "raw") as buffer:
            add(buffer, MORE, 7)
            assert not any(map(files.is_there, path.rglob("unsealed*")))
            owners = {each.stat().st_uid for each in others if each.stat().st_mode & 0o222}
            assert owners == {os.geteuid()}
            assert (reader.take("reward", np.arange(ROWS, ROWS + MORE)) == 7).all()
    assert not verify(path).findings
