"""The run that the pictures show: a drawn arm, which gets better at what it does."""

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay

JOINTS = ["base", "shoulder", "elbow", "wrist", "grip"]


class Arm:
    """An arm that is drawn: two cameras and five joints. It gets better at what it does."""

    def __init__(self, path: Path) -> None:
        self.rng = np.random.default_rng(0)
        self.episode, self.directory = 0, path.parent
        self.buffer = diskreplay.PrioritizedReplayBuffer(
            path,
            observation_space=Dict(
                front=Box(0, 255, (64, 64), "uint8"), wrist=Box(0, 255, (64, 64, 3), "uint8"),
                joints=Box(-1, 1, (5,)),
            ),
            action_space=Discrete(4), capacity=200_000, stack_size=3, update_horizon=3, seed=0,
            extras={"log_prob": ((), "float32"), "value": ((), "float32")},
            metadata={
                "env_id": "Reach-v0", "seed": 0,
                "action_meanings": ["STAY", "LEFT", "RIGHT", "GRIP"],
                "names": {"observation/joints": JOINTS},
            },
        )  # fmt: skip

    def seen(self, step: int, length: int, place: np.ndarray, joints: np.ndarray) -> dict:
        """The observation of a step."""
        across, down = np.meshgrid(np.arange(64), np.arange(64))
        far = np.hypot(across - place[0], down - place[1])
        front = np.where(far < 5, 235, 26 + down // 3).astype(np.uint8)
        front[60:, : int(64 * step / length)] = 150
        wrist = np.stack([40 + across, 60 + down, np.full((64, 64), 110)], -1).astype(np.uint8)
        turned = np.hypot(across - 32 - 22 * joints[0], down - 32 - 22 * joints[1])
        wrist[turned < 8] = 240, 200, 90
        return {"front": front, "wrist": wrist, "joints": joints.astype(np.float32)}

    def play(self) -> None:
        """One episode, with what a learner does beside it."""
        rng, skill = self.rng, min(1.0, self.episode / 80)
        length, place, phase = int(rng.integers(40, 130)), rng.uniform(12, 52, 2), rng.random(5) * 6
        for step in range(length):
            place = np.clip(place + rng.normal(0, 1.5, 2), 6, 56)
            seen = self.seen(step, length, place, 0.9 * np.sin(step / 14 + phase))
            reward = float(rng.random() < 0.04 + 0.12 * skill) - float(rng.random() < 0.03)
            end = step + 1 == length
            self.buffer.add(
                seen, int(rng.choice(4, p=[0.1, 0.3, 0.4, 0.2])), reward,
                end and self.episode % 6 > 0, end and self.episode % 6 == 0, seen if end else None,
                log_prob=rng.normal(-1.3, 0.2), value=3 * skill + np.sin(step / 12),
            )  # fmt: skip
            if self.episode > 2 and step % 4 == 0:
                batch = self.buffer.sample(32)
                self.buffer.update_priorities(batch.id, rng.gamma(1.0, 0.5, 32) + 0.01)
        self.episode += 1
        if self.episode % 40 == 0:
            self.buffer.save(self.directory / "checkpoints", self.episode)
