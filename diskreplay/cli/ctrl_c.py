"""Ctrl-C also ends a command that waits for a server which never answers."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from diskreplay.cli.common import Code

PATIENCE_S = 3.0  # to stop in good order, and to remove what is half done


@contextlib.contextmanager
def ends_soon() -> Iterator[None]:
    """For a block with requests to an object store.

    Python raises `KeyboardInterrupt` when a call of the client has ended, and that may wait for an
    answer for a minute. So a thread is told of the signal by the system. It ends the process if the
    block has not ended a little later. What that leaves behind is what ``kill -9`` leaves: nothing
    is published or in its place by half, and the next call goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread only
        return
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    has_ended = threading.Event()
    threading.Thread(target=_watch, args=(told, has_ended), daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
        signal.set_wakeup_fd(before)
        os.close(tell)


def _watch(told: int, has_ended: threading.Event) -> None:
    """Wait for the numbers of signals, until the other end is closed."""
    with open(told, "rb", buffering=0) as numbers:
        while came := numbers.read(1):
            if came[0] == signal.SIGINT and not has_ended.wait(PATIENCE_S):
                os._exit(Code.INTERRUPTED)
