"""Windows whose goal is one that their episode reached."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import whole
from diskreplay.relabelling import Relabelling
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.sequence_options import SequenceOptions
from diskreplay.sequence_reader import DrawnSequences
from diskreplay.sequence_view import SequenceView
from diskreplay.store.rwlock import ReadGuard
from diskreplay.transition_source import TransitionSource
from diskreplay.validation import generator


class View(Protocol):
    """What is asked of a view, `Sequences`."""

    options: SequenceOptions
    _buffer: TransitionSource
    _view: SequenceView

    def _draw(self, size: int, beta: float | None, guard: ReadGuard) -> DrawnSequences: ...


class SequenceHindsight:
    """A view's windows, most of them with other goals; made by `Sequences.hindsight`.

    Andrychowicz et al., "Hindsight Experience Replay", 2017. A window has one goal, as the policy
    had that acted in it.

    Parameters
    ----------
    view : Sequences
    goals : Relabelling
    seed
        As for `Sequences.hindsight`.
    """

    def __init__(
        self,
        view: View,
        goals: Relabelling,
        seed: int | np.random.Generator | None,
    ) -> None:
        if view.options.window.crosses:
            raise InvalidInputError(
                "hindsight: windows with ends='cross' hold several episodes, and have one goal; "
                "make a view with ends='inside', 'shift' or 'pad'"
            )
        if view.options.returns_to_go is not None:
            raise InvalidInputError(
                "hindsight: returns_to_go are sums of rewards behind the window, which keep their "
                "goal; make a view without them"
            )
        self._goals = goals
        self._view, self._buffer = view, view._buffer
        self._rng = None if seed is None else ReplayableRng(generator(seed)).rng

    def sample(self, batch_size: int | None = None, *, beta: float | None = None) -> SequenceBatch:
        """Draw windows as the view does, and give ``n_goals`` of ``n_goals + 1`` of them a goal
        that their episode reached.

        Parameters
        ----------
        batch_size, beta
            As for `Sequences.sample`.

        Returns
        -------
        SequenceBatch
            With `relabelled`, bool of shape (N,): where ``observation[desired]``, the rewards and
            what follows from them are new. Windows that the view draws evenly come in no order, and
            these are the first ones; else any.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError
            What `compute_reward` or `terminated` returned is not one number a transition, or a
            reward is not finite as float32.
        EmptyBufferError, CorruptSegmentError, ClosedError, ForkedError
            As `Sequences.sample`.
        """
        view, buffer = self._view, self._buffer
        size = view.options.batch_size if batch_size is None else whole("batch_size", batch_size)
        buffer._turn_when_drawn()

        def attempt(guard: ReadGuard) -> "tuple[SequenceBatch, _Windows] | None":
            with buffer._lock:
                drawn = view._draw(size, beta, guard)
                windows = self._choose(drawn)
            windows = self._read(drawn, windows)  # before the batch, which ends the guard
            batch = drawn.read()
            if batch is None:  # it is drawn again, and its new windows are to come then
                with buffer._lock:
                    view._view.undo_new([drawn])
                return None
            return batch, windows

        return self._relabel(*buffer._read_held(attempt))  # the user's functions may use the buffer

    def _choose(self, drawn: DrawnSequences) -> "_Windows":
        """The windows to be relabelled, and what the row index knows of them. Needs the lock."""
        from diskreplay.sampling import row_index_kernels as kernels
        from diskreplay.sampling import window_kernels

        options, rng = self._view.options, self._view._view.rng
        index, masks = self._buffer._rows.index, drawn.plan.masks
        chosen, goals = self._goals.choose(
            index, drawn.plan.anchor, (self._rng or rng).random,
            in_order=bool(options.prioritized or options.online),
        )  # fmt: skip
        rng.taken()
        envs, ids = index.num_envs, drawn.plan.ids[chosen]
        before = np.where(masks[window_kernels.IS_FIRST][chosen, 0] | (ids[:, 0] < 0), -1,
                          ids[:, 0] - envs)  # fmt: skip
        rows = np.concatenate([before[:, None], ids], axis=1)
        there, following = index.ring[rows % index.size], rows + envs
        after = index.ring[following % index.size]
        is_transition = (rows >= 0) & (there[..., kernels.FLAGS] & kernels.FINAL == 0)
        known = is_transition & (following // envs < index.count[following % envs])
        known &= there[..., kernels.EPISODE] == after[..., kernels.EPISODE]
        flags = there[..., kernels.FLAGS]
        return _Windows(
            chosen, goals, np.where(known, rows, -1), np.where(known, following, -1), known,
            is_transition, flags & kernels.TERMINATED != 0, flags & kernels.TRUNCATED != 0,
            known & (after[..., kernels.FLAGS] & kernels.FINAL != 0), {},
        )  # fmt: skip

    def _read(self, drawn: DrawnSequences, windows: "_Windows") -> "_Windows":
        """The same with the values of the goals, of what was reached, and of the extras."""
        known, read, reached = windows.known, self._goals.read, self._goals.field
        return windows._replace(
            goals=read(drawn.store, reached, windows.goals),
            following=read(drawn.store, reached, windows.following[known]),
            info={n: read(drawn.store, n, windows.rows[known]) for n in self._goals.info},
        )

    def _relabel(self, batch: SequenceBatch, windows: "_Windows") -> SequenceBatch:
        chosen, known = windows.chosen, windows.known
        relabelled = np.zeros(len(batch), np.bool_)
        relabelled[chosen] = True
        batch._arrays["relabelled"] = relabelled
        if not len(chosen):
            return batch
        reward = np.zeros(known.shape, np.float32)
        of_window = np.nonzero(known)[0]
        reward[known], ended = self._goals.reward(
            windows.following, windows.goals[of_window], windows.info
        )
        terminated = windows.terminated.copy()
        if ended is not None:
            terminated[known] = ended
        seen: Any = batch.observation  # a dict: there is a goal in it
        shown = seen[self._goals.desired]
        if self._buffer.stack_size > 1:
            shown[chosen] = windows.goals[:, None, None]
        else:
            there = batch.observed[chosen].reshape(len(chosen), -1, *[1] * (windows.goals.ndim - 1))
            shown[chosen] = np.where(there, windows.goals[:, None], 0)
        # With `arrival` a position has what the transition before it earned.
        part = slice(None, -1) if self._view.options.window.arrival else slice(1, None)
        batch.reward[chosen] = np.where(known[:, part], reward[:, part], batch.reward[chosen])
        if ended is not None:
            new = np.where(known[:, part], terminated[:, part], batch.terminated[chosen])
            batch.terminated[chosen] = new  # and `is_terminal`, which is the same array
            is_frame = batch.observed[chosen] & ~batch.transition[chosen]
            batch.is_last[chosen] = new | batch.truncated[chosen] | is_frame
        self._set_targets(batch, windows, reward, terminated)
        return batch

    def _set_targets(
        self, batch: SequenceBatch, windows: "_Windows", reward: np.ndarray,
        terminated: np.ndarray,
    ) -> None:  # fmt: skip
        """N-step returns of new rewards, by the rules of `window_kernels.window_plan`."""
        window, gamma = self._view.options.window, self._buffer.gamma
        first = 1 + window.burn_in  # the first column is of the row before the window
        shape = len(reward), window.length
        is_open = windows.is_transition[:, first : first + window.length]
        total, steps = np.zeros(shape), np.zeros(shape, np.int64)
        learn, ends = np.zeros((2, *shape), np.bool_)
        for k in range(window.n_step):
            at = slice(first + k, first + k + window.length)
            is_open = is_open & windows.known[:, at]
            total += np.where(is_open, gamma**k * reward[:, at], 0.0)
            ends |= is_open & terminated[:, at]
            is_open = is_open & ~terminated[:, at]
            bootstraps = is_open & (windows.is_final_next[:, at] | (k + 1 == window.n_step))
            bootstraps &= windows.is_final_next[:, at] | ~windows.truncated[:, at]
            steps[bootstraps] = k + 1
            learn |= bootstraps
            is_open = is_open & ~bootstraps & ~windows.truncated[:, at]
        learn |= ends
        positions = window.burn_in + np.arange(window.length)
        target = np.where(learn, positions + steps, -1)
        batch.learn[windows.chosen, window.burn_in : window.burn_in + window.length] = learn
        batch.returns[windows.chosen] = np.where(learn, total, 0.0)
        batch.discount[windows.chosen] = np.where(learn & ~ends, gamma**steps, 0.0)
        batch.target[windows.chosen] = target


class _Windows(NamedTuple):
    """R windows that get new goals: of each, T + 1 rows, those at its positions and the one before.

    Attributes
    ----------
    chosen : ndarray of int64, shape (R,)
        Which they are of the batch.
    goals : ndarray
        Rows whose achieved goals they get; then these goals.
    rows : ndarray of int64, shape (R, T + 1)
        Transitions, -1 where `known` is False.
    following : ndarray
        The rows that these led to; then what was reached there.
    known : ndarray of bool, shape (R, T + 1)
        A transition, and a row of its episode follows it.
    is_transition, terminated, truncated : ndarray of bool, shape (R, T + 1)
    is_final_next : ndarray of bool, shape (R, T + 1)
        That row is a final one.
    info : dict of str to ndarray
        Extras of the known ones.
    """

    chosen: np.ndarray
    goals: np.ndarray
    rows: np.ndarray
    following: np.ndarray
    known: np.ndarray
    is_transition: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    is_final_next: np.ndarray
    info: dict[str, np.ndarray]
