"""The code of README and of all pages runs when it is pasted, in order and in an empty directory.

A block in ``python`` runs among the names of those before it. Of one in ``console`` the lines
``$ diskreplay ...`` run; the shell looks at the form of the others, as it does of all other blocks
for a shell. A page that needs something first has a `prepare_...`, one that promises something a
`check_...`; those that need more have a test of their own (`ELSEWHERE`).
"""

import ast
import shlex
import subprocess
import sys

import pytest
from gymnasium.spaces import Discrete
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from tests.blocks import PAGES, ROOT, blocks, paste

# Page, and what has to be installed for it.
PASTED = {
    "README.md": [],
    "docs/buffer.md": [],
    "docs/checkpoints.md": ["torch"],
    "docs/long-runs.md": [],
    "docs/looking.md": [],
    "docs/remote.md": ["obstore", "torch"],
    "docs/sizing.md": [],
    "docs/start.md": ["pandas", "pyarrow"],
}
ELSEWHERE = {
    "docs/compat/cpprb.md": "tests/compat/test_pages.py",
    "docs/compat/cs294.md": "tests/compat/test_pages.py",
    "docs/compat/keras_gym.md": "tests/compat/test_pages.py",
    "docs/compat/rainbow.md": "tests/compat/test_pages.py",
    "docs/compat/reagent.md": "tests/compat/test_pages.py",
    "docs/dreamerv3.md": "tests/integrations/test_dreamerv3.py",
    "docs/hindsight.md": "tests/test_sequences_guide.py",
    "docs/many-machines.md": "tests/test_actors_example.py",
    "docs/offline.md": "tests/test_offline_guide.py",
    "docs/ray.md": "tests/on_ray/test_ray_guide.py",
    "docs/resuming.md": "tests/test_resuming_guide.py",
    "docs/sequences.md": "tests/test_sequences_guide.py",
    "docs/torch.md": "tests/integrations/test_torch.py",
    "docs/unions.md": "tests/test_unions_guide.py",
}
# Fragments of programs that are not ours: their form is checked, and what they call is tested.
FRAGMENTS = {"docs/torchrl.md", "docs/format.md", "docs/sb3.md", "docs/slots.md", "docs/cleanrl.md"}
SHELLS = {"bash", "sh"}


def function(kind, page):
    """What this file has for a page, or what does nothing."""
    name = page.rpartition("/")[2].removesuffix(".md").lower().replace("-", "_")
    return globals().get(f"{kind}_{name}", lambda *_arguments: None)


@pytest.mark.parametrize("page", sorted(PASTED))
def test_a_page_runs(page, tmp_path, monkeypatch, capsys):
    for package in PASTED[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    function("prepare", page)()
    names = {"__name__": "page"}
    for number, (language, text) in enumerate(blocks(page)):
        if language == "python":
            paste(text, f"{page} block {number}", names)
        for line in text.splitlines() if language == "console" else ():
            arguments = shlex.split(line, comments=True)[1:]
            if arguments[0] == "diskreplay":
                done = CliRunner().invoke(app, arguments[1:])
                assert done.exit_code == 0, (line, done.output)
    function("check", page)(names, tmp_path, capsys.readouterr().out)


def prepare_long_runs():
    options = {"observation_space": Discrete(9), "action_space": Discrete(2), "capacity": 100}
    with diskreplay.ReplayBuffer("runs/cartpole/replay", **options) as buffer:
        for step in range(20):
            buffer.add(step % 9, 0, 1.0, False, False)


def check_readme(_names, path, said):
    assert "transitions" in said
    assert (path / "runs/cartpole/checkpoints/replay_ckpt.1999").is_dir()


def check_start(_names, path, said):
    assert "mean" in said
    assert (path / "first.parquet").exists()


def check_long_runs(names, path, _said):
    assert names["weights"] == b"of the network"
    assert names["step"] == 8000
    assert names["buffer"].closed
    (saved,) = diskreplay.checkpoints(path / "runs/long/checkpoints")
    assert saved.number == 500


def check_checkpoints(names, _path, said):
    import torch

    lines = said.splitlines()
    assert lines[0].startswith("goes on at 400, saved 20")
    assert lines[1] == "[400, 600]"
    assert lines[3:] == ["600 600 transitions, ['network', 'optimizer']"]
    assert lines[2] == str(names["play"]("twice/replay", "twice/checkpoints", 300))
    once = names["train"]("once/replay", "once/checkpoints", 600)
    for one, other in zip(once.parameters(), names["network"].parameters(), strict=True):
        assert torch.equal(one, other)


def check_remote(names, path, _said):
    assert names["loaded"].number == 2000
    published = names["RemoteCheckpoints"](names["URL"]).list()
    assert [one.suffix for one in published] == ["1000", "1500", "2000", "2500"]
    assert (names["start"], names["extras"]) == (None, {})
    assert names["path"] == path / "pulled" / "replay_ckpt.2000"


def test_every_page_with_code_is_run():
    with_python = {page for page in PAGES if "python" in dict(blocks(page))}
    assert with_python <= PASTED.keys() | ELSEWHERE.keys() | FRAGMENTS
    assert not PASTED.keys() & ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        text = (ROOT / test).read_text()
        assert page in text or page.rpartition("/")[2][:-3] in text, (page, test)


@pytest.mark.parametrize("page", PAGES)
def test_code_has_the_form_of_its_language(page):
    for language, text in blocks(page):
        if language == "python":
            ast.parse(text)
        elif language == "console":
            assert all(line.startswith("$ ") for line in text.splitlines()), text
            text = "\n".join(line[2:] for line in text.splitlines())
        if language in {"console", *SHELLS}:
            shell = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
            assert (shell.returncode, shell.stderr) == (0, ""), text


def test_the_example_of_the_package_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = diskreplay.__doc__.split("\n\n")
    code = "\n\n".join(part for part in lines if part.startswith("    import") or "env = " in part)
    names = {}
    paste(ast.unparse(ast.parse("if True:\n" + code)), "diskreplay.__doc__", names)
    assert len(names["batch"]) == 32
    assert [each.number for each in diskreplay.checkpoints("runs/cartpole/checkpoints")] == [200]


def test_pictures_are_drawn_by_their_script():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/drawings.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
