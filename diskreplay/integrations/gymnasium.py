"""Recorders: Gymnasium environments whose steps go into a replay buffer.

`Recorder` wraps a single environment, `VectorRecorder` a vector one. Both hand on what the
environment returns, untouched, and add a row for each step that was one::

    env = Recorder(gymnasium.make("CartPole-v1"), buffer)
    observation, info = env.reset(seed=0)
    while training:
        action = policy(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            observation, info = env.reset()

Episodes
    A row is what the agent saw and did and what came of it; where an episode ends, the observation
    it ended with is stored too. The three autoreset modes of vector environments give the same
    rows: the step in which ``NEXT_STEP`` only resets is not recorded, ``SAME_STEP``'s final
    observations are taken from ``infos["final_obs"]``, and with ``DISABLED`` an env whose episode
    is over is not recorded until ``reset(options={"reset_mask": ...})`` begins another one. A reset
    in the middle of an episode cuts it, see `diskreplay.ReplayBuffer.end_episode`. So do rows that
    something else has added to the buffer meanwhile, another recorder say: a warning says so.

Stacked observations
    Of observations that are stacks already, as of `gymnasium.wrappers.FrameStackObservation`, the
    newest frame alone is stored when the buffer's observation space is that of one frame. The
    buffer's ``stack_size`` and ``stack_padding`` make the stacks again, and have to be those of the
    wrapper: its ``stack_size``, and its ``padding_type``, which is ``"reset"`` by default where the
    buffer's is ``"zero"``::

        env = FrameStackObservation(env, 4)
        buffer = ReplayBuffer(..., stack_size=4, stack_padding="reset",
                              observation_space=env.env.observation_space)
        env = Recorder(env, buffer)

    A recorder outside of the stacks, as here, refuses what differs, as far as it can be known: when
    it is made, and by the first stack of each episode, which a wrapper that steps in `reset` or
    resets in `step` may have filled with other frames. A recorder inside of the stacks
    (``FrameStackObservation(Recorder(env, buffer), 4)``) cannot see them and says nothing.

Metadata
    What the environment is goes into ``buffer.metadata``, under ``env_id``, ``env_spec``,
    ``env_kwargs``, ``action_meanings`` and ``gymnasium_version``, as far as it can be had and
    where nothing is noted yet under these keys.

Extras
    What is known before the step, such as the log-probability of the action, is given by
    ``recorder.annotate(log_prob=...)`` before each `step`; what follows from the step is returned
    by the function `extras`.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

try:
    from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
    from gymnasium.wrappers import Autoreset
except ImportError as error:
    raise ImportError(
        "diskreplay.integrations.gymnasium: the recorders need Gymnasium 1.1 or later, found "
        f'{gymnasium.__version__}: pip install "diskreplay[recorders]"; or add steps with '
        "`buffer.add`, which does not need it"
    ) from error

from diskreplay.batch import mapped
from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import ExtrasError, InvalidInputError, ShapeError
from diskreplay.integrations.environments import check_spaces, note, resets_again
from diskreplay.integrations.frame_stacks import FrameStacks
from diskreplay.stored_space import StoredSpace

__all__ = ["Recorder", "VectorRecorder"]

ExtrasFunction = Callable[[Any, Any, Any, Any, Any, Any], Mapping[str, Any] | None]

_RESET_NEEDED = "Cannot call env.step() before env.reset(): there is no episode under way to record"

# The same words each time, so that Python shows them once for a line that steps.
_OTHERS = (
    "the buffer's rows are not those that were there behind the step before: others have added "
    "rows, or it was loaded or cleared. The episode is cut here. Give each recorder a buffer of "
    "its own, or record several envs by a VectorRecorder; after buffer.load(..., "
    "resume_episodes=True) call resume(observation)"
)

# The newest frame of observations, without and with an env axis, by the axis of its frames.
_PICKS = (
    {None: (...,), 0: (-1, ...), -1: (..., -1)},
    {None: (...,), 0: (slice(None), -1), -1: (..., -1)},
)


class _Recording:
    """What both recorders share: values of the environment become values of the buffer."""

    _lead: int  # axes before an observation's own

    def __init__(
        self,
        env: Any,
        buffer: ReplayBuffer,
        *,
        extras: ExtrasFunction | None = None,
        frame_axis: str | int | None = "auto",
    ) -> None:
        super().__init__(env)  # type: ignore[call-arg] # of the wrapper that comes behind
        shown = check_spaces(type(self).__name__, env, buffer)
        self._stacks = FrameStacks(env, shown, buffer, frame_axis)
        self._axes = self._stacks.axes
        self._stacked = self._axes.count(None) < len(self._axes)
        self.buffer = buffer
        self._observations = StoredSpace.of(buffer.observation_space, "observation")
        self._actions = StoredSpace.of(buffer.action_space, "action")
        self._extras = extras
        self._annotations: dict[str, Any] = {}
        self._held: list[np.ndarray] | None = None  # the frames that the next action is chosen for
        self._over = np.zeros(buffer.num_envs, np.bool_)  # ended, not begun anew (vector only)
        self._behind: tuple[int, int] | None = self._place()
        self._begins = True
        self._look_at(env)
        note(env, buffer)

    def _look_at(self, env: Any) -> None:
        """Find out how the environment resets, and refuse what cannot be recorded."""
        raise NotImplementedError

    def annotate(self, **values: Any) -> None:
        """Give extras of the next step, before it is made.

        Parameters
        ----------
        **values
            A value for some or all of the buffer's extras, with a leading env axis for a vector
            environment. They hold for one step, and a reset forgets them.

        Raises
        ------
        ExtrasError
            The buffer has no such field.
        """
        if unknown := sorted(values.keys() - self.buffer.extras.keys()):
            raise ExtrasError(
                f"annotate: {unknown[0]!r} is unknown; the extras of this buffer are "
                f"{sorted(self.buffer.extras)}"
            )
        self._annotations.update(values)

    def resume(self, observation: Any, over: np.ndarray | None = None) -> None:
        """Go on with the episode under way, without a reset.

        For an environment that restored its own state, after
        ``buffer.load(..., resume_episodes=True)``.

        Parameters
        ----------
        observation
            What the environment returned last.
        over : ndarray of bool, shape (num_envs,), optional
            Of a vector environment, the envs that await a reset; none by default.
        """
        self._held, self._annotations = self._frames(observation, self._lead), {}
        self._over[:] = False if over is None else over
        self._behind, self._begins = self._place(), False

    def go_on_anywhere(self) -> None:
        """Take the newest row at the next step for one's own: `RunState` loads rows after this."""
        self._behind = None

    def _place(self) -> tuple[int, int]:
        """Another one when somebody adds rows, or when the buffer is loaded or cleared."""
        return self.buffer.generation, self.buffer.add_count

    def _add(self, *row: Any, **more: Any) -> None:
        """Add a row, behind this recorder's own ones or as the first of an episode."""
        if self._behind not in (None, place := self._place()):
            if not self._begins:
                warnings.warn(f"{type(self).__name__}: {_OTHERS}", RuntimeWarning, stacklevel=3)
            self._cut()  # else rows of others would be what its last step led to
        self.buffer.add(*row, **more)
        self._behind, self._begins = (place[0], self.buffer.add_count), False

    def _cut(self, mask: np.ndarray | None = None) -> None:
        """End the episodes under way; the next row begins one, whoever has added rows before."""
        self.buffer.end_episode(mask)
        self._behind, self._begins = self._place(), self._begins or mask is None

    def _frames(self, observation: Any, lead: int) -> list[np.ndarray]:
        """The newest frame of each leaf, copied: environments write into what they returned."""
        pairs = zip(self._observations.flatten(observation), self._axes, strict=True)
        frames = [np.asarray(part)[_PICKS[lead][axis]].copy() for part, axis in pairs]
        num_envs = self.buffer.num_envs
        if lead and any(frame.shape[:1] != (num_envs,) for frame in frames):
            found = " or ".join(sorted({str(frame.shape[:1]) for frame in frames}))
            raise ShapeError(
                f"observation: a first axis of {num_envs} expected, found {found}: a recorder "
                f"needs an environment that gives all {num_envs} envs each time. One that gives "
                "some of them (EnvPool's and ALE's with a batch_size, EnvPool's with a reset_mask) "
                "is recorded by `buffer.add(..., mask=)`"
            )
        return frames

    def _check_first(self, observation: Any, begun: np.ndarray | None = None) -> None:
        """Refuse what episodes begin with if the buffer's stacks would differ from it."""
        if self._stacked:
            self._stacks.check_first(self._observations.flatten(observation), begun)

    def _observation(self, frames: list[np.ndarray] | None) -> Any:
        return frames and self._observations.unflatten(frames)

    def _copied_action(self, action: Any) -> Any:
        """The action as it was chosen: environments may clip or scale it in place."""
        if isinstance(action, int | np.integer):
            return action
        parts = self._actions.flatten(action)
        return self._actions.unflatten([np.asarray(part).copy() for part in parts])

    def _all_extras(self, *step: Any) -> dict[str, Any]:
        """What was annotated, and what the function makes of (observation, ..., info)."""
        found = (self._extras and self._extras(*step)) or {}
        if not isinstance(found, Mapping):
            raise ExtrasError(
                f"extras: a dict or None expected of the function, found {brief(found, 80)}; this "
                "step is not recorded"
            )
        return {**self._annotations, **found}


