"""tools/azurite, with a pretended npm: a version, once, whole or not at all."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

NPM = """#!/bin/sh
echo "$@" >>"{place}/asked"
case "$*" in
    *" view "*) exit {view} ;;
    *" install "*) ;;
esac
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/azurite"
echo '  "version": "'"${{3#azurite@}}"'",' >"$2/node_modules/azurite/package.json"
[ {meanwhile} = 0 ] || cp -r "$2" "{place}/.venv/azurite"
exit {install}
"""


@pytest.fixture
def tool(tmp_path):
    """Runs it in a repository of its own: what it answered, and what npm was asked."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/azurite", tmp_path / "tools/azurite")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "cp", "dirname", "grep", "mkdir", "mktemp", "mv", "rm", "tail", "timeout"):
        (programs / name).symlink_to(shutil.which(name))

    def run(*, install=0, view=0, meanwhile=0, without=None):
        (tmp_path / "asked").unlink(missing_ok=True)
        for name, text in (
            ("node", "#!/bin/sh\n"),
            ("npm", NPM.format(place=tmp_path, install=install, view=view, meanwhile=meanwhile)),
        ):
            (programs / name).unlink(missing_ok=True)
            if name != without:
                (programs / name).write_text(text)
                (programs / name).chmod(0o755)
        environment = {"PATH": str(programs), "HOME": str(tmp_path)}
        done = subprocess.run(
            [tmp_path / "tools/azurite"], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    run.place = tmp_path / ".venv/azurite"
    return run


def test_it_is_installed_once(tool):
    done, asked = tool()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    view, install = asked
    assert view.endswith(" view --prefer-online --fetch-retries=0 azurite@3.35.0 version")
    assert "--ignore-scripts" in install
    assert install.endswith(" azurite@3.35.0")
    assert (tool.place / "node_modules/azurite/package.json").exists()
    assert os.listdir(tool.place.parent) == ["azurite"]
    done, asked = tool(without="npm")
    assert (done.returncode, done.stdout, done.stderr, asked) == (0, "", "", [])


def test_another_version_is_replaced(tool):
    package = tool.place / "node_modules/azurite/package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "3.34.0"}\n')
    (tool.place / "old").touch()
    done, asked = tool()
    assert (done.returncode, len(asked)) == (0, 2)
    assert "3.35.0" in package.read_text()
    assert not (tool.place / "old").exists()


@pytest.mark.parametrize(
    "how", [{"without": "npm"}, {"view": 1}, {"install": 1}], ids=lambda how: next(iter(how))
)
def test_another_version_stays_where_there_is_no_other(tool, how):
    package = tool.place / "node_modules/azurite/package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "3.34.0"}\n')
    done, _asked = tool(**how)
    assert done.returncode == 3
    assert done.stderr.endswith("The version that is there stays.\n")
    assert "3.34.0" in package.read_text()
    assert os.listdir(tool.place.parent) == ["azurite"]


def test_two_at_once_install_one(tool):
    done, _asked = tool(meanwhile=1)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tool.place.parent) == ["azurite"]
    assert not list(tool.place.glob(".azurite-*"))  # none is in the other


def test_one_that_comes_last_of_two_changes_nothing(tool):
    """The other one came between the look and the move."""
    mv = tool.place.parent.parent / "programs/mv"
    real = os.readlink(mv)
    mv.unlink()
    mv.write_text(f'#!/bin/sh\ncp -r "$2" "{tool.place}"\nexec {real} "$@"\n')
    mv.chmod(0o755)
    done, _asked = tool()
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tool.place.parent) == ["azurite"]
    assert sorted(os.listdir(tool.place)) == ["log", "node_modules"]


@pytest.mark.parametrize("program", ["node", "npm"])
def test_without_a_program_it_is_left_out(tool, program):
    done, asked = tool(without=program)
    assert (done.returncode, asked) == (3, [])
    assert done.stderr.startswith(f"Azurite cannot be had: there is no {program}. Nothing is")


@pytest.mark.parametrize(
    ("view", "calls", "says"),
    [(1, 1, "no registry of npm can be reached"), (0, 2, "npm could not install it")],
)
def test_what_cannot_be_installed_is_left_out(tool, view, calls, says):
    done, asked = tool(install=1, view=view)
    assert (done.returncode, len(asked)) == (3, calls)
    assert says in done.stderr
    assert not tool.place.exists()  # not a part of it, which would count as all
    assert not list(tool.place.parent.glob("**/.azurite-*"))  # nor what was there of it
    assert tool()[0].returncode == 0
