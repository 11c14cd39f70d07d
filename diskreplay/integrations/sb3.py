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
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.extensions import needed
from diskreplay.locks import one_call

with needed("diskreplay.integrations.sb3 needs Stable-Baselines3", "sb3"):
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.buffers import (
        BaseBuffer,
        DictReplayBuffer,
        NStepReplayBuffer,
        ReplayBuffer,
    )
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from diskreplay.batch import mapped
from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.integrations.disk_options import DiskOptions
from diskreplay.integrations.sb3_like import DiskTransitions
from diskreplay.integrations.sb3_samples import PrioritizedSamples

__all__ = [
    "DiskReplayBuffer",
    "DiskDictReplayBuffer",
    "DiskNStepReplayBuffer",
    "DiskHerReplayBuffer",
    "DiskPrioritizedReplayBuffer",
    "PrioritizedDQN",
    "PrioritizedSamples",
]


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
        Accepted, and without effect: each frame is stored once anyway. Do not give it to the
        algorithm: SB3's `learn` then says of the newest transition that it was the last of its
        episode, each time that it is called.
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

    obs_shape: tuple[int, ...] | dict[str, tuple[int, ...]]  # type: ignore[assignment] # a dict too

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
        BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self._set_up(DiskOptions(
            path, frame_stack, frame_axis, stack_padding, compressor, checkpoints, keep, pickle,
            prefetch,
        ))  # fmt: skip

    @one_call
    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Transitions as tensors, drawn by SB3; with `prefetch` by the buffer on disk."""
        if not self._disk.prefetch:
            return super().sample(batch_size, env=env)
        drawn = self._as_tensors(self._drawn(batch_size), env)
        is_dict = isinstance(drawn["observations"], dict)
        kind = DictReplayBufferSamples if is_dict else ReplayBufferSamples
        unwanted = () if "update_horizon" in self._of_engine() else ("discounts",)
        return kind(**{name: drawn[name] for name in kind._fields if name not in unwanted})

    def _as_tensors(self, drawn: dict[str, Any], env: Any) -> dict[str, Any]:
        """The same normalized and on the device; ids stay an array."""
        for name in ("observations", "next_observations"):
            drawn[name] = self._normalize_obs(drawn[name], env)
        drawn["rewards"] = self._normalize_reward(drawn["rewards"], env)
        return {
            name: value if name == "ids" else mapped(self.to_torch, value)
            for name, value in drawn.items()
        }

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        if env is None and self._reads_at_once(batch_inds):
            return self._read_at_once(batch_inds)
        kind = DictReplayBuffer if isinstance(self.observations, dict) else ReplayBuffer
        with self._reading_both():
            return kind._get_samples(self, batch_inds, env)  # type: ignore[arg-type] # it looks like one

    def _reads_at_once(self, slots: np.ndarray) -> bool:
        """Whether both observations can be read into the tensors that are given."""
        leaf, kind = self._leaves[0], type(self)
        if leaf.name or leaf.axis != 0 or self._ring is None:
            return False
        if not (
            torch.device(self.device).type == "cpu"  # who sets it may give its name
            and kind.to_torch is BaseBuffer.to_torch
            and kind._normalize_obs is BaseBuffer._normalize_obs
            and kind._normalize_reward is BaseBuffer._normalize_reward
        ):
            return False  # on another device, or as a subclass makes them
        if not isinstance(slots, np.ndarray) or slots.dtype != np.int64 or slots.ndim != 1:
            return False
        # Seen without a sign, what is below 0 is too large as well.
        return slots.size > 0 and bool(slots.view(np.uint64).max() < self.buffer_size)

    def _read_at_once(self, slots: np.ndarray) -> ReplayBufferSamples:
        """As `ReplayBuffer._get_samples`: of the same draws the same tensors, with fewer copies."""
        envs = np.zeros(len(slots), np.int64)
        if self.n_envs > 1:  # else the draw has one outcome, and leaves the generator as it was
            envs = np.random.randint(0, high=self.n_envs, size=(len(slots),))  # noqa: NPY002
        room = np.empty((2, len(slots), *self._leaves[0].shape), self._leaves[0].dtype)
        assert self._ring is not None  # as `_reads_at_once` saw
        self._ring.both_observations(slots, envs, room)
        at = slots * self.n_envs + envs  # with two indexes NumPy takes twice as long
        done, timeout, rewards = (
            values.reshape(-1).take(at) for values in (self.dones, self.timeouts, self.rewards)
        )
        done *= 1 - timeout
        actions = self.actions.reshape(-1, self.action_dim).take(at, axis=0)
        # Not the two parts of one tensor: a change of one counts as a change of the other there.
        seen, led, acted, ended, gained = map(torch.from_numpy, (*room, actions, done, rewards))
        return ReplayBufferSamples(seen, acted, led, ended[:, None], gained[:, None])


class DiskDictReplayBuffer(DiskReplayBuffer, DictReplayBuffer):
    """The same as a subclass of SB3's `DictReplayBuffer`, for those who look for that."""

    observation_space: gym_spaces.Dict
    obs_shape: dict[str, tuple[int, ...]]


