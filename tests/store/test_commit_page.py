"""A commit page whose figures are not those of the record: no row is left out without a word."""

import shutil
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import CorruptSegmentError, FormatError, StorageError
from diskreplay.store import commit_page, files
from diskreplay.store.commit_page import says_closed

RECORDED, ROWS = 20, 27
STATE = "is_final/live/state"
CLOSED_AT, COUNT_AT = 8, 4096  # docs/format.md


@pytest.fixture(scope="module", params=["lz4", "raw"])
def killed(request, tmp_path_factory):
    """A store as a kill leaves it, with rows that its record does not name."""
    place = tmp_path_factory.mktemp("killed")
    with diskreplay.ReplayBuffer(
        place / "live", observation_space=Box(0, 255, (4,), "uint8"), action_space=Discrete(3),
        capacity=100, segment_rows=16, compressor=request.param,
    ) as buffer:  # fmt: skip
        maintenance = buffer._rows.store.maintenance
        add(buffer, RECORDED)
        buffer.flush()
        with maintenance.lock:  # no record is written meanwhile
            add(buffer, ROWS - RECORDED)
            shutil.copytree(place / "live", place / "killed")
    return place / "killed"


@pytest.fixture
def store(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "store")


def add(buffer, rows):
    for row in range(rows):
        buffer.add(np.full(4, buffer.add_count, np.uint8), row % 3, 1.0, False, False)


def put_number(store, at, number):
    with open(store / STATE, "r+b") as file:
        file.seek(at)
        file.write(number.to_bytes(8, "little", signed=True))


def rows_of(store, mode):
    with diskreplay.open(store, mode=mode) as buffer:
        assert buffer.bounds[0, 0] == 0
        rows = int(buffer.bounds[0, 1])
        assert buffer.take("observation", np.arange(rows))[:, 0].tolist() == list(range(rows))
        return rows


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_sound_one(store, mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows_of(store, mode) == ROWS


@pytest.mark.parametrize(
    ("at", "number", "said"),
    [(COUNT_AT, count, rf"{RECORDED}\D") for count in (RECORDED - 1, 0, -1, -(2**63))]
    + [(CLOSED_AT, 1, rf"\[{ROWS}\].*\[{RECORDED}\]")],
)
@pytest.mark.costly(4)
def test_other_rows_are_counted_than_recorded(store, at, number, said):
    """Fewer; or more, in a store that says that it was closed."""
    put_number(store, at, number)
    assert not verify(store).clean
    with pytest.raises(FormatError, match=rf"state: .*{said}.*let a writer open"):
        rows_of(store, "r")
    with pytest.warns(RuntimeWarning, match=rf"state: damaged.*\[{RECORDED}\] recorded"):
        assert rows_of(store, "a") == RECORDED
    test_nothing_is_said_again(store)


def test_it_is_missing(store):
    """To a reader the store looked like a checkpoint, with the rows that the record names."""
    (store / STATE).unlink()
    assert "missing" in {finding.kind for finding in verify(store).findings}
    for mode in ("r", "a"):
        with pytest.raises(CorruptSegmentError, match=f"{STATE}: missing"):
            rows_of(store, mode)
    assert repair(store).aside is not None
    assert rows_of(store, "r") >= RECORDED
    test_nothing_is_said_again(store)


def test_nothing_is_said_again(store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = rows_of(store, "r")
        assert rows_of(store, "a") == before
        assert rows_of(store, "r") == before


def test_a_power_cut_while_it_is_marked_as_closed(store, monkeypatch):
    """The first block, with the mark, reaches the disk, and the counts behind it do not."""
    real, synced = files.sync, []

    def sync(paths):
        real(paths := list(paths))
        synced.extend(path.read_bytes() for path in paths if path == store / STATE)

    monkeypatch.setattr(files, "sync", sync)
    with diskreplay.open(store, mode="a") as buffer:  # which syncs the page, too
        add(buffer, 5)
        rows = buffer.bounds.tolist()
    before, after = synced[-2:]
    assert (before[CLOSED_AT], after[CLOSED_AT]) == (0, 1)
    (store / STATE).write_bytes(after[:COUNT_AT] + before[COUNT_AT:])
    with warnings.catch_warnings(action="error"):
        for mode in ("r", "a"):
            with diskreplay.open(store, mode=mode) as buffer:
                assert buffer.bounds.tolist() == rows


def test_whether_it_was_closed_is_read_from_the_page_alone(store):
    page = store / STATE
    assert not says_closed(page)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diskreplay.open(store, mode="a").close()
    assert says_closed(page)
    page.write_bytes(page.read_bytes()[:CLOSED_AT])  # cut off: it does not say so
    assert not says_closed(page)
    page.unlink()
    assert says_closed(page)  # as of a checkpoint
    page.symlink_to(store / "zarr.json")
    with pytest.raises(StorageError, match="no regular file"):
        says_closed(page)


def test_what_belongs_together_is_looked_at_in_one_order(store, monkeypatch):
    """Whatever the order in which a processor loads: a fence stands between two looks."""
    page, looked = commit_page.CommitPage(store / STATE, 1, 0, writable=False), []

    class Noted:
        def __init__(self, name):
            self.name, self.array = name, getattr(page, name)

        def copy(self):
            looked.append(self.name)
            return self.array.copy()

        def __array__(self, *_arguments, **_options):
            return self.array

    for name in ("first", "finals", "count"):
        setattr(page, name, Noted(name))
    monkeypatch.setattr(commit_page, "barrier", lambda: looked.append("fence"))
    page.snapshot()
    assert looked == ["first", "finals", "fence", "count", "fence"]
