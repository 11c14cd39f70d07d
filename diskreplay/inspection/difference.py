"""In what two stores or checkpoints differ: fields, options, rows, priorities, generator."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episode_parts import PARTS
from diskreplay.inspection.retained import read_rows
from diskreplay.open_episodes import BEGINS
from diskreplay.store import format, generation, priorities
from diskreplay.store.priorities import VIEWS

_BYTES_AT_ONCE = 16 << 20
_SMALL = 8  # values that are shown in full
_CLOSE = 1e-9  # what a copy may change of a priority
_NOT_OPTIONS = frozenset(
    ("format_version", "created_by", "fields", "first", "count", "transitions", "rng", "prefetch",
     "observation_space", "action_space", "extras", "block_rows", "next_step",
     *generation.KEYS)
)  # fmt: skip
_OF_NUMBERS = frozenset((BEGINS, PARTS, VIEWS))  # which say row numbers
_OF_VIEWS = ("identity", "largest")  # what a copy has of a view


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same.

    Attributes
    ----------
    what : str
        ``"field"``, ``"space"``, ``"option"``, ``"rows"``, ``"value"``, ``"priority"`` or
        ``"generator"``.
    name : str
        Of the field or option.
    one, other : object
        What each has, as JSON; of a large value the first element that differs.
    env, row : int or None
        Of a value or a priority: where the first difference is, by the row numbers of the first.
    rows : int or None
        In how many of the rows that are compared.
    at : tuple of int
        Where that element is in its row; empty if all of the value is there.
    """

    what: str
    name: str
    one: Any
    other: Any
    env: int | None = None
    row: int | None = None
    rows: int | None = None
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Span:
    """Rows of one env that are held against each other: so many from these two on."""

    starts: tuple[int, int]
    rows: int


def differences(
    one: ReplayBuffer, other: ReplayBuffer, *, newest: bool = False
) -> Iterator[Difference]:
    """Compare two buffers.

    Rows are compared by their numbers, as far as both retain them, bit by bit. Compressors and
    segment sizes are nobody's business but the store's and are not looked at. Rows that the writer
    of a live store evicts meanwhile are left out.

    Parameters
    ----------
    newest : bool
        Compare the newest rows of both, whatever their numbers, as they are in a copy. Numbers and
        generators are left out, and priorities may differ by 1e-9 of their size. Of views of
        sequences their options, priorities and largest one are compared.

    Notes
    -----
    Reads every field that both have once, 16 MiB at a time.
    """
    about = [format.read_attributes(buffer.path) for buffer in (one, other)]
    for name in sorted(one.fields.keys() | other.fields.keys()):
        if one.fields.get(name) != other.fields.get(name):
            yield Difference(
                "field", name, _spec(one.fields.get(name)), _spec(other.fields.get(name))
            )
    for name in ("observation_space", "action_space"):
        space, others = getattr(one, name), getattr(other, name)
        if space != others:
            yield Difference("space", name, str(space), str(others))
    left_out = _NOT_OPTIONS | _OF_NUMBERS if newest else _NOT_OPTIONS
    for name in sorted((about[0].keys() | about[1].keys()) - left_out):
        values = [a.get(name) for a in about]
        if values[0] != values[1] and not (newest and _are_close(*values)):
            yield Difference("option", name, values[0], values[1])
    if newest:
        yield from _views(*(a.get(VIEWS, {}) for a in about))
    if not newest and about[0].get("rng") != about[1].get("rng"):
        kind, others = (_generator(a.get("rng")) for a in about)
        yield Difference(
            "generator", "rng", kind, others if others != kind else f"{kind} in another state"
        )
    if one.num_envs != other.num_envs:
        return
    bounds = np.stack([one.bounds, other.bounds])
    for env in range(one.num_envs):
        known = bounds[:, env].tolist()
        if not newest and known[0] != known[1]:
            yield Difference("rows", "first and count", known[0], known[1], env=env)
    spans = common_rows(bounds, newest=newest)
    for name, spec in one.fields.items():
        if other.fields.get(name) == spec:
            for env, span in enumerate(spans):
                yield from _values(one, other, name, env, span)
    if newest:
        yield from _begins(one, other, spans)
    for name in sorted({*priorities.sets(one.path), *priorities.sets(other.path)}):
        yield from _priorities(name, one, other, spans, newest)


def common_rows(bounds: np.ndarray, *, newest: bool = False) -> list[Span]:
    """For each env the rows to compare.

    Parameters
    ----------
    bounds : ndarray of int, shape (2, num_envs, 2)
        Of both buffers.
    newest : bool
        As for `differences`.
    """
    first, stop = np.moveaxis(bounds, 2, 0)
    if newest:
        rows = (stop - first).min(axis=0)
        starts = stop - rows
    else:
        starts = np.broadcast_to(first.max(axis=0), first.shape)
        rows = np.maximum(stop.min(axis=0) - starts[0], 0)
    return [Span(tuple(s), n) for s, n in zip(starts.T.tolist(), rows.tolist(), strict=True)]


