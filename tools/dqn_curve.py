"""Trains docs/examples/dqn.py, kills it ten times on the way, and draws what it learned.

    python tools/dqn_curve.py DIRECTORY [--env CartPole-v1] [--kills 10] [--out docs/dqn.png]
    python tools/dqn_curve.py DIRECTORY --env ALE/Pong-v5 --out FILE -- --steps 50000 --set every=2

What follows ``--`` is for the example. The curve comes out of the store: it has every episode. A
kill comes some moments after a line that the run prints, drawn by chance. Where the run is over
before the tenth, fewer are told.
"""

import argparse
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import diskreplay

ROOT = Path(__file__).resolve().parents[1]


def train(env: str, run: Path, kills: int, further: list[str]) -> list[int]:
    """Train to the end; the steps at which it was killed, also before this began."""
    noted = run / "killed.txt"
    killed = [int(line) for line in noted.read_text().split()] if noted.exists() else []
    rng, step = random.Random(len(killed)), 0
    command = [sys.executable, "-u", str(ROOT / "docs/examples/dqn.py"), env, str(run), *further]
    while True:
        lines = rng.randrange(2, 6) if len(killed) < kills else None
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as life:
            for line in life.stdout:
                print(line, end="", flush=True)
                if line.startswith("step "):
                    step = int(line.split()[1].rstrip(":").replace(",", ""))
                    lines = lines and lines - 1
                if lines == 0:
                    time.sleep(rng.random() * 3)
                    life.send_signal(signal.SIGKILL)
                    break
        if life.returncode == -signal.SIGKILL:
            with diskreplay.open(run / "replay") as replay:
                killed.append(replay.add_count)
            noted.write_text("\n".join(map(str, killed)))
            print(f"killed at step {killed[-1]:,}, saved at {step:,}", flush=True)
        elif life.returncode == 0:
            return killed
        else:
            raise SystemExit(f"the run ended with {life.returncode}")


def draw(run: Path, killed: list[int], title: str, out: Path) -> None:
    """Returns over steps, and where the run was killed."""
    with diskreplay.open(run / "replay") as replay:
        episodes = replay.episodes()
        over = ~episodes.unfinished
        ends, returns = np.cumsum(episodes.rows)[over], episodes.returns[over]
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(ends, returns, ".", color="#9db4c8", markersize=3, label="an episode")
    means = [returns[max(0, i - 19) : i + 1].mean() for i in range(len(returns))]
    axes.plot(ends, means, color="#1f4e79", label="mean of 20")
    for number, step in enumerate(killed):
        axes.axvline(step, color="#c0392b", linewidth=0.8, label="SIGKILL" if number == 0 else None)
    axes.set(xlabel="steps", ylabel="return", title=title)
    axes.legend(loc="upper left", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/dqn.png")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, further = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    killed = train(given.env, given.directory, given.kills, further)
    draw(given.directory, killed, f"{given.env}, killed {len(killed)} times", given.out)


if __name__ == "__main__":
    main()
