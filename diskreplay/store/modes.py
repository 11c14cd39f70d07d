"""Modes of files and directories: what the umask says, but for what their owner needs."""

import contextlib
import os
import stat
from pathlib import Path


def let_owner_use(made: str | Path | int) -> None:
    """Let the owner read and write what was just made, a path or a descriptor, and enter it if it
    is a directory, whatever the umask is; so does ``mkdir -p`` with the directories on its way.
    Else a umask that denies the owner would leave what cannot be used, nor removed, once the umask
    is another one."""
    mode = os.stat(made).st_mode
    needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR | stat.S_IWUSR
    if mode & needed != needed:
        # Refused where the file system has modes of its own: then that is how things are there.
        with contextlib.suppress(PermissionError):
            os.chmod(made, stat.S_IMODE(mode) | needed)


def change(path: Path, *, add: int = 0, drop: int = 0) -> None:
    """Add these bits to the mode of a file, or take them away."""
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~drop | add)
