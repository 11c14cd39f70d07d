"""SIGKILL at random moments: what `add` returned for is there, and nothing else is.

The writer adds rows whose content follows from their env and number, and acknowledges each call
through a pipe. The test kills it, opens the store, and compares
every row. DISKREPLAY_KILLS sets how many times (16 if it is not set).
"""

import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from tests import processes
from tests.effort import effort
from tests.naive import (
    NaiveReplayBuffer,
    assert_transitions_equal,
    check_store,
    make_frame,
)

SHAPE = (8, 8)
KILLS = int(os.environ.get("DISKREPLAY_KILLS", effort("10", "16")))
PATIENCE_S = 400.0
SHARED_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

# Every ten rows of an env hold an episode of five that is truncated without a final observation,
# one of four that terminates, and its final row.
TRUNCATED, TERMINATED, FINAL = 4, 8, 9


def place(env, row):
    return (row + 2 * env) % 10


def content(env, row):
    """What row `row` of `env` holds, whoever wrote it and whenever."""
    return {
        "observation": make_frame(SHAPE, "uint8", env * 10**9 + row),
        "action": row % 6,
        "reward": (row % 33 - 16) / 4,
        "terminated": place(env, row) == TERMINATED,
        "truncated": place(env, row) == TRUNCATED,
        "log_prob": np.float32(row % 1000 + env / 8),
    }


def rows_written(env, row):
    """By the `add` whose transition is row `row`."""
    return 2 if place(env, row) == TERMINATED else 1


def make_buffer(path, *, num_envs, compressor, capacity, prioritized):
    kind = diskreplay.PrioritizedReplayBuffer if prioritized else diskreplay.ReplayBuffer
    return kind(
        path,
        observation_space=Box(0, 255, SHAPE, "uint8"),
        action_space=Discrete(6),
        capacity=capacity,
        num_envs=num_envs,
        stack_size=3,
        update_horizon=2,
        extras={"log_prob": ((), "float32")},
        compressor=compressor,
        segment_rows=16,
        seed=0,
    )


def make_twin(num_envs, capacity):
    return NaiveReplayBuffer(
        num_envs=num_envs,
        capacity=capacity,
        stack_size=3,
        update_horizon=2,
        extras={"log_prob": ((), "float32")},
    )


# -- the writer's messages: what it has done, and what it is about to do

READY, ADDED, SAVING, SAVED, LOADING, LOADED = range(6)


def pack(kind, suffix, counts):
    return struct.pack(f"<qq{len(counts)}q", kind, suffix, *counts)


def unpack_all(data, num_envs):
    size = 8 * (2 + num_envs)
    assert len(data) % size == 0, "half a message: pipes do not do that to one this short"
    for start in range(0, len(data), size):
        kind, suffix, *counts = struct.unpack_from(f"<qq{num_envs}q", data, start)
        yield kind, suffix, counts


class Writer:
    """Adds for ever, and saves, loads and flushes if its `doing` says so."""

    def __init__(self, pipe, path, checkpoints, counts, suffixes, doing, seed, options):
        self.pipe = pipe
        self.checkpoints = checkpoints
        self.counts = counts
        self.suffixes = suffixes  # {suffix: counts} of the checkpoints there are
        self.doing = doing
        self.rng = random.Random(seed)
        self.buffer = make_buffer(path, **options)

    def tell(self, kind, suffix=0, counts=None):
        os.write(self.pipe, pack(kind, suffix, self.counts if counts is None else counts))

    def run(self):
        self.tell(READY)
        while True:
            for _ in range(self.rng.randrange(200)):
                self.add()
            if self.doing == "flush":
                self.buffer.flush()
            if self.doing in ("save", "load"):
                self.save()
            if self.doing == "load" and self.rng.random() < 0.7:
                self.load()

    def add(self):
        envs = len(self.counts)
        mask = [self.rng.random() < 0.8 for _ in range(envs)] if envs > 1 else [True]
        rows = [content(env, row) for env, row in enumerate(self.counts)]
        finals = [content(env, row + 1)["observation"] for env, row in enumerate(self.counts)]
        step = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        step["next_observation"] = np.stack(finals)
        if envs == 1:
            step = {name: values[0] for name, values in step.items()}
            if not step["terminated"]:
                del step["next_observation"]
        else:
            step["mask"] = np.asarray(mask)
            step["next_observation_mask"] = np.asarray([row["terminated"] for row in rows])
        ids = self.buffer.add(**step)
        expected = [self.counts[env] * envs + env for env in range(envs) if mask[env]]
        assert ids.tolist() == expected, (ids, expected)
        for env in range(envs):
            if mask[env]:
                self.counts[env] += rows_written(env, self.counts[env])
        self.tell(ADDED)

    def save(self):
        suffix = max(self.suffixes, default=0) + 1
        self.tell(SAVING, suffix)
        self.buffer.save(self.checkpoints, suffix)
        self.suffixes[suffix] = list(self.counts)
        self.suffixes.pop(suffix - 4, None)
        self.tell(SAVED, suffix)

    def load(self):
        suffix = self.rng.choice(sorted(self.suffixes))
        if self.suffixes[suffix] == self.counts:
            return  # before and after could not be told apart
        self.tell(LOADING, suffix, self.suffixes[suffix])
        self.buffer.load(self.checkpoints, suffix)
        self.counts = list(self.suffixes[suffix])
        self.tell(LOADED, suffix)


