"""What this machine lets the process have."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@functools.cache
def memory() -> int:
    """Bytes of memory that this process may have: what the machine has, or what its control group
    is limited to. A container has such a limit, beyond which the system kills."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(_GROUPS, _MOUNTED)])


def _limits(groups: Path, mounted: Path) -> Iterator[int]:
    """What is said of the groups that the process is in, and of those around them, of either
    version of control groups; nothing where they cannot be read."""
    for line in _text(groups).splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be one of the machine's: then its own group is at the root.
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            limit = _text(each / name).strip()
            if limit.isdecimal() and int(limit):  # "max" where there is none
                yield int(limit)
            if each == root:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
