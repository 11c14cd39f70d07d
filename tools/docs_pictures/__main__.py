"""Make the pictures of the documentation: a small store is recorded, and looked at in each way.

::

    python tools/docs_pictures                    all of them, into docs/
    python tools/docs_pictures --out DIR --only terminal sheet

Needs ``diskreplay[browser,plot,view]``, and for the live page and the report the packages chromium
and chromium-driver of Debian.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["terminal", "sheet", "charts", "report", "live"]

sys.path.insert(0, str(ROOT))
import terminal  # noqa: E402 - beside this file
from arm import Arm  # noqa: E402
from smaller import of_few_colours  # noqa: E402


def command(*arguments: str, directory: Path) -> None:
    """Run diskreplay in the directory of the runs."""
    subprocess.run([sys.executable, "-m", "diskreplay", *arguments], cwd=directory, check=True)


def main() -> None:
    """Record, then draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--episodes", type=int, default=130, help="that are recorded first")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reach-") as name:
        directory = Path(name)
        arm = Arm(directory / "runs" / "reach" / "replay")
        while arm.episode < asked.episodes:
            arm.play()
        arm.buffer.flush()
        store, report = "runs/reach/replay", directory / "report.html"
        if "terminal" in asked.only:
            terminal.draw(directory, out)
        if "sheet" in asked.only:
            sheet = ["--episode", "-2", "--count", "16", "--columns", "8", "--out", "sheet.png"]
            command("frames", store, *sheet, "--field", "observation/wrist", directory=directory)
            of_few_colours(directory / "sheet.png", out / "sheet.png")
        if "charts" in asked.only:
            command("plot", store, "--out", "charts.png", directory=directory)
            of_few_colours(directory / "charts.png", out / "charts.png")
        if {"report", "live"} & {*asked.only}:
            import browser

            if "report" in asked.only:
                command("report", store, "--out", str(report), directory=directory)
                browser.draw_report(report, out)
            if "live" in asked.only:
                browser.draw_live(arm, directory, out)
        arm.buffer.close()


if __name__ == "__main__":
    main()
