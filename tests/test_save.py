"""Several savers, readers and prunings in one directory, and savers that die."""

import ctypes
import errno
import itertools
import os
import subprocess
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import StorageError
from diskreplay.store import files, tempfiles
from tests import processes

ROWS_OF_ONE = 1000  # so many numbers has each writer, and a row's reward is one of them


def make(path, writer, **options):
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (64,), "uint8"), action_space=Discrete(4),
        capacity=400, compressor="lz4", segment_rows=16, **options,
    )  # fmt: skip
    buffer.writer = writer
    return buffer


def add(buffer, rows):
    for _ in range(rows):
        number = buffer.writer * ROWS_OF_ONE + buffer.add_count
        buffer.add(np.full(64, number % 251, np.uint8), number % 4, float(number), False, False)


def found_in(checkpoint):
    """Writer and rows of a checkpoint, of which every byte and row is looked at."""
    assert verify(checkpoint).findings == ()
    with diskreplay.open(checkpoint) as reader:
        first, count = reader.bounds[0].tolist()
        rewards = reader.take("reward", np.arange(first, count)).astype(int)
        writer = int(rewards[0]) // ROWS_OF_ONE
        np.testing.assert_array_equal(rewards, writer * ROWS_OF_ONE + np.arange(first, count))
        observations = reader.take("observation", np.arange(first, count))
        np.testing.assert_array_equal(observations[:, 5], rewards % 251)
    return writer, count


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["in one step", "by hand"])
def exchanging(request, monkeypatch):
    """Also on a file system that cannot swap two directories, as NFS cannot."""
    if request.param == "by hand":

        class Library:
            def __getattr__(self, name):
                return getattr(files_libc, name)

            def renameat2(self, *_arguments):
                ctypes.set_errno(errno.EINVAL)
                return -1

        files_libc = files._libc
        monkeypatch.setattr(files, "_libc", Library())


@pytest.mark.usefixtures("exchanging")
@pytest.mark.parametrize("suffixes", ["shared", "numbers"])
@pytest.mark.costly(1)
def test_many_buffers_of_one_process_save_into_one_directory(tmp_path, suffixes):
    """Told by their process number, each took what the others were building for its own leftovers:
    most saves failed, and some that did not were not whole."""
    directory, writers, saves = tmp_path / "checkpoints", 4, 12
    start = threading.Barrier(writers)
    saved = {}  # (writer, suffix) to the rows of its newest save

    def work(writer):
        with make(tmp_path / f"store{writer}", writer) as buffer:
            start.wait()
            for number in range(saves):
                add(buffer, 7)
                suffix = "abc"[number % 3] if suffixes == "shared" else writer + writers * number
                path = buffer.save(directory, suffix)
                assert path == directory / f"replay_ckpt.{suffix}"
                saved[writer, str(suffix)] = buffer.add_count

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    there = names_in(directory)
    if suffixes == "shared":
        assert there == [f"replay_ckpt.{letter}" for letter in "abc"]
    else:  # the one that is written last is kept, and the four of the highest numbers
        numbers = {int(name.removeprefix("replay_ckpt.")) for name in there}
        assert set(range(writers * saves)[-4:]) <= numbers
        assert len(numbers) <= 5
    for name in there:
        writer, rows = found_in(directory / name)
        assert saved[writer, name.removeprefix("replay_ckpt.")] == rows
        with make(None, writer) as other:
            other.load(directory, name.removeprefix("replay_ckpt."))
            assert other.add_count == rows


SAVER = """
import os, sys
from pathlib import Path
os.getpid = lambda: 1  # as in a container
from tests.test_save import add, make
root, writer = Path(sys.argv[1]), int(sys.argv[2])
with make(root / f"store{writer}", writer) as buffer:
    add(buffer, 7)
    buffer.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(15):
        for suffix in ("shared", f"of{writer}.{number % 4}"):
            path = buffer.save(root / "checkpoints", suffix)
            print(path.name, buffer.add_count, flush=True)
        add(buffer, 7)
"""


