"""Files of HDF5, of which Tianshou's own replay buffers are made again."""

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np
from tianshou.data import Batch, ReplayBuffer
from tianshou.data.utils.converter import to_hdf5

from diskreplay.errors import InvalidInputError
from diskreplay.integrations.batch_leaves import keys_of, leaves
from diskreplay.slot_view import SlotView

PARTS = ("buffers", "main_buffer", "cached_buffers")  # attributes that are buffers, or have some
_AT_ONCE = 32 << 20  # bytes of rows that are read at a time
_CHUNK = 256 << 10  # bytes; those under way are in memory


def write(
    file: h5py.File, state: Mapping[str, Any], meta: Batch, compression: str | None = None
) -> None:
    """Write a buffer into an empty file as Tianshou's `save_hdf5` does, and read its rows on disk
    some at a time.

    `state` has all attributes but `_meta`. The buffers among them have rows of their own in the
    file, as they have in Tianshou's.

    Raises
    ------
    InvalidInputError
        A buffer in this one has something that cannot be pickled.
    """
    others = {name: value for name, value in state.items() if name not in PARTS}
    to_hdf5({**others, "_meta": _plain(meta, views=False)}, file, compression=compression)
    for path, view in leaves(meta):
        if isinstance(view, SlotView):
            *parents, key = keys_of(path)
            group = file["_meta"]
            for parent in parents:
                group = group.require_group(parent)
            data = group.create_dataset(key, view.shape, view.dtype, compression=compression)
            data.attrs["__data_type__"] = "ndarray"
            for at, rows in _pieces(view):
                data[at] = rows
    for name in PARTS:
        if name in state:
            _write_pickle(file, name, state[name], compression)


def _write_pickle(file: h5py.File, name: str, value: Any, compression: str | None) -> None:
    """Write a buffer, or an array of buffers, as bytes that Tianshou unpickles."""
    kind = type(value).__name__
    made: Any
    if isinstance(value, np.ndarray):
        kind, made = "pickled_ndarray", np.empty(len(value), object)
        for at, part in enumerate(value):  # NumPy would take a buffer for a sequence
            made[at] = _as_tianshou_has_it(part)
    else:
        made = _as_tianshou_has_it(value)
    data = file.create_dataset(
        name, (0,), np.byte, maxshape=(None,), chunks=(_CHUNK,), compression=compression
    )
    data.attrs["__data_type__"] = kind
    try:
        _Pickler(_Bytes(data), protocol=5).dump(made)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidInputError(
            f"{file.filename}: {name} cannot be pickled, as a file of HDF5 needs it ({error}); a "
            "function that the buffers were given has to be one of a module"
        ) from error


def _as_tianshou_has_it(part: ReplayBuffer) -> ReplayBuffer:
    """A buffer of the class that it was before its rows were on disk."""
    kind = next(
        each for each in type(part).__mro__ if each.__module__.partition(".")[0] != "diskreplay"
    )
    made: ReplayBuffer = object.__new__(kind)
    made.__dict__.update({**part.__dict__, "_meta": _plain(part._meta)})
    return made


def _plain(batch: Any, *, views: bool = True) -> Batch:
    """A batch of Tianshou's class with the same leaves; those on disk only if `views` is true."""
    made = Batch()
    for key, value in batch.items():
        if isinstance(value, Batch):
            made.__dict__[key] = _plain(value, views=views)
        elif views or not isinstance(value, SlotView):
            made.__dict__[key] = value
    return made


def _pieces(view: SlotView) -> Iterator[tuple[slice, np.ndarray]]:
    """All rows of a view, some at a time, and where they lie."""
    count = max(1, _AT_ONCE // max(view.nbytes // max(len(view), 1), 1))
    for start in range(0, len(view), count):
        at = slice(start, min(start + count, len(view)))
        yield at, np.asarray(view[at])


class _Pickler(pickle.Pickler):
    """Rows on disk come back as an array: an empty one is made, and pieces are set in it."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, SlotView):
            return NotImplemented
        return np.empty, (value.shape, value.dtype), None, None, self._rows(value)

    def _rows(self, view: SlotView) -> Iterator[tuple[slice, np.ndarray]]:
        # A pickler keeps all that it has written, in case that it comes again: here all rows.
        self.fast = True
        try:
            yield from _pieces(view)
        finally:
            self.fast = False


class _Bytes:
    """Something to write to, whose bytes are those of a data set."""

    def __init__(self, data: h5py.Dataset) -> None:
        self._data, self._size = data, 0

    def write(self, part: Any) -> int:
        """Add bytes."""
        new = np.frombuffer(part, np.byte)
        self._data.resize((self._size + len(new),))
        self._data[self._size :] = new
        self._size += len(new)
        return len(new)
