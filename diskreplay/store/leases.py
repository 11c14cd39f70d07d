"""Who else has a file: the kernel says it, by a lease (``fcntl``, ``F_SETLEASE``)."""

import contextlib
import fcntl
import os
import signal
from pathlib import Path

from diskreplay.store import files
from diskreplay.store.paths import is_of_one_machine
from diskreplay.store.system_errors import explained


def nobody_else_has(path: Path, size: int) -> bool:
    """Whether a file of `size` bytes is open nowhere, mapped nowhere, and has no other name.

    Linux grants the lease of a writer only where no other descriptor of that file is open in any
    process; a mapping keeps one open. The path has to be one that nobody opens or links from here
    on, or else the answer is about the past.

    Returns
    -------
    bool
        False also where that is not known: on other systems, on a file system that other machines
        share, and where the file is another user's.
    """
    if not is_of_one_machine(path.parent):
        return False
    with explained(path, "cannot look who has the file"):
        fd = files.open_plain(path, os.O_RDONLY)
        try:
            # A file with other names is not asked about. Who opens it by one of them, without
            # waiting as all readers here do, would be refused while there is a lease.
            if os.fstat(fd).st_nlink != 1:
                return False
            with contextlib.suppress(OSError):
                # Who opens the file meanwhile is kept waiting, and this process gets a signal.
                # SIGIO, the usual one, would end it; this one is ignored by default.
                fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                # With the lease: who links the file by a descriptor has one.
                about = os.fstat(fd)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                return about.st_nlink == 1 and about.st_size == size
            return False
        finally:
            os.close(fd)