def write(arguments):
    """The process that is killed; its standard output is the pipe."""
    arguments["suffixes"] = {int(name): counts for name, counts in arguments["suffixes"].items()}
    os.write(1, b"!")
    Writer(1, **arguments).run()


WRITE = "import json, sys; from tests import test_kill; test_kill.write(json.loads(sys.argv[1]))"


class Child:
    """A process that writes."""

    def __init__(self, **arguments):
        self.pipe, theirs = os.pipe()
        os.set_blocking(self.pipe, False)
        self.process = processes.Process(
            WRITE, json.dumps(arguments), stdout=theirs, stderr=subprocess.PIPE
        )
        os.close(theirs)
        self.data = b""
        assert select.select([self.pipe], [], [], PATIENCE_S)[0], "the writer did not start"
        assert os.read(self.pipe, 1) == b"!", self.process.communicate()[1]

    def read(self, size):
        """Collect messages until there are so many bytes of them."""
        while len(self.data) < size:
            if not select.select([self.pipe], [], [], PATIENCE_S)[0]:
                pytest.fail("the writer does not go on")
            data = os.read(self.pipe, 1 << 20)
            self.data += data
            if not data:
                return  # it has died; `kill` says why

    def kill(self):
        """Every message it sent before it died of SIGKILL, as bytes."""
        self.process.send_signal(signal.SIGKILL)
        _, errors = self.process.communicate()
        os.set_blocking(self.pipe, True)
        while data := os.read(self.pipe, 1 << 20):
            self.data += data
        self.discard()
        assert self.process.returncode == -signal.SIGKILL, errors
        return self.data

    def discard(self):
        """At the end, or when the test fails; once is enough."""
        if self.pipe is not None:
            with self.process:
                self.process.kill()
            os.close(self.pipe)
            self.pipe = None


