"""diskreplay itself, with raw and with lz4 frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, BETA, GAMMA, Contender, Needs, Setup
from stream import FRAME_BYTES, FRAME_SHAPE, NUM_ACTIONS, STACK, Piece


class DiskreplayRaw(Contender):
    name = "diskreplay raw"
    distribution = "diskreplay"
    incremental_save = True
    note = (
        "compressor='raw'. Every add is given its next observation, kept where an episode "
        "ends. 'out=' rows reuse one batch, as the floors do. A save fsyncs; no peer's does."
    )
    compressor = "raw"

    @classmethod
    def needs(cls, setup: Setup) -> Needs:
        return Needs(disk=setup.frames * FRAME_BYTES)

    def _open(self, **options: Any) -> Any:
        from gymnasium.spaces import Box, Discrete

        import diskreplay

        common: dict[str, Any] = {
            "observation_space": Box(0, 255, FRAME_SHAPE, np.uint8),
            "action_space": Discrete(NUM_ACTIONS),
            "capacity": self.setup.frames,
            "stack_size": STACK,
            "update_horizon": self.setup.n_step,
            "gamma": GAMMA,
            "batch_size": BATCH,
            "compressor": self.compressor,
            "seed": self.setup.seed,
        } | options
        path = common.pop("path", self.setup.directory / "live")
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.setup.prioritized:
            return diskreplay.PrioritizedReplayBuffer(path, alpha=ALPHA, beta=BETA, **common)
        return diskreplay.ReplayBuffer(path, **common)

    def build(self) -> None:
        self._buffer = self._open()

    def prepare(self, piece: Piece) -> list[tuple]:
        frames = piece.frames[STACK - 1 :]
        return [
            (
                frames[step],
                int(piece.action[step]),
                float(piece.reward[step]),
                bool(piece.terminated[step]),
                bool(piece.truncated[step]),
                frames[step + 1],
            )
            for step in range(len(piece))
        ]

    def add(self, prepared: list[tuple]) -> None:
        add = self._buffer.add
        for step in prepared:
            add(*step)

    def settle(self) -> None:
        self._buffer.flush()

    def samplers(self) -> dict[str, Callable[[], Any]]:
        buffer = self._buffer
        kept = buffer.sample(BATCH)
        return {
            "sample": lambda: buffer.sample(BATCH),
            "sample out=": lambda: buffer.sample(BATCH, out=kept),
        }

    def ids(self, batch: Any) -> Any:
        return batch.id

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        self._buffer.update_priorities(ids, priorities)

    def save(self, directory: Path, number: int) -> None:
        self._buffer.save(directory, number)

    def load(self, directory: Path) -> None:
        self._buffer = self._open(path=self.setup.directory / "resumed")
        self._buffer.load(directory)

    def disk_bytes(self) -> int:
        self._buffer.flush()
        return super().disk_bytes()

    def extras(self) -> dict[str, Any]:
        from learner import time_prefetch

        figures: dict[str, Any] = {"statistics": self._statistics()}
        if self.setup.prioritized:
            figures["prefetch"] = time_prefetch(self._buffer)
        return figures

    def _statistics(self) -> dict[str, Any]:
        statistics = self._buffer.statistics()
        observation = statistics.fields["observation"]
        return {
            "rows": statistics.rows,
            "episodes": statistics.episodes,
            "segments": statistics.segments,
            "ratio": statistics.ratio,
            "observation_ratio": observation.ratio,
        }

    def close(self) -> None:
        self._buffer.close()


class DiskreplayLz4(DiskreplayRaw):
    name = "diskreplay lz4"
    compressor = "auto"
    note = "compressor='auto', the default: lz4 for the frames, raw for all else."
