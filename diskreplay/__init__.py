"""diskreplay: the replay store that long reinforcement-learning runs live on.

Layers, each using only those below it::

    cli/  __main__.py        the command ``diskreplay``
    compat/                  the APIs of five older buffers, on rows in slots
    convert/                 pandas, Parquet, Minari, checkpoints of ReAgent and Dopamine
    integrations/            Gymnasium recorders, torch data sets, SB3, Tianshou, torchrl, DreamerV3
    pictures/                contact sheets, animations, plots, the report
    remote/                  checkpoints in an object store
    inspection/              episodes and figures of the fields
    union.py                 several stores as one, for sampling
    union_state.py           what of it no member saves
    union_prefetchers.py     its prefetcher, which the members know of too
    union_members.py         its members at one moment
    union_options.py         what it was asked for
    union_member.py          transitions or windows of one of them
    joint_draw.py            what was drawn of several, and its batch
    opening.py               buffers and checkpoints by their path alone
    shared_buffer.py         one open buffer a process and path
    prioritized.py           PrioritizedReplayBuffer
    buffer.py                ReplayBuffer: add, clear, looking
    sequence_source.py       the calls that make the two views below
    hindsight.py             transitions with goals that were reached
    sequences.py             windows of rows, for recurrent learners
    sequence_hindsight.py    windows with such goals
    relabelling.py           which goals take the place of others
    transition_source.py     the calls that draw transitions
    row_buffer.py            rows recorded as they are
    mutable_fields.py        values that are written again
    slots.py                 rows in numbered slots, written in any order
    row_reader.py            rows read by id
    session.py               path, lock and process; flush, close, save, load
    call_guard.py            whether a call may begin
    checkpoint_loader.py     a checkpoint in the place of a live store
    checkpoint_saver.py      a checkpoint of a live store
    slot_table.py            which row is in which slot
    owned_store_kind.py      what a store holds for an API with its own rules
    sequence_view.py         one view of the rows as windows
    store_kind.py            what a store holds for a buffer, and what is saved with it
    prefetchers.py           those of one buffer
    prefetch.py              batches read ahead
    draw_source.py           whom a prefetcher draws from
    handover.py              from a batch that was read to what is taken
    distribution.py          how transitions are drawn
    statistics.py            figures of a buffer at one moment
    indexed_store.py         one store with its index, sampler and open episodes
    sequence_reader.py       from windows that were drawn to a batch
    sequence_options.py      what a view was asked for
    batch_reader.py          from what was drawn to a batch
    open_episodes.py         the episodes under way
    small_columns.py         steps, flags and rewards, as the index is told of them
    options.py               what makes a transition
    slot_fields.py           what rows in slots consist of
    validation.py            what comes in, checked and cast
    schema.py                which fields there are
    spaces.py                their leaves, and as JSON
    naming.py                which names extras and keys may have
    sequence_batch.py        what a batch of windows has
    sequence_state.py        what is saved of a view
    slot_view.py             an array of rows by slot, without memory
    batch.py  episodes.py  metadata.py
    check/                   verify and repair
    sampling/                row index, sum tree, samplers; knows nothing of files
    store/                   columns, segments, recovery, checkpoints; knows nothing of episodes
    errors.py  extensions.py  fork.py  signals.py  cache_line.py  jit.py

Importing this module loads the errors and no other package; what else it exports is loaded when it
is first named, and Numba and zarr when they are first used.
"""

__version__ = "0.1.0"

import importlib
from typing import TYPE_CHECKING, Any

from diskreplay import extensions
from diskreplay.errors import (
    AttachmentError,
    CapacityError,
    CheckpointError,
    CheckpointNotFoundError,
    ClosedError,
    CorruptCheckpointError,
    CorruptSegmentError,
    DiskFullError,
    DiskReplayError,
    DtypeError,
    EmptyBufferError,
    ExtrasError,
    ForkedError,
    FormatError,
    IncompleteCheckpointError,
    InvalidInputError,
    LockedError,
    NotFiniteError,
    NotSampleableError,
    PriorityError,
    ReadOnlyError,
    ReentryError,
    RemoteError,
    RemoteUnavailableError,
    SchemaError,
    ShapeError,
    StorageError,
    StoreError,
    StoreMovedError,
    StorePermissionError,
    SuffixError,
    TakenOverError,
    UnknownIdError,
    UnsupportedStoreError,
    UsageError,
)

