"""What is in the wheel and in the source distribution, and what their metadata says."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.copies import unpack
from tests.effort import PROFILE

pytest.importorskip("hatch_fancy_pypi_readme")

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/diskreplay/diskreplay"
# Those of a user.
EXTRAS = {
    "all", "atari", "cloud", "jax", "lerobot", "minari", "pandas", "plot", "recorders", "sb3",
    "torch", "torchrl", "view",
}  # fmt: skip
# ](target) of links and pictures, and the targets of other ways to write one.
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)|(?:src|href)\s*=\s*[\"']([^\"']+)|^\[[^\]]+\]:\s*(\S+)", re.M
)


def build(target, directory):
    """Path of what hatchling makes of this checkout."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (made,) = directory.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    (record,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return PathDistribution(zipfile.Path(wheel, record.removesuffix("METADATA"))).metadata


@pytest.fixture(scope="module")
def description(metadata):
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    return metadata.get_payload() or metadata["Description"]


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "diskreplay").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "diskreplay/py.typed" in package
    # hatchling 1.33 also lists directories: their names end with a slash.
    files = {name for name in wheel.namelist() if not name.endswith("/")}
    names = {name for name in files if not name.startswith("diskreplay-")}
    assert names == package


def test_checkers_may_use_the_types(wheel, metadata):
    assert wheel.read("diskreplay/py.typed") == b""  # empty: all of the package is typed
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_the_page_names_where_things_are(metadata):
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    for url in urls.values():
        assert url == REPOSITORY or url.startswith(f"{REPOSITORY}/")
        check_target(url)


def test_all_asks_for_what_each_extra_of_a_user_asks_for(metadata):
    assert set(metadata.get_all("Provides-Extra")) >= EXTRAS
    asked = {extra: set() for extra in EXTRAS}
    for line in metadata.get_all("Requires-Dist"):
        requirement, _, extra = line.partition("; extra == ")
        if (name := extra.strip("'\"")) in EXTRAS:
            asked[name].add(requirement)
    for_all = asked.pop("all")
    assert all(asked.values())
    assert for_all == set().union(*asked.values())


def test_all_that_is_needed_has_a_lowest_version(metadata):
    """`.ci/versions` runs the tests with it."""
    for line in metadata.get_all("Requires-Dist"):
        if not line.startswith("diskreplay["):
            assert re.match(r"[\w.-]+(\[[\w,]+\])?>=\d", line), line


def check_target(url):
    """What is named in the repository is there, and of the kind that the address says."""
    match = re.match(rf"{re.escape(REPOSITORY)}/(blob|tree)/main/(.+)", url)
    if picture := re.match(r"https://raw\.githubusercontent\.com/(.+?/.+?)/main/(.+)", url):
        assert REPOSITORY.endswith(picture[1])
        assert (ROOT / picture[2]).suffix in {".png", ".svg", ".gif"}
        assert (ROOT / picture[2]).is_file()
    elif match:
        place = ROOT / match[2].partition("#")[0]
        assert place.is_dir() if match[1] == "tree" else place.is_file(), url


def targets(text):
    return [next(filter(None, match.groups())) for match in LINK.finditer(text)]


def test_no_link_of_the_page_is_relative(description):
    found = targets(description)
    assert len(found) == len(targets((ROOT / "README.md").read_text()))
    assert any(url.startswith("https://raw.githubusercontent.com/") for url in found)
    for url in found:
        assert url.startswith("https://"), url
        check_target(url)


def test_only_links_of_the_page_differ_from_the_readme(description):
    whole = r"\]\(https://(?:raw\.githubusercontent|github)\.com/.+?/.+?/(?:(?:tree|blob)/)?main/(.+?)\)"
    readme = (ROOT / "README.md").read_text()
    assert re.sub(whole, r"](\1)", description).strip() == readme.strip()


def files_of(directory):
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.costly
def test_the_tests_run_from_the_source_distribution(tmp_path):
    """All of them are there, with what they import, and those that look at files beside the package
    find them. Others would compile the kernels once more, for this place."""
    (tmp_path / "built").mkdir()
    with tarfile.open(build("sdist", tmp_path / "built")) as archive:
        unpack(archive, tmp_path)
    (place,) = tmp_path.glob("diskreplay-*")
    for directory in ("diskreplay", "docs", "tests", "tools"):
        assert files_of(place / directory) == files_of(ROOT / directory)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_tools.py",
            "tests/test_site_pages.py::test_each_exception_is_needed",
            "tests/test_layers.py::test_every_module_is_on_the_layer_map",
            "-k", "test_scripts or test_set_up or every_page_with_code or test_every_module",
        ],
        cwd=place, env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 10, done.stdout


WITHOUT = """
import importlib.machinery, sys
import pytest

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in OPTIONAL:
            return super().find_spec(name, path, target)

OPTIONAL = sys.argv[1].split()
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"]))
"""


@pytest.mark.skipif(
    PROFILE == "same", reason="for an environment that has more than tools/test needs"
)
def test_the_tests_ask_for_no_more_than_their_own_script_installs():
    """`.ci/run` has all optional packages, `tools/test` has none of these: it skips their tests."""
    optional = (
        "av cpprb griffe jax jaxlib moto ray stable_baselines3 tensordict tianshou torch torchrl"
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, optional],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
