"""The page of some stores on a thread of its own, and a store whose frames say where they are."""

import contextlib
import threading
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from tests.view.browsing import complaints, until

OPTIONS = {
    "observation_space": Dict(
        front=Box(0, 255, (24, 32), "uint8"), side=Box(0, 255, (20, 20, 3), "uint8"),
        joints=Box(-1, 1, (3,)),
    ),
    "action_space": Discrete(3), "capacity": 5000, "stack_size": 3,
    "extras": {"value": ((), "float32")}, "seed": 0,
}  # fmt: skip


def add(buffer, episode, length):
    """An episode whose frames say where they are: each is of one tone."""
    for step in range(length):
        seen = {
            "front": np.full((24, 32), 20 + 2 * step, np.uint8),
            "side": np.full((20, 20, 3), 250 - 2 * step, np.uint8),
            "joints": np.full(3, np.sin(step / 5), np.float32),
        }
        buffer.add(seen, step % 3, float(step % 10 == 9), step + 1 == length, False, seen,
                   value=np.float32(episode))  # fmt: skip


@contextlib.contextmanager
def served(*paths):
    """The address of the page of some stores, which a thread serves until it is told to end."""
    import uvicorn

    from diskreplay.view.server import serve

    ready, found, servers = threading.Event(), [], []
    original = uvicorn.Server.run

    def run(server, sockets=None):
        servers.append(server)
        original(server, sockets)

    def note(address):
        found.append(address.url)
        ready.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "run", run)
        thread = threading.Thread(target=serve, args=(paths, note), kwargs={"port": 0})
        thread.start()
        assert ready.wait(120)
        try:
            yield found[0]
        finally:
            while not servers:
                time.sleep(0.01)
            servers[0].should_exit = True
            thread.join(120)


def go(driver, url, place=""):
    driver.get("about:blank")
    complaints(driver)  # those of the page before, whose server may have ended
    driver.get(url)
    driver.execute_script("location.hash = arguments[0]", place)


def at(driver, step):
    until(driver, "document.querySelector('.now dd')?.textContent === arguments[0]", str(step))
