"""Extras that a store gets when it is reopened: rows from before have zeros, for whoever looks."""

import errno
import os
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.store import files, zeros
from diskreplay.store.system_errors import translated
from tests.effort import LONG, effort
from tests.store.test_store_faults import FUNCTIONS

SHARED_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SPECS = {  # in the order in which they are added: raw, packed, mutable, small
    "v": ((3,), "float32"),
    "p": ((40, 40), "uint8"),
    "m": ((256,), "float16", "mutable"),
    "s": ((), "int64"),
}
NAMES = list(SPECS)


def make(path, names, num_envs=1, kept=120, new=(), kind=diskreplay.ReplayBuffer, **options):
    return kind(
        path, observation_space=Box(0, 255, (40, 40), "uint8"), action_space=Discrete(3),
        capacity=kept * num_envs, num_envs=num_envs, segment_rows=8, new_extras=new,
        extras={name: SPECS[name] for name in names}, **options,
    )  # fmt: skip


def filled(name, numbers):
    """What a field has for some numbers."""
    shape, dtype = SPECS[name][:2]
    return np.broadcast_to(
        np.reshape(numbers, (-1, *[1] * len(shape))), (len(numbers), *shape)
    ).astype(dtype)


def add(buffer, numbers, mask, ended):
    """A step of each env of `mask`, with a number in each extra."""
    envs, frames = buffer.num_envs, np.full((buffer.num_envs, 40, 40), 7, np.uint8)
    step = {
        "observation": frames, "action": np.zeros(envs, np.int64), "reward": np.ones(envs),
        "terminated": ended, "truncated": np.zeros(envs, np.bool_), "next_observation": frames,
        **{name: filled(name, numbers) for name in buffer.extras},
    }  # fmt: skip
    if envs > 1:
        buffer.add(**step, mask=mask)
    elif mask[0]:
        buffer.add(**{name: value[0] for name, value in step.items()})


def fill(buffer, steps, start=0):
    everybody = np.ones(buffer.num_envs, np.bool_)
    for step in range(start, start + steps):
        add(buffer, [step % 200 + 1] * buffer.num_envs, everybody, ~everybody)
    return buffer


def shown(buffer):
    """For each env and extra the number that each retained row has, the same all over."""
    found = []
    for env, (first, count) in enumerate(buffer.bounds.tolist()):
        ids = np.arange(first, count) * buffer.num_envs + env
        flat = {
            name: buffer.take(name, ids).reshape(len(ids), int(np.prod(SPECS[name][0])))
            for name in buffer.extras
        }
        assert all((rows == rows[:, :1]).all() for rows in flat.values()), "half a row"
        found.append({name: rows[:, 0].tolist() for name, rows in flat.items()})
    return found