@pytest.fixture
def process():
    """Runs some code; what still runs at the end of the test is killed."""
    running = []

    def start(code, *arguments):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running.append(processes.Process(code, *arguments, **pipes))
        return running[-1]

    yield start
    for one in running:
        with one:
            one.kill()


def tell(process):
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.costly
def test_containers_that_share_a_disk_save_into_one_directory(tmp_path, process):
    """Each is process 1 in its container."""
    savers = [process(SAVER, tmp_path, writer) for writer in range(3)]
    for saver in savers:
        assert saver.stdout.readline() == "ready\n"
    for saver in savers:
        tell(saver)
    saved = {}
    for writer, saver in enumerate(savers):
        said, _ = saver.communicate()
        assert saver.returncode == 0
        for line in said.splitlines():
            name, rows = line.split()
            saved[writer, name] = int(rows)
    directory = tmp_path / "checkpoints"
    assert names_in(directory) == sorted(
        ["replay_ckpt.shared", *(f"replay_ckpt.of{w}.{n}" for w in range(3) for n in range(4))]
    )
    for name in names_in(directory):
        writer, rows = found_in(directory / name)
        assert saved[writer, name] == rows


# Stops in the middle of its saves, one sync later each time, and goes on when it is told to.
STOPPING = """
import os, sys, threading
from pathlib import Path
from diskreplay.store import files
from tests.test_save import add, make
root, number = Path(sys.argv[1]), int(sys.argv[2])
sync, calls = files.sync, None

def stopping(paths):
    global calls
    sync(paths)
    if calls is not None and threading.current_thread() is threading.main_thread():
        calls += 1
        if calls == number:
            print("stopped", flush=True)
            sys.stdin.readline()

files.sync = stopping
with make(root / "store7", 7) as buffer:
    add(buffer, 40)
    buffer.save(root / "checkpoints", 1)
    add(buffer, 5)
    while True:
        buffer.flush()
        calls = 0
        buffer.save(root / "checkpoints", 1)
        calls, seen = None, calls
        if seen < number:
            break
        number += 1
        print("saved", flush=True)
        sys.stdin.readline()
print("never stopped", flush=True)
"""


def save_beside(directory, buffer, saver):
    """What a saver that stands still is building stays as it is while another one saves."""
    hidden = {name for name in names_in(directory) if name.startswith(".")}
    buffer.save(directory, 2)
    assert hidden <= set(names_in(directory))
    return hidden


def test_what_a_living_saver_builds_is_left_alone(tmp_path, process):
    directory = tmp_path / "checkpoints"
    saver, seen = process(STOPPING, tmp_path, 1), 0
    with make(tmp_path / "store", 1) as buffer:
        add(buffer, 10)
        while (said := saver.stdout.readline()) == "stopped\n":
            seen += len(save_beside(directory, buffer, saver))
            tell(saver)
            assert saver.stdout.readline() == "saved\n"
            assert names_in(directory) == ["replay_ckpt.1", "replay_ckpt.2"]
            assert found_in(directory / "replay_ckpt.1") == (7, 45)
            assert found_in(directory / "replay_ckpt.2") == (1, 10)
            tell(saver)
    assert said == "never stopped\n"
    assert seen > 5


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_what_a_dead_saver_left_goes_with_the_next_save(tmp_path, process, stop):
    directory, saver = tmp_path / "checkpoints", process(STOPPING, tmp_path, stop)
    with make(tmp_path / "store", 1) as buffer:
        add(buffer, 10)
        assert saver.stdout.readline() == "stopped\n"
        assert save_beside(directory, buffer, saver)
        saver.kill()
        saver.wait()
        buffer.save(directory, 3)
    assert names_in(directory) == [f"replay_ckpt.{number}" for number in (1, 2, 3)]
    assert found_in(directory / "replay_ckpt.1") in [(7, 40), (7, 45)]
    assert found_in(directory / "replay_ckpt.2") == found_in(directory / "replay_ckpt.3") == (1, 10)


