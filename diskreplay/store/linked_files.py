"""Files that two directories share by hard links, or have copies of."""

import sys
from collections.abc import Iterable
from pathlib import Path

from diskreplay.store import files


class LinkedFiles:
    """Files that get a second name. What cannot be linked is copied at the end, with a progress bar
    on a terminal."""

    def __init__(self) -> None:
        self._pending: list[tuple[Path, Path]] = []

    def link(self, source: Path, target: Path) -> None:
        """Link a file now, or have it copied by `run`."""
        if self._pending or not files.link(source, target):
            self._pending.append((source, target))

    def run(self) -> list[Path]:
        """Copy what could not be linked, and make it read-only; returns what was written."""
        for source, target in _shown(self._pending):
            files.copy(source, target)
            files.seal(target)
        return [target for _source, target in self._pending]


def _shown(jobs: list[tuple[Path, Path]]) -> Iterable[tuple[Path, Path]]:
    if not jobs:
        return jobs
    from rich.console import Console
    from rich.progress import track

    console = Console(file=sys.stderr)
    what = "copying segments (the file systems differ, or cannot link)"
    return track(jobs, what, console=console, disable=not console.is_terminal)
