"""Files of segments to come, which are in their places before there is a row for them."""

import errno
import shutil

import numpy as np
import pytest

from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import files
from diskreplay.store.store import Store
from tests.numbered import ROWS, add, check, make, upkeep

pytestmark = pytest.mark.usefixtures("no_upkeep")


def chunks(path):
    return sorted(file.name for file in (path / "observation").glob("c.*"))


def test_a_segment_is_opened_without_a_file_being_made_or_renamed(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        add(buffer, ROWS - 1)
        upkeep(buffer)
        assert chunks(tmp_path / "store") == ["c.0.0.0.0", "c.1.0.0.0"]
        add(buffer, 1)
        large = buffer._rows.store.columns["observation"]
        touched = []
        for name in ("rename", "allocate"):
            known = getattr(files, name)

            def noted(*arguments, known=known):
                touched.append(arguments)
                return known(*arguments)

            monkeypatch.setattr(files, name, noted)
        large.reserve(np.zeros(1, np.int64), np.full(1, ROWS))
        assert not touched
        add(buffer, 5)
        check(buffer, ROWS + 5)


@pytest.mark.parametrize("late", [0, 1, 5])
def test_upkeep_that_comes_when_the_segment_is_full_or_the_next_has_begun(tmp_path, late):
    with make(tmp_path / "store") as buffer:
        add(buffer, ROWS + late)
        upkeep(buffer)
        add(buffer, 2 * ROWS)
        check(buffer, 3 * ROWS + late)
    assert not verify(tmp_path / "store").findings


def test_none_is_left_when_the_store_is_closed_or_opened_after_a_kill(tmp_path):
    path = tmp_path / "store"
    with make(path) as buffer:
        add(buffer, ROWS - 1)
        upkeep(buffer)
        assert len(chunks(path)) == 2
        shutil.copytree(path, tmp_path / "killed")
        assert not verify(tmp_path / "killed").findings
    assert chunks(path) == ["c.0.0.0.0"]
    for name in ("store", "killed"):
        with make(tmp_path / name) as buffer:
            assert chunks(tmp_path / name) == ["c.0.0.0.0"]
            check(buffer, ROWS - 1)
            add(buffer, 10)
            check(buffer, ROWS + 9)
        assert not verify(tmp_path / name).findings


def test_one_that_a_close_is_not_let_remove_goes_at_the_next_opening(tmp_path, monkeypatch):
    """It stayed until a row came for it, and `verify` named it after each close."""
    path, remove = tmp_path / "store", files.remove

    def refused(file):
        if file.name.startswith("c.1."):
            raise StorageError(errno.EIO, "no", str(file))
        remove(file)

    with make(path) as buffer:
        add(buffer, ROWS - 1)
        upkeep(buffer)
        monkeypatch.setattr(files, "remove", refused)
    assert chunks(path) == ["c.0.0.0.0", "c.1.0.0.0"]
    with make(path) as buffer:  # refused again, which is no reason not to open the store
        check(buffer, ROWS - 1)
    assert chunks(path) == ["c.0.0.0.0", "c.1.0.0.0"]
    monkeypatch.setattr(files, "remove", remove)
    with make(path) as buffer:
        assert chunks(path) == ["c.0.0.0.0"]
        check(buffer, ROWS - 1)
    assert not verify(path).findings


def test_a_kill_while_closing_leaves_none(tmp_path, monkeypatch):
    path, mark = tmp_path / "store", Store.mark_closed

    def marked(store):
        mark(store)
        store.maintenance.run(spares=True)  # a pass of the thread comes between
        shutil.copytree(path, tmp_path / "killed")

    monkeypatch.setattr(Store, "mark_closed", marked)
    with make(path) as buffer:
        add(buffer, ROWS - 1)
        upkeep(buffer)
    assert chunks(tmp_path / "killed") == ["c.0.0.0.0"]
    assert not verify(tmp_path / "killed").findings


def test_a_load_takes_none_of_the_files_that_come_into_its_place(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 2 * ROWS + 7)
        buffer.save(tmp_path / "checkpoints", 1)
        add(buffer, ROWS - 8)
        upkeep(buffer)
        buffer.load(tmp_path / "checkpoints", 1)
        check(buffer, 2 * ROWS + 7)
        add(buffer, 2 * ROWS)
        check(buffer, 4 * ROWS + 7)
    with make(tmp_path / "store") as buffer:
        check(buffer, 4 * ROWS + 7)
