"""diskreplay: an experience replay buffer whose home is the disk.

Make a buffer, add steps, draw batches:

    import gymnasium
    import diskreplay

    env = gymnasium.make("CartPole-v1")
    buffer = diskreplay.PrioritizedReplayBuffer(
        "runs/cartpole/replay",             # a directory: created, or opened again
        observation_space=env.observation_space,
        action_space=env.action_space,
        capacity=100_000,
    )
    observation, info = env.reset(seed=0)
    for step in range(200):
        action = env.action_space.sample()
        following, reward, terminated, truncated, info = env.step(action)
        buffer.add(observation, action, reward, terminated, truncated, following)
        observation = following
        if terminated or truncated:
            observation, info = env.reset()
    batch = buffer.sample(32)               # batch.observation, .action, .reward, ...
    buffer.update_priorities(batch.id, abs(batch.reward))
    buffer.save("runs/cartpole/checkpoints", 200)
    buffer.close()

The names that most programs need:

`ReplayBuffer`, `PrioritizedReplayBuffer`
    Record steps, draw transitions uniformly or by priority, save and load.
`Batch`
    What `sample` returns; ``batch.to_torch(device)`` makes tensors of it.
`open`
    A buffer or a checkpoint by its path alone; to read, also while training writes.
`checkpoints`, `attachment`, `Checkpoint`
    What was saved in a directory, and the files that were saved with it.
`shared`
    One buffer for all who ask in this process, a notebook's cells say.
`Sequences`, `SequenceBatch`, `Hindsight`
    Windows of rows for recurrent learners, and goals that were reached; a buffer's methods
    `sequences` and `hindsight` make them.
`EnvWriter`
    What an actor in a process of its own adds steps with; a buffer's `env_writers` makes them.
`ReplayUnion`
    Several buffers, stores and checkpoints drawn from as one.
`Slots`
    Rows in numbered slots, for frameworks that choose the slot.
`DiskReplayError`
    The base of all errors. Each one's text says where, what was found, and what to do;
    ``help(diskreplay.errors)`` lists them, with causes and remedies.

Elsewhere: ``diskreplay.integrations`` has recorders for Gymnasium's environments and the buffers
of frameworks (torch, Stable-Baselines3, Tianshou, torchrl, CleanRL, DreamerV3, LeRobot);
``diskreplay.convert`` exports and imports; ``diskreplay.remote`` keeps checkpoints in object
stores; ``diskreplay.ray`` splits one buffer over machines; ``diskreplay.compat`` has the APIs of
older buffers. The command ``diskreplay --help`` looks into a store from the terminal.
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
    DisconnectedError,
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
    RateLimiterTimeout,
    ReadOnlyError,
    ReentryError,
    RemoteError,
    RemoteUnavailableError,
    RingFullError,
    RowsMissingError,
    SchemaError,
    ShapeError,
    ShardsLostError,
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
    from diskreplay.env_writer import EnvWriter
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
    from diskreplay.store.checkpoint_names import CHECKPOINT_DURATION
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
    "DisconnectedError",
    "DiskFullError",
    "DiskReplayError",
    "DtypeError",
    "EmptyBufferError",
    "EnvWriter",
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
    "RateLimiterTimeout",
    "ReadOnlyError",
    "ReentryError",
    "RemoteError",
    "RemoteUnavailableError",
    "ReplayBuffer",
    "ReplayUnion",
    "RingFullError",
    "RowsMissingError",
    "SchemaError",
    "SequenceBatch",
    "Sequences",
    "ShapeError",
    "ShardsLostError",
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
    "CHECKPOINT_DURATION": "store.checkpoint_names",
    "Checkpoint": "store.listing",
    "EnvWriter": "env_writer",
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
