"""Checkpoints whose envs are divided anew, without a row being read or copied."""

import contextlib
import hashlib
import json
import operator
import os
from collections.abc import Collection, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.episode_parts import PARTS
from diskreplay.errors import InvalidInputError, SchemaError
from diskreplay.open_episodes import BEGINS
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.store import generation, regrouping
from diskreplay.store.manifest import ATTACHMENTS
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import resolved
from diskreplay.store.priorities import LARGEST, VIEWS
from diskreplay.store.regrouping import Piece, SourceCheckpoint

__all__ = ["regroup"]

_OF_EACH = {
    "rng", "next_step", BEGINS, PARTS, VIEWS, "prefetch", *generation.KEYS, LARGEST, "metadata"
}  # fmt: skip
"""Attributes in which checkpoints of one run may differ."""
_MOST = "max_transitions"  # of all envs together


def regroup(
    sources: Sequence[str | os.PathLike[str]],
    targets: Sequence[str | os.PathLike[str]],
    envs: Sequence[Sequence[int]] | None = None,
) -> list[Path]:
    """Divide the envs of checkpoints anew: other checkpoints, whose files are links to theirs.

    Envs move with all that is known of them: rows, ids' row numbers, episodes and parts of them,
    priorities, also those of views of sequences. They move in groups (`env_group` of the buffer),
    since a group shares files. No row is read or copied where the file system has hard links.

    Parameters
    ----------
    sources : sequence of path
        Checkpoints, as `save` made them, of buffers with the same options. They stay as they are.
    targets : sequence of path
        Where the new checkpoints go; nothing is there yet. Named ``<name>_ckpt.<suffix>``, a
        buffer of that name finds them.
    envs : sequence of sequence of int, optional
        For each target the envs that it has, in this order; whole groups. They count through all
        sources: those of the second one follow those of the first one. Envs that are not named are
        left out. By default all are divided in their order, as evenly as groups can be.

    Returns
    -------
    list of Path
        The targets. Each is there whole or not at all, also after a kill.

    Raises
    ------
    InvalidInputError
        A group would be divided, a target would have less than one, or an env is named twice;
        there is something at a target, or it is inside a store, a checkpoint or another target; two
        sources have attachments of one name; a source is of an older API. Nothing was made.
    SchemaError
        The sources differ in their fields or options. Nothing was made.
    IncompleteCheckpointError, CorruptCheckpointError, FormatError, StorageError
        The targets before this one are there.

    Notes
    -----
    An id is ``row * num_envs + env``, so ids are others. `capacity` and `max_transitions` are such
    that each env keeps what it kept. The largest priority is the largest of
    the sources'. Generators begin anew, from the states of the saved ones: each target draws other
    rows. What prefetchers had under way is left out. Attachments of a source go where its first env
    goes.
    """
    for name, given in (("sources", sources), ("targets", targets)):
        if isinstance(given, str | bytes | os.PathLike):
            raise InvalidInputError(f"{name}: a list of paths expected, found {brief(given)}")
    paths = [resolved(path) for path in targets]
    _check_targets(paths)
    opened: list[SourceCheckpoint] = []
    with contextlib.ExitStack() as held:
        for path in sources:
            opened.append(held.enter_context(contextlib.closing(SourceCheckpoint(resolved(path)))))
        _check_alike(opened)
        if envs is not None and (isinstance(envs, str) or not isinstance(envs, Collection)):
            raise InvalidInputError(f"envs: a list for each target expected, found {brief(envs)}")
        division = _divided(opened, len(paths)) if envs is None else envs
        if len(division) != len(paths):
            raise InvalidInputError(
                f"envs: one list for each of {len(paths)} targets expected, found {len(division)}"
            )
        pieces = _pieces(opened, division)
        attached = [_attached(each) for each in pieces]
        metas = [_meta(each, number) for number, each in enumerate(pieces)]
        for made in zip(paths, pieces, metas, attached, strict=True):
            regrouping.write(*made)
    return paths


