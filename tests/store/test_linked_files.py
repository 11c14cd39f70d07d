"""Files that get a second name, or a copy where there can be no link."""

import os

import pytest

from diskreplay.store import files
from diskreplay.store.linked_files import LinkedFiles


@pytest.fixture
def sources(tmp_path):
    paths = [tmp_path / f"source{number}" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 9)
    return paths


def test_a_link_needs_no_copy(tmp_path, sources):
    linked = LinkedFiles()
    for path in sources:
        linked.link(path, tmp_path / f"{path.name}.2")
    assert linked.run() == []
    assert all((tmp_path / f"{path.name}.2").samefile(path) for path in sources)


def test_after_one_that_cannot_be_linked_all_are_copied_and_read_only(
    tmp_path, sources, monkeypatch
):
    """The file systems differ: no other one would have been linked either."""
    asked = []

    def refuse(source, target):
        asked.append(source)
        return False

    linked = LinkedFiles()
    linked.link(sources[0], tmp_path / "first")
    monkeypatch.setattr(files, "link", refuse)
    targets = [tmp_path / f"{path.name}.2" for path in sources]
    for source, target in zip(sources, targets, strict=True):
        linked.link(source, target)
        assert not target.exists()
    assert asked == sources[:1]
    assert linked.run() == targets
    for source, target in zip(sources, targets, strict=True):
        assert target.read_bytes() == source.read_bytes()
        assert not target.samefile(source)
        assert not os.stat(target).st_mode & 0o222
