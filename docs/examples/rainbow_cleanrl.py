"""Rainbow (Hessel et al., 2018) as a single file, with its prioritized 3-step replay on disk.

    python docs/examples/rainbow_cleanrl.py runs/pong
    python docs/examples/rainbow_cleanrl.py runs/breakout --env ALE/Breakout-v5 --device cuda

In the manner of CleanRL: one file, one loop. The sum trees, the n-step queue and the stacks of such
a file are `diskreplay.PrioritizedReplayBuffer` here, and `RunState` resumes it after a kill.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from torch import nn
from torch.nn import functional as F

import diskreplay
from diskreplay.integrations.torch import RunState


@dataclass(frozen=True)
class Settings:
    steps: int = 10_000_000
    capacity: int = 1_000_000
    batch_size: int = 32
    begin: int = 80_000  # learning
    every: int = 4  # so many steps it learns once
    target_every: int = 8_000
    save_every: int = 100_000
    learning_rate: float = 6.25e-5
    width: int = 512  # of the hidden layers
    atoms: int = 51
    low: float = -10.0
    high: float = 10.0


class Noisy(nn.Module):
    """A linear layer whose weights have learned noise (Fortunato et al., 2018)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.mean = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.mean_bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.spread, self.spread_bias = (
            nn.Parameter(torch.full(shape, 0.5 * bound))
            for shape in ((outputs, inputs), (outputs,))
        )
        self.register_buffer("into", torch.zeros(inputs))
        self.register_buffer("out", torch.zeros(outputs))

    def new_noise(self) -> None:
        for noise in (self.into, self.out):
            noise.normal_()
            noise.copy_(noise.sign() * noise.abs().sqrt())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.mean + self.spread * torch.outer(self.out, self.into)
        return F.linear(x, weight, self.mean_bias + self.spread_bias * self.out)


class Network(nn.Module):
    """A distribution of the return for each action: dueling, noisy, of `atoms` values."""

    def __init__(self, actions: int, settings: Settings) -> None:
        super().__init__()
        self.actions, self.atoms = actions, settings.atoms
        self.register_buffer("support", torch.linspace(settings.low, settings.high, self.atoms))
        self.frames = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.value, self.advantage = (
            nn.Sequential(
                Noisy(3136, settings.width), nn.ReLU(), Noisy(settings.width, outputs * self.atoms)
            )
            for outputs in (1, actions)
        )

    def new_noise(self) -> None:
        for part in self.modules():
            if isinstance(part, Noisy):
                part.new_noise()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Logarithms of probabilities, of shape ``(batch, actions, atoms)``."""
        seen = self.frames(observation / 255)
        value = self.value(seen).view(-1, 1, self.atoms)
        advantage = self.advantage(seen).view(-1, self.actions, self.atoms)
        return F.log_softmax(value + advantage - advantage.mean(1, keepdim=True), dim=-1)

    def best(self, observation: torch.Tensor) -> torch.Tensor:
        return (self(observation).exp() * self.support).sum(-1).argmax(1)


def losses(network: Network, target: Network, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of each transition: the cross entropy to the target's distribution, moved and discounted and
    brought back onto the support (Bellemare et al., 2017)."""
    support, each = network.support, torch.arange(len(batch["action"]))
    with torch.no_grad():
        following = batch["next_observation"]
        chances = target(following)[each, network.best(following)].exp()
        moved = batch["reward"][:, None] + batch["discount"][:, None] * support
        step = support[1] - support[0]
        place = (moved.clamp(support[0], support[-1]) - support[0]) / step
        near = 1 - (place[:, :, None] - torch.arange(network.atoms, device=place.device)).abs()
        wanted = (chances[:, :, None] * near.clamp(min=0)).sum(1)
    return -(wanted * network(batch["observation"])[each, batch["action"]]).sum(-1)


def train(run: Path, name: str, settings: Settings, *, device: str = "cpu", seed: int = 0) -> int:
    """Play and learn; returns the number of steps, those of the runs before included."""
    torch.manual_seed(seed)
    gymnasium.register_envs(ale_py)
    env = FrameStackObservation(AtariPreprocessing(gymnasium.make(name, frameskip=1)), 4)
    actions = int(env.action_space.n)
    network, target = (Network(actions, settings).to(device) for _ in range(2))
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, eps=1.5e-4)
    with diskreplay.PrioritizedReplayBuffer(
        run / "replay", capacity=settings.capacity, stack_size=4, stack_padding="reset",
        observation_space=gymnasium.spaces.Box(0, 255, (84, 84), np.uint8),
        action_space=env.action_space, update_horizon=3, batch_size=settings.batch_size,
        alpha=0.5, beta=lambda added: min(1.0, 0.4 + 0.6 * added / settings.steps), seed=seed,
    ) as buffer:  # fmt: skip
        state = RunState(
            buffer, run / "checkpoints", modules={"network": network, "target": target},
            optimizers={"adam": optimizer}, keep=2,
        )  # fmt: skip
        start, _ = state.load()
        if start is None:
            state.save(0)  # a kill before the next one leads back to a store without rows
        step = start or 0
        batches = buffer.prefetch(2, device=device)
        observation, _ = env.reset(seed=seed + step)
        while step < settings.steps:
            step += 1
            with torch.no_grad():
                network.new_noise()
                action = int(network.best(torch.as_tensor(observation, device=device)[None])[0])
            following, reward, terminated, truncated, _ = env.step(action)
            buffer.add(
                observation[-1], action, np.sign(reward), terminated, truncated, following[-1]
            )
            observation = following
            if terminated or truncated:
                observation, _ = env.reset()
            if step > settings.begin and step % settings.every == 0:
                batch = next(batches)
                network.new_noise(), target.new_noise()
                loss = losses(network, target, batch)
                optimizer.zero_grad()
                (batch["weight"] * loss).mean().backward()
                nn.utils.clip_grad_norm_(network.parameters(), 10)
                optimizer.step()
                buffer.update_priorities(batch["id"].cpu(), loss.detach().cpu() + 1e-6)
            if step % settings.target_every == 0:
                target.load_state_dict(network.state_dict())
            if step % settings.save_every == 0:
                state.save(step)
    env.close()
    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    train(given.run, given.env, Settings(steps=given.steps), device=given.device)