class Growing(RuleBasedStateMachine):
    """A store that gets one extra after the other, and what each row has in lists."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
        self.buffer = self.reader = None
        self.saved = {}
        self.number = 0

    @initialize(num_envs=st.integers(1, 3), kept=st.sampled_from([24, 60, 200]))
    def begin(self, num_envs, kept):
        self.options, self.names = (num_envs, kept), []
        self.rows = [[] for _ in range(num_envs)]  # a number each, by name; none in a final row
        self.open()

    def open(self):
        self.buffer = make(
            self.directory / "replay", self.names, *self.options, new=self.names,
            name="replay",
        )  # fmt: skip

    def expected(self, names, rows=None):
        kept = self.options[1]
        return [
            {name: [row.get(name, 0) for row in of[max(len(of) - kept, 0) :]] for name in names}
            for of in (self.rows if rows is None else rows)
        ]

    @rule(steps=st.integers(1, 30), seed=st.integers(0, 2**32))
    def add(self, steps, seed):
        rng = random.Random(seed)
        for _ in range(steps):
            self.number = self.number % 200 + 1
            mask = np.array([len(self.rows) == 1 or rng.random() < 0.7 for _ in self.rows])
            ended = np.array([rng.random() < 0.1 for _ in self.rows])
            add(self.buffer, [self.number] * len(mask), mask, ended)
            for rows, there, final in zip(self.rows, mask, ended, strict=True):
                rows += [dict.fromkeys(self.names, self.number)] * int(there)
                rows += [{}] * int(there & final)

    @rule(killed=st.booleans())
    def grow(self, killed):
        self.buffer._release() if killed else self.buffer.close()
        self.names = NAMES[: len(self.names) + 1]
        self.open()

    @rule(seed=st.integers(0, 2**32))
    def write(self, seed):
        """Values in rows from before the field, too."""
        rng = random.Random(seed)
        places = [
            (row, env) for env, (first, count) in enumerate(self.buffer.bounds.tolist())
            for row in range(first, count)
        ]  # fmt: skip
        if "m" in self.names and places:
            some = rng.choices(places, k=5)
            ids = [row * len(self.rows) + env for row, env in some]
            ignored = self.buffer.write("m", ids, filled("m", [201] * 5))
            final = self.buffer.take("is_final", np.array(ids))
            assert ignored == final.sum()
            for (row, env), left_out in zip(some, final, strict=True):
                if not left_out:
                    self.rows[env][row] = {**self.rows[env][row], "m": 201}

    @rule()
    def save(self):
        suffix = max(self.saved, default=0) + 1
        self.buffer.save(self.directory / "saved", suffix, keep=None)
        self.saved[suffix] = [list(rows) for rows in self.rows], list(self.names)

    @rule(seed=st.integers(0, 2**32))
    def load(self, seed):
        """Also a checkpoint that is older than a field."""
        if self.saved:
            suffix = random.Random(seed).choice(sorted(self.saved))
            self.buffer.load(self.directory / "saved", suffix)
            self.rows = [list(rows) for rows in self.saved[suffix][0]]

    @rule()
    def look_at_arrays(self):
        self.buffer.flush()
        plain = self.buffer.zarr()
        for env, (first, count) in enumerate(self.buffer.bounds.tolist()):
            wanted = self.expected(self.names)[env]
            for name in self.names:
                rows = plain[name][first:count, env]
                assert [row.max() for row in rows] == wanted[name]

    @rule()
    def look_at_checkpoints(self):
        for suffix, (rows, names) in self.saved.items():
            path = self.directory / "saved" / f"replay_ckpt.{suffix}"
            assert verify(path).findings == ()
            with diskreplay.open(path) as reader:
                assert shown(reader) == self.expected(names, rows)

    @rule(anew=st.booleans())
    def read_along(self, anew):
        """A reader has the fields that there were when it was opened."""
        if anew and self.reader is not None:
            self.reader.close()
        if anew or self.reader is None:
            self.reader = diskreplay.open(self.directory / "replay")
            assert set(self.reader.extras) == set(self.names)
        assert shown(self.reader) == self.expected(self.reader.extras)

    @rule()
    def look_at_all_files(self):
        assert verify(self.directory / "replay").findings == ()

    @invariant()
    def same(self):
        if self.buffer is not None:
            assert shown(self.buffer) == self.expected(self.names)

    def teardown(self):
        for opened in (self.reader, self.buffer):
            if opened is not None:
                opened.close()
        self.look_at_checkpoints()
        shutil.rmtree(self.directory)


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(
    max_examples=effort(5, 8, 300), stateful_step_count=effort(16, 16, 40), deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


# -- all or nothing


def as_it_was_left(path, source):
    """A copy of a store whose writer was killed."""
    with fill(make(source, ["v"], 2, kind=diskreplay.PrioritizedReplayBuffer), 30) as buffer:
        buffer.update_priorities(buffer.sampleable_ids()[:4], [1.0, 2.0, 3.0, 4.0])
        buffer.flush()
        fill(buffer, 7, start=30)
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(source, path)


def grow(path):
    return make(path, NAMES, 2, new=NAMES, kind=diskreplay.PrioritizedReplayBuffer)


def check_old_or_new(path):
    """All rows are there, with or without the new fields, and adding them again works."""
    with diskreplay.open(path) as reader:
        assert set(reader.extras) in ({"v"}, set(NAMES))
        rows = [step % 200 + 1 for step in range(37)]
        for env in shown(reader):
            assert env.pop("v") == rows
            assert all(set(numbers) == {0} for numbers in env.values())
        leaves = reader.tree.get(reader.sampleable_ids()[:4])
        np.testing.assert_allclose(leaves, np.arange(1.0, 5.0) ** reader.alpha)
    was = set(reader.extras)
    with grow(path) as buffer:
        fill(buffer, 3, start=37)
        assert [env["v"][-4:] for env in shown(buffer)] == [[37, 38, 39, 40]] * 2
        assert [env["p"][-4:] for env in shown(buffer)] == [[0, 38, 39, 40]] * 2
    assert verify(path).findings == ()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return was


def in_a_child(task):
    """Run something in a process of its own; returns what that ended with, 0 after an exception,
    which is the task's to notice."""
    child = os.fork()
    if not child:
        try:
            task()
        finally:
            os._exit(0)
    return os.WEXITSTATUS(os.waitpid(child, 0)[1])


def instead(name, function):
    """Let `function` be called with the original and its arguments instead of one of `files`."""
    original = getattr(files, name)
    return lambda *arguments, **options: function(original, *arguments, **options)


def calls_of(path):
    """The functions of `files` that are called to add the fields, in their order."""
    called = path.parent / "called"

    def task():
        for name in FUNCTIONS:

            def note(original, *arguments, name=name, **options):
                with open(called, "a") as file:
                    file.write(f"{name}\n")
                return original(*arguments, **options)

            setattr(files, name, instead(name, note))
        grow(path)

    in_a_child(task)
    names = called.read_text().split()
    called.unlink()
    return names


