"""Tests that run with the lowest and the newest versions are there, for each package."""

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import versions

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {"dev", "docs", "bench", "all"}  # these bring nothing that a user runs, or a test


def declared():
    """Names of the packages that diskreplay, an extra of a user or a test needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in TOOLS:
            needed += requirements
    return {re.match(r"[\w.-]+", requirement)[0] for requirement in needed}


def test_each_declared_package_has_tests_or_a_reason():
    assert set(versions.TESTS) | set(versions.NONE) == declared()
    assert not set(versions.TESTS) & set(versions.NONE)
    assert all(versions.TESTS.values())
    assert all(versions.NONE.values())


@pytest.mark.parametrize("test", sorted(set(itertools.chain(*versions.TESTS.values()))))
def test_each_of_them_is_there(test):
    path, _, name = test.partition("::")
    place = ROOT / path
    files = sorted(place.glob("test_*.py")) if place.is_dir() else [place]
    assert any(re.search(rf"^ *def {name or 'test_'}", file.read_text(), re.M) for file in files)


def test_no_test_is_named_twice():
    assert versions.TESTS["pillow"] == ("tests/pictures", "tests/cli/test_pictures.py")
    assert "tests/pictures/test_plots.py" in versions.TESTS["matplotlib"]
    chosen = versions.tests_of(["pillow", "matplotlib"])
    assert chosen == ["tests/cli/test_pictures.py", "tests/pictures"]


def test_as_a_program_it_prints_those_of_what_is_installed(monkeypatch):
    done = subprocess.run(
        [sys.executable, ROOT / "tests/versions.py"], capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()
    assert line.split() == versions.tests_of(filter(versions.is_installed, versions.TESTS))
    assert "tests/test_smoke.py" in line
    monkeypatch.setitem(versions.TESTS, "no-such-package", ("tests/test_none.py",))
    assert not versions.is_installed("no-such-package")
