"""What is tried with a damaged specimen, and what may come of it.

Right rows or one of diskreplay's errors: nothing else is allowed, with one exception that
`diskreplay.check.verify` documents. Bytes that have no checksum yet (tails and raw segments that
are not full), and those of raw segments, whose checksum is not looked at when they are read, may
come back rotten; of the latter and of metadata `verify` must say so then.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import content
import numpy as np
import snapshot
import specimen

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.convert import npz, parquet
from diskreplay.store import files
from diskreplay.store.codec import crc32c

_LARGEST = 1 << 24  # bytes of a file of a specimen
REFUSED, RIGHT, NAMED, UNSEEN = "refused", "right", "named by verify", "without a checksum"


class Wrong(AssertionError):
    """Something came back that was never put in, and nobody says so."""


def attempt(kind: str, place: Path, scratch: Path, touched: str) -> str:
    """Use a specimen in every way there is.

    Parameters
    ----------
    kind : str
        Of `specimen.KINDS`.
    place : Path
        The damaged specimen; it is changed further.
    scratch : Path
        An empty directory.
    touched : str
        The file in it that was damaged.

    Returns
    -------
    str
        `REFUSED` if anything was, else `RIGHT`, `NAMED` or `UNSEEN`.

    Raises
    ------
    Wrong
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _TRIALS[kind](place, scratch, touched)


def _refused(call: Callable[[], None]) -> bool:
    try:
        call()
    except diskreplay.DiskReplayError as error:
        if not str(error):
            raise Wrong("an error without a message") from error
        return True
    return False


def _inspected(path: Path) -> bool:
    """Whether `verify` finds something, or refuses."""
    try:
        return not verify(path).clean
    except diskreplay.DiskReplayError:
        return True


def _compare(buffer: diskreplay.ReplayBuffer, wrong: list[str], rows: int = specimen.ROWS) -> None:
    """Put what is wrong with a buffer's rows and samples into `wrong`; `rows` were added."""
    bounds = buffer.bounds
    if (bounds[:, 1] > rows).any():
        wrong.append(f"rows that were never added: {bounds.tolist()}")
    elif not (bounds == [rows - specimen.CAPACITY, rows]).all():
        wrong.append(f"rows {bounds.tolist()} of {rows}")
    wrong += content.wrong(buffer, steps=[specimen.steps(0, rows)])
    for _ in range(2):
        batch = buffer.sample(16)
        if batch.observation.shape[-2:] != content.FRAME:
            wrong.append(f"frames of shape {batch.observation.shape}")
            continue
        for place, number in enumerate(batch.id.tolist()):
            if not np.array_equal(batch.observation[place, -1], content.frame(0, number)):
                wrong.append(f"observation of sampled row {number}")


def _store(place: Path, scratch: Path, touched: str, rows: int = specimen.ROWS) -> str:
    found_by_verify = _inspected(place)
    wrong: list[str] = []

    def read() -> None:
        with diskreplay.open(place) as buffer:
            _compare(buffer, wrong, rows)

    def write() -> None:
        with diskreplay.open(place, mode="a", seed=1) as buffer:
            _compare(buffer, wrong, rows)
            if len(buffer.bounds) == 1 and buffer.bounds[0, 1] == rows:
                specimen.add(buffer, rows + 40)
                buffer.flush()

    def constructed() -> None:
        with diskreplay.PrioritizedReplayBuffer(place, **specimen.OPTIONS) as buffer:
            buffer.sample(4)

    refused = [_refused(call) for call in (read, write, constructed)]
    if wrong:
        if found_by_verify:
            return NAMED
        if has_no_checksum(touched):
            return UNSEEN
        raise Wrong("; ".join(wrong[:5]))
    return REFUSED if any(refused) or found_by_verify else RIGHT


def _store_of_a_kill(place: Path, scratch: Path, touched: str) -> str:
    """There the commit page says which rows count, and nothing holds a checksum of it."""
    try:
        return _store(place, scratch, touched, specimen.ROWS_OF_A_KILL)
    except Wrong:
        if touched == f"{specimen.LIVE}/state":
            return UNSEEN
        raise


def has_no_checksum(touched: str) -> bool:
    """Whether a file of the live store is one that `verify` documents as not covered.

    Of the raw columns, that are the newest segments, which are not full; a page holds more of the
    small ones than all rows of a specimen.
    """
    parts = Path(touched).parts
    if parts[0] == "priority" or touched in ("zarr.json", f"{specimen.LIVE}/lock"):
        return True
    if touched.startswith((f"{specimen.LIVE}/tail.", f"{specimen.LIVE}/open.")):
        return True
    if not parts[-1].startswith("c."):
        return False
    if parts[0] == "observation":
        full = specimen.ROWS_OF_A_KILL // specimen.SEGMENT  # of a store that was killed, no more
        return int(parts[-1].split(".")[1]) >= full
    return True


