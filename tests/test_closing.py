"""A close that does not come to its end: who goes on adding loses nothing."""

import shutil
import signal

import pytest

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import files, private
from diskreplay.store.commit_page import CommitPage
from tests.numbered import ROWS, add, check, make, upkeep

pytestmark = pytest.mark.usefixtures("no_upkeep")

MORE = 40


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=["raw", "lz4"])
def buffer(request, tmp_path):
    made = make(tmp_path / "store", request.param)
    add(made, ROWS - 1)
    upkeep(made)
    yield made
    made.close()


def check_store(path, rows):
    assert not verify(path).findings
    with diskreplay.open(path, mode="a") as buffer:
        check(buffer, rows)


def check_that_it_goes_on(buffer, tmp_path):
    """Whether all rows are there that are added now: after a kill, and after a close."""
    assert not buffer.closed
    add(buffer, MORE)
    with buffer._rows.store.maintenance.lock:
        shutil.copytree(buffer.path, tmp_path / "killed")
    check_store(tmp_path / "killed", ROWS - 1 + MORE)
    buffer.close()
    check_store(buffer.path, ROWS - 1 + MORE)


def test_the_commit_page_cannot_be_synced(buffer, tmp_path, monkeypatch):
    mark = CommitPage.mark_closed

    def refused(page):
        monkeypatch.setattr(CommitPage, "mark_closed", mark)
        with monkeypatch.context() as patched:
            patched.setattr(files, "sync", refuse)
            mark(page)

    monkeypatch.setattr(CommitPage, "mark_closed", refused)
    with pytest.raises(StorageError, match="worn out"):
        buffer.close()
    check_that_it_goes_on(buffer, tmp_path)


def refuse(paths):
    raise StorageError(5, "the disk is worn out", str(next(iter(paths))))


def test_an_exception_behind_the_removal_of_a_file_for_rows_to_come(buffer, tmp_path, monkeypatch):
    """As of a second Ctrl-C, which nothing puts off."""
    removed, remove = [], files.remove

    def cut(path):
        remove(path)
        removed.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "remove", cut)
    spares = [raw.spares for raw in buffer._rows.store.raw_columns]
    for each in filter(lambda each: each.mappings, spares):
        with pytest.raises(KeyboardInterrupt):
            each.remove()
    monkeypatch.setattr(files, "remove", remove)
    has_any = buffer._rows.store.columns["observation"] in buffer._rows.store.raw_columns
    assert bool(removed) == has_any
    check_that_it_goes_on(buffer, tmp_path)


@pytest.mark.parametrize("error", [None, StorageError(5, "the disk is worn out", "here")])
def test_a_store_that_says_that_it_is_closed_gets_no_more_rows(
    buffer, tmp_path, monkeypatch, error
):
    """Ctrl-C, or what cannot be removed, behind the mark."""
    clear = private.clear

    def cut(root):
        clear(root)
        if error is not None:
            raise error
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(private, "clear", cut)
    if error is None:
        with pytest.raises(KeyboardInterrupt):
            buffer.close()
    else:
        buffer.close()
    monkeypatch.setattr(private, "clear", clear)
    assert buffer.closed
    check_store(buffer.path, ROWS - 1)
