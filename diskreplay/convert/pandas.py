"""Data frames: one row a transition, in the order of time.

==================  ==========  ====================================================================
column              dtype
==================  ==========  ====================================================================
``env``             category    of all envs of the buffer: a byte a row for up to 127 of them
``row``             int64       number of the row within its env, for ever
``episode``         int64       as ``diskreplay episodes`` lists them: 0 is the oldest retained
``step``            int32       counts from 0 in each episode
``action``          as stored   a column ``action_0``, ``action_1``, ... for each part of a vector
``reward``          float32
``terminated``      bool
``truncated``       bool
``return_to_go``    float64     see below
extras              as stored   vectors as those of ``action``
``observation``     see below   only if asked for: the one frame of the row, not a stack
==================  ==========  ====================================================================

The index is the ``id``, so ``buffer.gather(frame.index[...])`` has the transitions of some rows.
Leaves of Dict and Tuple spaces have their own columns, ``observation/camera`` say. An extra that is
named like a column here gets a ``_`` behind its name. Vectors of more than 64 parts stay whole.

Order
    By `row`, then by `env`: the order of ids. With masks the envs' rows do not grow in step, and
    rows of the same number were not recorded at the same moment.

Return to go
    The sum of the rewards from this row to the last one of its episode that is recorded,
    ``sum_k gamma**k * reward[t + k]``, not discounted unless a `gamma` is given. Rows that were not
    asked for count too. For a terminated episode that is the return. A truncated one would have
    gone on, and one that was cut or is still open did or does: there it is the part that was seen,
    without an estimate of the rest.

Final rows hold no transition and are in no frame.
"""

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.timeline import Timeline, flat, take_retained, timeline_of
from diskreplay.errors import InvalidInputError, NotSampleableError, UnknownIdError
from diskreplay.extensions import needed
from diskreplay.given_numbers import whole
from diskreplay.inspection.identity import metadata_of
from diskreplay.stored_space import StoredSpace
from diskreplay.validation import one_of

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["iter_frames", "to_pandas"]

Observations = Literal["none", "array", "bytes", "png"]
Vectors = Literal["spread", "array"]

_MOST_PARTS = 64
_CHUNK_BYTES = 16 << 20
_BEFORE = ("env", "row", "episode", "step")
_BETWEEN = ("reward", "terminated", "truncated", "return_to_go")
_OVERHEAD = 200  # bytes a row, of Python's own objects


class _Column(NamedTuple):
    """A column: a field that is read from the store, or one part of it; else what is known of
    rows."""

    name: str
    field: str = ""
    part: int | None = None


def to_pandas(
    buffer: ReplayBuffer,
    columns: Sequence[str] | None = None,
    episodes: int | Sequence[int] | None = None,
    ids: Sequence[int] | np.ndarray | None = None,
    observations: Observations = "none",
    *,
    vectors: Vectors = "spread",
    gamma: float = 1.0,
) -> "DataFrame":
    """The transitions of a buffer as one `pandas.DataFrame`, as the module describes.

    Parameters
    ----------
    buffer : ReplayBuffer
        A reader of a live store, too, or of a checkpoint.
    columns : sequence of str, optional
        Which, and in this order; ``"action"`` stands for all its parts. Only what they need is
        read.
    episodes : int or sequence of int, optional
        Only transitions of these; negative numbers count from the newest.
    ids : array_like of int, optional
        Only these transitions, in the order of time and each once. Not together with `episodes`.
    observations : {"none", "array", "bytes", "png"}
        ``"array"``: each an ndarray, or a number where the space is Discrete. ``"bytes"``: as they
        lie in memory. ``"png"``: the bytes of a PNG file where a leaf is a picture (uint8; grey,
        RGB or RGBA, channels first or last), else as ``"array"``. Needs the memory for all of
        them; see `iter_frames`.
    vectors : {"spread", "array"}
        Actions and extras that are no single number: a column for each part, or arrays.
    gamma : float
        Discount of ``return_to_go``.

    Returns
    -------
    pandas.DataFrame
        What was noted about the store is in ``.attrs["metadata"]``.

    Raises
    ------
    InvalidInputError
        An argument makes no sense, or there is no such column or episode.
    UnknownIdError, NotSampleableError
        An id was never handed out, or is evicted or that of a final row.
    CorruptSegmentError
    ModuleNotFoundError
        There is no pandas (or, for ``"png"``, no Pillow).

    Notes
    -----
    More than a million transitions a second without observations; about 100 bytes each. All values
    are copies. Rows that the writer of a live store evicts meanwhile are left out.
    """
    plan = _Plan(buffer, columns, observations, vectors)
    rows = _selected(buffer, episodes, ids, gamma)
    if not plan.is_wide:
        return plan.frame(rows)
    size = plan.rows_within(_CHUNK_BYTES)  # what is encoded from frames never needs all of them
    parts = [plan.frame(rows.only(slice(start, start + size))) for start in
             range(0, max(len(rows), 1), size)]  # fmt: skip
    return parts[0] if len(parts) == 1 else _pandas().concat(parts)


