"""Prints the results in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from tables import Results, all_tables, measured_notes

STYLES = {"reached": "green", "MISSED": "red", "failed": "dim"}


def print_report(results: Results, console: Console) -> None:
    for table in all_tables(results):
        rich = RichTable(title=table.title, title_justify="left", title_style="bold")
        for index, column in enumerate(table.columns):
            numbers = index > 0 and all(_is_figure(row[index]) for row in table.rows)
            rich.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in table.rows:
            rich.add_row(
                *(f"[{STYLES[cell]}]{cell}[/]" if cell in STYLES else cell for cell in row)
            )
        console.print(rich)
        console.print()
    for name, note in measured_notes(results).items():
        console.print(f"[bold]{name}[/] {note}", highlight=False)


def _is_figure(cell: str) -> bool:
    return cell in ("", "-", "failed") or cell.lstrip("+-").rstrip("%")[:1].isdigit()
