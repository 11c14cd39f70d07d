"""The page's actors and its learner, on one machine."""

import contextlib
from pathlib import Path

import pytest


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("ray")
    from tests.on_ray.one_machine import ray_cluster

    with ray_cluster():
        here = Path.cwd()
        yield (names := {"PATH": here / "pong", "CHECKPOINTS": here / "checkpoints"})
        assert len(names["batch"]) == 64
        assert names["batch"].observation.shape == (64, 4, 8, 8)
        with pytest.raises(Exception, match="closed"):
            names["replay"].sample()
        published = sorted(path.name for path in (here / "checkpoints").glob("*.json"))
        assert published == ["pong_shards.100.json", "pong_shards.50.json"]
