"""What a store holds for a buffer, and what of the buffer is saved with it."""

from typing import Any, Self

import numpy as np

from diskreplay.distribution import Distribution
from diskreplay.errors import CapacityError, FormatError
from diskreplay.indexed_store import IndexedStore
from diskreplay.open_episodes import LONGEST
from diskreplay.options import Options
from diskreplay.prefetch import UnderWay
from diskreplay.sampling.rng import parse as parse_rng
from diskreplay.schema import Schema
from diskreplay.small_columns import check_steps
from diskreplay.store import machine, numbers
from diskreplay.store.priorities import Unsaved
from diskreplay.store.store import Store


class StoreKind:
    """The transitions of a `ReplayBuffer`: how its stores are checked, read and described."""

    reads_foreign = True
    """Whether `load` looks for checkpoints of other projects, too."""

    def __init__(self, schema: Schema, options: Options, distribution: Distribution) -> None:
        self.schema, self.options, self.distribution = schema, options, distribution

    @classmethod
    def parse(cls, store: Store, distribution: type[Distribution]) -> Self:
        """The kind that a store's attributes say that it is.

        Raises
        ------
        FormatError
            They are damaged, or describe batches that there is no memory for.
        """
        meta = store.meta
        try:
            options = Options.checked(
                store.num_envs, meta["stack_size"], meta.get("stack_padding", "zero"),
                meta["update_horizon"], meta["gamma"], meta["batch_size"],
                meta.get("max_transitions"),
            )  # fmt: skip
            if "facade" not in meta:  # the owner of slots asks for less
                options.check_capacity(store.capacity)
            found = cls(Schema.parse(meta), options, distribution.parse(meta))
            needed = options.batch_size * found.transition_bytes
            if needed > machine.memory():
                raise ValueError(
                    f"a batch of {options.batch_size:,} transitions of {found.transition_bytes:,} "
                    f"bytes takes {needed / 2**30:,.1f} GiB, and this process may have "
                    f"{machine.memory() / 2**30:,.1f} GiB"
                )
        except (
            FormatError, KeyError, TypeError, ValueError, AttributeError, OverflowError
        ) as error:  # fmt: skip
            raise FormatError(f"{store.path}/zarr.json: damaged attributes ({error})") from error
        found.check(store)
        return found

    @property
    def transition_bytes(self) -> int:
        """Memory that a batch takes for each of its transitions."""
        return self.schema.transition_bytes(self.options.stack_size, self.options.update_horizon)

    def check_capacity(self, capacity: int | None) -> None:
        """Refuse one that holds no transition."""
        self.options.check_capacity(capacity)

    def check(self, store: Store) -> None:
        """Refuse a store of something else, of which only the metadata are read so far."""
        self.schema.check(store, self.options.num_envs)

    def check_opened(self, store: Store) -> None:
        """Refuse a store, or a checkpoint to be loaded, that cannot be this buffer's."""
        self.check(store)

    def _follow(self, store: Store) -> None:
        """For a reader, which may open its store anew: keep as many transitions as its writer does
        by now. What a transition is stays what it was."""
        most = store.meta.get("max_transitions")
        try:
            if most is not None:
                numbers.integer("max_transitions", most, store.num_envs, numbers.MOST_ROWS)
        except ValueError as error:
            raise FormatError(f"{store.path / 'zarr.json'}: damaged ({error})") from error
        self.options = self.options._replace(max_transitions=most)

    def check_transitions(self, store: Store) -> None:
        """Refuse a store that was opened and has more transitions than are to be kept, with a
        `CapacityError`."""
        options, before = self.options, store.meta.get("max_transitions")
        most = options.transitions_per_env
        if most is None or (before is not None and before <= options.max_transitions):
            return  # what a kill has brought back leaves again, as it had
        kept = store.count - store.first - store.finals_between(store.first, store.count)
        more = kept - most - (options.stack_size - 1)
        if (more > 0).any():
            env = int(more.argmax())
            raise CapacityError(
                f"max_transitions: {options.max_transitions} leaves {most} for env {env}, which "
                f"has {kept[env]}: shrink=True deletes the oldest, for good; or give a larger one"
            )

    def check_saved(self, saved: Store) -> None:
        """Refuse a checkpoint with what could not be taken over, in its own words and before
        anything is built from it."""
        saved_rng(saved)
        self.under_way(saved)
        check_steps(saved)
        saved_next_step(saved)
        self.distribution.check_saved(saved)

    def under_way(self, saved: Store) -> list[UnderWay]:
        """What the prefetchers of the saved run had under way, or a `FormatError`."""
        try:
            return UnderWay.parse(saved.meta.get("prefetch", []), self.transition_bytes)
        except FormatError as error:
            raise FormatError(f"{saved.path / 'zarr.json'}: {error}") from error

    def attach(self, store: Store, *, resume_episodes: bool | None = None) -> IndexedStore:
        """What is in memory of a store.

        Parameters
        ----------
        resume_episodes : bool or None
            Whether a checkpoint's open episodes go on; None for a store that was opened.

        Raises
        ------
        CorruptSegmentError, FormatError
            What is on disk cannot be.
        """
        if store.mode == "r":
            self._follow(store)
        rows = IndexedStore(store, self.schema, self.options, self.distribution.make_sampler)
        if resume_episodes:
            rows.episodes.take_up(saved_next_step(store))
        return rows

    def complete(self, rows: IndexedStore) -> None:
        """Have all of `rows` read that is otherwise read when first needed, so that a store that is
        damaged is refused as a whole."""
        rows.indexed()

    def describe(self) -> dict[str, Any]:
        """Of the group's attributes, what does not change while the buffer is open."""
        return {
            **self.distribution.describe(), **self.schema.describe(), **self.options.describe()
        }  # fmt: skip

    def state(self, rows: IndexedStore | None) -> dict[str, Any]:
        """Of the group's attributes, what changes; None for a store that is being created."""
        if rows is None:
            return {"next_step": [0] * self.options.num_envs}
        episodes = rows.episodes
        next_step = {"next_step": episodes.next_step.tolist()}
        return {**next_step, **episodes.attributes(), **self.distribution.state(rows)}

    def leaves(self, rows: IndexedStore) -> np.ndarray | None:
        """The priorities that a record writes, if there are some."""
        return self.distribution.leaves(rows)

    def unsaved(self, rows: IndexedStore) -> Unsaved | None:
        """The same, with what is kept beside them."""
        leaves = self.leaves(rows)
        return None if leaves is None else Unsaved(leaves, self.describe().get("alpha"))


def saved_rng(store: Store) -> tuple[np.random.BitGenerator, np.ndarray] | None:
    """What `ReplayableRng.adopt` takes, as it was saved, or a `FormatError`; None without any."""
    if "rng" not in store.meta:
        return None
    try:
        return parse_rng(store.meta["rng"])
    except FormatError as error:
        raise FormatError(f"{store.path / 'zarr.json'}: {error}") from error


def saved_next_step(store: Store) -> np.ndarray:
    """The step that each env's next row has, as it was saved; int64 of shape (num_envs,). Or a
    `FormatError`, where it is none or does not go on from the newest row."""
    try:
        saved = numbers.integers(
            "next_step", store.meta.get("next_step", [0] * store.num_envs), store.num_envs,
            0, LONGEST,
        )  # fmt: skip
        newest = store.newest("step", -1)
        bad = (saved != 0) & (saved != newest + 1)
        if bad.any():
            env = int(bad.argmax())
            raise ValueError(f"next_step: {saved[env]} found behind a row of step {newest[env]}")
    except ValueError as error:
        raise FormatError(f"{store.path / 'zarr.json'}: damaged ({error})") from error
    return saved
