"""Stores from stores: with another compressor, of several in one, or with a smaller capacity.

Rows are read and written as they are stored, a few dozen megabytes at a time. In the new store
each env's rows are numbered from 0 again and the generator begins anew. Priorities are carried over
to the last bits of ``(priority ** alpha) ** (1 / alpha)``; with alpha 0 a store does not know them.
So are what the store keeps of views of sequences, by their names: priorities, the largest one seen,
and which windows are new. Their generators begin anew too, and what prefetchers had under way is
left out. Windows of ``ends="cross"`` with a stride begin at multiples of it, of the new numbers:
those that are others have the largest priority. Parts of episodes stay parts (`begins`).

Sources may be live stores and checkpoints. Of a live one, rows that its writer evicts while they
are copied are left out, as if they had been evicted before. So are those behind them up to the
next beginning of an episode, which had their frames; a `RuntimeWarning` says how many of these
there are.
"""

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.buffer_options import make_buffer, options_of
from diskreplay.convert.copied_views import CopiedViews
from diskreplay.convert.importer import Importer, Progress
from diskreplay.convert.output import new_store
from diskreplay.convert.timeline import Priorities, pieces, rows_within, take_retained
from diskreplay.errors import InvalidInputError, SchemaError
from diskreplay.given_numbers import whole
from diskreplay.opening import open as open_buffer
from diskreplay.store.numbers import MOST_ROWS

__all__ = ["convert", "merge", "trim"]

Source = str | os.PathLike[str] | ReplayBuffer

_PIECE_BYTES = 16 << 20


def convert(
    source: Source,
    out: str | os.PathLike[str],
    *,
    compressor: str | Mapping[str, str] | None = None,
    segment_rows: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Copy a store, with other compressors or another size of files.

    Parameters
    ----------
    source : path or ReplayBuffer
    out : path
        The new store's directory; there whole or not at all.
    compressor : str or dict, optional
        As for `ReplayBuffer`; fields that a dict does not name keep theirs, as all do by default.
    segment_rows : int, optional
        As for `ReplayBuffer`.
    overwrite : bool
        Replace a store that is there; it may be the source itself.
    progress : callable, optional
        Called with how many rows were copied since and how many there are.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    InvalidInputError
        There is something at `out`; an argument makes no sense.
    LockedError
        The store to be replaced is being written to.
    FormatError, CorruptSegmentError, StorageError
    """
    return _copied(
        [source], out, overwrite, progress, compressor=compressor, segment_rows=segment_rows
    )


def merge(
    sources: Sequence[Source],
    out: str | os.PathLike[str],
    *,
    capacity: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """One store of several, env by env: first the rows of the first source, then of the second.

    Parameters
    ----------
    sources : sequence of path or ReplayBuffer
        With the same spaces, extras and number of envs. The first one's options are taken.
    out, overwrite, progress
        As for `convert`.
    capacity : int, optional
        Of the new store; by default that of all sources together.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    SchemaError
        The sources hold different fields, or different numbers of envs.
    InvalidInputError
        A store is named twice; and as `convert`.
    LockedError, FormatError, CorruptSegmentError, StorageError

    Notes
    -----
    Where a source other than an env's first begins inside an episode, because the beginning was
    evicted, what is left of that episode is left out: its stacks would show another source's
    frames. A `RuntimeWarning` says how many rows of which source. An episode that was open at the
    end of a source is cut there.
    """
    return _copied(sources, out, overwrite, progress, capacity=capacity)


def trim(
    source: Source,
    out: str | os.PathLike[str],
    capacity: int,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Copy the newest rows of a store into one of another capacity.

    Parameters
    ----------
    source, out, overwrite, progress
        As for `convert`.
    capacity : int
        Rows kept, over all envs; each keeps its newest ``capacity // num_envs``.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    CapacityError
        The capacity holds no transition.
    InvalidInputError, LockedError, FormatError, CorruptSegmentError, StorageError
        As `convert`.
    """
    capacity = whole("capacity", capacity, most=MOST_ROWS)
    return _copied([source], out, overwrite, progress, capacity=capacity)


def _copied(
    sources: Sequence[Source],
    out: str | os.PathLike[str],
    overwrite: bool,
    progress: Progress | None,
    **options: object,
) -> Path:
    if isinstance(sources, str | bytes) or not isinstance(sources, Collection) or not len(sources):
        raise InvalidInputError(f"sources: one store or more expected, found {brief(sources)}")
    with contextlib.ExitStack() as opened:
        buffers = [
            source if isinstance(source, ReplayBuffer)
            else opened.enter_context(open_buffer(source, mode="r"))
            for source in sources
        ]  # fmt: skip
        document = options_of(buffers[0])
        chosen = {name: value for name, value in options.items() if value is not None}
        _check_alike(buffers)
        if len(buffers) > 1:
            for name in ("capacity", "max_transitions"):
                limits = [getattr(buffer, name) for buffer in buffers]
                document[name] = None if None in limits else sum(limits)
        with new_store(out, overwrite=overwrite) as beside:
            with make_buffer(document, beside, **chosen) as target:
                _fill(target, buffers, progress)
    return Path(out)


def _check_alike(buffers: Sequence[ReplayBuffer]) -> None:
    first = buffers[0]
    for other in buffers[1:]:
        if other.num_envs != first.num_envs:
            raise SchemaError(
                f"{other.path}: {other.num_envs} env(s), and {first.num_envs} in {first.path}; "
                "only stores with the same number can be merged"
            )
        for what in ("observation_space", "action_space", "extras"):
            if getattr(other, what) != getattr(first, what):
                raise SchemaError(
                    f"{other.path}: the {what} is {getattr(other, what)}, and "
                    f"{getattr(first, what)} in {first.path}; only stores with the same can be "
                    "merged"
                )
    paths = [buffer.path.resolve() for buffer in buffers]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidInputError(f"{path}: named twice; its rows would be there twice")


def _fill(target: ReplayBuffer, sources: Sequence[ReplayBuffer], progress: Progress | None) -> None:
    importer, views = Importer(target, progress), CopiedViews(target)
    spans = [source.bounds for source in sources]
    if len(sources) == 1 and target.capacity is not None:  # the rest would only be evicted again
        newest = spans[0][:, 1] - target.capacity // target.num_envs
        spans[0][:, 0] = np.maximum(spans[0][:, 0], newest)
    total = int(sum(np.diff(span).sum() for span in spans))
    largest = []
    for source, span in zip(sources, spans, strict=True):
        known, begins = Priorities(source), np.array(source.begins, np.int64)
        largest += [known.largest] if known.largest is not None else []
        size = rows_within(source, _PIECE_BYTES)
        importer.next_source()
        views.next_source(source)
        for env, rows in pieces(span, size):
            wanted = rows * source.num_envs + env
            ids, columns = take_retained(source, list(source.fields), wanted)
            taken = ids // source.num_envs
            made = importer.add(env, taken, columns, known.of(ids), np.isin(ids, begins))
            views.add(env, taken, made)
            importer.progress(len(rows), total)
        importer.warn_of_left_out(source.path)
    importer.set_priorities(max(largest, default=None))
    views.write()
