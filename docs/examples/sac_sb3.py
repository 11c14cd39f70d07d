"""SAC of Stable-Baselines3 with its replay on disk; the same command goes on where a kill left it.

    python docs/examples/sac_sb3.py runs/pendulum
    python docs/examples/sac_sb3.py runs/halfcheetah --env HalfCheetah-v5 --steps 1000000

3-step returns. All transitions are in the store by the time `add` returns, and the networks are
saved now and then: a run that was killed has every row again (but the newest one), and the networks
of the last save. Bit for bit is another matter: `dqn.py` shows that.
"""

import argparse
import os
from pathlib import Path

import gymnasium
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from diskreplay.integrations.sb3 import DiskNStepReplayBuffer


class Saves(BaseCallback):
    """Saves the model every so many steps, whole or not at all."""

    def __init__(self, path: Path, every: int) -> None:
        super().__init__()
        self.path, self.every = path, every

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self._on_training_end()
        return True

    def _on_training_end(self) -> None:
        beside = self.path.with_suffix(".new.zip")
        self.model.save(beside)
        os.replace(beside, self.path)


def train(
    run: Path, steps: int, *, env_name: str = "Pendulum-v1", save_every: int = 1_000,
    learning_starts: int = 1_000, width: int = 256,
) -> SAC:  # fmt: skip
    """The model after so many steps of the environment; goes on with the run if there is one."""
    env, saved = gymnasium.make(env_name), run / "model.zip"
    if saved.exists():
        model = SAC.load(saved, env=env)  # knows its buffer's class and path
        print(
            f"goes on at step {model.num_timesteps:,}, {model.replay_buffer.size():,} transitions"
        )
    else:
        model = SAC(
            "MlpPolicy", env, buffer_size=1_000_000, learning_starts=learning_starts, seed=0,
            policy_kwargs={"net_arch": [width, width]}, replay_buffer_class=DiskNStepReplayBuffer,
            replay_buffer_kwargs={"path": run / "replay", "n_steps": 3, "gamma": 0.99},
        )  # fmt: skip
    try:
        model.learn(
            steps - model.num_timesteps, callback=Saves(saved, save_every),
            reset_num_timesteps=False,
        )  # fmt: skip
    finally:
        model.replay_buffer.close()
        env.close()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    train(given.run, given.steps, env_name=given.env)
