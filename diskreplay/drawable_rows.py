"""Rows with an index and a sampler, as whoever draws or looks them up sees them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay.batch_reader import BatchReader, DrawnBatch
from diskreplay.errors import NotSampleableError, UnknownIdError
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store

if TYPE_CHECKING:
    from diskreplay.sampling.row_index import RowIndex


class DrawableRows:
    """What is drawn from a store and found in it. All methods need the buffer's lock."""

    store: Store
    index: "RowIndex"
    sampler: Any
    _batch_reader: BatchReader

    def draw(self, rng: ReplayableRng, size: int, beta: float, guard: ReadGuard) -> DrawnBatch:
        """Draw transitions, and say what is to be read of them; `guard` holds it."""
        self._batch_reader.check_fits(size)
        rng.taken()
        ids, probability, weight = self.sampler.draw(rng, size, beta)
        plan = self.index.plan(ids)
        return self._drawn(ids, probability, weight, plan, rng.taken(), guard)

    def choose(self, ids: np.ndarray, guard: ReadGuard) -> DrawnBatch:
        """What is to be read of these transitions; `guard` holds it."""
        self.index.check_known(ids)
        plan = self.index.plan(ids)
        probability = self.sampler.probability(ids)
        return self._drawn(ids, probability, np.ones(len(ids), np.float32), plan, [], guard)

    def _drawn(
        self, ids: np.ndarray, probability: np.ndarray, weight: np.ndarray, plan: Any,
        numbers: list[np.ndarray], guard: ReadGuard,
    ) -> DrawnBatch:  # fmt: skip
        store = self.store  # under the buffer's lock: what was planned is not evicted
        store.rwlock.acquire_read(guard, store.follower)
        return DrawnBatch(ids, probability, weight, plan, store, guard, numbers, self._batch_reader)

    def prepare_to_save(self) -> None:
        """A save is about to ask for the priorities. This one needs no lock."""
        if (sampler := self.sampler) is not None:
            sampler.make_room()

    def retained(self, ids: np.ndarray) -> np.ndarray:
        """These ids, if all of these rows are there, or an `UnknownIdError` or a
        `NotSampleableError`; found out without the row index."""
        first, count, num_envs = self.store.first, self.store.count, self.store.num_envs
        if num_envs == 1 and ids.size and ids.max() < count[0]:
            low = ids.min()
            if low >= first[0] or (low < 0 and first[0] == 0):
                return ids  # by far the most common
        there = ids[ids >= 0]
        rows, envs = np.divmod(there, num_envs)
        if (rows >= count[envs]).any():
            at = int((rows >= count[envs]).argmax())
            raise UnknownIdError(
                f"id {there[at]} was never handed out: env {envs[at]} has {count[envs[at]]} rows; "
                "ids are row * num_envs + env, and count anew after a `load` or `clear`, also one "
                "by another process"
            )
        if (rows < first[envs]).any():
            at = int((rows < first[envs]).argmax())
            raise NotSampleableError(
                f"id {there[at]} is evicted: env {envs[at]} keeps rows from {first[envs[at]]} on"
            )
        return ids
