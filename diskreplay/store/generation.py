"""Which run of row numbers a store is in: they go back with a load, and after a power cut."""

import time
from collections.abc import Mapping
from typing import Any

KEY = "generation"  # in the group's attributes
LOAD = "load"  # beside it: the name of the last load, where it was given one
KEYS = (KEY, LOAD)


def first() -> int:
    """That of a new store. Microseconds since 1970: one that is made anew in the place of a lost
    one has another."""
    return time.time_ns() // 1000


def current(meta: Mapping[str, Any]) -> int:
    """That of a store with these attributes; 0 where they have none, or what is no such number."""
    found = meta.get(KEY)
    return found if type(found) is int and found >= 0 else 0


def following(meta: Mapping[str, Any]) -> int:
    """The one after it: larger, and no other store's."""
    return max(current(meta) + 1, first())
