"""What HIL-SERL's replay buffer does with pictures and with data sets."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch

from diskreplay.convert.lerobot import to_lerobot
from diskreplay.convert.lerobot_features import ACTION, MORE, Feature
from diskreplay.convert.lerobot_reader import LeRobotFiles
from diskreplay.convert.lerobot_videos import Pictures
from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.integrations.transition_ring import TransitionRing
from diskreplay.locks import Lock

_ROWS_AT_ONCE = 64


def random_shift(images: torch.Tensor, pad: int = 4) -> torch.Tensor:
    """Each picture moved by up to `pad` pixels, its edges repeated: DrQ, Kostrikov et al., 2020.

    Parameters
    ----------
    images : Tensor, shape (batch, channels, height, width)
    pad : int
        Pixels in each direction, at most.

    Returns
    -------
    Tensor, shape (batch, channels, height, width)
        A copy. It draws from torch's global generator.
    """
    batch, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (pad,) * 4, mode="replicate")
    # First all tops, then all lefts: as the original draws them.
    top = torch.randint(0, 2 * pad + 1, (batch,), device=images.device)
    left = torch.randint(0, 2 * pad + 1, (batch,), device=images.device)
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    number = torch.arange(batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[number, channel, rows[:, None, :, None], columns[:, None, None, :]]


class LeRobotDatasets:
    """Mixin of HIL-SERL's `ReplayBuffer`: data sets, there and back."""

    _turn: Callable[[], Lock]
    _look: Callable[[], TransitionRing | None]
    size: int
    position: int

    @classmethod
    def from_lerobot_dataset(
        cls, lerobot_dataset: Any, device: str = "cuda:0", state_keys: Sequence[str] | None = None,
        capacity: int | None = None,
        image_augmentation_function: Callable[[torch.Tensor], torch.Tensor] | None = None,
        use_drq: bool = True, storage_device: str = "cpu", optimize_memory: bool = False,
        **options: Any,
    ) -> Self:  # fmt: skip
        """A buffer with the transitions of a LeRobot data set.

        Parameters
        ----------
        lerobot_dataset : LeRobotDataset or path
            Of the format's version 3; its files are read, its transforms are not applied.
        state_keys : sequence of str
            The features that are the state.
        capacity : int, optional
            Default: its length.
        device, image_augmentation_function, use_drq, storage_device, optimize_memory
            As for the class.
        **options
            ``path``, ``pixels`` and ``compressor`` of the class.

        Returns
        -------
        ReplayBuffer

        Raises
        ------
        InvalidInputError
            `state_keys` is missing or names no feature, or the capacity is too small.
        FormatError
            As for `diskreplay.convert.lerobot.from_lerobot`.

        Notes
        -----
        What an episode ended with is known only of data sets that diskreplay wrote. In others the
        last ``next_state`` is the last ``state``, as in the original. So is `done`, where there is
        no ``next.done``: true at the end of each episode.
        """
        if not state_keys:
            raise InvalidInputError("state_keys: the features that are the state expected")
        root, chosen = lerobot_dataset, None
        if not isinstance(root, str | os.PathLike):
            root, chosen = lerobot_dataset.root, lerobot_dataset.episodes
        with LeRobotFiles(root) as source:
            episodes = list(range(source.num_episodes)) if chosen is None else list(chosen)
            total = sum(source.length(episode) for episode in episodes)
            capacity = total if capacity is None else capacity
            if capacity < total:
                raise InvalidInputError(
                    f"capacity: {total} or more expected, as many as there are, found {capacity}"
                )
            kind: Any = cls
            made = kind(
                capacity, device, state_keys, image_augmentation_function, use_drq,
                storage_device, optimize_memory, **options,
            )  # fmt: skip
            for episode in episodes:
                for step in _steps(source, episode, state_keys):
                    made.add(**step)
        return cast(Self, made)

    def to_lerobot_dataset(
        self, repo_id: str, fps: int = 1, root: str | os.PathLike[str] | None = None,
        task_name: str = "from_replay_buffer", *, pictures: Pictures = "png",
    ) -> Any:  # fmt: skip
        """Write all transitions as a LeRobot data set, episode by episode.

        Parameters
        ----------
        repo_id : str
            The name of the data set.
        fps : int
            Steps a second, of which the timestamps are made.
        root : path, optional
            Its directory, which is not there yet. Default: where LeRobot keeps `repo_id`.
        task_name : str
            What all episodes try to do, in words.
        pictures : {"png", "av1", "h264", "lossless"}
            As for `diskreplay.convert.lerobot.to_lerobot`.

        Returns
        -------
        LeRobotDataset or Path
            The directory where LeRobot is not installed.

        Raises
        ------
        EmptyBufferError
            Nothing was added yet.
        InvalidInputError, StorageError
            As for `diskreplay.convert.lerobot.to_lerobot`.

        Notes
        -----
        The newest transition's episode is written as it is; its `next_state` is in memory only,
        and so not in the data set. Transitions that the ring shows no more are left out.
        """
        with self._turn():
            ring = self._look()
            if ring is None or not self.size:
                raise EmptyBufferError("nothing to write: add transitions first")
            ring.let_go(self.position)
            if root is None:
                home = os.environ.get("HF_LEROBOT_HOME", "~/.cache/huggingface/lerobot")
                root = Path(home).expanduser() / repo_id
            made = to_lerobot(ring.buffer, root, fps=fps, task=task_name, pictures=pictures)
        try:
            from lerobot.datasets.lerobot_dataset import LeRobotDataset
        except ModuleNotFoundError:
            return made
        return LeRobotDataset(repo_id, root=made)


def _steps(
    source: LeRobotFiles, episode: int, state_keys: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The arguments of the buffer's `add` for each transition of an episode."""
    by_key = {feature.key: feature for feature in source.features}
    if unknown := [key for key in state_keys if key not in by_key]:
        raise InvalidInputError(f"state_keys: {unknown[0]!r} is no feature; {sorted(by_key)} are")
    more = [feature for feature in source.features if feature.key.startswith(MORE)]
    length, waiting = source.length(episode), None
    for start in range(0, length, _ROWS_AT_ONCE):
        columns = source.read(episode, start, min(start + _ROWS_AT_ONCE, length))
        for at in range(len(columns["reward"])):
            state = {key: _as_state(by_key[key], columns[by_key[key].field][at])
                     for key in state_keys}  # fmt: skip
            if waiting is not None:
                yield waiting | {"next_state": state}
            waiting = {
                "state": state, "action": columns[by_key[ACTION].field][at][None],
                "reward": float(columns["reward"][at]), "done": bool(columns["terminated"][at]),
                "truncated": bool(columns["truncated"][at]),
                "complementary_info": {f.key.removeprefix(MORE): columns[f.field][at][None]
                                       for f in more},
            }  # fmt: skip
    if waiting is None:
        return
    final = source.final(episode)
    led = waiting["state"]
    if final is not None:
        led = {key: _as_state(by_key[key], final[by_key[key].field][0]) for key in state_keys}
    elif not source.has_ends:
        waiting |= {"done": True, "truncated": False}
    yield waiting | {"next_state": led}


def _as_state(feature: Feature, value: np.ndarray) -> np.ndarray:
    """As LeRobot's data sets give it: pictures of floats from 0 to 1, the channels first."""
    if feature.is_picture:
        value = feature.as_pictures(value[None])[0].astype(np.float32).transpose(2, 0, 1)
        return np.asarray(value / np.float32(255))[None]
    return np.asarray(value, np.float32)[None]
