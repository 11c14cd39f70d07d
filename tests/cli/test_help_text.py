"""What `--help` prints: examples on lines of their own, and names that are not broken."""

import re

import pytest
import typer
from typer.testing import CliRunner

from diskreplay.cli.help_text import Command, Commands

app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None)


@app.callback(epilog="""\
Two paragraphs.

- one thing
- another thing

Examples: `diskreplay info a` and `diskreplay info b`
""")  # fmt: skip
def callback():
    """All commands."""


@app.command(cls=Command, epilog="""\
**Examples**:

    diskreplay show replay --number 3 --a-very-long-option-that-would-be-broken-in-the-middle

Whatever: this is no example.
""")  # fmt: skip
def show(
    path: str = typer.Argument(..., metavar="PATH", help="A store."),
    out: str = typer.Argument(None, help="Where to."),
    number: int = typer.Option(3, min=1, help="How many."),
    hidden: bool = typer.Option(False, hidden=True),
):
    """Show a store,
    in two lines.

    And more of it.
    """


@app.command(cls=Command)
def other():
    """Another one."""


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")

    def run(*arguments):
        result = CliRunner().invoke(app, [*arguments, "--help"])
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_a_command(shown):
    text = shown("show")
    lines = text.splitlines()
    assert "PATH [OUT]" in lines[0]
    assert any(line.split() == ["PATH", "A", "store."] for line in lines)
    number = next(line for line in lines if "--number" in line)
    # Typer before 0.27 says INTEGER RANGE.
    assert re.match(r"\s+--number (INT|INTEGER RANGE) +How many\.", number), number
    assert "<int" not in text
    assert "hidden" not in text
    (example,) = (line for line in lines if "diskreplay show" in line)
    assert example == (
        "    diskreplay show replay --number 3 "
        "--a-very-long-option-that-would-be-broken-in-the-middle"
    )
    assert "**" not in text
    assert "Whatever: this is no example." in text
    assert text.index("Arguments") < text.index("Options")


def test_all_commands(shown):
    text = shown()
    lines = [line.split() for line in text.splitlines()]
    assert ["show", "Show", "a", "store,", "in", "two", "lines."] in lines
    assert ["other", "Another", "one."] in lines
    assert "And more of it" not in text
    assert "    one thing\n    another thing\n" in text
    assert "Examples:\n    diskreplay info a\n    diskreplay info b\n" in text


def test_a_command_without_anything(shown):
    text = shown("other")
    assert "Arguments" not in text
    assert "--help" in text
