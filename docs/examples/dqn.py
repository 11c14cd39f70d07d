"""A DQN that can be killed at any moment, and goes on bit for bit when the same command runs again.

    python docs/examples/dqn.py CartPole-v1 runs/cartpole
    python docs/examples/dqn.py ALE/Pong-v5 runs/pong --steps 2000000 --device cuda

Double Q-learning from prioritized 3-step transitions. It ends when the mean return of 20 episodes
counts as solved. What a run needs to be resumed is in `train`: `RunState` is told what it consists
of, `load` says where it was, and `save` is called now and then.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from torch import nn

import diskreplay
from diskreplay.integrations.gymnasium import Recorder
from diskreplay.integrations.torch import RunState


@dataclass(frozen=True)
class Settings:
    """What differs from game to game."""

    solved: float
    steps: int
    capacity: int = 100_000
    batch_size: int = 64
    begin: int = 1_000  # learning
    every: int = 1  # so many steps it learns once
    target_every: int = 500
    learning_rate: float = 5e-4
    explore: int = 10_000  # steps until only `least` of the actions are chosen at random
    least: float = 0.02
    save_every: int = 1_000
    stack: int = 1


CART_POLE = Settings(solved=475, steps=150_000)
PONG = Settings(
    solved=18, steps=2_000_000, capacity=1_000_000, batch_size=32, begin=20_000, every=4,
    target_every=8_000, learning_rate=1e-4, explore=250_000, least=0.01, save_every=50_000, stack=4,
)  # fmt: skip


def make_env(name: str, stack: int) -> tuple[gymnasium.Env, gymnasium.Space]:
    """The environment, and the space of one frame of it."""
    if not name.startswith("ALE/"):
        env = gymnasium.make(name)
        return env, env.observation_space
    import ale_py

    gymnasium.register_envs(ale_py)
    env = AtariPreprocessing(gymnasium.make(name, frameskip=1))
    return FrameStackObservation(env, stack, padding_type="zero"), env.observation_space


class Network(nn.Module):
    """Values of all actions: of a vector, or of a stack of frames (Mnih et al., 2015)."""

    def __init__(self, space: gymnasium.spaces.Box, actions: int) -> None:
        super().__init__()
        self.frames = len(space.shape) == 3
        if self.frames:
            self.layers = nn.Sequential(
                nn.Conv2d(space.shape[0], 32, 8, 4), nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(),
                nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
            )  # fmt: skip
        else:
            self.layers = nn.Sequential(
                nn.Linear(*space.shape, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                nn.Linear(128, actions),
            )  # fmt: skip

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layers(observation / 255 if self.frames else observation)


def learn(
    network: Network, target: Network, optimizer: torch.optim.Optimizer, batch: dict[str, Any]
) -> torch.Tensor:
    """One step of gradient descent; the errors, for priorities."""
    with torch.no_grad():
        best = network(batch["next_observation"]).argmax(1, keepdim=True)
        following = target(batch["next_observation"]).gather(1, best)[:, 0]
        wanted = batch["reward"] + batch["discount"] * following
    chosen = network(batch["observation"]).gather(1, batch["action"][:, None])[:, 0]
    losses = nn.functional.smooth_l1_loss(chosen, wanted, reduction="none")
    optimizer.zero_grad()
    (batch["weight"] * losses).mean().backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10)
    optimizer.step()
    return (chosen - wanted).detach().abs()


def train(
    name: str, run: Path, settings: Settings, *, device: str = "cpu", seed: int = 0,
    log: Callable[[str], None] = print,
) -> list[float]:  # fmt: skip
    """The returns of all episodes, in order; goes on with the run if there is one."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env, frame_space = make_env(name, settings.stack)
    actions = int(env.action_space.n)
    network, target = (Network(env.observation_space, actions).to(device) for _ in range(2))
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    with diskreplay.PrioritizedReplayBuffer(
        run / "replay", observation_space=frame_space, action_space=env.action_space,
        capacity=settings.capacity, stack_size=settings.stack, update_horizon=3,
        batch_size=settings.batch_size, seed=seed,
    ) as buffer:  # fmt: skip
        env = Recorder(env, buffer)
        batches = buffer.prefetch(2, device=device)
        state = RunState(
            buffer, run / "checkpoints", modules={"network": network, "target": target},
            optimizers={"adam": optimizer}, generators={"explore": rng}, env=env,
        )  # fmt: skip

        def save() -> None:
            seen = torch.tensor(observation)
            state.save(step, observation=seen, returns=returns, score=score)

        step, extras = state.load()
        if step is None:
            step, returns, score, (observation, _) = 0, [], 0.0, env.reset(seed=seed)
            save()  # a kill before the next one leads back to here, and to a store without rows
        else:
            returns, score = extras["returns"], extras["score"]
            observation = extras["observation"].numpy()
            log(f"goes on at step {step:,}")
        while step < settings.steps and np.mean(returns[-20:] or [0]) < settings.solved:
            step += 1
            if rng.random() < max(settings.least, 1 - step / settings.explore):
                action = int(rng.integers(actions))
            else:
                with torch.no_grad():
                    seen = torch.as_tensor(observation, device=device)
                    action = int(network(seen[None]).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            score += float(reward)
            if terminated or truncated:
                returns.append(score)
                score, (observation, _) = 0.0, env.reset()
            if step > settings.begin and step % settings.every == 0:
                batch = next(batches)
                error = learn(network, target, optimizer, batch)
                buffer.update_priorities(batch["id"].cpu(), error.cpu() + 1e-3)
            if step % settings.target_every == 0:
                target.load_state_dict(network.state_dict())
            if step % settings.save_every == 0:
                save()
                log(f"step {step:,}: mean return {np.mean(returns[-20:] or [0]):.1f}")
        save()
        env.close()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", help="CartPole-v1, ALE/Pong-v5, ...")
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--steps", type=int, help="the most steps that it makes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=NUMBER", help="others of the settings"
    )
    given = parser.parse_args()
    chosen = PONG if given.env.startswith("ALE/") else CART_POLE
    others = {name: json.loads(number) for name, number in (of.split("=") for of in given.set)}
    if given.steps is not None:
        others["steps"] = given.steps
    chosen = replace(chosen, **others)
    torch.set_num_threads(1)  # sums then come in one order; a network this small is faster so
    returns = train(given.env, given.run, chosen, device=given.device)
    print(f"{len(returns)} episodes; mean return of the last 20: {np.mean(returns[-20:]):.1f}")
