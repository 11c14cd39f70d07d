"""The power goes out under the kernel's file systems: what `tools/torture` tries at length."""

import pytest

from tests.effort import effort

pytestmark = [pytest.mark.usefixtures("tools"), pytest.mark.costly(0)]


def on(file_system, **options):
    """Some cuts on one that is there."""
    import blackout

    return blackout.run(file_systems=[usable(file_system)], rounds=1, workers=1, **options)


def usable(file_system):
    import blackout

    if file_system not in blackout.usable():
        pytest.skip(f"needs root, a loop device, and what makes and mounts {file_system}")
    return file_system


@pytest.mark.parametrize("file_system", ["ext4", "ext4, data=writeback", "xfs", "btrfs"])
def test_what_was_promised_is_there_when_the_file_system_has_recovered(file_system):
    figures = on(file_system, settings=[1, 9], cuts=effort(4, 8))
    assert figures["failures"] == []
    assert figures["opened"] > 4


def test_a_promise_that_is_not_kept_is_seen(monkeypatch):
    """The examination can fail: here nothing is ever synced."""
    from diskreplay.store import files

    monkeypatch.setattr(files, "sync", lambda paths: [None for _path in paths])
    assert on("ext4", settings=[0], cuts=8)["failures"]
