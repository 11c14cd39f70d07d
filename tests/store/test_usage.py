"""How much the files of a directory take, beside what `os` says of each."""

import os

from diskreplay.store import usage


def test_files_by_their_names_and_nothing_below(tmp_path):
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(bytes(range(256)) * 400)
    (tmp_path / "empty").touch()
    with open(tmp_path / "hole", "wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "inside").write_bytes(bytes(9999))
    found = usage.sizes(tmp_path)
    names = ("small", "large", "empty", "hole")
    assert found == {name: os.stat(tmp_path / name).st_blocks * 512 for name in names}
    assert found["large"] >= 256 * 400
    assert found["hole"] < 1 << 20


def test_a_link_counts_for_itself_only(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "large").write_bytes(bytes(100_000))
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").symlink_to(tmp_path / "there" / "large")
    (place / "directory").symlink_to(tmp_path / "there")
    (place / "nowhere").symlink_to(tmp_path / "gone")
    found = usage.sizes(place)
    assert found.keys() == {"file", "directory", "nowhere"}
    assert max(found.values()) < 100_000


def test_where_there_is_no_directory_there_is_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert usage.sizes(tmp_path / "gone") == {}
    assert usage.sizes(tmp_path / "file") == {}
    assert usage.sizes(tmp_path / "file" / "below") == {}


def test_a_file_that_goes_after_it_was_listed_is_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    scandir = os.scandir

    class Late:
        """The entries, of which one is removed before anybody asks for it."""

        def __init__(self, path):
            self._inside = scandir(path)

        def __enter__(self):
            found = list(self._inside)
            (tmp_path / "a").unlink()
            return iter(found)

        def __exit__(self, *_error):
            self._inside.close()

    monkeypatch.setattr(usage.os, "scandir", Late)
    assert usage.sizes(tmp_path).keys() == {"b"}
