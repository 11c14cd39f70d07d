"""Parts of batches, as shards send them, put together into the batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diskreplay.batch import Batch, FollowingStacks, WindowView
from diskreplay.packed_batch import BlockStacks, PackedBatch
from diskreplay.ray.batch_order import BatchOrder
from diskreplay.ray.block_frames import BlockFrames, Stacks
from diskreplay.stack_reader import reused

_SMALL = 256  # bytes of a row that are joined for all batches at once


class _Place(NamedTuple):
    """Where in each window the frames are that an array shows."""

    window: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    def of(self, window: np.ndarray) -> np.ndarray:
        return np.ndarray(
            (len(window), *self.shape), self.dtype, window, self.offset, self.strides
        )  # fmt: skip


def joined(
    parts: Sequence[PackedBatch], order: BatchOrder, more: dict[str, np.ndarray],
    frames: BlockFrames,
) -> list[Batch]:  # fmt: skip
    """The batches of the transitions of some parts, which they share no memory with.

    Small arrays are put together once for all batches, which are views of them: to do so a batch
    and field takes longer than to copy 32 frames.

    Parameters
    ----------
    parts : sequence of PackedBatch
        At least one.
    order : BatchOrder
    more : dict of str to ndarray
        Arrays of all batches, one behind the other, in the place of those of the parts.
    frames : BlockFrames

    Raises
    ------
    CorruptSegmentError
        A block was damaged on its way.
    """
    # A shard sends blocks where they are fewer bytes than the rows.
    layouts = [{(name, sent.layout) for name, sent in part.blocks.items()} for part in parts]
    in_blocks = {name for name, _layout in set.intersection(*layouts)}
    parts = [
        part if part.blocks.keys() == in_blocks
        else frames.unpacked(part, part.blocks.keys() - in_blocks) for part in parts
    ]  # fmt: skip
    memory = [frames.memory.take(size) for size in order.sizes.tolist()]
    stacks = frames.read(parts, order, in_blocks, memory)
    names = set.intersection(*(set(part.windows) for part in parts))
    windows = {
        name: _windows([part.windows[name] for part in parts], name, order, memory)
        for name in names
    }
    for mine in memory:
        frames.memory.give(mine)
    fields = {
        name: _joined([part.arrays[name] for part in parts], parts, order, windows, stacks)
        for name in parts[0].arrays if name not in more
    } | {name: order.cut(array) for name, array in more.items()}  # fmt: skip
    return [
        Batch({name: found[number] for name, found in fields.items()}, memory[number])
        for number in range(order.count)
    ]


def _windows(
    parts: list[np.ndarray], name: str, order: BatchOrder, memory: list[dict[str, np.ndarray]]
) -> list[np.ndarray]:
    """Those of one field of each batch, in its memory."""
    shape, dtype = parts[0].shape[1:], parts[0].dtype
    return order.joined(
        parts,
        [
            reused(mine, name, (size, *shape), dtype)
            for mine, size in zip(memory, order.sizes.tolist(), strict=True)
        ],
    )


def _joined(
    leaves: list[Any], parts: Sequence[PackedBatch], order: BatchOrder,
    windows: dict[str, list[np.ndarray]], stacks: Stacks,
) -> list[Any]:  # fmt: skip
    """One field of each batch."""
    first = leaves[0]
    if isinstance(first, BlockStacks):
        return stacks[first]
    if isinstance(first, dict):
        named = {
            key: _joined([leaf[key] for leaf in leaves], parts, order, windows, stacks)
            for key in first
        }
        return [{key: found[k] for key, found in named.items()} for k in range(order.count)]
    if isinstance(first, tuple):
        inner = [
            _joined(list(each), parts, order, windows, stacks) for each in zip(*leaves, strict=True)
        ]
        return [tuple(found[k] for found in inner) for k in range(order.count)]
    shown = {_place(leaf, part.windows) for leaf, part in zip(leaves, parts, strict=True)}
    place = shown.pop()
    if place is not None and not shown and place.window in windows:
        return _of_windows(place, leaves, order, windows[place.window])
    arrays = [
        leaf.of(part.windows) if isinstance(leaf, WindowView | FollowingStacks) else leaf
        for leaf, part in zip(leaves, parts, strict=True)
    ]
    if arrays[0][:1].nbytes <= _SMALL:
        return order.cut(order.rows(arrays))
    return order.joined(arrays)


def _place(leaf: Any, windows: dict[str, np.ndarray]) -> _Place | None:
    """None of an array that is in no window. The stacks that follow are the end of it, but for
    some."""
    if isinstance(leaf, WindowView):
        return _Place(leaf.window, leaf.offset, leaf.shape[1:], leaf.strides, leaf.dtype)
    if isinstance(leaf, FollowingStacks):
        window, shape = windows[leaf.window], leaf.stacks.shape[1:]
        offset = (window.shape[1] - shape[0]) * window.strides[1]
        return _Place(leaf.window, offset, shape, window.strides, window.dtype)
    return None


def _of_windows(
    place: _Place, leaves: list[Any], order: BatchOrder, windows: list[np.ndarray]
) -> list[np.ndarray]:
    """Views of the windows; a copy of each batch in which some stacks are not in their window."""
    found = [place.of(window) for window in windows]
    apart = [
        (order.places(part, leaf.apart), leaf.stacks)
        for part, leaf in enumerate(leaves) if isinstance(leaf, FollowingStacks)
    ]  # fmt: skip
    if not apart:
        return found
    places, stacks = map(np.concatenate, zip(*apart, strict=True))
    owners = np.searchsorted(order.starts, places, side="right") - 1
    for number in np.unique(owners).tolist():
        mine = owners == number
        found[number] = found[number].copy()
        found[number][places[mine] - order.starts[number]] = stacks[mine]
    return found
