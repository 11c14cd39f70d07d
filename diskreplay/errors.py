"""Every error that diskreplay raises of its own accord.

Below each one: what it means, its cause, and its remedy. In brackets its second base, so that
``except ValueError`` works too.

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
    ├── ShardsLostError                    shards of a ShardedReplayBuffer do not answer
    ├── RowsMissingError                   rows follow some that a shard does not have
    ├── RateLimiterTimeout (TimeoutError)  the other side of a rate limiter did not come
    ├── RingFullError (TimeoutError)       nobody takes an actor's rows
    ├── UsageError (RuntimeError)          a call that this object does not take now
    │   ├── ClosedError                    after close()
    │   ├── ReadOnlyError                  on a buffer opened with mode="r"
    │   ├── ForkedError                    in a child process of the one that opened it
    │   ├── DisconnectedError              Ray was shut down since
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
    """Base of all errors that diskreplay raises of its own accord.

    Cause: One of the errors below; catch this one where all of them are to be treated alike.

    Remedy: Read the text: it says where, what was found, what was expected and what to do.
    """


class InvalidInputError(DiskReplayError, ValueError):
    """An argument was refused; nothing was changed.

    Cause: A value makes no sense: a negative `capacity`, a `gamma` above 1, an impossible name.

    Remedy: Give what the text says is expected, and make the call again.
    """


class ShapeError(InvalidInputError):
    """An array has the wrong shape.

    Cause: The array does not fit its space: a batch axis that is missing with several envs, or
    one too many with one env; a stack where one frame is expected; channels first and not last.

    Remedy: Compare the two shapes in the text. Give the space of one environment and one frame
    to the buffer, and one frame to `add`; with `num_envs` above 1 every argument of `add` has a
    leading axis.
    """


class DtypeError(InvalidInputError, TypeError):
    """A dtype or value cannot be cast to its field's dtype without loss.

    Cause: A float is given for an integer field, or an integer beyond the field's range.

    Remedy: Cast it yourself, or declare a wider dtype in the space or in `extras`.
    """


class NotFiniteError(InvalidInputError):
    """A reward is NaN or infinite.

    Cause: The environment, or code that scales rewards, divided by zero or overflowed.

    Remedy: Find the step that gives it: it would spoil each n-step return. Nothing was recorded.
    """


class ExtrasError(InvalidInputError):
    """An extra field is unknown, missing or badly named.

    Cause: `add` has to be given every extra that the buffer was made with, and no other one.

    Remedy: Name each extra in `extras={...}` when the buffer is made, and give its value with
    every step. A store that exists gets a further one by `new_extras`.
    """


class PriorityError(InvalidInputError):
    """A priority is NaN, infinite or negative.

    Cause: Most often a loss that has become NaN.

    Remedy: Look at the network before you look at the buffer. Take the absolute value, and add
    a small number so that no transition is lost for ever. No priority was changed.
    """


class UnknownIdError(InvalidInputError):
    """An id was never handed out.

    Cause: The id comes from another buffer, or from before a `clear` or a `load`.

    Remedy: Use ids of batches sampled from this buffer since its last `clear` or `load`.
    """


class NotSampleableError(InvalidInputError):
    """A row is pending, cut, final or evicted: it is no transition one could train on.

    Cause: `gather` was given the id of a row whose n-step window is not complete yet, that
    holds only the last observation of an episode, or that has left the capacity.

    Remedy: Gather ids that `sample` or `sampleable_ids` gave. `take` reads any retained row.
    """


class CapacityError(InvalidInputError):
    """The capacity cannot hold one whole transition for each env, or the rows that are there.

    Cause: `capacity` is smaller than a few rows for each env; or a store that has more rows is
    opened with a smaller one.

    Remedy: Raise it. `shrink=True` deletes the oldest rows of a store, for good.
    """


class SuffixError(InvalidInputError):
    """A checkpoint suffix is not a plain name.

    Cause: The number or name given to `save` or `load` has separators, dots in front, or other
    characters than letters, digits, dots, `_` and `-`.

    Remedy: Give a whole number, or a name of these characters.
    """


class EmptyBufferError(DiskReplayError):
    """Nothing can be sampled (yet).

    Cause: No transition is complete: with `update_horizon=n` the first one needs n steps and
    what follows; or all priorities are 0; or episodes were truncated without `next_observation`.

    Remedy: Sample when `len(buffer)` is above 0; give `next_observation` of truncated episodes.
    """


class ShardsLostError(DiskReplayError):
    """Shards of a `ShardedReplayBuffer` do not answer, or are without their disk.

    Cause: Their processes or nodes died, or Ray started a shard where its rows are not.

    Remedy: See `ray status` and `shards()`; start the node, or call `restore_shard`; call again.
    """

    is_recorded = True  # of ShardWriter.add: whether the writer has that step


class RowsMissingError(DiskReplayError):
    """Rows were sent that follow some which the shard does not have.

    Cause: A power cut took rows of the shard, or a checkpoint was loaded.

    Remedy: None is needed: a `ShardWriter` warns, and goes on behind the rows that there are.
    """


class RateLimiterTimeout(DiskReplayError, TimeoutError):
    """A rate limiter did not let a call pass in time: the other side did not come.

    Cause: The actors have ended or are slow, and a learner waits; or the other way round.

    Remedy: Call again to wait on; or give a larger `error_buffer` or `timeout`, or another ratio.
    """

    is_recorded = True  # of ShardWriter.add: whether the writer has that step


class RingFullError(DiskReplayError, TimeoutError):
    """An actor's row found no place for long, since no process takes rows from its ring.

    Cause: The process that had the buffer open has ended, and none has opened it again.

    Remedy: Start the learner again; what is in the ring is not lost. Or give a larger `timeout`.
    """


class StoreError(DiskReplayError):
    """A store directory cannot be used as asked.

    Cause: One of the errors below.

    Remedy: See these.
    """


class FormatError(StoreError):
    """The directory is no diskreplay store, or is damaged, or of a newer format.

    Cause: The path leads to something else, to the directory above or below the store; or its
    `zarr.json` is damaged; or a newer diskreplay wrote it.

    Remedy: `diskreplay info PATH` says what is there. If it is newer, upgrade. If `zarr.json` is
    damaged, restore it from a backup, or load the newest checkpoint into a new store.
    """


class SchemaError(StoreError, ValueError):
    """The store holds other fields than those asked for.

    Cause: The spaces, `num_envs` or `extras` differ from those the store was made with: a
    wrapper was added to the environment, or the path is that of another run.

    Remedy: Open it as it was made, or choose another directory. `diskreplay.open(PATH,
    mode="a")` needs no spaces; `new_extras` adds extras; `diskreplay convert` changes options.
    """


class LockedError(StoreError):
    """Another writer holds the store.

    Cause: A process that lives has the store open for writing: the text names it. A notebook that
    still holds a buffer counts, and so does this process. Or an export to this suffix is under way.

    Remedy: Close the other one, or open with `mode="r"` to read beside it. A killed writer
    leaves no lock behind. In one process `diskreplay.shared` gives each caller the same buffer.
    """


class CorruptSegmentError(StoreError):
    """Stored bytes do not match their checksum or cannot be decoded.

    Cause: The disk or the memory flipped bits, or somebody wrote into the file that is named.

    Remedy: `diskreplay verify PATH` lists all that is damaged, `--repair` sets these rows
    aside, and `--repair --from CHECKPOINT` takes them from a checkpoint. Check the disk.
    """


class CheckpointError(DiskReplayError):
    """A checkpoint cannot be used.

    Cause: One of the errors below.

    Remedy: See these.
    """


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no such checkpoint.

    Cause: The directory is empty or another one, or the buffer's `name` differs from that of
    the run which saved, or it was removed: `save` keeps the `keep` highest numbers (4).

    Remedy: `diskreplay checkpoints DIRECTORY` lists them. A new run catches this and begins at 0.
    """


