"""verify: whether all that published checkpoints need is there."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from diskreplay.errors import CorruptCheckpointError
from diskreplay.remote.catalog import RemoteCheckpoint
from diskreplay.remote.fetcher import Fetcher
from diskreplay.remote.registry import Registry


@dataclass(frozen=True)
class RemoteReport:
    """What a check of published checkpoints has found.

    Attributes
    ----------
    checkpoints : tuple of str
        Suffixes of those that were checked.
    objects, bytes : int
        How many objects they need, and how long these are together.
    findings : tuple of str
        What is wrong: which object, what was found and expected, which checkpoints need it.
    """

    checkpoints: tuple[str, ...]
    objects: int
    bytes: int
    findings: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(
    registry: Registry, checked: Sequence[RemoteCheckpoint], *, deep: bool, concurrency: int
) -> RemoteReport:
    """Check these checkpoints: their documents, and that their objects are there in full length;
    `deep` reads each of them and holds it against the SHA-256 that it is named by."""
    findings: list[str] = []
    lengths: dict[str, int] = {}
    needed_by: dict[str, list[str]] = {}

    def needed(one: RemoteCheckpoint) -> dict[str, int] | str:
        try:
            return registry.document(one).objects  # all else of a document may be long
        except CorruptCheckpointError as error:
            return str(error)

    with ThreadPoolExecutor(concurrency, "diskreplay verify") as pool:
        for one, its in zip(checked, pool.map(needed, checked), strict=True):
            if isinstance(its, str):
                findings.append(f"{its} (checkpoint {one.suffix})")
                continue
            for key, length in its.items():
                lengths[key] = length
                needed_by.setdefault(key, []).append(one.suffix)
    fetcher = Fetcher(registry.bucket, concurrency=concurrency)

    def wrong(key: str) -> str | None:
        if deep:
            try:
                fetcher.checked(key, lengths[key])
            except CorruptCheckpointError as error:
                return str(error).partition("; pull")[0]
            return None
        size, where = registry.bucket.size(key), registry.bucket.where(key)
        if size is None:
            return f"{where}: missing"
        if size != lengths[key]:
            return f"{where}: {size:,} bytes found, {lengths[key]:,} expected"
        return None

    with ThreadPoolExecutor(concurrency, "diskreplay verify") as pool:
        for key, what in zip(lengths, pool.map(wrong, lengths), strict=True):
            if what is not None:
                findings.append(f"{what} (checkpoints {', '.join(needed_by[key])})")
    suffixes = tuple(one.suffix for one in checked)
    return RemoteReport(suffixes, len(lengths), sum(lengths.values()), tuple(findings))
