"""The replay takes steps and gives sequences."""

import contextlib
from pathlib import Path

from tests.integrations.dreamer_steps import steps


@contextlib.contextmanager
def around(_said):
    yield (names := {"logdir": Path.cwd(), "steps": list(steps(1, 400, workers=2))})
    assert names["batch"]["image"].shape == (8, 16, 2, 2, 3)