def _checkpoint(place: Path, scratch: Path, touched: str) -> str:
    directory = place / "replay_ckpt.1"
    found_by_verify = _inspected(directory)
    is_as_listed = _is_as_listed(directory)
    wrong: list[str] = []
    loaded: list[str] = []
    unchanged: list[bool] = []  # a rotten block is loaded, and refused when it is read

    def read() -> None:
        with diskreplay.open(directory) as buffer:
            _compare(buffer, wrong)

    def load() -> None:
        with diskreplay.PrioritizedReplayBuffer(
            scratch / "live", **specimen.OPTIONS, compressor="raw"
        ) as buffer:
            specimen.add(buffer, 20)
            buffer.update_priorities(buffer.sampleable_ids(), [0.5] * len(buffer))
            before = snapshot.of(buffer)
            try:
                buffer.load(place, 1)
            except diskreplay.DiskReplayError as error:
                unchanged.append(True)
                if changed := snapshot.differences(before, snapshot.of(buffer)):
                    raise Wrong(f"a load that was refused ({error}) changed {changed}") from error
                _go_on(buffer, scratch)
                raise
            _compare(buffer, loaded)
            _go_on(buffer, scratch)

    refused = [_refused(call) for call in (read, load)]
    if loaded and not is_as_listed:
        raise Wrong(f"a file is not as the manifest has it, and was loaded: {loaded[:5]}")
    if unchanged and not verify(scratch / "live").clean:
        raise Wrong("the live store is damaged after a load that was refused")
    if wrong and not found_by_verify and not is_as_listed:
        raise Wrong("; ".join(wrong[:5]))
    if wrong:
        return NAMED
    return REFUSED if any(refused) or found_by_verify else RIGHT


def _is_as_listed(directory: Path) -> bool:
    """Whether every file has the checksum that the manifest gives it: who changes both can have
    any rows loaded, and nobody can tell. Blocks of packed files have checksums of their own."""
    try:
        entries = json.loads(files.read(directory / specimen.MANIFEST, _LARGEST))["files"]
        return all(
            key.startswith("observation/c.")
            or crc32c(files.read(directory / key, _LARGEST)) == entry[1]
            for key, entry in entries.items()
        )
    except (diskreplay.DiskReplayError, ValueError, LookupError, TypeError, AttributeError):
        return False
    except RecursionError:  # of lists in lists
        return False


def _go_on(buffer: diskreplay.PrioritizedReplayBuffer, scratch: Path) -> None:
    """What a run does next; none of it may fail after a load, whether it was refused or not."""
    count = int(buffer.bounds[0, 1])
    try:
        specimen.add(buffer, count + 10)
        batch = buffer.sample(4)
        buffer.update_priorities(batch.id, np.ones(4))
        buffer.flush()
        saved = buffer.save(scratch / "after", 1)
        with diskreplay.open(saved) as reader:
            reader.sample(4)
    except diskreplay.DiskReplayError as error:
        raise Wrong(f"after a load the buffer fails: {error!r}") from error


def _gz(place: Path, scratch: Path, touched: str) -> str:
    def load() -> None:
        with diskreplay.PrioritizedReplayBuffer(scratch / "live", **specimen.OPTIONS) as buffer:
            buffer.load(place, 1)
            _check_imported(buffer)

    return REFUSED if _refused(load) else RIGHT


def _imported(read: Callable, name: str) -> Callable[[Path, Path, str], str]:
    def trial(place: Path, scratch: Path, touched: str) -> str:
        def call() -> None:
            with read(place / name, scratch / "made", seed=1) as buffer:
                _check_imported(buffer)

        refused = _refused(call)
        left = sorted(path.name for path in scratch.iterdir())
        if left != ([] if refused else ["made"]):
            raise Wrong(f"left behind: {left}")
        return REFUSED if refused else RIGHT

    return trial


def _check_imported(buffer: diskreplay.ReplayBuffer) -> None:
    """Frames carry the checksum of themselves and of their number, and say so or were refused."""
    first, count = buffer.bounds[0].tolist()
    ids = np.arange(first, count) * buffer.num_envs
    if "observation" not in buffer.fields or not {"number", "checksum"} <= buffer.fields.keys():
        return
    observation, number, checksum, final = buffer.take(
        ["observation", "number", "checksum", "is_final"], ids
    )
    # A file that is missing may have said which rows of zeros were padding.
    for row in np.flatnonzero(~final & (observation.any(axis=(1, 2)) | (number != 0))).tolist():
        if content.checksum(observation[row], int(number[row])) != int(checksum[row]):
            raise Wrong(f"row {first + row} is not as it was written")


_TRIALS: dict[str, Callable[[Path, Path, str], str]] = {
    "store-lz4": _store,
    "store-raw": _store,
    "store-killed": _store_of_a_kill,
    "checkpoint": _checkpoint,
    "gz": _gz,
    "npz": _imported(npz.from_npz, "rows.npz"),
    "parquet": _imported(parquet.from_parquet, "rows.parquet"),
}


def fresh(directory: Path) -> Path:
    """The directory, made or emptied."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
