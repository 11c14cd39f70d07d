"""The retained rows of a buffer in the order of time, for everything that exports them."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.errors import NotSampleableError
from diskreplay.given_numbers import real
from diskreplay.inspection.episodes import episodes_of
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.stored_space import StoredSpace

_SMALL = ("step", "is_final", "terminated", "truncated", "reward")


@dataclass(frozen=True, eq=False)
class Timeline:
    """Rows by their number and then by env, which is the order of their ids.

    A frame that stands on its own (a final row, say) is no transition: `finals_apart` leaves the
    transitions, and each one's final row by its side.

    Attributes
    ----------
    episodes : Episodes
        Of the whole buffer.
    id : ndarray of int64, shape (rows,)
    episode : ndarray of int64, shape (rows,)
        As `Episodes.number`.
    step : ndarray of int32, shape (rows,)
    reward : ndarray of float32, shape (rows,)
    return_to_go : ndarray of float64, shape (rows,)
        The sum of the rewards from this row to the last one that is recorded of its episode.
    terminated, truncated, is_final : ndarray of bool, shape (rows,)
    final_id : ndarray of int64, shape (rows,)
        The final row of a transition that ended its episode; -1 for all others.
    """

    episodes: Episodes
    id: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    reward: np.ndarray
    return_to_go: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    is_final: np.ndarray
    final_id: np.ndarray

    def __len__(self) -> int:
        return len(self.id)

    def only(self, which: np.ndarray | slice) -> Self:
        """The rows that a mask, a slice or an array of positions picks."""
        names = (field.name for field in fields(self) if field.name != "episodes")
        return replace(self, **{name: getattr(self, name)[which] for name in names})

    def transitions(self) -> Self:
        """Without the rows that hold only an observation."""
        return self.only(~self.is_final)

    def finals_apart(self) -> Self:
        """Without the rows that some transition has as its `final_id`."""
        return self.only(~np.isin(self.id, self.final_id[self.final_id >= 0]))

    def of_episodes(self, episodes: int | Sequence[int]) -> Self:
        """The rows of these episodes; negative numbers count from the newest."""
        if isinstance(episodes, np.ndarray):
            episodes = list(np.atleast_1d(episodes))
        given = episodes if isinstance(episodes, Iterable) else [episodes]
        wanted = [self.episodes.position(number) for number in given]
        return self.only(np.isin(self.episode, wanted))


def timeline_of(buffer: ReplayBuffer, gamma: float = 1.0) -> Timeline:
    """All rows of the episodes that have a transition.

    Reads the small columns, 11 bytes a row, and no frames; takes some 60 bytes a row while it
    lasts. Of a store that another process writes to, rows that leave meanwhile are left out.
    """
    gamma = real("gamma", gamma, most=1.0)
    num_envs = buffer.num_envs
    stop = buffer.bounds[:, 1]  # before the episodes are: so each row below it belongs to one
    episodes = episodes_of(buffer)
    parts = []
    for env in range(num_envs):
        numbers = np.flatnonzero(episodes.env == env)
        starts = episodes.start_id[numbers]
        start = int(starts[0]) // num_envs if len(starts) else int(stop[env])
        id_, small = take_retained(buffer, _SMALL, np.arange(start, stop[env]) * num_envs + env)
        episode = numbers[np.searchsorted(starts, id_, side="right") - 1]
        ended = small["terminated"] | small["truncated"]
        # What follows an end and is no transition is the final row, if it counts on.
        has_final = ended[:-1] & small["is_final"][1:] & (np.diff(small["step"]) == 1)
        final_id = np.full(len(id_), -1)
        final_id[:-1][has_final] = id_[1:][has_final]
        to_go = returns_to_go(small["reward"], episode, gamma)
        parts.append({"id": id_, "episode": episode, "return_to_go": to_go, "final_id": final_id}
                     | small)  # fmt: skip
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if num_envs > 1:
        order = np.argsort(columns["id"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
    return Timeline(episodes=episodes, **columns)


def returns_to_go(reward: np.ndarray, episode: np.ndarray, gamma: float) -> np.ndarray:
    """For each row the discounted sum of the rewards from there to the end of its episode, as
    float64. Rows of one episode stand together.

    A scan by doubling (Hillis and Steele, 1986): after pass k each row has the sum of ``2**k``
    rows. Rewards of one episode never meet those of another, as they would in differences of one
    long cumulative sum, which a single huge reward would spoil for all.
    """
    total = reward.astype(np.float64)
    if not len(total):
        return total
    last = np.flatnonzero(np.r_[episode[1:] != episode[:-1], True])
    ahead = np.repeat(last, np.diff(last, prepend=-1)) - np.arange(len(total))
    reach, weight, longest = 1, gamma, int(ahead.max())
    while reach <= longest and weight > 0:
        total[:-reach] += np.where(ahead[:-reach] >= reach, weight * total[reach:], 0.0)
        reach, weight = 2 * reach, weight * weight
    return total


def take_retained(
    buffer: ReplayBuffer, names: Sequence[str], ids: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The ids that are still retained, and the values of these fields there.

    A writer in another process may evict the oldest rows between any two reads: then some more are
    left to it, and all is read again.
    """
    ids, margin = np.asarray(ids, np.int64), 0
    while True:
        row, env = np.divmod(ids, buffer.num_envs)
        here = row >= buffer.bounds[env, 0] + margin
        if not here.all():
            ids, env = ids[here], env[here]
        # Rows of one env that follow each other are read in one go.
        order = np.argsort(env, kind="stable") if (np.diff(env) < 0).any() else None
        try:
            taken = {n: buffer.take(n, ids if order is None else ids[order]) for n in names}
        except NotSampleableError:
            margin = max(64, 8 * margin)
            continue
        if order is not None:
            back = np.argsort(order)
            taken = {name: values[back] for name, values in taken.items()}
        return ids, taken


