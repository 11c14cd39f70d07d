"""Which fields a buffer has: the leaves of its spaces, the bookkeeping, the extras."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from diskreplay import naming
from diskreplay.brief import brief
from diskreplay.errors import ExtrasError, InvalidInputError, SchemaError
from diskreplay.store.field import CODECS, Field
from diskreplay.store.store import Store
from diskreplay.stored_space import StoredSpace

if TYPE_CHECKING:
    import gymnasium

_PACKED_FROM = 1024  # bytes a row: smaller rows cost more to unpack than they save
_BOOKKEEPING = (
    Field("reward", (), np.dtype(np.float32)),
    Field("terminated", (), np.dtype(np.bool_)),
    Field("truncated", (), np.dtype(np.bool_)),
    Field("step", (), np.dtype(np.int32)),
    Field("is_final", (), np.dtype(np.bool_)),
)

MUTABLE = "mutable"  # in the spec of an extra whose values may be replaced
_DRAWN_BYTES = 64  # ids, rewards, weights and what else a batch has of each transition


class Schema:
    """The fields of one buffer.

    Attributes
    ----------
    observation, action : StoredSpace
    observations, actions : list of Field
        The leaves of these spaces.
    extras : dict of str to Field
    fields : list of Field
        All of them, in the order in which values are handed to the store: observations, actions,
        reward, terminated, truncated, step, is_final, extras.
    names : list of str
        Of `fields`.
    shapes : dict of str to tuple
        Shape and dtype of a row of each of `fields`.
    is_flat : bool
        Whether neither space is nested.
    new_extras : frozenset of str
        Extras that a store may lack, see `lacking`.
    """

    def __init__(
        self,
        observation: StoredSpace,
        action: StoredSpace,
        extras: Mapping[str, tuple[Any, ...]] | None,
        compressor: str | Mapping[str, str],
        new_extras: Collection[str] = (),
    ) -> None:
        self.observation, self.action = observation, action
        if not isinstance(extras, Mapping | None):
            raise ExtrasError(f"extras: (shape, dtype) by name expected, found {brief(extras)}")
        declared: dict[str, list[Any]] = {
            "observation": observation.leaves,
            "action": action.leaves,
            "extras": _checked_extras(dict(extras or {})),
        }
        known = {name for specs in declared.values() for name, *_ in specs}
        if not isinstance(compressor, str | Mapping):
            raise InvalidInputError(
                f"compressor: a name, or names by field, expected, found {brief(compressor)}"
            )
        if not isinstance(compressor, str) and (unknown := set(compressor) - known):
            raise InvalidInputError(
                f"compressor: {sorted(unknown, key=repr)[0]!r} is no field one can choose"
            )
        self.observations, self.actions, more = (
            [_compressed(*spec, compressor=compressor) for spec in specs]
            for specs in declared.values()
        )
        self.extras = {field.name: field for field in more}
        self.new_extras = _checked_new(new_extras, self.extras)
        self.fields = [*self.observations, *self.actions, *_BOOKKEEPING, *more]
        self.names = [field.name for field in self.fields]
        self.shapes = {field.name: (field.shape, field.dtype) for field in self.fields}
        self.is_flat = self.names[:2] == ["observation", "action"]

    @classmethod
    def of(
        cls,
        observation_space: "gymnasium.Space[Any]",
        action_space: "gymnasium.Space[Any]",
        extras: Mapping[str, tuple[Any, ...]] | None,
        compressor: str | Mapping[str, str],
        new_extras: Collection[str] = (),
    ) -> Self:
        """The fields that spaces and extras make."""
        return cls(
            StoredSpace.of(observation_space, "observation"),
            StoredSpace.of(action_space, "action"),
            extras, compressor, new_extras,
        )  # fmt: skip

    @property
    def extra_specs(self) -> dict[str, tuple[Any, ...]]:
        """The extras as they are declared."""
        return {
            name: (field.shape, field.dtype, *[MUTABLE] * field.mutable)
            for name, field in self.extras.items()
        }

    def transition_bytes(self, stack_size: int, update_horizon: int) -> int:
        """Memory that a batch takes for each of its transitions."""
        frames = sum(field.row_bytes for field in self.observations)
        others = sum(field.row_bytes for field in [*self.actions, *self.extras.values()])
        return frames * (stack_size + update_horizon) + others + _DRAWN_BYTES

    def describe(self) -> dict[str, Any]:
        """As JSON, for the group's attributes."""
        return {
            "observation_space": self.observation.document,
            "action_space": self.action.document,
            "extras": {
                name: [list(field.shape), field.dtype.name, *[MUTABLE] * field.mutable]
                for name, field in self.extras.items()
            },
        }

    @classmethod
    def parse(cls, attributes: Mapping[str, Any]) -> Self:
        """The opposite of `describe`; how fields are compressed is the store's to say."""
        return cls(
            StoredSpace(attributes["observation_space"], "observation"),
            StoredSpace(attributes["action_space"], "action"),
            attributes["extras"],
            "auto",
        )

    def lacking(self, store: Store) -> list[Field]:
        """The extras of `new_extras` that a store does not have yet."""
        there = {field.name for field in store.fields}
        return [field for name, field in self.extras.items() if name in self.new_extras - there]

    def check(self, store: Store, num_envs: int) -> None:
        """Refuse a store that holds anything else, with a `SchemaError`. It may lack
        `new_extras`."""
        if store.num_envs != num_envs:
            raise SchemaError(
                f"{store.path}: the store has {store.num_envs} env(s), {num_envs} asked for"
            )
        mine = {field.name: _spec(field) for field in self.fields}
        theirs = {column.field.name: _spec(column.field) for column in store.columns.values()}
        may_lack = self.new_extras - theirs.keys()
        for name in sorted((mine.keys() | theirs.keys()) - may_lack):
            if mine.get(name) != theirs.get(name):
                is_new = name in self.extras and name not in theirs
                raise SchemaError(
                    f"{store.path}: field {name!r} is {_shown(theirs.get(name))} in the store and "
                    f"{_shown(mine.get(name))} here; open it with the spaces and extras it was "
                    "made with, or choose another directory"
                    + f", or add it to the store: new_extras=[{name!r}]"
                    * is_new
                )
        for space in (self.observation, self.action):
            there = store.meta.get(f"{space.name}_space")
            if not space.is_alike(there):
                raise SchemaError(
                    f"{store.path}: {space.name}_space is {there} in the store and "
                    f"{space.document} here; open it with the spaces it was made with, or choose "
                    "another directory"
                )


