"""The live page and the report, photographed in Chromium."""

import contextlib
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from arm import Arm
from smaller import of_few_colours

from diskreplay.view.shown_stores import key_of

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-pictures"

sys.path.insert(0, str(ROOT))
from tests.view.browsing import chromium, resize, until  # noqa: E402 - no part of the package


def photograph(driver, out: Path, width: int, height: int, **how: bool) -> None:
    """Write a picture of the page as it is now, of few colours."""
    resize(driver, width, height, **how)
    until(driver, "[...document.images].every((i) => i.complete) && document.fonts.ready && true")
    of_few_colours(io.BytesIO(driver.get_screenshot_as_png()), out)


@contextlib.contextmanager
def training(arm: Arm) -> Iterator[None]:
    """It goes on to play beside the page."""
    ended = threading.Event()

    def train() -> None:
        while not ended.is_set():
            arm.play()
            arm.buffer.flush()
            ended.wait(0.2)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def draw_live(arm: Arm, directory: Path, out: Path) -> None:
    """The pages of ``diskreplay view``, while the arm plays."""
    command = [sys.executable, "-m", "diskreplay", "view", str(directory), "--port", "0"]
    start = int(arm.buffer.episodes().start_id[-12])  # which the page knows when it is asked
    server = subprocess.Popen(
        [*command, "--token", TOKEN], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        url = server.stdout.readline().strip()
        with training(arm), chromium() as driver:
            _pages(driver, url, key_of(arm.buffer.path), start, out)
    finally:
        server.terminate()
        server.wait()


def _pages(driver, url: str, key: str, start: int, out: Path) -> None:
    driver.get(url)
    resize(driver, 1280, 1100)
    driver.execute_script("location.hash = arguments[0]", f"#/{key}/live")
    line = "document.querySelector('figure')?.querySelector('polyline')"
    points = f"({line}?.getAttribute('points') ?? '').split(' ')"
    is_rate = "document.querySelector('figure h3')?.textContent === 'Rows a second'"
    until(driver, f"{is_rate} && {points}.length > 12")
    photograph(driver, out / "live.png", 1280, 1100)
    photograph(driver, out / "live-phone.png", 390, 844, phone=True, dark=True)
    resize(driver, 1280, 1180)
    driver.execute_script("location.hash = arguments[0]", f"#/{key}/episodes/{start}?step=24")
    until(driver, "document.querySelector('.now dd')?.textContent === '24'")
    until(driver, "[...document.querySelectorAll('.channel output')].every((o) => o.textContent)")
    pixels = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    drawn = f"{pixels}.some((value, at) => value && at % 4 < 3)"
    until(driver, f"[...document.querySelectorAll('canvas')].every((c) => {drawn})")
    photograph(driver, out / "episode.png", 1280, 1180)
    other = driver.execute_script("return everyStore.find((s) => s.is_checkpoint).key")
    driver.execute_script("location.hash = arguments[0]", f"#/compare/{key}/{other}")
    until(driver, "document.querySelectorAll('svg.chart .bar').length > 20")
    photograph(driver, out / "compare.png", 1280, 1000)


def draw_report(report: Path, out: Path) -> None:
    """A page that ``diskreplay report`` has written."""
    with chromium() as driver:
        driver.get(f"file://{report}")
        until(driver, "document.querySelectorAll('.player').length > 3")
        driver.execute_script("document.querySelector('.reels').previousSibling.scrollIntoView()")
        photograph(driver, out / "report.png", 1280, 940)
