"""Two runs that go on from their checkpoints end as those without a stop."""

import contextlib

import pytest


@contextlib.contextmanager
def around(said):
    torch = pytest.importorskip("torch")
    yield (names := {})
    lines = said().splitlines()
    assert lines[0].startswith("goes on at 400, saved 20")
    assert lines[1] == "[400, 600]"
    assert lines[3:] == ["600 600 transitions, ['network', 'optimizer']"]
    assert lines[2] == str(names["play"]("twice/replay", "twice/checkpoints", 300))
    once = names["train"]("once/replay", "once/checkpoints", 600)
    for one, other in zip(once.parameters(), names["network"].parameters(), strict=True):
        assert torch.equal(one, other)
