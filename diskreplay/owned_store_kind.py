"""What a store holds whose rows belong to an API that brings its own rules."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diskreplay.distribution import UniformDistribution
from diskreplay.errors import FormatError, SchemaError
from diskreplay.indexed_store import IndexedStore
from diskreplay.options import Options
from diskreplay.schema import Schema
from diskreplay.store import numbers
from diskreplay.store.priorities import LARGEST_LEAF
from diskreplay.store.store import Store
from diskreplay.store_kind import StoreKind

OWNER = "facade"  # among the attributes of the group


class OwnedStoreKind(StoreKind):
    """The rows of an API of its own: without an index, and with notes.

    Parameters
    ----------
    schema : Schema
    options : Options
    owner : str
        The API; a store of another one is refused.
    notes : mapping
        What the owner wants kept beside the rows of a new store, as JSON.
    note_bounds : mapping of str to (low, high)
        The least and the largest that each note may be, if it is there; an integer where `low` is
        one. A store or checkpoint with another one is refused.
    owner_check : callable, optional
        Called with a `Store` that is to be opened or loaded, before anything is changed: raises if
        its owner cannot use it.
    """

    reads_foreign = False  # other files are the owner's to read

    def __init__(
        self, schema: Schema, options: Options, *, owner: str, notes: Mapping[str, Any],
        note_bounds: Mapping[str, tuple[float, float]],
        owner_check: Callable[[Store], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(schema, options, UniformDistribution())
        self.owner, self.notes = owner, dict(notes)
        self._note_bounds = {"newest_weight": (0.0, LARGEST_LEAF), **note_bounds}
        self._owner_check = owner_check

    def check_capacity(self, capacity: int | None) -> None:
        """One row will do: what makes a transition is for the owner to say."""

    def check(self, store: Store) -> None:
        super().check(store)
        if store.meta.get(OWNER) != self.owner:
            raise SchemaError(
                f"{store.path}: made by {store.meta.get(OWNER, 'diskreplay itself')}, not by "
                f"{self.owner}; open it there, or choose another directory"
            )

    def check_opened(self, store: Store) -> None:
        super().check_opened(store)
        notes = store.meta.get("notes")
        try:
            self._check_bookkeeping(store)
            if not isinstance(notes, dict):
                raise ValueError(f"notes: a JSON object expected, found {notes!r:.60}")
        except ValueError as error:
            raise FormatError(f"{store.path}/zarr.json: damaged ({error})") from error
        self._check_notes(notes, store.path / "zarr.json")
        if self._owner_check is not None:
            self._owner_check(store)

    def _check_notes(self, notes: Mapping[str, Any], path: Path) -> None:
        """Refuse notes, read from the file at `path`, that are not within their bounds, with a
        `FormatError`."""
        for name, (low, high) in self._note_bounds.items():
            check: Any = numbers.integer if type(low) is int else numbers.real
            try:
                if name in notes:
                    check(name, notes[name], low, high)
            except ValueError as error:
                raise FormatError(f"{path}: {name} is damaged ({error})") from error

    def _check_bookkeeping(self, store: Store) -> None:
        """Refuse what else the attributes say, with a ``ValueError``."""

    def check_saved(self, saved: Store) -> None:
        super().check_saved(saved)
        if saved.meta.get("prefetch", []) != []:
            raise FormatError(f"{saved.path}/zarr.json: damaged: slots have no prefetchers")

    def complete(self, rows: IndexedStore) -> None:
        """Nothing is drawn by the row index here, and `check_saved` has seen the rest."""

    def describe(self) -> dict[str, Any]:
        return super().describe() | {OWNER: self.owner}

    def state(self, rows: IndexedStore | None) -> dict[str, Any]:
        noted: Any = self if rows is None else rows
        return super().state(rows) | {"notes": noted.notes}
