"""The fields of rows in slots, and what a store has for each."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import naming
from diskreplay.brief import brief
from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.frame_chains import Chain, FrameChains, stacks
from diskreplay.given_numbers import whole
from diskreplay.schema import Schema
from diskreplay.spaces import box
from diskreplay.store import numbers
from diskreplay.store.field import DTYPES, Field

SLOT, BACK = "slot", "back"
_META = "slots"  # among the attributes of the group
_NOTHING, _NO_ACTION = gym_spaces.Box(0, 255, (1,), np.uint8), gym_spaces.Discrete(1)
_SCALARS = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
_MOST_SLOTS = 1 << 36
_LEAST_SLACK, _SLACK = 64, 8


class SlotFields:
    """What rows in slots consist of, and how many slots there are, as `Slots` is told of them.

    Attributes
    ----------
    specs : dict of str to (shape, dtype)
    values : dict of str to Field
        The same, to check values by.
    stored : dict of str to str
        The store's field for each.
    chains : FrameChains
        Those that share frames, by the names here; false if there are none.
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
        self, fields: Mapping[str, tuple[Any, ...]], sizes: Sequence[int], min_bytes: int,
        compressor: str | Mapping[str, str] = "auto", next_of: Mapping[str, str] | None = None,
        stack: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        fields = _named("fields", fields)
        if not fields:
            raise InvalidInputError("fields: at least one expected, found none")
        if not len(sizes):
            raise InvalidInputError("slots: a number for each lane expected, found none")
        self.sizes = np.array(
            [whole("slots", size, least=0, most=_MOST_SLOTS) for size in sizes], np.int64
        )
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.total = whole("slots", int(self.sizes.sum()), most=_MOST_SLOTS)
        self.min_bytes = whole("min_bytes", min_bytes, least=0)
        self.specs = {name: _spec(name, spec) for name, spec in fields.items()}
        self.values = {name: Field(name, *spec) for name, spec in self.specs.items()}
        self.next_of, self.stack = _named("next_of", next_of), _named("stack", stack)
        made = _chains(self.specs, self.next_of, self.stack)
        self.chains = FrameChains(made)
        followed = {chain.following: chain.now for chain in made if chain.following}
        self._frame_shapes = {chain.now: chain.frame_shape for chain in made}
        self.stored: dict[str, str] = {}
        extras: dict[str, tuple[Any, ...]] = {SLOT: ((), np.dtype(np.int64))}
        if self.chains.has_back:
            extras[BACK] = (), np.dtype(np.uint8)
        taken = {*extras}
        for name, (shape, dtype) in self.specs.items():
            if name in followed:
                continue
            shape = self._frame_shapes.get(name, shape)
            # Frames of what rows led to are no observations of these rows, as others read them.
            if name not in followed.values() and self._is_native(name, shape, dtype):
                self.stored[name] = name
            else:
                self.stored[name] = naming.extra_name(name, taken)
                extras[self.stored[name]] = (shape, dtype)
        self.stored |= {name: self.stored[now] for name, now in followed.items()}
        if not isinstance(compressor, str):
            if compressor is None:
                raise InvalidInputError(
                    "compressor: a name, or names by field, expected; found None"
                )
            compressor = _named("compressor", compressor)
            if unknown := sorted(compressor.keys() - self.specs.keys()):
                raise InvalidInputError(f"compressor: {unknown[0]!r} is no field one can choose")
            for name, now in followed.items():
                if compressor.get(name) != compressor.get(now) and {name, now} <= {*compressor}:
                    raise InvalidInputError(
                        f"compressor: {name!r} and {now!r} have their frames in common, found "
                        f"{compressor[name]!r:.60} and {compressor[now]!r:.60}; one has to do"
                    )
            compressor = {self.stored[name]: chosen for name, chosen in compressor.items()}
        self.schema = Schema.of(
            self._space("observation", _NOTHING), self._space("action", _NO_ACTION), extras,
            compressor,
        )  # fmt: skip
        self.resident = [
            name for name, (shape, dtype) in self.specs.items()
            if int(np.prod(shape, dtype=np.int64)) * dtype.itemsize < self.min_bytes
            and name not in self._frame_shapes and name not in followed
        ]  # fmt: skip
        names = {self.stored[name]: name for name in self.specs if name not in followed}
        #: The name that each of the store's fields has here; None for those of the store alone.
        self.given = [names.get(field) for field in self.schema.names]

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

    def _space(self, name: str, otherwise: gym_spaces.Space[Any]) -> gym_spaces.Space[Any]:
        """The space of the fields that are observations, or actions."""
        parts = {}
        for native in self.stored:
            if native == self.stored[native] and native.split("/")[0] == name:
                shape, dtype = self.specs[native]
                parts[native] = box(self._frame_shapes.get(native, shape), dtype)
        if not parts:
            return otherwise
        if name in parts:
            return parts[name]
        return gym_spaces.Dict({native.split("/")[1]: part for native, part in parts.items()})

    @property
    def slack(self) -> np.ndarray:
        """So many rows of each lane may be in no slot any more."""
        return np.maximum(self.sizes // _SLACK, _LEAST_SLACK)

    @property
    def capacity(self) -> int:
        """Rows of the store: each lane has as many as the largest one may need."""
        rows, reach = self.sizes + self.slack, self.chains.reach
        if self.chains:  # if all slots have leads, and so has what is put next and looked through
            rows += reach * self.sizes + (2 + reach) * self.slack + 2 * reach
        return len(self.sizes) * int(rows.max())

    def lanes(self, slots: np.ndarray) -> np.ndarray:
        """The lane of each slot."""
        if len(self.sizes) == 1:
            return np.zeros(len(slots), np.int64)
        return np.searchsorted(self.offsets, slots, side="right") - 1

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that are no fields."""
        for name in names:
            if not isinstance(name, str) or name not in self.specs:  # what is no text has no hash
                raise InvalidInputError(
                    f"no field {brief(name, 120)}; there are {list(self.specs)}"
                )

    def within(self, slots: np.ndarray) -> np.ndarray:
        """These integers as int64, C-contiguous; refused where one of them is no slot."""
        if slots.size and (slots.min() < 0 or slots.max() >= self.total):
            raise InvalidInputError(
                f"slots: 0 to {self.total - 1} expected, found {slots.min()} to {slots.max()}"
            )
        return np.asarray(slots, np.int64, order="C")

    def columns(self, slots: np.ndarray, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """An array for each of the store's fields, in their order, of rows for these slots."""
        rows = []
        for stored, name in zip(self.schema.names, self.given, strict=True):
            if name is not None:
                rows.append(values[name])
            elif stored == SLOT:
                rows.append(slots)
            else:
                shape, dtype = self.schema.shapes[stored]
                rows.append(np.zeros((len(slots), *shape), dtype))
        return rows

    def describe(self) -> dict[str, Any]:
        """As JSON, for the group's attributes."""
        fields = {name: [list(shape), dtype.name] for name, (shape, dtype) in self.specs.items()}
        meta = {"fields": fields, "sizes": self.sizes.tolist(), "min_bytes": self.min_bytes}
        if self.chains:
            meta |= {"next_of": self.next_of, "stack": self.stack}
        return {_META: meta}

    @classmethod
    def parse(cls, attributes: Mapping[str, Any]) -> Self:
        """The opposite of `describe`, or a `FormatError`."""
        try:
            found = attributes[_META]
            sizes = [numbers.integer("sizes", size, 0, _MOST_SLOTS) for size in found["sizes"]]
            numbers.integer("min_bytes", found["min_bytes"], 0, 1 << 30)
            shared = {name: {**found.get(name, {})} for name in ("next_of", "stack")}
            return cls({**found["fields"]}, sizes, found["min_bytes"], **shared)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInputError) as error:
            raise FormatError(f"attributes: {_META} is missing or damaged ({error})") from error


