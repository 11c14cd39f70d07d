"""`diskreplay size` says what a full buffer takes: one is filled, and is so large."""

import json
import os

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from diskreplay.integrations import sizing

ROWS = 6000


class Noise(gymnasium.Env):
    """Frames whose first quarter is noise, and the rest a row that moves."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40), "uint8")
    action_space = gymnasium.spaces.Discrete(3)

    def frame(self):
        frame = np.zeros((40, 40), np.uint8)
        frame[:10] = self.np_random.integers(0, 256, (10, 40))
        frame[10 + self.taken % 30] = 200
        return frame

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self.frame(), {}

    def step(self, _action):
        self.taken += 1
        return self.frame(), 1.0, self.taken == 50, False, {}


@pytest.fixture(autouse=True)
def noise():
    gymnasium.register("Noise-v0", entry_point=Noise)
    yield
    del gymnasium.registry["Noise-v0"]


def disk(path):
    files = (os.lstat(os.path.join(base, f)) for base, _, names in os.walk(path) for f in names)
    return sum(512 * file.st_blocks for file in files)


@pytest.mark.parametrize("codec", sizing.CODECS)
def test_a_full_buffer_is_so_large(tmp_path, codec):
    found = {each.codec: each for each in sizing.sizes(Noise(), ROWS, steps=1000).codecs}
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "full", observation_space=Noise.observation_space,
        action_space=Noise.action_space, capacity=ROWS, compressor=codec,
    ) as buffer:  # fmt: skip
        env = Noise()
        sizing._play(env, [buffer], ROWS - ROWS // 51, 7)
        assert buffer.statistics().rows == pytest.approx(ROWS, rel=0.02)
    assert found[codec].disk_bytes == pytest.approx(disk(tmp_path / "full"), rel=0.15)
    assert found[codec].disk_bytes == pytest.approx(found[codec].row_bytes * ROWS, abs=1 << 20)


def said(*arguments):
    return CliRunner().invoke(app, ["size", *arguments])


def test_the_command():
    done = said("--env", "Noise-v0", "--capacity", "1e5", "--steps", "1000", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    raw, lz4, zstd = found["codecs"]
    assert raw["row_bytes"] > 1600 > lz4["row_bytes"] > 400
    assert [each["codec"] for each in (raw, lz4, zstd)] == list(sizing.CODECS)
    assert found["plain_bytes"] == pytest.approx(raw["disk_bytes"], rel=0.02)
    # Fewer rows than are recorded where nobody says how many.
    done = said("--env", "Noise-v0", "--capacity", "1000")
    assert "bytes a row" in done.output
    assert "(40, 40)" in done.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--env", "Nothing-v9"], "Nothing"),
        (["--env", "Noise-v0", "--capacity", "10"], "capacity: at least 1000 rows"),
        (["--env", "Noise-v0", "--capacity", "-5"], "capacity: at least 1000 rows"),
        (["--env", "Noise-v0", "--capacity", "nan"], "a whole number of rows expected, found nan"),
        (["--env", "Noise-v0", "--capacity", "1e400"], "of rows expected, found inf"),
        (["--env", "Noise-v0", "--capacity", "2000.5"], "of rows expected, found 2000.5"),
        (["--env", "Noise-v0", "--steps", "5"], "1000 to the capacity"),
    ],
)
def test_what_makes_no_sense(arguments, text):
    done = said(*arguments)
    assert done.exit_code == 2
    assert text in done.output
