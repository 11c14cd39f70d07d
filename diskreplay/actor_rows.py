"""Rows that actors in processes of their own add."""

import threading
import time
import weakref
from collections.abc import Sequence

from diskreplay import given_numbers, validation
from diskreplay.actor_rings import ActorRings
from diskreplay.brief import brief
from diskreplay.checkpoint_loader import Attached
from diskreplay.env_writer import EnvWriter, Terms, takes_rows
from diskreplay.errors import ClosedError, DiskReplayError, InvalidInputError
from diskreplay.row_buffer import RowBuffer
from diskreplay.store import private
from diskreplay.store.store import Store

_MOST_ROWS = 1 << 20  # of a ring
_SOON, _LATER, _REFUSED = 0.002, 0.02, 1.0  # seconds


class ActorRows(RowBuffer):
    """The calls of `ReplayBuffer` for many actors on one machine."""

    _rings: ActorRings | None = None
    _thread: "_Thread | None" = None

    def env_writers(
        self,
        rows: int = 256,
        envs: Sequence[int] | None = None,
        *,
        timeout: float = 300.0,
        automatic: bool = True,
    ) -> list[EnvWriter]:
        """Make writers of envs, for actors in processes of their own.

        Parameters
        ----------
        rows : int
            Places of each env's ring: so many rows an actor may be ahead. A file of so many rows,
            uncompressed, for each env.
        envs : sequence of int, optional
            Which envs; all by default.
        timeout : float
            Seconds. A full ring is waited for as long as a process has the store open; if none has
            had for so long, `add` raises `RingFullError`.
        automatic : bool
            Whether a thread takes the actors' rows into the store whenever there are some, and
            `save`, `flush` and `close` take those that were added before. With False only `drain`
            and `close` do, for loops that are to be reproducible. The thread that calls `drain`
            must not add more rows between two calls than a ring has: that `add` waits for ever,
            since whether another thread is to call `drain` cannot be known.

        Returns
        -------
        list of EnvWriter
            One for each of `envs`, in that order; picklable. An env of which a ring is there, in
            use or not, gets a writer of that.

        Raises
        ------
        InvalidInputError
        LockedError
            An actor has a ring of another length, or rows wait in one. Nothing was changed.
        StorageError
            The disk is full, or refused something.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        Rows of one env keep the order in which they were added; which env's come first is up to
        the scheduler. The ids are those that the rows have in the store, so an actor has none.

        A `load` or `clear` drops the rows that wait to be taken, as those of the store itself;
        what actors add later comes in, the rest of an episode under way as a part of one. After
        `close` an actor's `add` raises `ClosedError`.
        """
        rows = given_numbers.whole("rows", rows, most=_MOST_ROWS)
        if rows < 2:
            raise InvalidInputError("rows: at least 2 expected, for a step with its final row")
        timeout = given_numbers.seconds("timeout", timeout)
        last = self.num_envs - 1
        try:
            asked = range(self.num_envs) if envs is None else list(envs)
        except TypeError as error:
            raise InvalidInputError(f"envs: a sequence expected, found {brief(envs)}") from error
        which = [given_numbers.whole("envs", env, least=0, most=last) for env in asked]
        if len(set(which)) < len(which):
            raise InvalidInputError("envs: an env is there twice; a ring has one writer")
        automatic = validation.fit_flag("automatic", automatic)
        self._check_writable()
        schema, alpha = self._kind.schema, getattr(self._distribution, "alpha", None)
        terms = Terms(self.path, schema, alpha, timeout)
        with self._turn_when_drawn():
            self._check_writable()
            if self._rings is None:
                self._rings = self._make_rings()
            ids = self._rings.of_envs(which, rows, self._rows)
            self._rings.set_by_itself(automatic)  # not before: what is refused changes nothing
        self._keep_taking()
        return [EnvWriter(terms, env, id_) for env, id_ in zip(which, ids, strict=True)]

    def drain(self, timeout: float = 0.0) -> int:
        """Take the rows of actors that were added before this call into the store.

        Parameters
        ----------
        timeout : float
            Seconds to wait for a first row if there is none.

        Returns
        -------
        int
            How many rows came in by this call.

        Raises
        ------
        InvalidInputError
        DiskFullError, StorageError
            What was not taken stays in the rings, and comes with a later call.
        ReadOnlyError, ClosedError, ForkedError
        """
        timeout = given_numbers.seconds("timeout", timeout)
        self._check_writable()
        taken, until = 0, time.monotonic() + timeout
        rings = self._rings
        if rings is None:
            return 0
        while not rings.waiting() and time.monotonic() < until:
            time.sleep(0.0005)
        wanted = rings.written()
        while not rings.has_taken(wanted):
            taken += self._take_some()
        return taken

    # -- what the life of the buffer has to do with it

    def _take_some(self) -> int:
        with self._turn_when_drawn():
            self._check_writable()
            return self._take_now()

    def _take_now(self) -> int:
        """Some of the rows that wait. Needs the lock."""
        assert self._rings is not None
        return self._rings.take(self._addable(), self._extend)

    def _take_waiting(self) -> None:
        if self._rings is not None and self._rings.by_itself:
            self.drain()

    def _start(self, store: Store, *, keep_rng: bool) -> None:
        super()._start(store, keep_rng=keep_rng)
        if store.mode == "r" or not private.rings(store.path):
            return
        self._rings = self._make_rings()
        try:
            self._rings.reopen(self._rows)
            while self._take_now():
                pass
        except BaseException:
            self._closed = True
            self._rings.close()
            raise
        self._keep_taking()

    def _make_rings(self) -> ActorRings:
        rings = ActorRings(self.path, self._kind.schema.fields)
        # Made after the one that closes the store, and so called before it: at the exit too.
        weakref.finalize(self, rings.close)
        takes_rows(self)
        return rings

    def _keep_taking(self) -> None:
        assert self._rings is not None
        if self._rings.by_itself and self._thread is None:
            self._thread = _Thread(self)
        elif not self._rings.by_itself:
            self._rest()

    def _take_over(self, attached: Attached) -> None:
        super()._take_over(attached)
        if self._rings is not None:
            self._rings.forget(self._rows)

    def _record(self, **how: bool) -> None:
        rings = self._rings
        if rings is not None and not rings.is_taking and how.get("closing"):
            while self._take_now():
                pass
        super()._record(**how)
        if rings is not None and how.get("closing"):
            rings.retire()

    def _refuse_more(self) -> None:
        if self._rings is not None:
            self._rings.refuse_more()
            self._rest()

    def _rest(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _shut(self) -> None:
        try:
            super()._shut()
        finally:
            if self._rings is not None:
                self._rings.close()


class _Thread:
    """The thread that takes actors' rows by itself. It does not keep the buffer alive."""

    def __init__(self, buffer: ActorRows) -> None:
        self._over = threading.Event()
        name = f"diskreplay actors {buffer.path.name}"
        self._thread = threading.Thread(
            target=self._run, args=(weakref.ref(buffer),), name=name, daemon=True
        )
        self._thread.start()
        weakref.finalize(buffer, self.stop)  # before the rings are let go of, and the store

    def stop(self) -> None:
        """Take no more, and wait for what is under way."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, found: "weakref.ref[ActorRows]") -> None:
        pause = _SOON
        while not self._over.wait(pause):
            buffer = found()
            if buffer is None:
                return
            try:
                pause = _SOON if buffer._take_some() else min(2 * pause, _LATER)
            except ClosedError:
                return
            except DiskReplayError:  # a full disk, say: rows wait where they are, and actors
                pause = _REFUSED
            del buffer
