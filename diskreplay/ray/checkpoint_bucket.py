"""Checkpoints of all shards in an object store: one object says which are published.

::

    <URL>/shards.json            the documents of all checkpoints, and which run publishes them
    <URL>/attachments/<sha256>   files that belong to some of them
    <URL>/parts/<name>-<shard>/  the parts of one shard, as `RemoteCheckpoints` has them

Each shard pushes its part. Then ``shards.json`` is replaced by compare-and-swap: that request
publishes. See docs/design/0014 for why one object, and 0016 for why each shard has a URL.
"""

import contextlib
import dataclasses
import datetime
import json
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from diskreplay.errors import CorruptCheckpointError, RemoteError
from diskreplay.ray.destination import Bucket
from diskreplay.ray.sharded_checkpoint import (
    FORMAT,
    attachments_of,
    checked,
    in_order,
    superfluous,
    wanted,
)
from diskreplay.store import checkpoint_names, numbers

if TYPE_CHECKING:
    from diskreplay.remote.checkpoints import RemoteCheckpoints

_KEY = "shards.json"
_MOST_ATTACHED = 4 << 30
_AT_ONCE = 16
_GRACE_S = 24 * 3600.0


@dataclasses.dataclass(frozen=True)
class ShardCatalog:
    """What is in ``shards.json``.

    Attributes
    ----------
    run, epoch, nonce
        As of `Catalog`.
    checkpoints : dict of str to dict
        The document of each, by its suffix.
    """

    run: str | None
    epoch: int
    checkpoints: dict[str, dict[str, Any]]
    nonce: str

    def replaced(self, **changes: Any) -> "ShardCatalog":
        """One with these changes, to be written."""
        return dataclasses.replace(self, **changes, nonce=secrets.token_hex(8))

    def encode(self) -> bytes:
        """As the bytes of the object."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}).encode()


def parse(data: bytes, where: str) -> ShardCatalog:
    """The opposite of `ShardCatalog.encode`.

    Raises
    ------
    CorruptCheckpointError
        It is damaged.
    """
    from diskreplay.remote.document import load_json, text

    found = load_json(data, where)
    try:
        documents = found["checkpoints"]
        if not isinstance(documents, dict):
            raise ValueError("no checkpoints")
        return ShardCatalog(
            text("run", found["run"]), numbers.integer("epoch", found["epoch"], 0, 1 << 62),
            {
                checkpoint_names.checked_suffix(suffix): checked(document, f"{where}: {suffix}")
                for suffix, document in documents.items()
            },
            text("nonce", found["nonce"]),
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise CorruptCheckpointError(f"{where}: damaged: {error!r}") from error


class CheckpointBucket:
    """The checkpoints of one sharded buffer at a URL; as `CheckpointDirectory`.

    Parameters
    ----------
    bucket : Bucket
    name : str
        Of the buffer.
    run : str
        Who publishes, unless `bucket` says it.
    """

    def __init__(self, bucket: Bucket, name: str, run: str) -> None:
        from diskreplay.remote import bucket as objects
        from diskreplay.remote.fenced_object import FencedObject, Takeover

        self.bucket = self.destination = bucket
        self._name, how, self._is_claimed = name, bucket.how, False
        # Parts and attachments that are to go; the first save looks for those of dead ones, too.
        self._gone, self._names, self._attached = set[str](), set[str](), set[str]()
        self._is_swept = False
        self.run: str = how.get("run") or run
        self._objects = objects.Bucket(bucket.url, how.get("storage_options"))
        self._catalog = FencedObject(
            self._objects, _KEY, parse, lambda: ShardCatalog(None, 0, {}, ""), run=self.run,
            takeover=Takeover(bool(how.get("takeover"))),
            unsafe=bool(how.get("unsafe_single_writer")),
        )  # fmt: skip

    def claim(self, num_shards: int) -> None:
        """With `takeover`, and once: become the run that publishes here, also the parts of as many
        shards and of those that have any.

        Parts are held before any is pushed: a shard of a run that is taken over from here could
        else push to a place where nobody has, and no shard of this run could there.

        Raises
        ------
        TakenOverError, RemoteError
        """
        if not self.bucket.how.get("takeover") or self._is_claimed:
            return
        self._catalog.hold()
        documents = self._catalog.read()[0].checkpoints.values()
        names = {part["name"] for each in documents for part in each["shards"]}
        names |= self._parts(num_shards)
        # This run may be stopped between the two, and another one have all of it when it goes on.
        self._of_parts(
            sorted(names), lambda remote, _name: remote._hold(self._catalog.read_to_write),
            takeover=True,
        )  # fmt: skip
        self._is_claimed = True

    def _parts(self, num_shards: int) -> set[str]:
        return {f"{self._name}-{number}" for number in range(num_shards)}

    @contextlib.contextmanager
    def saving(self, suffix: str, shards: Sequence[object], _wait_s: float) -> Iterator[str]:
        """As `CheckpointDirectory.saving`. A store has no locks: what others have written and not
        published, and who knows whether they live, is removed once it is a day old.

        Raises
        ------
        TakenOverError, RemoteError
            It could not be published.
        """
        self.claim(len(shards))
        self._catalog.read_to_write()
        part = f"{suffix}-{secrets.token_hex(4)}"
        self._names |= self._parts(len(shards))
        try:
            yield part
        except BaseException:
            self._gone.add(part)  # the next save removes it
            raise
        self._remove_left()

    def publish(
        self, document: dict[str, Any], keep: int | None, attached: Mapping[str, bytes]
    ) -> str:
        """As `CheckpointDirectory.publish`; by one request.

        Raises
        ------
        TakenOverError, RemoteError
        """
        for sha256, data in attached.items():
            self._catalog.put_object(_key(document, sha256), data)
        suffix = document["suffix"]
        for _ in self._catalog.tries():
            found, tag = self._catalog.read_to_write()
            gone = superfluous(found.checkpoints, suffix, keep)
            left = {text: each for text, each in found.checkpoints.items() if text not in gone}
            left[suffix] = {"format": FORMAT, **document}
            if self._catalog.write(found.replaced(checkpoints=left), tag) is not None:
                break
        for each in (found.checkpoints[text] for text in gone):
            self._gone |= {part["suffix"] for part in each["shards"]}
            self._names |= {part["name"] for part in each["shards"]}
            self._attached |= _keys(each)
        return f"{self.bucket.url}/{_KEY}"

    def suffixes(self) -> list[str]:
        """Those of the checkpoints that are there, numbers first, in their order."""
        return in_order(self._catalog.read()[0].checkpoints)

    def read(self, suffix: int | str | None) -> dict[str, Any]:
        """As `CheckpointDirectory.read`."""
        found = self._catalog.read()[0].checkpoints
        return found[wanted(in_order(found), suffix, f"{self.bucket.url}/{_KEY}")]

    def attachment(self, document: dict[str, Any], sha256: str) -> bytes:
        """The bytes of an attachment of a checkpoint; the caller checks them.

        Raises
        ------
        CorruptCheckpointError
            It is missing.
        """
        from diskreplay.remote.bucket import Missing

        key = _key(document, sha256)
        try:
            return self._objects.get(key, _MOST_ATTACHED)[0]
        except Missing:
            where = self._objects.where(key)
            raise CorruptCheckpointError(f"{where}: missing; load another checkpoint") from None

    def _remove_left(self) -> None:
        """Remove parts and attachments that no published checkpoint names. What cannot be removed
        now goes with the next ones."""
        if not (self._gone or self._attached) and self._is_swept:
            return
        try:
            old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=_GRACE_S)
            doomed = self._attached | {
                one.key for one in self._objects.list("attachments/") if one.modified <= old
            }
            # Read behind the listing: what was published until then is named.
            left = self._catalog.read_to_write()[0].checkpoints.values()
            kept: dict[str, set[str]] = {name: set() for name in self._names}
            for each in left:
                for part in each["shards"]:
                    kept.setdefault(part["name"], set()).add(part["suffix"])
            named = {key for each in left for key in _keys(each)}
            self._objects.delete(sorted(doomed - named))
            self._of_parts(
                sorted(kept), lambda remote, name: remote._retain(kept[name], self._gone, _GRACE_S)
            )
        except RemoteError as error:
            warnings.warn(
                f"{self.bucket.url}: the checkpoint is published, but parts of older ones could "
                f"not be removed: {error}",
                RuntimeWarning,
                stacklevel=6,
            )
            return
        self._gone, self._attached, self._is_swept = set(), set(), True

    def _of_parts(
        self, names: list[str], what: Callable[["RemoteCheckpoints", str], object], *,
        takeover: bool = False,
    ) -> None:  # fmt: skip
        def of_one(name: str) -> None:
            with self.bucket.part(name, self.run, takeover=takeover) as remote:
                what(remote, name)

        with ThreadPoolExecutor(_AT_ONCE, "diskreplay parts") as pool:
            list(pool.map(of_one, names))


def _key(document: dict[str, Any], sha256: str) -> str:
    """Of an attachment. Each save has its own: one that a living saver counts on as there already
    could be removed as a dead one's."""
    return f"attachments/{document['shards'][0]['suffix']}/{sha256}"


def _keys(document: dict[str, Any]) -> set[str]:
    return {_key(document, sha256) for sha256 in attachments_of(document).values()}
