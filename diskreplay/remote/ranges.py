"""A Zarr store over a published checkpoint: each read is a request for the bytes that it needs."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from diskreplay.errors import CorruptCheckpointError
from diskreplay.remote.bucket import Bucket
from diskreplay.remote.document import Document
from diskreplay.store import machine


class RangeStore(Store):
    """The files of a published checkpoint, read-only."""

    supports_writes = False
    supports_deletes = False
    supports_partial_writes = False
    supports_listing = True

    def __init__(self, bucket: Bucket, found: Document) -> None:
        super().__init__(read_only=True)
        self._bucket, self._found = bucket, found
        self._sizes = {key: seal.size for key, seal in found.contents().files.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeStore) and self._found is other._found

    __hash__ = None  # type: ignore[assignment]

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The bytes of a file, or some of them; None if there is none. A `CorruptCheckpointError`
        if the manifest says of it that it is longer than memory."""
        part = self._found.parts.get(key)
        if part is None:
            return None
        start, stop = _span(byte_range, self._sizes[key])
        if stop - start > machine.memory():  # zeros, mostly: they take no room in the store
            raise CorruptCheckpointError(
                f"{self._bucket.url}: checkpoint {self._found.suffix}: {stop - start:,} bytes of "
                f"file {key!r:.80} are to be read, and this process may have {machine.memory():,} "
                "bytes of memory; open another checkpoint"
            )
        there = max(0, min(stop, part.length) - start)  # what is behind that is zeros
        data = await asyncio.to_thread(
            self._bucket.get_range, part.object, part.offset + start, there
        )
        return prototype.buffer.from_bytes(data.ljust(stop - start, b"\0"))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Several of them at once."""
        return list(await asyncio.gather(*(self.get(k, prototype, r) for k, r in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        return key in self._sizes

    async def list(self) -> AsyncIterator[str]:
        """All files."""
        for key in self._sizes:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Those that begin so."""
        for key in self._sizes:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What is in a directory."""
        below = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""
        names = (key[len(below) :] for key in self._sizes if key.startswith(below))
        for name in dict.fromkeys(name.partition("/")[0] for name in names):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        """Refused: what is published never changes."""
        self._check_writable()

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, bytes]]) -> None:
        """Refused, too; Zarr before 3.1 asks for it."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Refused: what is published never changes."""
        self._check_writable()


def _span(wanted: ByteRequest | None, size: int) -> tuple[int, int]:
    if isinstance(wanted, RangeByteRequest):
        return min(wanted.start, size), min(wanted.end, size)
    if isinstance(wanted, OffsetByteRequest):
        return min(wanted.offset, size), size
    if isinstance(wanted, SuffixByteRequest):
        return max(0, size - wanted.suffix), size
    return 0, size