class DiskNStepReplayBuffer(NStepReplayBuffer, DiskReplayBuffer):
    """SB3's `NStepReplayBuffer` with the observations on disk.

    Takes ``n_steps=3`` and ``gamma=0.99`` beside the options of `DiskReplayBuffer`.
    """

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """As `DiskReplayBuffer.sample`."""
        _check_rewards(self._disk.prefetch and self.n_steps, env)
        return super().sample(batch_size, env=env)

    def _of_engine(self) -> dict[str, Any]:
        return {"update_horizon": self.n_steps, "gamma": self.gamma}


class _WithoutEpisodes(DiskDictReplayBuffer):
    """What `HerReplayBuffer` adds to: amid a call of its own."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        self._add(obs, next_obs, action, reward, done, infos)


class DiskHerReplayBuffer(HerReplayBuffer, _WithoutEpisodes):
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
        action_space: gym_spaces.Space[Any],
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
        self._given = DiskOptions(**disk)
        if self._given.prefetch:
            raise InvalidInputError("prefetch: HER draws and relabels by itself; leave it out")
        super().__init__(
            buffer_size, observation_space, action_space, env, device=device, n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination, n_sampled_goal=n_sampled_goal,
            goal_selection_strategy=goal_selection_strategy, copy_info_dict=copy_info_dict,
        )  # fmt: skip

    def _set_up(self, options: DiskOptions) -> None:
        # HER's constructor hands on what it knows, which is none of them.
        super()._set_up(self._given)

    def _get_real_samples(self, *batch: Any) -> Any:
        with self._reading_both():
            return super()._get_real_samples(*batch)

    def _get_virtual_samples(self, *batch: Any) -> Any:
        with self._reading_both():
            return super()._get_virtual_samples(*batch)

    def __getstate__(self) -> dict[str, Any]:
        state = DiskDictReplayBuffer.__getstate__(self)
        del state["env"]  # as HER has it: environments cannot all be pickled
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.env = None
        DiskDictReplayBuffer.__setstate__(self, state)

    @one_call
    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """As `DiskReplayBuffer.add`, and know of its episodes."""
        super().add(obs, next_obs, action, reward, done, infos)

    @one_call
    def sample(self, batch_size: int, env: Any = None) -> Any:
        """As `HerReplayBuffer.sample`, which looks at its episodes first."""
        self._look()
        return super().sample(batch_size, env)

    def _empty(self) -> None:
        super()._empty()
        self.ep_start[:], self.ep_length[:], self._current_ep_start[:] = 0, 0, 0

    def _found_episodes(self, slots: np.ndarray, last: np.ndarray) -> None:
        """Where the episodes are that a reopened store has; the last ones are over, too."""
        self.ep_start[:], self.ep_length[:] = 0, 0
        for env in range(self.n_envs):
            begins = np.ones(len(slots), np.bool_)
            begins[1:] = last[:-1, env]
            starts = np.flatnonzero(begins)
            lengths = np.diff(np.append(starts, len(slots)))
            self.ep_start[slots, env] = np.repeat(slots[starts], lengths)
            self.ep_length[slots, env] = np.repeat(lengths, lengths)
        self._current_ep_start[:] = self._pos


class DiskPrioritizedReplayBuffer(DiskReplayBuffer):
    """Prioritized replay, which SB3 has none of: Schaul et al., 2016; see `PrioritizedDQN`.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage,
    handle_timeout_termination
        As for `DiskReplayBuffer`.
    n_steps : int
        Of the returns.
    gamma : float
        The same as the algorithm's.
    alpha, beta
        As for `diskreplay.PrioritizedReplayBuffer`. A pickle needs a `beta` that can be pickled.
    disk
        The other options of `DiskReplayBuffer`.

    Notes
    -----
    Drawn with a generator of the buffer's own, which begins with a number of NumPy's global one.
    """

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
        n_steps: int = 1,
        gamma: float = 0.99,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        **disk: Any,
    ) -> None:
        self.n_steps, self.gamma, self.alpha, self.beta = n_steps, gamma, alpha, beta
        super().__init__(
            buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage,
            handle_timeout_termination, **disk,
        )  # fmt: skip

    @property
    def _draws_itself(self) -> bool:
        return True

    def _of_engine(self) -> dict[str, Any]:
        return {
            "prioritized": True, "update_horizon": self.n_steps, "gamma": self.gamma,
            "alpha": self.alpha, "beta": self.beta,
        }  # fmt: skip

    @one_call
    def sample(  # type: ignore[override] # weights and ids, too
        self, batch_size: int, env: Any = None
    ) -> PrioritizedSamples:
        """Transitions in proportion to ``priority ** alpha``.

        Raises
        ------
        EmptyBufferError
            No transition is complete yet: the newest ones wait for what they led to.
        """
        _check_rewards(self.n_steps, env)
        return PrioritizedSamples(**self._as_tensors(self._drawn(batch_size), env))

    def update_priorities(self, ids: np.ndarray, td_errors: "torch.Tensor | np.ndarray") -> int:
        """Set the priorities of transitions to ``|td_errors| + 1e-6``.

        Returns
        -------
        int
            How many had left since.
        """
        disk: Any = self.disk  # a `PrioritizedReplayBuffer`
        if disk is None:  # nothing is recorded, so all of them have left
            return len(ids)
        if isinstance(td_errors, torch.Tensor):
            td_errors = td_errors.detach().cpu().numpy()
        return disk.update_priorities(ids, np.abs(td_errors).reshape(-1) + 1e-6)


class PrioritizedDQN(DQN):
    """SB3's DQN, with importance weights and priorities from the TD errors.

    ``PrioritizedDQN("MlpPolicy", env, replay_buffer_class=DiskPrioritizedReplayBuffer)``.
    """

    replay_buffer: DiskPrioritizedReplayBuffer  # set by SB3's `_setup_model`

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """As `DQN.train`; nothing where no transition is complete yet."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            try:
                batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            except EmptyBufferError:  # the first: all transitions wait for what they led to
                return
            with torch.no_grad():
                following = self.q_net_target(batch.next_observations).max(dim=1, keepdim=True)[0]
                wanted = batch.rewards + (1 - batch.dones) * batch.discounts * following
            found = self.q_net(batch.observations).gather(1, batch.actions.long())
            each = torch.nn.functional.smooth_l1_loss(found, wanted, reduction="none")
            loss = (batch.weights * each).mean()
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # torch says nothing
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(batch.ids, wanted - found)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))


def _check_rewards(n_steps: int, env: Any) -> None:
    """Refuse to normalize sums of rewards: the sum of normalized ones is something else."""
    if n_steps > 1 and env is not None and getattr(env, "norm_reward", False):
        raise InvalidInputError(
            "VecNormalize(norm_reward=True) with n-step returns: the buffer on disk sums rewards "
            "as they were recorded; use norm_reward=False, or no prefetch and no priorities"
        )
