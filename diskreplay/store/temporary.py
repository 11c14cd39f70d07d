"""Directories of temporary stores: gone with the process, or with the next one of that user.

They are in ``<TMPDIR>/diskreplay-<user id>``, which nobody else may enter. Each is a `Workspace`,
whose lock its process holds: what a killed one left is told by that, and by nothing else. Nothing
in them is synced.
"""

import os
import stat
import tempfile
from pathlib import Path

from diskreplay.store import files, modes, tempfiles
from diskreplay.store.outside import check_outside
from diskreplay.store.system_errors import explained

_NAME = "replay"


def make() -> tempfiles.Workspace:
    """A directory for a temporary store; `Workspace.remove` it. Removes what killed processes of
    this user have left."""
    shared = Path(tempfile.gettempdir(), f"diskreplay-{os.geteuid()}").absolute()
    check_outside(shared)
    with explained(shared, "cannot make a directory for a temporary store"):
        try:
            os.mkdir(shared, 0o700)
            modes.let_owner_use(shared)
        except FileExistsError:
            about = os.lstat(shared)
            ours = about.st_uid == os.geteuid() and not about.st_mode & 0o077
            if not stat.S_ISDIR(about.st_mode) or not ours:
                # Somebody else has made it, and could change what is in it.
                shared = Path(tempfile.mkdtemp(prefix="diskreplay-")).absolute()
    files.do_without_syncs(shared)
    tempfiles.sweep(shared, _NAME)
    return tempfiles.Workspace(shared / _NAME, "tmp")


def store_in(room: tempfiles.Workspace) -> Path:
    """Where the store is in such a directory."""
    return room.path / _NAME