class AttachmentError(CheckpointError):
    """A writer of an attachment raised, or did not write the one file that it should.

    Cause: The function given in `attachments` failed: its own error is the `__cause__`.

    Remedy: Mend the function: it has to leave one regular file at its path. Nothing was saved.
    """


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is short, rotten or (see the subclass) missing.

    Cause: The disk lost something, a copy was cut short, or somebody changed a file.

    Remedy: Load the one before: `diskreplay checkpoints DIRECTORY` says which are whole, and
    `diskreplay verify CHECKPOINT` names damaged files. The buffer is as it was.
    """


class IncompleteCheckpointError(CorruptCheckpointError, FileNotFoundError):
    """A file of the checkpoint is missing.

    Cause: A copy of the directory was not finished, or a file was deleted.

    Remedy: Copy it again, whole, or load the one before.
    """


class UsageError(DiskReplayError, RuntimeError):
    """The object does not take this call now.

    Cause: One of the errors below; or what the text says.

    Remedy: Do first what the text asks for.
    """


class ClosedError(UsageError):
    """The buffer was closed.

    Cause: `close` was called, or the `with` block was left; a prefetcher and a view are closed
    with their buffer.

    Remedy: Open it again: `diskreplay.open(PATH)`, or the constructor with the same path.
    """


class ReadOnlyError(UsageError):
    """The buffer was opened for reading only.

    Cause: `add`, `update_priorities`, `load` or another call that writes, on a buffer of
    `mode="r"`, which is the default of `diskreplay.open`.

    Remedy: Open it with `mode="a"` or by the constructor; only one process can.
    """


class ForkedError(UsageError):
    """A child process used its parent's buffer, or asked an object store as its parent had.

    Cause: The process was forked after the buffer was opened, or after an object store was asked:
    workers of a data loader, `multiprocessing` on Linux.

    Remedy: Open the store in the child: `diskreplay.open(PATH, mode="r")`. One process writes,
    any number read. A child that is to ask object stores has to be started by ``spawn``.
    """


class DisconnectedError(UsageError):
    """Ray is not connected, or connected anew since the buffer or writer was made.

    Cause: No `ray.init` in this process, or one of ``ray://``; or `ray.shutdown` came before the
    buffer and its writers were closed: they are void then, also after another `ray.init`.

    Remedy: `ray.init` with the cluster's address, on a node of it, then `.connect`.
    """


class ReentryError(UsageError):
    """The buffer was called amid another call of the same thread, of it or of one in a union with
    it: by a signal handler, a ``__del__`` or a callback. That other call is not harmed.

    Cause: Python runs a signal handler between any two instructions, amid an `add` too.

    Remedy: Let the handler set a flag, and call the buffer from the loop when the step is done:
    see the page on long runs.
    """


class StorageError(DiskReplayError, OSError):
    """The operating system refused a file operation; ``errno`` says why.

    Cause: The file system has an error, is read-only, has no `flock`, or a link on the path
    leads to a disk that is not mounted.

    Remedy: Do what the text says. A file system without locks can hold checkpoints, not a live
    store: put that on a local disk.
    """

    def __str__(self) -> str:
        """The path and the message, as all other errors have them, and no ``[Errno 5]``."""
        if self.strerror is None or self.filename is None:
            return super().__str__()
        return f"{self.filename}: {self.strerror}"


class DiskFullError(StorageError):
    """The file system or the quota is full.

    Cause: No room for rows or for a checkpoint. Old checkpoints hold on to rows that the live
    store has let go.

    Remedy: Free some room, and make the same call again: nothing was lost, and nothing was half
    written. `diskreplay prune` removes old checkpoints, and `diskreplay size` says beforehand
    how much a run takes.
    """


class StoreMovedError(StorageError):
    """The directory of an open store was moved or deleted; what is there now was not touched.

    Cause: Somebody moved, replaced or deleted the directory while a buffer had it open.

    Remedy: Close this buffer, and open the store where it is now: all rows that were added are
    in it. If it was deleted, load the newest checkpoint.
    """


class StorePermissionError(StorageError, PermissionError):
    """The directory or file cannot be written or read by this user.

    Cause: Another user made it, often root in a container; or it is mounted read-only.

    Remedy: Give it to this user (`chown`), or open with `mode="r"`, which needs to read only.
    """


class RemoteError(StorageError):
    """An object store refused, or what it holds is not what was put there.

    Cause: Credentials that may not write, no such bucket, an object that somebody changed.

    Remedy: Do what the text says. `diskreplay verify URL --deep` checks what is published.
    """


class RemoteUnavailableError(RemoteError):
    """An object store did not answer, or broke off, again and again.

    Cause: The network or the service is down, or asks for fewer requests.

    Remedy: Try later: the checkpoint is beside the store, and the next save sends what is missing.
    """


class TakenOverError(RemoteError):
    """Another run publishes its checkpoints at this URL.

    Cause: A run that took this one's place has the URL; or two runs were given one URL.

    Remedy: End this run, if it was replaced. If it is to go on in the other one's place,
    `RemoteCheckpoints(URL, takeover=True)`. Else choose another URL.
    """


class UnsupportedStoreError(RemoteError):
    """The object store does not refuse what a conditional request has to refuse.

    Cause: It ignores `If-None-Match`, so two runs could overwrite each other's checkpoints.

    Remedy: Use another store; or, with one process only, `unsafe_single_writer=True`.
    """
