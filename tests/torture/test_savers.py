"""A short run of tools/torture/savers; a long one is `tools/torture/run savers`."""

import shutil
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import savers  # noqa: E402 - of the tools
import specimen  # noqa: E402

import diskreplay  # noqa: E402


@pytest.mark.costly(1)
@pytest.mark.parametrize("shared", [True, False])
def test_threads(tmp_path, shared):
    found = savers.threads(tmp_path, 0.5, shared=shared)
    assert found["acknowledged"] >= 2 * savers.WRITERS
    assert found["there"] > 0


@pytest.mark.costly
def test_processes_that_all_are_number_1(tmp_path):
    found = savers.processes(tmp_path, 0.5, shared=True)
    assert found["acknowledged"] >= 4 * savers.WRITERS


@pytest.fixture
def saved(tmp_path):
    with diskreplay.PrioritizedReplayBuffer(tmp_path / "store", **specimen.OPTIONS) as buffer:
        specimen.add(buffer, 30)
        return buffer.save(tmp_path / "checkpoints", 1)


def test_a_checkpoint_that_is_gone_is_seen(tmp_path, saved):
    assert savers._look(tmp_path, [(saved.name, 30)], {"replay"}, under_way=False) == 1
    shutil.rmtree(saved)
    with pytest.raises(savers.Failed, match="is not there"):
        savers._look(tmp_path, [(saved.name, 30)], {"replay"}, under_way=False)


def test_a_checkpoint_with_other_rows_is_seen(tmp_path, saved):
    with pytest.raises(savers.Failed, match="30 rows"):
        savers._look(tmp_path, [(saved.name, 29)], {"replay"}, under_way=False)


def test_a_broken_checkpoint_is_seen(tmp_path, saved):
    (saved / "reward" / "c.0.0").unlink()
    with pytest.raises(savers.Failed, match=r"reward"):
        savers._look(tmp_path, [(saved.name, 30)], {"replay"}, under_way=False)


def test_what_is_left_behind_is_seen(tmp_path, saved):
    savers._sweep(tmp_path, {"replay"})
    (saved.parent / ".strange").mkdir()
    with pytest.raises(savers.Failed, match=r"\.strange"):
        savers._sweep(tmp_path, {"replay"})
