"""A call amid another call of the same thread: a signal handler, a `__del__`, a callback."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import ReentryError
from diskreplay.store import format
from diskreplay.store.maintenance import Maintenance
from tests.test_interrupt import Player, interrupted, make

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def calls_of(buffer, player, directory):
    """Every call that takes the buffer's lock, by name."""
    ahead, view = buffer.prefetch(2), buffer.sequences(4, name="windows")
    windows = view.prefetch(1)
    calls = {
        "windows": lambda: view.sample(2), "anchors": view.anchors, "view": lambda: len(view),
        "sequences": lambda: buffer.sequences(4, name="windows"),
        "next windows": lambda: next(windows),
        "add": player.step, "sample": lambda: buffer.sample(4), "next": lambda: next(ahead),
        "gather": lambda: buffer.gather(buffer._rows.indexed().index.sampleable_ids()[:3]),
        "take": lambda: buffer.take("observation", buffer._rows.store.count - 2),
        "save": lambda: buffer.save(directory, 1), "load": lambda: buffer.load(directory, 0),
        "flush": buffer.flush, "len": lambda: len(buffer), "add_count": lambda: buffer.add_count,
        "bounds": lambda: buffer.bounds, "statistics": buffer.statistics,
        "sampleable_ids": buffer.sampleable_ids, "episodes": buffer.episodes,
        "prefetch": lambda: buffer.prefetch(1).close(), "tree": lambda: buffer.tree,
        "update_priorities": lambda: buffer.update_priorities(buffer._rows.store.count - 5, [2.0]),
        "end_episode": buffer.end_episode, "set_metadata": lambda: buffer.set_metadata({"a": 1}),
        "evict": lambda: buffer.evict(buffer._rows.store.first),
        "extend": lambda: player.step(call="extend"), "begins": lambda: buffer.begins,
        "add_frame": lambda: buffer.add_frame(np.zeros((4, 4), np.uint8)), "close": buffer.close,
        "clear": buffer.clear, "put_row": lambda: buffer.put_row([None] * len(buffer.fields)),
    }  # fmt: skip
    return ahead, calls


def filled(path):
    buffer = make(path / "store", "one")
    player = Player(buffer)
    for _ in range(60):
        player.step()
    buffer.sample(4)
    buffer.save(path / "checkpoints", 0)
    return buffer, player


ENDS = ("close", "load", "clear", "add_frame", "put_row")  # what comes behind it is another story
OUTER = ("add", "sample", "next", "take", "save", "flush", "update_priorities", "load", "close")


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.costly(2)
def test_a_handler_that_calls_at_any_place(tmp_path, outer):
    """It is refused or it is served, and nothing is harmed; also if its error is not caught."""
    buffer, player = filled(tmp_path)
    ahead, calls = calls_of(buffer, player, tmp_path / "checkpoints")
    inner = [name for name in calls if name not in ENDS]
    refused = served = number = 0

    def handler():
        nonlocal refused, served
        try:
            calls[inner[number % len(inner)]]()
            served += 1
        except diskreplay.ReentryError:
            refused += 1
            if number % 2:
                raise
        except diskreplay.ClosedError:
            assert outer == "close"

    stride = {"load": 397, "save": 61, "close": 29, "flush": 17}.get(outer, 1)
    while interrupted(calls[outer], number, handler):
        if outer == "close":
            buffer.close()
            buffer = player.buffer = make(tmp_path / "store", "one")
            ahead, calls = calls_of(buffer, player, tmp_path / "checkpoints")
        player.step()
        player.check()
        if outer == "next":  # a batch that was cut is no reason for the next one to hang
            next(ahead)
        number += stride
    assert refused > 5
    assert served > 0
    assert not buffer._busy - {thread.ident for thread in threading.enumerate()}
    if outer != "close":
        for _ in range(30):
            player.step()
        assert buffer._rows.store.rwlock._inside <= 2  # the prefetcher's
        player.check()
        ahead.close()
        buffer.close()
    assert [str(finding) for finding in verify(tmp_path / "store").findings] == []
    with diskreplay.open(tmp_path / "store") as reader:
        player.buffer = reader
        player.check()


def test_every_call_is_refused_amid_another_one(tmp_path):
    buffer, player = filled(tmp_path)
    with buffer:
        ahead, calls = calls_of(buffer, player, tmp_path / "checkpoints")
        next(ahead)
        tried = []

        def schedule(count):
            for name, call in {**calls, "prefetcher.close": ahead.close}.items():
                with pytest.raises(diskreplay.ReentryError, match="set a flag"):
                    call()
                tried.append(name)
            return 0.5

        buffer.sample(4, beta=schedule)
        assert len(tried) == len(calls) + 1
        assert not buffer.closed
        player.step()
        player.check()
        next(ahead)


