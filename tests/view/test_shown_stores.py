"""Which stores and checkpoints the page finds."""

import pytest

import diskreplay
from diskreplay.errors import FormatError
from diskreplay.view import shown_stores
from diskreplay.view.shown_stores import LeftOut, ShownStores
from tests.permission import run_under_modes
from tests.pictures.making import record


def test_stores_and_checkpoints_are_found(tmp_path):
    record(tmp_path / "a" / "b" / "store", (3,))
    record(tmp_path / "other", (3,))
    (tmp_path / "a" / "file").write_text("no store")
    with diskreplay.open(tmp_path / "other", mode="a") as buffer:
        saved = buffer.save(tmp_path / "checkpoints", 7)
    found = ShownStores([tmp_path]).all()
    assert [(s.path, s.is_checkpoint) for s in found] == [
        (tmp_path / "a" / "b" / "store", False), (tmp_path / "other", False), (saved, True),
    ]  # fmt: skip
    assert len({s.key for s in found}) == 3
    assert [s.path for s in ShownStores([saved]).all()] == [saved]


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path, what in ((tmp_path / "file", "a file"), (tmp_path / "none", "no such directory")):
        with pytest.raises(FormatError, match=f"{what}; a store, .* or a directory of them"):
            ShownStores([path])


OF_OTHERS = """
import sys
from pathlib import Path
from diskreplay.view.shown_stores import ShownStores
print(*(found.path for found in ShownStores([Path(sys.argv[1])]).all()), sep="\\n")
"""


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_what_may_not_be_looked_into_hides_nothing_else(tmp_path, mode):
    for name in ("a", "of-others", "z"):
        record(tmp_path / name, (3,))
    closed = tmp_path / "of-others"
    closed.chmod(mode)
    try:
        found = run_under_modes(OF_OTHERS, tmp_path).split()
    finally:
        closed.chmod(0o755)
    assert found == [str(tmp_path / "a"), str(tmp_path / "z")]


def test_more_than_are_shown(tmp_path, monkeypatch):
    """Live stores come before checkpoints, of which the newest are shown; what was given is shown
    whatever else there is."""
    monkeypatch.setattr(shown_stores, "_MOST_STORES", 3)
    runs, saved = [tmp_path / "runs" / name for name in "ab"], []
    for run in runs:
        record(run / "replay", (3,))
        with diskreplay.open(run / "replay", mode="a") as buffer:
            saved += [buffer.save(run / "checkpoints", number, keep=None) for number in (1, 2)]
    live = [run / "replay" for run in runs]
    found, left_out = ShownStores([tmp_path]).look()
    assert [store.path for store in found] == [*live, saved[3]]
    assert left_out == LeftOut(stores=0, checkpoints=3, directories=0)
    found, left_out = ShownStores([tmp_path, live[1], saved[0]]).look()
    assert [store.path for store in found] == [*live, saved[0], saved[2], saved[3]]
    assert left_out == LeftOut(stores=0, checkpoints=1, directories=0)
    monkeypatch.setattr(shown_stores, "_MOST_STORES", 1)
    found, left_out = ShownStores([tmp_path]).look()
    assert [store.path for store in found] == live[:1]
    assert left_out == LeftOut(stores=1, checkpoints=4, directories=0)


def test_a_large_directory_hides_neither_what_is_near_nor_what_was_given(tmp_path, monkeypatch):
    monkeypatch.setattr(shown_stores, "_MOST_DIRECTORIES", 20)
    for number in range(30):
        (tmp_path / "many" / "a" / str(number)).mkdir(parents=True)
    record(tmp_path / "many" / "z", (3,))
    record(tmp_path / "other", (3,))
    found, left_out = ShownStores([tmp_path / "many", tmp_path / "other"]).look()
    assert [store.path for store in found] == [tmp_path / "many" / "z", tmp_path / "other"]
    assert left_out.directories > 0
    assert left_out == LeftOut(directories=left_out.directories)
