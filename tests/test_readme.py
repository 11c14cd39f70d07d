"""The README's Python runs when pasted."""

import shlex

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from tests.blocks import blocks, paste

BLOCKS = [text for language, text in blocks("README.md") if language == "python"]


def test_the_blocks_are_found():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    paste(BLOCKS[number], f"README block {number}", {})
    if number == 0:
        assert "transitions" in capsys.readouterr().out
        assert (tmp_path / "runs/cartpole/checkpoints/replay_ckpt.1999").is_dir()


def test_the_lines_on_looking_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    paste(BLOCKS[0], "README block 0", {})
    paste(BLOCKS[2], "README block 2", {})
    assert "mean" in capsys.readouterr().out


def test_the_commands_on_looking_run(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with diskreplay.PrioritizedReplayBuffer(
        "runs/pong/replay", observation_space=Box(0, 255, (84, 84), "uint8"),
        action_space=Discrete(6), capacity=1000,
    ) as buffer:  # fmt: skip
        for step in range(200):
            frame = rng.integers(0, 256, (84, 84), np.uint8)
            buffer.add(frame, step % 6, 1.0, step % 40 == 39, False)
        buffer.save("runs/pong/checkpoints", 1)
    (commands,) = (
        text for language, text in blocks("README.md") if "diskreplay info" in text and not language
    )
    for line in commands.splitlines():
        arguments = shlex.split(line, comments=True)[1:]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (line, done.output)
    assert {"sheet.png", "report.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_lines_on_resuming_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = {"observation_space": Discrete(9), "action_space": Discrete(2), "capacity": 100}
    with diskreplay.ReplayBuffer("runs/cartpole/replay", **options) as buffer:
        for step in range(20):
            buffer.add(step % 9, 0, 1.0, False, False)
    found = {}
    paste(BLOCKS[3], "README block 3", found)
    assert found["buffer"].closed
    assert found["weights"] == b"of the network"
    assert found["step"] == 8000
    assert "8000" in capsys.readouterr().out
    with diskreplay.open("runs/cartpole/replay") as reader:
        assert reader.add_count == 20


def test_the_page_on_checkpoints(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = {}
    for number, (language, text) in enumerate(blocks("docs/checkpoints.md")):
        assert language == "python"
        paste(text, f"docs/checkpoints.md block {number}", found)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("goes on at 400, saved 20")
    assert said[1] == "[400, 600]"
    assert said[3:] == ["600 600 transitions, ['network', 'optimizer']"]
    assert said[2] == str(found["play"]("twice/replay", "twice/checkpoints", 300))
    once = found["train"]("once/replay", "once/checkpoints", 600)
    for one, other in zip(once.parameters(), found["network"].parameters(), strict=True):
        assert torch.equal(one, other)
