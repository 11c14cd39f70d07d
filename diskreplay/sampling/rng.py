"""The one generator of random numbers, with the possibility to put some back."""

import ctypes
import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.locks import not_taken, taking

Drawn = TypeVar("Drawn")

_MT19937_WORDS = 624

_REENTRANT = type(threading.RLock())
_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.restype, _address_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class ReplayableRng:
    """Uniform numbers of one generator, in order, however they are asked for.

    Numbers that were drawn for a batch that nobody took are put back and come again first. They are
    kept as numbers: turning a generator back works for some kinds only, and asking one for its
    state costs more than drawing a batch.

    Attributes
    ----------
    rng : numpy.random.Generator
        Injected, or made from a seed.
    numbers : list of ndarray
        All since `taken` was last asked.

    Raises
    ------
    InvalidInputError
        Its state, once saved, could not be read again.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._use(rng)
        self._returned = np.empty(0)
        self.numbers: list[np.ndarray] = []
        try:
            parse(json.loads(json.dumps(self.state())))
        except (FormatError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
            raise InvalidInputError(
                "seed: a Generator of one of NumPy's own bit generators expected, PCG64 say, found "
                f"one of {type(rng.bit_generator).__name__}: what is saved of it could not be read"
            ) from error

    def _use(self, rng: np.random.Generator) -> None:
        self.rng, self._lock = rng, rng.bit_generator.lock
        self._taken_lock = taking(self._lock)  # see `locks.Lock`
        self._is_reentrant = isinstance(self._lock, _REENTRANT)  # of NumPy 1.26 it is not
        self._address = _address_in(rng.bit_generator.capsule, b"BitGenerator")

    def draw(self, size: int, kernel: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """What a kernel returns that draws by the next `size` numbers of ``[0, 1)``: these are its
        last three arguments, as `rng_kernels.draw_uniform` takes them.

        Where other work runs between two batches, `Generator.random` takes as long as reading some
        windows.
        """
        numbers, known = np.empty(size), 0
        if len(self._returned):
            returned = self._returned[:size]
            known = len(returned)
            numbers[:known] = returned
        if not self._is_reentrant:  # a signal handler that draws would wait for itself for ever
            self.rng.random(out=numbers[known:])
            drawn = kernel(*arguments, numbers, size, 0)
        else:
            for _ in self._taken_lock:
                try:
                    drawn = kernel(*arguments, numbers, known, self._address)
                finally:
                    self._lock.release()
                break
            else:
                raise not_taken()
        # Not before: Ctrl-C would leave numbers noted that nobody has drawn.
        if known:
            self._returned = self._returned[known:]
        self.numbers.append(numbers)
        return drawn

    def random(self, size: int) -> np.ndarray:
        """The next `size` numbers of ``[0, 1)``."""
        returned = self._returned[:size]
        numbers = np.concatenate([returned, self.rng.random(size - len(returned))])
        self._returned = self._returned[size:]  # not before: see `draw`
        self.numbers.append(numbers)
        return numbers

    def taken(self) -> list[np.ndarray]:
        """All numbers since this was last asked, as `put_back` wants them."""
        taken, self.numbers = self.numbers, []
        return taken

    def put_back(self, numbers: list[np.ndarray]) -> None:
        """Let numbers come again, before all others."""
        self._returned = np.concatenate([*numbers, self._returned])

    def derived(self, name: str) -> np.random.Generator:
        """Another generator, which follows from what comes next here and from a name. Takes no
        number from this one."""
        words = json.dumps([self.state(), name]).encode()
        return np.random.default_rng(int.from_bytes(hashlib.sha256(words).digest()))

    def state(self, numbers: Sequence[np.ndarray] = ()) -> dict[str, Any]:
        """What comes next, as JSON; after `put_back` of these numbers."""
        return {
            "bit_generator": _jsonable(self.rng.bit_generator.state),
            "returned": np.concatenate([*numbers, self._returned]).tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on as the one whose `state` this was, or a `FormatError`."""
        self.adopt(*parse(state))

    def adopt(self, bit_generator: np.random.BitGenerator, returned: np.ndarray) -> None:
        """Go on as the one that `parse` read. An injected generator stays the same object if it
        is of the same kind. Cannot fail."""
        if type(bit_generator) is type(self.rng.bit_generator):
            self.rng.bit_generator.state = bit_generator.state
        else:
            self._use(np.random.Generator(bit_generator))
        self._returned = returned


def parse(state: Any) -> tuple[np.random.BitGenerator, np.ndarray]:
    """The bit generator and the returned numbers of a saved `state`, or a `FormatError`."""
    try:
        saved = state["bit_generator"]
        kind = getattr(np.random, saved["bit_generator"])
        if not issubclass(kind, np.random.BitGenerator):
            raise TypeError(f"{kind} is no bit generator")
        bit_generator = kind()
        bit_generator.state = _restored(saved)
        if _jsonable(bit_generator.state) != saved:
            raise ValueError("a number is out of range")
        _check_places(bit_generator.state)
        returned = np.array(state["returned"], np.float64)
        if returned.ndim != 1 or not ((returned >= 0) & (returned < 1)).all():
            raise ValueError("returned numbers are out of range")
    except (
        LookupError, TypeError, ValueError, AttributeError, OverflowError, NotImplementedError
    ) as error:  # fmt: skip
        raise FormatError(f"the generator's saved state is damaged ({error})") from error
    return bit_generator, returned


def _check_places(state: dict[str, Any]) -> None:
    """NumPy takes any place in a generator's memory, and reads behind its end then."""
    inner = state["state"]
    place = state.get("buffer_pos", inner.get("pos", 0) if isinstance(inner, dict) else 0)
    most = len(state["buffer"]) if "buffer" in state else _MT19937_WORDS
    if not isinstance(place, int) or not 0 <= place <= most:
        raise ValueError(f"place {place} found, 0 to {most} expected")


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"dtype", "values"}:
            return np.array(value["values"], value["dtype"])
        return {key: _restored(inner) for key, inner in value.items()}
    return value
