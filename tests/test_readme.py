"""The README's Python runs when pasted."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_blocks_are_found():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), {})
    if number == 0:
        assert "transitions" in capsys.readouterr().out
        assert (tmp_path / "runs/cartpole/checkpoints/replay_ckpt.1999").is_dir()


def test_the_lines_on_resuming_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from gymnasium.spaces import Discrete

    import diskreplay

    options = {"observation_space": Discrete(9), "action_space": Discrete(2), "capacity": 100}
    with diskreplay.ReplayBuffer("runs/pong/replay", **options) as buffer:
        for step in range(20):
            buffer.add(step % 9, 0, 1.0, False, False)
        buffer.save("runs/pong/checkpoints", 7)
        exec(BLOCKS[2], {"buffer": buffer})
        assert buffer.add_count == 20