@pytest.mark.usefixtures("exchanging")
@pytest.mark.parametrize("at", [1, 2, 5, 9])
@pytest.mark.parametrize("what", ["replaced", "retired"])
def test_a_checkpoint_that_goes_while_it_is_opened(tmp_path, monkeypatch, what, at):
    """Files of two checkpoints were taken for those of one."""
    directory = tmp_path / "checkpoints"
    with make(tmp_path / "store", 1) as writer:
        add(writer, 100)
        path = writer.save(directory, 1)
        real, calls = files.open_plain, []

        def meanwhile(*arguments):
            if Path(arguments[0]).is_relative_to(directory) and writer not in calls:
                calls.append(arguments)
                if len(calls) == at:
                    calls.append(writer)
                    add(writer, 33)
                    for number in [1] if what == "replaced" else range(2, 9):
                        writer.save(directory, number)
            return real(*arguments)

        monkeypatch.setattr(files, "open_plain", meanwhile)
        if what == "retired":
            with pytest.raises(diskreplay.FormatError, match=r"replay_ckpt\.1"):
                diskreplay.open(path)
        else:
            with diskreplay.open(path) as reader:
                rewards = reader.take("reward", np.arange(*reader.bounds[0]))
            np.testing.assert_array_equal(rewards - 1000, np.arange(133))
        assert writer in calls


@pytest.mark.usefixtures("exchanging")
@pytest.mark.parametrize("at", [1, 2, 4, 6])
@pytest.mark.parametrize("what", ["replaced", "retired", "newest"])
@pytest.mark.costly(6)
def test_a_checkpoint_that_goes_while_it_is_loaded(tmp_path, monkeypatch, what, at):
    """Files of two checkpoints were taken for one: rows of zeros came back, without an error."""
    directory = tmp_path / "checkpoints"
    with make(tmp_path / "store", 1) as writer, make(tmp_path / "other", 2) as other:
        add(writer, 100)
        writer.save(directory, 1)
        add(other, 7)
        real, calls = files.link, []

        def meanwhile(*arguments):
            if Path(arguments[0]).is_relative_to(directory) and writer not in calls:
                calls.append(arguments)
                if len(calls) == at:
                    calls.append(writer)
                    add(writer, 33)
                    for number in [1] if what == "replaced" else range(2, 9):
                        writer.save(directory, number)
            return real(*arguments)

        monkeypatch.setattr(files, "link", meanwhile)
        if what == "retired":
            with pytest.raises(diskreplay.CheckpointNotFoundError):
                other.load(directory, 1)
            assert other.add_count == 7
        else:
            loaded = other.load(directory, None if what == "newest" else 1)
            assert loaded.number == (1 if what == "replaced" else 8)
            other.close()
            assert found_in(tmp_path / "other") == (1, 133)
        assert writer in calls


@pytest.mark.parametrize("num_envs", [1, 3])
def test_priorities_of_a_small_buffer_take_little_room(tmp_path, num_envs):
    """In chunks that are not much larger than what there is, and grow with it."""
    options = {
        "observation_space": Box(-1, 1, (1,), "float32"), "action_space": Discrete(2),
        "capacity": 900 * num_envs, "num_envs": num_envs, "alpha": 1.0, "seed": 1,
    }  # fmt: skip
    lead = () if num_envs == 1 else (num_envs,)
    for added in (10, 500, 700, 2000):
        with diskreplay.PrioritizedReplayBuffer(tmp_path / "live", **options) as buffer:
            for _ in range(added):
                no = np.zeros(lead, bool)
                buffer.add(np.zeros((*lead, 1), np.float32), no * 1, no * 1.0, no, no)
            ids = buffer.sampleable_ids()
            buffer.update_priorities(ids, 1.0 + ids % 1000)
            saved = buffer.save(tmp_path / "checkpoints", 1)
            kept = len(ids) * 8
        chunks = list((saved / "priority").glob("c.*"))
        assert 1 <= len(chunks) <= 2
        assert kept <= sum(path.stat().st_size for path in chunks) <= max(4 * kept, 2 * 4096)
        for path in (saved, tmp_path / "live"):
            with diskreplay.open(path) as reader:
                found = reader.sampleable_ids()
                assert np.isin(ids[-100:], found).all()
                given = 1.0 + found % 1000
                probability = reader.gather(found).probability
                np.testing.assert_allclose(probability, given / given.sum(), rtol=1e-12)