class Recorder(_Recording, gymnasium.Wrapper):
    """A single environment whose steps are recorded.

    Parameters
    ----------
    env : gymnasium.Env
        Also one with `gymnasium.wrappers.Autoreset`.
    buffer : ReplayBuffer
        With ``num_envs=1``. It stays the caller's to close.
    extras : callable, optional
        ``(observation, action, reward, terminated, truncated, info)`` of a step to a dict of
        extras. The observation is the recorded one, before the step. Its values go before those of
        `annotate`.
    frame_axis : {"auto", None, 0, -1}
        Where an observation that is a stack has its frames, oldest first: along the first axis or
        the last one; None: it is no stack. ``"auto"`` compares the spaces.

    Raises
    ------
    SchemaError
        The environment's spaces are not those of the buffer, or its stacks of frames are not those
        that the buffer makes; `reset` and `step` raise it too when an episode's first stack shows
        it.
    InvalidInputError
        `frame_axis` must be said, or is none of these.

    Notes
    -----
    When a step was made and could not be recorded (a full disk, a missing extra), the error is
    raised, the episode is cut there and recording can go on with the next step. After an error of
    the environment's own a reset is needed.
    """

    _lead = 0

    def _look_at(self, env: gymnasium.Env) -> None:
        while isinstance(env, gymnasium.Wrapper) and not isinstance(env, Autoreset):
            env = env.env
        self._autoreset = env if isinstance(env, Autoreset) else None

    def reset(
        self, *, seed: int | None = None, options: dict[Any, Any] | None = None
    ) -> tuple[Any, dict[Any, Any]]:
        """Begin an episode; one that is under way is cut."""
        self._held, self._annotations = None, {}
        result = observation, _ = self.env.reset(seed=seed, options=options)
        self._cut()
        self._check_first(observation)
        self._held = self._frames(observation, 0)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make a step and record it.

        Raises
        ------
        gymnasium.error.ResetNeeded
            No episode is under way.
        """
        only_resets = self._autoreset is not None and self._autoreset.autoreset
        if self._held is None and not only_resets:
            raise ResetNeeded(_RESET_NEEDED)
        taken = self._copied_action(action)
        before, self._held = self._held, None
        result = observation, reward, terminated, truncated, info = self.env.step(action)
        try:
            frames = self._frames(observation, 0)
            ended = terminated or truncated
            if only_resets:
                self._cut()
                self._check_first(observation)
            self._held = None if ended else frames
            if only_resets:
                return result
            seen = self._observation(before)
            extras = self._all_extras(seen, taken, reward, terminated, truncated, info)
            final = self._observation(frames) if ended else None
            self._add(seen, taken, reward, terminated, truncated, final, **extras)
        except BaseException:
            self._cut()  # a row is missing in it
            raise
        finally:
            self._annotations = {}
        return result


class VectorRecorder(_Recording, VectorWrapper):
    """A vector environment whose steps are recorded.

    Parameters
    ----------
    env : gymnasium.vector.VectorEnv
        In any autoreset mode; it is read from ``env.metadata["autoreset_mode"]``.
    buffer : ReplayBuffer
        With as many envs. It stays the caller's to close.
    extras : callable, optional
        As for `Recorder`; all values have a leading env axis. Those of envs that do not record this
        step are not looked at.
    frame_axis : {"auto", None, 0, -1}
        As for `Recorder`, not counting the env axis.

    Raises
    ------
    SchemaError, InvalidInputError
        As for `Recorder`; also for another number of envs, and when the mode is not known.
    ShapeError
        By `reset` and `step`: the environment has given some of its envs only, as EnvPool's does
        with a ``batch_size``.

    Notes
    -----
    Errors are as for `Recorder`. A wrapper that makes ``infos`` something else than a dict goes
    around the recorder, not into it. Where a ``SAME_STEP`` environment gives no final observation
    none is stored, and a transition that was truncated there is not sampled.
    """

    _lead = 1

    def _look_at(self, env: VectorEnv) -> None:
        mode = env.metadata.get("autoreset_mode")
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            raise InvalidInputError(
                f"VectorRecorder: env.metadata['autoreset_mode'] is {mode!r}; an AutoresetMode "
                "expected, since the rows depend on it: set the one that the environment has"
            ) from None
        self._resets_again = self._mode is AutoresetMode.NEXT_STEP and resets_again(env)

    def reset(
        self, *, seed: Any = None, options: dict[Any, Any] | None = None
    ) -> tuple[Any, dict[Any, Any]]:
        """Begin an episode in all envs, or those of ``options["reset_mask"]``; cut open ones."""
        mask = (options or {}).get("reset_mask")  # the environment takes it out of the dict
        mask = None if mask is None else np.asarray(mask)
        held, self._held, self._annotations = self._held, None, {}
        result = observations, _ = self.env.reset(seed=seed, options=options)
        frames = self._frames(observations, 1)
        begun = np.ones_like(self._over) if mask is None or held is None else mask
        if begun.all():
            self._cut()
        else:
            self.buffer.end_episode(begun)  # the others may have rows of somebody else behind them
        self._check_first(observations, begun)
        self._held = held or frames
        for kept, new in zip(self._held, frames, strict=True):
            kept[begun] = new[begun]
        if not self._resets_again:
            self._over[... if mask is None else mask] = False
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Make a step in each env and record it where it was one; see `Recorder.step`."""
        if self._held is None:
            raise ResetNeeded(_RESET_NEEDED)
        taken = self._copied_action(actions)
        before, self._held = self._held, None
        result = observations, rewards, terminated, truncated, infos = self.env.step(actions)
        mask = ~self._over
        try:
            frames = self._frames(observations, 1)
            # Tensors, of `NumpyToTorch` say, know no bools of NumPy's.
            ended = np.logical_or(np.asarray(terminated), np.asarray(truncated))
            if self._stacked and self._mode is not AutoresetMode.DISABLED:
                begun = ended if self._mode is AutoresetMode.SAME_STEP else self._over
                if begun.any():
                    self._check_first(observations, begun)
            if self._mode is AutoresetMode.NEXT_STEP:
                self._over = ended
            elif self._mode is AutoresetMode.DISABLED:
                self._over = self._over | ended
            self._held = frames  # behind `_over`: after Ctrl-C between them a reset is needed
            final, given = (frames if ended.any() else None), None
            if self._mode is AutoresetMode.SAME_STEP and final is not None:
                final, given = self._final_frames(frames, infos, ended)
            step = self._observation(before), taken, rewards, terminated, truncated
            extras: dict[str, Any] = self._all_extras(*step, infos)
            following = self._observation(final)
            if self.num_envs == 1:
                step, following = mapped(_of_only_env, (step, following))
                extras = {name: _of_only_env(value) for name, value in extras.items()}
            if mask.any():
                row = (*step, following)
                self._add(*row, mask=mask, next_observation_mask=given, **extras)
        except BaseException:
            self._cut(mask)  # a row is missing in them
            raise
        finally:
            self._annotations = {}
        return result

    def _final_frames(
        self, frames: list[np.ndarray], infos: dict[str, Any], ended: np.ndarray
    ) -> tuple[list[np.ndarray] | None, np.ndarray | None]:
        """The frames that episodes ended with, from ``infos``, and the envs that gave one."""
        if not isinstance(infos, Mapping):
            raise InvalidInputError(
                f"VectorRecorder: infos: a dict expected, found {type(infos).__name__}; put the "
                "wrapper that makes it so around the recorder, not into it"
            )
        final = infos.get("final_obs")
        if final is None:
            return None, None
        given = ended & np.asarray(infos.get("_final_obs", True))
        if isinstance(final, np.ndarray) and final.dtype == object:  # one for each env that ended
            each = [self._frames(observation, 0) for observation in final[given]]
            parts = [np.stack(leaf) for leaf in zip(*each, strict=True)]
        else:  # one of all envs, as ALE's environment gives it
            parts = [leaf[given] for leaf in self._frames(final, 1)]
        final_frames = [frame.copy() for frame in frames]
        for leaf, part in zip(final_frames, parts, strict=False):  # no parts: none was given
            leaf[given] = part
        return final_frames, given


def _of_only_env(value: Any) -> Any:
    """An array of a vector environment of one env, without the env axis."""
    return None if value is None else np.asarray(value)[0]
