"""What `add` costs beside an open page of `diskreplay view`: processor time of the writer.

::

    python tools/bench/beside_page.py [--rounds 10] [--rows 20000]

Rounds with the page open and without take turns; of each, the processor time of the writing process
for so many rows. A page is what a browser does with one: it asks for the pulse and the figures once
a second. Prints both medians and their ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.view.shown_stores import key_of

TOKEN = "a-token-of-the-benchmark"
FRAMES = 512


class Page(threading.Thread):
    """Asks once a second, in a process of its own: `urllib` here would be the writer's time."""

    def __init__(self, port, key):
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/api/stores/{key}/"
        self.ended, self.asked, self.version = threading.Event(), 0, ""

    def ask(self, path):
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def run(self):
        while not self.ended.is_set():
            self.ask("pulse")
            self.version = self.ask(f"look?seen={self.version}")["version"]
            self.asked += 1
            self.ended.wait(1)


def watch(port, key):
    """Be a page until the end of the input; print how often was asked."""
    page = Page(int(port), key)
    page.start()
    sys.stdin.read()
    page.ended.set()
    page.join()
    print(page.asked)


def main():
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    frames = np.random.default_rng(0).integers(0, 4, (FRAMES, 84, 84), np.uint8) * 64
    with tempfile.TemporaryDirectory() as directory:
        buffer = diskreplay.PrioritizedReplayBuffer(
            f"{directory}/store", observation_space=Box(0, 255, (84, 84), "uint8"),
            action_space=Discrete(6), capacity=200_000, stack_size=4,
        )  # fmt: skip
        command = [sys.executable, "-m", "diskreplay", "view", directory, "--port", "0"]
        server = subprocess.Popen([*command, "--token", TOKEN], stdout=subprocess.PIPE, text=True)
        port = server.stdout.readline().split(":")[2].partition("/")[0]
        times, asked = {False: [], True: []}, 0
        try:
            _add(buffer, frames, options.rows)
            for number in range(2 * options.rounds):
                is_open = number % 2 == 1
                if is_open:
                    command = [sys.executable, __file__, port, key_of(buffer.path)]
                    page = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                    )
                times[is_open].append(_add(buffer, frames, options.rows))
                if is_open:
                    asked += int(page.communicate()[0])
        finally:
            server.terminate()
            server.wait()
        buffer.close()
    without, beside = (statistics.median(times[is_open]) for is_open in (False, True))
    print(f"load {os.getloadavg()[0]:.1f}; {options.rounds} rounds of {options.rows:,} rows each")
    print(f"without {1e6 * without / options.rows:.2f} us a row, beside an open page "
          f"{1e6 * beside / options.rows:.2f} us, ratio {beside / without:.3f}; "
          f"asked {asked} times")  # fmt: skip


def _add(buffer, frames, rows):
    """Processor seconds that so many rows take, all threads of this process; spread over time, as
    training does."""
    began = time.process_time()
    for row in range(rows):
        buffer.add(frames[row % FRAMES], row % 6, 0.0, row % 500 == 499, False)
        if row % 1000 == 999:
            time.sleep(0.1)
    return time.process_time() - began


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        watch(*sys.argv[1:])
    else:
        main()
