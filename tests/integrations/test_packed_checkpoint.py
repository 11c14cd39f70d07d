"""The files of a directory as one value, and back."""

import pytest

from diskreplay.errors import FormatError
from diskreplay.integrations.packed_checkpoint import packed, unpacked


def test_files_come_back_where_they_were(tmp_path):
    directory = tmp_path / "replay_ckpt.7"
    contents = {"zarr.json": b"{}", "a/b/c.0": b"\0\1", "a/empty": b""}
    for name, data in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (directory / "nothing").mkdir()
    found = packed(directory)
    assert found == contents
    again = unpacked(found, tmp_path / "room")
    assert again.parent == tmp_path / "room"
    assert packed(again) == contents


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "..", "", "."])
def test_names_that_lead_out_are_refused(tmp_path, name):
    with pytest.raises(FormatError, match="no file of a checkpoint"):
        unpacked({name: b"data"}, tmp_path / "room")
    assert not (tmp_path / "x").exists()
