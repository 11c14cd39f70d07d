"""What processes that were killed have left beside the places they were writing to."""

import os
import re
from pathlib import Path

from diskreplay.store import files


def remove_leftovers(directory: Path, name: str) -> None:
    """Remove the files and directories ``.<name>.tmp-<pid>`` of processes that are gone.

    Raises
    ------
    StorageError
    """
    pattern = re.compile(re.escape(f".{name}.tmp-") + r"(\d+)")
    for path in list(directory.iterdir()):
        found = pattern.fullmatch(path.name)
        if found and not is_alive(int(found[1])):
            if path.is_dir() and not path.is_symlink():
                files.remove_tree(path)
            else:
                files.remove(path)


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number, be it another user's."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
