"""What a DQN does to its replay buffer, without the network."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from demo_parts.journal import Kind, Record, Reporter, batch_checksum, row_checksum

CAPACITY = 1_000_000
SHAPE = (84, 84)
ACTIONS = ("noop", "fire", "right", "left", "right fire", "left fire")
LEARN_FROM = 1_000  # frames, before which nothing is sampled
LEARN_EVERY = 4
SAVE_EVERY = 2_500  # a multiple of LEARN_EVERY: the first batch after a save needs no further add


class Step(NamedTuple):
    """The arguments of `add`."""

    observation: np.ndarray
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_observation: np.ndarray | None


def make_buffer(path: Path | None) -> diskreplay.PrioritizedReplayBuffer:
    """The demonstration's buffer at `path`: a new one, or the one that is there."""
    return diskreplay.PrioritizedReplayBuffer(
        path,
        observation_space=Box(0, 255, SHAPE, "uint8"),
        action_space=Discrete(len(ACTIONS)),
        capacity=CAPACITY,
        stack_size=4,
        update_horizon=3,
        gamma=0.99,
        batch_size=32,
        alpha=0.6,
        compressor="auto",
        seed=0,
    )


def train(
    buffer: diskreplay.PrioritizedReplayBuffer,
    steps: Iterable[Step],
    report: Reporter,
    checkpoints: Path,
) -> None:
    """Add the steps; save and learn where it is due, and acknowledge each.

    Starts with learning if that is due, since that is what comes after a save.
    """
    _learn_if_due(buffer, report)
    for step in steps:
        _add(buffer, step, report)
        if buffer.add_count % SAVE_EVERY == 0:
            _save(buffer, checkpoints, report)
        _learn_if_due(buffer, report)


def _add(buffer: diskreplay.PrioritizedReplayBuffer, step: Step, report: Reporter) -> None:
    start = time.perf_counter()
    (row,) = buffer.add(*step).tolist()
    seconds = time.perf_counter() - start
    records = [Record(Kind.ROW, row_checksum(*step[:5], False), row, seconds, 0)]
    if (step.terminated or step.truncated) and step.next_observation is not None:
        final = row_checksum(step.next_observation, 0, 0, False, False, True)
        records.append(Record(Kind.FINAL, final, row + 1, 0, 0))
    report(*records)


def _save(buffer: diskreplay.PrioritizedReplayBuffer, checkpoints: Path, report: Reporter) -> None:
    iteration = buffer.add_count // SAVE_EVERY
    start = time.perf_counter()
    buffer.save(checkpoints, iteration)
    report(Record(Kind.SAVED, 0, iteration, time.perf_counter() - start, 0))


def _learn_if_due(buffer: diskreplay.PrioritizedReplayBuffer, report: Reporter) -> None:
    frames = buffer.add_count
    if frames < LEARN_FROM or frames % LEARN_EVERY:
        return
    start = time.perf_counter()
    batch = buffer.sample(beta=0.4)
    sampled = time.perf_counter()
    errors = td_errors(batch)
    computed = time.perf_counter()
    buffer.update_priorities(batch.id, np.abs(errors) + 1e-6)
    updated = time.perf_counter()
    checksum = batch_checksum(batch.asdict())
    report(Record(Kind.BATCH, checksum, frames, sampled - start, updated - computed))


def td_errors(batch: diskreplay.Batch) -> np.ndarray:
    """TD errors of a stand-in for a Q-network: the value of a stack is its brightness.

    It depends on the frames, rewards and discounts alone, so that a resumed run gives the same
    priorities if, and only if, it gets the same batches.
    """
    value = _brightness(batch.observation)
    target = batch.reward + batch.discount * _brightness(batch.next_observation)
    return target - value


def _brightness(stacks: np.ndarray) -> np.ndarray:
    return stacks[:, :, ::3, ::3].mean(axis=(1, 2, 3)) / 255
