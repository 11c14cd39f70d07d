"""A run is killed, and its store becomes a data set of every kind."""

import contextlib
import os
from pathlib import Path

import pytest

import diskreplay
from tests.blocks import ROOT


@contextlib.contextmanager
def around(said):
    for package in ("duckdb", "minari", "pandas", "pyarrow", "torch"):
        pytest.importorskip(package)
    import torch

    threads = torch.get_num_threads()  # which the page sets
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", "elsewhere")  # restored when the page has set it
        path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        try:
            yield (names := {})
        finally:
            torch.set_num_threads(threads)
    printed, frame = said(), names["frame"]
    with diskreplay.open("runs/cartpole/replay") as buffer:
        assert len(frame) == buffer.add_count >= 10_000
        assert len(frame) - len(buffer) <= 3  # none, if it died just between two episodes
    assert len(frame) - names["exported"].total_steps <= 1
    assert Path("minari/cartpole/rule-v0").is_dir()
    assert "left_to_gain" in printed
    for network in ("values", "policy"):  # both come to 400 and more; chance to 20
        assert names["play"](names[network]) > 100
