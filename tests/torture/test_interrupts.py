"""A short run of tools/torture/interrupts; a long one is `tools/torture/run interrupts`."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import interrupts  # noqa: E402 - of the tools

# What was cut may hold an open file, and a `__del__` may be cut.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.costly
def test_signals_at_random_moments(tmp_path):
    found = interrupts.run(seconds=3, seed=5, directory=tmp_path)
    assert found["failures"] == []
    assert sum(found["cuts"].values()) > 20


def test_each_cut_is_counted_once(tmp_path, monkeypatch):
    answers = [interrupts.Cut(), None, interrupts.diskreplay.ClosedError("closed"), None]
    monkeypatch.setattr(interrupts.Calls, "cut", lambda _calls, _name: answers.pop(0))
    monkeypatch.setattr(interrupts.Calls, "check", lambda _calls: None)
    clock = SimpleNamespace(monotonic=lambda: -len(answers), perf_counter=lambda: 0.0)
    monkeypatch.setattr(interrupts, "time", clock)
    found = interrupts.run(seconds=4, directory=tmp_path)
    assert not answers
    assert sum(found["cuts"].values()) == sum(found["others"].values()) == 1
    assert found["failures"] == []
    assert not any(tmp_path.iterdir())


def test_a_call_that_is_never_cut_is_a_failure(tmp_path, monkeypatch):
    for name, answer in (("draw", "add"), ("cut", None), ("check", None)):
        monkeypatch.setattr(interrupts.Calls, name, lambda *_what, answer=answer: answer)
    found = interrupts.run(seconds=0.1, directory=tmp_path)
    assert len(found["failures"]) == 1
    assert "add was made" in found["failures"][0]


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (lambda buffer: buffer._lock.acquire(), "a lock is held"),
        (lambda buffer: buffer._busy.add(interrupts.threading.get_ident()), "busy"),
        (lambda buffer: setattr(buffer._rows.store.rwlock, "_inside", 1), "a reader is inside"),
    ],
)
def test_what_is_left_behind_is_seen(tmp_path, monkeypatch, leave, says):
    calls = interrupts.Calls(tmp_path, interrupts.random.Random(1))
    calls._end_prefetch()
    calls.check()
    buffer = calls.buffers[0]
    leave(buffer)
    monkeypatch.setattr(interrupts, "_PATIENCE_S", 0.1)
    with pytest.raises(AssertionError, match=says):
        calls.check()
    while buffer._lock._is_owned():
        buffer._lock.release()
    buffer._busy.clear()
    buffer._rows.store.rwlock._inside = 0
    assert calls.end() == []