@pytest.mark.costly
def test_killed_at_any_step_it_has_the_fields_or_not(tmp_path):
    as_it_was_left(tmp_path / "killed", tmp_path / "first")

    def task():
        left = [number]

        def die(original, *arguments, **options):
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            return original(*arguments, **options)

        for name in FUNCTIONS:
            setattr(files, name, instead(name, die))
        grow(place / "replay")

    found = []
    shutil.copytree(tmp_path / "killed", tmp_path / "whole" / "replay")
    calls = calls_of(tmp_path / "whole" / "replay")
    switch = calls.index("exchange")
    assert len(calls) > switch + 1 > 50
    for number in sorted({*range(0, len(calls), 1 if LONG else 9), switch, switch + 1}):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "killed", place / "replay")
        assert in_a_child(task) == 9
        found.append(check_old_or_new(place / "replay"))
        assert found[-1] == ({"v"} if number <= switch else set(NAMES))
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ["allocate", "write", "sync", "sync_dirs", "link", "exchange"])
@pytest.mark.costly(2)
def test_what_fails_changes_nothing(tmp_path, monkeypatch, name):
    as_it_was_left(tmp_path / "killed", tmp_path / "first")
    shutil.copytree(tmp_path / "killed", tmp_path / "whole" / "replay")
    calls = calls_of(tmp_path / "whole" / "replay").count(name)
    failed = 0
    for number in range(0, calls, 1 if LONG else max(calls // 3, 1)):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "killed", place / "replay")
        left = [number]

        def fail(original, *arguments, left=left, **options):
            left[0] -= 1
            if left[0] == -1:
                raise translated(OSError(errno.ENOSPC, "full"), "somewhere", "a file")
            return original(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(files, name, instead(name, fail))
            try:
                grow(place / "replay").close()
            except errors.DiskFullError:
                failed += 1
        check_old_or_new(place / "replay")
    assert failed or name == "link"  # then the file is copied


# -- refused


def test_a_store_without_an_extra_is_refused_unless_it_is_named(tmp_path):
    path = tmp_path / "replay"
    with fill(make(path, ["v"]), 20) as buffer:
        before = shown(buffer)
    with pytest.raises(errors.SchemaError, match=r"'s' is missing .* new_extras=\['s'\]"):
        make(path, ["v", "p", "s"], new=["p"])
    with pytest.raises(errors.SchemaError, match=r"'v' is float32 .* and missing here") as caught:
        make(path, ["p"], new=["p"])
    assert "new_extras" not in str(caught.value)  # it would not help
    with pytest.raises(errors.SchemaError, match="env"):
        make(path, ["v", "p"], num_envs=2, new=["p"])
    with diskreplay.open(path) as reader:
        assert shown(reader) == before
        assert set(reader.extras) == {"v"}
    with make(path, ["v", "s"], new=["v", "s"]) as buffer:  # one that is there is no new one
        assert shown(buffer) == [{"v": before[0]["v"], "s": [0] * 20}]
    with pytest.raises(errors.SchemaError, match="'s'"):
        make(path, ["v"])


def test_an_extra_of_another_kind_is_refused(tmp_path, monkeypatch):
    with make(tmp_path / "replay", ["v"]):
        pass
    monkeypatch.setitem(SPECS, "v", ((4,), "float32"))
    with pytest.raises(errors.SchemaError, match="of shape"):
        make(tmp_path / "replay", ["v"], new=["v"])


def test_a_checkpoint_without_an_extra_is_refused_unless_it_is_named(tmp_path):
    with fill(make(tmp_path / "replay", ["v"]), 20) as buffer:
        buffer.save(tmp_path / "saved", 1)
    with make(tmp_path / "replay", ["v", "s"], new=["s"]):
        pass
    with fill(make(tmp_path / "replay", ["v", "s"]), 10, start=20) as buffer:
        before = shown(buffer)
        with pytest.raises(errors.SchemaError, match="'s' is missing"):
            buffer.load(tmp_path / "saved", 1)
        assert shown(buffer) == before


@pytest.mark.parametrize("names", ["s", ["s", "other"], [3], 3])
def test_names_that_are_no_extras_are_refused(tmp_path, names):
    with pytest.raises(errors.ExtrasError, match="new_extras"):
        make(tmp_path / "replay", ["v", "s"], new=names)
    assert not (tmp_path / "replay").exists()


# -- what it costs


def test_zeros_of_a_raw_field_take_no_room_on_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(zeros, "is_in_memory", lambda path: False)
    kept, shape = 4096, (2048,)
    with make(tmp_path / "replay", [], kept=kept) as buffer:
        fill(buffer, 1000)
    extras = {"wide": (shape, "float32")}
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (40, 40), "uint8"),
        action_space=Discrete(3), capacity=kept, extras=extras, new_extras=extras,
    ) as buffer:  # fmt: skip
        used, segments = buffer._rows.store.disk_usage()["wide"]
        rows = buffer._rows.store.columns["wide"].field.segment_rows
        assert segments == -(-1000 // rows) > 1
        assert used < 2 * rows * 4 * shape[0]  # the one that rows come to, and metadata
