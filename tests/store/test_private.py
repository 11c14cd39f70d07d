"""Where the private files of a live store are: as docs/format.md says."""

import errno
import os

import pytest

from diskreplay.errors import FormatError, LockedError, SchemaError, StorageError
from diskreplay.store import files, private

INSIDE = "is_final/live"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "store"
    (root / INSIDE).mkdir(parents=True)
    return root


def fill(root, *names):
    for name in names:
        path = root / INSIDE / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


def names(paths, root):
    return sorted(path.relative_to(root / INSIDE).as_posix() for path in paths)


def test_names(tmp_path):
    root = tmp_path
    assert private.directory(root) == root / INSIDE
    assert private.lock_file(root) == root / INSIDE / "lock"
    assert private.commit_page(root) == root / INSIDE / "state"
    assert private.ring(root, 12) == root / INSIDE / "ring.12"
    assert private.taker(root) == root / INSIDE / "taker"
    assert private.new_priorities(root, "priority") == root / INSIDE / "priority"
    assert private.old_priorities(root, "priority") == root / INSIDE / "priority~aside"


def test_which_are_there(root):
    fill(root, "ring.3", "ring.10", "ring.x", "ring.3.old", "ring", "priority~aside/",
         "priority.2~aside/", "priority/", "priority.3~aside", "other~aside/")  # fmt: skip
    assert names(private.rings(root), root) == ["ring.10", "ring.3"]
    assert names(private.all_old_priorities(root), root) == ["priority.2~aside", "priority~aside"]


def test_a_checkpoint_has_none(tmp_path):
    assert private.rings(tmp_path) == []
    assert private.all_old_priorities(tmp_path) == []
    assert private.begun(tmp_path) == []
    private.clear(tmp_path)
    private.check_no_rings(tmp_path, "more")


def test_what_is_of_use_only_while_rows_come_goes(root):
    keep = ["lock", "state", "ring.0", "taker", "priority/"]
    fill(root, *keep, "tail.0", "tail.12", "open.0/1.0", "open.3/7.2", "spare.1.2", "unsealed.5")
    assert names(private.begun(root), root) == ["spare.1.2", "unsealed.5"]
    private.clear(root)
    left = names((root / INSIDE).iterdir(), root)
    assert left == sorted(name.rstrip("/") for name in keep)


def test_a_new_field_waits_for_actors(root):
    private.check_no_rings(root, "more")
    fill(root, "ring.2")
    with pytest.raises(SchemaError, match=r"ring\.2: an actor's rows, which have no 'more'"):
        private.check_no_rings(root, "more")


def test_a_store_that_takes_anothers_place_has_the_same_rings(root, tmp_path):
    """Not copies: actors have them mapped."""
    fill(root, "ring.0", "ring.1", "taker", "state")
    build = tmp_path / "build"
    private.take_place_of(root, build)
    assert names((build / INSIDE).iterdir(), build) == ["ring.0", "ring.1", "taker"]
    for name in ("ring.0", "ring.1", "taker"):
        assert os.path.samefile(root / INSIDE / name, build / INSIDE / name)


def test_where_files_cannot_be_linked_nothing_takes_its_place(root, tmp_path, monkeypatch):
    fill(root, "ring.0")
    monkeypatch.setattr(files, "link", lambda _source, _target: False)
    with pytest.raises(StorageError, match="cannot link files") as caught:
        private.take_place_of(root, tmp_path / "build")
    assert caught.value.errno == errno.ENOTSUP
    (root / INSIDE / "ring.0").unlink()
    private.take_place_of(root, tmp_path / "other")  # without actors there is nothing to link


@pytest.mark.parametrize("which", ["is_final", INSIDE])
def test_a_place_that_is_a_link_is_refused(root, tmp_path, which):
    """It may lead out of the store, which may come from a stranger."""
    private.check_place(root)
    (tmp_path / "link").symlink_to(root)
    private.check_place(tmp_path / "link")  # the store itself may be behind one
    (root / which).rename(tmp_path / "elsewhere")
    (root / which).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="a link to another directory"):
        private.check_place(root)
    with pytest.raises(FormatError):
        private.hold(root)
    assert not (tmp_path / "elsewhere" / "lock").exists()


def test_the_lock_is_held_for_a_block(root):
    with private.held(root):
        with pytest.raises(LockedError), private.held(root):
            pytest.fail("two have it")
        assert private.lock_file(root).exists()
    with pytest.raises(ZeroDivisionError), private.held(root):
        raise ZeroDivisionError
    with private.held(root):
        pass