class Chunk(NamedTuple):
    """Some rows with all that is stored of them.

    Attributes
    ----------
    rows : Timeline
        Without the rows that are a transition's final row.
    columns : dict of str to ndarray, each of shape (rows, *shape)
        Every field that was asked for.
    finals : dict of str to ndarray, each of shape (final rows, *shape)
        The observations of the final rows, in the order of those `rows` that have one.
    priority : ndarray of float64, shape (rows,), or None
        See `Priorities`.
    """

    rows: Timeline
    columns: dict[str, np.ndarray]
    finals: dict[str, np.ndarray]
    priority: np.ndarray | None


def chunks(
    buffer: ReplayBuffer,
    rows: Timeline,
    size: int,
    priorities: "Priorities",
    names: Collection[str] | None = None,
) -> Iterator[Chunk]:
    """The rows of a timeline with their values, `size` at a time; one empty chunk if there are
    none. With `names` only these fields are read, and the small ones."""
    wanted = buffer.fields if names is None else names
    leaves = StoredSpace.of(buffer.observation_space, "observation").names
    observations = [name for name in leaves if name in wanted]
    rest = [name for name in buffer.fields if name not in _SMALL and name in wanted]
    for start in range(0, max(len(rows), 1), size):
        part = rows.only(slice(start, start + size))
        kept, columns = take_retained(buffer, rest, part.id)
        part = part.only(np.isin(part.id, kept))
        final_ids = part.final_id[part.final_id >= 0]  # younger than what was read just now ...
        kept, finals = take_retained(buffer, observations, final_ids)
        if len(kept) < len(final_ids):  # ... but the writer is fast
            gone = (part.final_id >= 0) & ~np.isin(part.final_id, kept)
            part = replace(part, final_id=np.where(gone, -1, part.final_id))
        columns |= {name: getattr(part, name) for name in _SMALL}
        yield Chunk(part, columns, finals, priorities.of(part.id))


class Priorities:
    """The priorities of a buffer's rows.

    They are read from the leaves of the sum tree, ``priority ** alpha``, so they are what was set
    up to the last bits. With alpha 0 only 0 and 1 are told apart. Takes 8 bytes a row, and the time
    to go over all rows once: one for a whole export is enough.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self.known = isinstance(buffer, PrioritizedReplayBuffer)
        self._sampleable = np.sort(buffer.sampleable_ids()) if self.known else np.empty(0, np.int64)

    @property
    def largest(self) -> float | None:
        """The largest ever seen, which new rows get; None if the buffer has none."""
        figures = self._buffer.statistics().priorities if self.known else None
        return figures.largest_seen if figures else None

    def of(self, ids: np.ndarray) -> np.ndarray | None:
        """float64, NaN for rows that cannot be sampled or are gone; None if there are none."""
        if not self.known:
            return None
        buffer, places = self._buffer, ids
        assert isinstance(buffer, PrioritizedReplayBuffer)
        if buffer.capacity is not None:
            places = ids % (buffer.capacity // buffer.num_envs * buffer.num_envs)
        found = self._are_sampleable(ids)
        priorities = np.full(len(ids), np.nan)
        priorities[found] = buffer.tree.get(places[found]) ** (1 / (buffer.alpha or 1.0))
        # Another row may have come into a place by now, but only if its own has left.
        row, env = np.divmod(ids, buffer.num_envs)
        priorities[row < buffer.bounds[env, 0]] = np.nan
        return priorities

    def _are_sampleable(self, ids: np.ndarray) -> np.ndarray:
        known = self._sampleable
        if not len(known):
            return np.zeros(len(ids), np.bool_)
        return known[np.minimum(np.searchsorted(known, ids), len(known) - 1)] == ids


def pieces(bounds: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """The rows between the bounds of each env, env by env, `size` at a time."""
    for env, (first, stop) in enumerate(bounds.tolist()):
        for start in range(first, stop, size):
            yield env, np.arange(start, min(start + size, stop))


def rows_within(buffer: ReplayBuffer, budget: int) -> int:
    """How many whole rows take about `budget` bytes; one at least."""
    return max(1, budget // sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in buffer.fields.values()
    ))  # fmt: skip


def flat(values: np.ndarray) -> np.ndarray:
    """The same values with one axis after the first, also if there are none."""
    return values.reshape(len(values), math.prod(values.shape[1:]))
