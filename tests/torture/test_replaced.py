"""The power goes out while a command replaces what is there: `tools/torture` does it at length."""

import pytest

from tests.torture.test_blackout import usable

pytestmark = [pytest.mark.usefixtures("tools"), pytest.mark.costly(0)]


@pytest.mark.parametrize("command", ["parquet", "npz", "parts", "dopamine", "convert", "merge"])
def test_the_old_one_is_there_or_the_new_one(command):
    import replaced

    figures = replaced.run(
        commands=[command], file_systems=[usable("ext4")], rounds=2, cuts=4, workers=1
    )
    assert figures["failures"] == []
    assert figures["new"] >= 2


def test_what_is_not_synced_is_seen_to_be_lost(monkeypatch):
    import replaced

    from diskreplay.store import files

    monkeypatch.setattr(files, "sync", lambda paths: [None for _path in paths])
    figures = replaced.run(
        commands=["parquet"], file_systems=[usable("xfs")], rounds=2, cuts=4, workers=1
    )
    assert figures["failures"]
