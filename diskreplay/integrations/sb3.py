"""Stable-Baselines3 and sb3-contrib: their replay buffers, with the observations on disk.

::

    from diskreplay.integrations.sb3 import DiskReplayBuffer

    model = DQN(
        "CnnPolicy", env, buffer_size=1_000_000, replay_buffer_class=DiskReplayBuffer,
        replay_buffer_kwargs=dict(path="runs/pong/replay", frame_stack=4),
    )

A run with one of these classes draws the same batches as with SB3's own, and ends in the same
weights, bit for bit. ``docs/sb3.md`` says what differs.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

try:
    import torch
    from stable_baselines3.common.buffers import (
        BaseBuffer,
        DictReplayBuffer,
        NStepReplayBuffer,
        ReplayBuffer,
    )
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'diskreplay.integrations.sb3 needs Stable-Baselines3: pip install "diskreplay[sb3]"',
        name=error.name,
    ) from error

from gymnasium import spaces as gym_spaces

from diskreplay.integrations.sb3_like import DiskOptions, DiskTransitions


class DiskReplayBuffer(DiskTransitions, ReplayBuffer):
    """SB3's `ReplayBuffer`, and `DictReplayBuffer`, with the observations on disk.

    Nothing is made, and no lock taken, before the first call that needs the rows: ``DQN.load``
    makes a buffer for evaluation too, beside the run that writes.

    Parameters
    ----------
    buffer_size : int
        Transitions of all envs together.
    observation_space, action_space : gymnasium.Space
    device : str or torch.device
    n_envs : int
    optimize_memory_usage : bool
        Accepted, and without effect: each frame is stored once anyway.
    handle_timeout_termination : bool
        Whether `timeouts` says which episodes were truncated. The store knows in any case.
    path : path, optional
        The store's directory, made or reopened: a run that goes on has its transitions again. None:
        a temporary one, which goes with the process.
    frame_stack : int or dict of str to int
        So many frames an observation already stacks (as `VecFrameStack` does), of which only the
        newest is stored. For a Dict space by key.
    frame_axis : {"auto", 0, -1}
        Along which axis they lie. "auto" takes the one that can be divided so; 0 after
        `VecTransposeImage`.
    stack_padding : {"auto", "zero", "reset"}
        What an episode's first stack has before its newest frame: zeros (`VecFrameStack`), or that
        frame again (Gymnasium's `FrameStackObservation`). "auto" takes it from the first one.
    compressor : str or dict
        As for `diskreplay.ReplayBuffer`.
    checkpoints : path, optional
        Where pickles keep their rows; default ``<path>.checkpoints``.
    keep : int or None
        So many of these checkpoints stay, the newest; None keeps all.
    pickle : {"reference", "embed"}
        Whether a pickle refers to a checkpoint, or has all rows in it. Without `path` it has them.
    prefetch : int
        Above 0: so many batches are read ahead, drawn with a generator of the buffer's own, which
        is saved with it. Not SB3's draws then.

    Raises
    ------
    InvalidInputError
        An option makes no sense.
    FormatError, SchemaError
        `path` holds something else.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym_spaces.Space,
        action_space: gym_spaces.Space,
        device: "torch.device | str" = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: str | os.PathLike | None = None,
        frame_stack: int | Mapping[str, int] = 1,
        frame_axis: Literal["auto", 0, -1] = "auto",
        stack_padding: Literal["auto", "zero", "reset"] = "auto",
        compressor: str | Mapping[str, str] = "auto",
        checkpoints: str | os.PathLike | None = None,
        keep: int | None = 4,
        pickle: Literal["reference", "embed"] = "reference",
        prefetch: int = 0,
    ) -> None:
        BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        options = DiskOptions(
            path, frame_stack, frame_axis, stack_padding, compressor, checkpoints, keep, pickle,
            prefetch,
        )  # fmt: skip
        self._set_up(options, **self._of_engine())

    def _of_engine(self) -> dict[str, Any]:
        """Further options of the buffer that has the rows."""
        return {}

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        kind = DictReplayBuffer if isinstance(self.observations, dict) else ReplayBuffer
        return kind._get_samples(self, batch_inds, env)


class DiskDictReplayBuffer(DiskReplayBuffer, DictReplayBuffer):
    """The same as a subclass of SB3's `DictReplayBuffer`, for those who look for that."""


class DiskNStepReplayBuffer(NStepReplayBuffer, DiskReplayBuffer):
    """SB3's `NStepReplayBuffer` with the observations on disk.

    Takes ``n_steps=3`` and ``gamma=0.99`` beside the options of `DiskReplayBuffer`.
    """


class DiskHerReplayBuffer(HerReplayBuffer, DiskDictReplayBuffer):
    """SB3's `HerReplayBuffer` with the observations on disk.

    Parameters
    ----------
    buffer_size, observation_space, action_space, env, device, n_envs, optimize_memory_usage,
    handle_timeout_termination, n_sampled_goal, goal_selection_strategy, copy_info_dict
        As for `HerReplayBuffer`. Infos stay in memory, and are gone after a reopening.
    disk
        The options of `DiskReplayBuffer`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym_spaces.Dict,
        action_space: gym_spaces.Space,
        env: Any,
        device: "torch.device | str" = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: Any = "future",
        copy_info_dict: bool = False,
        **disk: Any,
    ) -> None:
        self._disk = DiskOptions(**disk)
        super().__init__(
            buffer_size, observation_space, action_space, env, device=device, n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination, n_sampled_goal=n_sampled_goal,
            goal_selection_strategy=goal_selection_strategy, copy_info_dict=copy_info_dict,
        )  # fmt: skip

    def _set_up(self, options: DiskOptions, **engine: Any) -> None:
        # HER's constructor hands on what it knows, which is none of them.
        super()._set_up(self._disk, **engine)

    def _found_episodes(self, slots: np.ndarray, step: np.ndarray, done: np.ndarray) -> None:
        """Where the episodes are that a reopened store has; the last ones are over, too."""
        self.ep_start[:], self.ep_length[:] = 0, 0
        for env in range(self.n_envs):
            begins = np.ones(len(slots), np.bool_)
            begins[1:] = done[:-1, env] | (step[1:, env] != step[:-1, env] + 1)
            starts = np.flatnonzero(begins)
            lengths = np.diff(np.append(starts, len(slots)))
            self.ep_start[slots, env] = np.repeat(slots[starts], lengths)
            self.ep_length[slots, env] = np.repeat(lengths, lengths)
        self._current_ep_start[:] = self._pos
