"""A short run of tools/torture/places; a long one is `tools/torture/run places`."""

import random
import sys
from pathlib import Path

import pytest

from tests.effort import effort

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import places  # noqa: E402 - of the tools
import specimen  # noqa: E402

import diskreplay  # noqa: E402


@pytest.mark.costly
def test_walks():
    found = places.run(rounds=effort(3, 8), seed=40)
    assert found["failures"] == []
    assert found["done"]["move"] > 0
    assert found["done"]["add"] > 0


def test_a_store_that_is_gone_is_seen(tmp_path):
    walk = places._Walk(tmp_path / "walk", random.Random(0))
    with diskreplay.PrioritizedReplayBuffer(walk.base / "a", **specimen.OPTIONS) as buffer:
        specimen.add(buffer, 20)
    inode = (walk.base / "a").stat().st_ino
    walk.rows[inode] = 20
    walk._look()
    walk.rows[inode] = 21
    with pytest.raises(AssertionError, match="20 rows, not 21"):
        walk._look()
    (walk.base / "a").rename(walk.base / "elsewhere")
    with pytest.raises(AssertionError, match="a store is gone"):
        walk._look()
