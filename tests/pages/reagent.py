"""Rows go through a buffer, its checkpoint, and a store that is made of that."""

import contextlib

import pytest

import diskreplay

CHANGED = {"1_000_000": "1_000"}


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("torch")
    yield (names := {})
    assert names["batch"].state.shape == (32, 84, 84, 4)
    with diskreplay.open("store") as reader:
        assert reader.add_count == 100
