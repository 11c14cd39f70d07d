"""The calls that make views of a buffer: sequences and hindsight."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from diskreplay.hindsight import Hindsight
from diskreplay.relabelling import ComputeReward, Relabelling
from diskreplay.sequence_options import SequenceOptions
from diskreplay.sequences import Sequences
from diskreplay.transition_source import TransitionSource


class SequenceSource(TransitionSource):
    """The calls of `ReplayBuffer` that show its rows as windows, or with other goals."""

    def sequences(
        self,
        length: int,
        *,
        burn_in: int = 0,
        ahead: int | None = None,
        stride: int = 1,
        ends: Literal["inside", "shift", "pad", "cross"] = "inside",
        n_step: int | None = None,
        batch_size: int = 16,
        prioritized: bool = False,
        alpha: float = 0.9,
        beta: float = 0.6,
        eta: float = 0.9,
        weight_normalization: Literal["batch", "buffer"] = "batch",
        state: str | Sequence[str] = (),
        fields: Sequence[str] | None = None,
        arrival: bool = False,
        online: bool | int = False,
        finished: bool = False,
        returns_to_go: float | None = None,
        name: str = "sequences",
        seed: int | np.random.Generator | None = None,
    ) -> Sequences:
        """A view of the rows as windows: `burn_in` rows, `length` learning rows, `ahead` rows.

        A window is named by its anchor, the id of its first learning row. docs/sequences.md says
        exactly which windows there are, and has recipes.

        Parameters
        ----------
        length : int
            Rows of the learning part.
        burn_in : int
            Rows before it, to warm a recurrent state up. They never move a window: where the
            episode has none, positions are not valid.
        ahead : int, optional
            Rows behind it, to bootstrap from; `n_step` by default.
        stride : int
            Windows begin at steps of an episode that are multiples of it (``"cross"``: at such
            rows).
        ends : {"inside", "shift", "pad", "cross"}
            The learning part at the end of an episode: it lies inside one episode; the last one is
            moved back to fit; it is filled up with positions that are not valid; it goes on in the
            next episode.
        n_step : int, optional
            Of the returns; `update_horizon` by default.
        batch_size : int
            Windows that `Sequences.sample` draws.
        prioritized : bool
            Draw windows in proportion to ``priority ** alpha`` instead of evenly.
        alpha, beta, weight_normalization
            As for `PrioritizedReplayBuffer`.
        eta : float
            Of `Sequences.priority`: between the mean (0) and the largest error (1) of a window.
        state : str or sequence of str
            Extras that are wanted at a window's first valid row only: recurrent states.
        fields : sequence of str, optional
            Which extras are read, and ``"action"``; all by default.
        arrival : bool
            Rewards and ends stand with the observation that they led to, as DreamerV3 has them.
        online : bool or int
            Each window that comes from now on is handed out once, before any is drawn. A number:
            of those that come, one that many rows after the other; `length` is DreamerV3's queue.
        finished : bool
            Windows of episodes that are over, only.
        returns_to_go : float, optional
            Its discount: what is left of an episode's return comes too.
        name : str
            A letter, then letters, digits and underscores, of ASCII and at most 60. Under it the
            generator and the priorities are saved: several views need several.
        seed : int or numpy.random.Generator, optional
            Of the draws. A store that has a view of this name saved goes on with its generator,
            unless a generator is given here, or this is a reader. None: one that follows from the
            buffer's.

        Returns
        -------
        Sequences
            If a view of this name and these options is open, it is that one.

        Raises
        ------
        InvalidInputError
            An option makes no sense: `ahead` is smaller than `n_step`, an extra is not there. Or
            a view of this name and of other options is open: close it, or choose another name.
        CapacityError
            No env keeps that many rows.

        Warns
        -----
        RuntimeWarning
            What was saved under this name is of a view with other options: it starts anew.

        Notes
        -----
        Any number of views, also of a reader and of a checkpoint. Nothing is stored for them, and
        `add` pays nothing: what is new is looked at when they are used. In memory a view has 1 byte
        a row, 8 more with `prioritized` or a `stride`, 4 more with `returns_to_go`.
        """
        options = SequenceOptions.checked(
            self._kind.options, self.capacity, self.extras, length, burn_in=burn_in, ahead=ahead,
            stride=stride, ends=ends, n_step=n_step, batch_size=batch_size,
            prioritized=prioritized, alpha=alpha, beta=beta, eta=eta,
            weight_normalization=weight_normalization, state=state, fields=fields, arrival=arrival,
            online=online, finished=finished, returns_to_go=returns_to_go,
        )  # fmt: skip
        return Sequences.of(self, name, options, seed)

    def hindsight(
        self,
        compute_reward: ComputeReward,
        *,
        strategy: Literal["future", "final", "episode"] = "future",
        n_goals: int = 4,
        achieved: str = "achieved_goal",
        desired: str = "desired_goal",
        info: str | Sequence[str] = (),
        finished: bool = True,
        terminated: ComputeReward | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> Hindsight:
        """A view of the transitions in which most have a goal that their episode reached.

        Andrychowicz et al., "Hindsight Experience Replay", 2017. A transition may get a goal if
        what it led to is known: a row of its episode follows it.

        Parameters
        ----------
        compute_reward : function
            ``compute_reward(achieved, desired, info)``, as that of a goal environment, called once
            a batch for all relabelled transitions: what they led to and the new goals, arrays of
            shape (relabelled, *shape). Returns an array of shape (relabelled,).
        strategy : {"future", "final", "episode"}
            Whose achieved goal: that of a row behind the transition, evenly; of the last row of the
            episode; of any retained row of the episode but the first of them.
        n_goals : int
            New goals for each one that stays: 4 relabels ``int(0.8 * batch)`` transitions.
        achieved, desired : str
            Keys of the observation, a Dict: two Boxes of one shape and dtype.
        info : str or sequence of str
            Extras that `compute_reward` gets by name, as a dict of arrays; without any it gets a
            list of empty dicts.
        finished : bool
            Transitions of an episode that is not over keep their goal. False: its rows so far are
            what there is to choose from.
        terminated : function, optional
            As `compute_reward`, for whether the new goal ends the episode: then the discount is
            new too. By default both stay.
        seed : int or numpy.random.Generator, optional
            Of the choice of goals. None: the buffer's generator, which is saved with it.

        Returns
        -------
        Hindsight
            With ``sample(batch_size, beta=...)``. Draws are the buffer's, by priority too.

        Raises
        ------
        InvalidInputError
            `update_horizon` is above 1; the observations have no such goals; an option makes no
            sense.

        Notes
        -----
        The end of an episode is found by galloping over the row index: O(log length), no memory.
        """
        goals = Relabelling(
            self, compute_reward, strategy=strategy, n_goals=n_goals, achieved=achieved,
            desired=desired, info=info, finished=finished, terminated=terminated,
        )  # fmt: skip
        return Hindsight(self, goals, seed)
