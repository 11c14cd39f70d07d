"""Files of a run that are saved with its rows: the network, the optimizer, the environment's state.

They are in the checkpoint's directory ``is_final/saved/attachments/``, and its manifest lists them
like any other file. So they are there together with the rows, or not at all.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diskreplay.errors import (
    AttachmentError,
    DiskFullError,
    InvalidInputError,
    StorageError,
)
from diskreplay.store import files, plain_file
from diskreplay.store.manifest import ATTACHMENTS, Manifest
from diskreplay.store.segment import Seal
from diskreplay.store.system_errors import errno_if_full, explained, translated

Source = bytes | bytearray | memoryview | os.PathLike[str] | Callable[[Path], Any]

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- +=]{0,99}")
_LONGEST = 400  # characters: with the checkpoint's own path, less than what systems take
_PROBED = 1 << 16  # bytes; a disk with less is full


def checked(given: Mapping[str, Source] | None) -> dict[str, Source]:
    """The attachments that somebody asks for, their names and kinds checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            "attachments: a dict of names to bytes, paths or functions expected, found "
            f"{type(given).__name__}"
        )
    taken: dict[str, str] = {}  # files, and the directories that they are in, by lower case
    for name, source in given.items():
        _check_name(name)
        _check_source(name, source)
        parts = name.split("/")
        for place in [*("/".join(parts[:depth]) + "/" for depth in range(1, len(parts))), name]:
            before = taken.setdefault(place.lower().rstrip("/"), place)
            if before != place:
                raise InvalidInputError(
                    f"attachment {name!r}: {before!r} is there too, and a file system may take "
                    "both for one name; choose another name"
                )
    return dict(given)


def _check_name(name: Any) -> None:
    parts = name.split("/") if isinstance(name, str) and len(name) <= _LONGEST else [""]
    if not all(_PART.fullmatch(part) and not part.endswith((".", " ")) for part in parts):
        raise InvalidInputError(
            f"attachment {name!r:.{_LONGEST}}: a name expected such as 'agent.pt' or "
            "'nets/critic.pt': parts of letters, digits, '.', '_', '-', '+', '=' and spaces that "
            "start with a letter, digit or '_', at most 100 characters each"
        )


def _check_source(name: str, source: Any) -> None:
    if isinstance(source, bytes | bytearray | memoryview):
        return
    if isinstance(source, os.PathLike):
        path = Path(source)
        if not files.is_file(path):
            what = "no regular file" if files.is_there(path) else "no such file"
            raise InvalidInputError(f"attachment {name!r}: {path}: {what}")
    elif not callable(source):
        hint = "; a str may be either: say Path(...), or .encode()" * isinstance(source, str)
        raise InvalidInputError(
            f"attachment {name!r}: bytes, the Path of a file, or a function that writes to the "
            f"path it is given expected, found {type(source).__name__}{hint}"
        )


def write(sources: Mapping[str, Source], build: Path) -> dict[str, Seal]:
    """Write attachments into an empty directory that becomes a checkpoint, and sync them, but not
    their names.

    Call it without a lock: a writer is the user's code, may take long, and may use the buffer.

    Raises
    ------
    AttachmentError
        A writer raised, or left something else than one file at its path.
    StorageError
        Also where a writer raised since the disk is full: a `DiskFullError`.
    """
    written: dict[str, Path] = {}
    for name, source in sources.items():
        key = (ATTACHMENTS / name).as_posix()
        path = written[key] = build / key
        files.make_dirs(path.parent)
        if isinstance(source, bytes | bytearray | memoryview):
            files.write(path, [bytes(source)])
        elif isinstance(source, os.PathLike):
            files.copy(Path(source), path)
        else:
            _call(name, source, path)
        _check_tree(name, build, set(written.values()))
        files.seal(path)
    files.sync(written.values())
    return {key: plain_file.checksum(path) for key, path in written.items()}


def _call(name: str, writer: Callable[[Path], Any], path: Path) -> None:
    before = sys.exception()  # the caller may be about to mend that one
    try:
        writer(path)
    except Exception as error:
        code = errno_if_full(error, path.parent, before) or _errno_if_full(path)
        if code is not None:
            plain = OSError(code, os.strerror(code))
            doing = f"cannot write attachment {name!r} ({type(error).__name__}: {error})"
            raise translated(plain, path, doing) from error
        raise AttachmentError(
            f"attachment {name!r}: its writer raised {type(error).__name__}: {error}; no "
            "checkpoint was written"
        ) from error


def _errno_if_full(path: Path) -> int | None:
    """What the system says if there is no room beside a file: its writer may not say why it failed.
    Tried, for a quota is seen in no other way."""
    probe = path.with_name(f".{path.name}.room")  # no attachment has such a name
    try:
        os.close(files.allocate(probe, _PROBED))
        files.remove(probe)
    except DiskFullError as full:
        return full.errno
    except StorageError:
        return None
    return None


def _check_tree(name: str, build: Path, expected: set[Path]) -> None:
    """Refuse anything but the regular files that are expected: what else is there has no name to
    be found by, and a link leads to a file that may change."""
    wrong = dict.fromkeys(expected, "is missing")
    for base, directories, names in os.walk(build):
        for entry in (Path(base, each) for each in [*directories, *names]):
            with explained(entry, "cannot look at the file"):
                found = os.lstat(entry)
            is_directory = stat.S_ISDIR(found.st_mode)
            if entry in expected:
                del wrong[entry]
            elif is_directory and any(entry in path.parents for path in expected):
                continue
            if is_directory:
                wrong[entry] = "is a directory"
            elif not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                wrong[entry] = "is a link, or no regular file"
            elif entry not in expected:
                wrong[entry] = "is there and was not asked for"
    for path, what in wrong.items():
        raise AttachmentError(
            f"attachment {name!r}: its writer has to write one file, to the path that it is given; "
            f"{path.relative_to(build)} {what}; no checkpoint was written"
        )


def paths(checkpoint: Path, manifest: Manifest) -> dict[str, Path]:
    """Where the attachments of a checkpoint are, by their names."""
    return {name: checkpoint / ATTACHMENTS / name for name in manifest.attachments}
