"""Files of transitions, as cpprb writes and reads them; nothing in them is called."""

import contextlib
import io
import pickle
import pickletools
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from diskreplay.compat.cpprb.columns import Arrays
from diskreplay.errors import InvalidInputError

_VERSION = 1
_PLAIN_DTYPE = re.compile(r"([?biufc]|U|S)\d+")
_LARGEST_HEADER = 1 << 20  # bytes of a member that says a number or some names
_DAMAGED = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OverflowError,
    MemoryError, RecursionError, SyntaxError, tokenize.TokenError, pickle.UnpicklingError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def save(file: Any, columns: Arrays, *, is_nstep: bool) -> None:
    """Write columns as the original's safe kind of file.

    Parameters
    ----------
    file : path or writable binary file
    columns : dict of str to ndarray
    is_nstep : bool
    """
    members: dict[str, Any] = {"data": columns, "cache": None, "next_of": None}
    np.savez_compressed(file, safe=True, version=_VERSION, Nstep=is_nstep, **members)


def load(file: Any, *, is_nstep: bool) -> Arrays:
    """The columns of a file of either kind, those of `next_of` included.

    Raises
    ------
    InvalidInputError
        It is no such file, or is damaged, or holds other things, or is n-step where `is_nstep` says
        no, or the reverse.
    OSError
        It cannot be read.
    """
    with _refusing(file):
        with zipfile.ZipFile(file) as archive:
            version = _small(archive, "version")
            nstep = bool(_small(archive, "Nstep"))
            data = _columns(_object(archive, "data"))
            if not _small(archive, "safe"):
                _restore(data, _object(archive, "cache"), _small_names(archive))
    if version != _VERSION:
        raise InvalidInputError(f"{_shown(file)}: version {version}; {_VERSION} expected")
    if nstep != is_nstep:
        kinds = ("single steps", "n-step rows")
        raise InvalidInputError(
            f"{_shown(file)}: {kinds[nstep]} found, this buffer has {kinds[is_nstep]}"
        )
    return data


@contextlib.contextmanager
def _refusing(file: Any) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise InvalidInputError(
            f"{_shown(file)}: no file of transitions, or damaged ({type(error).__name__}: {error})"
        ) from error


def _shown(file: Any) -> str:
    return str(getattr(file, "name", file))


# -- members


def _member(archive: zipfile.ZipFile, name: str) -> tuple[io.BytesIO, np.dtype]:
    """The file after its header, and the dtype that the header says."""
    info = archive.getinfo(f"{name}.npy")
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is encrypted or of an unknown compression")
    if name not in ("data", "cache") and info.file_size > _LARGEST_HEADER:
        raise ValueError(f"{name} has {info.file_size} bytes")
    stream = io.BytesIO(archive.read(info))
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of headers that Python 2 wrote
        _shape, _fortran, dtype = read_header(stream)
    return stream, dtype


def _small(archive: zipfile.ZipFile, name: str) -> Any:
    stream, dtype = _member(archive, name)
    if dtype.kind not in "biu" or len(stream.getbuffer()) - stream.tell() != dtype.itemsize:
        raise ValueError(f"{name} is not a number")
    return np.frombuffer(stream.read(), dtype)[0]


def _small_names(archive: zipfile.ZipFile) -> list[str]:
    """The names of `next_of`, or none."""
    stream, dtype = _member(archive, "next_of")
    if dtype.kind == "O":
        return []
    if dtype.kind != "U" or not dtype.itemsize:
        raise ValueError("next_of holds no names")
    return [str(name) for name in np.frombuffer(stream.read(), dtype)]


def _object(archive: zipfile.ZipFile, name: str) -> Any:
    """What a member holds that is an array of one object."""
    stream, dtype = _member(archive, name)
    if dtype.kind != "O":
        raise ValueError(f"{name} is no dict")
    array = _Unpickler.read(stream.read())
    if not isinstance(array, _Array) or array.state is None or len(array.state[4]) != 1:
        raise ValueError(f"{name} is no dict")
    return array.state[4][0]


def _columns(data: Any) -> Arrays:
    if type(data) is not dict:
        raise ValueError("data is no dict")
    return {_key(key, str): _array(value) for key, value in data.items()}


def _restore(data: Arrays, cache: Any, next_of: list[str]) -> None:
    """Finish columns that the original stored as its memory has them, with what it kept beside."""
    kept = {}
    for slot, values in (cache or {}).items():
        for key, value in values.items():
            kept[_key(slot, int), _key(key, str)] = _array(value)
    for (slot, name), value in kept.items():
        if name in data:
            data[name] = np.array(data[name])
            data[name][slot] = value
    for name in next_of:
        data[f"next_{name}"] = np.roll(data[name], -1, axis=0)
        for (slot, kept_name), value in kept.items():
            if kept_name == f"next_{name}":
                data[kept_name][slot] = value


def _key(key: Any, kind: type) -> Any:
    """A key of a dict, which is to be a name or a slot."""
    key = key.value if isinstance(key, _Scalar) else key
    if type(key) is not kind:
        what = "a name" if kind is str else "a slot"
        raise ValueError(f"{what} expected, found {type(key).__name__}")
    return key


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, _Array) or value.state is None:
        raise ValueError(f"an array expected, found {type(value).__name__}")
    _version, shape, dtype, is_fortran, raw = value.state
    if type(raw) is not bytes:
        raise ValueError("an array of objects")
    return np.frombuffer(raw, dtype.numpy()).reshape(shape, order="F" if is_fortran else "C")


# -- pickles: what they call is only noted down, so that nothing of NumPy's runs on their behalf


class _Array:
    """Stands for an array: how NumPy pickles one, `state` is set after the making."""

    def __init__(self, *_made_of: Any) -> None:
        self.state: tuple[Any, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, dtype, is_fortran, raw = state
        if type(shape) is not tuple or not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("an array of no shape or dtype")
        self.state = version, shape, dtype, is_fortran, raw


class _Dtype:
    """Stands for a dtype."""

    _order: Any

    def __init__(self, code: str, *_options: Any) -> None:
        self._code, self._order = code, "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = state[1]

    def numpy(self) -> np.dtype:
        """The dtype, if it is one of numbers or characters."""
        if not _PLAIN_DTYPE.fullmatch(self._code) or self._order not in ("<", ">", "=", "|"):
            raise ValueError(f"dtype {self._code!r}")
        return np.dtype(self._code).newbyteorder(self._order)


class _Scalar:
    """A NumPy scalar, as the Python value it stands for."""

    def __init__(self, dtype: _Dtype, raw: bytes) -> None:
        self.value = np.frombuffer(raw, dtype.numpy())[0].item()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a scalar has no state")


class _Unpickler(pickle.Unpickler):
    """Knows arrays, dtypes and scalars, under the names that old and new NumPy have for them."""

    # The class is only ever an argument here; a string can be neither called nor changed.
    _KNOWN = {  # noqa: RUF012 - never changed
        ("multiarray", "_reconstruct"): _Array,
        ("multiarray", "scalar"): _Scalar,
        ("numpy", "dtype"): _Dtype,
        ("numpy", "ndarray"): "ndarray",
    }

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle may name; all else is refused."""
        for package in ("numpy.core.", "numpy._core."):
            module = module.removeprefix(package)
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return self._KNOWN[module, name]

    @classmethod
    def read(cls, pickled: bytes) -> Any:
        """Unpickle, after a look whether any of it asks for more memory than it has bytes."""
        for opcode, argument, _position in pickletools.genops(pickled):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(
                pickled
            ):
                raise pickle.UnpicklingError("a memo beyond the end")
        return cls(io.BytesIO(pickled)).load()
