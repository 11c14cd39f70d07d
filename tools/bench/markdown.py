"""Writes the results as Markdown, for ``docs/benchmarks.md``."""

from __future__ import annotations

from tables import Results, Table, all_tables, measured_notes


def to_markdown(results: Results) -> str:
    about, stream = results["about"], results["stream"]
    parts = [
        f"Measured on {about['date'][:10]}: {about['processor']}, "
        f"{about['memory_bytes'] / 2**30:.0f} GiB of memory, {about['system']}, "
        f"Python {about['python']}.",
        f"Stream: {stream['steps']:,} steps in {stream['episodes']:,} episodes of "
        f"{', '.join(stream['games'])} ({stream['observation']}; {stream['policy']} policy), "
        "whole episodes alternating; played again from the start where more rows are asked for.",
        *(_table(table) for table in all_tables(results)),
        "### How each was used",
        "\n".join(f"- **{name}** {note}" for name, note in measured_notes(results).items()),
    ]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [
        f"### {table.title}",
        "",
        _row(table.columns),
        _row(tuple("---" for _ in table.columns)),
        *(_row(row) for row in table.rows),
    ]
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
