"""Tianshou's replay buffers, with their larger arrays on disk.

    buffer = DiskVectorReplayBuffer(
        1_000_000, 8, path="runs/pong/replay", stack_num=4, ignore_obs_next=True,
        save_only_last_obs=True,
    )

Every one of these classes is Tianshou's own, which draws the same batches from the same numbers;
only where it has arrays there are `diskreplay.Slots`. ``docs/tianshou.md`` says what differs.
"""

from typing import Any

import numpy as np

from diskreplay.extensions import needed

with needed("diskreplay.integrations.tianshou needs Tianshou", "tianshou"):
    from tianshou.data import (
        CachedReplayBuffer,
        HERReplayBuffer,
        HERReplayBufferManager,
        HERVectorReplayBuffer,
        PrioritizedReplayBuffer,
        PrioritizedVectorReplayBuffer,
        ReplayBuffer,
        VectorReplayBuffer,
    )

from diskreplay.integrations.tianshou_disk import BufferOnDisk
from diskreplay.integrations.tianshou_leaves import LaneOnDisk


class DiskReplayBuffer(BufferOnDisk, LaneOnDisk, ReplayBuffer):
    """Tianshou's `ReplayBuffer` on disk.

    Parameters
    ----------
    *args
        Of `ReplayBuffer`: ``size``.
    path : path, optional
        The store's directory: made by the first `add`, or reopened: a run that goes on has its
        transitions again. None: a temporary one, which goes with the process.
    min_bytes : int
        Arrays of fewer bytes a transition are in memory, too. At least 2: flags always are.
    compressor : str or dict
        As for `diskreplay.ReplayBuffer`; a dict by the names of the arrays: ``"obs/camera"``.
    checkpoints : path, optional
        Where pickles keep their rows; default ``<path>.checkpoints``.
    keep : int or None
        So many of these checkpoints stay, the newest; None keeps all.
    pickle : {"reference", "embed"}
        Whether a pickle refers to a checkpoint, or has all rows in it. Without `path` it has them.
    next_of : bool
        Store a frame once that is ``obs_next`` of one transition and ``obs`` of the next. Where
        they differ, both are stored. Of arrays on disk; a store that exists is as it was made.
    stack : int or dict of str to int
        So many frames ``obs`` and ``obs_next`` have along their first axis, as environments with
        frame stacking give them. Each frame is stored once. A dict by the names of the arrays:
        ``{"obs/camera": 4}``.
    **options
        Of `ReplayBuffer`: ``stack_num``, ``ignore_obs_next``, ``save_only_last_obs``,
        ``sample_avail``, ``random_seed``.

    Raises
    ------
    InvalidInputError
        An option makes no sense.
    FormatError, SchemaError
        `path` holds something else, or a buffer of another size.
    LockedError
        Another process writes to it.
    """


class DiskPrioritizedReplayBuffer(BufferOnDisk, LaneOnDisk, PrioritizedReplayBuffer):
    """Tianshou's `PrioritizedReplayBuffer` on disk.

    Weights are saved by `flush`, `close` and `save`; after a kill, transitions that came later have
    the largest one.

    Parameters
    ----------
    *args
        Of `PrioritizedReplayBuffer`: ``size``, ``alpha``, ``beta``.
    path, min_bytes, compressor, checkpoints, keep, pickle, next_of, stack
        As for `DiskReplayBuffer`.
    **options
        Of `PrioritizedReplayBuffer`.
    """


class DiskVectorReplayBuffer(BufferOnDisk, VectorReplayBuffer):
    """Tianshou's `VectorReplayBuffer` on disk, a lane of the store for each of its buffers.

    Parameters
    ----------
    *args
        ``total_size``, ``buffer_num``.
    path, min_bytes, compressor, checkpoints, keep, pickle, next_of, stack
        As for `DiskReplayBuffer`.
    **options
        Of the buffers.
    """


class DiskPrioritizedVectorReplayBuffer(BufferOnDisk, PrioritizedVectorReplayBuffer):
    """Tianshou's `PrioritizedVectorReplayBuffer` on disk.

    Parameters
    ----------
    *args
        ``total_size``, ``buffer_num``.
    path, min_bytes, compressor, checkpoints, keep, pickle, next_of, stack
        As for `DiskReplayBuffer`; weights as for `DiskPrioritizedReplayBuffer`.
    **options
        Of the buffers: ``alpha``, ``beta``, ``stack_num``, ...
    """


