"""Batches as they cross from a shard to the learner, and how parts of them become one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from diskreplay.batch import Batch, FollowingStacks, WindowView, mapped


class PackedBatch(NamedTuple):
    """A batch with each frame of its windows once, as `Batch` is pickled.

    Attributes
    ----------
    arrays : dict
        By name; arrays, or where in a window they are.
    windows : dict of str to ndarray
    """

    arrays: dict[str, Any]
    windows: dict[str, np.ndarray]

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """What is sent of a batch."""
        _kind, arrays, windows = batch.__reduce__()[1]
        return cls(arrays, windows)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        sizes = [window.nbytes for window in self.windows.values()]

        def count(leaf: Any) -> Any:
            if not isinstance(leaf, WindowView):
                sizes.append((leaf.stacks if isinstance(leaf, FollowingStacks) else leaf).nbytes)

        mapped(count, self.arrays)
        return sum(sizes)

    def part(self, start: int, stop: int) -> Self:
        """Some of its transitions; views."""

        def cut(leaf: Any) -> Any:
            if isinstance(leaf, WindowView):
                return replace(leaf, shape=(stop - start, *leaf.shape[1:]))
            if isinstance(leaf, FollowingStacks):
                low, high = np.searchsorted(leaf.apart, [start, stop])
                return FollowingStacks(
                    leaf.window, leaf.apart[low:high] - start, leaf.stacks[low:high]
                )
            return leaf[start:stop]

        windows = {name: window[start:stop] for name, window in self.windows.items()}
        return type(self)(mapped(cut, self.arrays), windows)


def joined(parts: Sequence[PackedBatch], more: dict[str, np.ndarray]) -> Batch:
    """One batch of the transitions of several, in this order; copies.

    Parameters
    ----------
    parts : sequence of PackedBatch
        At least one.
    more : dict of str to ndarray
        Arrays of the whole batch, in the place of those of the parts.
    """
    windows = {
        name: np.concatenate([part.windows[name] for part in parts])
        for name in parts[0].windows if all(name in part.windows for part in parts)
    }  # fmt: skip
    sizes = [len(part.arrays["id"]) for part in parts]
    starts = np.cumsum([0, *sizes])[:-1]
    arrays = {
        name: _joined([part.arrays[name] for part in parts], parts, windows, sizes, starts)
        for name in parts[0].arrays if name not in more
    }  # fmt: skip
    return Batch(arrays | more, windows)


def _joined(
    leaves: list[Any], parts: Sequence[PackedBatch], windows: dict[str, np.ndarray],
    sizes: list[int], starts: np.ndarray,
) -> Any:  # fmt: skip
    first = leaves[0]
    if isinstance(first, dict):
        return {
            key: _joined([leaf[key] for leaf in leaves], parts, windows, sizes, starts)
            for key in first
        }
    if isinstance(first, tuple):
        return tuple(
            _joined(list(inner), parts, windows, sizes, starts)
            for inner in zip(*leaves, strict=True)
        )
    views = [leaf for leaf in leaves if isinstance(leaf, WindowView)]
    names = {leaf.window for leaf in leaves if isinstance(leaf, WindowView | FollowingStacks)}
    apart = [leaf for leaf in leaves if isinstance(leaf, FollowingStacks)]
    if len(names) == 1 and names <= windows.keys() and len(views) + len(apart) == len(leaves):
        if not apart:
            return replace(first, shape=(sum(sizes), *first.shape[1:])).of(windows)
        # What is a view of the window in one part is the end of the window in another one.
        if all(isinstance(leaf, FollowingStacks) or _ends(leaf, windows) for leaf in leaves):
            rows = [
                leaf.apart + start for leaf, start in zip(leaves, starts.tolist(), strict=True)
                if isinstance(leaf, FollowingStacks)
            ]  # fmt: skip
            stacks = np.concatenate([leaf.stacks for leaf in apart])
            return FollowingStacks(names.pop(), np.concatenate(rows), stacks).of(windows)
    return np.concatenate([
        leaf.of(part.windows) if isinstance(leaf, WindowView | FollowingStacks) else leaf
        for leaf, part in zip(leaves, parts, strict=True)
    ])  # fmt: skip


def _ends(view: WindowView, windows: dict[str, np.ndarray]) -> bool:
    """Whether a view is of the last frames of each window."""
    window = windows[view.window]
    frames = window.shape[1]
    return (
        len(view.shape) == window.ndim
        and view.offset == (frames - view.shape[1]) * window.strides[1]
    )
