"""The page's actors and its learner, where threads stand in for processes; and its cluster."""

import contextlib
import threading
import types
from pathlib import Path

import pytest

CHANGED = {"import multiprocessing\n": "", "10_000": "500", "num_envs=16,  #": "num_envs=2,  #"}


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("obstore")
    ray = pytest.importorskip("ray")
    from tests.on_ray.three_nodes import three_nodes

    context = types.SimpleNamespace(Process=threading.Thread)
    stand_in = types.SimpleNamespace(get_context=lambda _method: context)
    here = Path.cwd()
    names = {
        "multiprocessing": stand_in, "PATH": here / "shards", "OTHER_PATH": here / "others",
        "URL": f"file://{here}/bucket",
    }  # fmt: skip
    with three_nodes() as address:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        try:
            yield names
        finally:
            ray.shutdown()
    assert len(names["batch"]) == 32
    assert not any(actor.is_alive() for actor in names["actors"])
    bucket = names["RemoteCheckpoints"](names["URL"] + "/parts/run-0")
    assert [one.suffix.partition("-")[0] for one in bucket.list()] == ["2400", "2401"]
    assert names["known"] == 2400
