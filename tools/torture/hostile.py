"""Stores and files that were made to hurt: each is refused, quickly, in little memory, and nothing
outside is touched; then damage of every byte, see `fuzz`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import archives
import crew
import fuzz
import harm
import specimen
import trials

import diskreplay

_MEMORY = 1 << 30
_SECONDS = 20.0
_SECRET = b"nobody but the owner reads or changes this\n" * 200


def run(
    *,
    inputs: int = 2000,
    seed: int = 0,
    workers: int = 2,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Try every case that is made by hand, then `inputs` random ones.

    Returns
    -------
    dict
        ``cases`` tried, ``refused`` and ``harmless`` ones, ``slowest_s``, ``fuzz``, and
        ``failures`` of both.
    """
    figures = run_cases(workers=workers, advance=advance)
    figures["fuzz"] = fuzz.run(inputs=inputs, seed=seed, workers=workers, advance=advance)
    figures["failures"] += figures["fuzz"].pop("failures")
    return figures


def run_cases(
    *,
    names: tuple[str, ...] | None = None,
    workers: int = 2,
    limit_s: float = _SECONDS,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Try the cases made by hand, all or those of some names, each in a process that may take a
    gibibyte and `limit_s` seconds."""
    results: dict[str, str] = {}
    failures, slowest = [], 0.0
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        base = Path(place)
        specimen.warm_up(base / "warm-up")
        specimen.make(base)
        # Of the same harm to several kinds of specimen, a choice takes the first.
        jobs = (
            list(CASES)
            if names is None
            else list(
                {name: (kind, name) for kind, name in reversed(CASES) if name in names}.values()
            )
        )
        for outcome in crew.run(
            partial(_one, base), jobs, workers=workers, limit_s=limit_s, memory=_MEMORY
        ):
            advance()
            label = ": ".join(outcome.job)
            if outcome.trouble is not None:
                failures.append({"case": label, "trouble": outcome.trouble[-1500:]})
                continue
            results[label], seconds = outcome.value
            slowest = max(slowest, seconds)
    return {
        "cases": len(jobs),
        "refused": sum(value == trials.REFUSED for value in results.values()),
        "harmless": sorted(label for label, value in results.items() if value != trials.REFUSED),
        "slowest_s": round(slowest, 3),
        "failures": failures,
    }


def _one(base: Path, job: tuple[str, str]) -> tuple[str, float]:
    kind, _name = job
    room = trials.fresh(base / f"room-{os.getpid()}")
    outside, scratch, place = room / "outside", room / "scratch", room / kind
    outside.mkdir()
    scratch.mkdir()
    (outside / "secret").write_bytes(_SECRET)
    (outside / "0.0").write_bytes(_SECRET)
    (outside / "spare.theirs").write_bytes(_SECRET)
    shutil.copytree(base / kind, place)
    for path in place.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)
    CASES[job](place, outside)
    before = _listing(outside)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = trials.attempt(kind, place, scratch, "observation/c.0.0")
        except MemoryError as error:
            raise AssertionError("more than a gibibyte of memory was asked for") from error
    seconds = time.monotonic() - began
    if _listing(outside) != before:
        raise AssertionError(f"changed outside: {before} was, {_listing(outside)} is")
    for path in outside.iterdir():
        path.unlink()
    return found, seconds


def _listing(directory: Path) -> list[tuple]:
    """Names, modes, links, and contents."""
    found = []
    for path in sorted(directory.rglob("*")):
        about = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        found.append((path.name, about.st_mode, about.st_nlink, data))
    return found


# -- the cases


def _all() -> Iterator[tuple[tuple[str, str], harm.Case]]:
    for kind, root in (("store-lz4", ""), ("checkpoint", "replay_ckpt.1/")):
        for name, case in harm.documents(root):
            yield (kind, name), case
            if root:
                yield (kind, f"{name}, relisted"), harm.relisted(root, case)
        for name, case in harm.shards(f"{root}observation/c.5.0.0.0"):
            yield (kind, name), case
    manifest = f"replay_ckpt.1/{specimen.MANIFEST}"
    for key in ("../../outside/secret", "/etc/passwd", "a/../../../outside/secret", "lock/..", ""):
        for entry in ([len(_SECRET), 0], [-1, 0], ["a", 0], [True, False], [2**70, 2**70], 7):
            yield (
                ("checkpoint", f"the file {key!r} {entry}"),
                harm.one_value(manifest, "files", key)(entry),
            )
    for value in (7, [], None, {}, "zarr.json"):
        yield ("checkpoint", f"files {value!r}"), harm.one_value(manifest, "files")(value)
    yield from harm.files()
    for name, case in archives.gz():
        yield ("gz", name), case
    for name, case in archives.npz():
        yield ("npz", name), case


CASES: dict[tuple[str, str], harm.Case] = dict(_all())

SUFFIXES = (
    "..", "../outside", "a/b", "/etc/passwd", "", ".", ".hidden", "a\0b", "a\nb", "*", "~", "1 ",
    "-" * 300, "\u0661", None, True, 1.5, -1, b"1", [1], "$(touch ran)", "%2e%2e", "\\..",
)  # fmt: skip
"""Names for checkpoints of which none may become a file outside of the directory."""


def refused_suffixes(directory: Path) -> list[str]:
    """Try `SUFFIXES`; those that were refused. Whatever else appears there raises."""
    refused = []
    with diskreplay.PrioritizedReplayBuffer(directory / "store", **specimen.OPTIONS) as buffer:
        specimen.add(buffer, 30)
        for suffix in SUFFIXES:
            for call in (
                lambda s=suffix: buffer.save(directory / "checkpoints", s),
                lambda s=suffix: buffer.load(directory / "checkpoints", s),
            ):
                try:
                    call()
                except diskreplay.DiskReplayError:
                    refused.append(repr(suffix))
    if sorted(path.name for path in directory.iterdir()) not in (
        ["checkpoints", "store"], ["store"]
    ):  # fmt: skip
        raise AssertionError(f"something is outside: {list(directory.iterdir())}")
    return refused