if TYPE_CHECKING:
    from diskreplay.batch import Batch
    from diskreplay.buffer import ReplayBuffer
    from diskreplay.hindsight import Hindsight
    from diskreplay.opening import attachment, checkpoints, open
    from diskreplay.prioritized import PrioritizedReplayBuffer
    from diskreplay.sampling.sum_tree import SumTree
    from diskreplay.sequence_batch import SequenceBatch
    from diskreplay.sequences import Sequences
    from diskreplay.shared_buffer import SharedBuffer, shared
    from diskreplay.slot_view import SlotView
    from diskreplay.slots import Slots
    from diskreplay.statistics import Statistics
    from diskreplay.store.checkpoint import CHECKPOINT_DURATION
    from diskreplay.store.listing import Checkpoint
    from diskreplay.union import ReplayUnion

__all__ = [
    "CHECKPOINT_DURATION",
    "AttachmentError",
    "Batch",
    "CapacityError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ClosedError",
    "CorruptCheckpointError",
    "CorruptSegmentError",
    "DiskFullError",
    "DiskReplayError",
    "DtypeError",
    "EmptyBufferError",
    "ExtrasError",
    "ForkedError",
    "FormatError",
    "Hindsight",
    "IncompleteCheckpointError",
    "InvalidInputError",
    "LockedError",
    "NotFiniteError",
    "NotSampleableError",
    "PrioritizedReplayBuffer",
    "PriorityError",
    "ReadOnlyError",
    "ReentryError",
    "RemoteError",
    "RemoteUnavailableError",
    "ReplayBuffer",
    "ReplayUnion",
    "SchemaError",
    "SequenceBatch",
    "Sequences",
    "ShapeError",
    "SharedBuffer",
    "SlotView",
    "Slots",
    "Statistics",
    "StorageError",
    "StoreError",
    "StoreMovedError",
    "StorePermissionError",
    "SuffixError",
    "SumTree",
    "TakenOverError",
    "UnknownIdError",
    "UnsupportedStoreError",
    "UsageError",
    "attachment",
    "checkpoints",
    "open",
    "shared",
]

# The same as above. An interrupt while NumPy and Gymnasium are loaded, a third of a second, then
# finds the command line ready for it.
_HOMES = {
    "Batch": "batch",
    "CHECKPOINT_DURATION": "store.checkpoint",
    "Checkpoint": "store.listing",
    "PrioritizedReplayBuffer": "prioritized",
    "ReplayBuffer": "buffer",
    "ReplayUnion": "union",
    "SharedBuffer": "shared_buffer",
    "Hindsight": "hindsight",
    "SequenceBatch": "sequence_batch",
    "Sequences": "sequences",
    "SlotView": "slot_view",
    "Slots": "slots",
    "Statistics": "statistics",
    "SumTree": "sampling.sum_tree",
    "attachment": "opening",
    "checkpoints": "opening",
    "open": "opening",
    "shared": "shared_buffer",
}

# Who answers the calls of a buffer or a batch that need a layer above them.
extensions.register("episodes", "diskreplay.inspection.episodes:episodes_of")
extensions.register("export_gz", "diskreplay.convert.gz_checkpoint:write")
extensions.register("foreign_checkpoint", "diskreplay.convert.gz_checkpoint:find")
extensions.register("to_pandas", "diskreplay.convert.pandas:to_pandas")
extensions.register("to_jax", "diskreplay.integrations.jax:to_jax")
extensions.register("remote_saver", "diskreplay.remote.saver:RemoteSaver")
extensions.register("handovers_to", "diskreplay.integrations.torch:handovers_to")
extensions.register("to_torch", "diskreplay.integrations.torch:to_torch")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"diskreplay.{_HOMES[name]}"), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
