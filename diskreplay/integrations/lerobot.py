"""LeRobot's HIL-SERL: the `ReplayBuffer` of ``lerobot.rl.buffer``, with its observations on disk.

::

    from diskreplay.integrations.lerobot import ReplayBuffer

    buffer = ReplayBuffer(
        capacity=100_000, device="cuda", state_keys=cfg.policy.input_features.keys(),
        path="outputs/run/replay",
    )

It draws what the original draws, from torch's global generator. LeRobot itself is not needed.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np

from diskreplay.extensions import needed
from diskreplay.locks import Lock, turn_of
from diskreplay.store import files
from diskreplay.store.paths import local

with needed("diskreplay.integrations.lerobot needs PyTorch", "lerobot,torch"):
    import torch

from gymnasium import spaces as gym_spaces

from diskreplay import given_numbers, spaces, validation
from diskreplay.convert.lerobot_features import ACTION, IMAGE
from diskreplay.errors import EmptyBufferError, InvalidInputError, SchemaError, ShapeError
from diskreplay.integrations.lerobot_datasets import LeRobotDatasets, random_shift
from diskreplay.integrations.stacked_leaf import StackedLeaf
from diskreplay.integrations.transition_ring import TransitionRing
from diskreplay.integrations.transition_rows import rows_for
from diskreplay.opening import open as open_buffer
from diskreplay.shared_buffer import shared

__all__ = ["ReplayBuffer"]

State = Mapping[str, torch.Tensor]


class ReplayBuffer(LeRobotDatasets):
    """The replay buffer of LeRobot's HIL-SERL, with the observations on disk.

    Parameters
    ----------
    capacity : int
        Transitions.
    device : str
        Where samples go.
    state_keys : sequence of str, optional
        Those of `from_lerobot_dataset`; `add` takes the keys of the first state.
    image_augmentation_function : callable, optional
        Given all pictures of a batch, float32 of shape (n, channels, height, width), returns as
        many. Default: `random_shift`, not compiled.
    use_drq : bool
        Whether pictures, of keys that begin with ``observation.image``, are augmented.
    storage_device : str
        The device whose generator draws.
    optimize_memory : bool
        Accepted, and without effect: each observation is stored once anyway, and what an episode
        ended with is never another episode's observation.
    path : path, optional
        The store's directory, made or reopened. None: a temporary one.
    pixels : {"float32", "uint8"}
        How pictures are stored. "float32" as they come. "uint8" rounds them to the nearest of 256
        steps from 0 to 1, takes a quarter of the room and is compressed; LeRobot's data sets do
        the same.
    compressor : str or dict
        As for `diskreplay.ReplayBuffer`.

    Attributes
    ----------
    size, position : int
        Transitions that are there; the slot of the next one.
    initialized : bool
    actions, rewards, dones, truncateds : Tensor, of `capacity` elements
    complementary_info : dict of str to Tensor

    Raises
    ------
    InvalidInputError
        An option makes no sense.
    SchemaError
        `path` holds something else.
    """

    def __init__(
        self,
        capacity: int,
        device: str = "cuda:0",
        state_keys: Sequence[str] | None = None,
        image_augmentation_function: Callable[[torch.Tensor], torch.Tensor] | None = None,
        use_drq: bool = True,
        storage_device: str = "cpu",
        optimize_memory: bool = False,
        *,
        path: str | os.PathLike[str] | None = None,
        pixels: Literal["float32", "uint8"] = "float32",
        compressor: str | Mapping[str, str] = "auto",
    ) -> None:
        validation.one_of("pixels", pixels, ("float32", "uint8"))
        self.capacity = given_numbers.whole("capacity", capacity)
        self.device, self.storage_device = device, storage_device
        self.state_keys = list(state_keys or [])
        self.image_augmentation_function = image_augmentation_function or random_shift
        self.use_drq, self.optimize_memory = use_drq, optimize_memory
        self.position = self.size = 0
        self.initialized = False
        self.complementary_info: dict[str, torch.Tensor] = {}
        self._path = None if path is None else local(path, "path").absolute()
        self._pixels, self._compressor = pixels, compressor
        self._lock = Lock()
        self._ring: TransitionRing | None = None
        self._handle: Any = None
        self._look()

    def _turn(self) -> Lock:
        """The lock, for a call that is to begin; or a `ReentryError`."""
        ring = self._ring
        return turn_of(self._lock, "the replay buffer", None if ring is None else ring.buffer)

    # -- opening

    def _look(self) -> TransitionRing | None:
        """The transitions, of a store that is there if none is open; None while there is none."""
        if self._ring is None and self._path is not None:
            if files.is_there(self._path / "zarr.json"):
                self._reopen(self._path)
        return self._ring

    def _open(
        self, shapes: Mapping[str, tuple[int, ...]], action: tuple[int, ...],
        info: Mapping[str, tuple[int, ...]],
    ) -> TransitionRing:  # fmt: skip
        """Open the store, or make it, for values of these shapes."""
        seen: dict[str, gym_spaces.Space[Any]] = {}
        for key, shape in shapes.items():
            is_small = self._pixels == "uint8" and _is_image(key)
            seen[key] = spaces.box(shape, np.uint8 if is_small else np.float32)
        self._handle = shared(
            self._path, observation_space=gym_spaces.Dict(seen),
            action_space=spaces.box(action, np.float32), capacity=rows_for(self.capacity, 1),
            extras={name: (shape, np.float32) for name, shape in info.items()},
            compressor=self._compressor,
        )  # fmt: skip
        leaves = [StackedLeaf(key, space, shapes[key], 1, "auto") for key, space in seen.items()]
        self._ring = ring = TransitionRing(self._handle, leaves, self.capacity, 1, "zero")
        count = self.capacity
        self.actions = torch.zeros((count, *action))
        self.rewards = torch.zeros(count)
        self.dones, self.truncateds = (torch.zeros(count, dtype=torch.bool) for _ in range(2))
        self.complementary_info = {name: torch.zeros((count, *s)) for name, s in info.items()}
        self.initialized = True
        return ring

    def _reopen(self, path: Path) -> None:
        """Take over the transitions of a store that is there."""
        with open_buffer(path) as found:
            space, fields = found.observation_space, found.fields
            action, info = fields.get(ACTION), found.extras
        if not isinstance(space, gym_spaces.Dict) or action is None or action[1] != np.float32:
            raise SchemaError(f"{path}: no store of a HIL-SERL buffer; choose another path")
        shapes = {key: fields[f"observation/{key}"][0] for key in space.spaces}
        for key in shapes:
            stored, wanted = fields[f"observation/{key}"][1].name, "float32"
            if self._pixels == "uint8" and _is_image(key):
                wanted = "uint8"
            if stored != wanted:
                raise SchemaError(
                    f"{path}: {key!r} is {stored} in the store and {wanted} here; give "
                    "pixels= as it was made with, or choose another path"
                )
        ring = self._open(shapes, action[0], {name: about[0] for name, about in info.items()})
        names = ["action", "reward", "terminated", "truncated", *info]
        self.position, is_full, slots, columns = ring.find(names)
        self.size = self.capacity if is_full else self.position
        targets = [self.actions, self.rewards, self.dones, self.truncateds]
        targets += [self.complementary_info[name] for name in info]
        for target, name in zip(targets, names, strict=True):
            target[slots] = torch.from_numpy(columns[name][:, 0]).to(target.dtype)

    def __len__(self) -> int:
        return self.size

    @property
    def has_complementary_info(self) -> bool:
        """Whether transitions have complementary info."""
        return bool(self.complementary_info)

    @property
    def complementary_info_keys(self) -> list[str]:
        """The names of the complementary info."""
        return list(self.complementary_info)

    # -- adding

    def add(
        self, state: State, action: torch.Tensor, reward: float, next_state: State, done: bool,
        truncated: bool,
        complementary_info: Mapping[str, torch.Tensor | float] | None = None,
    ) -> None:  # fmt: skip
        """Record a transition.

        Parameters
        ----------
        state, next_state : dict of str to Tensor
            What the policy saw, and what its action led to; a first axis of one is left out.
        action : Tensor
        reward : float
        done, truncated : bool
            Whether the episode terminated, and whether it was cut off.
        complementary_info : dict of str to Tensor or float, optional
            Numbers of the step; the names are those of the first transition's.

        Raises
        ------
        InvalidInputError, ShapeError
            The keys or shapes are others than those of the first transition. Nothing was recorded.
        NotFiniteError, DiskFullError
            As for `diskreplay.ReplayBuffer.add`.
        """
        info = {name: _single(value) for name, value in (complementary_info or {}).items()}
        values = {key: _single(value) for key, value in state.items()}
        led = {key: _single(next_state[key]) for key in values if key in next_state}
        act = _single(action)
        with self._turn():
            ring = self._look() or self._open(
                {key: value.shape for key, value in values.items()}, act.shape,
                {name: value.shape for name, value in info.items()},
            )  # fmt: skip
            for name, found in (("state", values), ("next_state", led)):
                if found.keys() != {leaf.name for leaf in ring.leaves}:
                    raise InvalidInputError(
                        f"{name}: the keys {sorted(leaf.name for leaf in ring.leaves)} expected, "
                        f"found {sorted(found)}"
                    )
            extras = {}
            for name, room in self.complementary_info.items():
                extras[name] = info.get(name, np.zeros(room.shape[1:], np.float32))
            slot, ended = self.position, np.array([done or truncated])
            ring.add(
                slot, self._stored(ring, values), self._stored(ring, led), act[None],
                np.array([reward], np.float32), ended, np.array([truncated and not done]),
                extras,
            )  # fmt: skip
            self.actions[slot], self.rewards[slot] = torch.from_numpy(act), float(reward)
            self.dones[slot], self.truncateds[slot] = bool(done), bool(truncated)
            for name, value in extras.items():
                self.complementary_info[name][slot] = torch.from_numpy(value)
            self.position = (slot + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def _stored(self, ring: TransitionRing, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Observations as the store has them, with an env axis, in the order of the leaves."""
        made = []
        for leaf in ring.leaves:
            value = values[leaf.name]
            if value.shape != leaf.shape:
                raise ShapeError(f"{leaf.name}: shape {leaf.shape} expected, found {value.shape}")
            if leaf.dtype == np.uint8:
                if not ((value >= 0) & (value <= 1)).all():
                    raise InvalidInputError(
                        f"{leaf.name}: pictures from 0 to 1 expected, found {value.min()} to "
                        f"{value.max()}; give pixels='float32'"
                    )
                value = np.rint(value * 255).astype(np.uint8)
            made.append(value[None])
        return made

    # -- sampling

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Transitions drawn evenly with replacement, at most as many as there are.

        Parameters
        ----------
        batch_size : int

        Returns
        -------
        dict
            ``state`` and ``next_state``, dicts of float32 tensors of shape (n, *shape); ``action``,
            of shape (n, *shape), and ``reward``, of shape (n,); ``done`` and ``truncated``, of
            shape (n,), as float32; ``complementary_info``, a dict of tensors or None. All are
            copies, on `device`.

        Raises
        ------
        EmptyBufferError
            Nothing was added yet.
        """
        with self._turn():
            ring, size = self._look(), min(batch_size, self.size)
            if ring is None or not self.size:
                raise EmptyBufferError("nothing to sample: add transitions first")
            drawn = torch.randint(0, self.size, (size,), device=self.storage_device)
            slots = drawn.cpu()
            at = slots.numpy(), np.zeros(size, np.int64)
            states: tuple[dict[str, torch.Tensor], ...] = ({}, {})
            for number, leaf in enumerate(ring.leaves):
                for state, following in zip(states, (False, True), strict=True):
                    values = ring.observations(number, *at, following=following)
                    if leaf.dtype == np.uint8:
                        values = values.astype(np.float32) / np.float32(255)
                    state[leaf.name] = torch.from_numpy(values).to(self.device)
            rest = self.actions, self.rewards, self.dones, self.truncateds
            action, reward, done, truncated = (part[slots].to(self.device) for part in rest)
            info = {n: part[slots].to(self.device) for n, part in self.complementary_info.items()}
        if self.use_drq:
            self._augment(*states)
        return {
            "state": states[0], "action": action, "reward": reward, "next_state": states[1],
            "done": done.float(), "truncated": truncated.float(),
            "complementary_info": info or None,
        }  # fmt: skip

    def _augment(self, state: dict[str, torch.Tensor], led: dict[str, torch.Tensor]) -> None:
        keys = [key for key in state if _is_image(key)]
        if not keys:
            return
        together = torch.cat([part for key in keys for part in (state[key], led[key])])
        parts = torch.split(self.image_augmentation_function(together), len(state[keys[0]]))
        for number, key in enumerate(keys):
            state[key], led[key] = parts[2 * number], parts[2 * number + 1]

    def get_iterator(
        self, batch_size: int, async_prefetch: bool = True, queue_size: int = 2
    ) -> Iterator[dict[str, Any]]:
        """Batches without end.

        Parameters
        ----------
        batch_size : int
            As for `sample`.
        async_prefetch : bool
            Whether a thread draws and reads them ahead.
        queue_size : int
            So many ahead.

        Yields
        ------
        dict
            As `sample` returns.

        Raises
        ------
        EmptyBufferError
            As `sample`, from the batch that could not be drawn.
        """
        if not async_prefetch:
            ahead = deque(self.sample(batch_size) for _ in range(queue_size))
            while True:
                yield ahead.popleft() if ahead else self.sample(batch_size)
                if queue_size:
                    ahead.append(self.sample(batch_size))
        with ThreadPoolExecutor(1, "diskreplay lerobot") as pool:
            pending = deque(pool.submit(self.sample, batch_size) for _ in range(queue_size or 1))
            try:
                while True:
                    yield pending.popleft().result()
                    pending.append(pool.submit(self.sample, batch_size))
            finally:
                for each in pending:
                    each.cancel()

    # -- closing

    def close(self) -> None:
        """Write down what the newest transition led to, and release the store; the next use opens
        it again. A temporary one is gone."""
        with self._turn():
            if self._ring is not None:
                self._ring.finish()
                self._handle.close()
            self._ring = self._handle = None
            if self._path is None:
                self.position = self.size = 0
                self.initialized = False


def _is_image(key: str) -> bool:
    return key.startswith(IMAGE)


def _single(value: Any) -> np.ndarray:
    """A value of a batch of one as float32, without that axis."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    array = np.asarray(value, np.float32)
    return np.asarray(array[0] if array.ndim and len(array) == 1 else array, order="C")
