"""Which stores and checkpoints the page finds."""

import pytest

import diskreplay
from diskreplay.errors import FormatError
from diskreplay.view.shown_stores import ShownStores
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
