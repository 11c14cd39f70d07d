"""Stores to look at, and the command line in this process."""

import json
import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import diskreplay


def record(buffer, steps, start=0):
    """Episodes of 10 steps, every second one truncated, and frames that say which step it is."""
    for t in range(start, start + steps):
        frame = np.full((12, 16), t % 250, np.uint8)
        last, even = t % 10 == 9, t // 10 % 2 == 0
        buffer.add(
            frame, t % 3, float(t % 4 - 1), last and even, last and not even, frame + 1, score=t / 2
        )


# What nobody can say in a shell: arguments of functions.
OF_PYTHON = re.compile(r"\b(mode|overwrite|data_format)=|diskreplay\.open\(")


def make_buffer(path, capacity=None, **options):
    """A prioritized buffer of small frames, open for writing."""
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (12, 16), np.uint8), action_space=Discrete(3),
        capacity=capacity, stack_size=4, update_horizon=2, alpha=0.5, seed=1,
        extras={"score": ((), np.float32)}, compressor={"observation": "lz4"},
        **options,
    )  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """`make_buffer`, whose buffers are closed at the end, and that is before `tmp_path` is
    removed."""
    buffers = []

    def make(path, capacity=None, **options):
        buffers.append(make_buffer(path, capacity, **options))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()


def make_run(directory):
    with make_buffer(directory / "run" / "replay") as buffer:
        record(buffer, 105)
        ids = buffer.sample(32).id
        buffer.update_priorities(ids, 0.5 + np.arange(32) / 64)
        buffer.save(directory / "run" / "checkpoints", 7)


@pytest.fixture
def store(filled, tmp_path):
    """A closed store of 105 transitions: 10 whole episodes and an open one, and a checkpoint."""
    filled(make_run)
    return tmp_path / "run" / "replay"


@pytest.fixture
def cli():
    """Run the command line: ``cli("info", path)``."""
    from diskreplay.cli.app import app

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        assert "--debug" in arguments or not OF_PYTHON.search(result.stderr), result.stderr
        return result

    return run


@pytest.fixture
def cli_json(cli):
    """The same with ``--json``, parsed."""
    return lambda *arguments: json.loads(cli(*arguments, "--json").stdout)
