"""Rows that go into a new buffer: in pieces, from one or several sources, with their priorities."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.buffer_options import make_buffer
from diskreplay.convert.output import new_store
from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.prioritized import PrioritizedReplayBuffer

Progress = Callable[[int, int], None]


class Importer:
    """Rows on their way into a new buffer, env by env, in pieces. Call `progress` with how many
    rows were read since and how many there are.

    Where an env's rows do not follow the row before (another store's come next, or some left while
    they were read), the rows up to the next beginning of an episode are left out: their stacks
    would reach into an episode that is not theirs.
    """

    def __init__(self, buffer: ReplayBuffer, progress: Progress | None = None) -> None:
        self.buffer = buffer
        self.progress = progress or (lambda amount, total: None)
        self._priorities: list[tuple[np.ndarray, np.ndarray]] = []
        self._last: list[int | None] = [None] * buffer.num_envs
        self._fragment = [False] * buffer.num_envs
        self._episode: dict[int, int] = {}  # the newest one of each env, by its number there
        self.left_out = 0

    def next_source(self) -> None:
        """Whatever comes now follows nothing that is here."""
        # Also where the source before had no rows of an env: an older one may have.
        self._fragment = [
            fragment or last is not None
            for fragment, last in zip(self._fragment, self._last, strict=True)
        ]
        self._last = [None] * len(self._last)

    def add(
        self,
        env: int,
        rows: np.ndarray,
        columns: Mapping[str, np.ndarray],
        priorities: np.ndarray | None,
        begins: np.ndarray,
    ) -> np.ndarray:
        """Take in consecutive rows of one env, every field of them; returns their ids here, -1 for
        those left out.

        `rows` are their numbers in the source, and `priorities` are NaN where that has none.
        `begins` are rows that begin an episode though their steps count on, see
        `ReplayBuffer.begins`. An `InvalidInputError` if there is no such env; and errors of
        `ReplayBuffer.extend`.
        """
        ids = self._add(env, rows, columns, begins)
        self._remember(ids, priorities)
        return ids

    def _add(
        self,
        env: int,
        rows: np.ndarray,
        columns: Mapping[str, np.ndarray],
        begins: np.ndarray,
    ) -> np.ndarray:
        """The new ids; -1 for rows that are left out."""
        num_envs = self.buffer.num_envs
        if not 0 <= env < num_envs:
            raise InvalidInputError(f"env: 0 to {num_envs - 1} expected, found {env}")
        ids = np.full(len(rows), -1)
        if not len(rows):
            return ids
        last = self._last[env]
        breaks = np.diff(rows, prepend=rows[0] - 1 if last is None else last) != 1
        breaks[0] |= self._fragment[env]
        at = np.arange(len(rows))
        last_break = np.maximum.accumulate(np.where(breaks, at, -1))
        last_begin = np.maximum.accumulate(np.where(columns["step"] == 0, at, -1))
        kept = last_begin >= last_break
        self._last[env], self._fragment[env] = int(rows[-1]), not kept[-1]
        self.left_out += int(np.count_nonzero(~kept))
        there = np.flatnonzero(kept)
        starts = np.flatnonzero(begins[there])
        if kept.all() and not len(starts):
            return self.buffer.extend(columns, env=env)
        for part in np.split(there, starts):
            if len(part):
                if begins[part[0]]:
                    self.buffer.end_episode(np.arange(num_envs) == env)
                values = {name: column[part] for name, column in columns.items()}
                ids[part] = self.buffer.extend(values, env=env)
        return ids

    def add_mixed(
        self,
        env: np.ndarray,
        row: np.ndarray,
        columns: Mapping[str, np.ndarray],
        has_final: np.ndarray,
        finals: Mapping[str, np.ndarray],
        priorities: np.ndarray | None,
        episode: np.ndarray,
    ) -> None:
        """Take in rows of all envs with the final rows by their side, as `timeline.Chunk` has them:
        `finals` are those of the rows with `has_final`, in their order.

        `episode` says which one each row belongs to: a part of an episode that was given after
        another one counts on from it, and is an episode of its own all the same. A `FormatError` if
        `env`, `row` or `episode` are no whole numbers.
        """
        for name, numbers in (("env", env), ("row", row), ("episode", episode)):
            if numbers.dtype.kind not in "iu":
                raise FormatError(f"{name}: whole numbers expected, found {numbers.dtype}")
        ids = np.empty(len(env), np.int64)
        position = np.cumsum(has_final) - 1
        for each in np.unique(env).tolist():
            which = np.flatnonzero(env == each)
            ended = has_final[which]
            at = np.arange(len(which)) + np.cumsum(ended) - ended
            total = len(which) + int(np.count_nonzero(ended))
            final_at, final_of = at[ended] + 1, position[which[ended]]
            woven = {}
            for name, (shape, dtype) in self.buffer.fields.items():
                woven[name] = np.zeros((total, *shape), dtype)
                woven[name][at] = columns[name][which]
                if name in finals:
                    woven[name][final_at] = finals[name][final_of]
            woven["step"][final_at] = woven["step"][final_at - 1] + 1
            woven["is_final"][final_at] = True
            rows = np.empty(total, np.int64)
            rows[at] = row[which]
            rows[final_at] = rows[final_at - 1] + 1
            begins = np.zeros(total, np.bool_)
            begins[at] = self._begins(each, episode[which], columns["step"][which])
            ids[which] = self._add(each, rows, woven, begins)[at]
        self._remember(ids, priorities)

    def _begins(self, env: int, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Which rows begin an episode though their steps do not begin at 0."""
        before = np.concatenate([[self._episode.get(env, episode[0])], episode[:-1]])
        self._episode[env] = episode[-1]
        return (episode != before) & (step > 0)

    def warn_of_left_out(self, source: object) -> None:
        """Say how many rows of this source, the newest one, were left out, if any: what came back
        is a smaller buffer."""
        if self.left_out:
            left_out, self.left_out = self.left_out, 0
            warnings.warn(
                f"{source}: {left_out} row(s) left out: earlier rows of their episode are "
                "missing, evicted for example, so their frame stacks cannot be built",
                RuntimeWarning, stacklevel=5,
            )  # fmt: skip

    def _remember(self, ids: np.ndarray, priorities: np.ndarray | None) -> None:
        if priorities is None or not isinstance(self.buffer, PrioritizedReplayBuffer):
            return
        known = (ids >= 0) & ~np.isnan(priorities)
        self._priorities.append((ids[known], np.asarray(priorities, np.float64)[known]))

    def set_priorities(self, largest: float | None) -> None:
        """Set all that came; `largest` is the largest that the source has ever seen. At the end:
        only when all rows are there can the last ones be sampled."""
        if not isinstance(self.buffer, PrioritizedReplayBuffer):
            return
        if largest is not None:
            self.buffer.raise_largest_priority(largest)
        for ids, priorities in self._priorities:
            self.buffer.update_priorities(ids, priorities)


@contextlib.contextmanager
def importing(
    document: Mapping[str, Any],
    store_path: str | os.PathLike[str],
    source: object,
    *,
    overwrite: bool,
    progress: Progress | None,
    options: Mapping[str, Any],
) -> Iterator[Importer]:
    """A new store with the options that an export's description names, as `parse_description`
    returns it; there whole or not at all. A warning of rows that were left out names `source`."""
    with new_store(store_path, overwrite=overwrite) as beside:
        with make_buffer(document["buffer"], beside, **options) as buffer:
            importer = Importer(buffer, progress)
            yield importer
            importer.set_priorities(document["largest_priority"])
            importer.warn_of_left_out(source)
