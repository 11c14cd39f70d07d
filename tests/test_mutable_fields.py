"""Values that are written again: what a batch, a reader, a checkpoint and a reopened store have."""

import os
import random
import shutil
import signal
import struct
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import diskreplay
from diskreplay import errors
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.store import commit_page, files
from tests import processes
from tests.effort import effort

ROOT = Path(__file__).resolve().parent.parent
SHARED_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
PATIENCE_S = 400.0
H, SMALL = (256,), ()  # rows of 512 bytes and of 8: segments of 8 and of 512 rows of one env
EXTRAS = {"h": (H, "float16", "mutable"), "z": (SMALL, "int64", "mutable"), "n": ((), "int64")}


def make(path, num_envs=1, kept=120, kind=diskreplay.ReplayBuffer, **options):
    return kind(
        path, observation_space=Box(0, 255, (2,), "uint8"), action_space=Discrete(3),
        capacity=None if kept is None else kept * num_envs, num_envs=num_envs, extras=EXTRAS,
        segment_rows=8, **options,
    )  # fmt: skip


def full(values):
    """What field ``h`` has for some values."""
    return np.repeat(np.asarray(values, np.float16)[:, None], H[0], axis=1)


def add(buffer, rng, mask=None, ends=0.1):
    """A step of each env, 0 in its mutable fields; returns for each whether it got a final row."""
    envs = buffer.num_envs
    mask = np.ones(envs, np.bool_) if mask is None else np.asarray(mask)
    ended = np.array([rng.random() < ends for _ in range(envs)])
    count = buffer.bounds[:, 1]
    step = {
        "observation": np.zeros((envs, 2), np.uint8), "action": np.zeros(envs, np.int64),
        "reward": np.ones(envs, np.float32), "terminated": ended,
        "truncated": np.zeros(envs, np.bool_), "next_observation": np.zeros((envs, 2), np.uint8),
        "h": np.zeros((envs, *H), np.float16), "z": np.zeros(envs, np.int64), "n": count * envs,
    }  # fmt: skip
    if envs == 1:
        if mask[0]:
            buffer.add(**{name: value[0] for name, value in step.items()})
    else:
        buffer.add(**step, mask=mask)
    return ended & mask


def play(buffer, steps, seed=0):
    rng = random.Random(seed)
    for _ in range(steps):
        add(buffer, rng)
    return buffer


def shown(buffer):
    """For each env the retained rows' ``(h, z)``; a row of ``h`` is one number all over."""
    found = []
    for env, (first, count) in enumerate(buffer.bounds.tolist()):
        ids = np.arange(first, count) * buffer.num_envs + env
        h, z = buffer.take(["h", "z"], ids)
        assert (h == h[:, :1]).all(), "a row is half written"
        found.append(list(zip(h[:, 0].tolist(), z.tolist(), strict=True)))
    return found


