"""Latents that are written again: which rows a write is about, and what each row has then."""

from __future__ import annotations

import content
import numpy as np

import diskreplay

SIZE = 64  # numbers of a latent, all of them the number of the write
EXTRA = {"latent": ((SIZE,), "int64", "mutable")}


def is_chosen(env: int, row: int, version: int) -> bool:
    """Whether a write is about a row: about a third of them."""
    return (row + env + version) % 3 == 0 and not content.is_final(env, row)


def write(buffer: diskreplay.ReplayBuffer, version: int, counts: list[int]) -> None:
    """Write to the rows that are there, of the first `counts` of each env: more may come
    meanwhile."""
    envs = buffer.num_envs
    ids = np.array([
        row * envs + env
        for env, first in enumerate(buffer.bounds[:, 0].tolist())
        for row in range(first, counts[env]) if is_chosen(env, row, version)
    ], np.int64)  # fmt: skip
    buffer.write("latent", ids, np.full((len(ids), SIZE), version))


class Latents:
    """What the rows of each env have. A row that was being written to may have some of both."""

    def __init__(self, num_envs: int) -> None:
        self._rows: list[list[int | np.ndarray]] = [[] for _ in range(num_envs)]

    def advance(self, counts: list[int] | tuple[int, ...]) -> None:
        """Rows up to these counts were added, with zeros."""
        for rows, count in zip(self._rows, counts, strict=True):
            rows += [0] * (count - len(rows))

    def written(self, version: int, counts: list[int] | tuple[int, ...]) -> None:
        """A write is done, to these rows."""
        for env, rows in enumerate(self._rows):
            for row in range(counts[env]):
                if is_chosen(env, row, version):
                    rows[row] = version

    def copy(self) -> Latents:
        other = Latents(0)
        other._rows = [list(rows) for rows in self._rows]
        return other

    def wrong(
        self,
        buffer: diskreplay.ReplayBuffer,
        begun: int | None = None,
        counts: tuple[int, ...] = (),
    ) -> list[str]:
        """What retained rows have that they should not have; of a write that was `begun`, to the
        first `counts` rows of each env, each has what was there or what was to be, and at most one
        of them some of both. What it left is known from here on."""
        found, mixed = [], 0
        for env, (first, count) in enumerate(buffer.bounds.tolist()):
            ids = np.arange(first, count) * buffer.num_envs + env
            latent = buffer.take("latent", ids)
            for row, there in zip(range(first, count), latent, strict=True):
                known = self._rows[env][row]
                if (there == known).all():
                    continue
                if begun is None or row >= counts[env] or not is_chosen(env, row, begun):
                    found.append(f"latent of env {env}, row {row}: {there[:4]}, {known} expected")
                    continue
                is_new = there == begun
                if not (is_new | (there == known)).all():
                    found.append(f"latent of env {env}, row {row}: {there[:4]}, nobody wrote that")
                mixed += not is_new.all()
                self._rows[env][row] = begun if is_new.all() else there
        if mixed > 1:
            found.append(f"{mixed} latents are half written")
        return found[:5]
