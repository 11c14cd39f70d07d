"""Frames that shards send in the blocks they are stored in, read into the batches of a learner."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.batch import WindowMemory, mapped
from diskreplay.packed_batch import BlockStacks, PackedBatch
from diskreplay.ray.batch_order import BatchOrder
from diskreplay.stack_reader import StackReader, in_blocks, spans
from diskreplay.store.stored_blocks import BlockColumn

Stacks = dict[BlockStacks, list[np.ndarray]]
"""Of each batch an array, by what stands in its place in a `PackedBatch`."""


class BlockFrames:
    """Reads them as a buffer reads its own rows.

    Parameters
    ----------
    options : mapping
        Of the buffers of all shards.

    Attributes
    ----------
    memory : WindowMemory
        Of the learner's batches.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.memory = WindowMemory()

    @functools.cached_property
    def _reader(self) -> StackReader:  # made late: a client without batches compiles no kernel
        options = self._options
        return StackReader(
            options["stack_size"], options["update_horizon"],
            repeat_first=options["stack_padding"] == "reset",
        )  # fmt: skip

    def read(
        self, parts: Sequence[PackedBatch], order: BatchOrder, names: Collection[str],
        windows: Sequence[dict[str, np.ndarray]],
    ) -> Stacks:  # fmt: skip
        """The stacks of these fields, which all parts have in blocks: views of what is in `windows`
        then, of each batch by field.

        Raises
        ------
        CorruptSegmentError
            A block was damaged on its way.
        """
        found: Stacks = {}
        for name in names:
            column, rows = _column(parts, name)
            pairs = [
                self._reader.read(column, planned, mine, 1, False)
                for planned, mine in zip(order.cut(order.rows(rows)), windows, strict=True)
            ]
            found[BlockStacks(name, following=False)] = [shown for shown, _following in pairs]
            found[BlockStacks(name, following=True)] = [following for _shown, following in pairs]
        return found

    def unpacked(self, part: PackedBatch, names: Collection[str]) -> PackedBatch:
        """A part with the stacks of these fields as arrays."""
        assert part.rows is not None
        order = BatchOrder([np.zeros(len(part.rows), np.int64)], 1)
        stacks = self.read([part], order, names, [{}])

        def made(leaf: Any) -> Any:
            return stacks[leaf][0] if isinstance(leaf, BlockStacks) and leaf in stacks else leaf

        return part._replace(arrays=mapped(made, part.arrays))


def _column(parts: Sequence[PackedBatch], name: str) -> tuple[BlockColumn, list[np.ndarray]]:
    """The rows of a field that some parts have in blocks, and those of each part as they are
    planned from there."""
    plans = [part.rows for part in parts if part.rows is not None]
    column = BlockColumn([part.blocks[name] for part in parts], [spans(plan) for plan in plans])
    firsts = np.cumsum([0, *map(len, plans)])
    return column, [
        in_blocks(plan, column.field, first) for plan, first in zip(plans, firsts, strict=False)
    ]
