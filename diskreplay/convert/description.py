"""What an export says of the buffer it was made of, as JSON, checked before any of it is used."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diskreplay.errors import FormatError

_KINDS = {"buffer": dict, "largest_priority": int | float | None}


def parse_description(
    path: Path,
    text: str | bytes,
    version_key: str,
    version: int,
    kinds: Mapping[str, type] | None = None,
) -> dict[str, Any]:
    """The document that `text` holds.

    Parameters
    ----------
    path : Path
        Where it is from, for the messages.
    text : str or bytes
    version_key : str
        The entry that says which version of the layout it is.
    version : int
        The one that is understood.
    kinds : dict of str to type, optional
        Entries there have to be besides ``buffer`` and ``largest_priority``.

    Returns
    -------
    dict

    Raises
    ------
    FormatError
        It is no such document, of another version, or an entry is missing or of another type.
    """
    try:
        document = json.loads(text)
        found = document[version_key]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: the description of the buffer it came from is damaged ({error})"
        ) from error
    if found != version:
        raise FormatError(f"{path}: version {found!r}; this diskreplay reads {version}")
    for name, kind in (_KINDS | dict(kinds or {})).items():
        if name not in document or not isinstance(document[name], kind):
            raise FormatError(
                f"{path}: the description of the buffer it came from is damaged: {name!r} is "
                f"{document.get(name, 'missing')!r}; export it again"
            )
    return document
