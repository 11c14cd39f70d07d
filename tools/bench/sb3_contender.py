"""Stable-Baselines3: whole stacks in memory, uniform sampling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contender import BATCH, GAMMA, UNIFORM, Contender, Needs, Setup, stacks_first_axis
from stream import FRAME_BYTES, FRAME_SHAPE, NUM_ACTIONS, STACK, Piece


class StableBaselines3(Contender):
    name = "Stable-Baselines3"
    distribution = "stable_baselines3"
    kinds = (UNIFORM,)
    note = (
        "stores the stacks that VecFrameStack makes, four frames a row, as DQN does with it; "
        "has no prioritized buffer. n-step 1: ReplayBuffer with optimize_memory_usage, which "
        "gives up the final observation of an episode; n-step 3: NStepReplayBuffer, which "
        "keeps next stacks too. Returns torch tensors. save_to_pkl, as save_replay_buffer does."
    )

    @classmethod
    def needs(cls, setup: Setup) -> Needs:
        stacks = setup.frames * FRAME_BYTES * STACK * (1 if setup.n_step == 1 else 2)
        return Needs(memory=stacks, saved=stacks)

    def build(self) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

        spaces = (Box(0, 255, (STACK, *FRAME_SHAPE), np.uint8), Discrete(NUM_ACTIONS))
        if self.setup.n_step == 1:
            self._buffer = ReplayBuffer(
                self.setup.frames,
                *spaces,
                device="cpu",
                optimize_memory_usage=True,
                handle_timeout_termination=False,
            )
        else:
            self._buffer = NStepReplayBuffer(
                self.setup.frames, *spaces, device="cpu", n_steps=self.setup.n_step, gamma=GAMMA
            )

    def prepare(self, piece: Piece) -> list[tuple]:
        stacks = stacks_first_axis(piece)
        done = piece.terminated | piece.truncated
        return [
            (
                stacks[step : step + 1],
                stacks[step + 1 : step + 2],
                piece.action[step : step + 1],
                piece.reward[step : step + 1],
                done[step : step + 1],
                [{"TimeLimit.truncated": bool(piece.truncated[step])}],
            )
            for step in range(len(piece))
        ]

    def add(self, prepared: list[tuple]) -> None:
        add = self._buffer.add
        for transition in prepared:
            add(*transition)

    def samplers(self) -> dict[str, Callable[[], Any]]:
        return {"sample": lambda: self._buffer.sample(BATCH)}

    def save(self, directory: Path, number: int) -> None:
        from stable_baselines3.common.save_util import save_to_pkl

        directory.mkdir(parents=True, exist_ok=True)
        save_to_pkl(directory / f"{number}.pkl", self._buffer)

    def load(self, directory: Path) -> None:
        from stable_baselines3.common.save_util import load_from_pkl

        newest = max(directory.glob("*.pkl"), key=lambda path: int(path.stem))
        self._buffer = load_from_pkl(newest)
