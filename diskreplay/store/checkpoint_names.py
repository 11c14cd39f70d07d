"""The names of checkpoints, and those that are in a directory."""

import re
from collections.abc import Iterable
from pathlib import Path

from diskreplay.brief import brief
from diskreplay.errors import CheckpointNotFoundError, InvalidInputError, SuffixError
from diskreplay.given_numbers import is_integer
from diskreplay.store import files, manifest, tempfiles
from diskreplay.store.paths import resolved

CHECKPOINT_DURATION = 4
"""So many numbered checkpoints `save` keeps by default, as ReAgent and Dopamine do."""

_SHOWN = 5  # names of other buffers
NAME = re.compile(r"([^.].*)_ckpt\.([A-Za-z0-9_-][A-Za-z0-9._-]*)")
"""Of the directory of a checkpoint: its name and its suffix."""
_SUFFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def checked_suffix(suffix: int | str) -> str:
    """`suffix` as text, or a `SuffixError`: it becomes part of a directory's name.

    An integer (a NumPy one too) from 0 on, or a string; nothing else has one obvious text.
    """
    is_number = is_integer(suffix)
    if is_number and int(suffix) < 0:
        raise SuffixError(
            f"checkpoint suffix {suffix!r}: a number from 0 on expected, or a string; count from 0"
        )
    text = str(int(suffix)) if is_number else suffix
    if not isinstance(text, str) or not _SUFFIX.fullmatch(text):
        raise SuffixError(
            f"checkpoint suffix {brief(suffix, 200)}: expected an integer, or a string of letters, "
            "digits, '.', '_' and '-', not starting with a dot, and at most 100 of them (an "
            "iteration number, say)"
        )
    return text


def checked_keep(keep: int | None) -> int | None:
    """How many numbered checkpoints to keep, or an `InvalidInputError`."""
    is_number = is_integer(keep)
    if keep is not None and (not is_number or keep < 1):
        raise InvalidInputError(f"keep: a positive integer or None expected, found {brief(keep)}")
    return None if keep is None else int(keep)


def path_of(directory: Path, name: str, suffix: int | str) -> Path:
    """``<directory>/<name>_ckpt.<suffix>``."""
    return directory / f"{name}_ckpt.{checked_suffix(suffix)}"


def numbered(places: Iterable[Path], name: str) -> list[tuple[int, Path]]:
    """Those whose suffix is a number, lowest number first: 07 and 7 are two checkpoints."""
    pattern = re.compile(re.escape(name) + r"_ckpt\.([0-9]+)")
    found = ((pattern.fullmatch(place.name), place) for place in places)
    return sorted((int(match[1]), place) for match, place in found if match)


def retired(directory: Path, name: str, keep: int) -> list[Path]:
    """The numbered ones in a directory beyond the `keep` highest, but what a link there that stays
    leads to."""
    found = [path for _number, path in numbered(_directories(directory), name)[:-keep]]
    needed = files.led_to(directory, found) if found else set()
    return [path for path in found if path not in needed]


def _directories(inside: Path) -> list[Path]:
    if not files.is_dir(inside):
        return []
    return [path for path in files.listed(inside) if files.is_dir(path)]


def pattern_of(name: str) -> str:
    """A pattern of the names of a buffer's checkpoints."""
    return re.escape(name) + r"_ckpt\..+"


def _instead(directory: Path, name: str) -> str:
    """What is there where no checkpoint of a buffer is, as the end of a sentence."""
    if not files.is_there(directory):
        return "; there is no such directory"
    matches = (NAME.fullmatch(path.name) for path in _directories(directory))
    others = sorted({match[1] for match in matches if match} - {name})
    if not others:
        return ""
    return (
        f"; there are some of {', '.join(map(repr, others[:_SHOWN]))}: give the buffer that name "
        "(name=...), or another directory"
    )


def find(directory: Path, name: str, suffix: int | str | None) -> tuple[Path, str]:
    """The checkpoint directory, or what a link there leads to, and its suffix; of the highest
    number if `suffix` is None. Without one, `directory` may be a checkpoint itself.

    It was there when the directory was listed. A save may have replaced or retired it since: then
    whoever cannot read it asks again, and is given a newer one."""
    if manifest.is_checkpoint(directory):
        if suffix is None:
            return directory, directory.name.rpartition("_ckpt.")[2]
        raise CheckpointNotFoundError(
            f"{directory}: a checkpoint itself, and not a directory of them; leave the suffix out "
            f"to load this one, or give {directory.parent} to load {suffix!r} from there"
        )
    places = tempfiles.places(directory, pattern_of(name))
    there = numbered(places, name)
    if suffix is None:
        if not there:
            raise CheckpointNotFoundError(
                f"{directory}: no numbered checkpoint of {name!r} in it{_instead(directory, name)}"
            )
        _number, place = there[-1]
    else:
        place = path_of(directory, name, suffix)
        if place not in places:
            has = ", ".join(str(number) for number, _place in there) or "none"
            raise CheckpointNotFoundError(
                f"{place}: no such checkpoint (numbered ones there: {has})"
                f"{'' if there else _instead(directory, name)}"
            )
    return resolved(places[place]), place.name.removeprefix(f"{name}_ckpt.")
