"""What was drawn of several stores, and how it becomes one batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from diskreplay.batch import Batch, WindowMemory, mapped
from diskreplay.stack_reader import reused
from diskreplay.store.rwlock import ReadGuard


class Part(NamedTuple):
    """What was drawn of one member; `drawn` is a DrawnBatch or DrawnSequences."""

    member: int
    drawn: Any
    guard: ReadGuard


class JointDraw:
    """Parts of members that were drawn and not read yet, each with its read guard.

    Parameters
    ----------
    key : str
        What the batch calls the ids: ``"id"``, or ``"anchor"`` of windows.
    members : int
        How many there are: an id of the union is ``id * members + member``.
    kind : type
        `Batch` or `SequenceBatch`.
    memory : JointMemory
        For the arrays of the batch.

    Attributes
    ----------
    parts : list of Part
    probability, weight : ndarray, shape (batch,)
    order : ndarray of int64 or None
        Where each element of the batch stands among the parts, if they do not just follow each
        other.
    numbers : list of ndarray
        The random numbers it was drawn with.
    """

    def __init__(self, key: str, members: int, kind: type[Batch], memory: "JointMemory") -> None:
        self._key, self._members, self._kind, self._memory = key, members, kind, memory
        self.parts: list[Part] = []
        self.probability = self.weight = np.empty(0)
        self.order: np.ndarray | None = None
        self.numbers: list[np.ndarray] = []

    def add(self, member: int, draw: Callable[..., Any], *arguments: Any) -> Any:
        """Draw, or choose, what is to come of one member; needs its lock."""
        guard = ReadGuard()
        self.parts.append(Part(member, None, guard))  # before: Ctrl-C may come in between
        drawn = draw(*arguments, guard)
        self.parts[-1] = Part(member, drawn, guard)
        return drawn

    @property
    def new(self) -> np.ndarray:
        """The anchors, as of the union, of the windows that were handed out because they were
        new."""
        of_each = [
            part.drawn.new * self._members + part.member
            for part in self.parts if hasattr(part.drawn, "new")
        ]  # fmt: skip
        return np.concatenate(of_each) if of_each else np.empty(0, np.int64)

    def release(self) -> None:
        """Let go of the stores. Again is fine."""
        for part in self.parts:
            part.guard.release()

    def read(self, out: Batch | None = None, *, threads: int = 1) -> Batch | None:
        """The batch, its frames read by so many threads, and let go of the stores; None if what was
        read changed meanwhile."""
        sizes = [len(part.drawn.probability) for part in self.parts]
        held = self._memory.take(sum(sizes)) if out is None else out._windows
        batches, start = [], 0
        for part, size in zip(self.parts, sizes, strict=True):
            room = {name: array[start : start + size] for name, array in held.items()}
            batch = part.drawn.read(self._kind({}, room), threads=threads)
            if batch is None:
                self.release()
                return None
            self._memory.learn(batch._windows)
            batches.append(batch._arrays)
            start += size
        arrays = {
            name: joined([batch[name] for batch in batches])
            for name in batches[0] if name not in ("probability", "weight")
        }  # fmt: skip
        members = np.repeat([part.member for part in self.parts], sizes)
        for name in {"id", self._key}:
            ids = arrays[name]
            owners = members.reshape(-1, *[1] * (ids.ndim - 1))
            arrays[name] = np.where(ids < 0, -1, ids * self._members + owners)
        arrays |= {"probability": self.probability, "weight": self.weight}
        if self.order is not None:
            arrays = mapped(lambda array: array[self.order], arrays)
        if out is None:
            self._memory.give(held)
            return self._kind(arrays, held)
        out._arrays = arrays
        return out


class JointMemory:
    """Arrays that whole batches are read into, each member's part into its own rows."""

    def __init__(self) -> None:
        self._memory = WindowMemory()
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype]] = {}

    def take(self, size: int) -> dict[str, np.ndarray]:
        """Arrays for a batch of that size, as far as their shapes are known."""
        held = self._memory.take()
        for name, (shape, dtype) in self._shapes.items():
            reused(held, name, (size, *shape), dtype)
        return held

    def give(self, held: dict[str, np.ndarray]) -> None:
        """Remember arrays that a batch is about to show."""
        self._memory.give(held)

    def learn(self, windows: dict[str, np.ndarray]) -> None:
        """Come to know which arrays a member's part is read into."""
        if len(windows) > len(self._shapes):
            self._shapes |= {name: (a.shape[1:], a.dtype) for name, a in windows.items()}


def joined(parts: list[Any]) -> Any:
    """Arrays one behind the other: not copied where they are rows of one array already."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(joined(list(each)) for each in zip(*parts, strict=True))
    owner = first.base  # looking takes as long as joining short ones
    if owner is None or (isinstance(owner, np.ndarray) and parts[1].base is not owner):
        return np.concatenate(parts)
    owner, due, rows = _owner(first), _address(first), 0
    for part in parts:
        if part.strides != first.strides or _address(part) != due or _owner(part) is not owner:
            return np.concatenate(parts)
        due += len(part) * first.strides[0]
        rows += len(part)
    return np.lib.stride_tricks.as_strided(first, (rows, *first.shape[1:]), first.strides)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _owner(array: Any) -> Any:
    while getattr(array, "base", None) is not None:
        array = array.base
    return array
