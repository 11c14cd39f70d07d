"""Completion: each shell gets its own script, and the script completes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import shellingham

ROOT = Path(__file__).resolve().parent.parent.parent
MARKS = {
    "bash": "complete -o default -F",
    "zsh": "#compdef diskreplay",
    "fish": "complete --command diskreplay",
    "powershell": "Register-ArgumentCompleter",
    "pwsh": "Register-ArgumentCompleter",
}


@pytest.mark.parametrize("shell", MARKS)
@pytest.mark.parametrize("joined", [True, False])
def test_each_shell_has_its_own_script(cli, shell, joined):
    option = [f"--show-completion={shell}"] if joined else ["--show-completion", shell]
    script = cli(*option).stdout
    assert [name for name, mark in MARKS.items() if mark in script] == (
        ["powershell", "pwsh"] if "p" in shell else [shell]
    )
    assert "_DISKREPLAY_COMPLETE" in script


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_shell_it_is_typed_into(cli, monkeypatch, shell):
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))
    assert MARKS[shell] in cli("--show-completion").stdout


def test_no_shell_at_all(cli, monkeypatch):
    def fail():
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", fail)
    assert "name it" in cli("--show-completion", code=2).stderr


def test_an_unknown_shell(cli):
    assert "one of bash, zsh" in cli("--show-completion", "tcl", code=2).stderr


@pytest.mark.parametrize(
    ("shell", "file"),
    [("bash", ".bash_completions/diskreplay.sh"), ("zsh", ".zfunc/_diskreplay"),
     ("fish", ".config/fish/completions/diskreplay.fish")],
)  # fmt: skip
def test_it_is_installed_at_home(cli, monkeypatch, tmp_path, shell, file):
    monkeypatch.setenv("HOME", str(tmp_path))
    said = cli("--install-completion", shell).stdout
    assert str(tmp_path / file) in said.replace("\n", "")
    assert MARKS[shell] in (tmp_path / file).read_text()


@pytest.mark.costly(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes(cli, tmp_path, shell):
    program = shutil.which(shell)
    if program is None:  # elsewhere the scripts' contents are all there is to check
        assert MARKS[shell] in cli("--show-completion", shell).stdout
        return
    tool = tmp_path / "diskreplay"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m diskreplay "$@"\n')
    tool.chmod(0o755)
    ask = {
        "bash": """eval "$(diskreplay --show-completion bash)"
            COMP_WORDS=(diskreplay epi) COMP_CWORD=1
            _diskreplay_completion diskreplay
            echo "${COMPREPLY[@]}" """,
        "zsh": """compdef() { :; }; compadd() { :; }
            _arguments() { print -r -- "$@"; }; _describe() { print -r -- "$@"; }
            eval "$(diskreplay --show-completion zsh)"
            words=(diskreplay epi); CURRENT=2
            _diskreplay_completion""",
        "fish": "diskreplay --show-completion fish | source; complete -C 'diskreplay epi'",
    }[shell]
    done = subprocess.run(
        [program, *({"bash": ["--norc"], "zsh": ["-f"], "fish": ["-N"]}[shell]), "-c", ask],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path),
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "episodes" in done.stdout, done.stderr
