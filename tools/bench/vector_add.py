"""Adding from many environments at once: one call a step for all of them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, GAMMA
from stream import FRAME_BYTES, FRAME_SHAPE, NUM_ACTIONS, STACK, Stream

NUM_ENVS = 256
STEPS_READ = 16
WARMUP_CALLS = 4
_FORGOTTEN_AFTER_S = 6
"""ext4 gives no new file the inode of one that was deleted in the last five seconds, and looks at
each of those when a file is made: thousands, of the stores of earlier runs."""


class VectorSteps:
    """Steps of `num_envs` environments, each playing the stream from another episode on."""

    def __init__(self, stream: Stream, num_envs: int = NUM_ENVS) -> None:
        self._stream = stream
        starts = np.linspace(0, stream.episodes, num_envs, endpoint=False).astype(int)
        self._episode = starts
        self._step = np.zeros(num_envs, int)
        frames = np.memmap(stream.frames_path, np.uint8, "r")
        self._frames = frames.reshape(-1, FRAME_BYTES)

    def next(self) -> dict[str, np.ndarray]:
        """One step of every environment, as the arguments of `add`."""
        stream = self._stream
        row = stream.first_step[self._episode] + self._step
        frame = stream.first_frame[self._episode] + self._step
        shape = (len(row), *FRAME_SHAPE)
        step = {
            "observation": self._frames[frame].reshape(shape),
            "action": stream.action[row],
            "reward": stream.reward[row],
            "terminated": stream.terminated[row],
            "truncated": stream.truncated[row],
            "next_observation": self._frames[frame + 1].reshape(shape),
        }
        self._step += 1
        ended = self._step == stream.episode_length[self._episode]
        self._episode = np.where(ended, (self._episode + 1) % stream.episodes, self._episode)
        self._step[ended] = 0
        return step


def time_vector_add(stream: Stream, directory: Path, frames: int, compressor: str) -> dict:
    """Record `frames` rows into a new store, 256 environments a call; figures are per row.

    ``us_a_step`` is the wall clock of the calls; ``us_a_step_flushed`` adds the wait for the
    segments that were still being sealed and for the disk; ``cpu_us_a_step`` counts every thread.
    """
    from gymnasium.spaces import Box, Discrete

    import diskreplay

    time.sleep(_FORGOTTEN_AFTER_S)
    options: dict[str, Any] = {
        "observation_space": Box(0, 255, FRAME_SHAPE, np.uint8),
        "action_space": Discrete(NUM_ACTIONS),
        "capacity": frames,
        "num_envs": NUM_ENVS,
        "stack_size": STACK,
        "gamma": GAMMA,
        "batch_size": BATCH,
        "alpha": ALPHA,
        "compressor": compressor,
    }
    calls = frames // NUM_ENVS - WARMUP_CALLS
    steps = VectorSteps(stream)
    cpu = 0
    taken: list[int] = []
    with diskreplay.PrioritizedReplayBuffer(directory, **options) as buffer:
        for _ in range(WARMUP_CALLS):
            buffer.add(**steps.next())
        while len(taken) < calls:
            chunk = [steps.next() for _ in range(min(STEPS_READ, calls - len(taken)))]
            cpu_begin = process_time_ns()
            for step in chunk:
                begin = perf_counter_ns()
                buffer.add(**step)
                taken.append(perf_counter_ns() - begin)
            cpu += process_time_ns() - cpu_begin
        begin, cpu_begin = perf_counter_ns(), process_time_ns()
        buffer.flush()
        flush = perf_counter_ns() - begin
        cpu += process_time_ns() - cpu_begin
    shutil.rmtree(directory)
    rows = calls * NUM_ENVS
    return {
        "num_envs": NUM_ENVS,
        "rows": rows,
        "us_a_step": sum(taken) / rows / 1000,
        "us_a_step_flushed": (sum(taken) + flush) / rows / 1000,
        "cpu_us_a_step": cpu / rows / 1000,
        "call_median_us": float(np.median(taken)) / 1000,
        "call_max_us": max(taken) / 1000,
    }
