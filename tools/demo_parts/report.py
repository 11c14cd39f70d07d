"""What the reader sees."""

from collections.abc import Iterable

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

console = Console(highlight=False)


def progress(unit: str) -> Progress:
    """A progress bar; only on a terminal, and gone when it is over."""
    return Progress(
        TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeElapsedColumn(), TextColumn("{task.fields[note]}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def table(groups: Iterable[tuple[str, list[tuple[str, str, str]]]]) -> Table:
    """Groups of lines: what, the figure, a remark."""
    result = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    result.add_column(no_wrap=True)
    result.add_column(style="bold", justify="right", no_wrap=True)
    result.add_column(style="dim")
    for title, lines in groups:
        result.add_row(f"[bold cyan]{title}[/]")
        for number, line in enumerate(lines, 1):
            result.add_row(*line, end_section=number == len(lines))
    return result


def verdict(holds: bool, text: str) -> None:
    """Print a claim, and whether it held."""
    line = Table.grid(padding=(0, 2))
    line.add_row("[bold green]held[/]" if holds else "[bold red]FAILED[/]", text)
    console.print(line)


def size(count: float) -> str:
    """Bytes, readable."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def duration(seconds: float) -> str:
    """Seconds, readable."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s"


def median(seconds: list[float]) -> str:
    """The median duration."""
    return duration(float(np.median(seconds))) if seconds else "-"


def percentile(seconds: list[float], percent: float) -> str:
    """A percentile of durations."""
    return duration(float(np.percentile(seconds, percent))) if seconds else "-"
