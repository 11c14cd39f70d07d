"""A store that is read while all may happen to it."""

import errno
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import StoreMovedError
from diskreplay.inspection.episodes import episodes_of
from diskreplay.view import store_reader
from diskreplay.view.shown_stores import key_of
from diskreplay.view.store_reader import StoreReader
from tests import processes
from tests.pictures.making import record
from tests.processes import Process

FRAME = np.zeros((12, 16), np.uint8)


def add(buffer, rows):
    for _ in range(rows):
        buffer.add(FRAME, 0, 1.0, False, False)


def again(readers):
    """What there is to show is looked for again at once."""
    readers.stores._looked = float("-inf")


def test_what_is_shown_is_what_is_in_the_store(tmp_path, readers):
    episodes = record(tmp_path / "store", (5, 9, 7))
    reader = readers.of(key_of(tmp_path / "store"))
    pulse, look = reader.pulse(), reader.look()
    assert (pulse["state"], pulse["rows"], pulse["transitions"]) == ("closed", 24, 21)
    assert [count for _time, count in pulse["counts"]] == [24]
    assert look.episodes.returns.tolist() == [sum(e.rewards) for e in episodes]
    document = look.document
    assert document["episodes"]["whole"] == 3
    assert document["priorities"]["drawable"] == 21
    titles = [c["title"] for s in document["sections"] for c in s["charts"]]
    assert "Priority by age" in titles
    ids = np.array([0, 5, 6, 23])  # 5 and 23 are final rows
    assert np.isnan(look.priority(ids)).tolist() == [False, True, False, True]


def test_it_moves_while_a_writer_adds(tmp_path, readers, monkeypatch):
    monkeypatch.setattr(store_reader, "_BETWEEN", 0.0)
    record(tmp_path / "store", (5,))
    reader = readers.of(key_of(tmp_path / "store"))
    with diskreplay.open(tmp_path / "store", mode="a") as writer:
        assert reader.pulse()["state"] == "idle"
        reader.look()  # says that it is not closed
        seen = []
        for _ in range(3):
            add(writer, 10)
            pulse = reader.pulse(seen[-1][0] if seen else 0.0)
            assert pulse["state"] == "writing"
            seen += pulse["counts"]
        assert [count for _time, count in seen] == [6, 16, 26, 36]
    assert reader.pulse()["state"] == "closed"  # without another look


def test_a_new_look_is_taken_when_something_changed(tmp_path, readers, monkeypatch):
    monkeypatch.setattr(store_reader, "_LEAST_AGE", 0.0)
    monkeypatch.setattr(store_reader, "_SHARE", 0)
    record(tmp_path / "store", (5,))
    reader = readers.of(key_of(tmp_path / "store"))
    reader.pulse()
    first = reader.look()
    for _ in range(3):
        assert reader.look() is first  # nothing changed
    with diskreplay.open(tmp_path / "store", mode="a") as writer:
        add(writer, 10)
        reader.pulse()
        reader.look()
        with reader._looking:  # the thread that looks has it until it is done
            pass
        assert reader.look().episodes.rows.tolist() == [5, 10]


def test_a_writer_that_is_killed(tmp_path, readers):
    record(tmp_path / "store", (5,))
    code = """
import sys, numpy as np, diskreplay
buffer = diskreplay.open(sys.argv[1], mode="a")
for _ in range(20):
    buffer.add(np.zeros((12, 16), np.uint8), 0, 1.0, False, False)
print("ready", flush=True)
sys.stdin.read()
"""
    reader = readers.of(key_of(tmp_path / "store"))
    process = Process(code, tmp_path / "store", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == "ready\n"
        pulse = reader.pulse()
        assert (pulse["state"], pulse["pid"], pulse["rows"]) == ("idle", process.pid, 26)
        process.kill()
    pulse = reader.pulse()  # nobody has looked at it, as on the page of all stores
    assert (pulse["state"], pulse["rows"]) == ("abandoned", 26)


def test_a_store_that_goes_and_comes_back(tmp_path, readers):
    path = tmp_path / "store"
    record(path, (5,))
    reader = readers.of(key_of(path))
    reader.pulse()
    look = reader.look()
    path.rename(tmp_path.parent / f"{tmp_path.name}-away")
    pulse = reader.pulse()
    assert pulse["state"] == "gone"
    assert "no store" in pulse["message"]
    assert reader.look() is look  # what was seen last
    again(readers)
    assert key_of(path) in [store.key for store in readers.stores.all()]
    (tmp_path.parent / f"{tmp_path.name}-away").rename(path)
    pulse = reader.pulse()
    assert (pulse["state"], pulse["rows"]) == ("closed", 6)
    assert [e["text"] for e in pulse["events"]] == [
        "the store is gone from its path", "a store is at the path again",
    ]  # fmt: skip


CUT = """
import os, sys
from pathlib import Path
from diskreplay.errors import CorruptSegmentError
from diskreplay.view.shown_stores import ShownStore
from diskreplay.view.store_reader import StoreReader

path = Path(sys.argv[1])
reader = StoreReader(ShownStore("key", path, False))

def read():
    with reader.reading() as buffer:
        first, stop = buffer.bounds[0]
        for name in buffer.fields:
            buffer.take(name, range(first, stop))

for file in sorted(each for each in path.rglob("*") if "c." in each.name):
    read()
    assert reader.pulse()["state"] == "closed"
    whole = file.read_bytes()
    os.truncate(file, 0)  # as `cp` does with a file that it writes over
    pulse = reader.pulse()
    assert pulse["state"] == "unreadable", (file, pulse)
    assert str(file) in pulse["message"], (file, pulse)
    try:
        read()
        raise AssertionError(file)
    except CorruptSegmentError:
        pass
    file.write_bytes(whole)
    print(file.relative_to(path), flush=True)
read()
reader.close()
"""


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_file_that_is_cut_while_it_is_mapped(tmp_path, compressor):
    """To read it would end the process by SIGBUS."""
    path = tmp_path / "store"
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (12, 16), np.uint8), action_space=Discrete(3),
        capacity=400, segment_rows=64, compressor=compressor,
    ) as buffer:  # fmt: skip
        add(buffer, 200)
    ended = processes.run(CUT, path)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) == 10


