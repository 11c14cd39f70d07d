"""Values that somebody gives, as messages show them."""

from typing import Any


def brief(value: Any, most: int = 60) -> str:
    """The first letters of what Python writes for a value.

    A message about a mistake must not fail itself: Python writes no int of thousands of digits, and
    a class of somebody's may fail at it.
    """
    try:
        return f"{value!r:.{most}}"
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be shown"
