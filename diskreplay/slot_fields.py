"""The fields of rows in slots, and what a store has for each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import naming
from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.schema import Schema
from diskreplay.spaces import box
from diskreplay.store import numbers
from diskreplay.store.field import DTYPES, Field
from diskreplay.validation import whole

SLOT = "slot"
_META = "slots"  # among the attributes of the group
_NOTHING, _NO_ACTION = gym_spaces.Box(0, 255, (1,), np.uint8), gym_spaces.Discrete(1)
_SCALARS = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
_MOST_SLOTS = 1 << 36


class SlotFields:
    """What rows in slots consist of, and how many slots there are.

    Parameters
    ----------
    fields : mapping of str to (shape, dtype)
    sizes : sequence of int
        Slots of each lane.
    min_bytes : int
        Fields of fewer bytes a row are in memory, too.
    compressor : str or mapping
        By the names of `fields`, as for `ReplayBuffer`.

    Attributes
    ----------
    specs : dict of str to (shape, dtype)
    values : dict of str to Field
        The same, to check values by.
    stored : dict of str to str
        The store's field for each.
    resident : list of str
        Those in memory.
    sizes, offsets : ndarray of int64
        Slots of each lane, and the first slot of each.
    schema : Schema

    Raises
    ------
    InvalidInputError
    """

    def __init__(
        self, fields: Mapping[str, tuple], sizes: Sequence[int], min_bytes: int,
        compressor: str | Mapping[str, str] = "auto",
    ) -> None:  # fmt: skip
        if not fields:
            raise InvalidInputError("fields: at least one expected, found none")
        if not len(sizes):
            raise InvalidInputError("slots: a number for each lane expected, found none")
        self.sizes = np.array(
            [size and whole("slots", size, most=_MOST_SLOTS) for size in sizes], np.int64
        )
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.total = whole("slots", int(self.sizes.sum()), most=_MOST_SLOTS)
        self.min_bytes = whole("min_bytes", min_bytes + 1) - 1
        self.specs = {name: _spec(name, spec) for name, spec in fields.items()}
        self.values = {name: Field(name, *spec) for name, spec in self.specs.items()}
        self.stored: dict[str, str] = {}
        taken = {SLOT}
        extras: dict[str, tuple] = {SLOT: ((), np.dtype(np.int64))}
        for name, (shape, dtype) in self.specs.items():
            if self._is_native(name, shape, dtype):
                self.stored[name] = name
            else:
                self.stored[name] = naming.extra_name(name, taken)
                extras[self.stored[name]] = (shape, dtype)
        if not isinstance(compressor, str):
            if unknown := sorted(compressor.keys() - self.specs.keys()):
                raise InvalidInputError(f"compressor: {unknown[0]!r} is no field one can choose")
            compressor = {self.stored[name]: chosen for name, chosen in compressor.items()}
        self.schema = Schema(
            self._space("observation", _NOTHING), self._space("action", _NO_ACTION), extras,
            compressor,
        )  # fmt: skip
        self.resident = [
            name for name, (shape, dtype) in self.specs.items()
            if int(np.prod(shape, dtype=np.int64)) * dtype.itemsize < self.min_bytes
        ]  # fmt: skip
        self._names = {stored: name for name, stored in self.stored.items()}
        #: The name that each of the store's fields has here; None for those of the store alone.
        self.given = [self._names.get(field) for field in self.schema.names]

    def _is_native(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """Whether a field has the name and the form of one that each store has."""
        if name in _SCALARS:
            return shape == () and dtype == _SCALARS[name]
        first, *keys = name.split("/")
        if first not in ("observation", "action"):
            return False
        if len(keys) > 1:
            return False
        whole_, parts = first in self.specs, f"{first}/"
        return not (whole_ and any(other.startswith(parts) for other in self.specs))

    def _space(self, name: str, otherwise: gym_spaces.Space) -> gym_spaces.Space:
        """The space of the fields that are observations, or actions."""
        parts = {
            native: box(*self.specs[native]) for native in self.stored
            if native == self.stored[native] and native.split("/")[0] == name
        }  # fmt: skip
        if not parts:
            return otherwise
        if name in parts:
            return parts[name]
        return gym_spaces.Dict({native.split("/")[1]: part for native, part in parts.items()})

    def lanes(self, slots: np.ndarray) -> np.ndarray:
        """The lane of each slot."""
        if len(self.sizes) == 1:
            return np.zeros(len(slots), np.int64)
        return np.searchsorted(self.offsets, slots, side="right") - 1

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that are no fields."""
        for name in names:
            if name not in self.specs:
                raise InvalidInputError(f"no field {name!r:.120}; there are {list(self.specs)}")

    def describe(self) -> dict[str, Any]:
        """As JSON, for the group's attributes."""
        fields = {name: [list(shape), dtype.name] for name, (shape, dtype) in self.specs.items()}
        return {
            _META: {
                "fields": fields, "sizes": self.sizes.tolist(), "min_bytes": self.min_bytes
            }
        }  # fmt: skip

    @classmethod
    def parse(cls, attributes: Mapping[str, Any]) -> Self:
        """The opposite of `describe`.

        Raises
        ------
        FormatError
        """
        try:
            found = attributes[_META]
            sizes = [numbers.integer("sizes", size, 0, _MOST_SLOTS) for size in found["sizes"]]
            numbers.integer("min_bytes", found["min_bytes"], 0, 1 << 30)
            return cls({**found["fields"]}, sizes, found["min_bytes"])
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInputError) as error:
            raise FormatError(f"attributes: {_META} is missing or damaged ({error})") from error


def _spec(name: str, spec: Any) -> tuple[tuple[int, ...], np.dtype]:
    try:
        shape, dtype = spec
        found = tuple(int(n) for n in shape), np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"fields: {name!r:.120} needs (shape, dtype), found {spec!r:.120}"
        ) from error
    if any(n < 1 for n in found[0]):
        raise InvalidInputError(
            f"fields: {name!r:.120} has shape {found[0]}, which has no elements"
        )
    if found[1].name not in DTYPES:
        raise InvalidInputError(
            f"fields: {name!r:.120} is of dtype {found[1]}; one of {sorted(DTYPES)} expected"
        )
    return found