def iter_frames(
    buffer: ReplayBuffer,
    columns: Sequence[str] | None = None,
    episodes: int | Sequence[int] | None = None,
    ids: Sequence[int] | np.ndarray | None = None,
    observations: Observations = "none",
    *,
    vectors: Vectors = "spread",
    gamma: float = 1.0,
    chunk_rows: int = 100_000,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Iterator["DataFrame"]:
    """The frame of `to_pandas` in pieces of bounded size, one after the other.

    Parameters
    ----------
    buffer, columns, episodes, ids, observations, vectors, gamma
        As for `to_pandas`.
    chunk_rows : int
        Rows of a piece, at most.
    chunk_bytes : int
        Bytes that a piece takes, about and at most, before observations are encoded; a single row
        may take more.

    Yields
    ------
    pandas.DataFrame
        With the same columns and dtypes each. None for an empty buffer.

    Raises
    ------
    As `to_pandas`, and before the first piece.

    Notes
    -----
    Takes a few times `chunk_bytes`, and besides about 60 bytes for each row of the buffer.
    """
    chunk_rows = whole("chunk_rows", chunk_rows, most=1 << 62)
    chunk_bytes = whole("chunk_bytes", chunk_bytes, most=1 << 62)
    plan = _Plan(buffer, columns, observations, vectors)
    rows = _selected(buffer, episodes, ids, gamma)
    size = min(chunk_rows, plan.rows_within(chunk_bytes))
    return (plan.frame(rows.only(slice(start, start + size))) for start in
            range(0, len(rows), size))  # fmt: skip


def _selected(
    buffer: ReplayBuffer,
    episodes: int | Sequence[int] | None,
    ids: Sequence[int] | np.ndarray | None,
    gamma: float,
) -> Timeline:
    if episodes is not None and ids is not None:
        raise InvalidInputError("episodes and ids: one of the two expected, found both")
    rows = timeline_of(buffer, gamma).transitions()
    if episodes is not None:
        return rows.of_episodes(episodes)
    if ids is None:
        return rows
    ids = np.asarray(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise InvalidInputError(f"ids: integers expected, found dtype {ids.dtype}")
    missing = ids[~np.isin(ids, rows.id)]
    if len(missing):
        row, env = divmod(int(missing[0]), buffer.num_envs)
        first, count = buffer.bounds[env]
        if row < 0 or row >= count:
            raise UnknownIdError(
                f"id {missing[0]} was never handed out: env {env} has {count} rows; ids are "
                "row * num_envs + env"
            )
        why = f"evicted: env {env} keeps rows from {first} on" if row < first else "no transition"
        raise NotSampleableError(f"id {missing[0]} is {why}")
    return rows.only(np.isin(rows.id, ids))


class _Plan:
    """Which columns the frames of a buffer have, and how each of them is made.

    Attributes
    ----------
    is_wide : bool
        Whether there are observations among them.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        columns: Sequence[str] | None,
        observations: Observations,
        vectors: Vectors,
    ) -> None:
        _pandas()
        one_of("observations", observations, get_args(Observations))
        one_of("vectors", vectors, get_args(Vectors))
        self._buffer, self._observations = buffer, observations
        self._metadata = metadata_of(buffer.path)
        actions = StoredSpace.of(buffer.action_space, "action").names
        self._leaves = []
        if observations != "none":
            self._leaves = StoredSpace.of(buffer.observation_space, "observation").names
        taken = {*_BEFORE, *_BETWEEN, *self._leaves}
        shown = [
            *map(_Column, _BEFORE),
            *(column for name in actions for column in self._parts(name, taken, vectors)),
            *map(_Column, _BETWEEN),
            *(column for name in buffer.extras for column in self._parts(name, taken, vectors)),
            *(_Column(name, name) for name in self._leaves),
        ]
        self._columns = shown if columns is None else self._picked(shown, columns)
        self._fields = list(dict.fromkeys(c.field for c in self._columns if c.field))
        self.is_wide = any(name in self._fields for name in self._leaves)

    def _parts(self, field: str, taken: set[str], vectors: Vectors) -> list[_Column]:
        """The columns of an action or extra; with a ``_`` at the end of its name where one of them
        would be called as another one in `taken`, to which they are added."""
        size, name = math.prod(self._buffer.fields[field][0]), field
        is_whole = self._buffer.fields[field][0] == () or vectors == "array" or size > _MOST_PARTS
        while True:
            columns = [_Column(f"{name}_{part}", field, part) for part in range(size)]
            columns = [_Column(name, field)] if is_whole else columns
            if taken.isdisjoint(column.name for column in columns):
                taken |= {column.name for column in columns}
                return columns
            name += "_"

    def _picked(self, shown: list[_Column], columns: Sequence[str]) -> list[_Column]:
        if isinstance(columns, str) or not isinstance(columns, Iterable):
            raise InvalidInputError(f"columns: a list of names expected, found {brief(columns)}")
        picked = []
        for name in columns:
            found = [c for c in shown if c.name == name]
            found = found or [c for c in shown if c.field and c.field == name]
            if not found:
                hint = (
                    "" if self._leaves else '; observations are not asked for (observations="none")'
                )
                raise InvalidInputError(
                    f"columns: there is no {name!r}; there are {[c.name for c in shown]}{hint}"
                )
            picked += found
        names = [column.name for column in picked]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInputError(f"columns: {twice} asked for twice; name each once")
        return picked

    def rows_within(self, budget: int) -> int:
        """How many rows take about `budget` bytes."""
        fields = self._buffer.fields
        sizes = [math.prod(fields[name][0]) * fields[name][1].itemsize for name in self._fields]
        return max(1, budget // (sum(sizes) + _OVERHEAD))

    def frame(self, rows: Timeline) -> "DataFrame":
        """The frame of some rows."""
        pandas = _pandas()
        ids, values = take_retained(self._buffer, self._fields, rows.id)
        if len(ids) < len(rows):
            rows = rows.only(np.isin(rows.id, ids))
        made: dict[str, Any] = {}
        for column in self._columns:
            if not column.field:
                made[column.name] = self._figure(rows, column.name)
            elif column.part is not None:
                made[column.name] = np.ascontiguousarray(flat(values[column.field])[:, column.part])
            elif column.field in self._leaves:
                made[column.name] = self._seen(values[column.field])
            else:
                made[column.name] = _whole(values[column.field])
        frame = pandas.DataFrame(made, index=pandas.Index(rows.id, name="id"), copy=False)
        if self._metadata:
            frame.attrs["metadata"] = self._metadata
        return frame

    def _figure(self, rows: Timeline, name: str) -> Any:
        if name == "row":
            return rows.id // self._buffer.num_envs
        if name == "env":
            num_envs = self._buffer.num_envs
            return _pandas().Categorical.from_codes(
                rows.id % num_envs, categories=np.arange(num_envs)
            )
        return getattr(rows, name)

    def _seen(self, values: np.ndarray) -> np.ndarray:
        """Observations as they were asked for."""
        if self._observations == "bytes":
            return _objects(len(values), (row.tobytes() for row in values))
        if self._observations == "png" and is_picture(values.shape[1:], values.dtype):
            return _objects(len(values), _pngs(values))
        return _whole(values)


def is_picture(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether such an observation goes into a PNG without loss: uint8, grey, RGB or RGBA."""
    if dtype != np.uint8 or len(shape) not in (2, 3):
        return False
    return len(shape) == 2 or bool({1, 3, 4} & {shape[0], shape[-1]})


def _pngs(frames: np.ndarray) -> Iterator[bytes]:
    from diskreplay.pictures.pixels import images

    for image in images(frames):
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=1)
        yield file.getvalue()


def _whole(values: np.ndarray) -> np.ndarray:
    """Single numbers as they are, arrays as objects."""
    return values if values.ndim == 1 else _objects(len(values), values)


def _objects(count: int, values: Any) -> np.ndarray:
    # One by one: NumPy would make a matrix of vectors of one length.
    column = np.empty(count, object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def _pandas() -> Any:
    with needed("data frames are made with pandas", "pandas"):
        import pandas
    return pandas