def test_priorities_that_did_not_change_are_shared_with_the_checkpoint_before(tmp_path):
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "live", observation_space=Box(-1, 1, (1,), "float32"),
        action_space=Discrete(2), capacity=300_000, seed=1,
    ) as buffer:  # fmt: skip
        rows = 300_000
        buffer.extend({
            "observation": np.zeros((rows, 1), np.float32), "action": np.zeros(rows, np.int64),
            "reward": np.zeros(rows, np.float32), "terminated": np.zeros(rows, np.bool_),
            "truncated": np.zeros(rows, np.bool_), "step": np.arange(rows, dtype=np.int32),
            "is_final": np.zeros(rows, np.bool_),
        })  # fmt: skip
        paths = [buffer.save(tmp_path / "checkpoints", number) for number in (1, 2)]
        buffer.update_priorities(np.array([5, 140_000]), np.array([7.0, 0.5]))
        paths.append(buffer.save(tmp_path / "checkpoints", 3))
        chunks = [sorted((path / "priority").glob("c.*")) for path in paths]
        same = [a.samefile(b) for before, now in itertools.pairwise(chunks)
                for a, b in zip(before, now, strict=True)]  # fmt: skip
        assert same == [True, True, True, False, False, True]
        before = np.fromfile(chunks[1][0], "<f8")
        now = np.fromfile(chunks[2][0], "<f8")
        assert (np.flatnonzero(before != now) == [5]).all()
        whole = chunks[2][2].read_bytes()
        with chunks[2][2].open("r+b") as file:
            file.write(b"rot")
        path = buffer.save(tmp_path / "checkpoints", 4)  # what rotted is not linked once more
        assert (path / "priority" / chunks[2][2].name).read_bytes() == whole


def test_a_save_whose_older_checkpoints_cannot_be_removed_is_one_all_the_same(
    tmp_path, monkeypatch
):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Discrete(9), action_space=Discrete(3), capacity=100
    ) as buffer:
        buffer.add(1, 1, 0.0, False, False)
        buffer.save(tmp_path / "saved", 1)

        def refuse(_paths):
            raise StorageError(errno.EIO, "refused", "there")

        with monkeypatch.context() as patched:
            patched.setattr(tempfiles, "discard", refuse)
            with pytest.warns(RuntimeWarning, match="older ones could not be removed") as warned:
                made = buffer.save(tmp_path / "saved", 2, keep=1)
        assert [each.filename for each in warned] == [__file__]
        assert [each.path for each in diskreplay.checkpoints(tmp_path / "saved")] == [
            tmp_path / "saved" / "replay_ckpt.1", made,
        ]  # fmt: skip
        buffer.save(tmp_path / "saved", 3, keep=1)  # which tries again
        assert [each.number for each in diskreplay.checkpoints(tmp_path / "saved")] == [3]


def test_an_older_checkpoint_that_cannot_be_removed_keeps_no_other_one(tmp_path, monkeypatch):
    saved, rename = tmp_path / "saved", os.rename

    def refuse(source, target, **options):
        if os.path.basename(source) == "replay_ckpt.1":  # immutable, or mounted
            raise OSError(errno.EPERM, "refused")
        rename(source, target, **options)

    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Discrete(9), action_space=Discrete(3), capacity=100
    ) as buffer:
        buffer.add(1, 1, 0.0, False, False)
        for number in (1, 2, 3):
            buffer.save(saved, number, keep=None)
        monkeypatch.setattr(os, "rename", refuse)
        with pytest.warns(RuntimeWarning, match=r"saved/replay_ckpt\.1: cannot remove it: "):
            buffer.save(saved, 4, keep=1)
        assert [each.number for each in diskreplay.checkpoints(saved)] == [1, 4]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning):
                buffer.save(saved, 5, keep=1)
        assert [each.number for each in diskreplay.checkpoints(saved)] == [1, 5]
        monkeypatch.undo()
        buffer.save(saved, 6, keep=1)
    assert [path.name for path in saved.iterdir()] == ["replay_ckpt.6"]
