"""Make the pictures of docs/looking.md: a small store is recorded, and its pages are photographed.

::

    python tools/docs_pictures.py

Needs ``diskreplay[browser,plot,view]`` and the packages chromium and chromium-driver of Debian.
"""

import io
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from PIL import Image

import diskreplay
from diskreplay.view.shown_stores import key_of

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
TOKEN = "a-token-of-the-pictures"
JOINTS = ["base", "shoulder", "elbow", "wrist", "grip"]

sys.path.insert(0, str(ROOT))
from tests.view.browsing import chromium, resize, until  # noqa: E402 - no part of the package


class Arm:
    """An arm that is drawn: two cameras and five joints. It gets better at what it does."""

    def __init__(self, path: Path) -> None:
        self.rng = np.random.default_rng(0)
        self.episode, self.directory = 0, path.parent
        self.buffer = diskreplay.PrioritizedReplayBuffer(
            path,
            observation_space=Dict(
                front=Box(0, 255, (64, 64), "uint8"), wrist=Box(0, 255, (64, 64, 3), "uint8"),
                joints=Box(-1, 1, (5,)),
            ),
            action_space=Discrete(4), capacity=30_000, stack_size=3, update_horizon=3, seed=0,
            extras={"log_prob": ((), "float32"), "value": ((), "float32")},
            metadata={
                "env_id": "Reach-v0", "seed": 0,
                "action_meanings": ["STAY", "LEFT", "RIGHT", "GRIP"],
                "names": {"observation/joints": JOINTS},
            },
        )  # fmt: skip

    def seen(self, step: int, length: int, place: np.ndarray, joints: np.ndarray) -> dict:
        """The observation of a step."""
        across, down = np.meshgrid(np.arange(64), np.arange(64))
        far = np.hypot(across - place[0], down - place[1])
        front = np.where(far < 5, 235, 26 + down // 3).astype(np.uint8)
        front[60:, : int(64 * step / length)] = 150
        wrist = np.stack([40 + across, 60 + down, np.full((64, 64), 110)], -1).astype(np.uint8)
        turned = np.hypot(across - 32 - 22 * joints[0], down - 32 - 22 * joints[1])
        wrist[turned < 8] = 240, 200, 90
        return {"front": front, "wrist": wrist, "joints": joints.astype(np.float32)}

    def play(self) -> None:
        """One episode, with what a learner does beside it."""
        rng, skill = self.rng, min(1.0, self.episode / 80)
        length, place, phase = int(rng.integers(40, 130)), rng.uniform(12, 52, 2), rng.random(5) * 6
        for step in range(length):
            place = np.clip(place + rng.normal(0, 1.5, 2), 6, 56)
            seen = self.seen(step, length, place, 0.9 * np.sin(step / 14 + phase))
            reward = float(rng.random() < 0.04 + 0.12 * skill) - float(rng.random() < 0.03)
            end = step + 1 == length
            self.buffer.add(
                seen, int(rng.choice(4, p=[0.1, 0.3, 0.4, 0.2])), reward,
                end and self.episode % 6 > 0, end and self.episode % 6 == 0, seen if end else None,
                log_prob=rng.normal(-1.3, 0.2), value=3 * skill + np.sin(step / 12),
            )  # fmt: skip
            if self.episode > 2 and step % 4 == 0:
                batch = self.buffer.sample(32)
                self.buffer.update_priorities(batch.id, rng.gamma(1.0, 0.5, 32) + 0.01)
        self.episode += 1
        if self.episode % 40 == 0:
            self.buffer.save(self.directory / "checkpoints", self.episode)


def photograph(driver, name: str, width: int, height: int, **how: bool) -> None:
    """Write a picture of the page as it is now, of few colours."""
    resize(driver, width, height, **how)
    until(driver, "[...document.images].every((i) => i.complete) && document.fonts.ready && true")
    with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as image:
        few = image.convert("RGB").quantize(255, dither=Image.Dither.NONE)
        few.save(PICTURES / f"{name}.png", optimize=True)
    print(PICTURES / f"{name}.png")


def main() -> None:
    """Record, serve, photograph."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        arm = Arm(Path(directory) / "reach" / "replay")
        while arm.episode < 130:
            arm.play()
        arm.buffer.flush()
        command = [sys.executable, "-m", "diskreplay", "view", directory, "--port", "0"]
        server = subprocess.Popen(
            [*command, "--token", TOKEN], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        url = server.stdout.readline().strip()
        ended = threading.Event()

        def train() -> None:
            while not ended.is_set():
                arm.play()
                arm.buffer.flush()
                ended.wait(0.2)

        training = threading.Thread(target=train)
        try:
            training.start()
            with chromium() as driver:
                _pages(driver, url, arm)
        finally:
            ended.set()
            training.join()
            server.terminate()
            server.wait()
        report = Path(directory) / "report.html"
        with diskreplay.open(arm.buffer.path) as buffer:
            from diskreplay.pictures.report import save_report

            save_report(buffer, report)
        with chromium() as driver:
            driver.get(f"file://{report}")
            until(driver, "document.querySelectorAll('.player').length > 3")
            driver.execute_script(
                "document.querySelector('.reels').previousSibling.scrollIntoView()"
            )
            photograph(driver, "report", 1280, 860)
        arm.buffer.close()


def _pages(driver, url: str, arm: Arm) -> None:
    key = key_of(arm.buffer.path)
    driver.get(url)
    resize(driver, 1280, 1100)
    driver.execute_script("location.hash = arguments[0]", f"#/{key}/live")
    line = "document.querySelector('figure')?.querySelector('polyline')"
    points = f"({line}?.getAttribute('points') ?? '').split(' ')"
    is_rate = "document.querySelector('figure h3')?.textContent === 'Rows a second'"
    until(driver, f"{is_rate} && {points}.length > 12")
    photograph(driver, "live", 1280, 1100)
    photograph(driver, "live-phone", 390, 844, phone=True, dark=True)
    start = int(arm.buffer.episodes().start_id[-12])
    resize(driver, 1280, 1180)
    driver.execute_script("location.hash = arguments[0]", f"#/{key}/episodes/{start}?step=24")
    until(driver, "document.querySelector('.now dd')?.textContent === '24'")
    until(driver, "[...document.querySelectorAll('.channel output')].every((o) => o.textContent)")
    photograph(driver, "episode", 1280, 1180)
    other = driver.execute_script("return everyStore.find((s) => s.is_checkpoint).key")
    driver.execute_script("location.hash = arguments[0]", f"#/compare/{key}/{other}")
    until(driver, "document.querySelectorAll('svg.chart .bar').length > 20")
    photograph(driver, "compare", 1280, 1000)


if __name__ == "__main__":
    main()
