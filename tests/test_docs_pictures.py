"""The pictures of the documentation can be drawn again, and each is shown on a page."""

import re
import subprocess
import sys

import pytest

from tests.blocks import PAGES, ROOT
from tests.effort import PROFILE
from tests.view.browsing import CHROMIUM, DRIVER

pytest.importorskip("matplotlib")
PICTURES = ROOT / "docs/pictures"


def drawn(out, *kinds):
    command = [sys.executable, ROOT / "tools/docs_pictures", "--out", out, "--episodes", "45"]
    done = subprocess.run([*command, "--only", *kinds], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {path.name for path in out.iterdir() if path.stat().st_size > 1000}


# Half a minute each, and what they draw changes with the pages: `.ci/run` draws them.
draws = pytest.mark.skipif(PROFILE == "same", reason="draws all pictures: HYPOTHESIS_PROFILE=whole")


@draws
def test_commands_sheet_and_charts(tmp_path):
    made = drawn(tmp_path, "terminal", "sheet", "charts")
    commands = {path.name for path in PICTURES.glob("cli-*.svg")}
    assert made == commands | {"sheet.png", "charts.png"}
    for name in commands:
        text = (tmp_path / name).read_text()
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
        assert "Traceback" not in text
        assert re.search("diskreplay.{1,6}" + name[4:-4], text)


@draws
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromium-driver")
def test_the_live_page_and_the_report(tmp_path):
    pytest.importorskip("selenium")
    pytest.importorskip("starlette")
    pages = {"live.png", "live-phone.png", "episode.png", "compare.png", "report.png"}
    assert drawn(tmp_path, "report", "live") == pages
    assert pages < {path.name for path in PICTURES.iterdir()}


def test_each_picture_is_shown():
    shown = set()
    for page in PAGES:
        shown |= set(re.findall(r"\]\([^)]*pictures/([\w.-]+)\)", (ROOT / page).read_text()))
    assert shown == {path.name for path in PICTURES.iterdir()}
