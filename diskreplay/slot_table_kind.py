"""What the stores of `Slots` hold."""

from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, FormatError, SchemaError
from diskreplay.options import Options
from diskreplay.owned_store_kind import OwnedStoreKind
from diskreplay.slot_fields import SlotFields
from diskreplay.slot_table import SlotTable
from diskreplay.store import priorities
from diskreplay.store.store import Store


class SlotTableKind(OwnedStoreKind):
    """What the stores of `Slots` hold; see there."""

    def __init__(self, fields: SlotFields, options: Options, *, weighted: bool, **owned: Any):
        super().__init__(fields.schema, options, **owned)
        self.fields, self.weighted = fields, weighted

    def check(self, store: Store) -> None:
        here = self.fields
        try:
            there = SlotFields.parse(store.meta)
        except FormatError as error:
            super().check(store)  # a store of something else says so
            raise FormatError(f"{store.path}/zarr.json: {error}") from error
        # Before the schema, which would name fields that only the store itself knows of.
        if there.specs == here.specs and there.chains.chains != here.chains.chains:
            raise SchemaError(
                f"{store.path}: made with next_of={there.next_of}, stack={there.stack}, found "
                f"next_of={here.next_of}, stack={here.stack}; open it as it was made, or choose "
                "another directory"
            )
        super().check(store)
        for what, wanted, found in (
            ("slots", here.sizes.tolist(), there.sizes.tolist()),
            ("fields", here.specs, there.specs),
            ("fields in the store", here.stored, there.stored),
        ):
            if wanted != found:
                raise SchemaError(
                    f"{store.path}: {what} are {found!r:.200} in the store and {wanted!r:.200} "
                    "here; open it as it was made, or choose another directory"
                )

    def attach(self, store: Store, *, resume_episodes: bool | None = None) -> SlotTable:
        try:
            make = self.distribution.make_sampler
            table = SlotTable(store, self.fields, self.options, make)
            table.weights = _saved_weights(table) if self.weighted else None
            return table
        except IndexError as error:
            raise CorruptSegmentError(
                f"{store.path}: rows in slots are damaged: {error}"
            ) from error

    def describe(self) -> dict[str, Any]:
        return super().describe() | self.fields.describe()

    def leaves(self, rows: SlotTable) -> np.ndarray | None:  # type: ignore[override]
        """The weights of all rows from the oldest on, NaN for those in no slot and for what no
        opening would take."""
        if rows.weights is None:
            return None
        store = rows.store
        start = int(store.first.min())
        found = np.full((int(store.count.max()) - start, store.num_envs), np.nan)
        used = np.flatnonzero(rows.row_of >= 0)
        found[rows.row_of[used] - start, rows.fields.lanes(used)] = rows.weights[used]
        found[priorities.unlikely(found)] = np.nan
        return found


def _saved_weights(rows: SlotTable) -> np.ndarray:
    """What `leaves` gave, by slot."""
    weights = np.full(rows.fields.total, np.nan)
    saved = rows.store.read_priorities()
    if saved is not None:
        start, leaves = saved[:2]
        used = np.flatnonzero(rows.row_of >= start)
        used = used[rows.row_of[used] < start + len(leaves)]
        weights[used] = leaves[rows.row_of[used] - start, rows.fields.lanes(used)]
    return weights
