"""A buffer that nobody has any more lets go of its store, whichever thread collects the garbage."""

import gc
import threading
import time

import numpy as np
import pytest
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


def drawn_from(buffer, kind):
    """What a prefetcher may be asked of."""
    if kind == "buffer":
        return buffer
    if kind == "view":
        return buffer.sequences(2, name="own")
    union = diskreplay.ReplayUnion([buffer])
    return union if kind == "union" else union.sequences(2, name="all")


@pytest.mark.parametrize("kind", ["buffer", "view", "union", "union of views"])
def test_one_with_a_prefetcher_that_nobody_closed(tmp_path, kind):
    """Its threads kept it, and the store locked, as long as the process was there."""
    before = set(threading.enumerate())
    buffer = diskreplay.ReplayBuffer(tmp_path / "replay", **OPTIONS)
    for i in range(50):
        buffer.add(np.zeros(3, np.float32), 0, float(i), False, False)
    next(drawn_from(buffer, kind).prefetch(2, 8, threads=2))
    threads = [each for each in set(threading.enumerate()) - before if "prefetch" in each.name]
    assert len(threads) == 2
    del buffer
    until = time.monotonic() + PATIENCE
    while any(each.is_alive() for each in threads):  # they may be amid a batch
        assert time.monotonic() < until
        gc.collect()
        time.sleep(0.01)
    with diskreplay.ReplayBuffer(tmp_path / "replay", **OPTIONS) as again:
        assert again.add_count == 50
