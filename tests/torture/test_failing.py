"""Each call to the system fails in its turn: some of what `tools/torture` tries."""

import sys
from pathlib import Path

import pytest

from tests.effort import effort

TORTURE = Path(__file__).resolve().parents[2] / "tools" / "torture"


@pytest.mark.costly(2)
@pytest.mark.parametrize("number", range(4))
def test_calls_that_fail(monkeypatch, number):
    """Refused with the documented error or dealt with; nothing lost; a retry works."""
    monkeypatch.syspath_prepend(TORTURE)
    import failing

    what = failing.WHAT[number::4]
    figures = failing.run(every=effort(1597, 331), what=what, first=71 * number, workers=1)
    for name in ("failing", "crew"):
        sys.modules.pop(name)
    assert figures["failures"] == []
    assert figures["tried"] > effort(1, 3)
