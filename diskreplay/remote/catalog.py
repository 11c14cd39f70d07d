"""Which checkpoints are published at a URL, and which run may publish: one small object.

It is replaced by compare-and-swap only, and a checkpoint is published by nothing else. So two runs
cannot both publish, and a run that was replaced while it slept cannot publish what it had prepared.
"""

import dataclasses
import datetime
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from diskreplay.errors import CorruptCheckpointError
from diskreplay.remote.document import (
    MOST_LEAST,
    VERSION,
    load_json,
    number_of,
    object_key,
    text,
)
from diskreplay.store import checkpoint_names, format, numbers

KEY = "checkpoints.json"


class RemoteCheckpoint(NamedTuple):
    """A published checkpoint.

    Attributes
    ----------
    name, suffix : str
        As of the directory that it was: ``<name>_ckpt.<suffix>``.
    run : str
        Who published it.
    epoch : int
        How many runs had published there before that one.
    saved_at, published_at : datetime
        With a time zone.
    rows : int or None
        Retained rows over all envs; None if that is not known.
    bytes : int
        Of all its files.
    document : str
        The object that says where these are.
    """

    name: str
    suffix: str
    run: str
    epoch: int
    saved_at: datetime.datetime | None
    published_at: datetime.datetime
    rows: int | None
    bytes: int
    document: str

    @property
    def number(self) -> int | None:
        """The suffix, if it is a number."""
        return int(self.suffix) if self.suffix.isdecimal() else None


def in_order(found: Iterable[RemoteCheckpoint]) -> list[RemoteCheckpoint]:
    """Those with a text for a suffix first, then by number."""
    return sorted(found, key=lambda c: (c.number is not None, c.number or 0, c.suffix))


@dataclasses.dataclass(frozen=True)
class Catalog:
    """What is published.

    Attributes
    ----------
    run, epoch, nonce
        As of `Fenced`.
    checkpoints : dict of str to RemoteCheckpoint
        By suffix.
    doomed : frozenset of str
        Objects that are being deleted: nothing refers to them, and nothing may.
    least : int
        What is put gets at least this number behind the checksum in its name. A collection that was
        stopped may yet delete objects of lower numbers, if no checkpoint refers to them now.
    """

    run: str | None
    epoch: int
    checkpoints: dict[str, RemoteCheckpoint]
    doomed: frozenset[str]
    nonce: str
    least: int = 0

    @classmethod
    def empty(cls) -> "Catalog":
        """Before the first push."""
        return cls(None, 0, {}, frozenset(), "")

    def replaced(self, **changes: Any) -> "Catalog":
        """One with these changes, to be written."""
        return dataclasses.replace(self, **changes, nonce=secrets.token_hex(8))

    def may_use(self, key: str) -> bool:
        """Whether a checkpoint may refer to an object, although no published one does."""
        return key not in self.doomed and number_of(key) >= self.least

    def without_doomed(self) -> "Catalog":
        """One, to be written, that need not name what is doomed here: nothing that is put from now
        on has such a name. But for numbers that nobody comes to."""
        dropped = {key for key in self.doomed if number_of(key) < MOST_LEAST}
        least = max((number_of(key) + 1 for key in dropped), default=0)
        return self.replaced(doomed=self.doomed - dropped, least=max(self.least, least))

    def highest(self) -> RemoteCheckpoint | None:
        """The numbered one of the highest number."""
        numbered = [one for one in self.checkpoints.values() if one.number is not None]
        return in_order(numbered)[-1] if numbered else None

    def encode(self) -> bytes:
        """As the bytes of the object."""
        return format.encode({
            "format": VERSION, "run": self.run, "epoch": self.epoch, "nonce": self.nonce,
            "doomed": sorted(self.doomed), "least": self.least,
            "checkpoints": [
                [
                    one.name, one.suffix, one.run, one.epoch,
                    None if one.saved_at is None else one.saved_at.isoformat(),
                    one.published_at.isoformat(), one.rows, one.bytes, one.document,
                ]
                for one in self.checkpoints.values()
            ],
        })  # fmt: skip


def parse(data: bytes, where: str) -> Catalog:
    """The opposite of `Catalog.encode`; a `CorruptCheckpointError` if it is damaged."""
    found = load_json(data, where)
    try:
        listed, doomed = found.get("checkpoints"), found.get("doomed")
        if not isinstance(listed, list) or not isinstance(doomed, list):
            raise ValueError("no list of checkpoints")
        checkpoints = [_checkpoint(entry) for entry in listed]
        return Catalog(
            text("run", found.get("run")),
            numbers.integer("epoch", found.get("epoch"), 0, 1 << 62),
            {one.suffix: one for one in checkpoints},
            frozenset(object_key(key) for key in doomed),
            text("nonce", found.get("nonce")),
            numbers.integer("least", found.get("least", 0), 0, MOST_LEAST),
        )
    except ValueError as error:
        raise CorruptCheckpointError(f"{where}: damaged: {error}") from error


def _checkpoint(entry: Any) -> RemoteCheckpoint:
    if not isinstance(entry, list) or len(entry) != len(RemoteCheckpoint._fields):
        raise ValueError(f"a checkpoint expected, found {entry!r:.60}")
    name, suffix, run, epoch, saved_at, published_at, rows, size, document = entry
    if rows is not None:
        numbers.integer("rows", rows, 0, numbers.MOST_ROWS)
    return RemoteCheckpoint(
        checkpoint_names.checked_suffix(name), checkpoint_names.checked_suffix(suffix),
        text("run", run),
        numbers.integer("epoch", epoch, 0, 1 << 62),
        None if saved_at is None else numbers.time("saved_at", saved_at),
        numbers.time("published_at", published_at), rows,
        numbers.integer("bytes", size, 0, numbers.MOST_ROWS), _document(document),
    )  # fmt: skip


def _document(value: Any) -> str:
    key = text("document", value, 400)
    if not key.startswith("checkpoints/") or ".." in key or "//" in key:
        raise ValueError(f"document: {value!r:.60} is no name of one")
    return key
