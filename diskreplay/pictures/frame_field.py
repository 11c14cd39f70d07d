"""The field of a buffer that is looked at, and its rows as pictures."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import EmptyBufferError, InvalidInputError, NotSampleableError
from diskreplay.pictures.pixels import pictures, tones

_Read = TypeVar("_Read")

_SMALLEST = 8  # pixels a side of what is taken for a picture without being told
_MOST_CHANNELS = 32
_PART_BYTES = 32 << 20  # of raw frames read at once
_PROBED = 32  # rows that show the range of an unbounded field


@dataclass(frozen=True)
class FrameField:
    """A field whose rows can be drawn."""

    name: str
    stacked: bool  # whether a row holds several frames, of which the newest is shown
    _buffer: ReplayBuffer
    _tones: tuple[float, float] | None

    @classmethod
    def choose(cls, buffer: ReplayBuffer, name: str | None = None) -> Self | None:
        """The field called `name`, or the first observation that looks like a picture, or extra.

        Returns
        -------
        FrameField or None
            None if no name was given and no observation and no extra looks like a picture.

        Raises
        ------
        InvalidInputError
            There is no such field, or it is no picture.
        """
        if name is not None:
            return cls.named(buffer, name)
        pictured = _pictured(buffer)
        return cls.named(buffer, pictured[0]) if pictured else None

    @classmethod
    def named(cls, buffer: ReplayBuffer, name: str) -> Self:
        """The field called `name`; InvalidInputError as of `choose`."""
        fields = buffer.fields
        if name not in fields or not _is_picture(*fields[name], 1):
            drawable = [n for n in fields if _is_picture(*fields[n], 1)]
            what = f"has shape {fields[name][0]}" if name in fields else "does not exist"
            raise InvalidInputError(
                f"field {name!r} {what}; a picture expected, as {', '.join(drawable) or 'none'} is"
            )
        shape, dtype = fields[name]
        stacked = len(shape) == 4 or (_channels(shape) not in (1, 3) and dtype != np.bool_)
        return cls(name, stacked, buffer, _tones_of(buffer, name))

    @classmethod
    def every(cls, buffer: ReplayBuffer) -> list[Self]:
        """All observations and extras that look like pictures."""
        return [cls.named(buffer, name) for name in _pictured(buffer)]

    def draw(self, rows: np.ndarray, *, whole: bool = False) -> np.ndarray:
        """Values of rows, shape (n, *shape), as `read` makes them pictures."""
        return _drawn(rows, self._tones, whole=whole)

    def read(self, ids: np.ndarray, *, whole: bool = False) -> np.ndarray:
        """Rows as pictures.

        Parameters
        ----------
        ids : ndarray of int, shape (n,)
            Of retained rows.
        whole : bool
            Of rows that hold several frames all, from left to right; else the newest.

        Returns
        -------
        ndarray of uint8, shape (n, h, w) or (n, h, w, 3)

        Raises
        ------
        NotSampleableError
            A row is evicted.
        """
        return self.draw(self._buffer.take(self.name, ids), whole=whole)

    def parts(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        """`read` of many rows, part by part; rows that are evicted meanwhile are left out.

        Raises
        ------
        EmptyBufferError
            All of them were.
        """
        left = 0
        shape, dtype = self._buffer.fields[self.name]
        size = max(1, _PART_BYTES // max(1, math.prod(shape) * dtype.itemsize))
        for start in range(0, len(ids), size):
            _ids, frames = self.read_retained(ids[start : start + size])
            left += len(frames)
            if len(frames):
                yield frames
        if len(ids) and not left:
            raise all_left(self._buffer.path)

    def read_retained(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of `ids` that are still retained, and their pictures as of `read`."""
        return retained(self._buffer, ids, self.read)


def all_left(path: str | os.PathLike[str]) -> EmptyBufferError:
    """What is raised where a writer evicted all rows that were to be drawn."""
    return EmptyBufferError(
        f"{path}: the rows to draw have all left the capacity meanwhile; choose newer ones"
    )


