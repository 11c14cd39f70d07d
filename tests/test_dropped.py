"""A buffer that nobody has any more lets go of its store, whichever thread collects the garbage."""

import gc
import threading

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.store.maintenance import Maintenance

PATIENCE = 300  # seconds
OPTIONS = {
    "observation_space": Box(-1, 1, (3,), np.float32), "action_space": Discrete(2),
    "capacity": 1000,
}  # fmt: skip


def test_one_that_its_own_maintenance_thread_collects(tmp_path, monkeypatch):
    """It would wait for its own end; the lock stayed held, and the files mapped."""
    seal, collected = Maintenance._seal, threading.Event()

    def collecting(self, count):  # amid a pass, with the lock of the files held
        if self.is_here and not collected.is_set():
            gc.collect()
            collected.set()
        seal(self, count)

    before = set(threading.enumerate())
    buffer = diskreplay.ReplayBuffer(tmp_path / "replay", **OPTIONS)
    maintenance = buffer._rows.store.maintenance
    for i in range(50):
        buffer.add(np.zeros(3, np.float32), 0, float(i), False, False)
    cycle = [buffer]
    cycle.append(cycle)
    gc.disable()
    try:
        monkeypatch.setattr(Maintenance, "_seal", collecting)
        del buffer, cycle
        maintenance.wake()
        assert collected.wait(PATIENCE)
    finally:
        gc.enable()
    del maintenance
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with diskreplay.ReplayBuffer(tmp_path / "replay", **OPTIONS) as again:
        assert again.add_count == 50
