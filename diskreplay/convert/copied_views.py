"""The priorities of views of sequences, taken over into a copy of the rows."""

import warnings

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.sampling.new_windows import NewWindows
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sequence_state import SequenceState
from diskreplay.store import priorities


class CopiedViews:
    """What several sources had saved of their views, for the rows that were copied of them.

    A view goes with its name: its priorities, the largest one seen, and for one that is online
    which windows are new. Its generator begins anew, and batches that were under way are left out.
    """

    def __init__(self, target: ReplayBuffer) -> None:
        self._target = target
        self._views: dict[str, SequenceState] = {}
        self._leaves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._cursors: dict[str, np.ndarray] = {}
        self._returned: dict[str, list[tuple[int, int, int]]] = {}  # source, place there, id
        self._states: dict[str, SequenceState] = {}
        self._source, self._start, self._envs = 0, 0, 1

    def next_source(self, source: ReplayBuffer) -> None:
        """Rows of another source are coming."""
        with source._turn():
            self._states = source._views.states(source._rows)
            self._start = int(source._rows.store.first.min())
            self._source, self._envs = self._source + 1, source.num_envs
        for name, state in list(self._states.items()):
            known = self._views.setdefault(name, state)
            if known.identity != state.identity:
                warnings.warn(
                    f"{source.path}: its view {name!r} has {known.difference(state.identity)}; its "
                    "priorities are left out", RuntimeWarning, stacklevel=5,
                )  # fmt: skip
                del self._states[name]
            elif state.largest > known.largest:
                self._views[name] = known._replace(largest=state.largest)

    def add(self, env: int, rows: np.ndarray, ids: np.ndarray) -> None:
        """These rows of an env of the source are `ids` in the copy; -1 for those left out."""
        num_envs, kept = self._target.num_envs, ids >= 0
        rows, ids = rows[kept], ids[kept]
        for name, state in self._states.items():
            if isinstance(state.leaves, np.ndarray):
                leaves = np.full(len(rows), np.nan)
                at = rows - self._start
                there = (at >= 0) & (at < len(state.leaves))
                leaves[there] = state.leaves[at[there], env]
                self._leaves.setdefault(name, []).append((ids, leaves))
            if state.new is not None:
                handed_out = ids[rows < state.new.cursor[env]] // num_envs
                cursor = self._cursors.setdefault(name, np.zeros(num_envs, np.int64))
                cursor[env] = max(cursor[env], handed_out.max(initial=-1) + 1)
                for place, anchor in enumerate(state.new.returned.tolist()):
                    row, whose = divmod(anchor, self._envs)
                    for now in ids[rows == row].tolist() if whose == env else ():
                        self._returned.setdefault(name, []).append((self._source, place, now))

    def write(self) -> None:
        """Give them to the copy, in which all rows are."""
        target = self._target
        with target._turn():
            store = target._rows.store
            first, stop = int(store.first.min()), int(store.count.max())
            described = {}
            for name, state in self._views.items():
                leaves = None
                if state.identity.get("prioritized"):
                    leaves = np.full((stop - first, store.num_envs), np.nan)
                    for ids, values in self._leaves.get(name, []):
                        row, env = np.divmod(ids, store.num_envs)
                        leaves[row[row >= first] - first, env[row >= first]] = values[row >= first]
                    unsaved = priorities.Unsaved(leaves, state.identity["alpha"])
                    priorities.replace(store.path, priorities.set_name(name), unsaved, first)
                new = None
                if state.new is not None:
                    cursor = self._cursors.get(name, np.zeros(store.num_envs, np.int64))
                    returned = [anchor for *_, anchor in sorted(self._returned.get(name, []))]
                    new = NewWindows(cursor, np.array(returned, np.int64))
                rng = ReplayableRng(np.random.default_rng()).state()
                now = SequenceState.now(state.identity, rng, state.largest, new, None, leaves)
                described[name] = now.attributes
            if described:
                store.meta[priorities.VIEWS] = described
