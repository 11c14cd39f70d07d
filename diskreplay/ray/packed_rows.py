"""Rows of a field on their way from a writer to a shard: compressed, as the store has them."""

from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from diskreplay.store import codec
from diskreplay.store.field import Field


class PackedRows(NamedTuple):
    """Rows of a field, those of each env in blocks of its own.

    Always LZ4, also of a field that a store has in zstd: to compress frames of games and to
    decompress them takes less time than to copy them through Ray's memory, and a chunk is often so
    small then that Ray sends it with the call. A network has a small part to carry.

    Attributes
    ----------
    field : Field
        Which says how many rows a block has.
    data : ndarray of uint8
        The blocks, each with its CRC-32C behind it.
    lengths : ndarray of int64, shape (blocks,)
        Of each, in bytes.
    used : ndarray of int64, shape (blocks,)
        How many rows of each block count.
    """

    field: Field
    data: np.ndarray
    lengths: np.ndarray
    used: np.ndarray

    @classmethod
    def of(cls, field: Field, column: np.ndarray, filled: np.ndarray) -> Self:
        """The first ``filled[env]`` rows of each env.

        Parameters
        ----------
        field : Field
        column : ndarray, shape (num_envs, rows, *shape)
            C-contiguous.
        filled : ndarray of int64, shape (num_envs,)
        """
        field = replace(field, compressor="lz4")
        size, blocks = field.block_rows, -(-filled // field.block_rows)
        env = np.repeat(np.arange(len(filled)), blocks)
        start = size * (np.arange(len(env)) - np.repeat(np.cumsum(blocks) - blocks, blocks))
        used = np.minimum(filled[env] - start, size)
        sources = column.ctypes.data + field.row_bytes * (env * column.shape[1] + start)
        return cls(field, *codec.encode(field, sources, used), used)

    def unpacked(self) -> np.ndarray:
        """The rows of the first env, then those of the next one, and so on: (rows, *shape).

        Raises
        ------
        CorruptSegmentError
            They were damaged on the way.
        """
        out = np.empty((int(self.used.sum()), *self.field.shape), self.field.dtype)
        codec.decode(self.field, self.data, self.lengths, self.used, out)
        return out
