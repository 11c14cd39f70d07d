"""The one generator of random numbers, with the possibility to put some back."""

import hashlib
import json
from typing import Any

import numpy as np

from diskreplay.errors import FormatError

_MT19937_WORDS = 624


class ReplayableRng:
    """Uniform numbers of one generator, in order, however they are asked for.

    Numbers that were drawn for a batch that nobody took are put back and come again first. They are
    kept as numbers: turning a generator back works for some kinds only, and asking one for its
    state costs more than drawing a batch.

    Attributes
    ----------
    rng : numpy.random.Generator
        Injected, or made from a seed.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._returned = np.empty(0)
        self._taken: list[np.ndarray] = []

    def random(self, size: int) -> np.ndarray:
        """The next `size` numbers of ``[0, 1)``."""
        if len(self._returned):
            numbers, self._returned = self._returned[:size], self._returned[size:]
            if len(numbers) < size:
                numbers = np.concatenate([numbers, self.rng.random(size - len(numbers))])
        else:
            numbers = self.rng.random(size)
        self._taken.append(numbers)
        return numbers

    def taken(self) -> list[np.ndarray]:
        """All numbers since this was last asked, as `put_back` wants them."""
        taken, self._taken = self._taken, []
        return taken

    def put_back(self, numbers: list[np.ndarray]) -> None:
        """Let numbers come again, before all others."""
        self._returned = np.concatenate([*numbers, self._returned])

    def derived(self, name: str) -> np.random.Generator:
        """Another generator, which follows from what comes next here and from a name. Takes no
        number from this one."""
        words = json.dumps([self.state(), name]).encode()
        return np.random.default_rng(int.from_bytes(hashlib.sha256(words).digest()))

    def state(self) -> dict[str, Any]:
        """What comes next, as JSON."""
        return {
            "bit_generator": _jsonable(self.rng.bit_generator.state),
            "returned": self._returned.tolist(),
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
            self.rng = np.random.Generator(bit_generator)
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
