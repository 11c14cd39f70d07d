"""Batches are tensors, and `map` has changed them."""

import contextlib

import pytest


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("torch")
    yield (names := {})
    assert names["batch"]["observation"].shape == (32, 4, 84, 84)
    assert names["batch"]["reward"].max() == pytest.approx(2 * (1 + 0.99 + 0.99**2))