def test_another_store_in_its_place(tmp_path, readers):
    path = tmp_path / "store"
    record(path, (5,))
    record(tmp_path / "other", (9, 9))
    reader = readers.of(key_of(path))
    assert reader.pulse()["rows"] == 6
    shutil.rmtree(path)
    (tmp_path / "other").rename(path)
    pulse = reader.pulse()
    assert pulse["rows"] == 20
    assert [e["text"] for e in pulse["events"]] == ["another store is in its place"]
    with reader.reading() as buffer:
        assert len(episodes_of(buffer)) == 2


def test_a_store_that_is_loaded_over(tmp_path, readers):
    path = tmp_path / "store"
    record(path, (5,))
    reader = readers.of(key_of(path))
    with diskreplay.open(path, mode="a") as writer:
        writer.save(tmp_path / "saved", 1)
        add(writer, 30)
        assert reader.pulse()["rows"] == 36
        writer.load(tmp_path / "saved", 1)
        pulse = reader.pulse()
        assert pulse["rows"] == 6
        add(writer, 3)
        assert reader.pulse()["rows"] == 9


def test_pulses_beside_each_other_are_noted_in_their_order(tmp_path, readers, monkeypatch):
    """A pulse that has read its count, and is held up, does not look like rows that went back to
    one which comes meanwhile and sees more rows."""
    path = tmp_path / "store"
    record(path, (5,))
    reader = readers.of(key_of(path))
    reader.pulse()
    held, go_on, original = threading.Event(), threading.Event(), StoreReader._note

    def note(self, *counted):
        if threading.current_thread() is first:
            held.set()
            assert go_on.wait(120)
        original(self, *counted)

    monkeypatch.setattr(StoreReader, "_note", note)
    monkeypatch.setattr(store_reader, "_BETWEEN", 0.0)
    first, second = threading.Thread(target=reader.pulse), threading.Thread(target=reader.pulse)
    with diskreplay.open(path, mode="a") as writer:
        first.start()
        assert held.wait(120)
        add(writer, 10)
        second.start()
        second.join(0.5)  # it waits for the first one, or has noted its own count by now
        go_on.set()
        first.join()
        second.join()
    pulse = reader.pulse()
    assert pulse["events"] == []
    assert [count for _time, count in pulse["counts"]] == [6, 6, 16, 16]


def test_counts_of_other_rows_are_told_apart(tmp_path, readers, monkeypatch):
    """The page leaves out those of before ``begun``, and no others: a store that is gone for a
    while has the same rows when it comes back."""
    path = tmp_path / "store"
    record(path, (5,))
    reader = readers.of(key_of(path))
    before = reader.pulse()
    assert before["begun"] == 0
    path.rename(tmp_path / "away")
    assert reader.pulse()["begun"] == 0
    (tmp_path / "away").rename(path)
    assert reader.pulse()["begun"] == 0
    inode = os.stat(path)
    with diskreplay.open(path, mode="a") as writer:
        writer.save(tmp_path / "saved", 1)
        add(writer, 30)
        reader.pulse()
        # The new directory may have the number of one that is gone.
        monkeypatch.setattr(reader, "_there", lambda: (inode.st_dev, inode.st_ino))
        writer.load(tmp_path / "saved", 1)
        pulse = reader.pulse()
        assert pulse["events"][-1]["text"] == "rows went back from 36 to 6"
        assert [count for _time, count in pulse["counts"]] == [6]
        assert pulse["begun"] == pulse["counts"][0][0] > before["time"]
        writer.load(tmp_path / "saved", 1)
        pulse = reader.pulse()
        assert pulse["events"][-1]["text"] == "it was loaded over or cleared"
        assert len(pulse["events"]) == 4


def test_a_store_that_is_loaded_amid_a_pulse(tmp_path, readers, monkeypatch):
    """It is not called unreadable: another one is in its place by then."""
    path = tmp_path / "store"
    record(path, (5,))
    reader, moves = readers.of(key_of(path)), [StoreMovedError(errno.ESTALE, "moved", str(path))]
    opened = StoreReader._opened

    def moved_once(self):
        if moves:
            raise moves.pop()
        return opened(self)

    monkeypatch.setattr(StoreReader, "_opened", moved_once)
    pulse = reader.pulse()
    assert (pulse["state"], pulse["message"], pulse["rows"]) == ("closed", None, 6)