class DiskCachedReplayBuffer(BufferOnDisk, CachedReplayBuffer):
    """Tianshou's `CachedReplayBuffer` on disk.

    Reopened, the episodes that were under way are over, and in the main buffer. A kill amid an
    `add` may leave an episode that ended in one of the two buffers, or in part; the next opening
    sees to the rest.

    Parameters
    ----------
    main_buffer : ReplayBuffer
        An empty one, of which the size and the options are taken; if it is a `DiskReplayBuffer`,
        those of the disk too, unless `path` is given here.
    cached_buffer_num, max_episode_length : int
    **disk
        ``path``, ``min_bytes``, ``compressor``, ``checkpoints``, ``keep``, ``pickle``, ``next_of``,
        ``stack``: as for `DiskReplayBuffer`.
    """

    def __init__(
        self,
        main_buffer: ReplayBuffer,
        cached_buffer_num: int,
        max_episode_length: int,
        **disk: Any,
    ) -> None:
        if isinstance(main_buffer, BufferOnDisk):
            assert len(main_buffer._meta.get_keys()) == 0, "main_buffer: an empty one expected"
            if disk.get("path") is None:
                disk = main_buffer._options._asdict()
            # Its rows are those of this one: one store has all.
            plain = ReplayBuffer(main_buffer.maxsize, **main_buffer.options)
            plain._random_state = main_buffer._random_state
            main_buffer = plain
        super().__init__(main_buffer, cached_buffer_num, max_episode_length, **disk)

    def _found(self) -> None:
        super()._found()
        for lane, cached in enumerate(self.cached_buffers, 1):
            if len(cached):
                self._move(lane, cached)

    def _move(self, lane: int, cached: ReplayBuffer) -> None:
        """Have an episode that is over in the main buffer, whatever of it is there already."""
        rows, names = self._there, list(self._there.names.values())
        episode = rows.slots.read(names, rows.order(lane))
        length, recent = len(cached), sum(len(each) for each in self.cached_buffers)
        there = rows.slots.read(names, rows.order(0)[-recent:])
        most = len(there[0])
        # Where it may be in the main buffer: whole among what came last, or begun at the end.
        places = [(start, length) for start in range(most - length + 1)]
        places += [(most - known, known) for known in range(min(length - 1, most), -1, -1)]
        known = next(
            known for start, known in places
            if all(
                np.array_equal(
                    part[:known], main[start : start + known], equal_nan=part.dtype.kind == "f"
                )
                for part, main in zip(episode, there, strict=True)
            )
        )  # fmt: skip
        main = self.main_buffer
        rest = rows.order(lane)[known:]
        if len(rest):
            at = (main._insertion_idx + np.arange(len(rest))) % main.maxsize
            main._size = min(main._size + len(rest), main.maxsize)
            with rows.adding():
                self._meta[at] = self._meta[rest]
            main.last_index[0] = at[-1]
            main._ep_start_idx = main._insertion_idx = int((at[-1] + 1) % main.maxsize)
        cached.reset()
        self._lengths[0], self._lengths[lane] = len(main), 0
        self.last_index[0], self.last_index[lane] = main.last_index[0], self._offset[lane]

    def _parts_changed(self) -> None:
        self.main_buffer, self.cached_buffers = self.buffers[0], self.buffers[1:]


class _Relabelling(HERReplayBuffer):
    """Goals that are written for one sample are shown, and are not in the store."""

    def rewrite_transitions(self, indices: np.ndarray) -> None:
        """As `HERReplayBuffer.rewrite_transitions`."""
        if not len(self._meta.get_keys()):
            super().rewrite_transitions(indices)
            return
        with self._meta._rows.put_aside():
            super().rewrite_transitions(indices)

    def _restore_cache(self) -> None:
        if not hasattr(self, "_altered_indices") or not len(self._meta.get_keys()):
            return
        with self._meta._rows.taken_back(self._meta._range):
            super()._restore_cache()


class DiskHERReplayBuffer(BufferOnDisk, LaneOnDisk, _Relabelling):
    """Tianshou's `HERReplayBuffer` on disk. Goals of a sample are relabelled in memory.

    Parameters
    ----------
    *args
        Of `HERReplayBuffer`: ``size``, ``compute_reward_fn``, ``horizon``, ``future_k``.
    path, min_bytes, compressor, checkpoints, keep, pickle, next_of, stack
        As for `DiskReplayBuffer`.
    **options
        Of `HERReplayBuffer`.
    """


class _RelabellingVector(HERVectorReplayBuffer):
    def __init__(self, total_size: int, buffer_num: int, **options: Any) -> None:
        assert buffer_num > 0
        size = int(np.ceil(total_size / buffer_num))
        parts: list[HERReplayBuffer] = [_Relabelling(size, **options) for _ in range(buffer_num)]
        HERReplayBufferManager.__init__(self, parts)


class DiskHERVectorReplayBuffer(BufferOnDisk, _RelabellingVector):
    """Tianshou's `HERVectorReplayBuffer` on disk. Goals of a sample are relabelled in memory.

    Parameters
    ----------
    *args
        ``total_size``, ``buffer_num``.
    path, min_bytes, compressor, checkpoints, keep, pickle, next_of, stack
        As for `DiskReplayBuffer`.
    **options
        Of the buffers: ``compute_reward_fn``, ``horizon``, ``future_k``, ``stack_num``, ...
    """

    def _parts_changed(self) -> None:
        for part in self.buffers:  # a file of HDF5 has Tianshou's own
            if type(part) is HERReplayBuffer:
                part.__class__ = _Relabelling


__all__ = [
    "DiskCachedReplayBuffer", "DiskHERReplayBuffer", "DiskHERVectorReplayBuffer",
    "DiskPrioritizedReplayBuffer", "DiskPrioritizedVectorReplayBuffer", "DiskReplayBuffer",
    "DiskVectorReplayBuffer",
]  # fmt: skip
