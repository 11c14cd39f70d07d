"""Which rows of a damaged store are lost, and which cannot be shown without them."""

from collections.abc import Collection

import numpy as np

from diskreplay.check.snapshot import BOOKKEEPING
from diskreplay.check.verify import Check

_NO_FRAMES = {"slot", "back", *BOOKKEEPING}


def lost_rows(check: Check, env: int, but: Collection[str] = ()) -> np.ndarray:
    """Which retained rows of an env are lost in any field, `but` these; bool."""
    catalog = check.catalog
    first, count = int(catalog.first[env]), int(catalog.count[env])
    lost = np.zeros(count - first, np.bool_)
    for (name, number, group), rows in check.damaged.items():
        field = check.fields[name]
        if env // field.env_group == group and (name, number, group) not in check.sources:
            if name in but:
                continue
            of_env, start = rows[:, env % field.env_group], number * field.segment_rows - first
            low, high = max(start, 0), min(start + len(of_env), count - first)
            if low < high:
                lost[low:high] |= of_env[low - start : high - start]
    return lost


def showing(check: Check, env: int) -> np.ndarray:
    """Which retained rows of an env may have frames in lost ones, where rows in slots share these:
    bool. A row that holds only frames looks the same when it is lost, so that it is said here of
    the rows behind it."""
    lost = lost_rows(check, env, _NO_FRAMES)
    found = np.zeros_like(lost)
    for back in range(1, min(check.snapshot.reach + 1, len(lost))):
        found[back:] |= lost[:-back]
    return found
