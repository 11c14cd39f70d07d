"""Tianshou: the buffer of its Atari examples, one frame a row, stacked when sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, BETA, GAMMA, Contender, stacks_first_axis
from stream import STACK, Piece


class Tianshou(Contender):
    name = "Tianshou"
    distribution = "tianshou"
    note = (
        "(Prioritized)ReplayBuffer with the options of its Atari examples: stack_num=4, "
        "ignore_obs_next, save_only_last_obs; for one environment it adds faster and saves less "
        "than the VectorReplayBuffer there. Batches are made before the clock starts. An "
        "episode's final observation is not kept. n-step: only what its learner has to look up "
        "(next() n - 1 times, rewards, one more stack), not its whole compute_nstep_return. "
        "save_hdf5, as its examples advise for large buffers."
    )

    def build(self) -> None:
        from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

        options: dict[str, Any] = {
            "ignore_obs_next": True,
            "save_only_last_obs": True,
            "stack_num": STACK,
        }
        if self.setup.prioritized:
            self._buffer = PrioritizedReplayBuffer(
                self.setup.frames, alpha=ALPHA, beta=BETA, weight_norm=True, **options
            )
        else:
            self._buffer = ReplayBuffer(self.setup.frames, **options)

    def prepare(self, piece: Piece) -> list[Any]:
        from tianshou.data import Batch

        stacks = stacks_first_axis(piece)
        return [
            Batch(
                obs=stacks[step],
                act=piece.action[step],
                rew=float(piece.reward[step]),
                terminated=piece.terminated[step],
                truncated=piece.truncated[step],
                obs_next=stacks[step + 1],
            )
            for step in range(len(piece))
        ]

    def add(self, prepared: list[Any]) -> None:
        add = self._buffer.add
        for batch in prepared:
            add(batch)

    def samplers(self) -> dict[str, Callable[[], Any]]:
        if self.setup.n_step == 1:
            return {"sample": lambda: self._buffer.sample(BATCH)}
        return {"sample": self._sample_steps}

    def _sample_steps(self) -> tuple:
        """A sample and, for the learner, its n-step rewards and the observation after them."""
        buffer = self._buffer
        batch, indices = buffer.sample(BATCH)
        steps = [indices]
        for _ in range(self.setup.n_step - 1):
            steps.append(buffer.next(steps[-1]))
        reward = np.zeros(BATCH)
        for rows in reversed(steps):
            reward = buffer.rew[rows] + GAMMA * np.where(buffer.done[rows], 0.0, reward)
        batch.returns = reward
        batch.obs_next = buffer.get(buffer.next(steps[-1]), "obs")
        return batch, indices

    def ids(self, batch: Any) -> Any:
        return batch[1]

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        self._buffer.update_weight(ids, priorities)

    def save(self, directory: Path, number: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._buffer.save_hdf5(str(directory / f"{number}.hdf5"))

    def load(self, directory: Path) -> None:
        from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

        newest = max(directory.glob("*.hdf5"), key=lambda path: int(path.stem))
        buffer = PrioritizedReplayBuffer if self.setup.prioritized else ReplayBuffer
        self._buffer = buffer.load_hdf5(str(newest))
