"""Looking at a store again and again: `info --watch`, `stats --watch`."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from diskreplay.cli.common import console, explained, opened
from diskreplay.cli.layout import facts
from diskreplay.errors import DiskReplayError
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.humanize import ago_text, number_text, when_text
from diskreplay.inspection.overview import Overview, overview_of
from diskreplay.inspection.plain import plain
from diskreplay.inspection.watching import Pulse, Watch

INTERVAL = "2"  # seconds, where none are given

WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch", "-w", metavar="[SECONDS]", min=0.05,
        help=f"Look again every SECONDS seconds, {INTERVAL} by default, until Ctrl-C. Shows rows a "
        "second and the returns of the newest episodes, too. With --json a line each time.",
    ),
]  # fmt: skip

Seen = tuple[dict[str, Any], list[RenderableType]]
"""What there is to see now: as a JSON document, and for people."""


def watch_store(
    path: Path, seconds: float, look: Callable[[Overview], Seen], *, as_json: bool
) -> NoReturn:
    """Show what `look` finds every so many seconds, until Ctrl-C.

    Once the store was there it is waited for: it may be closed, opened again, loaded over or moved
    away meanwhile.
    """
    watched, there = Watch(), False
    on_screen = console.is_terminal and not as_json
    live = Live(console=console, auto_refresh=False) if on_screen else None
    with live or contextlib.nullcontext():
        while True:
            now = time.time()
            try:
                with explained(path):
                    pulse, document, shown = _seen(path, watched, look, now)
                there = True
                document = {"time": now, "watch": dataclasses.asdict(pulse), **document}
                shown = [facts(_lines(pulse)), *shown]
            except (DiskReplayError, FileNotFoundError) as error:
                if not there:  # most likely another path is meant
                    raise
                document = {"time": now, "error": str(error)}
                shown = [Text(f"{when_text(now, now=now)[:19]}  {error}", style="bold red")]
            if as_json:
                typer.echo(json.dumps(plain(document), allow_nan=False))
            elif live is not None:
                live.update(Group(*shown), refresh=True)
            else:  # one block below the other
                console.print(Group(*shown))
                console.print()
            time.sleep(seconds)


def _seen(
    path: Path, watched: Watch, look: Callable[[Overview], Seen], now: float
) -> tuple[Pulse, dict[str, Any], list[RenderableType]]:
    found = overview_of(path, patience=0.0)
    with opened(path) as buffer:
        episodes = episodes_of(buffer)
    document, shown = look(found)
    pulse = watched.look(found, episodes, now=now)
    return pulse, document, shown


def _lines(pulse: Pulse) -> dict[str, str | list[str]]:
    now = time.time()
    rate = "-" if pulse.rows_per_second is None else f"{pulse.rows_per_second:,.1f}"
    lines: dict[str, str | list[str]] = {"rows a second": rate}
    if pulse.replaced:
        lines["rows a second"] = "-; another store is in its place now"
    written = "unknown" if pulse.last_write is None else ago_text(now - pulse.last_write)
    lines["last row"] = written if pulse.exact else f"{written}, or later"
    if pulse.returns:
        lines["newest returns"] = [
            *(number_text(value) for value in pulse.returns),
            f"mean of the last 100: {number_text(pulse.mean_return)}",
        ]
    return lines
