"""What a field's metadata say of its files."""

import re
from collections.abc import Mapping
from typing import Any

from diskreplay.store import codec
from diskreplay.store.field import Field
from diskreplay.store.segment import Seal

_KEY = re.compile(r"(\d{1,19})/(\d{1,19})", re.ASCII)


def seal_entries(seals: Mapping[tuple[int, int], Seal]) -> dict[str, list[Any]]:
    """Seals of segments as a field's metadata have them."""
    return {"{}/{}".format(*key): seal.entry for key, seal in sorted(seals.items())}


def parse_seals(field: Field, entries: Any, num_envs: int) -> dict[tuple[int, int], Seal]:
    """For ``(number, group)`` of segments their seals, if they can be.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        They are damaged.
    """
    seals = {}
    for key, (size, crc, *pieces) in entries.items():
        found = _KEY.fullmatch(key)
        if not found:
            raise ValueError(f"seal {key!r:.60} is damaged")
        number, group = int(found[1]), int(found[2])
        if group >= field.groups(num_envs):
            raise ValueError(f"seal {key!r:.60} is of no group of envs")
        if pieces and not _are_sums(field, pieces):
            raise ValueError(f"the checksums of the pieces of seal {key!r:.60} are damaged")
        seals[number, group] = Seal.checked(f"seal {key!r:.60}", size, crc, *pieces)
    return seals


def _are_sums(field: Field, pieces: list[Any]) -> bool:
    """Whether this is what `Seal.pieces` says of a segment."""
    try:
        (text,) = pieces
        found = len(codec.unpacked_sums(text))
    except (TypeError, ValueError):
        return False
    return not field.packed and found == -(-field.segment_bytes // codec.piece_bytes(field))
