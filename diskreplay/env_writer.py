"""What an actor in a process of its own adds the steps of one env with."""

import errno
import os
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from diskreplay import fork
from diskreplay.closing import Closing
from diskreplay.errors import (
    ClosedError,
    InvalidInputError,
    LockedError,
    PriorityError,
    ReentryError,
    RingFullError,
    ShapeError,
    StorageError,
    UsageError,
)
from diskreplay.given_numbers import as_reals
from diskreplay.locks import Lock
from diskreplay.open_episodes import LONGEST
from diskreplay.schema import Schema
from diskreplay.signals import undisturbed
from diskreplay.store import file_locks, files, private
from diskreplay.store.actor_ring import (
    ATTACHED,
    CLOSED,
    FRESH_AT,
    GENERATION,
    PROCESS,
    STEP,
    TAKEN,
    WRITTEN,
    ActorRing,
)
from diskreplay.store.priorities import LARGEST_LEAF
from diskreplay.validation import RowValidator

_LONGEST_PAUSE = 0.02  # seconds
_LOOK_EVERY = 0.5  # seconds until a waiting actor looks for the learner
_NONE = float("nan")
_takers: "weakref.WeakValueDictionary[Path, Any]" = weakref.WeakValueDictionary()


def takes_rows(buffer: Any) -> None:
    """Say that this `ActorRows`, of this process, takes what actors add."""
    _takers[buffer.path] = buffer


class Terms(NamedTuple):
    """What a writer has to know of its buffer, which has an `alpha` if it is prioritized."""

    path: Path
    schema: Schema
    alpha: float | None
    timeout: float


