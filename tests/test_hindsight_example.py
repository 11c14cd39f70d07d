"""docs/examples/hindsight.py learns with hindsight, and does not without."""

import runpy

import pytest

from tests.blocks import ROOT


@pytest.mark.costly
def test_the_example_learns_with_hindsight_and_not_without(tmp_path):
    pytest.importorskip("torch")
    names = runpy.run_path(str(ROOT / "docs/examples/hindsight.py"))
    share = {
        hindsight: names["train"](
            tmp_path / str(hindsight), hindsight=hindsight, bits=8, episodes=400
        )
        for hindsight in (True, False)
    }
    assert share[True] > 0.7
    assert share[False] < 0.3
