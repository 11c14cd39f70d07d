"""One machine: a learner, and actors in processes of their own that add to its buffer.

    python docs/examples/actors.py runs/actors --actors 16 --steps 60000

Each actor plays an environment with the newest network it finds, and adds its steps through a
writer, with a first priority, as Ape-X does (Horgan et al. 2018). The learner draws from the one
buffer. Kill an actor, and another one takes its place. Kill the learner, and start it again with
the same command: the actors of the first one end, no step that was added is lost, and learning goes
on from the last checkpoint's network.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path

import gymnasium
import numpy as np

import diskreplay

ENV = "CartPole-v1"
GAMMA = 0.99


class Network:
    """Action values, linear in products of pairs of inputs: small enough for any actor."""

    def __init__(self, inputs: int, actions: int) -> None:
        self.weights = np.zeros((actions, (inputs + 1) * (inputs + 2) // 2))
        self.pairs = np.triu_indices(inputs + 1)

    def features(self, observation: np.ndarray) -> np.ndarray:
        scaled = np.tanh(np.atleast_2d(observation))
        known = np.concatenate([scaled, np.ones((len(scaled), 1))], 1)
        return known[:, self.pairs[0]] * known[:, self.pairs[1]]

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return self.features(observation) @ self.weights.T

    def save(self, path: Path) -> None:
        with open(path, "wb") as file:  # a file object: np.save adds no suffix to its name
            np.save(file, self.weights)

    def publish(self, path: Path) -> None:
        """Put it where actors look, whole or not at all."""
        beside = path.with_suffix(".new")
        self.save(beside)
        os.replace(beside, path)


def act(writer: diskreplay.EnvWriter, network_at: Path, epsilon: float, learner: int) -> None:
    """Play until the buffer is closed, or the learner is gone."""
    env = gymnasium.make(ENV)
    network = Network(env.observation_space.shape[0], int(env.action_space.n))
    rng = np.random.default_rng(writer.env)
    observation, _ = env.reset(seed=writer.env)
    for step in range(10**12):
        if step % 100 == 0:
            if network_at.exists():
                network.weights = np.load(network_at)
            if os.getppid() != learner:
                return
        values = network(observation)[0]
        action = int(rng.integers(len(values)) if rng.random() < epsilon else values.argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        target = reward + GAMMA * (not terminated) * network(following).max()
        try:
            writer.add(
                observation, action, float(reward), terminated, truncated, following,
                priority=abs(target - values[action]) + 1e-3,
            )  # fmt: skip
        except diskreplay.ClosedError:
            return
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()


def learn(network: Network, batch: diskreplay.Batch, rate: float) -> np.ndarray:
    """One step of Q-learning; returns the errors."""
    following = network(batch.next_observation).max(1)
    target = batch.reward + batch.discount * following
    features = network.features(batch.observation)
    error = target - (features * network.weights[batch.action]).sum(1)
    change = np.clip(error, -1, 1) * batch.weight * rate
    np.add.at(network.weights, batch.action, change[:, None] * features / len(error))
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--actors", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60_000, help="of all actors together")
    parser.add_argument("--start-method", default="spawn", choices=["spawn", "fork"])
    options = parser.parse_args()
    env = gymnasium.make(ENV)
    saves, network_at = options.directory / "checkpoints", options.directory / "network.npy"
    buffer = diskreplay.PrioritizedReplayBuffer(
        options.directory / "replay", observation_space=env.observation_space,
        action_space=env.action_space, capacity=100_000, num_envs=options.actors,
        update_horizon=3, gamma=GAMMA, seed=0,
    )  # fmt: skip
    network = Network(env.observation_space.shape[0], int(env.action_space.n))
    if diskreplay.checkpoints(saves):
        at = diskreplay.attachment(saves, name="network.npy")
        network.weights = np.load(at)
        print(f"goes on with {buffer.add_count} steps", flush=True)
    network.publish(network_at)

    context = multiprocessing.get_context(options.start_method)
    writers = buffer.env_writers(rows=256)

    def start(env: int) -> multiprocessing.process.BaseProcess:
        epsilon = 0.4 ** (1 + 7 * env / max(options.actors - 1, 1))
        actor = context.Process(target=act, args=(writers[env], network_at, epsilon, os.getpid()))
        actor.start()
        return actor

    actors = [start(number) for number in range(options.actors)]
    updates, saved_at = 0, time.monotonic()
    try:
        while buffer.add_count < options.steps:
            for number, actor in enumerate(actors):
                if not actor.is_alive():  # its env's episode is over; another one takes the ring
                    actors[number] = start(number)
            if len(buffer) < 1000:
                time.sleep(0.01)
                continue
            batch = buffer.sample(64)
            error = learn(network, batch, rate=0.5)
            buffer.update_priorities(batch.id, np.abs(error) + 1e-3)
            updates += 1
            if updates % 50 == 0:
                network.publish(network_at)
            if time.monotonic() > saved_at + 5:
                buffer.save(saves, buffer.add_count, attachments={"network.npy": network.save})
                saved_at = time.monotonic()
        buffer.save(saves, buffer.add_count, attachments={"network.npy": network.save})
        print(f"{buffer.add_count} steps of {options.actors} actors, {updates} updates", flush=True)
    finally:
        buffer.close()  # each actor's next `add` is refused, and it ends
        for actor in actors:
            actor.join()


if __name__ == "__main__":
    main()
