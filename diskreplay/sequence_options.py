"""What a view of sequences was asked for."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import CapacityError, InvalidInputError
from diskreplay.given_numbers import exponent, real, whole
from diskreplay.sampling.window import ENDS, Window
from diskreplay.validation import field_names, fit_flag, one_of

_MOST_POSITIONS = 1 << 20  # each has memory in every batch: more is a slip of the finger


class Viewed(Protocol):
    """What is asked of a buffer that gets a view."""

    @property
    def capacity(self) -> int | None: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def stack_size(self) -> int: ...
    @property
    def update_horizon(self) -> int: ...

    @property
    def extras(self) -> Mapping[str, Any]: ...


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
        cls, buffer: Viewed, length: Any, *, burn_in: Any, ahead: Any, stride: Any,
        ends: Any, n_step: Any, batch_size: Any, prioritized: Any, alpha: Any, beta: Any, eta: Any,
        weight_normalization: Any, state: Any, fields: Any, arrival: Any, online: Any,
        finished: Any, returns_to_go: Any,
    ) -> "SequenceOptions":  # fmt: skip
        """The options of `ReplayBuffer.sequences`, or an `InvalidInputError`, or a
        `CapacityError`."""
        most = _MOST_POSITIONS
        length, stride = whole("length", length, most=most), whole("stride", stride)
        burn_in = whole("burn_in", burn_in, least=0, most=most)
        n_step = buffer.update_horizon if n_step is None else whole("n_step", n_step, most=most)
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
        kept = None if buffer.capacity is None else buffer.capacity // buffer.num_envs
        if kept is not None and window.positions + buffer.stack_size - 1 > kept:
            raise CapacityError(
                f"a window of {burn_in} + {length} + {ahead} rows and stacks of "
                f"{buffer.stack_size} needs {window.positions + buffer.stack_size - 1} rows, and "
                f"each env keeps {kept}; shorten it, or open the buffer with a larger capacity"
            )
        state, fields = _names(buffer, "state", state), _fields(buffer, fields)
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


def _names(buffer: Viewed, what: str, names: Any) -> tuple[str, ...]:
    names = tuple(field_names(names, what))
    for name in names:
        if name not in buffer.extras:
            there = ", ".join(buffer.extras) or "none at all"
            raise InvalidInputError(f"{what}: there is no extra {brief(name)}; there are: {there}")
    return names


def _fields(buffer: Viewed, fields: Any) -> tuple[str, ...] | None:
    if fields is None:
        return None
    fields = field_names(fields, "fields")
    return (*_names(buffer, "fields", [f for f in fields if f != "action"]),
            *(("action",) if "action" in fields else ()))  # fmt: skip
