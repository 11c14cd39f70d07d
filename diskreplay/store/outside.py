"""The one rule for new places: nothing is made inside a store or a checkpoint."""

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

    Raises
    ------
    InvalidInputError
    """
    for place in Path(os.path.realpath(path)).parents:
        if manifest.is_checkpoint(place):
            what = "checkpoint"
        elif any(map(os.path.isfile, (place / "is_final" / "zarr.json", private.lock_file(place)))):
            what = "store"
        else:
            continue
        raise InvalidInputError(
            f"{path}: is inside the {what} {place}, and would go with it; choose a path beside it"
        )
