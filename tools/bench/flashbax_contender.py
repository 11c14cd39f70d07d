"""flashbax: trajectory buffers in JAX, on the CPU."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, Contender
from stream import FRAME_SHAPE, STACK, Piece


class Flashbax(Contender):
    name = "flashbax"
    distribution = "flashbax"
    note = (
        "make_(prioritised_)trajectory_buffer, one frame a time step, sequences of stack + "
        "n-step frames, add, sample and set_priorities jitted with the state donated, JAX on "
        "the CPU. Cutting stacks at episodes' starts, n-step rewards and importance weights "
        "are left to the learner and not in its times; final observations are not kept. Its "
        "Vault stores no priorities, so the state is pickled as NumPy arrays."
    )

    def _functions(self) -> None:
        import flashbax
        import jax

        jax.config.update("jax_platforms", "cpu")
        options = {
            "add_batch_size": 1,
            "sample_batch_size": BATCH,
            "sample_sequence_length": STACK + self.setup.n_step,
            "period": 1,
            "min_length_time_axis": STACK + self.setup.n_step,
            "max_length_time_axis": self.setup.frames,
        }
        if self.setup.prioritized:
            buffer = flashbax.make_prioritised_trajectory_buffer(
                priority_exponent=ALPHA, device="cpu", **options
            )
            self._set_priorities = jax.jit(buffer.set_priorities, donate_argnums=0)
        else:
            buffer = flashbax.make_trajectory_buffer(**options)
        self._jax = jax
        self._init = jax.jit(buffer.init)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._sample = jax.jit(buffer.sample)
        self._next_key = jax.jit(jax.random.split)
        self._key = jax.random.PRNGKey(self.setup.seed)

    def build(self) -> None:
        self._functions()
        numpy = self._jax.numpy
        self._state = self._init(
            {
                "observation": numpy.zeros(FRAME_SHAPE, numpy.uint8),
                "action": numpy.zeros((), numpy.int32),
                "reward": numpy.zeros((), numpy.float32),
                "terminated": numpy.zeros((), bool),
                "truncated": numpy.zeros((), bool),
            }
        )
        self._jax.block_until_ready(self._state)

    def prepare(self, piece: Piece) -> list[dict[str, np.ndarray]]:
        observation = piece.observation.copy()
        return [
            {
                "observation": observation[None, step : step + 1],
                "action": piece.action[None, step : step + 1].astype(np.int32),
                "reward": piece.reward[None, step : step + 1],
                "terminated": piece.terminated[None, step : step + 1],
                "truncated": piece.truncated[None, step : step + 1],
            }
            for step in range(len(piece))
        ]

    def add(self, prepared: list[dict[str, np.ndarray]]) -> None:
        for step in prepared:
            self._state = self._add(self._state, step)
        self._jax.block_until_ready(self._state)

    def samplers(self) -> dict[str, Callable[[], Any]]:
        return {"sample": self._sample_ready}

    def _sample_ready(self) -> Any:
        self._key, key = self._next_key(self._key)
        return self._jax.block_until_ready(self._sample(self._state, key))

    def ids(self, batch: Any) -> Any:
        return batch.indices

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        self._state = self._set_priorities(self._state, ids, priorities.astype(np.float32))
        self._jax.block_until_ready(self._state)

    def save(self, directory: Path, number: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        state = self._jax.tree.map(np.asarray, self._state)
        with (directory / f"{number}.pickle").open("wb") as file:
            pickle.dump(state, file, protocol=5)

    def load(self, directory: Path) -> None:
        self._functions()
        newest = max(directory.glob("*.pickle"), key=lambda path: int(path.stem))
        with newest.open("rb") as file:
            self._state = self._jax.tree.map(self._jax.numpy.asarray, pickle.load(file))