def divided(groups: int, parts: int) -> list[int]:
    """How many groups each part gets, as evenly as can be: the first ones one more."""
    return [groups // parts + (number < groups % parts) for number in range(parts)]


def _check_targets(paths: list[Path]) -> None:
    if not paths:
        raise InvalidInputError("targets: one path at least expected")
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidInputError(f"targets: {path} is named twice")
        if os.path.lexists(path):
            raise InvalidInputError(f"{path}: there is something already; choose another path")
        for other in paths:
            if path != other and path.is_relative_to(other):
                raise InvalidInputError(f"targets: {path} is inside {other}; choose another path")
        check_outside(path)


def _check_alike(sources: list[SourceCheckpoint]) -> None:
    if not sources:
        raise InvalidInputError("sources: one checkpoint at least expected")
    one = sources[0]
    for source in sources:
        if "facade" in source.meta:
            raise InvalidInputError(
                f"{source.path}: of the API of {source.meta['facade']!r}, which numbers its rows "
                "by itself; only checkpoints of ReplayBuffer and PrioritizedReplayBuffer can be "
                "regrouped"
            )
        if sum(source.path == other.path for other in sources) > 1:
            raise InvalidInputError(f"sources: {source.path} is named twice")
        if source.fields != one.fields:
            ours, theirs = next(
                (ours, theirs) for ours, theirs in zip_longest(one.fields, source.fields)
                if ours != theirs
            )  # fmt: skip
            raise SchemaError(
                f"{source.path}: its fields are not those of {one.path}: {theirs} and "
                f"{ours}; only files of one kind can be linked beside each other: merge "
                "copies the rows"
            )
        for name in sorted((source.meta.keys() | one.meta.keys()) - _OF_EACH):
            if name == _MOST:
                same = _each(source) == _each(one)
            else:
                same = source.meta.get(name) == one.meta.get(name)
            if not same:
                raise SchemaError(
                    f"{source.path}: {name} is {source.meta.get(name)!r:.200} there, and "
                    f"{one.meta.get(name)!r:.200} in {one.path}; checkpoints of buffers with the "
                    "same options expected"
                )


def _each(source: SourceCheckpoint) -> int | None:
    """How many transitions an env keeps; None for no limit."""
    most = source.meta.get(_MOST)
    return None if most is None else most // source.num_envs


def _divided(sources: list[SourceCheckpoint], parts: int) -> list[list[int]]:
    """All envs in their order, in whole groups."""
    size, runs, before = sources[0].env_group, [], 0
    for source in sources:
        stop = before + source.num_envs
        runs += [list(range(at, min(at + size, stop))) for at in range(before, stop, size)]
        before = stop
    if parts > len(runs):
        raise InvalidInputError(
            f"targets: {parts} asked for, and there are {len(runs)} groups of {size} envs, which "
            f"share files: 1 to {len(runs)} expected. Buffers made with a smaller env_group can be "
            "divided further"
        )
    made, at = [], 0
    for count in divided(len(runs), parts):
        made.append([env for run in runs[at : at + count] for env in run])
        at += count
    return made


def _pieces(
    sources: list[SourceCheckpoint], division: Sequence[Sequence[int]]
) -> list[list[Piece]]:
    """The envs of each target as pieces of sources, in whole groups."""
    size = sources[0].env_group
    owners = [(source, env) for source in sources for env in range(source.num_envs)]
    seen: set[int] = set()
    found = []
    for number, envs in enumerate(division):
        try:
            numbers = [operator.index(env) for env in envs]
        except TypeError as error:
            raise InvalidInputError(
                f"envs: for target {number} a list of whole numbers expected, found "
                f"{brief(envs, 100)}"
            ) from error
        if not numbers:
            raise InvalidInputError(f"envs: target {number} has none; one group at least expected")
        pieces: list[Piece] = []
        for place, env in enumerate(numbers):
            if not 0 <= env < len(owners):
                raise InvalidInputError(f"envs: 0 to {len(owners) - 1} expected, found {env}")
            if env in seen:
                raise InvalidInputError(f"envs: {env} is named twice")
            seen.add(env)
            source, own = owners[env]
            last = pieces[-1] if pieces else None
            if last is not None and last.source is source and last.stop == own:
                pieces[-1] = last._replace(stop=own + 1)
            elif last is not None and last.stop % size and last.stop != last.source.num_envs:
                raise _divides(number, env, size)
            else:
                pieces.append(Piece(source, own, own + 1))
            if own % size != place % size:
                raise _divides(number, env, size)
        last = pieces[-1]
        if last.stop % size and last.stop != last.source.num_envs:
            raise _divides(number, numbers[-1], size)
        if len(numbers) < size:
            raise InvalidInputError(
                f"envs: target {number} would have {len(numbers)} env(s) only, and {size} share "
                f"files (env_group): at least one whole group a target expected"
            )
        found.append(pieces)
    return found


def _divides(target: int, env: int, size: int) -> InvalidInputError:
    return InvalidInputError(
        f"envs: target {target} would divide a group at env {env}: {size} envs share files "
        "(env_group), so a target has whole groups, in their order, and one with fewer envs only "
        f"as its last. Name multiples of {size} envs; or make the buffers with a smaller env_group"
    )


def _attached(pieces: list[Piece]) -> list[SourceCheckpoint]:
    """The sources whose attachments a target gets."""
    found, owners = [], dict[str, SourceCheckpoint]()
    for source in [piece.source for piece in pieces if piece.start == 0]:
        for name in source.contents.attachments:
            other = owners.setdefault(name, source)
            if other is not source:
                raise InvalidInputError(
                    f"{source.path / ATTACHMENTS / name}: {other.path} has an attachment of that "
                    "name too, and both would go into one checkpoint; save one of them under "
                    "another name"
                )
        found.append(source)
    return found


def _meta(pieces: list[Piece], number: int) -> dict[str, Any]:
    """What the buffer keeps in the attributes of a target."""
    sources = list(dict.fromkeys(piece.source for piece in pieces))
    meta = {name: value for name, value in sources[0].meta.items() if name not in _OF_EACH}
    each = _each(sources[0])
    if each is not None:
        meta[_MOST] = each * sum(piece.size for piece in pieces)
    meta["rng"] = _generator([source.meta.get("rng") for source in sources], pieces, number)
    meta[generation.KEY] = max(generation.following(source.meta) for source in sources)
    largest = [source.meta[LARGEST] for source in sources if LARGEST in source.meta]
    if largest:
        meta[LARGEST] = max(largest)
    meta["next_step"] = [
        step for piece in pieces
        for step in piece.source.meta.get("next_step", [0] * piece.source.num_envs)[piece.envs]
    ]  # fmt: skip
    begins = sorted(_ids(pieces, [piece.source.meta.get(BEGINS, []) for piece in pieces]))
    if begins:
        meta[BEGINS] = begins
    parts = _parts(pieces)
    if parts:
        meta[PARTS] = parts
    views = {name for source in sources for name in source.meta.get(VIEWS, {})}
    if views:
        meta[VIEWS] = {name: _view(name, pieces, number) for name in sorted(views)}
    meta["metadata"] = _metadata(sources)
    return meta


def _generator(states: list[Any], pieces: list[Piece], number: int) -> dict[str, Any]:
    """The state of a generator that follows from others, and is none of them."""
    which = [[piece.start, piece.stop] for piece in pieces]
    words = json.dumps([states, which, number]).encode()
    seed = int.from_bytes(hashlib.sha256(words).digest())
    return ReplayableRng(np.random.default_rng(seed)).state()


def _ids(pieces: list[Piece], given: list[list[int]]) -> list[int]:
    """Of the ids that are given for the source of each piece, those of its envs, as they are in the
    target."""
    found, before, num_envs = [], 0, sum(piece.size for piece in pieces)
    for piece, ids in zip(pieces, given, strict=True):
        for row, env in (divmod(id_, piece.source.num_envs) for id_ in ids):
            if piece.start <= env < piece.stop:
                found.append(row * num_envs + before + env - piece.start)
        before += piece.size
    return found


def _parts(pieces: list[Piece]) -> list[list[int]]:
    """Rows among which parts of episodes begin, as they are in the target."""
    found, before = [], 0
    for piece in pieces:
        found += [
            [before + env - piece.start, *range_]
            for env, *range_ in piece.source.meta.get(PARTS, [])
            if piece.start <= env < piece.stop
        ]
        before += piece.size
    return found


def _view(name: str, pieces: list[Piece], number: int) -> dict[str, Any]:
    """What is saved of a view of sequences, for a target; a source may not have it."""
    having = [piece for piece in pieces if name in piece.source.meta.get(VIEWS, {})]
    views = [piece.source.meta[VIEWS][name] for piece in having]
    for piece, view in zip(having, views, strict=True):
        if view["identity"] != views[0]["identity"]:
            raise SchemaError(
                f"{piece.source.path}: its view {name!r} has other options than that of "
                f"{having[0].source.path}"
            )
    cursor: list[int] | None = None
    returned: list[int] = []
    if views[0]["cursor"] is not None:
        new = {"cursor": [0] * max(piece.source.num_envs for piece in pieces)}
        its = [piece.source.meta.get(VIEWS, {}).get(name, new) for piece in pieces]
        returned = _ids(pieces, [view.get("returned", []) for view in its])
        cursor = [
            row for piece, view in zip(pieces, its, strict=True)
            for row in view["cursor"][piece.envs]
        ]  # fmt: skip
    return {
        "identity": views[0]["identity"],
        "rng": _generator([view["rng"] for view in views], having, number),
        "largest": max(view["largest"] for view in views),
        "cursor": cursor,
        "returned": returned,
        "under_way": None,
    }


def _metadata(sources: list[SourceCheckpoint]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for source in sources:
        for key, value in source.meta.get("metadata", {}).items():
            if found.setdefault(key, value) != value:
                raise SchemaError(
                    f"{source.path}: its metadata have {value!r:.100} for {key!r}, and another "
                    f"checkpoint {found[key]!r:.100}; they go into one"
                )
    return found
