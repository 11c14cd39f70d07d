"""What owns a store: its path, lock and process; its life from opening to closing; checkpoints."""

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from diskreplay import extensions, fork, given_numbers, letting_go, signals, validation
from diskreplay.call_guard import CallGuard
from diskreplay.checkpoint_loader import Attached, CheckpointLoader
from diskreplay.checkpoint_saver import CheckpointSaver
from diskreplay.closing import Closing
from diskreplay.errors import (
    CorruptSegmentError,
    FormatError,
    InvalidInputError,
    StorageError,
    StoreMovedError,
)
from diskreplay.indexed_store import IndexedStore
from diskreplay.metadata import checked as checked_metadata
from diskreplay.metadata import parse as parse_metadata
from diskreplay.metadata import warn_of_damage
from diskreplay.prefetchers import Prefetchers
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sequence_state import SequenceState
from diskreplay.sequence_view import Views
from diskreplay.store import attachments as attaching
from diskreplay.store import checkpoint_names, generation, loading, priorities, tempfiles, temporary
from diskreplay.store.listing import Checkpoint
from diskreplay.store.open_store import LET_GO
from diskreplay.store.paths import is_remote, resolved
from diskreplay.store.store import Store
from diskreplay.store_kind import StoreKind, saved_rng

_KEPT = ("alpha", "beta", "weight_normalization", "largest_priority", *generation.KEYS)
_MOST_ROWS = 1 << 36  # 16 bytes of memory each: more is a slip of the finger


