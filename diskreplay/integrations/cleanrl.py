"""CleanRL, and whoever else copied Stable-Baselines3's buffer: the same class without SB3.

::

    from diskreplay.integrations.cleanrl import ReplayBuffer

    rb = ReplayBuffer(
        args.buffer_size, envs.single_observation_space, envs.single_action_space, device,
        handle_timeout_termination=False, path=f"runs/{args.exp_name}/replay", frame_stack=4,
        stack_padding="reset",
    )

It draws what ``cleanrl_utils.buffers.ReplayBuffer`` draws, from NumPy's global generator in the
same order, so a run ends in the same weights. ``docs/cleanrl.md`` has whole diffs.
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.extensions import needed
from diskreplay.locks import one_call

with needed("diskreplay.integrations.cleanrl needs PyTorch", "torch"):
    import torch

from diskreplay.batch import mapped
from diskreplay.errors import InvalidInputError
from diskreplay.integrations.disk_options import DiskOptions
from diskreplay.integrations.sb3_like import DiskTransitions

if TYPE_CHECKING:
    from diskreplay.integrations.slot_array import SlotArray

__all__ = ["ReplayBuffer", "ReplayBufferSamples"]


class ReplayBufferSamples(NamedTuple):
    """Transitions as tensors, by the names that CleanRL and SB3 give them."""

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayBuffer(DiskTransitions):
    """``cleanrl_utils.buffers.ReplayBuffer`` with the observations on disk.

    Parameters
    ----------
    buffer_size : int
        Transitions of all envs together.
    observation_space, action_space : gymnasium.Space
        Of one environment.
    device : str or torch.device
        "auto" is "cuda" where there is one.
    n_envs : int
    optimize_memory_usage : bool
        Accepted, and without effect: each frame is stored once anyway, and no transition is wrong.
    handle_timeout_termination : bool
        Whether ``info["TimeLimit.truncated"]`` makes `dones` 0.
    path, frame_stack, frame_axis, stack_padding, compressor, checkpoints, keep, pickle, prefetch
        As for `diskreplay.integrations.sb3.DiskReplayBuffer`. CleanRL's Atari wrappers stack with
        ``frame_stack=4, stack_padding="reset"``.

    Raises
    ------
    InvalidInputError, FormatError, SchemaError
        As for `diskreplay.integrations.sb3.DiskReplayBuffer`.
    """

    observations: "SlotArray | dict[str, SlotArray]"  # both are set by `_make_views`
    next_observations: "SlotArray | dict[str, SlotArray]"

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym_spaces.Space[Any],
        action_space: gym_spaces.Space[Any],
        device: "torch.device | str" = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: str | os.PathLike[str] | None = None,
        frame_stack: int | Mapping[str, int] = 1,
        frame_axis: Literal["auto", 0, -1] = "auto",
        stack_padding: Literal["auto", "zero", "reset"] = "auto",
        compressor: str | Mapping[str, str] = "auto",
        checkpoints: str | os.PathLike[str] | None = None,
        keep: int | None = 4,
        pickle: Literal["reference", "embed"] = "reference",
        prefetch: int = 0,
    ) -> None:
        self.buffer_size, self.n_envs = max(buffer_size // n_envs, 1), n_envs
        self.observation_space, self.action_space = observation_space, action_space
        if isinstance(observation_space, gym_spaces.Dict):
            parts = observation_space.spaces.items()
            self.obs_shape = {name: _shape(space) for name, space in parts}
        else:
            self.obs_shape = _shape(observation_space)
        self.action_dim = int(np.prod(_shape(action_space)))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        options = DiskOptions(
            path, frame_stack, frame_axis, stack_padding, compressor, checkpoints, keep, pickle,
            prefetch,
        )  # fmt: skip
        self._set_up(options)

    def size(self) -> int:
        """Transitions of each env that are there."""
        return self.buffer_size if self.full else self.pos

    @one_call
    def sample(self, batch_size: int, env: None = None) -> ReplayBufferSamples:
        """Transitions as tensors, evenly drawn with replacement.

        Parameters
        ----------
        batch_size : int
        env : None
            SB3's `VecNormalize`, which only its own class knows.

        Raises
        ------
        ValueError
            Nothing was added yet.
        """
        if env is not None:
            raise InvalidInputError("env: None expected; with SB3 use diskreplay.integrations.sb3")
        if self._disk.prefetch:
            drawn = self._drawn(batch_size)
        else:
            # The global generator, in the order of the original: what it would have drawn.
            slots = np.random.randint(0, self.size(), size=batch_size)  # noqa: NPY002
            envs = np.random.randint(0, high=self.n_envs, size=(len(slots),))  # noqa: NPY002
            dones, timeouts = self.dones[slots, envs], self.timeouts[slots, envs]
            drawn = {
                "actions": self.actions[slots, envs],
                "dones": (dones * (1 - timeouts))[:, None],
                "rewards": self.rewards[slots, envs][:, None],
            }
            with self._reading_both():
                drawn["observations"], drawn["next_observations"] = (
                    mapped(lambda array: array[slots, envs], arrays)
                    for arrays in (self.observations, self.next_observations)
                )
        to_tensor = partial(torch.tensor, device=self.device)
        return ReplayBufferSamples(
            **{name: mapped(to_tensor, drawn[name]) for name in ReplayBufferSamples._fields}
        )


def _shape(space: gym_spaces.Space[Any]) -> tuple[int, ...]:
    """As SB3 has it: a number is an array of one."""
    if isinstance(space, gym_spaces.Box | gym_spaces.MultiBinary | gym_spaces.MultiDiscrete):
        return tuple(space.shape) or (1,)
    if isinstance(space, gym_spaces.Discrete):
        return (1,)
    raise InvalidInputError(
        f"{space}: Box, Discrete, MultiDiscrete, MultiBinary or a Dict of them expected"
    )
