"""The one rule for names: of extras, of the keys of Dict spaces, and of foreign columns.

A name becomes a directory, so it has to be one on every file system: two that differ in case only
are one directory on some. An extra also becomes a keyword of `add` and an attribute of a batch.
"""

import re
from collections.abc import Iterable

from diskreplay.batch import Batch
from diskreplay.brief import brief
from diskreplay.errors import ExtrasError, InvalidInputError
from diskreplay.store.field import PART_RULE, is_part

_EXTRA = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_VIEW = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")
RESERVED = frozenset(
    (
        # Fields of the format, and what else is in the group of a store or a checkpoint.
        *("observation", "action", "reward", "terminated", "truncated", "step", "is_final"),
        "priority",
        # Parameters of `add`.
        *("self", "next_observation", "mask", "next_observation_mask"),
        # What a batch has.
        *("discount", "steps", "id", "weight", "probability"),
        *(name.lower() for name in dir(Batch) if not name.startswith("_")),
    )
)


def check_extras(names: Iterable[object]) -> None:
    """Refuse names that extras cannot have, with an `ExtrasError`."""
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _EXTRA.fullmatch(name):
            raise ExtrasError(
                f"extras: {brief(name, 120)} is no name for a field: a letter, then letters, "
                "digits and underscores expected, of ASCII and at most 100"
            )
        if name.lower() in RESERVED:
            raise ExtrasError(
                f"extras: {name!r} is a name of the format, of `add` or of a batch; choose another "
                "one"
            )
        _check_case(seen, name, "extras", ExtrasError)


def checked_view(name: object) -> str:
    """The name of a view, of which a directory is named, or an `InvalidInputError`."""
    if not isinstance(name, str) or not _VIEW.fullmatch(name):
        raise InvalidInputError(
            f"name: {brief(name, 120)} is no name for a view: a letter, then letters, digits and "
            "underscores expected, of ASCII and at most 60"
        )
    return name


def check_keys(keys: Iterable[object], of: str) -> None:
    """Refuse keys that the Dict space `of` cannot have, with an `InvalidInputError`."""
    seen: dict[str, str] = {}
    for key in keys:
        if not isinstance(key, str) or not is_part(key):
            raise InvalidInputError(f"{of}: the key {brief(key, 120)} of a Dict space: {PART_RULE}")
        _check_case(seen, key, of, InvalidInputError)


def _check_case(seen: dict[str, str], name: str, of: str, kind: type[Exception]) -> None:
    other = seen.setdefault(name.lower(), name)
    if other != name:
        raise kind(
            f"{of}: {other!r} and {name!r} differ in case only, and are one directory on some file "
            "systems; rename one of them"
        )


def extra_name(wanted: str, taken: set[str]) -> str:
    """A name for an extra: `wanted` if it can be one, else one like it. Added to `taken`, which
    holds names in lower case."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", wanted)[:80]
    if not _EXTRA.fullmatch(name):
        name = f"column_{name}"
    if name.lower() in RESERVED:
        name += "_"
    if name.lower() in taken:
        name = next(n for i in range(2, 10**6) if (n := f"{name}_{i}").lower() not in taken)
    taken.add(name.lower())
    return name


def extra_names(wanted: Iterable[str]) -> dict[str, str]:
    """`extra_name` of each."""
    taken: set[str] = set()
    return {name: extra_name(name, taken) for name in wanted}