class Life:
    """A store, its checkpoints, and the twin that knows what must be in them."""

    def __init__(self, directory, num_envs, compressor, prioritized, seed):
        self.directory = directory
        self.live = directory / "live"
        self.path = self.live / "replay"
        self.checkpoints = directory / "checkpoints"
        self.live.mkdir(parents=True)
        self.checkpoints.mkdir()
        self.options = {
            "num_envs": num_envs,
            "compressor": compressor,
            "capacity": 300 * num_envs,
            "prioritized": prioritized,
        }
        self.twin = make_twin(num_envs, self.options["capacity"])
        self.saved = {}  # suffix -> the twin's copy
        self.rng = random.Random(seed)

    def one_round(self, doing, after_ready):
        child = Child(
            path=str(self.path),
            checkpoints=str(self.checkpoints),
            counts=self.counts(),
            suffixes={suffix: counts_of(copy) for suffix, copy in self.saved.items()},
            doing=doing,
            seed=self.rng.randrange(2**32),
            options=self.options,
        )
        try:
            if after_ready:  # some hundred calls later, in the middle of whatever comes then
                calls = self.rng.randrange(20, 700)
                child.read(len(pack(READY, 0, self.counts())) * (1 + calls))
                time.sleep(self.rng.uniform(0, 0.005))
            else:  # while it opens, and recovers
                time.sleep(self.rng.uniform(0, 0.1))
            messages = list(unpack_all(child.kill(), self.options["num_envs"]))
        finally:
            child.discard()
        self.reopen_and_check(self.follow(messages))
        return sum(kind == ADDED for kind, _, _ in messages)

    def follow(self, messages):
        """Bring the twin to the last message; return what was begun and not acknowledged."""
        about_to = None
        self.twin.cut()
        for kind, suffix, counts in messages:
            about_to = None
            if kind == ADDED:
                self.advance(counts)
            elif kind == SAVING:
                about_to = ("save", suffix, self.twin.copy())
                begun = about_to
            elif kind == SAVED:
                self.saved[suffix] = begun[2]
                self.keep_the_newest_four()
            elif kind == LOADING:
                about_to = ("load", suffix, counts)
            elif kind == LOADED:
                self.twin.restore(self.saved[suffix])
            assert about_to or counts == self.counts()
        return about_to

    def advance(self, counts):
        """Add to the twin what the writer added, up to `counts` rows an env."""
        for env, count in enumerate(counts):
            while (row := len(self.twin.history[env])) < count:
                self.add_to_the_twin(env, row)

    def add_to_the_twin(self, env, row):
        def only(value):
            return [value if other == env else None for other in range(self.twin.num_envs)]

        step = content(env, row)
        frame = step.pop("observation")
        final = None
        if step["terminated"]:
            final = only({"observation": content(env, row + 1)["observation"]})
        self.twin.add(
            only({"observation": frame}),
            **{name: only(value) for name, value in step.items()},
            next_observation=final,
            mask=only(True),
        )

    def counts(self):
        return [len(rows) for rows in self.twin.history]

    def reopen_and_check(self, about_to):
        with make_buffer(self.path, **self.options) as buffer:
            buffer.flush()
            self.settle_the_counts(about_to)
            check_store(self.path, self.twin)
            self.check_checkpoints(about_to)
            self.twin.cut()
            assert buffer.add_count == self.twin.add_count
            assert buffer.statistics().rows == self.twin.rows
            check_rows(buffer, self.twin)
            if len(buffer):
                batch = buffer.sample(16)
                assert set(batch.id.tolist()) <= set(self.twin.sampleable_ids())
            self.check_leftovers(buffer)
        check_store(self.path, self.twin)

    def settle_the_counts(self, about_to):
        """All that was acknowledged must be there, and at most the call that was under way."""
        import zarr

        found = list(zarr.open_group(self.path, mode="r").attrs["diskreplay"]["count"])
        if about_to and about_to[0] == "load" and found == about_to[2]:
            self.twin.restore(self.saved[about_to[1]])
        elif about_to:
            assert found == self.counts(), about_to
        else:
            for env, (count, acknowledged) in enumerate(zip(found, self.counts(), strict=True)):
                whole_call = acknowledged + rows_written(env, acknowledged)
                assert count in (acknowledged, whole_call), (
                    f"env {env} has {count} rows, {acknowledged} were acknowledged"
                )
        self.advance(found)

    def check_checkpoints(self, about_to):
        """Those that were acknowledged are there, and what is there is whole."""
        there = {
            int(path.name.removeprefix("replay_ckpt."))
            for path in self.checkpoints.iterdir()
            if path.name.startswith("replay_ckpt.")
        }
        if about_to and about_to[0] == "save" and about_to[1] in there:
            self.saved[about_to[1]] = about_to[2]
            for suffix in sorted(self.saved)[:-4]:
                if suffix not in there:
                    del self.saved[suffix]
        assert there >= set(sorted(self.saved)[-4:]), "a checkpoint is lost"
        assert there <= set(self.saved), "a checkpoint nobody made"
        for suffix in there:
            self.check_checkpoint(suffix)
        self.keep_the_newest_four()

    def keep_the_newest_four(self):
        self.saved = {suffix: self.saved[suffix] for suffix in sorted(self.saved)[-4:]}

    def check_checkpoint(self, suffix):
        then = make_twin(self.twin.num_envs, self.twin.capacity)
        then.restore(self.saved[suffix], resume_episodes=True)
        path = self.checkpoints / f"replay_ckpt.{suffix}"
        check_store(path, then)
        with diskreplay.open(path, mode="r") as reader:
            check_rows(reader, then)

    def check_leftovers(self, buffer):
        """Opening cleans up the live store, and saving the directory of the checkpoints."""
        assert sorted(path.name for path in self.live.iterdir()) == ["replay"]
        assert not [path for path in self.path.rglob("*") if "tmp" in path.name]
        if self.saved:
            suffix = max(self.saved) + 1
            buffer.save(self.checkpoints, suffix)
            self.saved[suffix] = self.twin.copy()
            self.keep_the_newest_four()
            names = {path.name for path in self.checkpoints.iterdir()}
            assert names == {f"replay_ckpt.{suffix}" for suffix in self.saved}


def counts_of(copy):
    return [len(rows) for rows in copy["history"]]


def check_rows(buffer, twin):
    ids = twin.sampleable_ids()
    assert len(buffer) == len(ids)
    if ids:
        assert_transitions_equal(twin, buffer.gather(np.asarray(ids, np.int64)))


@pytest.fixture
def directory():
    """In memory where the system has such a directory: a killed process loses nothing of it."""
    path = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
    yield path
    shutil.rmtree(path)


ROUNDS_OF_A_STORE = 10
DOINGS = ("add", "save", "load", "flush", "load")


@pytest.mark.timeout(600 + 10 * KILLS)
@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_killed_writer_loses_nothing(directory, compressor, num_envs):
    kills = max(KILLS // 4, 1)
    acknowledged, life = 0, None
    for kill in range(kills):
        if kill % ROUNDS_OF_A_STORE == 0:
            life = Life(
                directory / str(kill), num_envs, compressor, kill % 20 > 0, seed=kill * num_envs
            )
        while_opening = kill % 4 == 3
        acknowledged += life.one_round(DOINGS[kill % len(DOINGS)], not while_opening)
    assert acknowledged > 10 * kills


@pytest.mark.timeout(600 + 10 * KILLS)
@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_writer_killed_while_it_creates_the_store(directory, compressor):
    """There is a store then, or there is none; there is nothing that is neither."""
    for kill in range(max(KILLS // 5, 1)):
        life = Life(directory / str(kill), 2, compressor, True, seed=kill)
        life.one_round("add", after_ready=False)
