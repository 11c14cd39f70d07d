"""What is saved of a view: its generator, its priorities, and which windows are new."""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import FormatError
from diskreplay.sampling.new_windows import NewWindows
from diskreplay.sampling.rng import parse as parse_rng
from diskreplay.store import numbers
from diskreplay.store.priorities import VIEWS, Saved, set_name
from diskreplay.store.store import Store


class SequenceState(NamedTuple):
    """A view, as far as it is saved.

    Attributes
    ----------
    identity : dict
        By what a view of that name must agree with it.
    attributes : dict
        The JSON object that says all but the leaves.
    rng : tuple or None
        As `ReplayableRng.adopt` takes it, of what a store has.
    largest : float
        The largest priority seen.
    new : NewWindows or None
        Which windows were not handed out, of a view that is online.
    under_way : tuple of int, int and float, or None
        Depth, batch size and beta of the prefetcher that had batches under way.
    saved : Saved or None
        Powers of priorities, as a store has them.
    leaves : ndarray of float64, shape (rows, num_envs), or None
        Those of the retained rows, to be saved.
    """

    identity: dict[str, Any]
    attributes: dict[str, Any]
    rng: tuple[np.random.BitGenerator, np.ndarray] | None
    largest: float
    new: NewWindows | None
    under_way: tuple[int, int, float | None] | None
    saved: Saved | None
    leaves: np.ndarray | None

    @classmethod
    def now(
        cls,
        identity: dict[str, Any],
        rng: dict[str, Any],
        largest: float,
        new: NewWindows | None,
        under_way: tuple[int, int, float | None] | None,
        leaves: np.ndarray | None,
    ) -> "SequenceState":
        """That of a view at this moment, to be saved; `rng` is the state of its generator, and
        `leaves` are those of the retained rows."""
        attributes = {
            "identity": identity,
            "rng": rng,
            "largest": largest,
            **({"cursor": None, "returned": []} if new is None else new.as_json()),
            "under_way": None if under_way is None else list(under_way),
        }
        return cls(identity, attributes, None, largest, new, under_way, None, leaves)

    @classmethod
    def of(cls, store: Store, name: str) -> "SequenceState | None":
        """What a store has of the view of that name; None if it has nothing, and a `FormatError`
        if that is damaged."""
        views = store.meta.get(VIEWS, {})
        try:
            if not isinstance(views, dict):
                raise ValueError(f"an object expected, found {views!r:.60}")
            if name not in views:
                return None
            found = views[name]
            if not isinstance(found, dict) or not isinstance(found["identity"], dict):
                raise ValueError(f"{name}: an object expected, found {found!r:.60}")
            new = None
            if found["cursor"] is not None:
                new = parse_new(found, store.num_envs)
            elif found["identity"].get("online"):
                raise ValueError("cursor: missing")
            ranked = found["identity"].get("prioritized")
            return cls(
                found["identity"], found, _parsed_rng(found["rng"]),
                numbers.real("largest", found["largest"], sys.float_info.min, sys.float_info.max),
                new, _under_way(found["under_way"]),
                store.read_priorities(set_name(name)) if ranked else None, None,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{store.path / 'zarr.json'}: {VIEWS}: damaged ({error})") from error

    def at(self, store: Store) -> "SequenceState":
        """The same, with leaves of the rows that are retained now, as `now` has them."""
        if not self.identity.get("prioritized"):
            return self
        first, stop = int(store.first.min()), int(store.count.max())
        leaves = np.full((stop - first, store.num_envs), np.nan)
        start, known, *_ = self.saved or (first, leaves[:0])
        low, high = max(start, first), min(start + len(known), stop)
        if low < high:
            leaves[low - first : high - first] = known[low - start : high - start]
        return self._replace(leaves=leaves)

    def emptied(self) -> "SequenceState":
        """The same for a store whose rows count from 0 again: all that come are new."""
        if self.new is None:
            return self
        new = NewWindows(np.zeros_like(self.new.cursor))
        return self._replace(attributes={**self.attributes, **new.as_json()}, new=new)

    def difference(self, identity: dict[str, Any]) -> str:
        """In which options another identity differs from this one, in words."""
        names = [n for n in identity if self.identity.get(n) != identity[n]]
        return ", ".join(f"{n}={self.identity.get(n)!r}, not {identity[n]!r}" for n in names)


def parse_new(found: Mapping[str, Any], num_envs: int) -> NewWindows:
    """What `NewWindows.as_json` gave, or a ``KeyError`` or ``ValueError``."""
    returned = found.get("returned", [])  # before version 0.1.0 there were none
    count = len(returned) if isinstance(returned, list) else 0
    new = NewWindows(
        numbers.integers("cursor", found["cursor"], num_envs, 0, numbers.MOST_ROWS),
        numbers.integers("returned", returned, count, 0, np.iinfo(np.int64).max),
    )
    rows, envs = np.divmod(new.returned, num_envs)
    if (rows >= new.cursor[envs]).any() or len(set(returned)) < count:
        raise ValueError("returned: anchors before the cursor expected, each of them once")
    return new


def _parsed_rng(found: Any) -> tuple[np.random.BitGenerator, np.ndarray]:
    try:
        return parse_rng(found)
    except FormatError as error:
        raise ValueError(str(error)) from error


def _under_way(found: Any) -> tuple[int, int, float | None] | None:
    if found is None:
        return None
    depth, size, beta = found
    return (
        numbers.integer("depth", depth, 1, 1024),
        numbers.integer("batch_size", size, 1, 1 << 30),
        None if beta is None else numbers.real("beta", beta, 0, sys.float_info.max),
    )
