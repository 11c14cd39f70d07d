"""Print the table of docs/sizing.md: what a million rows take, from samples that are recorded now.

::

    python tools/sizing_table.py [STEPS]

Needs the extras `atari` and `mujoco`. Some seconds of a processor for each line.
"""

import sys

from diskreplay.inspection.humanize import size_text
from diskreplay.integrations import sizing

CAPACITY = 1_000_000
ENVS = (
    "ALE/Pong-v5", "ALE/Breakout-v5", "ALE/Seaquest-v5", "ALE/SpaceInvaders-v5", "ALE/MsPacman-v5",
    "CartPole-v1", "Pendulum-v1", "HalfCheetah-v5",
)  # fmt: skip


def main(steps: int) -> None:
    print("| environment | one frame | plain arrays | raw | lz4 | zstd |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ENVS:
        found = sizing.sizes(sizing.make(name), CAPACITY, steps=steps)
        space = found.observation_space
        frame = f"{' x '.join(map(str, space.shape))} {space.dtype}"
        sizes = " | ".join(size_text(each.disk_bytes) for each in found.codecs)
        print(f"| {name} | {frame} | {size_text(found.plain_bytes)} | {sizes} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000)
