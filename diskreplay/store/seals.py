"""What a field's metadata say of its files."""

import re
from typing import Any, NamedTuple

import numpy as np

from diskreplay.store import codec, numbers
from diskreplay.store.field import Field
from diskreplay.store.segment import Seal

_KEY = re.compile(r"(\d{1,19})/(\d{1,19})", re.ASCII)


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


class Flushed(NamedTuple):
    """A copy of a shard that is still appended to, in that one's place: what a flush wrote.

    Attributes
    ----------
    seal : Seal
    used : ndarray of int64, shape (envs of the group,)
        How many rows of each env are in it; what a block has behind them are zeros.
    """

    seal: Seal
    used: np.ndarray

    @property
    def entry(self) -> list:
        """As JSON, in a field's metadata."""
        return [*self.seal.entry, self.used.tolist()]


def parse_flushed(field: Field, entries: Any, num_envs: int) -> dict[tuple[int, int], Flushed]:
    """The same for copies that flushes wrote; raises what `parse_seals` does."""
    seals = parse_seals(field, {key: entry[:2] for key, entry in entries.items()}, num_envs)
    size, rows = field.env_group, field.segment_rows
    return {
        (number, group): Flushed(
            seals[number, group],
            numbers.integers("flushed", used, min(size, num_envs - group * size), 0, rows),
        )
        for (number, group), (_size, _crc, used) in zip(seals, entries.values(), strict=True)
    }


def _are_sums(field: Field, pieces: list) -> bool:
    """Whether this is what `Seal.pieces` says of a segment."""
    try:
        (text,) = pieces
        found = len(codec.unpacked_sums(text))
    except (TypeError, ValueError):
        return False
    return not field.packed and found == -(-field.segment_bytes // codec.piece_bytes(field))
