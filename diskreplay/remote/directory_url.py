"""Which directory a ``file://`` URL names."""

import os
from pathlib import Path
from urllib.parse import SplitResult, unquote_to_bytes

from diskreplay.errors import InvalidInputError
from diskreplay.store import files
from diskreplay.store.outside import check_outside


def directory_of(parts: SplitResult) -> Path:
    """The directory, which need not be there: the first put makes it. An `InvalidInputError` if the
    URL names none, or what is there is a file."""
    if parts.netloc not in ("", "localhost"):  # the first part of a relative path, mostly
        raise InvalidInputError(
            f"url: file://{parts.netloc} names a machine; file:///directory expected, with "
            "the whole path from the root on"
        )
    if not parts.path.startswith("/") or not parts.path.strip("/"):
        raise InvalidInputError(
            f"url: file://{parts.path} names no directory; file:///directory expected, with the "
            "whole path from the root on"
        )
    path = _decoded(parts.path)
    there = files.nearest(path)
    if not files.is_dir(there):
        raise InvalidInputError(f"url: {there} is a file; the URL of a directory expected")
    check_outside(path / "checkpoints")
    return path


def _decoded(text: str) -> Path:
    """A path without its ``%20`` and the like. They stand for bytes, as names of files consist of
    them: a name need not be text."""
    try:
        path = os.fsdecode(unquote_to_bytes(os.fsencode(text)))
    except UnicodeEncodeError:
        raise InvalidInputError(f"url: file://{text!r:.200}: half a character in it") from None
    if "\0" in path:
        raise InvalidInputError(f"url: file://{text:.200}: %00 in it, as no path has")
    return Path(path)