def _checked_new(names: Collection[str], extras: Mapping[str, Field]) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ExtrasError(f"new_extras: a list of names expected, found {brief(names)}")
    for name in names:
        if not isinstance(name, str) or name not in extras:
            raise ExtrasError(f"new_extras: {name!r} is none of the extras; declare it there too")
    return frozenset(names)


def _checked_extras(extras: dict[str, Any]) -> list[tuple[str, tuple[int, ...], np.dtype, bool]]:
    naming.check_extras(extras)
    specs = []
    for name, spec in extras.items():
        try:
            shape, dtype, *more = spec
            if more not in ([], [MUTABLE]):
                raise ValueError(f"{more[0]!r} is unknown")
            specs.append((name, tuple(int(n) for n in shape), np.dtype(dtype), bool(more)))
        except (TypeError, ValueError, OverflowError) as error:
            raise ExtrasError(
                f"extras: {name!r} needs (shape, dtype) or (shape, dtype, {MUTABLE!r}), found "
                f"{spec!r}"
            ) from error
    return specs


def _compressed(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    mutable: bool = False,
    *,
    compressor: str | Mapping[str, str],
) -> Field:
    """A field with the compressor that was asked for, or the one that suits it."""
    field = Field(name, shape, dtype)
    for_all = isinstance(compressor, str)
    chosen = compressor if isinstance(compressor, str) else compressor.get(field.name, "auto")
    large = field.row_bytes >= _PACKED_FROM
    if mutable and (chosen == "auto" or (for_all and chosen in CODECS)):
        chosen = "raw"
    elif chosen == "auto":
        chosen = "lz4" if large and field.dtype == np.uint8 else "raw"
    elif for_all and chosen != "raw" and not large and not field.name.startswith("observation"):
        chosen = "raw" if chosen in ("lz4", "zstd") else chosen
    return Field(field.name, field.shape, field.dtype, chosen, mutable=mutable)


def _spec(field: Field) -> tuple[Any, ...]:
    """What two stores with one field must agree in."""
    return field.shape, field.dtype, field.mutable


def _shown(spec: tuple[Any, ...] | None) -> str:
    if spec is None:
        return "missing"
    shape, dtype, mutable = spec
    return f"{'mutable ' * mutable}{dtype} of shape {shape}"
