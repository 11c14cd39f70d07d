"""What a view of sequences was asked for."""

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import numpy as np

from diskreplay.errors import CapacityError, InvalidInputError
from diskreplay.given_numbers import exponent, real, whole
from diskreplay.options import Options
from diskreplay.sampling.window import ENDS, Window
from diskreplay.validation import field_names, fit_flag, known_extras, one_of

_MOST_POSITIONS = 1 << 20  # each has memory in every batch: more is a slip of the finger


class SequenceOptions(NamedTuple):
    """What `ReplayBuffer.sequences` was asked for, checked.

    Attributes
    ----------
    window : Window
    prioritized : bool
    alpha : float
    online : int
        How many rows apart new windows are handed out; 0: none are.
        These say which windows there are and how they are drawn: with others, what was saved under
        the view's name is of no use.
    """

    window: Window
    prioritized: bool
    alpha: float
    online: int
    batch_size: int
    beta: float
    eta: float
    normalization: Literal["batch", "buffer"]
    state: tuple[str, ...]
    fields: tuple[str, ...] | None
    returns_to_go: float | None

    @classmethod
    def checked(
        cls, options: Options, capacity: int | None, extras: Collection[str], length: Any, *,
        burn_in: Any, ahead: Any, stride: Any, ends: Any, n_step: Any, batch_size: Any,
        prioritized: Any, alpha: Any, beta: Any, eta: Any, weight_normalization: Any, state: Any,
        fields: Any, arrival: Any, online: Any, finished: Any, returns_to_go: Any,
    ) -> "SequenceOptions":  # fmt: skip
        """The options of `ReplayBuffer.sequences`, of a buffer with these of its own, or an
        `InvalidInputError`, or a `CapacityError`."""
        most = _MOST_POSITIONS
        length, stride = whole("length", length, most=most), whole("stride", stride)
        burn_in = whole("burn_in", burn_in, least=0, most=most)
        n_step = options.update_horizon if n_step is None else whole("n_step", n_step, most=most)
        ahead = n_step if ahead is None else whole("ahead", ahead, least=0, most=most)
        one_of("ends", ends, ENDS)
        if ahead < n_step and ends != "cross":
            raise InvalidInputError(
                f"ahead: {ahead} rows behind the learning part, and its last rows are bootstrapped "
                f"from {n_step} rows on; give ahead={n_step} or more, or a smaller n_step"
            )
        one_of("weight_normalization", weight_normalization, ("batch", "buffer"))
        window = Window(
            length,
            burn_in,
            ahead,
            stride,
            ends,
            n_step,
            fit_flag("arrival", arrival),
            fit_flag("finished", finished),
        )
        kept = None if capacity is None else capacity // options.num_envs
        if kept is not None and window.positions + options.stack_size - 1 > kept:
            raise CapacityError(
                f"a window of {burn_in} + {length} + {ahead} rows and stacks of "
                f"{options.stack_size} needs {window.positions + options.stack_size - 1} rows, and "
                f"each env keeps {kept}; shorten it, or open the buffer with a larger capacity"
            )
        state, fields = known_extras("state", state, extras), _fields(fields, extras)
        if returns_to_go is not None:
            returns_to_go = real("returns_to_go", returns_to_go, most=1.0)
        return cls(
            window, fit_flag("prioritized", prioritized), real("alpha", alpha, most=1e9),
            _online(online), whole("batch_size", batch_size), exponent(beta),
            real("eta", eta, most=1.0), weight_normalization, state, fields, returns_to_go,
        )  # fmt: skip

    @property
    def identity(self) -> dict[str, Any]:
        """As JSON, by what two views of one name must agree."""
        return {
            **self.window._asdict(), "prioritized": self.prioritized, "online": self.online,
            "alpha": self.alpha if self.prioritized else None,
        }  # fmt: skip


def _online(online: Any) -> int:
    if isinstance(online, bool | np.bool_):
        return int(online)
    return whole("online", online, least=0, most=_MOST_POSITIONS)


def _fields(fields: Any, extras: Collection[str]) -> tuple[str, ...] | None:
    if fields is None:
        return None
    fields = field_names(fields, "fields")
    return (*known_extras("fields", [f for f in fields if f != "action"], extras),
            *(("action",) if "action" in fields else ()))  # fmt: skip
