"""What `Sequences.sample` and `Sequences.gather` return."""

from diskreplay.batch import Batch


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
    """

    __slots__ = ()

    def __len__(self) -> int:
        """Windows in the batch."""
        return len(self._arrays["anchor"])

    def __repr__(self) -> str:
        return f"SequenceBatch({len(self)} windows: {', '.join(self._arrays)})"