class Session(CallGuard, Closing):
    """What owns a store, from its opening to its closing.

    Public calls ask first whether they may, have drawn what prefetchers asked for, and take
    the lock. In a forked child the lock may be held for ever, so nothing takes it there.
    """

    def __init__(
        self,
        kind: StoreKind,
        path: str | os.PathLike[str] | None,
        *,
        capacity: int | None,
        segment_rows: int | None,
        env_group: int | None,
        seed: int | np.random.Generator | None,
        name: str,
        shrink: bool,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        self._closed = True  # until there is something to close
        self._metadata = given = checked_metadata(metadata or {})
        capacity = given_numbers.whole("capacity", capacity, optional=True, most=_MOST_ROWS)
        segment_rows = given_numbers.whole("segment_rows", segment_rows, optional=True)
        env_group = given_numbers.whole("env_group", env_group, optional=True)
        kind.check_capacity(capacity)
        name = checkpoint_names.checked_suffix(name)
        rng = ReplayableRng(validation.generator(seed))  # a Generator passes as it is
        workspace = None
        if path is None:
            path = temporary.store_in(workspace := temporary.make())
        path = resolved(path)
        self._set(kind, path, name, rng, workspace)
        store = None
        try:
            Store.sweep(path)
            if reopened := Store.is_at(path):
                store = Store.open(
                    path, mode="a", capacity=capacity, shrink=bool(shrink),
                    check=kind.check,  # first: to let rows go is no answer to a wrong path
                )  # fmt: skip
                kind.check_opened(store)
                if not shrink:
                    kind.check_transitions(store)
                if lacking := kind.schema.lacking(store):
                    meta = {"extras": kind.describe()["extras"]}
                    store = loading.extend(store, lacking, meta)
            else:
                store = Store.create(
                    path, kind.schema.fields, num_envs=self.num_envs, capacity=capacity,
                    segment_rows=segment_rows, env_group=env_group, meta=self._meta(),
                )  # fmt: skip
            self._start(store, keep_rng=not reopened or isinstance(seed, np.random.Generator))
            self._metadata = checked_metadata(self._metadata | given)
            options = self._options_meta().items() if reopened else ()
            if store.is_resized or any(store.meta.get(k) != v for k, v in options):
                with self._lock:  # rows of actors may be taken by now
                    self._record()  # readers should not see the options of another run
                store.tell_readers()
        except BaseException:
            if not self._closed:  # it had begun, and rows of actors may be taken by now
                with self._lock:
                    self._shut()
            elif store is not None:
                store.close()
            if workspace is not None:
                workspace.remove()
            raise

    @classmethod
    def _over(cls, store: Store, kind: StoreKind, rng: np.random.Generator | None) -> Self:
        """One over a store whose attributes say everything but, if `rng` is given, that."""
        self = cls.__new__(cls)
        self._closed, self._metadata = True, {}
        own = ReplayableRng(np.random.default_rng() if rng is None else rng)
        self._set(kind, store.path, "replay", own, None)
        self._start(store, keep_rng=rng is not None)
        return self

    def _set(
        self, kind: StoreKind, path: Path, name: str, rng: ReplayableRng,
        workspace: tempfiles.Workspace | None,
    ) -> None:  # fmt: skip
        self._kind, self.path, self.name, self._rng = kind, path, name, rng
        self._distribution = kind.distribution
        self._workspace, self._pid, self._saver = workspace, fork.pid, None
        self._guard_calls()
        self._prefetchers, self._views = Prefetchers(self._lock, rng), Views()
        self.num_envs, self.stack_size, self.stack_padding = kind.options[:3]
        self.update_horizon, self.gamma, self.batch_size = kind.options[3:6]

    def _start(self, store: Store, *, keep_rng: bool) -> None:
        """Take over a store that was opened, its episodes being over."""
        warn_of_damage(store.path, store.meta, stacklevel=4)
        self._holder: list[Store] = []
        self._take_over(self._attach(store, keep_rng=keep_rng))
        if store.mode != "r" and store.count.any():
            self._kind.complete(self._rows)
        self._closed = False
        # A dropped buffer lets go of its store as a killed process would: the next opening recovers
        # it. At exit the maintenance thread can still be joined here; in a __del__ it cannot.
        self._release = weakref.finalize(
            self, letting_go.let_go, self._holder, self._workspace, fork.pid, self._lock
        )

    def _attach(
        self, store: Store, *, keep_rng: bool = False, resume_episodes: bool | None = None
    ) -> Attached:
        """What this will have of a store that was opened. Changes nothing of this.

        Raises
        ------
        CorruptSegmentError, FormatError
            What is on disk cannot be.
        """
        rows = self._kind.attach(store, resume_episodes=resume_episodes)
        metadata = parse_metadata(store.meta)[0] if "metadata" in store.meta else None
        return Attached(rows, None if keep_rng else saved_rng(store), metadata)

    def _take_over(self, attached: Attached) -> None:
        """Take over what was attached. Cannot fail."""
        self._rows = attached.rows
        self._holder[:] = [attached.rows.store]
        attached.rows.store.maintenance.busy = self._busy
        if attached.metadata is not None:
            self._metadata = attached.metadata
        if attached.rng is not None:
            self._rng.adopt(*attached.rng)

    def _follow(self) -> None:
        """For a reader: take over what the writer did since. Needs the lock."""
        store, follower = self._rows.store, self._rows.store.follower
        if store.mode != "r":
            if store.mode == LET_GO and not self._closed:
                self._refuse_late()
            return
        if not follower.is_over():
            try:
                return self._rows.follow()
            except StoreMovedError:
                if not follower.is_over():  # meanwhile
                    raise
            except (StorageError, CorruptSegmentError, FormatError):
                # It may have been of a file that a smaller capacity does without.
                if not (follower.follows and follower.outdated()):
                    raise
        newer = Store.open(self.path, mode="r")
        try:
            attached = self._attach(newer, keep_rng=True)
        except BaseException:
            newer.close()
            raise
        self._take_over(attached)
        store.close()
        self._rows.know_bounds()

    def _current(self) -> IndexedStore:
        """The rows as they are now, of a reader as its writer has them. Needs the lock."""
        if self._closed or fork.pid != self._pid:  # calls only where there is something to do
            self._check_open()
        if self._rows.store.mode != "a":
            self._follow()
        return self._rows

    def _meta(self, states: dict[str, SequenceState] | None = None) -> dict[str, Any]:
        """What the group's attributes hold besides the store's own; `states` are those of the
        views."""
        rows = getattr(self, "_rows", None)  # None: the store is being created
        before = rows.store.meta if rows else {generation.KEY: generation.first()}
        return {
            # Of a prioritized buffer that had the store before: its priorities are still there.
            **{name: before[name] for name in _KEPT if name in before},
            **self._options_meta(),
            "rng": self._prefetchers.rng_state(),
            **self._kind.state(rows),
            **self._views.describe(states or {}, before),
        }

    def _options_meta(self) -> dict[str, Any]:
        """Of `_meta`, what does not change while this is open."""
        return {**self._kind.describe(), "metadata": self._metadata}

    def _record(self, **how: bool) -> None:
        """Make everything durable. Needs the lock."""
        states = self._views.states(self._rows)
        self._rows.store.record(self._meta(states), self._leaves(states), **how)

    def _leaves(self, states: dict[str, SequenceState]) -> priorities.Sets:
        """The priorities to be saved: those of the buffer and those of views."""
        own = self._kind.unsaved(self._rows)
        main = {} if own is None else {priorities.MAIN: own}
        return main | self._views.leaves(states)

    # -- the disk

    def flush(self) -> None:
        """Make everything durable, also against a power cut, and visible to any Zarr reader.

        Where there are actors, the rows that they have added are taken first. Costs a sync of what
        is new, and for a prioritized buffer 8 bytes a row.
        """
        self._take_waiting()
        with self._turn_when_drawn():
            self._check_writable()
            self._record()

    def close(self) -> None:
        """Flush and release the store. A temporary store is removed. Closing twice is fine.

        Where there are actors, their `add` is refused from then on with a `ClosedError`. What they
        have added before is taken.

        Raises
        ------
        StoreMovedError
            The store's directory was moved or deleted. It was released all the same, and opening it
            where it is now gives all rows; a power cut may take those since the last flush.
        StorageError
            The flush failed, on a full disk say. Nothing was released: close it again.
        """
        if getattr(self, "_closed", True):
            return
        if fork.pid != self._pid:
            self._closed = True  # a child's copy: the store is the parent's
            return
        if self._rows.store.mode == LET_GO:
            self._closed = True
            if self.mode != "r":  # what close would have made durable was not
                self._refuse_late()
            return
        self._turn()  # first: what is refused leaves actors and their thread as they are
        self._refuse_more()
        if self._saver is not None:
            self._saver.close()
        self._views.close()
        self._prefetchers.close()
        with self._turn():
            if self._closed:  # meanwhile
                return
            store = self._rows.store
            with signals.undisturbed():  # else it stays locked, or gets rows that nobody finds
                try:
                    if store.mode != "r" and self._workspace is None:
                        self._record(closing=True)
                        store.mark_closed()
                except StoreMovedError:  # nothing can be done about it here: let go of all
                    self._shut()
                    raise
                self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._release()

    def save(
        self,
        checkpoint_dir: str | os.PathLike[str],
        iteration_number: int | str,
        *,
        attachments: "Mapping[str, attaching.Source] | None" = None,
        keep: int | None = checkpoint_names.CHECKPOINT_DURATION,
        wait: bool = True,
    ) -> Path:
        """Write a checkpoint ``<checkpoint_dir>/<name>_ckpt.<iteration_number>``.

        Parameters
        ----------
        checkpoint_dir : path, or URL of an object store
            Created if it is missing; not inside the store. Or ``s3://bucket/run``: see `remote`.
        iteration_number : int or str
            The suffix: a number from 0 on, or letters, digits, ``.``, ``_`` and ``-``. A checkpoint
            of the same suffix is replaced.
        attachments : dict of str to bytes, Path or function, optional
            Files that belong to these rows, by the names they get: ``"agent.pt"``,
            ``"nets/critic.pt"``. Bytes are written, the file at a Path is copied, and a function
            is called with the Path to write to: ``lambda path: torch.save(state, path)``.
        keep : int or None
            So many checkpoints of the highest numbers are kept, and the one just written; None
            keeps all. Those with a text for a suffix are always kept.
        wait : bool
            Of a URL: until it is published; else a thread does that, and `save_status` tells.

        Returns
        -------
        Path
            The checkpoint's directory, without links; for a URL, of a copy beside the store.

        Raises
        ------
        SuffixError, InvalidInputError
        AttachmentError
            A function raised (that is its ``__cause__``), or wrote something else than one file.
        StorageError
            It cannot be written, or is full (for a function too). In all these cases there is no
            new checkpoint, and one of that suffix is as it was.
        RemoteError
            It was not published. Without `wait` the next save may raise it.

        Warns
        -----
        RuntimeWarning
            It is saved, but older ones beyond `keep` could not be removed.

        Notes
        -----
        Full segments are hard-linked, so the cost follows the rows since the last full one; nothing
        that happens later changes the checkpoint. It is there whole, with its attachments, or not
        at all, also after a power cut. After one the checkpoint has rows that the live store may
        have lost, of which only the full segments and small fields are synced here: `load` it, or
        call `flush` too.

        Attachments are written first, one after the other, on this thread and without the buffer's
        lock: a function may take its time and may use the buffer. The rows are those of the moment
        after the last one, when the lock is taken; other threads may add until then. Batches under
        way in a prefetcher are drawn again, see `prefetch`.
        """
        self._check_writable()
        if is_remote(checkpoint_dir):
            saver = self._remote_saver()
            return saver.save(checkpoint_dir, iteration_number, attachments, keep, wait)
        directory = resolved(checkpoint_dir, "checkpoint_dir")
        keep, wanted = checkpoint_names.checked_keep(keep), attaching.checked(attachments)
        return CheckpointSaver(self).save(directory, iteration_number, wanted, keep)

    def load(
        self,
        checkpoint_dir: str | os.PathLike[str],
        suffix: int | str | None = None,
        *,
        resume_episodes: bool = False,
    ) -> Checkpoint:
        """Go back to a checkpoint; all or nothing.

        Parameters
        ----------
        checkpoint_dir : path, or URL of an object store
            What `save` was given. Or the path of one checkpoint, without a suffix.
        suffix : int or str, optional
            Default: the highest number there.
        resume_episodes : bool
            Go on with the episodes that were open, for environments that restore their own state;
            a recorder needs `resume` with the observation that is due. Otherwise they are over, and
            rows whose n-step window is not whole are not sampled.

        Returns
        -------
        Checkpoint
            Which one it was: its `number`, `path`, `saved_at`, and its `attachments` as a dict of
            names to Paths, each of them held against its checksum before anything was changed.

        Raises
        ------
        CheckpointNotFoundError
            There is none (a ``FileNotFoundError``).
        IncompleteCheckpointError
            A file of it is missing (a ``FileNotFoundError``).
        CorruptCheckpointError, CorruptSegmentError, FormatError
            It is damaged.
        SchemaError
            It holds other fields.
        StorageError
            The disk is full, or refused something. In all these cases the buffer stays as it was.

        Warns
        -----
        RuntimeWarning
            It is loaded, but the disk does not say that this outlasts a power cut.

        Notes
        -----
        Where there is none but one of ReAgent or Dopamine (``add_count_ckpt.7.gz``, ...), that is
        converted and loaded, see `convert.gz_checkpoint.read`; its stack size has to be this one's.

        The rows of the live store are replaced, and row numbers go back: ids handed out since the
        save are void. The generator, priorities and counts are those of the save, so the next batch
        is bit for bit the one that the saved run drew next; what it had under way in a prefetcher
        comes from one again, see `prefetch`. With another capacity the newest rows are kept.

        Every file is read and held against its checksum first, but packed frames, whose blocks are
        checked whenever they are read: half a second a gigabyte of raw fields that are in memory.
        While the new store is made there are two row indices (16 bytes a row) and two sum trees.
        """
        if is_remote(checkpoint_dir):
            return self._remote_saver().load(checkpoint_dir, suffix, resume_episodes)
        directory = resolved(checkpoint_dir, "checkpoint_dir")
        with self._turn_when_drawn():  # or a union's draws are of no row
            self._check_writable()
            return CheckpointLoader(self).load(directory, suffix, resume_episodes=resume_episodes)

    def save_status(self) -> Any:
        """How far the last `save` to a URL is, a `remote.saver.SaveStatus`; None without one."""
        return None if self._saver is None else self._saver.status()

    def _remote_saver(self) -> Any:
        self._check_writable()
        self._saver = self._saver or extensions.find("remote_saver")(self)
        return self._saver

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidInputError(
            "a buffer cannot be pickled or copied; pass its path and open it there with "
            'diskreplay.open(path, mode="r")'
        )
