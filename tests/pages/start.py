"""The first run leaves a table, as Parquet too."""

import contextlib
from pathlib import Path

import pytest


@contextlib.contextmanager
def around(said):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    yield {}
    assert "mean" in said()
    assert Path("first.parquet").exists()
