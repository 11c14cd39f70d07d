"""Damages specimens byte by byte, and counts what came of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import crew
import specimen
import trials

_NUMBERS = (
    0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
    10**30, -(2**63), -(2**70), 1e308, -0.0, 0.5, float("nan"), float("inf"),
)  # fmt: skip
_THINGS = (None, True, False, "", "..", "../../outside", "/etc/passwd", "\0", "a" * 5000, [], {},
           [[]], [0], {"a": 0}, "NaN", "9" * 400)  # fmt: skip
_MEMORY = 3 << 30
_LIMIT_S = 30.0


def run(
    *,
    inputs: int = 2000,
    kinds: tuple[str, ...] = specimen.KINDS,
    seed: int = 0,
    workers: int = 2,
    limit_s: float = _LIMIT_S,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Try so many damaged inputs, spread over all files of all kinds of specimen.

    Returns
    -------
    dict
        ``inputs`` tried, ``outcomes`` of each kind, and ``failures``: what none of them may do.
    """
    with tempfile.TemporaryDirectory(prefix="torture-", dir=crew.MEMORY) as place:
        base = Path(place)
        specimen.warm_up(base / "warm-up")
        places = specimen.make(base)
        jobs = [(seed + number, kinds[number % len(kinds)]) for number in range(inputs)]
        outcomes: dict[str, Counter] = {kind: Counter() for kind in kinds}
        failures = []
        work = partial(_one, base, {kind: _files(places[kind]) for kind in kinds})
        for outcome in crew.run(work, jobs, workers=workers, limit_s=limit_s, memory=_MEMORY):
            advance()
            if outcome.trouble is None:
                outcomes[outcome.job[1]][outcome.value] += 1
                continue
            outcomes[outcome.job[1]]["failed"] += 1
            failures.append(
                {
                    "seed": outcome.job[0],
                    "kind": outcome.job[1],
                    "damage": mutation(*outcome.job, work.args[1][outcome.job[1]])[1],
                    "trouble": outcome.trouble[-1500:],
                }
            )
    return {
        "inputs": inputs,
        "seed": seed,
        "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "failures": failures,
    }


def _files(place: Path) -> list[str]:
    """All files of a specimen, relative to it, in an order that does not change."""
    return sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())


def _one(base: Path, names: dict[str, list[str]], job: tuple[int, str]) -> str:
    seed, kind = job
    room = trials.fresh(base / f"room-{os.getpid()}")
    place, scratch = room / kind, room / "scratch"
    scratch.mkdir()
    _copied(base / kind, place)
    damage, _text = mutation(seed, kind, names[kind])
    touched = damage(place)
    return trials.attempt(kind, place, scratch, touched)


def _copied(source: Path, target: Path) -> None:
    """With the modes and without sparing: a trial changes its copy."""
    shutil.copytree(source, target)


def mutation(seed: int, kind: str, names: list[str]) -> tuple[Callable[[Path], str], str]:
    """What input number `seed` does to a specimen, and the same in words."""
    rng = random.Random(f"{seed}.{kind}")
    # Small files first: there are more kinds of them than of the large ones.
    name = rng.choice(names)
    how = rng.choice(_WAYS_OF_JSON if name.endswith(".json") else _WAYS)
    return partial(_apply, rng, name, how, names), f"{how.__name__} {name}"


def _apply(rng: random.Random, name: str, how: Callable, names: list[str], place: Path) -> str:
    path = place / name
    path.chmod(0o644)
    how(rng, path, [place / other for other in names])
    return name


# -- ways: each changes one file


def flip(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """One to four bits."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def flip_at_the_ends(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """Where headers and indices are."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(min(96, len(data)))
    data[rng.choice((at, -1 - at))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    path.write_bytes(data)


def number(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """An integer that hurts in the place of 4 or 8 bytes."""
    data = bytearray(path.read_bytes())
    size = rng.choice((4, 8))
    value = rng.choice([n for n in _NUMBERS if isinstance(n, int)]) % 2 ** (8 * size)
    at = rng.choice((rng.randrange(len(data)), rng.randrange(min(len(data), 128)))) // size * size
    data[at : at + size] = value.to_bytes(size, "little")
    path.write_bytes(data)


def cut(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """Shorter, at times to nothing."""
    size = path.stat().st_size
    os.truncate(path, rng.choice((0, 1, size - 1, rng.randrange(size))))


def grow(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """Longer, by bytes or by a hole."""
    if rng.random() < 0.5:
        os.truncate(path, path.stat().st_size + rng.choice((1, 4096, 1 << 33)))
    else:
        with open(path, "ab") as file:
            file.write(rng.randbytes(rng.choice((1, 16, 4096))))


def splice(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """A piece of itself over another piece."""
    data = bytearray(path.read_bytes())
    size = rng.randrange(1, max(2, min(len(data), 512)))
    source, target = (rng.randrange(max(1, len(data) - size)) for _ in range(2))
    data[target : target + size] = data[source : source + size]
    path.write_bytes(data)


def noise(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """Random bytes over a piece, or over all of it."""
    data = bytearray(path.read_bytes())
    size = rng.choice((len(data), rng.randrange(1, len(data) + 1)))
    at = rng.randrange(len(data) - size + 1)
    data[at : at + size] = rng.randbytes(size)
    path.write_bytes(data)


def swap(rng: random.Random, path: Path, others: list[Path]) -> None:
    """Another file's bytes."""
    path.write_bytes(rng.choice(others).read_bytes())


def remove(_rng: random.Random, path: Path, _others: list[Path]) -> None:
    """No file at all."""
    path.unlink()


def value(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """One value of a JSON document, for one that hurts."""
    document = json.loads(path.read_bytes())
    spots = list(_spots(document))
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(spots)
        old = holder[key]
        if isinstance(old, int | float) and rng.random() < 0.7:
            new = rng.choice((*_NUMBERS, old + 1, old - 1, old * 2))
        else:
            new = rng.choice((*_THINGS, *_NUMBERS))
        holder[key] = new
    path.write_text(json.dumps(document))


def lose_key(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """One key or item of a JSON document less."""
    document = json.loads(path.read_bytes())
    holder, key = rng.choice(list(_spots(document)))
    del holder[key]
    path.write_text(json.dumps(document))


def nest(rng: random.Random, path: Path, _others: list[Path]) -> None:
    """One value of a JSON document, for lists in lists in lists."""
    document = json.loads(path.read_bytes())
    holder, key = rng.choice(list(_spots(document)))
    holder[key] = "%"
    depth = rng.choice((50, 900, 5000, 200_000))
    path.write_text(json.dumps(document).replace('"%"', "[" * depth + "]" * depth, 1))


def _spots(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = document if isinstance(document, dict) else range(len(document))
    for key in keys:
        yield document, key
        if isinstance(document[key], dict | list):
            yield from _spots(document[key])


_WAYS = (flip, flip, flip_at_the_ends, number, cut, grow, splice, noise, swap, remove)
_WAYS_OF_JSON = (value, value, value, value, lose_key, nest, flip, cut, noise, swap, remove)
