"""What has sequences: the call that makes views of a buffer."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from diskreplay.sequence_options import SequenceOptions
from diskreplay.sequences import Sequences


class SequenceSource:
    """The calls of `ReplayBuffer` that show its rows as windows."""

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
        online: bool = False,
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
        online : bool
            Each window that comes from now on is handed out once, before any is drawn.
        finished : bool
            Windows of episodes that are over, only.
        returns_to_go : float, optional
            Its discount: what is left of an episode's return comes too.
        name : str
            A letter, then letters, digits and underscores, of ASCII and at most 60. Under it the
            generator and the priorities are saved: several views need several.
        seed : int or numpy.random.Generator, optional
            Of the draws. None goes on with the generator that was saved under that name.

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
            self, length, burn_in=burn_in, ahead=ahead, stride=stride, ends=ends, n_step=n_step,
            batch_size=batch_size, prioritized=prioritized, alpha=alpha, beta=beta, eta=eta,
            weight_normalization=weight_normalization, state=state, fields=fields, arrival=arrival,
            online=online, finished=finished, returns_to_go=returns_to_go,
        )  # fmt: skip
        return Sequences.of(self, name, options, seed)
