"""The actor that all clients of a sharded buffer find by its name."""

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import RateLimiterTimeout
from diskreplay.ray.rate_limiter import RateLimiter
from diskreplay.store import files
from diskreplay.store.format import read_document


class Ticket(NamedTuple):
    """A request of samples.

    Attributes
    ----------
    asker : str
        Another one for each prefetcher.
    number : int
        Of the asker's requests, which it makes one after the other.
    """

    asker: str
    number: int


class Coordinator:
    """Knows what a buffer is made of and lets inserts and samples pass, as its rate limiter says.

    An actor of Ray whose methods all run on one event loop. Its counts are in a mapped file, so
    that they outlast its process; nothing else is told to it after it was made.

    Parameters
    ----------
    options : dict
        What clients are made from.
    limiter : RateLimiter or None
    counts : Path
        The file of the counts; on the node that this is on.
    """

    def __init__(self, options: dict[str, Any], limiter: RateLimiter | None, counts: Path) -> None:
        self._options, self._limiter = options, limiter
        files.make_lasting_dirs(counts.parent)
        mode = "r+" if counts.exists() and counts.stat().st_size == 16 else "w+"
        self._path = counts
        self._run, self._load = counts.with_name("run"), counts.with_name("load")
        self._counts = np.memmap(counts, np.int64, mode, shape=(2,))  # type: ignore[call-overload]
        self._changed = asyncio.Condition()
        self._void: dict[str, int] = {}  # by who asks: up to which of its requests
        self._noted_epoch = counts.with_name("epoch")
        self._epoch = self._noted_epoch.read_text() if self._noted_epoch.exists() else ""

    async def options(self) -> tuple[dict[str, Any], RateLimiter | None]:
        """What a client is made from."""
        return self._options, self._limiter

    async def run(self) -> str:
        """Who publishes this buffer's checkpoints in object stores: a random name, on the disk."""
        if not self._run.exists():
            files.replace({self._run: secrets.token_hex(8).encode()})
        return self._run.read_text()

    async def acquire_insert(self, count: int, timeout: float) -> None:
        """Wait until so many transitions may be inserted, and count them.

        Raises
        ------
        RateLimiterTimeout
            They are not counted.
        """
        await self._acquire(0, count, timeout)

    async def acquire_sample(
        self, count: int, timeout: float, ticket: Ticket | None = None
    ) -> str | None:
        """The same of samples.

        Parameters
        ----------
        count : int
        timeout : float
        ticket : Ticket, optional
            For `cancel`.

        Returns
        -------
        str or None
            What `give_back` wants. None: it was cancelled, and nothing is counted.
        """
        return self._epoch if await self._acquire(1, count, timeout, ticket) else None

    async def cancel(self, ticket: Ticket) -> None:
        """Have a request of samples end that still waits, and those of its asker before it."""
        async with self._changed:
            self._void[ticket.asker] = ticket.number
            self._changed.notify_all()

    async def _acquire(
        self, which: int, count: int, timeout: float, ticket: Ticket | None = None
    ) -> bool:
        limiter = self._limiter
        if limiter is None:
            self._counts[which] += count
            return True

        def is_cancelled() -> bool:
            return ticket is not None and ticket.number <= self._void.get(ticket.asker, -1)

        can = limiter.can_sample if which else limiter.can_insert
        async with self._changed:
            try:
                async with asyncio.timeout(timeout):
                    while not (
                        is_cancelled() or can(int(self._counts[0]), int(self._counts[1]), count)
                    ):
                        await self._changed.wait()
            except TimeoutError as error:
                what = f"sample {count}" if which else f"insert {count}"
                raise RateLimiterTimeout(
                    f"waited {timeout:g} s to {what} transitions; "
                    f"{limiter.figures(int(self._counts[0]), int(self._counts[1]))}"
                ) from error
            if is_cancelled():
                return False
            self._counts[which] += count
            self._changed.notify_all()
            return True

    async def give_back(self, samples: int, epoch: str) -> None:
        """Samples that were let pass and could not be taken. After a load the counts never had
        those that were let pass before it."""
        async with self._changed:
            if epoch == self._epoch:
                self._counts[1] -= samples
                self._changed.notify_all()

    async def counts(self) -> tuple[int, int]:
        """Inserts and samples."""
        return int(self._counts[0]), int(self._counts[1])

    async def begin_load(self, load: str, inserts: int, samples: int) -> None:
        """All shards have what they need for a load: from now on it is to be made, by the next
        client if need be. The counts are those of the checkpoint."""
        plan = {"load": load, "inserts": inserts, "samples": samples}
        files.replace({self._load: json.dumps(plan).encode()})

    async def load_under_way(self) -> str | None:
        """The load that was begun, and not ended."""
        return self._plan().get("load")

    async def end_load(self, load: str) -> None:
        """All shards have loaded: go on from the counts of the checkpoint."""
        plan = self._plan()
        if plan.get("load") != load:
            return  # asked again
        async with self._changed:
            self._counts[:], self._epoch = (plan["inserts"], plan["samples"]), load
            self._changed.notify_all()
        files.replace({self._noted_epoch: load.encode()})
        files.sync([self._path])  # while the plan still has what they are to be
        files.remove(self._load)
        files.sync_dirs([self._load.parent])  # else a power cut has it end again, with old counts

    def _plan(self) -> dict[str, Any]:
        return read_document(self._load) if files.is_there(self._load) else {}
