"""Several stores and checkpoints as one, for sampling."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from diskreplay.batch import Batch
from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.closing import Closing
from diskreplay.errors import InvalidInputError, UsageError
from diskreplay.given_numbers import asked_exponent, exponent, whole
from diskreplay.handover import handovers_to
from diskreplay.joint_draw import JointDraw
from diskreplay.options import Beta
from diskreplay.prefetch import MOST_DEPTH, MOST_THREADS, Prefetcher
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sequences import Sequences
from diskreplay.signals import undisturbed
from diskreplay.statistics import Statistics
from diskreplay.store import files
from diskreplay.store.paths import resolved
from diskreplay.union_calls import UnionCalls
from diskreplay.union_member import member_of, opened_member
from diskreplay.union_members import UnionMembers, UnionPrefetchers, checked_mixture
from diskreplay.union_state import UnionState, packed
from diskreplay.validation import checked_ids, checked_priorities, generator, one_of


class ReplayUnion(UnionCalls, Closing):
    """Several buffers, stores and checkpoints, sampled as one: what a run records now beside what
    other runs recorded, say.

    It draws and reads; it records no rows. Its ids are ``id * len(members) + member``, see
    `locate`.

    Parameters
    ----------
    members : sequence of ReplayBuffer, path or Sequences
        Buffers, and paths of stores and checkpoints, which are opened to be read and closed with
        the union: then it draws transitions. Or views of sequences, one of each buffer: then it
        draws windows. All of the same fields, spaces, stacks, horizon and gamma (and windows).
    mixture : sequence of float, optional
        The share of each member in a batch, whatever it holds (Ball et al., "Efficient Online
        Reinforcement Learning with Offline Data", 2023, has half and half). None draws from all
        as if they were one buffer.
    batch_size : int, optional
        Default of `sample` and `prefetch`; that of the first member.
    beta : float or callable
        Default exponent of the importance weights, or a schedule: from the number of transitions
        ever recorded, of all members, to the exponent. It may call none of them.
    weight_normalization : {"batch", "buffer"}
        By what weights are divided: the largest of the batch, or of whatever the union could draw.
        The second needs the smallest priority of each member, which is at hand where a member has
        this option too, and else looked for in each draw: some milliseconds for a million.
    seed : int or numpy.random.Generator, optional
        Of every draw: the members' own generators are not used. None: one that follows from that of
        the first member.

    Attributes
    ----------
    members : tuple of ReplayBuffer or Sequences

    Raises
    ------
    InvalidInputError
        There are none, or one comes twice, or `mixture` makes no sense.
    SchemaError
        They differ in what a batch is, or in alpha without a `mixture`.
    FormatError
        There is no store at a path.

    Notes
    -----
    Without a mixture a transition is drawn with probability ``p^alpha / sum p^alpha`` over all
    members; one of a buffer without priorities counts as ``p = 1``. With one, it is drawn with the
    member's share times its probability in that member. The number of draws of each member differs
    from its expectation by less than one; those of a member follow each other in the batch. A draw
    is of one moment of all members: their locks are held for it, and not while frames are read.

    Importance weights make up for priorities, not for the mixture: ``(N P)^-beta`` of all members
    together, or with a mixture of the member each is from, divided by the largest.
    """

    def __init__(
        self, members: Sequence[ReplayBuffer | Sequences | str | os.PathLike[str]], *,
        mixture: Sequence[float] | None = None, batch_size: int | None = None, beta: Beta = 0.4,
        weight_normalization: Literal["batch", "buffer"] = "batch",
        seed: int | np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        self._closed = True  # until there is something to close
        if not isinstance(members, Iterable) or isinstance(members, str | bytes):
            raise InvalidInputError(f"members: several expected, found {brief(members)}")
        members = list(members)
        if not members:
            raise InvalidInputError("members: at least one buffer, view or path expected")
        shares = checked_mixture(mixture, len(members))
        size = whole("batch_size", batch_size, optional=True)
        self.beta: Beta = beta if callable(beta) else exponent(beta)
        one_of("weight_normalization", weight_normalization, ("batch", "buffer"))
        self._mixture, self._normalization = mixture, weight_normalization
        with contextlib.ExitStack() as opened:  # closes them, unless all goes well
            there = [opened_member(member, opened) for member in members]
            self.members = tuple(there)
            of_union = weight_normalization == "buffer"
            self._members = UnionMembers([*map(member_of, there)], shares, of_union=of_union)
            if seed is None:
                first = next(iter(self._members)).buffer
                with first._turn_when_drawn():
                    first._check_open()
                    seed = first._rng.derived("union")
            self._rng = ReplayableRng(generator(seed))
            of = there[0].options if isinstance(there[0], Sequences) else there[0]
            self.batch_size: int = size or of.batch_size
            self._guard_calls(opened)
            self._new_guard = self._members.new_draw
            self._prefetchers = UnionPrefetchers(self._members, self._lock, self._rng)
            self._opened = opened.pop_all()
        self._closed = False

    # -- drawing

    def sample(
        self, batch_size: int | None = None, *, beta: Beta | None = None, threads: int = 1
    ) -> Any:
        """Draw transitions, or windows, with replacement.

        Parameters
        ----------
        batch_size : int, optional
        beta : float or callable, optional
            Exponent of the importance weights, or a schedule, as for the union.
        threads : int
            How many read the frames of each member. What is drawn does not depend on it.

        Returns
        -------
        Batch or SequenceBatch
            `probability` is that in one draw of the union.

        Raises
        ------
        EmptyBufferError
            There is nothing to be drawn; or, with a mixture, nothing of a member that has a share.
        CorruptSegmentError, ClosedError, ForkedError

        Notes
        -----
        Each member's frames are read into their rows of one array. Costs some microseconds a member
        more than drawing from one buffer.
        """
        size = self.batch_size if batch_size is None else whole("batch_size", batch_size)
        threads = whole("threads", threads, most=MOST_THREADS)

        def draw(drawn: JointDraw) -> None:
            self._draw_pending()
            self._draw(size, beta, drawn)

        return self._read(draw, threads)

    def gather(self, ids: np.ndarray, *, threads: int = 1) -> Any:
        """The transitions with these ids, or the windows of these anchors, in this order, with
        weights of 1.

        Parameters
        ----------
        ids : array_like of int
        threads : int
            As for `sample`.

        Raises
        ------
        UnknownIdError, NotSampleableError
            As of the member, whose own ids the text names.
        """
        ids = checked_ids(ids)
        threads = whole("threads", threads, most=MOST_THREADS)
        return self._read(lambda drawn: self._members.choose(drawn, ids), threads)

    def _read(self, draw: Callable[[JointDraw], object], threads: int) -> Any:
        def read() -> Any:
            while True:
                drawn = self._new_guard()
                try:
                    draw(drawn)
                    batch = drawn.read(threads=threads)
                    drawn.release()  # here too: Ctrl-C may come as `finally` begins
                finally:
                    drawn.release()
                if batch is not None:
                    return batch
                self._members.undo([drawn])  # a live store changed under its reader: draw again

        return self._amid(read)

    def _draw(self, size: int, beta: Beta | None, guard: JointDraw) -> JointDraw:
        with self._lock:
            return self._members.draw(guard, self._rng, size, self.beta if beta is None else beta)

    def prefetch(
        self, depth: int = 2, batch_size: int | None = None, *, beta: Beta | None = None,
        threads: int = 1, device: Any = None, map: Callable[[Batch], Any] | None = None,
    ) -> Prefetcher:  # fmt: skip
        """Batches read ahead on background threads, as `ReplayBuffer.prefetch` does.

        Parameters
        ----------
        depth, batch_size, beta, threads, device, map
            As for `ReplayBuffer.prefetch`.

        Returns
        -------
        Prefetcher
            Of which there is one at a time.

        Raises
        ------
        UsageError
            There is one that is not closed.

        Notes
        -----
        What is drawn depends on the order of calls, those of members included, and not on timing.
        `save` draws batches under way again; a resumed run gets the same ones if it asks for a
        prefetcher of that depth and size and takes a batch before it adds or sets anything.
        """
        depth = whole("depth", depth, most=MOST_DEPTH)
        threads = whole("threads", threads, most=MOST_THREADS)
        size = whole("batch_size", batch_size, optional=True) or self.batch_size
        asked_exponent(beta)
        handovers = handovers_to(device, map)

        def get() -> Prefetcher:
            with self._lock:
                self._check_open()
                return self._prefetchers.get(self, depth, size, beta, threads, handovers)

        return self._amid(get)

    def sequences(
        self, length: int, *, burn_in: int = 0, ahead: int | None = None, stride: int = 1,
        ends: Literal["inside", "shift", "pad", "cross"] = "inside", n_step: int | None = None,
        batch_size: int = 16, prioritized: bool = False, alpha: float = 0.9, beta: Beta = 0.6,
        eta: float = 0.9, state: str | Sequence[str] = (), fields: Sequence[str] | None = None,
        arrival: bool = False, online: bool | int = False, finished: bool = False,
        returns_to_go: float | None = None, name: str = "union",
        seed: int | np.random.Generator | None = None,
    ) -> "ReplayUnion":  # fmt: skip
        """A union of windows: of one view of each member, with these options.

        Parameters
        ----------
        length, burn_in, ahead, stride, ends, n_step, batch_size, prioritized, alpha, eta, state
            As for `ReplayBuffer.sequences`.
        fields, arrival, online, finished, returns_to_go
            As for `ReplayBuffer.sequences`.
        beta : float or callable
            As for the union.
        name : str
            Of the views, which are closed with what this returns. Where one is open it is refused.
        seed : int or numpy.random.Generator, optional
            Of every draw of the new union.

        Returns
        -------
        ReplayUnion
            With the mixture and the normalization of weights of this one. Close it before this one.

        Raises
        ------
        UsageError
            This one draws windows already.
        InvalidInputError, CapacityError
            An option makes no sense to one of the members.
        """
        self._turn()
        with contextlib.ExitStack() as opened:
            views = []
            for member in self.members:
                if isinstance(member, Sequences):
                    raise UsageError(
                        "the union draws windows already; call sequences() of one of buffers"
                    )
                if member._views.get(name) is not None:
                    raise InvalidInputError(
                        f"name: {member.path}: a view {name!r} is open; choose another name"
                    )
                view = member.sequences(
                    length, burn_in=burn_in, ahead=ahead, stride=stride, ends=ends, n_step=n_step,
                    batch_size=batch_size, prioritized=prioritized, alpha=alpha, eta=eta,
                    weight_normalization=self._normalization, state=state, fields=fields,
                    arrival=arrival, online=online, finished=finished, returns_to_go=returns_to_go,
                    name=name,
                )  # fmt: skip
                opened.callback(view.close)
                views.append(view)
            union = ReplayUnion(
                views, mixture=self._mixture, beta=beta, weight_normalization=self._normalization,
                seed=seed,
            )  # fmt: skip
            union._opened.push(opened.pop_all())
        return union

    # -- priorities

    def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set the priorities of transitions or windows of any members.

        Those of buffers that are open for writing, and of their views, are saved with them. Those
        of members that are only read are in this process, see `save`; of one that follows a live
        store they are lost when its ring goes round between two looks.

        Parameters
        ----------
        ids : array_like of int, shape (batch,)
            As in ``batch.id``, or ``batch.anchor`` of windows; of duplicates the last counts.
        priorities : array_like of float, shape (batch,)
            Finite and not negative; 0 is never drawn.

        Returns
        -------
        int
            How many were ignored: they have left, or their member has no priorities.

        Raises
        ------
        PriorityError, UnknownIdError, ShapeError, UsageError
            Nothing was changed, of any member.

        Notes
        -----
        After a `clear` or a `load` of a member, also one by the writer that it follows, its ids of
        before mean other rows, as soon as there are as many again. Only the `generation` of the
        member's buffer tells: compare it with that of before the draw.
        """
        ids = checked_ids(ids)
        priorities = checked_priorities(ids, priorities)
        if not any(member.is_prioritized for member in self._members):
            raise UsageError("no member has priorities: make one of them prioritized")

        def update() -> int:
            self._draw_pending()
            return self._at_one_moment(lambda: self._members.update(ids, priorities))

        return self._amid(update)

    # -- looking

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which member each id is of, and the id there.

        Parameters
        ----------
        ids : array_like of int

        Returns
        -------
        members, ids : ndarray of int64
        """
        own, members = np.divmod(checked_ids(ids), len(self._members))
        return members, own

    def __len__(self) -> int:
        """What can be drawn now, of all members."""
        members = self._members
        return self._amid(lambda: self._at_one_moment(lambda: sum(m.count for m in members)))

    def shares(self) -> np.ndarray:
        """The probability that a draw is of each member now, float64 of shape (members,)."""
        return self._amid(lambda: self._at_one_moment(lambda: self._members.shares().copy()))

    def statistics(self) -> list[Statistics]:
        """Figures of each member at this moment; see `ReplayBuffer.statistics`."""
        self._turn()
        return [member.buffer.statistics() for member in self._members]

    # -- what is saved

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what no member saves into one file: the generator, priorities of members that are
        only read, and which new windows were handed out.

        It belongs into the checkpoint of the member that is recorded to, so that both are of one
        moment: ``buffer.save(dir, n, attachments={"union.npz": union.save})``.

        Parameters
        ----------
        path : path
            Replaced, as a whole.

        Notes
        -----
        8 bytes for each row of such members.
        """
        place = resolved(path, "path")

        def contents() -> bytes:
            self._draw_pending()
            with self._lock, self._prefetchers.drained():
                return self._members.at_one_moment(lambda: packed(self._members, self._rng))

        files.replace({place: self._amid(contents)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on where `save` was called, after the members were loaded; all or nothing.

        Parameters
        ----------
        path : path

        Raises
        ------
        FormatError
            It is no such file, or of a union of other members.
        """
        place = resolved(path, "path")
        self._turn()
        state = UnionState(place, self._members)

        def restore() -> None:
            self._draw_pending()
            self._at_one_moment(lambda: state.restore(self._rng, self._prefetchers))

        self._amid(restore)

    # -- its life

    def close(self) -> None:
        """Close what was opened by its path, and prefetchers. Closing twice is fine."""
        if not self._closed:
            self._close_prefetchers()
        # Again too: Ctrl-C may have come before all was closed.
        with undisturbed():
            self._opened.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidInputError(
            "a union cannot be pickled or copied; pass the paths of its members, and make it there"
        )

    def __repr__(self) -> str:
        return f"ReplayUnion({', '.join(str(m.buffer.path) for m in self._members)})"
