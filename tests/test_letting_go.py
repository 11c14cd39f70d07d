"""A buffer that nobody has any more lets go of its store, whichever thread collects the garbage."""

import ast
import collections
import gc
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import letting_go, prefetch_job
from diskreplay.store.maintenance import Maintenance

ROOT = Path(__file__).resolve().parent.parent
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


def call_all(buffer, batch, view):
    """Calls of each kind, and what each raised."""
    step = np.zeros(3, np.float32), 0, 1.0, False, False
    calls = {
        "add": lambda: buffer.add(*step),
        "sample": lambda: buffer.sample(4),
        "gather": lambda: buffer.gather(batch.id),
        "take": lambda: buffer.take("observation", batch.id),
        "episodes": buffer.episodes,
        "view": lambda: view.sample(2),
        "prefetch": lambda: next(buffer.prefetch(1)),
        "evict": lambda: buffer.evict([3]),
        "priorities": lambda: buffer.update_priorities(batch.id, np.ones(4)),
        "flush": buffer.flush,
        "close": buffer.close,
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = type(error).__name__
        else:
            found[name] = "nothing"
    return found


def filled(path):
    buffer = diskreplay.PrioritizedReplayBuffer(path, **OPTIONS)
    for i in range(50):
        buffer.add(np.zeros(3, np.float32), 0, float(i), False, False)
    return buffer, buffer.sample(4), buffer.sequences(5)


class Last:
    """Uses a buffer when both are garbage. It is told so behind the buffer, by their cycle."""

    def __init__(self, path, found):
        self.parts, self.found, self.myself = filled(path), found, self

    def __del__(self):
        self.found |= call_all(*self.parts)
        self.found["closed"] = self.parts[0].closed


def test_one_that_is_used_by_what_is_garbage_with_it(tmp_path):
    """It read memory that was unmapped, and said that the store was moved or is rotten."""
    found = {}
    last = Last(tmp_path / "replay", found)
    del last
    gc.collect()
    assert found.pop("closed") is True
    assert set(found.values()) == {"ClosedError"}, found
    with diskreplay.open(tmp_path / "replay") as again:
        assert again.add_count == 50


AT_EXIT = """
import atexit, sys
from tests.test_letting_go import call_all, filled
parts = []
atexit.register(lambda: print(call_all(*parts)))  # before, so it is called last
parts += filled(sys.argv[1])
"""


def test_one_that_is_used_at_the_end_of_python(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "replay")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout)
    assert set(found.values()) == {"ClosedError"}, found


def test_the_end_of_python_waits_for_a_call_of_another_thread(tmp_path):
    """Its memory was unmapped amid the call: the process died of a segmentation fault."""
    buffer, _batch, _view = filled(tmp_path / "replay")
    ending = threading.Thread(target=buffer._release)
    with buffer._lock:  # as that call has
        ending.start()
        ending.join(0.2)
        assert ending.is_alive()
        assert not buffer.closed
        buffer._rows.put_row([np.zeros(3, np.float32), 0, 1.0, False, False, 50, False])
    ending.join(PATIENCE)
    assert buffer.closed
    with diskreplay.open(tmp_path / "replay") as again:
        assert again.add_count == 51


def test_a_call_that_does_not_end_keeps_the_store_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(letting_go, "LAST_CALL_S", 0.01)
    buffer, _batch, _view = filled(tmp_path / "replay")
    ending = threading.Thread(target=buffer._release)
    with buffer._lock:
        ending.start()
        ending.join(PATIENCE)
        assert not ending.is_alive()
    assert buffer.add(np.zeros(3, np.float32), 0, 1.0, False, False).tolist() == [50]
    for store in buffer._holder:
        store.close()


def test_a_take_from_a_prefetcher_whose_threads_were_let_go(tmp_path):
    """By the `__del__` of what is garbage with it: it waited for ever."""
    buffer, _batch, _view = filled(tmp_path / "replay")
    with buffer, buffer.prefetch(2) as batches:
        next(batches)
        prefetch_job.let_end(batches._work, batches._threads, batches._over)
        with pytest.raises(diskreplay.ClosedError, match="garbage"):
            collections.deque(batches, 0)  # what is there is given first


def test_a_batch_that_no_prefetcher_draws_any_more():
    jobs, job = queue.SimpleQueue(), prefetch_job.Job(1, threading.Lock())
    jobs.put(job)
    jobs.put(None)
    prefetch_job.work_off(lambda: None, jobs, set())  # as of one that is gone
    assert isinstance(job.error, diskreplay.ClosedError)
    assert not job.drawn.locked()
    assert not job.done.locked()
