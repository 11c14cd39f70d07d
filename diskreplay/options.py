"""The options of a buffer that say what a transition is."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from diskreplay import given_numbers
from diskreplay.errors import CapacityError
from diskreplay.validation import one_of

Beta = float | Callable[[int], float]
"""An exponent of the importance weights, or a schedule: `add_count` to exponent, which may not
call the buffer: it is called amid a draw."""
_MOST_WINDOW = 1 << 20  # each transition of a batch has memory for so many frames


class Options(NamedTuple):
    """What `ReplayBuffer` was given of these, checked."""

    num_envs: int
    stack_size: int
    stack_padding: str
    update_horizon: int
    gamma: float
    batch_size: int
    max_transitions: int | None

    @classmethod
    def checked(
        cls, num_envs: Any, stack_size: Any, stack_padding: Any, update_horizon: Any, gamma: Any,
        batch_size: Any, max_transitions: Any = None,
    ) -> Self:  # fmt: skip
        """Options as a user gives them, or an `InvalidInputError`."""
        num_envs = given_numbers.whole("num_envs", num_envs)
        stack_size = given_numbers.whole("stack_size", stack_size, most=_MOST_WINDOW)
        update_horizon = given_numbers.whole("update_horizon", update_horizon, most=_MOST_WINDOW)
        batch_size = given_numbers.whole("batch_size", batch_size)
        max_transitions = given_numbers.whole("max_transitions", max_transitions, optional=True)
        if max_transitions is not None and max_transitions < num_envs:
            raise CapacityError(
                f"max_transitions: one for each env expected, {num_envs}, found {max_transitions}"
            )
        gamma = given_numbers.real("gamma", gamma, most=1.0)
        one_of("stack_padding", stack_padding, ("zero", "reset"))
        return cls(
            num_envs, stack_size, stack_padding, update_horizon, gamma, batch_size,
            max_transitions,
        )  # fmt: skip

    @property
    def transitions_per_env(self) -> int | None:
        """So many of its newest transitions each env keeps at most; None for all of its rows."""
        return None if self.max_transitions is None else self.max_transitions // self.num_envs

    def rows_kept(self, capacity: Any) -> Any:
        """The capacity in rows: without one, those that `max_transitions` can have at most. Each
        of them may end an episode, and have a final row; the oldest has a stack; and the newest is
        there before the oldest leaves."""
        if capacity is not None or self.transitions_per_env is None:
            return capacity
        return self.num_envs * (2 * self.transitions_per_env + self.stack_size + 2)

    def check_capacity(self, capacity: int | None) -> None:
        """Refuse a capacity that holds no transition, with a `CapacityError`."""
        needed, num_envs = self.stack_size + self.update_horizon, self.num_envs
        if capacity is not None and capacity // num_envs < needed:
            raise CapacityError(
                f"capacity {capacity} leaves {capacity // num_envs} rows for each of {num_envs} "
                f"env(s); stack_size + update_horizon = {needed} are needed: at least "
                f"{needed * num_envs}"
            )

    def describe(self) -> dict[str, Any]:
        """What the group's attributes say of them; the number of envs is the store's to say."""
        return {name: value for name, value in self._asdict().items() if name != "num_envs"}
