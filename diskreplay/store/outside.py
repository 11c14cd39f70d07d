"""The rules for new places: nothing is made inside a store, and none goes with what is replaced."""

import os
from pathlib import Path

from diskreplay.errors import InvalidInputError
from diskreplay.store import manifest, private


def check_outside(path: Path) -> None:
    """Refuse a place inside a store or a checkpoint. It would go with all that is in that: a `load`
    replaces a store, a `save` retires checkpoints. And what is in them is held against lists.

    Parameters
    ----------
    path : Path
        Of what is to be made. A store or a checkpoint may be there, but not around it.
    """
    for place in Path(os.path.realpath(path)).parents:
        if what := _kind(place):
            raise InvalidInputError(
                f"{path}: is inside the {what} {place}, and would go with it; choose a path beside "
                "it"
            )


def check_holds_none(path: Path) -> None:
    """Refuse to replace a directory that has a store or a checkpoint in it, which may be the one
    that is being copied.

    Parameters
    ----------
    path : Path
        Of what is to be replaced. It may be a store itself.
    """
    for base, directories, _names in os.walk(path):
        for place in (Path(base, name) for name in directories):
            if what := _kind(place):
                raise InvalidInputError(
                    f"{path}: has the {what} {place} in it, which would go with it, so it is not "
                    "replaced; choose another path"
                )


def _kind(place: Path) -> str | None:
    """What is at `place`, if it is one of ours."""
    if manifest.is_checkpoint(place):
        return "checkpoint"
    if any(map(os.path.isfile, (place / "is_final" / "zarr.json", private.lock_file(place)))):
        return "store"
    return None
