"""Starting the training processes, following what they report, and killing them."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from demo_parts.journal import Journal

SCRIPT = Path(__file__).resolve().parent.parent / "demo.py"


class Training:
    """A training process and its journal.

    Parameters
    ----------
    part : str
        ``"record"`` or ``"resume"``.
    directory : Path
        Of the run.
    arguments : str
        What else the part wants to know.
    """

    def __init__(self, part: str, directory: Path, *arguments: str) -> None:
        self.journal = Journal()
        self.log = directory / f"{part}.log"
        self._pipe, theirs = os.pipe()
        self.started = time.perf_counter()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), part, str(directory), str(theirs), *arguments],
                pass_fds=[theirs], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        os.close(theirs)  # so that the pipe ends when the process does

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def follow(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Read reports until `until` holds or the process ends; returns whether it still runs."""
        while not until():
            ready, _, _ = select.select([self._pipe], [], [], 0.05)
            if ready:
                data = os.read(self._pipe, 1 << 16)
                if not data:
                    return False
                self.journal.feed(data)
        return True

    def kill(self) -> None:
        """SIGKILL: the process runs no further instruction of its own."""
        self._process.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Take in all that was reported; the exit status, minus the signal if one killed it."""
        self.follow()
        return self._process.wait()

    def last_words(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace").strip()

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._process.poll() is None:  # the director failed, or was interrupted
            self.kill()
            self._process.wait()
        os.close(self._pipe)
        if not self.last_words():
            self.log.unlink()
