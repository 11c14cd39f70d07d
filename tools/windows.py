"""Windows of `ReplayBuffer.sequences` against the twin made of lists, until so many agree.

    python tools/windows.py --windows 500000 [--seed 0]

Random streams (episodes of all ends, cuts, parts, frames alone, several envs, rings that wrap),
random options, all modes; each stream is read by views of a live buffer, of a reader and of a
reopened store. The first window that differs ends it with what differs.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.sequences import test_windows_against_naive

ENDS = ("inside", "shift", "pad", "cross")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--windows", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, begin = random.Random(options.seed), time.monotonic()
    streams, compared, by_ends = 0, 0, Counter()
    while compared < options.windows:
        stream, asked = stream_options(rng), [view_options(rng) for _ in range(3)]
        if streams % 4 == 3:  # all in one mode, to count what each is compared in
            for each in asked:
                each["ends"] = asked[0]["ends"]
        seed = rng.randrange(2**32)
        with tempfile.TemporaryDirectory(prefix="windows-") as directory:
            try:
                found = test_windows_against_naive.run(
                    Path(directory) / "replay", seed, asked, steps=rng.choice([40, 100, 200]),
                    most=200, **stream,
                )  # fmt: skip
            except BaseException:
                print(f"seed {seed}, {stream}, {asked}", file=sys.stderr)
                raise
        streams, compared = streams + 1, compared + found
        for each in asked:
            by_ends[each["ends"]] += found // len(asked)
    shown = ", ".join(f"{by_ends[ends]:,} {ends}" for ends in ENDS)
    print(f"{compared:,} windows of {streams:,} streams agree, about {shown}; "
          f"{time.monotonic() - begin:,.0f} s")  # fmt: skip


def stream_options(rng: random.Random) -> dict:
    return {
        "num_envs": rng.choice([1, 1, 2, 5]), "kept": rng.choice([None, 12, 20, 50]),
        "stack_size": rng.choice([1, 1, 2, 4]), "padding": rng.choice(["zero", "reset"]),
    }  # fmt: skip


def view_options(rng: random.Random) -> dict:
    return {
        "length": rng.choice([1, 2, 3, 4, 7, 10]), "burn_in": rng.choice([0, 0, 1, 2, 5]),
        "stride": rng.choice([1, 1, 2, 3, 5]), "ends": rng.choice(ENDS),
        "n_step": rng.choice([1, 1, 2, 3, 5]), "more": rng.choice([0, 0, 1, 3]),
        "arrival": rng.random() < 0.3, "finished": rng.random() < 0.2,
        "returns_to_go": rng.choice([None, 1.0, 0.7]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
