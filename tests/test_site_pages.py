"""The code of README and of all pages runs when it is pasted, in order and in an empty directory.

Blocks in ``python`` run, and the new side of blocks in ``diff``, each among the names of those
before it. One whose first line is the name of a file, ``# record.py``, is written to that file. Of
blocks in ``bash`` the commands of ``diskreplay`` run. What does not run is listed here with its
reason: `NOT_RUN`, `PROGRAMS`.

A page needs more where it supposes what the reader has (a network, an environment), takes long at
the sizes of a real run, or promises what can be looked at. That is in ``tests/pages``, in a module
of the page's name. `around` is a context manager: it is given a function that returns what the page
has printed so far, and yields the names that the page supposes. `CHANGED` has what is replaced in
the page's code, which is sizes mostly. `CHECKS` has what is looked at behind the block with a text.
"""

import ast
import contextlib
import importlib
import importlib.util
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from tests.blocks import PAGES, ROOT, blocks, commands, new_side, paste

# The beginning of a block that is not run, and why.
NOT_RUN = {
    ("docs/compat/cpprb.md", "# before"): "imports the original",
    ("docs/compat/cs294.md", "# before"): "imports the original",
    ("docs/compat/keras_gym.md", "# before"): "imports the original",
    ("docs/compat/rainbow.md", "# before"): "imports the original",
    ("docs/compat/reagent.md", "# before"): "imports the original",
    ("docs/dreamerv3.md", "+from"): "a line of a function of DreamerV3's",
    ("docs/long-runs.md", "#!/bin/bash"): "a job of SLURM",
}  # fmt: skip
# The beginning of a command that is not run, and why.
PROGRAMS = {
    "./tools/demo": "a minute and an environment of its own; tests/test_tools.py has its parts",
    "./tools/test": "runs this test",
    "diskreplay view": "serves until Ctrl-C; tests/view/test_browser.py runs it",
    "AWS_ENDPOINT=http://127.0.0.1:8333": "asks a server",
    "AZURE_STORAGE_ENDPOINT=http://127.0.0.1:10000/devstoreaccount1": "asks a server",
    "pip ": "takes minutes; the extras that it names are looked up",
    "python ": "takes minutes; that there is the script is looked up",
    "python3 ": "makes an environment",
    "ssh ": "asks another machine",
}
WITH_RAY = {"docs/many-machines.md", "docs/ray.md"}
NOT_CODE = {"dockerfile", "text"}


def module(page):
    """What a page needs besides, if it needs anything."""
    name = page.rpartition("/")[2].removesuffix(".md").lower().replace("-", "_")
    name = f"tests.pages.{name}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def left_out(page, text):
    """Why a block is not run, or None."""
    for (of, beginning), reason in NOT_RUN.items():
        if of == page and text.startswith(beginning):
            return reason
    return None


def program(words):
    """What of `PROGRAMS` a command is, or None."""
    return next((known for known in PROGRAMS if " ".join(words).startswith(known)), None)


def run_commands(text):
    """Run the commands that are not left out; all others are ours."""
    for words in commands(text):
        if program(words) is None:
            assert words[0] == "diskreplay", words
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, (words, done.output)


def run_blocks(page, names, changed, checks):
    """Paste all blocks of a page."""
    for number, (language, text) in enumerate(blocks(page)):
        if left_out(page, text):
            continue
        code = new_side(text) if language == "diff" else text
        for old, new in changed.items():
            code = code.replace(old, new)
        if language == "bash":
            run_commands(code)
        elif file := re.match(r"# (\w+\.py)\n", code):
            Path(file[1]).write_text(code)
        elif language not in NOT_CODE:
            paste(code, f"{page} block {number}", names)
        for within, check in checks.items():
            if within in text:
                check(names)


@pytest.fixture
def handlers():
    """Ray leaves a handler of SIGTERM behind, and a page may set one."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.cluster] if page in WITH_RAY else [])
        for page in PAGES
        if blocks(page)
    ],
)
@pytest.mark.costly(3)
def test_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    needed, printed = module(page), []

    def said():
        printed.append(capsys.readouterr().out)
        return "".join(printed)

    around = getattr(needed, "around", lambda _said: contextlib.nullcontext({}))
    with around(said) as names:
        names["__name__"] = "__main__"
        run_blocks(page, names, getattr(needed, "CHANGED", {}), getattr(needed, "CHECKS", {}))


# -- what is listed is there


@pytest.mark.parametrize("page", PAGES)
def test_code_has_the_form_of_its_language(page):
    for language, text in blocks(page):
        if language == "bash":
            shell = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
            assert (shell.returncode, shell.stderr) == (0, ""), text
        elif language in {"python", "diff"}:
            if not left_out(page, text):
                ast.parse(new_side(text) if language == "diff" else text)
        else:
            assert language in NOT_CODE, (language, text)


def test_every_table_has_a_head():
    """Lines of one that follow an empty line are no table any more: they come out as text."""
    for page in PAGES:
        for paragraph in (ROOT / page).read_text().split("\n\n"):
            lines = [line.strip() for line in paragraph.strip().splitlines()]
            if lines and lines[0].startswith("|"):
                assert len(lines) > 1, (page, lines)
                assert set(lines[1]) <= set("|-: "), (page, lines[0])


def test_each_exception_is_needed():
    for page, beginning in NOT_RUN:
        found = [text for _, text in blocks(page) if text.startswith(beginning)]
        assert len(found) == 1, (page, beginning)
    for path in (ROOT / "tests/pages").glob("*.py"):
        with_code = [page for page in PAGES if blocks(page)]
        page = [page for page in with_code if (it := module(page)) and it.__file__ == str(path)]
        assert len(page) == 1, path
        code, needed = [text for _, text in blocks(page[0])], module(page[0])
        for old in getattr(needed, "CHANGED", {}):
            assert old in "".join(code), (page, old)
        for within in getattr(needed, "CHECKS", {}):
            assert len([text for text in code if within in text]) == 1, (page, within)


def test_commands_that_are_not_run_are_listed_and_can_be_given():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    used = set()
    for page in PAGES:
        for language, text in blocks(page):
            if language != "bash" or left_out(page, text):
                continue
            for words in commands(text):
                used.add(program(words))
                if words[0] == "python":
                    assert (ROOT / words[1]).is_file(), (page, words)
                if words[0] == "pip":
                    named = re.findall(r"\[(.*?)\]", " ".join(words))
                    assert {extra for part in named for extra in part.split(",")} <= extras.keys()
    assert used - {None} == PROGRAMS.keys()


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
