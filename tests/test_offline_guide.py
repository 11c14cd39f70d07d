"""docs/offline.md does what it says, block after block."""

import os
import shlex
import subprocess
import sys

import pytest

import diskreplay
from tests.blocks import ROOT, blocks, paste

for package in ("duckdb", "minari", "pandas", "pyarrow", "torch"):
    pytest.importorskip(package)

GUIDE = "docs/offline.md"
COMMAND = "from diskreplay.cli.app import main; main()"


def shell(line):
    """What a command of the guide prints."""
    _prompt, program, *arguments = shlex.split(line)
    assert program == "diskreplay"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def threads():
    """The guide sets how many threads PyTorch has."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_guide(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "elsewhere")  # restored when the guide has set it
    path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    variables, commands = {"__name__": "guide"}, 0
    for number, (language, text) in enumerate(blocks(GUIDE)):
        if text.startswith("$ pip"):
            continue
        if language == "console":
            for line in text.splitlines():
                assert shell(line).strip()
                commands += 1
        elif text.startswith("# record.py\n"):
            (tmp_path / "record.py").write_text(text)
        else:
            assert language == "python"
            paste(text, f"{GUIDE} block {number}", variables)
    said = capsys.readouterr().out
    assert commands == 2
    frame = variables["frame"]
    with diskreplay.open("runs/cartpole/replay") as buffer:
        assert len(frame) == buffer.add_count >= 10_000
        assert len(frame) - len(buffer) <= 3  # none, if it died just between two episodes
    assert len(frame) - variables["exported"].total_steps <= 1
    assert (tmp_path / "minari/cartpole/rule-v0").is_dir()
    assert "left_to_gain" in said
    for network in ("values", "policy"):  # both come to 400 and more; chance to 20
        assert variables["play"](variables[network]) > 100