def _named(option: str, given: Any) -> dict[str, Any]:
    """An option that says something of each of some fields; None is an empty one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidInputError(
            f"{option}: a dict by the names of fields, found {brief(given, 120)}"
        )
    # As numbers of Python's own: attributes are JSON.
    return {n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()}


def _chains(
    specs: Mapping[str, tuple[Any, ...]], next_of: Mapping[str, str], stack: Mapping[str, int]
) -> list[Chain]:
    """The fields that share frames."""
    known = [*specs]  # a list, as what is no text may have no hash
    for option, names in (("next_of", [*next_of, *next_of.values()]), ("stack", stack)):
        if unknown := [name for name in names if name not in known]:
            raise InvalidInputError(
                f"{option}: no field {brief(unknown[0], 120)}; there are {known}"
            )
    frames = stacks(stack)
    following = {now: name for name, now in next_of.items()}
    for name, now in next_of.items():  # of which of the two a stack is said is all the same
        for one, other in ((name, now), (now, name)):
            if one in frames:
                frames.setdefault(other, frames[one])
    for name, now in next_of.items():
        if now in next_of or following[now] != name:
            raise InvalidInputError(
                f"next_of: {name!r} and {now!r} expected in no other pair, found {dict(next_of)}"
            )
        if specs[name] != specs[now] or frames.get(name, 1) != frames.get(now, 1):
            raise InvalidInputError(
                f"next_of: {name!r} is {specs[name]} and {now!r} is {specs[now]}, in stacks of "
                f"{frames.get(name, 1)} and {frames.get(now, 1)}; they have to be alike"
            )
    for name, k in frames.items():
        shape = specs[name][0]
        if k > 1 and (not shape or shape[0] % k):
            raise InvalidInputError(f"stack: {name!r} of shape {shape} cannot be {k} frames")
    made = []
    for name, (shape, _) in specs.items():
        k = frames.get(name, 1)
        if name not in next_of and (k > 1 or name in following):
            frame = shape if k == 1 else shape[1:] if k == shape[0] else (shape[0] // k, *shape[1:])
            made.append(Chain(name, following.get(name), k, frame))
    return made


def _spec(name: str, spec: Any) -> tuple[tuple[int, ...], np.dtype]:
    try:
        shape, dtype = spec
        found = tuple(operator.index(n) for n in shape), np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"fields: {brief(name, 120)} needs (shape, dtype), found {brief(spec, 120)}"
        ) from error
    if any(n < 1 for n in found[0]):
        raise InvalidInputError(
            f"fields: {brief(name, 120)} has shape {found[0]}, which has no elements"
        )
    if found[1].name not in DTYPES:
        raise InvalidInputError(
            f"fields: {brief(name, 120)} is of dtype {found[1]}; one of {sorted(DTYPES)} expected"
        )
    return found[0], np.dtype(found[1].name)  # of this machine's byte order, as rows are
