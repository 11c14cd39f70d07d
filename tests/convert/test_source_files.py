"""Files that another export replaces while they are read."""

import pytest

from diskreplay.convert.source_files import SourceFiles
from diskreplay.errors import FormatError, StorageError


def test_what_was_replaced_is_refused(tmp_path):
    table, other = tmp_path / "table", tmp_path / "other"
    table.write_text("old")
    source = SourceFiles(table, lambda: {"table": table})
    with source:
        pass
    with pytest.raises(FormatError, match=r"^damaged$"), source:
        raise FormatError("damaged")
    other.write_text("new")
    other.rename(table)
    with pytest.raises(StorageError, match=r"table: was replaced while it was read.* again$"):
        with source:
            pass
    with pytest.raises(StorageError, match="replaced while it was read") as caught, source:
        raise FormatError("damaged")
    assert isinstance(caught.value.__context__, FormatError)
    with pytest.raises(KeyboardInterrupt), source:
        raise KeyboardInterrupt


@pytest.mark.parametrize("change", ["less", "more"])
def test_files_that_come_or_go(tmp_path, change):
    (tmp_path / "a").touch()
    source = SourceFiles(tmp_path, lambda: {path.name: path for path in tmp_path.iterdir()})
    with pytest.raises(StorageError, match="replaced while it was read"), source:
        (tmp_path / "a").unlink() if change == "less" else (tmp_path / "b").touch()
