"""The windows that there are, each named by its anchor, and how one is drawn."""

from typing import Literal

import numpy as np

from diskreplay.errors import EmptyBufferError, NotSampleableError
from diskreplay.sampling.new_windows import NewWindows
from diskreplay.sampling.priority_tree import PriorityTree
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.window import Window, WindowPlan
from diskreplay.signals import undisturbed

_PATIENCE = 8  # rounds of picking rows blindly before listing the anchors
_NOTHING = np.empty(0)
_MARKED = 1  # of a row that is an anchor, in place of 0


class Anchors:
    """Follows a row index, and knows of each retained row whether it is an anchor: the first
    learning row of a window that can be drawn.

    It is told nothing: `catch_up` looks at what is new in the index since it was called last, so
    that adding rows costs nothing for it. Draws are even, or in proportion to a power of
    priorities, one a window (Schaul et al., "Prioritized Experience Replay", 2016).

    Parameters
    ----------
    window : Window
    stack_padding : {"zero", "reset"}
    prioritized : bool
    alpha : float
    normalization : {"batch", "buffer"}
    online : int
        How many rows apart new windows are handed out once, before all draws; 0: none are.

    Attributes
    ----------
    count : int
        Windows that there are.
    tree : PriorityTree or None
        Leaf ``place`` holds ``p^alpha`` of the window whose anchor is there. None where all are
        alike and every row may be an anchor: then rows are picked until one is.
    largest : float
        The largest priority seen; that of new windows.
    new : NewWindows or None
        With `online`, what was not handed out. Replaced and never changed: whoever keeps what it
        was can go back.

    Notes
    -----
    1 byte a row, and 8 with a tree.
    """

    def __init__(
        self,
        window: Window,
        stack_padding: str,
        *,
        prioritized: bool,
        alpha: float,
        normalization: Literal["batch", "buffer"],
        online: int,
    ) -> None:
        from diskreplay.sampling import window_kernels

        self._kernels = window_kernels
        self._window = window
        self.figures = window.figures(repeat_first=stack_padding == "reset")
        self._alpha = alpha
        self._has_tree, self._apart = prioritized or window.stride > 1, online
        self._track_min = prioritized and normalization == "buffer"
        self.largest = 1.0
        self.tree: PriorityTree | None = None
        self._index: RowIndex  # by `follow`

    @property
    def _tree(self) -> PriorityTree:
        assert self.tree is not None
        return self.tree

    # -- following the index

    def follow(self, index: RowIndex) -> None:
        """Begin with an index of other rows than before."""
        self._index, self.count = index, 0
        self._seen = np.zeros((index.num_envs, 2), np.int64)
        # Rows that were evicted before are nothing to catch up with.
        self._seen[:] = index.first[:, None]
        self._marks = np.zeros(index.size, np.uint8)
        self.tree = None
        if self._has_tree:
            self.tree = PriorityTree(index.size, self._alpha, track_min=self._track_min)
        self.new = None
        self.catch_up(index)
        if self._apart:  # only what comes from now on is new
            cursor = self._settled()
            for env in range(index.num_envs):
                rows = self.ids()[self.ids() % index.num_envs == env] // index.num_envs
                if len(rows):
                    cursor[env] = rows[-1] + 1
            self.new = NewWindows(cursor)

    def catch_up(self, index: RowIndex) -> None:
        """Find out which windows have come and gone. `index` is that of the last call, or another
        one of the same rows. O(new rows)."""
        self._index = index
        if len(self._marks) < index.size:
            self._grow(index.size)
        if self._seen.tobytes() == index.bounds.tobytes():  # a third of `np.array_equal`
            return
        kernels = self._kernels
        room = kernels.count_changes(*index.state, self.figures, self._seen)
        changed = np.empty((2, room), np.int64)
        with undisturbed():  # Ctrl-C in between would leave windows that are never drawn
            gone, came = kernels.find_anchors(
                *index.state, self.figures, self._seen, self._marks, changed
            )
            self.count += came - gone
            if self.tree is not None:
                # In this order: a new anchor may sit in the place of an evicted one.
                self.tree.fill(changed[0, :gone], 0.0)
                self.tree.fill(changed[1, :came], self.tree.leaf(self.largest))

    def _grow(self, size: int) -> None:
        marks = np.zeros(size, np.uint8)
        marks[: len(self._marks)] = self._marks
        if self.tree is not None:
            self.tree = self.tree.grown(size)
        self._marks = marks  # last: if memory is short, the tree grows with the next call

    # -- looking

    def ids(self) -> np.ndarray:
        """All anchors, env by env, oldest first. O(rows)."""
        return self._index.ids_with(self._marks[: self._index.size], _MARKED)

    def _marked(self, start: int, stop: int) -> np.ndarray:
        """Whether the rows ``start..stop`` are anchors, of shape ``(stop - start, num_envs)``."""
        return self._index.rows_with(self._marks[: self._index.size], _MARKED, start, stop)

    def check(self, anchors: np.ndarray) -> None:
        """Refuse ids that name no window.

        Raises
        ------
        UnknownIdError, NotSampleableError
        """
        index = self._index
        index.check_known(anchors)
        there = self._there(anchors)
        if not there.all():
            at = int((~there).argmax())
            raise NotSampleableError(
                f"anchor {anchors[at]} at position {at} names no window: its row is evicted, or "
                f"none with ends={self._window.ends!r} and length {self._window.length} begins "
                "there; anchors() lists those that there are"
            )

    def _there(self, anchors: np.ndarray) -> np.ndarray:
        """Whether there is a window of each of these ids, which are not negative."""
        index = self._index
        rows, envs = np.divmod(anchors, index.num_envs)
        retained = (rows >= index.first[envs]) & (rows < index.count[envs])
        return retained & (self._marks[anchors % index.size] != 0)

    # -- drawing

    def draw(
        self, plan: WindowPlan, rng: ReplayableRng, beta: float, powers: np.ndarray,
        to_go: np.ndarray,
    ) -> int:  # fmt: skip
        """Put anchors, their probabilities and importance weights into a plan, with `online` those
        that are new first; and what their windows consist of, see `fill`.

        Returns
        -------
        int
            How many are new.

        Raises
        ------
        EmptyBufferError
            There is no window, or all priorities are 0.
        """
        if not self.count:
            raise EmptyBufferError(
                f"no window of {self._window.length} rows with ends={self._window.ends!r} to "
                "sample yet: add more steps"
            )
        new, known, size, share = 0, 0, plan.size, 1 / self.count
        if self.tree is not None or self.new is not None:
            new, known = self._draw_first(plan, rng, beta)
        for _ in range(_PATIENCE):
            known = rng.draw(
                size - known, self._kernels.window_plan, self._index.table, self.figures,
                self._marks, powers, to_go, share, plan.table,
            )  # fmt: skip
            if known == size:
                return new
        there = self.ids()  # nearly no row is an anchor
        numbers = rng.random(size - known)
        plan.anchor[known:] = there[(numbers * len(there)).astype(np.int64)]
        plan.probability[known:], plan.weight[known:] = share, 1.0
        self.fill(plan, powers, to_go)
        return new

    def _draw_first(self, plan: WindowPlan, rng: ReplayableRng, beta: float) -> tuple[int, int]:
        """Put those that are new into a plan, then some by priority; returns how many are new, and
        how many there are. The others are drawn evenly."""
        known = new = 0 if self.new is None else self._take_new(self.new, plan.anchor)
        if self.tree is not None:
            if new < plan.size:
                self.tree.draw(
                    plan.anchor[new:], plan.probability[new:], plan.weight[new:], self._index, rng,
                    beta,
                )  # fmt: skip
            known = plan.size
        if new:
            plan.probability[:new] = self.probability(plan.anchor[:new])
            plan.weight[:] = self._weights(plan.probability, beta)
        return new, known

    def fill(self, plan: WindowPlan, powers: np.ndarray, to_go: np.ndarray) -> None:
        """Have a plan say what the windows of its anchors consist of.

        Parameters
        ----------
        plan : WindowPlan
            With anchors that were checked, or drawn.
        powers : ndarray of float64, shape (n_step + 1,)
            Of gamma.
        to_go : ndarray of float32
            Returns to go by place, or empty.
        """
        self._kernels.window_plan(
            self._index.table, self.figures, self._marks, powers, to_go, 0.0, plan.table, _NOTHING,
            0, 0,
        )  # fmt: skip

    def _weights(self, probability: np.ndarray, beta: float) -> np.ndarray:
        """Importance weights of windows of which some were not drawn, as `tree_draw` makes them; a
        window of priority 0, which only the queue hands out, has the weight of the others."""
        if self.tree is None:
            return np.ones(len(probability), np.float32)
        positive = probability > 0
        least = self.tree.least_probability or probability.min(where=positive, initial=np.inf)
        shares = np.divide(least, probability, where=positive, out=np.ones(len(probability)))
        return (shares**beta).astype(np.float32)

    def probability(self, anchors: np.ndarray) -> np.ndarray:
        """The probability of each anchor in one draw."""
        if self.tree is None:
            return np.full(len(anchors), 1 / max(self.count, 1))
        return self.tree.leaves[anchors % self._index.size] / (self.tree.total or 1.0)

    def restore_new(self, new: NewWindows) -> None:
        """Take over which windows were handed out; rows may have gone since, or all of them."""
        count = self._index.count
        if self.new is not None:
            cursor = np.where(new.cursor < count + self._apart, new.cursor, count)
            self.new = NewWindows(cursor, new.returned[self._there(new.returned)])

    def _take_new(self, new: NewWindows, ids: np.ndarray) -> int:
        """Put windows that nobody was given yet into `ids`, oldest first; returns how many there
        were."""
        index, cursor, returned, known = self._index, new.cursor.copy(), new.returned, 0
        if len(returned):
            returned = returned[self._there(returned)]  # others have left since
            known = min(len(returned), len(ids))
            ids[:known] = returned[:known]
            ids, returned = ids[known:], returned[known:]
        found = self._kernels.take_new(
            self._marks, index.bounds, index.figures, cursor, self._settled(), self._apart, ids
        )
        self.new = NewWindows(cursor, returned)
        return known + found

    def _settled(self) -> np.ndarray:
        out = np.empty(self._index.num_envs, np.int64)
        self._kernels.settled_rows(*self._index.state, self.figures, out)
        return out

    # -- priorities

    def update(self, anchors: np.ndarray, priorities: np.ndarray) -> int:
        """Set priorities; returns how many were ignored since there is no such window any more.

        Raises
        ------
        PriorityError, UnknownIdError
            Nothing is changed.
        """
        tree = self._tree
        ignored, largest = tree.update(
            tree.row_kernels.tree_update_marked, self._marks.reshape(-1, 1), self._index, anchors,
            priorities, "anchor", "eta * max |td| + (1 - eta) * mean |td|",
        )  # fmt: skip
        self.largest = max(self.largest, largest)
        return ignored

    # -- what is saved

    def leaves(self) -> np.ndarray | None:
        """The leaves of all retained rows from the oldest of any env on, float64 of shape (rows,
        num_envs), NaN where a row is no anchor; None where there are no priorities."""
        if self.tree is None:
            return None
        index = self._index
        start, stop = int(index.first.min()), int(index.count.max())
        out = np.empty((stop - start, index.num_envs))
        leaves = self.tree.leaves[: index.size].reshape(-1, index.num_envs)
        for at, place, rows in index.runs(start, stop):
            out[at : at + rows] = leaves[place : place + rows]
        out[~self._marked(start, stop)] = np.nan
        return out

    def restore(self, start: int, leaves: np.ndarray) -> None:
        """Take over what `leaves` returned, of rows from `start` on; windows that have none keep
        the largest priority."""
        index = self._index
        low, high = (
            max(start, int(index.first.min())),
            min(start + len(leaves), int(index.count.max())),
        )
        if low >= high:
            return
        known = leaves[low - start : high - start]
        which = self._marked(low, high) & ~np.isnan(known)
        self._tree.restore(index, low, known, which)