def retained(
    buffer: ReplayBuffer, ids: np.ndarray, read: Callable[[np.ndarray], _Read]
) -> tuple[np.ndarray, _Read]:
    """Those of `ids` that a writer has not evicted yet, and what `read` makes of them."""
    while True:
        rows, envs = np.divmod(ids, buffer.num_envs)
        ids = ids[rows >= buffer.bounds[envs, 0]]
        try:
            return ids, read(ids)
        except NotSampleableError:  # the writer was faster: fewer are left each time
            continue


def _pictured(buffer: ReplayBuffer) -> list[str]:
    """The observations, and then the extras, that look like pictures."""
    fields = buffer.fields
    names = [name for name in fields if name.split("/")[0] == "observation"] + [*buffer.extras]
    return [name for name in names if _is_picture(*fields[name], _SMALLEST)]


def _is_picture(shape: tuple[int, ...], dtype: np.dtype, smallest: int) -> bool:
    if dtype.kind not in "biuf" or not 2 <= len(shape) <= 4 or _channels(shape) == 0:
        return False
    sides = sorted(_frame_shape(shape), reverse=True)
    return sides[1] >= smallest and sides[0] >= 2


def _frame_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[-3:]  # a fourth axis in front counts frames


def _channels(shape: tuple[int, ...]) -> int:
    """How many channels a frame of this shape has: 0 if they cannot be told from the sides."""
    shape = _frame_shape(shape)
    if len(shape) == 2:
        return 1
    if shape[-1] <= _MOST_CHANNELS and shape[-1] <= min(shape[:2]):
        return shape[-1]
    return shape[0] if shape[0] <= _MOST_CHANNELS else 0


def _drawn(
    rows: np.ndarray, tone: tuple[float, float] | None, *, whole: bool = False
) -> np.ndarray:
    shape = rows.shape[1:]
    if len(shape) == 4 and whole:
        parts = [_drawn(rows[:, at], tone) for at in range(shape[0])]
        return np.concatenate(parts, axis=2)
    if len(shape) == 4:
        rows, shape = rows[:, -1], shape[1:]
    if len(shape) == 3:
        count = _channels(shape)
        if not (shape[-1] == count and count <= min(shape[:2])):
            rows = np.moveaxis(rows, 1, -1)
        if count not in (1, 3):
            if rows.dtype == np.bool_:  # planes, one for each kind of thing: a tone each
                rows, tone = (rows * np.arange(1, count + 1)).max(axis=-1), (0.0, float(count))
            elif whole:
                each = 3 if count % 3 == 0 else 1
                parts = [_drawn(rows[..., at : at + each], tone) for at in range(0, count, each)]
                return np.concatenate(parts, axis=2)
            else:  # frames, oldest first
                rows = rows[..., -3:] if count % 3 == 0 else rows[..., -1]
    return pictures(rows) if tone is None else pictures(rows, low=tone[0], high=tone[1])


def _tones_of(buffer: ReplayBuffer, name: str) -> tuple[float, float] | None:
    """What is black and what is white, the same for all rows. None: uint8 is as it is."""
    dtype = buffer.fields[name][1]
    if dtype == np.uint8 or dtype == np.bool_:
        return None
    kind, *path = name.split("/")
    if kind == "observation":
        space: Any = buffer.observation_space
        for part in path:
            space = space[int(part) if isinstance(space, gym_spaces.Tuple) else part]
        if isinstance(space, gym_spaces.Box) and space.is_bounded("both"):
            low, high = float(space.low.min()), float(space.high.max())
            if high - low < 1 << 24:  # an int32's whole range says nothing
                return low, high
    first, stop = (buffer.bounds[:, column] for column in (0, 1))
    longest = int((stop - first).argmax())
    rows = np.linspace(first[longest], stop[longest] - 1, _PROBED).astype(np.int64)
    if stop[longest] == first[longest]:
        return 0.0, 1.0
    ids = np.unique(rows) * buffer.num_envs + longest
    return tones(retained(buffer, ids, lambda ids: buffer.take(name, ids))[1])
