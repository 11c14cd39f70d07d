"""What is synced before a file of a column takes the place of one that the record counts on."""

import pytest

from diskreplay.store import files
from diskreplay.store.maintenance import Maintenance
from tests.store.test_drift import Twin, with_a_slow_env


@pytest.fixture
def events(monkeypatch):
    """Each file that is synced, and each that gets another name, in their order."""
    found, sync, rename = [], files.sync, files.rename

    def note_sync(paths):
        paths = list(paths)
        sync(paths)
        found.extend(("sync", path) for path in paths)

    def note_rename(source, target):
        rename(source, target)
        found.append(("rename", source))

    monkeypatch.setattr(files, "sync", note_sync)
    monkeypatch.setattr(files, "rename", note_rename)
    return found


@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_a_copy_to_go_on_in_is_synced_before_it_has_its_name(
    tmp_path, monkeypatch, compressor, events
):
    twin = with_a_slow_env(tmp_path / "live", monkeypatch, compressor, rows=50)
    twin.buffer.flush()
    del events[:]
    for _ in range(16):
        twin.step([False, True])
    twin.buffer.flush()  # which compresses them
    renamed = [path for what, path in events if what == "rename" and "unsealed" in path.name]
    assert renamed
    for path in renamed:
        assert events.index(("sync", path)) < events.index(("rename", path))
    twin.check()
    twin.buffer.close()


def test_a_shard_is_synced_before_it_takes_the_place_of_what_a_flush_wrote(
    tmp_path, monkeypatch, events
):
    monkeypatch.setattr(Maintenance, "wake", lambda self: None)
    twin = Twin(tmp_path / "live", num_envs=2, kept=None, compressor="lz4", segment_rows=16,
                env_group=2)  # fmt: skip
    for _ in range(12):
        twin.step([True, True])
    twin.buffer.flush()
    paths = twin.buffer._rows.store.columns["observation"].files.paths
    del events[:]
    for _ in range(8):
        twin.step([True, True])
    twin.buffer._rows.store.maintenance.run()
    appended = paths.open_segment(0, 0)
    assert events.index(("sync", appended)) < events.index(("rename", appended))
    twin.buffer.close()
