"""torchrl: memory-mapped storage, with stacks cut while sampling or stored whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, BETA, GAMMA, Contender, Needs, Setup, stacks_first_axis
from stream import FRAME_BYTES, STACK, Piece

TRAJECTORY = ("collector", "traj_ids")


def load_extension() -> None:
    """Import torchrl so that its trees load beside more versions of torch.

    The wheel's extension is built for one version of torch; beside another, a missing symbol
    that the trees never call would take the prioritized samplers away.  Lazy binding keeps them.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        import_module("torchrl._torchrl")
    finally:
        sys.setdlopenflags(flags)


class _Torchrl(Contender):
    """What both ways share: steps become TensorDicts, trajectories are numbered."""

    distribution = "torchrl"
    bulk_fill = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._trajectory = 0

    def _storage(self) -> Any:
        from torchrl.data import LazyMemmapStorage

        scratch = self.setup.directory / "storage"
        scratch.mkdir(parents=True, exist_ok=True)
        return LazyMemmapStorage(self.setup.frames, scratch_dir=scratch)

    def _tensordict(self, piece: Piece, pixels: np.ndarray) -> Any:
        """`pixels`: one more than there are steps, the last one is the last next observation."""
        import torch
        from tensordict import TensorDict

        count = len(piece)
        trajectory = np.full(count, self._trajectory)
        ended = piece.terminated | piece.truncated
        if ended[-1]:
            self._trajectory += 1
        column = {
            name: torch.from_numpy(np.array(values))[:, None]
            for name, values in {
                "reward": piece.reward,
                "done": ended,
                "terminated": piece.terminated,
                "truncated": piece.truncated,
            }.items()
        }
        return TensorDict(
            {
                "pixels": torch.from_numpy(pixels[:-1]),
                "action": torch.from_numpy(np.array(piece.action)),
                TRAJECTORY: torch.from_numpy(trajectory),
                "next": TensorDict(
                    {"pixels": torch.from_numpy(pixels[1:]), **column}, batch_size=[count]
                ),
            },
            batch_size=[count],
        )

    def _steps(self) -> list[Any]:
        """The transform that sums n-step rewards while adding."""
        from torchrl.envs import MultiStepTransform

        if self.setup.n_step == 1:
            return []
        return [MultiStepTransform(n_steps=self.setup.n_step, gamma=GAMMA)]

    def prepare(self, piece: Piece) -> list[Any]:
        steps = self._prepare_all(piece)
        return [steps[step : step + 1] for step in range(len(piece))]

    def _prepare_all(self, piece: Piece) -> Any:
        raise NotImplementedError

    def add(self, prepared: list[Any]) -> None:
        extend = self._buffer.extend
        for step in prepared:
            extend(step)

    def extend(self, piece: Piece) -> None:
        self._buffer.extend(self._prepare_all(piece))

    def save(self, directory: Path, number: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._buffer.dumps(directory / str(number))

    def load(self, directory: Path) -> None:
        self.build()
        newest = max(directory.iterdir(), key=lambda path: int(path.name))
        self._buffer.loads(newest)


class TorchrlSlices(_Torchrl):
    name = "torchrl (slices)"
    note = (
        "LazyMemmapStorage of single frames, CatFrames.make_rb_transform_and_sampler with "
        "SliceSampler or PrioritizedSliceSampler, as its documentation advises to save memory; "
        "frames and next frames are both stored. Filled by extend() of up to 256 steps; the add "
        "is extend() of one. dumps() of storage, sampler and writer; that of the whole buffer "
        "fails in CatFrames."
    )

    @classmethod
    def needs(cls, setup: Setup) -> Needs:
        frames = 2 * setup.frames * FRAME_BYTES
        return Needs(disk=frames, saved=frames)

    def build(self) -> None:
        load_extension()
        from torchrl.data import PrioritizedSliceSampler, ReplayBuffer
        from torchrl.envs import CatFrames, Compose, RenameTransform

        stacks = CatFrames(
            N=STACK,
            dim=-3,
            in_keys=["stack"],
            out_keys=["stack"],
            padding="constant",
            reset_key="_reset",
        )
        options = {"traj_key": TRAJECTORY, "strict_length": True}
        cut, sampler = stacks.make_rb_transform_and_sampler(batch_size=BATCH, **options)
        self._sampled = BATCH
        if self.setup.prioritized:
            sampler = PrioritizedSliceSampler(
                max_capacity=self.setup.frames, alpha=ALPHA, beta=BETA, slice_len=STACK, **options
            )
            self._sampled = BATCH * STACK  # this sampler counts steps, the other one slices
        pixels = ["pixels", ("next", "pixels")]
        copy = RenameTransform(pixels, ["stack", ("next", "stack")], create_copy=True)
        self._buffer = ReplayBuffer(
            storage=self._storage(),
            sampler=sampler,
            batch_size=self._sampled,
            transform=Compose(*self._steps(), copy, cut),
        )

    def _prepare_all(self, piece: Piece) -> Any:
        return self._tensordict(piece, piece.frames[STACK - 1 :, None].copy())

    def samplers(self) -> dict[str, Callable[[], Any]]:
        return {"sample": lambda: self._buffer.sample(return_info=True)}

    def save(self, directory: Path, number: int) -> None:
        for part in self._parts():
            target = directory / str(number) / type(part).__name__
            target.mkdir(parents=True, exist_ok=True)
            part.dumps(target)

    def load(self, directory: Path) -> None:
        self.build()
        newest = max(directory.iterdir(), key=lambda path: int(path.name))
        for part in self._parts():
            part.loads(newest / type(part).__name__)

    def _parts(self) -> tuple[Any, ...]:
        return self._buffer.storage, self._buffer.sampler, self._buffer.writer

    def ids(self, batch: Any) -> Any:
        index = batch[1]["index"]
        index = index[0] if isinstance(index, tuple) else index
        return index[:: len(index) // BATCH]

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        self._buffer.update_priority(ids, priorities.astype(np.float32))


class TorchrlStacks(_Torchrl):
    name = "torchrl (stacks)"
    note = (
        "LazyMemmapStorage of whole stacks and next stacks, eight frames a row, as its Atari "
        "DQN recipe does with CatFrames in the environment; TensorDict(Prioritized)ReplayBuffer. "
        "Filled by extend() of up to 256 steps; the add is extend() of one. dumps()."
    )

    @classmethod
    def needs(cls, setup: Setup) -> Needs:
        stacks = 2 * STACK * setup.frames * FRAME_BYTES
        return Needs(disk=stacks, saved=stacks)

    def build(self) -> None:
        load_extension()
        from torchrl.data import TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
        from torchrl.envs import Compose

        options: dict[str, Any] = {"storage": self._storage(), "batch_size": BATCH}
        if self._steps():
            options["transform"] = Compose(*self._steps())
        if self.setup.prioritized:
            self._buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, **options)
        else:
            self._buffer = TensorDictReplayBuffer(**options)

    def _prepare_all(self, piece: Piece) -> Any:
        return self._tensordict(piece, stacks_first_axis(piece))

    def samplers(self) -> dict[str, Callable[[], Any]]:
        return {"sample": self._buffer.sample}

    def ids(self, batch: Any) -> Any:
        return batch["index"]

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        self._buffer.update_priority(ids, priorities.astype(np.float32))
