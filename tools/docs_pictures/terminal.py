"""What commands print on a terminal of 80 columns, as SVG."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

WIDTH = 80
COMMANDS = {
    "cli-info": ["info", "runs/reach/replay"],
    "cli-stats": ["stats", "runs/reach/replay"],
    "cli-episodes": ["episodes", "runs/reach/replay", "--sort", "return", "--limit", "8"],
    "cli-show": ["show", "runs/reach/replay", "1200", "--field", "observation/wrist"],
    "cli-checkpoints": ["checkpoints", "runs/reach/checkpoints"],
}
# Rich's own template has its fonts fetched; the reader's are as good.
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}|<!--.*?-->", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
TEMPLATE = TEMPLATE.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")


def printed(arguments: list[str], directory: Path) -> str:
    """What a command prints in a directory, with its colours."""
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    done = subprocess.run(
        [sys.executable, "-m", "diskreplay", *arguments], cwd=directory, check=True,
        env={**os.environ, **colours, "COLUMNS": str(WIDTH), "LINES": "40"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.stdout


def draw(directory: Path, out: Path) -> None:
    """Draw all commands; `directory` has the run at ``runs/reach``."""
    for name, arguments in COMMANDS.items():
        console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(f"$ diskreplay {' '.join(arguments)}", style="bold", highlight=False)
        console.print(Text.from_ansi(printed(arguments, directory)))
        svg = console.export_svg(
            title="diskreplay", theme=SVG_EXPORT_THEME, code_format=TEMPLATE, unique_id=name
        )
        (out / f"{name}.svg").write_text("\n".join(map(str.rstrip, svg.splitlines())) + "\n")
        print(out / f"{name}.svg")
