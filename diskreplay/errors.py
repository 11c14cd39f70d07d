"""Every error that diskreplay raises of its own accord.

::

    DiskReplayError
    ├── InvalidInputError (ValueError)     an argument; nothing was changed
    │   ├── ShapeError                     an array of the wrong shape
    │   ├── DtypeError (TypeError)         a dtype that cannot be cast without loss
    │   ├── NotFiniteError                 a NaN or infinite reward
    │   ├── ExtrasError                    an unknown or a missing extra
    │   ├── PriorityError                  a NaN, infinite or negative priority
    │   ├── UnknownIdError                 an id that was never handed out
    │   ├── NotSampleableError             a row that is no complete, retained transition
    │   ├── CapacityError                  a capacity that holds no transition, or not all rows
    │   └── SuffixError                    a checkpoint suffix that is no plain name
    ├── EmptyBufferError                   nothing can be sampled (yet)
    ├── StoreError                         the directory as a whole
    │   ├── FormatError                    no store, a damaged one, or one of a newer format
    │   ├── SchemaError (ValueError)       a store that holds other fields
    │   ├── LockedError                    another writer holds it
    │   └── CorruptSegmentError            bytes that do not match their checksum
    ├── CheckpointError
    │   ├── CheckpointNotFoundError (FileNotFoundError)
    │   ├── AttachmentError                a file that could not be saved with the rows
    │   └── CorruptCheckpointError         a file is short or rotten
    │       └── IncompleteCheckpointError (FileNotFoundError)   a file is missing
    ├── UsageError (RuntimeError)          a call that this object does not take now
    │   ├── ClosedError                    after close()
    │   ├── ReadOnlyError                  on a buffer opened with mode="r"
    │   ├── ForkedError                    in a child process of the one that opened it
    │   └── ReentryError                   amid another call of the same thread (signal handlers)
    └── StorageError (OSError)             the operating system refused; errno says why
        ├── DiskFullError                  ENOSPC or EDQUOT
        ├── StoreMovedError                the open store's directory is not at its path any more
        ├── StorePermissionError (PermissionError)
        └── RemoteError                    an object store refused
            ├── RemoteUnavailableError     it does not answer, or not sensibly; try again later
            ├── TakenOverError             another run publishes there
            └── UnsupportedStoreError      it lacks a promise that checkpoints need

A message says where, what was found, what was expected and what to do next.
"""


class DiskReplayError(Exception):
    """Base of all of them."""


class InvalidInputError(DiskReplayError, ValueError):
    """An argument was refused; nothing was changed."""


class ShapeError(InvalidInputError):
    """An array has the wrong shape."""


class DtypeError(InvalidInputError, TypeError):
    """A dtype or value cannot be cast to its field's dtype without loss."""


class NotFiniteError(InvalidInputError):
    """A reward is NaN or infinite."""


class ExtrasError(InvalidInputError):
    """An extra field is unknown, missing or badly named."""


class PriorityError(InvalidInputError):
    """A priority is NaN, infinite or negative."""


class UnknownIdError(InvalidInputError):
    """An id was never handed out."""


class NotSampleableError(InvalidInputError):
    """A row is pending, cut, final or evicted: it is no transition one could train on."""


class CapacityError(InvalidInputError):
    """The capacity cannot hold one whole transition for each env, or the rows that are there."""


class SuffixError(InvalidInputError):
    """A checkpoint suffix is not a plain name."""


class EmptyBufferError(DiskReplayError):
    """Nothing can be sampled (yet)."""


class StoreError(DiskReplayError):
    """A store directory cannot be used as asked."""


class FormatError(StoreError):
    """The directory is no diskreplay store, or is damaged, or of a newer format."""


class SchemaError(StoreError, ValueError):
    """The store holds other fields than those asked for."""


class LockedError(StoreError):
    """Another writer holds the store."""


class CorruptSegmentError(StoreError):
    """Stored bytes do not match their checksum or cannot be decoded."""


class CheckpointError(DiskReplayError):
    """A checkpoint cannot be used."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no such checkpoint."""


class AttachmentError(CheckpointError):
    """A writer of an attachment raised, or did not write the one file that it should."""


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is short, rotten or (see the subclass) missing."""


class IncompleteCheckpointError(CorruptCheckpointError, FileNotFoundError):
    """A file of the checkpoint is missing."""


class UsageError(DiskReplayError, RuntimeError):
    """The object does not take this call now."""


class ClosedError(UsageError):
    """The buffer was closed."""


class ReadOnlyError(UsageError):
    """The buffer was opened for reading only."""


class ForkedError(UsageError):
    """A child process tried to write to its parent's buffer."""


class ReentryError(UsageError):
    """The buffer was called amid another call of the same thread: by a signal handler, a
    ``__del__`` or a callback. That other call is not harmed."""


class StorageError(DiskReplayError, OSError):
    """The operating system refused a file operation; ``errno`` says why."""

    def __str__(self) -> str:
        """The path and the message, as all other errors have them, and no ``[Errno 5]``."""
        if self.strerror is None or self.filename is None:
            return super().__str__()
        return f"{self.filename}: {self.strerror}"


class DiskFullError(StorageError):
    """The file system or the quota is full."""


class StoreMovedError(StorageError):
    """The directory of a store that is open was moved or deleted; what is at its path now was not
    touched."""


class StorePermissionError(StorageError, PermissionError):
    """The directory or file cannot be written or read by this user."""


class RemoteError(StorageError):
    """An object store refused, or what it holds is not what was put there."""


class RemoteUnavailableError(RemoteError):
    """An object store did not answer, or broke off, again and again."""


class TakenOverError(RemoteError):
    """Another run publishes its checkpoints at this URL."""


class UnsupportedStoreError(RemoteError):
    """The object store does not refuse what a conditional request has to refuse."""
