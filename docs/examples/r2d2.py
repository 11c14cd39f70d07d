"""R2D2 in small: a recurrent Q-network balances a pole whose velocities it does not see.

    python docs/examples/r2d2.py [RUN] [--steps 15000]

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", 2019:
stored recurrent states, burn-in, prioritized sequences. Kill it and start it again with the same
directory RUN: it goes on where it last saved, and ends with the weights of a run in one piece.
"""

import argparse
import pickle
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

import diskreplay

HIDDEN, BURN_IN, LENGTH, EVERY = 64, 10, 20, 4


class Network(nn.Module):
    """Values of the two actions, from the cart's place, the pole's angle and what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, HIDDEN)
        self.value = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))

    def forward(self, seen: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.cell(seen, h)
        return self.value(h), h

    def unroll(self, batch: diskreplay.SequenceBatch) -> torch.Tensor:
        """Values at all positions, (N, T, 2); those of the burn-in have no gradient."""
        seen, begin = torch.from_numpy(batch.observation), torch.from_numpy(batch.begin)
        h = stored = torch.from_numpy(batch.h)
        values = []
        for t in range(seen.shape[1]):
            h = torch.where(begin[:, t, None], stored, h)
            with torch.set_grad_enabled(t >= BURN_IN and torch.is_grad_enabled()):
                value, h = self(seen[:, t], h)
            values.append(value)
        return torch.stack(values, 1)


class Run:
    """Everything that goes on from step to step; the buffer is saved with the rest of it."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.network, self.target = Network(), Network()
        self.target.load_state_dict(self.network.state_dict())
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.rng = np.random.default_rng(seed)
        self.env = gymnasium.make("CartPole-v1")
        self.seen, self.h = self.env.reset(seed=seed)[0], torch.zeros(1, HIDDEN)
        self.steps, self.score, self.scores = 0, 0, []
        self.checkpoints = directory / "checkpoints"
        self.buffer = diskreplay.ReplayBuffer(
            directory / "replay", observation_space=Box(-10, 10, (2,), "float32"),
            action_space=self.env.action_space, capacity=50_000, update_horizon=3, gamma=0.98,
            extras={"h": ((HIDDEN,), "float32")}, seed=seed,
        )  # fmt: skip
        try:
            saved = self.buffer.load(self.checkpoints, resume_episodes=True).attachments
        except diskreplay.CheckpointNotFoundError:
            pass  # a new run
        else:
            agent = torch.load(saved["agent.pt"])
            for name in ("network", "target", "optimizer"):
                getattr(self, name).load_state_dict(agent[name])
            vars(self).update(pickle.loads(saved["rest.pickle"].read_bytes()))
        self.view = self.buffer.sequences(
            LENGTH, burn_in=BURN_IN, stride=LENGTH // 2, ends="shift", batch_size=32,
            prioritized=True, eta=0.9, state="h",
        )  # fmt: skip

    def save(self) -> None:
        """Rows, priorities, weights, the episode under way: all of it or nothing."""
        agent = {n: getattr(self, n).state_dict() for n in ("network", "target", "optimizer")}
        names = "env", "rng", "seen", "h", "steps", "score", "scores"
        rest = {n: getattr(self, n) for n in names}
        self.buffer.save(
            self.checkpoints, self.steps,
            attachments={
                "agent.pt": lambda path: torch.save(agent, path),
                "rest.pickle": pickle.dumps(rest),
            },
        )  # fmt: skip

    def step(self) -> None:
        """One step of the environment, recorded; now and then one of the optimizer."""
        seen = self.seen[[0, 2]]
        with torch.no_grad():
            values, h = self.network(torch.from_numpy(seen)[None], self.h)
        explore = self.rng.random() < max(0.05, 1 - self.steps / 3000)
        action = int(self.rng.integers(2)) if explore else int(values.argmax())
        self.seen, reward, terminated, truncated, _ = self.env.step(action)
        self.buffer.add(
            seen, action, reward, terminated, truncated, self.seen[[0, 2]], h=self.h[0].numpy()
        )
        self.steps, self.score, self.h = self.steps + 1, self.score + 1, h
        if terminated or truncated:
            self.scores.append((self.steps, self.score))
            self.seen, self.h, self.score = self.env.reset()[0], torch.zeros(1, HIDDEN), 0
        if self.steps >= 500 and self.steps % EVERY == 0:
            self.learn(self.view.sample())

    def learn(self, batch: diskreplay.SequenceBatch) -> None:
        """One step of the optimizer, with double Q-learning, and new priorities."""
        part = slice(BURN_IN, BURN_IN + LENGTH)
        values = self.network.unroll(batch)
        with torch.no_grad():
            ahead = self.target.unroll(batch).gather(2, values.argmax(2, keepdim=True))[..., 0]
            ahead = ahead.gather(1, torch.from_numpy(batch.target).long().clamp(min=0))
            wanted = torch.from_numpy(batch.returns) + torch.from_numpy(batch.discount) * ahead
        action, learn = torch.from_numpy(batch.action[:, part, None]), batch.learn[:, part]
        td = (wanted - values[:, part].gather(2, action)[..., 0]) * torch.from_numpy(learn)
        loss = (torch.from_numpy(batch.weight)[:, None] * td**2).sum() / learn.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 10)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        self.view.update_priorities(
            batch.anchor, self.view.priority(td.detach().numpy(), learn) + 1e-3
        )


def train(directory: Path, steps: int, *, save_every: int = 1000, seed: int = 0) -> Run:
    """Go on with the run in that directory, or begin one, until it has so many steps."""
    run = Run(directory, seed)
    while run.steps < steps:
        run.step()
        if run.steps % save_every == 0:
            run.save()
            last = [score for _, score in run.scores[-20:]]
            print(f"{run.steps:6} steps, mean of the last 20 episodes: {np.mean(last):5.1f}")
    run.buffer.close()
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="its directory; a temporary one without")
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        train(asked.run or Path(directory), asked.steps, seed=asked.seed)
