"""collect: checkpoints that are not kept any more go, and objects that none of the others needs."""

import contextlib
import datetime
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from diskreplay.brief import brief
from diskreplay.errors import CorruptCheckpointError, InvalidInputError, RemoteUnavailableError
from diskreplay.remote.bucket import Listed
from diskreplay.remote.catalog import Catalog, RemoteCheckpoint, in_order
from diskreplay.remote.registry import Registry

_GRACE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_GRACE = 365_000 * _SECONDS["d"]  # so long ago there has been a date
_PLACES = ("packs/", "objects/", "checkpoints/")


class Collected(NamedTuple):
    """What a collection has removed.

    Attributes
    ----------
    checkpoints : tuple of str
        Suffixes.
    objects, bytes : int
        What is deleted, documents included.
    """

    checkpoints: tuple[str, ...]
    objects: int
    bytes: int


def seconds_of(grace: float | str) -> float:
    """A time as seconds: a number, or a text like ``"24h"``; an `InvalidInputError` otherwise."""
    match = _GRACE.fullmatch(str(grace).strip())
    if isinstance(grace, bool) or match is None:
        raise InvalidInputError(
            "grace: seconds, or a text like '90s', '30m', '24h' or '7d' expected, found "
            f"{brief(grace)}"
        )
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _MOST_GRACE:
        raise InvalidInputError(
            f"grace: at most 1,000 years (365000d) expected, found {brief(grace)}"
        )
    return seconds


class Collector:
    """Collects at one URL, with `concurrency` requests at once. Only the run that publishes there
    may."""

    def __init__(self, registry: Registry, concurrency: int) -> None:
        self._registry, self._concurrency = registry, concurrency

    def collect(self, keep: int, grace: float, spared: str | None = None) -> Collected:
        """Remove numbered checkpoints but the `keep` highest and the one of the suffix `spared`,
        and then the objects that nothing refers to and that are older than `grace` seconds."""
        return self._remove(lambda found: _superfluous(found, keep, spared), grace)

    def retain(self, suffixes: Collection[str], gone: Collection[str], grace: float) -> Collected:
        """Remove all checkpoints but those of these suffixes: at once those of `gone`, others and
        objects once they are older than `grace` seconds."""

        def which(found: Catalog) -> tuple[str, ...]:
            latest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=grace)
            return tuple(
                suffix for suffix, one in found.checkpoints.items()
                if suffix not in suffixes and (suffix in gone or one.published_at <= latest)
            )  # fmt: skip

        return self._remove(which, grace)

    def _remove(self, which: Callable[[Catalog], tuple[str, ...]], grace: float) -> Collected:
        """Remove these checkpoints, and what none of the others needs.

        Nothing that a push beside this one refers to is deleted, whatever `grace` is. What is to be
        deleted is written into the catalog first; a push that was prepared before cannot publish
        then, since its swap fails. It begins anew, and puts what is doomed under other names.

        At the end the names may be used again, but only if nobody has written since they were
        doomed. Else another collection may be about to delete them, too. Those of an earlier one
        are never used again: nobody knows whether it was killed, or is stopped and goes on later.
        They need not stay in the catalog for that: see `Catalog.least`.
        """
        registry = self._registry
        for _ in self._registry.tries():
            found, tag = registry.read_to_write()
            if not tag:
                return Collected((), 0, 0)
            gone = which(found)
            left = {s: one for s, one in found.checkpoints.items() if s not in gone}
            doomed, damage = self._unneeded(found.replaced(checkpoints=left), grace)
            names = frozenset(one.key for one in doomed)
            after = found.without_doomed().replaced(checkpoints=left)
            wanted = after.replaced(doomed=after.doomed | _objects(names))
            is_new = gone or doomed or after.doomed != found.doomed
            now = registry.write(wanted, tag) if is_new else tag
            if now is None:
                continue
            if doomed:
                registry.bucket.delete(sorted(names))
                with contextlib.suppress(RemoteUnavailableError):
                    registry.write(after, now)
            if damage is not None:
                raise damage
            return Collected(gone, len(doomed), sum(one.size for one in doomed))
        raise AssertionError("the tries end with an error")

    def _unneeded(
        self, left: Catalog, grace: float
    ) -> tuple[list[Listed], CorruptCheckpointError | None]:
        """What no checkpoint needs. Where one does not say what it needs nothing is, and why."""
        needed = {one.document for one in left.checkpoints.values()}
        with ThreadPoolExecutor(self._concurrency, "diskreplay collect") as pool:
            for its in pool.map(self._needed_by, left.checkpoints.values()):
                if isinstance(its, CorruptCheckpointError):
                    return [], its
                needed |= its
        latest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=grace)
        return [
            one
            for place in _PLACES
            for one in self._registry.bucket.list(place)
            if one.key not in needed and one.modified <= latest
        ], None

    def _needed_by(self, one: RemoteCheckpoint) -> frozenset[str] | CorruptCheckpointError:
        try:
            return self._registry.objects(one)
        except CorruptCheckpointError as error:
            return CorruptCheckpointError(
                f"{error}. No object is deleted, since this checkpoint may need it: push "
                f"checkpoint {one.suffix} again"
            )


def _superfluous(found: Catalog, keep: int, spared: str | None) -> tuple[str, ...]:
    numbered = [one for one in in_order(found.checkpoints.values()) if one.number is not None]
    return tuple(one.suffix for one in numbered[:-keep] if one.suffix != spared)


def _objects(keys: frozenset[str]) -> frozenset[str]:
    """Without documents: each push gives its own another name."""
    return frozenset(key for key in keys if not key.startswith("checkpoints/"))
