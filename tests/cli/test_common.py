"""What commands share: JSON, texts, consoles, progress."""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from diskreplay.cli import common


@dataclass(frozen=True)
class Inner:
    values: np.ndarray
    path: Path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(2**62), 2**62),
        (np.bool_(True), True),
        (float("nan"), None),
        (np.array([1.0, -np.inf]), [1.0, None]),
        ({0.5: (1, None)}, {"0.5": [1, None]}),
        (Inner(np.arange(2), Path("a/b")), {"values": [0, 1], "path": "a/b"}),
        ({"dtype": np.dtype("uint8")}, {"dtype": "uint8"}),
        ("text", "text"),
    ],
)
def test_plain(value, expected):
    assert common.plain(value) == expected
    json.dumps(common.plain(value), allow_nan=False)


def test_json_is_printed(capsys):
    common.say_json({"a": np.float64("nan"), "b": [np.int8(1)]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1]}


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_only_on_a_terminal(monkeypatch, terminal):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=80)
    monkeypatch.setattr(common, "error_console", console)
    with common.progress("reading", total=4) as advance:
        advance()
        advance(2, total=3)
    assert ("reading" in screen.getvalue()) == terminal


EVIL = "\x1b]0;title\x07\x1b[31m\x9b32m\u202e\u2066 [bold]b[/nope] :fire:"


@pytest.mark.parametrize("command", ["info", "stats", "episodes", "verify", "checkpoints"])
def test_what_a_stranger_wrote_is_text(make, cli, tmp_path, command):
    """Neither the terminal nor the library that prints takes paths or metadata for orders."""
    run = tmp_path / f"run{EVIL}"
    buffer = make(run / "replay", metadata={"env_id": EVIL, EVIL: {"a": EVIL}})
    for _ in range(3):
        buffer.add(np.zeros((12, 16), np.uint8), 0, 0.0, False, False, score=0.0)
    buffer.save(run / "checkpoints", 1)
    buffer.close()
    done = cli(command, run / ("checkpoints" if command == "checkpoints" else "replay"))
    failed = cli(command, run / "nowhere", code=3)
    for shown in (done.output, failed.output):
        assert all(char.isprintable() or char == "\n" for char in shown), ascii(shown)
    folded = "".join(failed.output.split())
    assert "[bold]b[/nope]" in folded
    assert ":fire:" in folded


def test_a_path_that_is_no_utf8_is_shown(tmp_path):
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict")
    console = common._Console(file=stream, width=80)
    console.print(os.fsdecode(b"st\xffre"), soft_wrap=True)
    stream.seek(0)
    assert stream.read() == "st\N{REPLACEMENT CHARACTER}re\n"
