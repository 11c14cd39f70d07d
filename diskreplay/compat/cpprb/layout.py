"""Where the store keeps each column, and what goes there for a row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from diskreplay.compat.base import in_memory
from diskreplay.compat.cpprb.columns import NO_ACTION, NOTHING, Arrays, Column, Columns
from diskreplay.compat.cpprb.tracks import Take, Track
from diskreplay.naming import extra_name
from diskreplay.spaces import box

_LARGE = 1024  # bytes a row: smaller ones are not worth the bookkeeping of a `Track`


class Plain:
    """A column that is one field of the store, row by row."""

    def __init__(self, column: Column, native: str | None, taken: set[str]) -> None:
        self.column, self.slack = column, 0
        self.packed: list[str] = []
        self.outputs, self.frames = [column.name], native or extra_name(column.name, taken)
        spec = column.shape, column.dtype
        if not column.is_native:
            spec = (*column.shape, column.dtype.itemsize), np.dtype(np.uint8)
        self.extras = {} if native else {self.frames: spec}
        # The store's own scalars have no axis for their only number.
        self._scalar, self._shape = native in ("reward", "terminated"), spec[0]
        self.is_direct = column.is_native and not self._scalar

    def encode(self, values: np.ndarray) -> np.ndarray:
        """What to store for rows."""
        if not self.column.is_native:
            return np.frombuffer(values.tobytes(), np.uint8).reshape(-1, *self._shape)
        return values.reshape(-1) if self._scalar else values

    def encode_row(self, values: np.ndarray) -> Any:
        """What to store for one row, without a leading axis."""
        return values.item() if self._scalar else self.encode(values[None])[0]

    def decode(self, values: np.ndarray) -> np.ndarray:
        """The rows for which these values were stored."""
        if not self.column.is_native:
            return values.view(self.column.dtype)[..., 0]
        return values[:, None] if self._scalar else values


class Layout:
    """All columns of a buffer, and their fields in the store.

    ``obs``, ``act``, ``rew`` and ``done`` become the store's own fields where they can, so that
    whatever reads a store of diskreplay understands them; all else is an extra.

    Parameters
    ----------
    columns : Columns
    rows : int
        The buffer's capacity.
    next_of, stack_compress : sequence of str
        Columns to store in fewer bytes.
    """

    def __init__(
        self,
        columns: Columns,
        rows: int,
        next_of: Sequence[str] = (),
        stack_compress: Sequence[str] = (),
    ) -> None:
        self.columns = columns
        self.observation_space: spaces.Space[Any] = NOTHING
        self.action_space: spaces.Space[Any] = NO_ACTION
        self._plain: list[Plain] = []
        self._tracks: list[Track] = []
        taken: set[str] = set()
        for name in stack_compress:
            if name not in columns.by_name:
                raise KeyError(f"stack_compress: {name!r} is no column of {list(columns.by_name)}")
        linked = {f"next_{name}" for name in next_of if self._is_large(name)}
        for name, column in columns.by_name.items():
            if name in linked:
                continue
            stacked = name in stack_compress and self._is_large(name) and column.shape[-1] > 1
            if stacked or f"next_{name}" in linked:
                follows = f"next_{name}" in linked
                native = "observation" if name == "obs" and not follows else None
                part = Track(column, stacked=stacked, linked=follows, native=native, taken=taken)
                if native:
                    self.observation_space = box(column.shape[:-1], column.dtype)
                self._tracks.append(part)
            else:
                self._plain.append(Plain(column, self._native(column), taken))
        # Fields that are kept in memory too, by the ring's slots, and the most frames each may say.
        self.links = {field: track.depth for track in self._tracks for field in track.links}
        parts: list[Plain | Track] = [*self._plain, *self._tracks]
        # The field of each column; of the frames where only these are stored row by row.
        self.fields = {name: part.frames for part in parts for name in part.outputs}
        self.extras = {name: spec for part in parts for name, spec in part.extras.items()}
        # Rows that the ring keeps beyond the buffer's capacity.
        self.slack = max((track.slack for track in self._tracks), default=0)
        done = columns.by_name.get("done")
        # Of a `done` that is no bool, the store is told whether it is 0.
        self._says_done = (
            done is not None and done.shape == (1,) and "terminated" not in self.fields.values()
        )
        self._named = [(part.frames, part.column.name, part) for part in self._plain]
        # Columns of few bytes are kept in memory too: `small`, which may be all of them.
        small = in_memory({part.column.name: part.column.row_bytes for part in self._plain}, rows)
        self.small = [column for name, column in columns.by_name.items() if name in small]
        self._narrow = [part for part in self._plain if part.column.name in small]
        self._wide = [part for part in self._plain if part.column.name not in small]
        self.is_small = len(small) == len(columns.by_name)

    def _is_large(self, name: str) -> bool:
        column = self.columns.by_name[name]
        return column.row_bytes >= _LARGE and column.is_native and column.dtype.kind != "b"

    def _native(self, column: Column) -> str | None:
        """The store's own field for a column, if there is one that holds its values."""
        scalar = column.shape == (1,)
        if column.name == "rew" and scalar and column.dtype == np.float32:
            return "reward"
        if column.name == "done" and scalar and column.dtype == np.bool_:
            return "terminated"
        if column.name in ("obs", "act") and column.is_native and column.dtype.kind in "iuf":
            space = box(column.shape, column.dtype)
            if column.name == "obs":
                self.observation_space = space
                return "observation"
            self.action_space = space
            return "action"
        return None

    def compressors(self, chosen: str) -> dict[str, str]:
        """That of each field; what is zeros mostly is packed always."""
        fields = dict.fromkeys(["observation", "action", *self.extras], chosen)
        packed = [field for track in self._tracks for field in track.packed]
        return fields | dict.fromkeys(self.links, "auto") | dict.fromkeys(packed, "lz4")

    def forget(self) -> None:
        """The next row follows none."""
        for track in self._tracks:
            track.forget()

    def encode_row(self, row: Arrays) -> tuple[dict[str, Any], list[Any]]:
        """As `encode`, for one row without a leading axis: for `SlotBuffer.put`. Valid until the
        next call."""
        stored = {
            field: row[name] if part.is_direct else part.encode_row(row[name])
            for field, name, part in self._named
        }
        states = []
        for track in self._tracks:
            values, state = track.encode_row(row)
            stored.update(zip(track.stores, values, strict=True))
            states.append(state)
        if self._says_done:
            stored["terminated"] = row["done"].item() != 0
        return stored, states

    def encode(self, rows: Arrays) -> tuple[Arrays, list[Any]]:
        """Values for fields of the store, and the state to `keep` once they are there."""
        stored: Arrays = {}
        states = []
        for part in self._plain:
            stored[part.frames] = part.encode(rows[part.column.name])
        for track in self._tracks:
            values, state = track.encode(rows)
            stored.update(values)
            states.append(state)
        if self._says_done:
            stored["terminated"] = rows["done"].reshape(-1) != 0
        return stored, states

    def keep(self, states: Sequence[Any]) -> None:
        """The rows of which `encode` gave these states are stored."""
        for track, state in zip(self._tracks, states, strict=True):
            track.keep(state)

    def decode_small(self, take: Take, rows: np.ndarray) -> Arrays:
        """The `small` columns at rows."""
        return self._decode_plain(take, rows, self._narrow)

    def _decode_plain(self, take: Take, rows: np.ndarray, parts: list[Plain]) -> Arrays:
        stored = take([part.frames for part in parts], rows) if parts else []
        return {p.column.name: p.decode(values) for p, values in zip(parts, stored, strict=True)}

    def decode(self, take: Take, rows: np.ndarray, known: Arrays | None = None) -> Arrays:
        """All columns at rows of the store, in the order of `columns`; -1 for zeros.

        Parameters
        ----------
        take : callable
            As `SlotBuffer.take`.
        rows : ndarray of int64
        known : dict of str to ndarray, optional
            The `small` columns at these rows.
        """
        flat = rows.reshape(-1)
        found = self._decode_plain(take, flat, self._plain if known is None else self._wide)
        for track in self._tracks:
            found.update(track.decode(take, flat))
        if rows.ndim != 1:
            found = {n: v.reshape(*rows.shape, *v.shape[1:]) for n, v in found.items()}
        found.update(known or {})
        return {name: found[name] for name in self.columns.by_name}


def all_fields(
    stored: Arrays,
    fields: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    count: int,
    step: int,
) -> Arrays:
    """Every one of a ring's `fields` for rows that follow each other, from step number `step` on:
    zeros where the API has no column."""
    found = dict(stored)
    for field in ("observation", "action", "reward", "terminated"):
        if field not in found:
            shape, dtype = fields[field]
            found[field] = np.zeros((count, *shape), dtype)
    at = np.arange(count)
    # Steps since the last row after which an episode starts.
    starts = np.concatenate([[-step], np.where(found["terminated"][:-1], at[1:], -step)])
    found["step"] = (at - np.maximum.accumulate(starts)).astype(np.int32)
    found["truncated"] = found["is_final"] = np.zeros(count, np.bool_)
    return found