class EnvWriter(Closing):
    """Adds the steps of one env from a process of its own; `ReplayBuffer.env_writers` makes it.

    Pass it to the process: it is picklable, and may be forked. The first call takes the env's ring,
    and no other process, or other writer of this one, can have that before `close` or this one's
    end. A writer that takes over a ring begins a new episode.

    Parameters
    ----------
    terms : Terms
    env : int
    ring_id : str
        Of the ring that it is for.

    Attributes
    ----------
    env : int

    Notes
    -----
    When `add` returns, the step survives the death of this process and of the learner's: it is in
    the store, or in a file from which the learner's process, or the next one that opens the store,
    takes it. A power cut takes what was not taken yet. Where threads share a writer, their calls
    come one after the other, and their steps are of one episode.
    """

    def __init__(self, terms: Terms, env: int, ring_id: str) -> None:
        self._terms, self.env, self._ring_id = terms, env, ring_id
        self._ring: ActorRing | None = None
        self._lock = -1
        # (rows in the ring, step of the next row): now, and once the row under way is published.
        self._stands = self._comes = 0, 0
        self._validator = RowValidator(terms.schema, 1)
        self._is_closed = False
        self._calls, self._attaching = Lock(), Lock()
        fork.tell(self)

    def _after_fork(self) -> None:
        """In a child: the ring is the parent's, and so is a call that another thread was amid."""
        self._ring = None
        self._calls, self._attaching = Lock(), Lock()

    def __repr__(self) -> str:
        return f"EnvWriter(env={self.env}, path={os.fspath(self._terms.path)!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[Terms, int, str]]:
        return type(self), (self._terms, self.env, self._ring_id)

    # -- adding

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_observation: Any = None,
        *,
        priority: float | None = None,
        **extras: Any,
    ) -> None:
        """Record one step of the env, as `ReplayBuffer.add` does of a buffer with one.

        Waits while the ring is full.

        Parameters
        ----------
        observation, action
            What the agent saw and did, as in the spaces of one env; one frame, not a stack.
        reward : float
        terminated, truncated : bool
        next_observation : optional
            What the step led to; kept where the episode ends.
        priority : float, optional
            Of a prioritized buffer.
        **extras
            A value for each further field.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ExtrasError, PriorityError
            Nothing was recorded.
        InvalidInputError
            A priority, and the buffer draws uniformly. Nothing was recorded.
        UsageError
            The episode has 2**31 - 1 steps: call `end_episode` and add the step again.
        RingFullError
            The ring is full, and no process has had the store open to take its rows for `timeout`
            seconds. Nothing was recorded: the step may be added again.
        ClosedError
            The buffer was closed, or this writer. Nothing was recorded.
        LockedError
            Another writer has the env's ring.
        ReentryError
            A signal handler calls this amid another call, of this or, where that is open in this
            process, of the buffer. Nothing was recorded.
        """
        with self._turn_to_add():
            ring = self._ring or self._attach()
            if ring.words[CLOSED]:
                self._refuse_closed()
            written, step = self._place(ring)
            if step == LONGEST:
                raise UsageError(
                    f"env {self.env}: the episode has {LONGEST} steps, the most that can be "
                    "counted; nothing was recorded: call end_episode() and add the step again"
                )
            row, final = self._validator.row(
                step, observation, action, reward, terminated, truncated, next_observation, extras
            )
            given = _NONE if priority is None else self._checked(priority)
            rows = 1 if final is None else 2
            if written + rows - ring.words[TAKEN] > ring.rows:
                self._wait(ring, written + rows)
            self._comes = written + rows, 0 if terminated or truncated else step + 1
            ring.put(written, row, given)
            if final is not None:
                ring.put(written + 1, final, _NONE)
            ring.publish(written + rows)

    def end_episode(self, *, next_observation: Any = None) -> None:
        """Cut the episode under way: the next `add` begins a new one.

        Parameters
        ----------
        next_observation : optional
            What its last step led to, as for `ReplayBuffer.end_episode`.

        Raises
        ------
        ShapeError, DtypeError
            Nothing was recorded, and no episode is cut.
        RingFullError, ClosedError, LockedError, ReentryError
            As for `add`.
        """
        with self._turn_to_add():
            ring = self._ring or self._attach()
            if ring.words[CLOSED]:
                self._refuse_closed()
            written, step = self._place(ring)
            if next_observation is None or not step:
                self._comes = written, 0
                return
            row = self._validator.frame(step, next_observation, is_next=True)
            if written + 1 - ring.words[TAKEN] > ring.rows:
                self._wait(ring, written + 1)
            self._comes = written + 1, 0
            ring.put(written, row, _NONE)
            ring.publish(written + 1)

    def _place(self, ring: ActorRing) -> tuple[int, int]:
        """Rows in the ring, and the step of the next one.

        The ring says which row was published last: Ctrl-C may have come right behind that.
        """
        if ring.words[WRITTEN] == self._comes[0]:
            self._stands = self._comes
        return self._stands

    def _turn(self) -> Lock:
        """The lock, for a call that is to begin.

        Raises
        ------
        ReentryError
            This thread is amid one, whose row would get the same place.
        """
        lock = self._calls
        if lock._is_owned():  # type: ignore[attr-defined]
            raise ReentryError(
                f"env {self.env}: called amid another call of the same thread, which goes on: by a "
                "signal handler, or a __del__. Let a handler set a flag, and call this when the "
                "step is done"
            )
        return lock

    def _turn_to_add(self) -> Lock:
        """As `_turn`, for a call that may wait for room in the ring: not amid a call of the buffer,
        which takes no rows until that has ended."""
        if _takers:
            buffer = _takers.get(self._terms.path)
            if buffer is not None and buffer._pid == fork.pid and not buffer.closed:
                buffer._turn()
        return self._turn()

    def _checked(self, priority: Any) -> float:
        alpha = self._terms.alpha
        if alpha is None:
            raise InvalidInputError(
                "priority: this buffer draws uniformly, and rows have none; make a "
                "PrioritizedReplayBuffer"
            )
        if type(priority) is not float:
            priority = as_reals("priority", priority, PriorityError)
            if priority.shape != ():
                raise ShapeError(f"priority: shape () expected, found {priority.shape}")
        found = float(priority)
        try:
            fits = 0 <= found < np.inf and found**alpha <= LARGEST_LEAF
        except OverflowError:
            fits = False
        if not fits:
            raise PriorityError(
                f"priority {priority}: finite, not negative and, raised to alpha, at most 1e297 "
                "expected (|td_error| plus a small constant, say)"
            )
        return found

    # -- the ring

    @property
    def waiting(self) -> int:
        """Rows of this env that were added and that no process has taken into the store yet."""
        ring = self._ring
        if ring is None:
            self._turn()
            ring = self._attach()  # without the lock, which an `add` has while it waits for room
        return ring.waiting

    def close(self) -> None:
        """Let go of the ring; rows in it are taken all the same. An `add` that waits on another
        thread ends with a `ClosedError`. Twice is fine."""
        lock = self._turn()
        self._is_closed = True
        with lock, self._attaching:
            self._let_go()

    def __del__(self) -> None:
        if getattr(self, "_ring", None) is not None:
            self._let_go()

    def _let_go(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            file_locks.unlock(self._lock)

    def _holder(self, path: Path) -> int:
        return int(ActorRing(path, self._terms.schema.fields).words[PROCESS])

    def _attach(self) -> ActorRing:
        """Take the ring, if no other thread has it by now."""
        with self._attaching:
            if self._ring is not None:
                return self._ring
            self._check_open()
            with undisturbed():  # after Ctrl-C amid it nobody would know of the lock
                return self._take(private.ring(self._terms.path, self.env))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"env {self.env}: this writer is closed; env_writers() gives others")

    def _take(self, path: Path) -> ActorRing:
        try:
            lock = file_locks.try_lock(path, make=False, holder=lambda: self._holder(path))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise ClosedError(
                f"{path}: missing: the buffer was closed, or its directory is another one here; "
                "call env_writers() of a buffer that is open on this machine"
            ) from error
        if lock is None:
            raise LockedError(
                f"{path}: another writer of env {self.env} has it, in process "
                f"{self._holder(path)}; close that one, or let its process end"
            )
        try:
            ring = ActorRing(path, self._terms.schema.fields)
            if not files.is_at(lock, path) or ring.id != self._ring_id:
                raise ClosedError(
                    f"{path}: the ring was made anew since this writer was; env_writers() gives "
                    "others"
                )
            if not ring.of_this_boot:
                raise ClosedError(
                    f"{path}: of another machine, or of before this one was started; call "
                    "env_writers() of a buffer that is open on this machine"
                )
        except BaseException:
            file_locks.unlock(lock)
            raise
        ring.words[PROCESS] = fork.pid
        ring.words[ATTACHED] = ring.words[GENERATION]  # before the step is looked at: see `forget`
        written = ring.words[WRITTEN]
        step = ring.words[STEP] if ring.words[FRESH_AT] == written else 0
        self._stands = self._comes = written, step
        self._ring, self._lock = ring, lock
        return ring

    def _refuse_closed(self) -> None:
        raise ClosedError(
            f"{self._terms.path}: the buffer was closed; nothing was recorded, and what was before "
            "is in the store, or will be when it is opened again"
        )

    def _wait(self, ring: ActorRing, written: int) -> None:
        """Until there is room for so many rows ever."""
        if written - ring.words[WRITTEN] > ring.rows:
            raise InvalidInputError("a ring of 1 row cannot take a step with its final row")
        pause, now = 5e-5, time.monotonic()
        seen, look = now, now + _LOOK_EVERY  # when the learner was seen last, and is looked for
        while written - ring.words[TAKEN] > ring.rows:
            if ring.words[CLOSED]:
                self._refuse_closed()
            self._check_open()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            now = time.monotonic()
            if now < look:
                continue
            look = now + _LOOK_EVERY
            if file_locks.is_held(private.taker(self._terms.path)):
                seen = now
            elif now - seen >= self._terms.timeout:
                raise RingFullError(
                    f"{ring.path}: full with {ring.waiting} rows of env {self.env}, and for "
                    f"{now - seen:.0f} s no process has had the store open to take them; nothing "
                    "was recorded. Open the buffer again, and add the step again"
                )
