"""What `Sequences.sample` and `Sequences.gather` return."""

from collections.abc import Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from diskreplay.batch import Batch, mapped

_view = itemgetter(slice(None))  # of an array: its shape and flags may be set


class SequenceBatch(Batch):
    """Arrays of N windows of T positions, of which L (`length`) are the learning part.

    Nothing in it aliases the store. With a stack the observation is a view of frames that are held
    once: write to it only if that does not matter.

    Attributes
    ----------
    observation : ndarray, or dict or tuple of them
        ``(N, T, stack, *shape)``, oldest frame first, without the stack axis for ``stack_size=1``.
        Zeros where not `observed`; with a stack, what stands there means nothing.
    action : ndarray, or dict or tuple of them
        ``(N, T, *shape)``; zeros where not `transition`. Extras likewise, each by its name.
    reward : ndarray of float32, shape (N, T)
        Of one step.
    terminated, truncated : ndarray of bool, shape (N, T)
    step : ndarray of int32, shape (N, T)
    observed : ndarray of bool, shape (N, T)
        The row is there.
    transition : ndarray of bool, shape (N, T)
        It has an action and a reward; a final row has not.
    is_first, is_last, is_terminal : ndarray of bool, shape (N, T)
        The first row of its episode that there is; the last one, or one without an action; one that
        terminated.
    begin : ndarray of bool, shape (N, T)
        Reset a recurrent network's state here: to the stored one at the first position of the
        window that is observed, to zeros at later ones.
    learn : ndarray of bool, shape (N, T)
        In the learning part, a transition, and its n-step target is known.
    returns, discount : ndarray of float32, shape (N, L)
        N-step returns, and what to multiply the value at `target` by: 0 after a termination, else
        ``gamma ** steps``. Zeros where not `learn`.
    target : ndarray of int32, shape (N, L)
        The position in T of the observation to bootstrap from; its own where `discount` is 0, and
        -1 where not `learn`.
    returns_to_go : ndarray of float32, shape (N, T)
        Only if asked for: what is left of the episode's return; NaN while it is open.
    id : ndarray of int64, shape (N, T)
        The row, -1 where not `observed`.
    anchor : ndarray of int64, shape (N,)
        The id of the first row of the learning part: for `update_priorities` and `gather`.
    weight : ndarray of float32, shape (N,)
    probability : ndarray of float64, shape (N,)

    Parameters
    ----------
    arrays : dict of str to ndarray, dict or tuple
        The attributes that are made already, by name.
    windows : dict of str to ndarray
        As for `Batch`.
    shared : mapping of str to ndarray, dict or tuple, optional
        What the other attributes are views of, by name.

    Notes
    -----
    An array is made when it is looked at first. A learner looks at a few of twenty, and where other
    work runs between two batches, making one takes as long as reading some windows.
    """

    __slots__ = ("_made", "_shared")

    def __init__(
        self,
        arrays: dict[str, Any],
        windows: dict[str, np.ndarray],
        shared: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._made, self._windows, self._shared = arrays, windows, shared

    @property
    def _arrays(self) -> dict[str, Any]:
        if shared := self._shared:
            # In one order, whatever was looked at first and wherever it was read into.
            names = dict.fromkeys(("observation", "action", *shared, *self._made))
            there = [name for name in names if name in shared or name in self._made]
            self._arrays = {name: self[name] for name in there}
        return self._made

    @_arrays.setter
    def _arrays(self, arrays: dict[str, Any]) -> None:
        self._made = arrays
        self._shared = {}

    def __getitem__(self, name: str) -> Any:
        # In this order: another thread may make all of them, and then nothing is shared any more.
        shared, made = self._shared, self._made
        if name not in made and name in shared:
            made[name] = mapped(_view, shared[name])
        return made[name]

    def __getattr__(self, name: str) -> Any:
        if name in SequenceBatch.__slots__:  # while being unpickled or copied
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            return super().__getattr__(name)  # the error

    def __len__(self) -> int:
        """Windows in the batch."""
        return len(self["anchor"])

    def __repr__(self) -> str:
        return f"SequenceBatch({len(self)} windows: {', '.join(self._arrays)})"