def test_other_threads_wait_as_ever(tmp_path):
    buffer, _player = filled(tmp_path)
    with buffer:
        found, inside = [], threading.Event()

        def schedule(count):
            inside.set()
            waiting.join(0.2)
            assert waiting.is_alive()
            return 0.5

        waiting = threading.Thread(target=lambda: found.append((inside.wait(), len(buffer))[1]))
        waiting.start()
        buffer.sample(4, beta=schedule)
        waiting.join()
        assert found == [len(buffer)]


def test_no_call_begins_on_a_thread_of_the_buffers_own(tmp_path, monkeypatch):
    """A `__del__` runs on any of them, and would wait for who waits for that thread."""
    buffer, player = filled(tmp_path)
    maintain, found = Maintenance.run, []

    def maintain_and_collect(self, **options):
        if threading.current_thread() is not threading.main_thread():
            try:
                buffer.add_count  # noqa: B018
            except diskreplay.ReentryError as error:
                found.append(error)
        return maintain(self, **options)

    monkeypatch.setattr(Maintenance, "run", maintain_and_collect)
    with buffer:
        for _ in range(200):
            player.step()
        buffer.flush()
        buffer._rows.store.maintenance.wake()
        while not found:
            time.sleep(0.001)
        with buffer.prefetch(1, beta=lambda count: len(buffer)) as ahead:
            with pytest.raises(diskreplay.ReentryError):
                next(ahead)


SIGNALS = """
import random, signal, sys, time
from pathlib import Path
import numpy as np
import diskreplay
from tests.test_interrupt import Player, make
from tests.test_reentry import calls_of, filled

path, seed, catches = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "catches"
buffer, player = filled(path)
ahead, calls = calls_of(buffer, player, path / "checkpoints")
random, refused, served = random.Random(seed), 0, 0

def handler(number, frame):
    global refused, served
    name = random.choice(["add", "save", "sample", "update_priorities", "flush", "next", "take"])
    try:
        calls[name]()
        served += 1
    except diskreplay.ReentryError:
        refused += 1
        if not catches:
            raise

def unraisable(about):  # Python lets nothing out of a `__del__`, nor what the handler raises there
    if about.exc_type not in (diskreplay.ReentryError, diskreplay.ClosedError):
        sys.__unraisablehook__(about)

sys.unraisablehook = unraisable
for name in ["add", "sample", "update_priorities", "next", "take", "save", "flush", "load"]:
    calls[name]()  # kernels are compiled: what is raised amid that is not ours to mend
player.step()
player.check()
signal.signal(signal.SIGALRM, handler)
end = time.monotonic() + 1
while time.monotonic() < end or refused < 10:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3))
        for _ in range(5):
            player.step()
            batch = buffer.sample(4)
            buffer.update_priorities(batch.id, np.ones(4))
            next(ahead)
        if random.random() < 0.3:
            calls[random.choice(["save", "flush", "load"])]()
        signal.setitimer(signal.ITIMER_REAL, 0)
        player.check()
    except diskreplay.ReentryError:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
player.step()
player.check()
buffer.flush()
print(*buffer.bounds[0])
signal.setitimer(signal.ITIMER_REAL, 1e-4)
while not buffer.closed:
    try:
        buffer.close()
    except diskreplay.ReentryError:
        pass
    except diskreplay.ClosedError:  # of the handler, behind it
        pass
"""


@pytest.mark.parametrize("handler", ["catches", "lets go"])
@pytest.mark.costly(1)
def test_signals_at_random(tmp_path, handler):
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", SIGNALS, tmp_path, "3",
         handler],
        cwd=ROOT, timeout=500, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stderr
    assert run.stderr == "" or run.stderr.rstrip().endswith("open it again"), run.stderr
    first, count = map(int, run.stdout.split())
    with diskreplay.open(tmp_path / "store") as reader:
        assert reader.bounds[0, 1] >= count > first
        Player(reader).check()
    assert [str(finding) for finding in verify(tmp_path / "store").findings] == []


def test_what_a_handler_raises_amid_a_load_is_not_blamed_on_the_file(tmp_path, monkeypatch):
    buffer, _player = filled(tmp_path)
    with buffer:
        parse = format.parse_rows

        def amid(*arguments):
            buffer.flush()  # as a signal handler would, here
            return parse(*arguments)

        monkeypatch.setattr(format, "parse_rows", amid)
        with pytest.raises(ReentryError):
            buffer.load(tmp_path / "checkpoints", 0)
        monkeypatch.undo()
        buffer.load(tmp_path / "checkpoints", 0)
