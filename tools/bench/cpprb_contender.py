"""cpprb: `stack_compress` keeps each frame once; `Nstep` sums rewards while adding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, BETA, GAMMA, Contender, Needs, Setup, stacks_last_axis
from stream import FRAME_BYTES, FRAME_SHAPE, STACK, Piece

STACK_SHAPE = (*FRAME_SHAPE, STACK)


class Cpprb(Contender):
    name = "cpprb"
    distribution = "cpprb"
    note = (
        "stack_compress='obs' with next_of='obs'; with Nstep, which does not take next_of, "
        "stack_compress=['obs', 'next_obs'], so each frame is kept twice (and the next stacks of "
        "an episode's last rows come out wrong). on_episode_end() at every episode's end, as "
        "documented; it keeps copies of the last stacks in memory. "
        "save_transitions(safe=False), the compact way; priorities are not part of it."
    )
    mapped = False

    @classmethod
    def needs(cls, setup: Setup) -> Needs:
        frames = setup.frames * FRAME_BYTES * (1 if setup.n_step == 1 else 2)
        # save_transitions pickles every array whole: the stacks are expanded first.
        expanded = frames * STACK
        return Needs(
            memory=0 if cls.mapped else frames,
            disk=frames if cls.mapped else 0,
            saved=frames,
            saving_memory=expanded,
        )

    def build(self) -> None:
        import cpprb

        several = self.setup.n_step > 1
        fields: dict[str, Any] = {
            "obs": {"shape": STACK_SHAPE, "dtype": np.uint8},
            "act": {"dtype": np.int32},
            "rew": {"dtype": np.float32},
            "done": {"dtype": np.float32},
        }
        options: dict[str, Any] = {"next_of": "obs", "stack_compress": "obs"}
        if several:
            fields["next_obs"] = {"shape": STACK_SHAPE, "dtype": np.uint8}
            options = {
                "stack_compress": ["obs", "next_obs"],
                "Nstep": {
                    "size": self.setup.n_step,
                    "gamma": GAMMA,
                    "rew": "rew",
                    "next": "next_obs",
                },
            }
        if self.mapped:
            self.setup.directory.mkdir(parents=True, exist_ok=True)
            options["mmap_prefix"] = str(self.setup.directory / "cpprb")
        if self.setup.prioritized:
            self._buffer = cpprb.PrioritizedReplayBuffer(
                self.setup.frames, fields, alpha=ALPHA, **options
            )
        else:
            self._buffer = cpprb.ReplayBuffer(self.setup.frames, fields, **options)

    def prepare(self, piece: Piece) -> list[tuple]:
        stacks = stacks_last_axis(piece)
        ended = piece.terminated | piece.truncated
        return [
            (
                {
                    "obs": stacks[step],
                    "next_obs": stacks[step + 1],
                    "act": int(piece.action[step]),
                    "rew": float(piece.reward[step]),
                    "done": float(piece.terminated[step]),
                },
                bool(ended[step]),
            )
            for step in range(len(piece))
        ]

    def add(self, prepared: list[tuple]) -> None:
        buffer = self._buffer
        for transition, ended in prepared:
            buffer.add(**transition)
            if ended:
                buffer.on_episode_end()

    def samplers(self) -> dict[str, Callable[[], Any]]:
        buffer = self._buffer
        if self.setup.prioritized:
            return {"sample": lambda: buffer.sample(BATCH, BETA)}
        return {"sample": lambda: buffer.sample(BATCH)}

    def ids(self, batch: Any) -> Any:
        return batch["indexes"]

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        self._buffer.update_priorities(ids, priorities)

    def save(self, directory: Path, number: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._buffer.save_transitions(directory / f"{number}.npz", safe=False)

    def load(self, directory: Path) -> None:
        self.build()
        newest = max(directory.glob("*.npz"), key=lambda path: int(path.stem))
        self._buffer.load_transitions(newest)


class CpprbMapped(Cpprb):
    name = "cpprb (mapped)"
    mapped = True
    note = "as cpprb, with mmap_prefix: the arrays lie in files, which cannot be reopened."


class CpprbUncut(Cpprb):
    name = "cpprb (mapped, episodes mixed)"
    mapped = True
    note = (
        "as cpprb (mapped), but on_episode_end() is never called: stacks reach into the episode "
        "before. Wrong for training; it is cpprb's fastest way to sample."
    )

    def add(self, prepared: list[tuple]) -> None:
        buffer = self._buffer
        for transition, _ in prepared:
            buffer.add(**transition)
