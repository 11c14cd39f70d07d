"""Paths that cannot be: each framework's class says so in the same words."""

# ruff: noqa: E402 - torchrl's trees are loaded before what looks for them
from pathlib import Path

import pytest

import diskreplay

pytest.importorskip("torch")
pytest.importorskip("tianshou")
pytest.importorskip("torchrl")
from tests.integrations import torchrl_extension

torchrl_extension.load()
from gymnasium.spaces import Box, Discrete

from diskreplay.convert import gz_checkpoint
from diskreplay.errors import InvalidInputError
from diskreplay.integrations import cleanrl, lerobot, tianshou, torchrl
from diskreplay.integrations.run_state import RunState
from diskreplay.integrations.torch import SampleStream, TransitionDataset
from tests.permission import check_refused, run_under_modes

OPENED = """
import sys
from gymnasium.spaces import Box, Discrete
from diskreplay.integrations import cleanrl, lerobot, tianshou, torchrl
path = sys.argv[1]
spaces = Box(0, 255, (8, 8), "uint8"), Discrete(4)
attempt("CleanRL", lambda: cleanrl.ReplayBuffer(100, *spaces, path=path))
attempt("LeRobot", lambda: lerobot.ReplayBuffer(100, path=path))
attempt("Tianshou", lambda: tianshou.DiskReplayBuffer(100, path=path))
attempt("torchrl", lambda: torchrl.DiskStorage(100, path=path))
"""


def test_a_path_that_may_not_be_looked_at(tmp_path):
    closed = tmp_path / "of-others"
    closed.mkdir(mode=0)
    try:
        said = run_under_modes(OPENED, closed / "replay").splitlines()
    finally:
        closed.chmod(0o755)
    assert [line.split(":")[0] for line in said] == ["CleanRL", "LeRobot", "Tianshou", "torchrl"]
    for line in said:
        check_refused(line, closed)


SPACES = Box(0, 255, (8, 8), "uint8"), Discrete(4)


@pytest.mark.parametrize("path", [5, b"replay", "s3://bucket/replay", "re\0play"])
@pytest.mark.parametrize("make", [
    lambda **paths: cleanrl.ReplayBuffer(100, *SPACES, **paths),
    lambda **paths: lerobot.ReplayBuffer(100, **paths),
    lambda **paths: tianshou.DiskReplayBuffer(100, **paths),
    lambda **paths: torchrl.DiskStorage(100, **paths),
])  # fmt: skip
def test_what_is_no_path(tmp_path, monkeypatch, make, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"^path: "):
        make(path=path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [5, "s3://bucket/saved"])
@pytest.mark.parametrize("make", [cleanrl.ReplayBuffer, tianshou.DiskReplayBuffer])
def test_what_is_no_path_for_checkpoints(tmp_path, make, path):
    spaces = SPACES if make is cleanrl.ReplayBuffer else ()
    with pytest.raises(InvalidInputError, match=r"^checkpoints: "):
        make(100, *spaces, path=tmp_path / "replay", checkpoints=path)


def run_state(path):
    with diskreplay.ReplayBuffer(
        None, observation_space=SPACES[0], action_space=SPACES[1], capacity=9
    ) as buffer:
        return RunState(buffer, path, modules={})


LOADED = {
    "Tianshou": lambda path: tianshou.DiskReplayBuffer(100).load(path),
    "RunState": run_state,
    "data set": lambda path: TransitionDataset(path),
    "stream": lambda path: SampleStream(path),
    "ReAgent": lambda path: gz_checkpoint.newest(path),
    "one of ReAgent": lambda path: gz_checkpoint.found(path, 1),
    "reading one": lambda path: gz_checkpoint.read(path, 1, "replay"),
}


@pytest.mark.parametrize(
    "path", [5, b"saved", Path("s3://bucket/saved"), "sa\0ved", None, ["saved"]], ids=repr
)
@pytest.mark.parametrize("name", LOADED)
def test_what_is_no_path_to_load_from(tmp_path, monkeypatch, name, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"^(checkpoint_dir|directory|store): "):
        LOADED[name](path)
    assert not list(tmp_path.iterdir())


def test_an_empty_buffer_of_tianshou_says_that_it_cannot_load_from_a_url(tmp_path):
    with pytest.raises(InvalidInputError, match=r"^checkpoint_dir: .*\(diskreplay pull"):
        tianshou.DiskReplayBuffer(100).load("s3://bucket/saved")
