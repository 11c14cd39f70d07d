"""All members of a union at one moment: what is drawn of whom; and the prefetcher of all."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import EmptyBufferError, InvalidInputError, PriorityError, SchemaError
from diskreplay.given_numbers import as_reals, exponent
from diskreplay.joint_draw import JointDraw, JointMemory
from diskreplay.locks import Lock, holding
from diskreplay.options import Beta
from diskreplay.prefetchers import OneAtATime
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.store.priorities import LARGEST_LEAF
from diskreplay.store.store import Store
from diskreplay.union_member import TransitionMember

_LOOK = (
    "fields", "observation space", "action space", "stack_size", "stack_padding",
    "update_horizon", "gamma", "windows", "fields of windows", "state", "returns_to_go",
)  # fmt: skip

Found = TypeVar("Found")


class UnionMembers:
    """The members of a union; see there.

    Parameters
    ----------
    members : sequence of TransitionMember
    mixture : ndarray of float64 or None
        The share of each, 1 in sum.
    of_union : bool
        Whether weights are divided by the largest of the union, and not by that of the batch.
    """

    def __init__(
        self, members: Sequence[TransitionMember], mixture: np.ndarray | None, *, of_union: bool
    ) -> None:
        self._members, self._mixture, self._of_union = list(members), mixture, of_union
        self._check()
        self._memory = JointMemory()
        # In one order, whatever that of the members: two unions never wait for each other.
        locks = {id(member.buffer._lock): member.buffer._lock for member in members}
        self._locks = [locks[key] for key in sorted(locks)]

    def __iter__(self) -> Iterator[TransitionMember]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def _check(self) -> None:
        """Refuse members whose batches differ."""
        members = self._members
        if len({type(member) for member in members}) > 1:
            raise InvalidInputError("members: either buffers and paths, or views of sequences")
        whose = [str(member.buffer.path) for member in members]
        if len(set(whose)) < len(whose):
            twice = next(path for path in whose if whose.count(path) > 1)
            raise InvalidInputError(f"members: {twice} comes twice; give it a larger share instead")
        alphas = {member.alpha for member in members if member.alpha is not None}
        if self._mixture is None and len(alphas) > 1:
            raise SchemaError(
                f"members: one alpha expected, found {sorted(alphas)}: their priorities cannot be "
                "compared; open them with one alpha, or give a mixture"
            )
        for member, path in zip(members, whose, strict=True):
            for name, mine, theirs in zip(_LOOK, members[0].look, member.look, strict=False):
                if mine != theirs:
                    raise SchemaError(
                        f"{path}: {name}: {mine!r:.300} expected as in {whose[0]}, found "
                        f"{theirs!r:.300}"
                    )

    def at_one_moment(self, call: Callable[[], Found]) -> Found:
        """What `call` returns, called while nobody adds, draws or updates. All that follows, but
        `held`, `draw`, `choose` and `undo`, needs it."""

        def caught_up() -> Found:
            for member in self._members:
                member.catch_up()
            return call()

        return self.held(caught_up)

    def held(self, call: Callable[[], Found]) -> Found:
        """What `call` returns, called with the members' locks held."""
        return holding(self._locks, call)

    @contextlib.contextmanager
    def _named(self, number: int) -> Iterator[None]:
        """Say in errors whose ids they name."""
        try:
            yield
        except Exception as error:
            error.add_note(
                f"of member {number}, {self._members[number].buffer.path}; an id of the union is "
                f"id * {len(self)} + {number}"
            )
            raise

    @property
    def add_count(self) -> int:
        """Transitions ever recorded, of all members."""
        return sum(member.rows.add_count for member in self._members)

    def shares(self) -> np.ndarray:
        """The probability that a draw is of each member, or an `EmptyBufferError`."""
        masses = np.array([member.mass for member in self._members])
        if self._mixture is None:
            if not masses.sum() > 0:
                raise EmptyBufferError("nothing to sample of any member: add more steps")
            return masses / masses.sum()
        for number in np.flatnonzero((self._mixture > 0) & ~(masses > 0)).tolist():
            raise EmptyBufferError(
                f"nothing to sample of member {number}, whose share is {self._mixture[number]:g}: "
                f"{self._members[number].buffer.path}"
            )
        return self._mixture

    # -- drawing

    def new_draw(self) -> JointDraw:
        """One with nothing in it. Whoever asks for it releases it, wherever Ctrl-C comes."""
        first = self._members[0]
        return JointDraw(first.key, len(self), first.batch, self._memory)

    def draw(self, drawn: JointDraw, rng: ReplayableRng, size: int, beta: Beta) -> JointDraw:
        """Draw so many, of each member as often as its share says, less than one off."""
        try:
            self.at_one_moment(lambda: self._draw(drawn, rng, size, beta))
        except BaseException:
            self.undo([drawn])
            raise
        return drawn

    def _draw(self, drawn: JointDraw, rng: ReplayableRng, size: int, beta: Beta) -> None:
        shares = self.shares()
        power = exponent(beta(self.add_count) if callable(beta) else beta)
        self._members[0].check_fits(size)
        rng.taken()
        at = (np.arange(size) + rng.random(1)) / size
        found = np.searchsorted(np.cumsum(shares), at, side="right")
        last = np.flatnonzero(shares)[-1]  # rounding may lead behind it
        counts = np.bincount(np.minimum(found, last), minlength=len(shares))
        drawn.numbers += rng.taken()
        for number in np.flatnonzero(counts).tolist():
            part = drawn.add(number, self._members[number].draw, rng, int(counts[number]))
            drawn.numbers += part.numbers
        self._weigh(drawn, shares, power)

    def choose(self, drawn: JointDraw, ids: np.ndarray) -> None:
        """Those of these ids."""
        own, members = np.divmod(ids, len(self))
        order = np.argsort(members, kind="stable")
        self.at_one_moment(lambda: self._choose(drawn, own, members))
        if (np.diff(order) != 1).any():
            drawn.order = np.argsort(order, kind="stable")

    def _choose(self, drawn: JointDraw, own: np.ndarray, members: np.ndarray) -> None:
        for number in np.unique(members).tolist() or [0]:
            with self._named(number):
                chosen = np.ascontiguousarray(own[members == number])
                drawn.add(number, self._members[number].choose, chosen)
        try:
            shares = self.shares()
        except EmptyBufferError:  # nothing can be drawn, but these can be read
            shares = np.zeros(len(self))
        self._weigh(drawn, shares, 0.0)

    def _weigh(self, drawn: JointDraw, shares: np.ndarray, beta: float) -> None:
        """Probabilities and importance weights of all that was drawn."""
        probability, relative = [], []
        for number, part, _guard in drawn.parts:
            probability.append(part.probability * shares[number])
            relative.append(part.probability * self._scale(number, shares))
        drawn.probability, found = np.concatenate(probability), np.concatenate(relative)
        drawn.weight = np.ones(len(found), np.float32)
        positive = found > 0  # a new window of priority 0 is handed out all the same
        if beta and positive.any() and any(member.is_prioritized for member in self._members):
            least = self._least(shares) if self._of_union else found[positive].min()
            drawn.weight[positive] = (least / found[positive]) ** beta

    def _scale(self, number: int, shares: np.ndarray) -> float:
        """What to multiply a probability in a member by, for a weight: its share of all; or with a
        mixture its count, which gives how much more often than evenly it is drawn there."""
        return shares[number] if self._mixture is None else self._members[number].count

    def _least(self, shares: np.ndarray) -> float:
        """What the largest weight of the union is of."""
        return min(
            member.least / member.mass * self._scale(number, shares)
            for number, member in enumerate(self._members) if shares[number] > 0
        )  # fmt: skip

    def stores(self) -> list[Store]:
        """Those that the members have now, each until it is loaded. Without their locks."""
        return [member.buffer._rows.store for member in self._members]

    def undo(self, drawn: Sequence[JointDraw]) -> None:
        """Nobody took what was drawn, given in its order. Takes the members' locks: somebody may
        draw from one meanwhile."""
        parts = [part for each in drawn for part in each.parts if part.drawn is not None]

        def each_of_its_own() -> None:
            for number, member in enumerate(self._members):
                member.undo([part.drawn for part in parts if part.member == number])

        self.held(each_of_its_own)

    # -- priorities

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set priorities; returns how many were ignored.

        Raises
        ------
        PriorityError, UnknownIdError
            Nothing was changed, of any member.
        """
        own, members = np.divmod(ids, len(self))
        wrong = np.flatnonzero(~(np.isfinite(priorities) & (priorities >= 0)))
        if len(wrong):
            raise PriorityError(
                f"priority {priorities[wrong[0]]} at position {wrong[0]}: finite and not negative "
                "expected"
            )
        groups, ignored = [], 0
        for number in np.unique(members).tolist():
            member, which = self._members[number], members == number
            group = np.ascontiguousarray(own[which]), np.ascontiguousarray(priorities[which])
            with self._named(number):
                member.rows.index.check_known(group[0])
            if member.alpha is None:
                ignored += len(group[0])
                continue
            with np.errstate(over="ignore"):
                if not group[1].max() ** member.alpha <= LARGEST_LEAF:
                    raise PriorityError(
                        f"priority {group[1].max()}: at most {LARGEST_LEAF:g} raised to "
                        f"alpha={member.alpha:g} expected"
                    )
            groups.append((member, group))
        return ignored + sum(member.update(*group) for member, group in groups)


class UnionPrefetchers(OneAtATime):
    """That of a union, for which the members' calls wait too."""

    def __init__(self, members: UnionMembers, lock: Lock, rng: ReplayableRng) -> None:
        listed = [member.buffer._views.prefetching for member in members]
        super().__init__(lock, rng, "the union", listed)
        self._members, self._stores = members, members.stores()

    def put_back_void(self) -> None:
        """A member that is cleared or loaded cannot put a union's batches back: whoever holds its
        lock must not wait for that of the union."""
        stores = self._members.stores()
        if stores != self._stores:
            drawn = self.under_way()
            if any(part.drawn.store not in stores for each in drawn for part in each.parts):
                self.put_back(self.open)
            self._stores = stores

    def _whole(self, call: Callable[[], None]) -> None:
        # The members' locks first: what waits for them can be ended by Ctrl-C.
        whole = super()._whole
        self._members.held(lambda: whole(call))

    def _undo(self, drawn: Sequence[Any]) -> None:
        super()._undo(drawn)
        self._members.undo(drawn)


def checked_mixture(mixture: Any, members: int) -> np.ndarray | None:
    """The share of each member, 1 in sum; or an `InvalidInputError`."""
    if mixture is None:
        return None
    shares = as_reals("mixture", mixture, InvalidInputError)
    if shares.shape != (members,):
        raise InvalidInputError(
            f"mixture: one share for each of {members} members expected, found {brief(mixture)}"
        )
    with np.errstate(over="ignore"):
        total = shares.sum()  # finite, and so are all of them
    if not ((shares >= 0).all() and 0 < total < np.inf):
        raise InvalidInputError(f"mixture: shares from 0 on expected, found {brief(mixture)}")
    return shares / total
