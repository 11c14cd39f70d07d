"""Many machines: a learner, actors and shards of one buffer in a Ray cluster.

    python docs/examples/cluster.py /local/ssd/cartpole s3://bucket/cartpole --shards 2

Each machine with a disk for rows has a resource of its own, ``replay0`` and so on. Kill the learner
and start it again with the same command: it connects to the shards, which have kept everything.
Lose all machines, and start it on new ones with ``--takeover``, and with any number of shards: it
goes on from the last checkpoint, rows and network.
"""

from __future__ import annotations

import argparse
import io
import time
from typing import Any

import gymnasium
import numpy as np
import ray

from diskreplay import CheckpointNotFoundError, InvalidInputError
from diskreplay.ray import SampleToInsertRatio, ShardedReplayBuffer, ShardWriter
from diskreplay.remote import RemoteCheckpoints

ENV, ENVS_OF_AN_ACTOR, GAMMA = "CartPole-v1", 4, 0.99


def features(observation: np.ndarray) -> np.ndarray:
    """Products of pairs of inputs: action values are linear in them."""
    known = np.pad(np.tanh(observation), ((0, 0), (0, 1)), constant_values=1.0)
    first, second = np.triu_indices(known.shape[1])
    return known[:, first] * known[:, second]


@ray.remote(num_cpus=0)
class Weights:
    """Where actors look for the newest network."""

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights

    def get(self) -> np.ndarray:
        return self._weights

    def put(self, weights: np.ndarray) -> None:
        self._weights = weights


@ray.remote(num_cpus=0)
def act(writer: ShardWriter, weights: Any, seed: int) -> None:
    """Play until the learner is gone: Ray ends this with it."""
    how = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec(
        ENV, ENVS_OF_AN_ACTOR, vectorization_mode="sync", vector_kwargs=how
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    observation, _ = envs.reset(seed=seed)
    for step in range(10**12):
        if step % 50 == 0:
            table = ray.get(weights.get.remote())
        values = features(observation) @ table.T
        random = rng.random(len(values)) < 0.2
        action = np.where(random, rng.integers(0, 2, len(values)), values.argmax(1))
        following, reward, terminated, truncated, about = envs.step(action)
        arrived = following.copy()
        for env in np.flatnonzero(terminated | truncated):
            arrived[env] = about["final_obs"][env]
        writer.add(observation, action, reward, terminated, truncated, arrived)
        observation = following


def learn(table: np.ndarray, batch: Any) -> np.ndarray:
    """One step of Q-learning; returns the errors."""
    known = features(batch.observation)
    following = (features(batch.next_observation) @ table.T).max(1)
    error = batch.reward + batch.discount * following - (known * table[batch.action]).sum(1)
    change = np.clip(error, -1, 1) * batch.weight * 0.5
    np.add.at(table, batch.action, change[:, None] * known / len(error))
    return np.abs(error) + 1e-3


def opened(options: argparse.Namespace, checkpoints: Any) -> tuple[ShardedReplayBuffer, np.ndarray]:
    """The buffer and the network: those that run, those of the last checkpoint, or new ones."""
    env = gymnasium.make(ENV)
    table = np.zeros((env.action_space.n, 15))
    try:
        replay = ShardedReplayBuffer.connect("cartpole")
    except InvalidInputError:  # it does not run
        replay = ShardedReplayBuffer(
            options.path, num_shards=options.shards, num_envs=16 * ENVS_OF_AN_ACTOR,
            observation_space=env.observation_space, action_space=env.action_space,
            capacity=100_000, update_horizon=3, gamma=GAMMA, batch_size=64, name="cartpole",
            rate_limiter=SampleToInsertRatio(4, min_size_to_sample=500, error_buffer=20_000),
            resources=[{f"replay{shard}": 1} for shard in range(options.shards)],
            failover_after=30.0, env_group=4,
        )  # fmt: skip
        try:
            print("loaded checkpoint", replay.load(checkpoints), flush=True)
        except CheckpointNotFoundError:
            return replay, table
    try:
        saved = replay.attachments(checkpoints)
    except CheckpointNotFoundError:
        return replay, table
    return replay, np.load(io.BytesIO(saved["network.npy"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", help="of each shard's node")
    parser.add_argument("checkpoints", help="a URL, or a directory that all nodes see")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20_000, help="of all actors together")
    parser.add_argument("--save-every", type=int, default=100, help="updates")
    parser.add_argument("--takeover", action="store_true", help="of another run's checkpoints")
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    options = parser.parse_args()
    ray.init(address=options.address, log_to_driver=False)
    checkpoints: Any = options.checkpoints
    if "://" in checkpoints:
        checkpoints = RemoteCheckpoints(checkpoints, takeover=options.takeover)
    replay, table = opened(options, checkpoints)
    print(f"begins with {replay.add_count} steps", flush=True)
    weights: Any = Weights.remote(table)
    actors = [
        act.remote(replay.writer(ENVS_OF_AN_ACTOR, chunk_rows=32), weights, seed)
        for seed in range(options.actors)
    ]
    begun, waited = time.monotonic(), []
    with replay.prefetch(depth=2, batches_per_request=4) as batches:
        for update in range(1, 10**12):
            asked = time.monotonic()
            batch = next(batches)
            waited.append(time.monotonic() - asked)
            priorities = learn(table, batch)
            replay.update_priorities(batch.id, priorities, batch.generation)
            if update % 25 == 0:
                weights.put.remote(table)
            if update % options.save_every == 0:
                file = io.BytesIO()
                np.save(file, table)
                number = replay.add_count
                replay.save(checkpoints, number, attachments={"network.npy": file.getvalue()})
                print(f"saved {number}", flush=True)
                if number >= options.steps:
                    break
    for actor in actors:
        ray.cancel(actor, force=True)
    seconds = time.monotonic() - begun
    print(f"{len(waited)} updates in {seconds:.0f} s, waited {np.median(waited):.4f} s a batch")
    replay.close()


if __name__ == "__main__":
    main()
