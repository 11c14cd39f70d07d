"""Values that are written again to rows that are there: recurrent states, latents."""

import numpy as np

from diskreplay import validation
from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError
from diskreplay.row_reader import RowReader


class MutableFields(RowReader):
    """A session whose extras may be declared mutable; see `ReplayBuffer`."""

    def write(self, field: str, ids: np.ndarray, values: np.ndarray) -> int:
        """Replace the values of a mutable extra in rows that are there.

        For what a learner works out anew and wants to find in later samples: recurrent states
        (Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning",
        2019), latents of a world model.

        Parameters
        ----------
        field : str
            An extra that was declared as ``(shape, dtype, "mutable")``.
        ids : array_like of int, shape (rows,)
            As in ``batch.id``, of any transitions, whether they can be sampled or not; of
            duplicates the last counts.
        values : array_like, shape (rows, *shape)
            Cast as by `add`.

        Returns
        -------
        int
            How many rows were ignored: evicted since, or final.

        Raises
        ------
        InvalidInputError
            There is no such extra, or it is not mutable.
        UnknownIdError, ShapeError, DtypeError
            Nothing was changed.
        DiskFullError
            A file that a checkpoint shares could not be copied. Nothing was changed.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        A copy of the values, which a kill after this call does not take; a power cut may take those
        since the last `flush`. Checkpoints never change: the first value in a file that
        one shares costs a copy of that file, 2 MiB. Batches that were drawn before have the
        old values, those of a prefetcher too; this waits until they are read. A reader in another
        process sees new values at once, and may see a row half written.
        """
        self._check_writable()
        spec = self._kind.schema.extras.get(field) if isinstance(field, str) else None
        if spec is None or not spec.mutable:
            there = [name for name, f in self._kind.schema.extras.items() if f.mutable]
            raise InvalidInputError(
                f"field: {brief(field)} is no mutable extra; there are: "
                f"{', '.join(there) or 'none at all'}. Declare it as (shape, dtype, 'mutable') "
                "when the store is made"
            )
        ids = validation.checked_ids(ids)
        fitted = np.asarray(validation.fit(spec, values, ids.shape))
        with self._turn_when_drawn():
            self._check_writable()
            rows = self._rows.indexed()
            assert rows.index is not None
            kept = rows.index.holds_transitions(ids)
            if not kept.all():
                ids, fitted = ids[kept], fitted[kept]
            if len(ids):
                rows.store.writer.overwrite(field, ids, np.ascontiguousarray(fitted))
        return int(np.count_nonzero(~kept))
