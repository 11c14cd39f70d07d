"""The rows of one store, and what a buffer knows of them in memory."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from diskreplay import small_columns, validation
from diskreplay.batch_reader import BatchReader
from diskreplay.drawable_rows import DrawableRows
from diskreplay.errors import DiskReplayError, ReentryError
from diskreplay.followed_rows import catch_up
from diskreplay.open_episodes import LONGEST, OpenEpisodes
from diskreplay.options import Options
from diskreplay.runs import Run, joined
from diskreplay.schema import Schema
from diskreplay.signals import undisturbed
from diskreplay.small_columns import BEGINS, FINAL
from diskreplay.store.store import Store
from diskreplay.validation import RowValidator

if TYPE_CHECKING:
    from diskreplay.sampling.initial_priorities import Given
    from diskreplay.sampling.prioritized import PrioritizedSampler
    from diskreplay.sampling.row_index import RowIndex
    from diskreplay.sampling.uniform import UniformSampler

_NOT_MADE: Any = None  # an index


class IndexedStore(DrawableRows):
    """One store with its row index, its sampler, its counts and its episodes under way.

    It lives as long as its store: `ReplayBuffer.load` puts another in its place. All methods need
    the buffer's lock.

    Attributes
    ----------
    add_count : int
        Transitions ever recorded.
    final_at : int
        The place of ``is_final`` among the fields; ``step`` is before it.
    index : RowIndex or None
    sampler : UniformSampler or PrioritizedSampler or None
        Both made by `make_index` when first needed, and Numba is not loaded before.
    flushes : int
        What `Follower.flushes` was when a reader's sampler was made.
    """

    def __init__(
        self,
        store: Store,
        schema: Schema,
        options: Options,
        make_sampler: "Callable[[RowIndex, Store], UniformSampler | PrioritizedSampler]",
    ) -> None:
        store.columns = {name: store.columns[name] for name in schema.names}
        self.store = store
        self._schema, self._options, self.make_sampler = schema, options, make_sampler
        self.index: RowIndex = _NOT_MADE
        self.sampler: Any = None
        self.flushes = 0
        self._stale: tuple[Any, np.ndarray] | None = None
        self.add_count = int(store.transitions_at(store.count).sum())
        self.episodes = OpenEpisodes(store)
        self.next_step = self.episodes.next_step  # the same array, for `add`
        self._validator = RowValidator(schema, store.num_envs)
        self._reward_at = schema.names.index("reward")
        self.final_at = self._reward_at + 4

    # -- the index

    def indexed(self) -> Self:
        """These rows, with their index."""
        if self.index is None:
            self.make_index()
        return self

    def make_index(self) -> None:
        """Build the row index from the columns, and the sampler over it.

        Raises
        ------
        CorruptSegmentError, FormatError
            What is on disk cannot be. Nothing has changed.
        """
        from diskreplay.sampling.row_index import RowIndex

        store, options = self.store, self._options
        index = RowIndex(
            store.rows_per_env, store.num_envs, options.stack_size, options.update_horizon,
            options.gamma, options.transitions_per_env,
        )  # fmt: skip
        if index.growing:
            index.grow(int(store.count.max()) + 2)
        index.count[:], index.first[:] = store.count, store.first
        begins = self.episodes.retained_begins()
        num_envs = store.num_envs
        there = [id_ for id_ in begins if id_ // num_envs < store.count[id_ % num_envs]]
        small_columns.load(store, index, there)
        index.validate()
        self._batch_reader = BatchReader(
            self._schema, options.stack_size, options.update_horizon,
            repeat_first=options.stack_padding == "reset",
        )  # fmt: skip
        flushes = store.follower.flushes()
        store.follower.renew_largest()
        sampler = self.make_sampler(index, store)
        if self._stale is not None:
            sampler.take_over(*self._stale)
        self.sampler, self.flushes = sampler, flushes
        # One array: what the index evicts, the store may delete.
        store.first = index.first
        self.index = index
        self._stale = None  # not before: Ctrl-C may have it all made again

    def grow(self, rows: int) -> None:
        """Make room for more rows of any env in the index of a store that keeps all."""
        index = self.index
        if index is None or not index.growing:
            return
        rows += int(index.count.max())
        if rows > index.size // self.store.num_envs:
            # The sampler first: if memory is short, it has not fewer leaves than kernels go by.
            self.sampler.grow(index.size_with(rows))
            index.grow(rows)

    def take_in(self, *added: np.ndarray) -> None:
        """Tell the index and the sampler of committed rows: env, step, flags and reward of each, as
        `RowIndex.append` has them."""
        if self.index is None:
            self.store.writer.evict()
            return
        left, entered = self.index.append(*added)
        if len(left):
            self.sampler.leave(left)
        if len(entered):
            self.sampler.enter(entered)

    # -- adding; where there is no index, none is kept up

    def given(self, priority: Any, shape: tuple[int, ...], **how: Any) -> "Given | None":
        """The priorities that rows are to be added with, checked; None without any."""
        return None if priority is None else self.sampler.given(priority, shape, **how)

    def note_given(self, envs: np.ndarray, given: "Given | None") -> None:
        """Rows of these envs are about to be added, with these priorities. Before they are: Ctrl-C
        may leave them committed, and memory not know of them."""
        if self.index is not None and (given is not None or self.sampler.initial is not None):
            self.sampler.note(envs, given)

    def _seen(self, given: "Given | None") -> None:
        """Rows were added with these priorities."""
        if given is not None:
            self.sampler.largest = max(self.sampler.largest, given.largest)

    def add_row(
        self, observation: Any, action: Any, reward: Any, terminated: Any, truncated: Any,
        next_observation: Any, extras: Any, priority: Any = None,
    ) -> np.ndarray:  # fmt: skip
        """One step of the only env, as `ReplayBuffer.add` has it; returns its id."""
        step = self.next_step.item(0)
        if step == LONGEST:
            self.episodes.refuse(0)
        row, final = self._validator.row(
            step, observation, action, reward, terminated, truncated, next_observation, extras
        )
        ids = self.store.count.copy()  # of the only env a row's number is its id
        self._append(step, row, final, None if priority is None else self.given(priority, ()))
        return ids

    def put_row(self, row: list[Any]) -> int:
        """One step of the only env, as `SlotBuffer.put` has it; returns its number."""
        step, at = self.next_step.item(0), self._reward_at
        if step == LONGEST:
            self.episodes.refuse(0)
        reward, terminated = validation.fit_reward(row[at] or 0.0), bool(row[at + 1])
        row[at : at + 5] = reward, terminated, False, step, False
        return self._append(step, row, None)

    def _append(
        self, step: int, row: list[Any], final: list[Any] | None, given: "Given | None" = None
    ) -> int:
        at = self._reward_at
        reward, terminated, truncated = row[at], row[at + 1], row[at + 2]
        index, number, writer = self.index, self.store.count.item(0), self.store.writer
        flags = terminated + 2 * truncated
        try:
            if index is None:
                writer.append_row(row, final)
                writer.evict()
            else:
                sampler = self.sampler
                if index.growing:
                    self.grow(2)
                if final is None and given is None and sampler.initial is None:
                    # By far the most common: one kernel writes the last columns, commits the row
                    # and takes it in.
                    sampler.append_one(step, flags, reward, writer.place(number, row))
                else:
                    self._append_with(step, flags, row, final, given)
            self.next_step[0] = 0 if flags else step + 1
            self.add_count += 1
            if given is not None:
                self._seen(given)
        except BaseException as error:
            self._mend(number, error)
            raise
        return number

    def _append_with(
        self, step: int, flags: int, row: list[Any], final: list[Any] | None, given: "Given | None"
    ) -> None:
        """A row of the only env that has a final row behind it, or a priority, or one before it
        had."""
        finals = int(final is not None)
        if given is not None or self.sampler.initial is not None:
            self.note_given(np.zeros(1 + finals, np.int64), given and given.and_none(finals))
        self.store.writer.append_row(row, final)
        self.sampler.append_one(step, flags, row[self._reward_at])
        if finals:
            self.sampler.append_one(step + 1, FINAL, 0.0)

    def _mend(self, before: int | np.ndarray, error: BaseException) -> None:
        """After a call that stopped short: rows that it committed stay, and what memory knows of
        them is taken from the store, the index when it is next needed.

        Ctrl-C, or what a signal handler raises, may come between any two steps of an `add`, and
        people go on after it.

        Parameters
        ----------
        before : int or ndarray of int64, shape (num_envs,)
            What `store.count` was.
        """
        store, committed = self.store, self.store.count > before
        is_ours = isinstance(error, DiskReplayError) and not isinstance(error, ReentryError)
        if is_ours and not committed.any() and not store.writer.is_amid:
            return  # refused, on a full disk say, before anything was changed
        store.writer.recount()
        self.add_count = int(store.transitions_at(store.count).sum())
        for env in np.flatnonzero(committed).tolist():
            self.episodes.resume(env)
        if self.index is not None:
            # These may have begun to be sampleable, and the sampler not know it.
            newest = store.count * 0 + before - self._options.update_horizon
            self._stale, self.index = (self.sampler, newest), _NOT_MADE

    def add_rows(
        self, observation: Any, action: Any, reward: Any, terminated: Any, truncated: Any,
        next_observation: Any, mask: Any, next_observation_mask: Any, extras: Any,
        priority: Any = None,
    ) -> np.ndarray:  # fmt: skip
        """One step of each env that `mask` names; returns the ids."""
        num_envs, validator, steps = self.store.num_envs, self._validator, self.next_step
        envs = validator.envs(mask)
        self.episodes.check_steps(envs)
        terminated = validator.flags("terminated", terminated, envs)
        truncated = validator.flags("truncated", truncated, envs)
        row_values = validator.rows(
            envs, steps, observation, action, reward, terminated, truncated, extras
        )
        ended = terminated | truncated
        final_envs, final = envs[:0], []
        if next_observation is not None:
            has = ended
            if next_observation_mask is not None:
                has = ended & validator.flags("next_observation_mask", next_observation_mask, envs)
            final_envs = np.flatnonzero(has)  # these flags are cleared where nothing is recorded
            final = validator.frames(final_envs, steps + 1, next_observation)
        flags = terminated.view(np.uint8) + 2 * truncated.view(np.uint8)
        added = [envs, steps, flags, row_values[self._reward_at]]
        if len(envs) < num_envs:
            added[1:] = (values[envs] for values in added[1:])
        if len(final_envs):
            last = final_envs, steps[final_envs] + 1, [FINAL] * len(final_envs)
            more = *last, np.zeros(len(final_envs))
            added = [np.append(a, b).astype(a.dtype) for a, b in zip(added, more, strict=True)]
        given = self.given(priority, (num_envs,), among=envs)
        before = self.store.count.copy()
        try:
            self.grow(2)
            self.note_given(added[0], given and given.and_none(len(final_envs)))
            rows = self.store.writer.append(envs, row_values, final_envs, final)
            self.take_in(*added)
            if len(envs) < num_envs:
                steps[envs] += 1
            else:  # of thousands of envs each indirection counts
                steps += 1
            steps[ended] = 0
            self.add_count += len(envs)
            self._seen(given)
        except BaseException as error:
            self._mend(before, error)
            raise
        return rows * num_envs + envs

    def add_frame(self, observation: Any) -> np.ndarray:
        """A final row in the running episode of the only env, which goes on; returns its id."""
        step = self.next_step.item(0)
        if step == LONGEST:
            self.episodes.refuse(0)
        return np.array([self._append_frame(self._validator.frame(step, observation), step + 1)])

    def _append_frame(self, row: list[Any], next_step: int) -> int:
        """A final row of the only env; returns its number."""
        number = self.store.count.item(0)
        try:
            self.grow(1)
            self.note_given(np.zeros(1, np.int64), None)
            self.store.writer.append_row(row, None, is_final=True)
            if self.index is None:
                self.store.writer.evict()
            else:
                self.sampler.append_one(self.next_step.item(0), FINAL, 0.0)
            self.next_step[0] = next_step
        except BaseException as error:
            self._mend(number, error)
            raise
        return number

    def end_episodes(self, mask: Any, next_observation: Any) -> None:
        """Cut the episodes under way, as `ReplayBuffer.end_episode` has it."""
        told, steps = self._validator.envs(mask), self.next_step
        envs, behind = told[steps[told] > 0], self.store.count[told]
        if next_observation is None:
            pass
        elif self.store.num_envs == 1:
            if len(envs):
                row = self._validator.frame(steps.item(0), next_observation, is_next=True)
                self._append_frame(row, 0)
        elif final := self._validator.frames(envs, steps, next_observation):
            flags, rewards = np.full(len(envs), FINAL, np.uint8), np.zeros(len(envs), np.float32)
            before = self.store.count.copy()
            try:
                self.grow(1)
                self.note_given(envs, None)
                self.store.writer.append(envs, final, envs[:0], [], is_final=True)
                self.take_in(envs, steps[envs], flags, rewards)
                steps[envs] = 0
            except BaseException as error:
                self._mend(before, error)
                raise
        self.episodes.cut[told], steps[told] = behind, 0  # last: what is refused cuts none

    def evict(self, first: np.ndarray) -> None:
        """Let go of the rows of each env before these; of those that have left already, of none."""
        store, envs = self.store, np.flatnonzero(first > self.store.first)
        with undisturbed():
            if self.index is None:
                store.first[envs] = first[envs]
            else:
                self.evict_indexed(envs, first)
            store.writer.note_first(envs)

    def evict_indexed(self, envs: np.ndarray, first: np.ndarray) -> None:
        """Have the index let go of rows before these of each env, and none of them drawn."""
        for env in envs.tolist():
            if len(left := self.index.evict(env, int(first[env]))):
                self.sampler.leave(left)

    def extend(self, runs: Sequence[Run], given: "Given | None" = None) -> None:
        """Rows of some envs, each of which is there once; `given` for all of them, run after run.

        In commits of so many rows of each env as there is room for at once: what stops short, on a
        full disk say, leaves the first ones.
        """
        most, lengths = self.store.writer.most_at_once, np.array([run.rows for run in runs])
        self.episodes.look_again()
        for start in range(0, int(lengths.max(initial=0)), most):
            parts = [run.part(start, start + most) for run in runs if run.rows > start]
            now = given
            if given is not None:
                at = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                now = given._replace(leaves=given.leaves[(at >= start) & (at < start + most)])
            self._extend(parts, now)

    def _extend(self, runs: Sequence[Run], given: "Given | None") -> None:
        reward, terminated, truncated, step, is_final = (
            joined(runs, column) for column in range(self._reward_at, self._reward_at + 5)
        )
        envs, lengths = (np.array(of) for of in zip(*((r.env, r.rows) for r in runs), strict=True))
        stops = np.cumsum(lengths)
        flags = terminated + 2 * truncated.view(np.uint8) + FINAL * is_final.view(np.uint8)
        for env, first in zip(envs.tolist(), (stops - lengths).tolist(), strict=True):
            if self.episodes.begins_next(env):
                flags[first] |= BEGINS
        before = self.store.count.copy()
        try:
            self.grow(int(lengths.max()))
            of_rows = np.repeat(envs, lengths)
            self.note_given(of_rows, given)
            self.store.writer.extend(runs)
            self.take_in(of_rows, step, flags, reward)
            last = stops - 1
            over = terminated[last] | truncated[last] | is_final[last]
            self.next_step[envs] = np.where(over, 0, step[last] + 1)
            self.add_count += int(np.count_nonzero(~is_final))
            self._seen(given)
        except BaseException as error:
            self._mend(before, error)
            raise

    def fitted(self, columns: Any) -> list[np.ndarray]:
        """The columns of `ReplayBuffer.extend`, checked, in the order and dtypes of the store."""
        return self._validator.columns(columns)

    # -- following a writer

    def follow(self) -> None:
        """For a reader whose store was not replaced: take over what the writer did since."""
        catch_up(self)
        self.know_bounds()

    def know_bounds(self) -> None:
        """Have the index where nothing else knows which rows are left."""
        if self._options.transitions_per_env is not None:
            self.indexed()
