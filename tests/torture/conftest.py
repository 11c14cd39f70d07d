"""The tools as modules, for tests that call parts of them."""

import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).resolve().parents[2] / "tools" / "torture"


@pytest.fixture
def tools(monkeypatch):
    """The modules of `tools/torture` can be imported within the test."""
    monkeypatch.syspath_prepend(TORTURE)
    yield
    for name in ("crew", "disk", "examiner", "recording", "workload", "power"):
        sys.modules.pop(name, None)