class Written(RuleBasedStateMachine):
    """A buffer, and what each row has in lists."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
        self.buffer = self.reader = None
        self.saved = {}
        self.suffix = 0

    @initialize(num_envs=st.integers(1, 3), kept=st.sampled_from([24, 60, 200]))
    def begin(self, num_envs, kept):
        self.options = num_envs, kept
        self.buffer = make(self.directory / "replay", num_envs, kept)
        self.values = [[] for _ in range(num_envs)]  # of each row: [h, z], or None of a final row

    @property
    def expected(self):
        kept = self.options[1]
        return [[(row or (0, 0)) for row in rows[max(len(rows) - kept, 0) :]]
                for rows in self.values]  # fmt: skip

    @rule(steps=st.integers(1, 30), seed=st.integers(0, 2**32))
    def add(self, steps, seed):
        rng = random.Random(seed)
        for _ in range(steps):
            mask = [self.options[0] == 1 or rng.random() < 0.7 for _ in self.values]
            ended = add(self.buffer, rng, mask)
            for rows, there, final in zip(self.values, mask, ended, strict=True):
                rows += [(0, 0)] * there + [None] * int(final)

    @rule(seed=st.integers(0, 2**32), field=st.sampled_from("hz"), size=st.integers(0, 40))
    def write(self, seed, field, size):
        rng, envs = random.Random(seed), self.options[0]
        known = [
            row * envs + env for env, rows in enumerate(self.values) for row in range(len(rows))
        ]
        ids = [rng.choice(known) for _ in range(size * bool(known))]
        values = [rng.randrange(1, 1000) for _ in ids]
        given = full(values) if field == "h" else np.array(values, np.int64)
        ignored = self.buffer.write(field, ids, given)
        wanted = 0
        for id_, value in zip(ids, values, strict=True):
            row, env = divmod(id_, envs)
            rows = self.values[env]
            if row < len(rows) - self.options[1] or rows[row] is None:
                wanted += 1
            else:
                rows[row] = (value, rows[row][1]) if field == "h" else (rows[row][0], value)
        assert ignored == wanted

    @rule()
    def save(self):
        self.suffix += 1
        self.buffer.save(self.directory / "saved", self.suffix)
        self.saved[self.suffix] = [list(rows) for rows in self.values], self.expected
        for old in sorted(self.saved)[:-4]:
            del self.saved[old]

    @rule(seed=st.integers(0, 2**32))
    def load(self, seed):
        if self.saved:
            suffix = random.Random(seed).choice(sorted(self.saved))
            self.buffer.load(self.directory / "saved", suffix)
            self.values = [list(rows) for rows in self.saved[suffix][0]]

    @rule()
    def reopen(self):
        self.buffer.close()
        assert verify(self.directory / "replay").findings == ()
        self.buffer = make(self.directory / "replay", *self.options)

    @rule()
    def let_go(self):
        """As a process that is killed."""
        self.buffer._release()
        self.buffer = make(self.directory / "replay", *self.options)

    @rule()
    def flush(self):
        self.buffer.flush()
        plain = self.buffer.zarr()
        for env, (first, count) in enumerate(self.buffer.bounds.tolist()):
            assert plain["z"][first:count, env].tolist() == [z for _h, z in self.expected[env]]

    @rule()
    def keep(self):
        self.buffer._rows.store.maintenance.run(durable=True)

    @rule()
    def look_at_checkpoints(self):
        for suffix, (_values, expected) in self.saved.items():
            path = self.directory / "saved" / f"replay_ckpt.{suffix}"
            assert verify(path).findings == ()
            with diskreplay.open(path) as reader:
                assert shown(reader) == expected

    @rule()
    def read_along(self):
        if self.reader is None:
            self.reader = diskreplay.open(self.directory / "replay")
        assert shown(self.reader) == self.expected

    @invariant()
    def same(self):
        if self.buffer is not None:
            assert shown(self.buffer) == self.expected

    @rule()
    def look_at_all_files(self):
        assert verify(self.directory / "replay").findings == ()

    def teardown(self):
        for opened in (self.reader, self.buffer):
            if opened is not None:
                opened.close()
        if self.saved:
            self.look_at_checkpoints()
        shutil.rmtree(self.directory)


TestWritten = Written.TestCase
TestWritten.settings = settings(
    max_examples=effort(12, 25, 500), stateful_step_count=effort(20, 20, 40), deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


# -- refused


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (("n", [0], [1]), errors.InvalidInputError, "no mutable extra; there are: h, z"),
        (("reward", [0], [1.0]), errors.InvalidInputError, "no mutable extra"),
        (("nothing", [0], [1]), errors.InvalidInputError, "no mutable extra"),
        ((["z"], [0], [1]), errors.InvalidInputError, "no mutable extra"),
        (("z", [0, 30], [1, 1]), errors.UnknownIdError, "id 30 at position 1"),
        (("z", [0, -1], [1, 1]), errors.UnknownIdError, "id -1 at position 1"),
        (("z", [0, 1], [1]), errors.ShapeError, "(2,) expected"),
        (("h", [0], np.zeros((1, 3), np.float16)), errors.ShapeError, "(1, 256) expected"),
        (("z", [[0]], [[1]]), errors.ShapeError, "one axis"),
        (("z", [0.5], [1]), errors.DtypeError, "integers"),
        (("z", [0], [1.5]), errors.DtypeError, "cannot be cast"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(tmp_path, call, error, said):
    with play(make(tmp_path / "replay"), 20) as buffer:
        buffer.write("z", [0, 1], [7, 8])
        before = shown(buffer)
        with pytest.raises(error, match=said.replace("(", r"\(").replace(")", r"\)")):
            buffer.write(*call)
        assert shown(buffer) == before


def test_readers_closed_buffers_and_others_schemas_are_refused(tmp_path):
    with play(make(tmp_path / "replay"), 20) as buffer:
        with diskreplay.open(buffer.path) as reader, pytest.raises(errors.ReadOnlyError):
            reader.write("z", [0], [1])
    with pytest.raises(errors.ClosedError):
        buffer.write("z", [0], [1])
    plain = {name: spec[:2] for name, spec in EXTRAS.items()}
    with mock.patch.dict(EXTRAS, plain), pytest.raises(errors.SchemaError, match="mutable float16"):
        make(tmp_path / "replay")


@pytest.mark.parametrize(
    ("spec", "compressor", "error"),
    [
        (((), "int64", "changing"), "auto", errors.ExtrasError),
        (((), "int64", "mutable", "mutable"), "auto", errors.ExtrasError),
        (((512,), "uint8", "mutable"), {"h": "lz4"}, errors.InvalidInputError),
    ],
)
def test_bad_declarations(tmp_path, spec, compressor, error):
    with mock.patch.dict(EXTRAS, {"h": spec}), pytest.raises(error):
        make(tmp_path / "replay", compressor=compressor)
    assert not (tmp_path / "replay" / "zarr.json").exists()


def test_a_compressor_for_all_leaves_mutable_fields_raw(tmp_path):
    with mock.patch.dict(EXTRAS, {"h": ((4096,), "uint8", "mutable")}):
        with make(tmp_path / "replay", compressor="lz4") as buffer:
            fields = {name: c.field for name, c in buffer._rows.store.columns.items()}
            assert fields["h"].compressor == "raw"
            assert fields["observation"].compressor == "lz4"
            assert buffer.extras["h"] == ((4096,), np.uint8, "mutable")
        with diskreplay.open(buffer.path) as reader:
            assert reader.extras["h"] == ((4096,), np.uint8, "mutable")


# -- what is shared


def test_a_checkpoint_shares_files_and_no_byte_of_it_changes(tmp_path):
    with play(make(tmp_path / "replay"), 100) as buffer:
        buffer.write("h", range(0, 60, 7), full(range(1, 10)))
        path = buffer.save(tmp_path / "saved", 1)
        shared = [p for p in (path / "h").glob("c.*") if p.stat().st_nlink == 2]
        assert len(shared) >= 10
        before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
        ids = buffer.sampleable_ids()
        buffer.write("h", ids, full(np.arange(len(ids)) + 500))
        buffer.write("h", ids, full(np.arange(len(ids)) + 600))
        buffer.flush()
        assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
        assert all(p.stat().st_nlink == 1 for p in shared)


def test_what_did_not_change_is_shared_by_all_checkpoints(tmp_path):
    with play(make(tmp_path / "replay"), 100) as buffer:
        buffer.save(tmp_path / "saved", 1)
        buffer.write("h", [3], full([5]))
        path = buffer.save(tmp_path / "saved", 2)
        links = {p.name: p.stat().st_nlink for p in (path / "h").glob("c.*")}
        assert links["c.0.0.0"] == 2, "of this checkpoint and the store"
        assert [links[f"c.{n}.0.0"] for n in range(1, 10)] == [3] * 9


def test_a_full_disk_changes_nothing(tmp_path):
    with play(make(tmp_path / "replay"), 100) as buffer:
        buffer.save(tmp_path / "saved", 1)
        before, allocate, calls = shown(buffer), files.allocate, []

        def full_disk(path, size):
            calls.append(path)
            if len(calls) == 3:
                raise errors.DiskFullError(28, "no space left", str(path))
            return allocate(path, size)

        ids = [0, 10, 20, 30, 40]
        with mock.patch.object(files, "allocate", full_disk):
            with pytest.raises(errors.DiskFullError):
                buffer.write("h", ids, full([9] * 5))
        assert len(calls) == 3
        assert shown(buffer) == before
        assert not list((buffer.path / "is_final" / "live").glob("unsealed*"))
        final = buffer.take("is_final", ids)
        assert buffer.write("h", ids, full([9] * 5)) == final.sum()
        assert (buffer.take("h", ids)[~final] == 9).all()


def test_stores_without_mutable_fields_are_as_they_were(tmp_path):
    plain = {name: spec[:2] for name, spec in EXTRAS.items()}
    with mock.patch.dict(EXTRAS, plain), play(make(tmp_path / "replay"), 20) as buffer:
        columns = buffer._rows.store.columns.values()
        assert not any("mutable" in column.field.describe() for column in columns)
        with pytest.raises(errors.InvalidInputError, match="there are: none at all"):
            buffer.write("h", [0], full([1]))


# -- who sees what


def test_sequences_have_the_states_that_were_written_for_them(tmp_path):
    with play(make(tmp_path / "replay", kept=300), 200) as buffer:
        view = buffer.sequences(4, burn_in=2, ends="shift", state=("h", "z"), seed=1)
        batch = view.sample(8)
        learnt = batch.transition
        ids = batch.id[learnt]
        assert view.write("h", ids, full(ids % 1000 + 1)) == 0
        assert view.write("z", ids, ids + 5) == 0
        again = view.gather(batch.anchor)
        for number in range(8):
            first = again.id[number][again.observed[number]][0]
            assert again.z[number] == first + 5
            assert (again.h[number] == np.float16(first % 1000 + 1)).all()


def test_batches_that_were_drawn_before_have_the_old_values(tmp_path):
    """Whatever the threads do: it follows from the order of the calls."""
    for attempt in range(10):
        with play(make(tmp_path / f"replay-{attempt}", kept=300), 200) as buffer:
            ids = buffer.sampleable_ids()
            view = buffer.sequences(3, seed=attempt, state="z")
            with buffer.prefetch(2, 16) as transitions, view.prefetch(2, 16) as windows:
                seen = []
                for number in range(1, 8):
                    seen.append((set(next(transitions).z.tolist()), set(next(windows).z.tolist())))
                    buffer.write("z", ids, np.full(len(ids), number))
        # With two under way, the batch of take t was drawn at take t - 2, the first three at once.
        drawn = [max(0, number - 2) for number in range(7)]
        assert seen == [({number}, {number}) for number in drawn]


def learn(buffer, view, rounds):
    """A run that writes back what it samples; returns all that it saw."""
    seen = []
    with view.prefetch(2, 4) as ahead:
        for number in range(rounds):
            batch = next(ahead)
            seen.append((batch.anchor.tolist(), batch.z.tolist(), batch.h[:, 0].tolist()))
            ids = batch.id[batch.transition]
            view.write("z", ids, ids * 10 + number)
            view.write("h", ids, full(ids % 100 + number))
            view.update_priorities(batch.anchor, 1.0 + batch.z % 7)
    return seen


def test_a_run_that_writes_goes_on_bit_for_bit(tmp_path):
    options = {"ends": "shift", "prioritized": True, "state": ("h", "z"), "name": "runs"}
    with play(make(tmp_path / "replay", kept=300, seed=3), 200) as buffer:
        view = buffer.sequences(4, seed=1, **options)
        learn(buffer, view, 10)
        buffer.save(tmp_path / "saved", 1)
        wanted = learn(buffer, view, 10)
    with make(tmp_path / "other", kept=300) as buffer:
        buffer.load(tmp_path / "saved")
        assert learn(buffer, buffer.sequences(4, **options), 10) == wanted


def test_a_reader_that_does_not_follow_sees_values_but_no_rows(tmp_path):
    with play(make(tmp_path / "replay"), 50) as buffer:
        with diskreplay.open(buffer.path, follow=False) as reader:
            buffer.write("z", [3], [9])
            play(buffer, 5)
            assert reader.take("z", [3]) == [9]
            assert reader.bounds[0, 1] < buffer.bounds[0, 1]


# -- after a power cut, and rot


def test_after_a_power_cut_rows_are_there_with_old_or_new_values(tmp_path):
    buffer = play(make(tmp_path / "replay"), 100)
    buffer.save(tmp_path / "saved", 1)
    buffer.flush()
    ids = buffer.sampleable_ids()
    buffer.write("z", ids, np.full(len(ids), 4))
    rows = buffer.bounds
    buffer._release()
    with mock.patch.object(
        commit_page, "boot_id", return_value="0" * 8 + "-0000" * 3 + "-" + "0" * 12
    ):
        with make(tmp_path / "replay") as buffer:
            assert buffer.bounds.tolist() == rows.tolist()
            assert {z for _h, z in shown(buffer)[0]} <= {0, 4}
            buffer.write("z", ids, np.full(len(ids), 5))
            assert set(buffer.take("z", ids).tolist()) == {5}
        assert verify(buffer.path).findings == ()


def test_rot_in_a_closed_store_is_seen_and_repaired(tmp_path):
    with play(make(tmp_path / "replay"), 100) as buffer:
        buffer.write("h", [20], full([5]))
        buffer.save(tmp_path / "saved", 1)
    path = buffer.path / "h" / buffer._rows.store.columns["h"].field.chunk_key(2, 0)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    path.unlink()  # the checkpoint keeps its own
    data[0] ^= 1
    path.write_bytes(data)
    assert [finding.field for finding in verify(buffer.path).findings] == ["h"]
    repair(buffer.path, sources=[tmp_path / "saved" / "replay_ckpt.1"])
    assert verify(buffer.path).findings == ()
    with diskreplay.open(buffer.path) as reader:
        assert (reader.take("h", [20]) == 5).all()


# -- killed

ADDED, WRITING, WRITTEN, SAVED = range(4)
ROWS = 64


def write_for_ever(path, pipe):
    """The process that is killed: write `v` gives the rows ``i`` with ``(i + v) % 3 == 0`` the
    value `v`, and says so before and after."""
    buffer = make(Path(path) / "replay", kept=400)
    version = int(max([0, *(z for z in buffer.take("z", np.arange(buffer.bounds[0, 1])))]))
    if not buffer.bounds[0, 1]:
        rng = random.Random(1)
        for _ in range(ROWS):
            add(buffer, rng, ends=0)
    os.write(pipe, struct.pack("<qq", ADDED, version))
    while True:
        version += 1
        ids = np.array([i for i in range(ROWS) if (i + version) % 3 == 0])
        os.write(pipe, struct.pack("<qq", WRITING, version))
        buffer.write("z", ids, np.full(len(ids), version))
        buffer.write("h", ids, full(np.full(len(ids), version % 1000)))
        os.write(pipe, struct.pack("<qq", WRITTEN, version))
        if version % 5 == 0:
            buffer.save(Path(path) / "saved", version)
            os.write(pipe, struct.pack("<qq", SAVED, version))


def after(version):
    """What each row has when a write is done."""
    return np.array([max([0, *(v for v in range(version - 2, version + 1)
                               if v > 0 and (i + v) % 3 == 0)]) for i in range(ROWS)])  # fmt: skip


@pytest.mark.costly
def test_a_kill_leaves_each_row_as_it_was_or_as_it_was_to_be(tmp_path):
    rng = random.Random(int.from_bytes(os.urandom(4)))
    hits = 0
    for _ in range(int(os.environ.get("DISKREPLAY_KILLS", "12"))):
        ours, theirs = os.pipe()
        code = "import sys; from tests.test_mutable_fields import write_for_ever\n"
        child = processes.Process(code + "write_for_ever(sys.argv[1], 1)", tmp_path, stdout=theirs)
        os.close(theirs)
        done = pending = -1
        saved = 0
        with os.fdopen(ours, "rb") as pipe:
            for _message in range(rng.randrange(2, 80)):
                kind, version = struct.unpack("<qq", pipe.read(16))
                saved = version if kind == SAVED else saved
                done, pending = (done, version) if kind == WRITING else (version, version)
            os.kill(child.pid, signal.SIGKILL)
            child.wait(PATIENCE_S)
            rest = pipe.read()
        for kind, version in struct.iter_unpack("<qq", rest[: len(rest) // 16 * 16]):
            saved = version if kind == SAVED else saved
            done, pending = (done, version) if kind == WRITING else (version, version)
        hits += pending != done
        assert verify(tmp_path / "replay").findings == ()
        with make(tmp_path / "replay", kept=400) as buffer:
            h, z = buffer.take(["h", "z"], np.arange(ROWS))
            old, new = after(done), after(pending)
            assert ((z == old) | (z == new)).all()
            words = h.view(np.uint16)
            allowed = [full(v % 1000).view(np.uint16) for v in (old, new)]
            assert ((words == allowed[0]) | (words == allowed[1])).all()
        if saved:
            path = tmp_path / "saved" / f"replay_ckpt.{saved}"
            assert verify(path).findings == ()
            with diskreplay.open(path) as reader:
                assert reader.take("z", np.arange(ROWS)).tolist() == after(saved).tolist()
        with make(tmp_path / "replay", kept=400) as buffer:  # whole again, for the next one
            ids = np.arange(ROWS)
            buffer.write("z", ids, new)
            buffer.write("h", ids, full(new % 1000))