def _values(
    one: ReplayBuffer, other: ReplayBuffer, name: str, env: int, span: Span
) -> Iterator[Difference]:
    shape, dtype = one.fields[name]
    at_once = max(1, _BYTES_AT_ONCE // (dtype.itemsize * int(np.prod(shape))))
    first, rows, shown = None, 0, []
    at: tuple[int, ...] = ()
    for low in range(0, span.rows, at_once):
        high = min(low + at_once, span.rows)
        read = [
            read_rows(buffer, env, start + low, start + high, [name])[1][0]
            for buffer, start in zip((one, other), span.starts, strict=True)
        ]
        kept = min(len(values) for values in read)  # a writer evicts the oldest
        both = [values[len(values) - kept :] for values in read]
        bits = [v.reshape(kept, -1, 1).view(np.uint8) for v in map(np.ascontiguousarray, both)]
        differs = (bits[0] != bits[1]).any(axis=2)
        where = np.flatnonzero(differs.any(axis=1))
        if len(where) and first is None:
            first = span.starts[0] + high - kept + int(where[0])
            shown = [v[where[0]] for v in both]
            if shown[0].size > _SMALL:
                at = tuple(int(n) for n in np.unravel_index(differs[where[0]].argmax(), shape))
            shown = [v[at].tolist() for v in shown]
        rows += len(where)
    if first is not None:
        yield Difference("value", name, shown[0], shown[1], env, first, rows, at)


def _views(mine: dict[str, Any], its: dict[str, Any]) -> Iterator[Difference]:
    for name in sorted(mine.keys() | its.keys()):
        if name not in mine or name not in its:
            one, other = ("there" if name in views else "missing" for views in (mine, its))
            yield Difference("option", f"view {name}", one, other)
            continue
        for key in _OF_VIEWS:
            one, other = mine[name].get(key), its[name].get(key)
            if one != other and not _are_close(one, other):
                yield Difference("option", f"view {name}: {key}", one, other)


def _begins(one: ReplayBuffer, other: ReplayBuffer, spans: list[Span]) -> Iterator[Difference]:
    """Which of the rows begin an episode though their steps count on."""
    num_envs = one.num_envs
    both = []
    for place, buffer in enumerate((one, other)):
        rows, envs = np.divmod(np.array(buffer.begins, np.int64), num_envs)
        both.append((rows - np.array([span.starts[place] for span in spans])[envs], envs))
    for env, span in enumerate(spans):
        # The oldest row begins one anyway.
        mine, its = (
            sorted((rows[(envs == env) & (rows > 0)] + span.starts[0]).tolist())
            for rows, envs in both
        )
        if mine != its:
            yield Difference("option", BEGINS, mine, its, env=env)


def _priorities(
    name: str, one: ReplayBuffer, other: ReplayBuffer, spans: list[Span], newest: bool
) -> Iterator[Difference]:
    mine, its = (priorities.read(b.path / name, b.num_envs) for b in (one, other))
    if mine is None or its is None:
        if mine is not its:
            has = ["none" if saved is None else "some" for saved in (mine, its)]
            yield Difference("priority", name, has[0], has[1])
        return
    saved = mine, its
    for env, span in enumerate(spans):
        # Of a live store they were saved at the last flush: the newest rows have none yet.
        begins = [s.start - start for s, start in zip(saved, span.starts, strict=True)]
        low = max(0, *begins)
        high = min(span.rows, *(b + len(s.leaves) for b, s in zip(begins, saved, strict=True)))
        both = [
            s.leaves[low - begin : max(high, low) - begin, env]
            for s, begin in zip(saved, begins, strict=True)
        ]
        lacking = [np.isnan(leaves) for leaves in both]
        if newest:  # the oldest of a copy lack the frames before them, and so cannot be sampled
            differs = ~np.isclose(both[0], both[1], rtol=_CLOSE, atol=0) & ~(
                lacking[0] | lacking[1]
            )
        else:
            differs = (both[0] != both[1]) & ~(lacking[0] & lacking[1])
        where = np.flatnonzero(differs)
        if len(where):
            shown = [float(leaves[where[0]]) for leaves in both]
            row = span.starts[0] + low + int(where[0])
            yield Difference("priority", name, shown[0], shown[1], env, row, len(where))


def _are_close(one: Any, other: Any) -> bool:
    return isinstance(one, float) and isinstance(other, float) and bool(
        np.isclose(one, other, rtol=_CLOSE, atol=0)
    )  # fmt: skip


def _spec(spec: tuple[Any, ...] | None) -> str:
    return "missing" if spec is None else f"{spec[1]} of shape {spec[0]}"


def _generator(saved: Any) -> str:
    """What kind of one it is, of what `ReplayableRng` saves."""
    if saved is None:
        return "none"
    try:
        return str(saved["bit_generator"]["bit_generator"])
    except (LookupError, TypeError):
        return "unknown"
