"""Checkpoints go to a store in memory, and come back from it."""

import contextlib
from pathlib import Path

import pytest


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("obstore")
    pytest.importorskip("torch")
    yield (names := {})
    assert names["loaded"].number == 2000
    published = names["RemoteCheckpoints"](names["URL"]).list()
    assert [one.suffix for one in published] == ["1000", "1500", "2000", "2500"]
    assert (names["start"], names["extras"]) == (None, {})
    assert names["path"].resolve() == Path("pulled/replay_ckpt.2000").resolve()
