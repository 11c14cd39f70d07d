"""A DQN of torchrl with its replay on disk, which goes on bit for bit where a kill left it.

    python docs/examples/torchrl_dqn.py CartPole-v1 runs/cartpole
    python docs/examples/torchrl_dqn.py ALE/Pong-v5 runs/pong --steps 2000000 --capacity 1000000

Double Q-learning from prioritized transitions: environment, policy, loss and replay buffer are
torchrl's, the storage is `DiskStorage`. `RunState` saves rows, priorities, networks, generators and
the environment in one checkpoint, and the same command goes on from the newest. torchrl's compiled
library has to fit the build of torch: docs/torchrl.md, "Versions", says how to see it.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.data import PrioritizedSampler, TensorDictReplayBuffer
from torchrl.envs import GymWrapper
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from diskreplay.integrations.torch import RunState
from diskreplay.integrations.torchrl import DiskStorage, SavedReplayBuffer


@dataclass(frozen=True)
class Settings:
    """What differs from game to game."""

    steps: int = 50_000
    capacity: int = 50_000
    batch_size: int = 64
    begin: int = 1_000  # learning
    every: int = 1  # so many steps it learns once
    explore: int = 10_000  # steps until 0.02 of the actions are chosen at random
    save_every: int = 1_000
    stack: int = 1


ATARI = Settings(batch_size=32, begin=20_000, every=4, explore=250_000, save_every=20_000, stack=4)


def make_game(name: str, stack: int) -> gymnasium.Env:
    if not name.startswith("ALE/"):
        return gymnasium.make(name)
    import ale_py

    gymnasium.register_envs(ale_py)
    game = AtariPreprocessing(gymnasium.make(name, frameskip=1))
    return FrameStackObservation(game, stack, padding_type="zero")


class Network(nn.Module):
    """Values of all actions: of a vector, or of a stack of frames (Mnih et al., 2015)."""

    def __init__(self, space: gymnasium.spaces.Box, actions: int) -> None:
        super().__init__()
        self.axes = len(space.shape)
        first: list[nn.Module] = [nn.Linear(*space.shape[:1], 128), nn.ReLU()]
        if self.axes == 3:
            first = [
                nn.Conv2d(space.shape[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(),
            ]  # fmt: skip
        self.layers = nn.Sequential(*first, nn.Linear(128, actions))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        one = observation.ndim == self.axes
        values = observation[None] if one else observation
        values = self.layers(values / 255 if self.axes == 3 else values)
        return values[0] if one else values


def train(
    name: str, run: Path, settings: Settings, *, seed: int = 0, log: Callable[[str], None] = print
) -> list[float]:
    """The returns of all episodes, in order; goes on with the run if there is one."""
    torch.manual_seed(seed)
    game = make_game(name, settings.stack)
    env = GymWrapper(game, categorical_action_encoding=True)
    env.set_seed(seed)
    network = Network(game.observation_space, int(game.action_space.n))
    actor = QValueActor(network, spec=env.action_spec, action_space="categorical")
    explore = EGreedyModule(env.action_spec, 1.0, 0.02, annealing_num_steps=settings.explore)
    policy = TensorDictSequential(actor, explore)
    loss = DQNLoss(actor, action_space="categorical", delay_value=True, double_dqn=True)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, eps=0.995)
    optimizer = torch.optim.Adam(loss.parameters(), 5e-4 if settings.stack == 1 else 1e-4)

    storage = DiskStorage(
        settings.capacity, path=run / "replay", next_of=True, stack={"observation": settings.stack}
    )
    buffer = TensorDictReplayBuffer(
        storage=storage, sampler=PrioritizedSampler(settings.capacity, alpha=0.6, beta=0.4),
        batch_size=settings.batch_size, priority_key="td_error",
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    state = RunState(
        SavedReplayBuffer(buffer), run / "checkpoints", modules={"loss": loss, "explore": explore},
        optimizers={"adam": optimizer}, env=game,
    )  # fmt: skip
    step, extras = state.load()
    if step is None:
        buffer.empty()  # the rows of a run that was killed before its first save
        step, returns, score, now = 0, [], 0.0, env.reset()
    else:
        returns, score, now = extras["returns"], extras["score"], TensorDict(extras["now"])
        log(f"goes on at step {step:,}")
    while step < settings.steps:
        step += 1
        with torch.no_grad():
            now = policy(now)
        explore.step()
        now, following = env.step_and_maybe_reset(now)
        buffer.add(now.exclude("action_value", "chosen_action_value"))
        score += now["next", "reward"].item()
        if now["next", "done"]:
            returns.append(score)
            score = 0.0
        now = following
        if step > settings.begin and step % settings.every == 0:
            batch = buffer.sample()
            optimizer.zero_grad()
            loss(batch)["loss"].backward()
            optimizer.step()
            updater.step()
            buffer.update_tensordict_priority(batch)
        if step % settings.save_every == 0 or step == settings.steps:
            state.save(step, returns=returns, score=score, now=now.to_dict())
            log(f"step {step:,}: mean return {sum(returns[-20:]) / max(len(returns[-20:]), 1):.1f}")
    storage.close()
    env.close()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", help="CartPole-v1, ALE/Pong-v5, ...")
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--capacity", type=int)
    given = parser.parse_args()
    chosen = ATARI if given.env.startswith("ALE/") else Settings()
    asked = {"steps": given.steps, "capacity": given.capacity}
    chosen = replace(chosen, **{key: value for key, value in asked.items() if value is not None})
    torch.set_num_threads(1)  # sums then come in one order
    train(given.env, given.run, chosen)
