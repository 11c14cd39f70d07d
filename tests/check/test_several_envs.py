"""Files that hold rows of several envs, which drift apart: what is rotten is named env by env, and
costs its own rows alone."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify

ENVS, STEPS, KEPT, SEGMENT, BLOCK = 3, 700, 500, 64, 8
LIVE = "is_final/live"
KINDS = {
    "packed": ("lz4", (40, 40)),
    "env_major": ("raw", (40, 40)),  # 1600 bytes a row
    "time_major": ("raw", (128,)),
}
STATES = ["closed", "killed", "cut", "checkpoint"]


def recorded_by(t):
    """The first env records each step, the second every other one; the third stops early."""
    return np.array([True, t % 2 == 0, t < 150])


COUNT = np.sum([recorded_by(t) for t in range(STEPS)], axis=0)
FIRST = np.maximum(COUNT - KEPT, 0)


def frame(env, row, shape):
    size = int(np.prod(shape))
    noise = np.random.default_rng([env, row]).integers(0, 256, size // 2, np.uint8)
    return np.concatenate([noise, np.full(size - len(noise), row % 251, np.uint8)]).reshape(shape)


def expected(name, env, row, shape):
    ends = row % 10 == 9
    return {
        "observation": lambda: frame(env, row, shape), "action": lambda: row % 5,
        "reward": lambda: row + env / 4, "terminated": lambda: ends, "truncated": lambda: False,
        "step": lambda: row % 10, "is_final": lambda: False,
    }[name]()  # fmt: skip


def make(path, kind):
    compressor, shape = KINDS[kind]
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, shape, "uint8"), action_space=Discrete(5),
        capacity=KEPT * ENVS, num_envs=ENVS, compressor=compressor, segment_rows=SEGMENT, seed=0,
    )  # fmt: skip


def record(buffer, start, stop, rows, shape):
    for t in range(start, stop):
        mask = recorded_by(t)
        values = {
            name: np.stack([expected(name, env, rows[env], shape) for env in range(ENVS)])
            for name in ("observation", "action", "reward", "terminated", "truncated")
        }
        buffer.add(**values, mask=mask)
        rows += mask


def as_after_another_boot(path):
    page = path / LIVE / "state"
    data = bytearray(page.read_bytes())
    data[16:52] = b"00000000-0000-0000-0000-000000000000"
    page.write_bytes(data)


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """For each kind a directory with the store in each state."""
    made = {}
    for kind, (_compressor, shape) in KINDS.items():
        root, rows = made.setdefault(kind, tmp_path_factory.mktemp(kind)), np.zeros(ENVS, int)
        with make(root / "closed", kind) as buffer:
            record(buffer, 0, STEPS // 2, rows, shape)
            buffer.flush()
            record(buffer, STEPS // 2, STEPS - 50, rows, shape)
            buffer.save(root / "saved", 1)
            buffer.flush()
            for name in ("cut", "killed"):
                # After a power cut the record is the truth, which the flush has just written.
                if name == "killed":
                    record(buffer, STEPS - 50, STEPS, rows, shape)
                with buffer._rows.store.maintenance.lock:  # files are not renamed meanwhile
                    shutil.copytree(root / "closed", root / name)
        shutil.copytree(root / "saved" / "replay_ckpt.1", root / "checkpoint")
        as_after_another_boot(root / "cut")
    return made


class Case(NamedTuple):
    path: Path
    kind: str
    shape: tuple[int, ...]
    saved: Path

    def field(self, name):
        attributes = json.loads((self.path / "zarr.json").read_text())["attributes"]["diskreplay"]
        return next(field for field in attributes["fields"] if field["name"] == name)

    def segments(self, name):
        chunks = (self.path / name).glob("c.*")
        return sorted(chunks, key=lambda path: int(path.name.split(".")[1]))

    def chunk(self, number):
        (path,) = (self.path / "observation").glob(f"c.{number}.0*")
        return path


@pytest.fixture
def case(originals, tmp_path, request):
    kind, state = request.param
    shutil.copytree(originals[kind] / state, tmp_path / "store")
    return Case(tmp_path / "store", kind, KINDS[kind][1], originals[kind] / "checkpoint")


def every(kinds=tuple(KINDS), states=("closed",)):
    cases = [(kind, state) for kind in kinds for state in states]
    return pytest.mark.parametrize("case", cases, indirect=True, ids=map("-".join, cases))


def counts(case):
    with diskreplay.open(case.path) as reader:
        return reader.bounds[:, 1].copy()


def flip(path, *offsets):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= 4
    path.write_bytes(data)


def cells_of_raw(field, path, offset):
    """The env and the row that a byte of a raw segment belongs to."""
    row_bytes = np.dtype(field["dtype"]).itemsize * int(np.prod(field["shape"]))
    size, which = field["segment_rows"], offset // row_bytes
    by_env = row_bytes >= 1024
    env, row = divmod(which, size) if by_env else divmod(which, ENVS)[::-1]
    return env, int(path.name.split(".")[1]) * size + row


def index_of(path, segment_rows=SEGMENT):
    return np.frombuffer(path.read_bytes()[: segment_rows // BLOCK * ENVS * 16], "<i8").reshape(
        -1, 2
    )


def named_rows(findings):
    return {(env, row) for f in findings for env, low, high in f.rows for row in range(low, high)}


def check(case, lost, before):
    """The store is sound, and every row but the lost ones is as it was recorded."""
    assert [str(finding) for finding in verify(case.path).findings] == []
    with diskreplay.open(case.path, mode="a") as buffer:
        assert buffer.bounds[:, 1].tolist() == before.tolist()
        sampleable = set(buffer.sampleable_ids().tolist())
        for env in range(ENVS):
            low, high = (int(n) for n in buffer.bounds[env])
            rows = [row for row in range(low, high) if (env, row) not in lost]
            ids = np.array(rows) * ENVS + env
            for name in ("observation", "action", "reward", "terminated", "is_final"):
                found = buffer.take(name, ids)
                wanted = np.stack([expected(name, env, row, case.shape) for row in rows])
                np.testing.assert_array_equal(found, wanted, err_msg=f"{name} of env {env}")
        assert sampleable.isdisjoint(row * ENVS + env for env, row in lost)
        least = int((buffer.bounds[:, 1] - buffer.bounds[:, 0]).sum()) - len(lost)
        assert len(sampleable) >= least - 60  # around each hole, and the newest of each env
        buffer.sample(16)
    assert verify(case.path).findings == ()
    assert repair(case.path).aside is None


@every(states=STATES)
def test_nothing_is_found_in_a_sound_store(case):
    report = verify(case.path)
    assert [str(finding) for finding in report.findings] == []
    with diskreplay.open(case.path) as reader:
        assert report.rows == int((reader.bounds[:, 1] - reader.bounds[:, 0]).sum())
    if (case.path / LIVE / "state").exists():
        assert repair(case.path).aside is None


@every(states=["closed", "checkpoint"])
@pytest.mark.costly(2)
def test_every_flipped_bit_is_named_with_its_rows(case):
    rng = np.random.default_rng(7)
    with diskreplay.open(case.path) as reader:
        bounds = reader.bounds.copy()
    tried = 0
    for name in ("observation", "reward", "terminated"):
        field = case.field(name)
        for path in case.segments(name):
            size = path.stat().st_size
            for offset in (0, size - 1, int(rng.integers(size))):
                flip(path, offset)
                findings = verify(case.path).findings
                assert {finding.path for finding in findings} == {path}, (path, offset)
                rows = named_rows(findings)
                if field["compressor"] == "raw":
                    env, row = cells_of_raw(field, path, offset)
                    inside = env < ENVS and bounds[env, 0] <= row < bounds[env, 1]
                    assert not inside or (env, row) in rows
                else:
                    index = index_of(path)
                    at = np.flatnonzero((index[:, 0] <= offset) & (offset < index.sum(axis=1)))
                    start = int(path.name.split(".")[1]) * SEGMENT
                    if len(at):
                        block, env = divmod(int(at[0]), ENVS)
                        low = start + block * BLOCK
                        span = range(max(low, bounds[env, 0]), min(low + BLOCK, bounds[env, 1]))
                        assert rows == {(env, row) for row in span}
                flip(path, offset)
                tried += 1
    assert tried > 30
    assert verify(case.path).findings == ()


@every()
def test_rot_costs_the_rows_of_its_env_alone(case):
    path = case.segments("observation")[-3]
    before = counts(case)
    start = int(path.name.split(".")[1]) * SEGMENT
    if case.kind == "packed":
        flip(path, int(index_of(path)[2 * ENVS, 0]) + 50)  # block 2 of the first env
        lost = {(0, start + row) for row in range(16, 24)}
    elif case.kind == "env_major":
        flip(path, 20 * 1600 + 3)  # of the piece of 4096 bytes that row 20 begins in
        lost = {(0, start + row) for row in range(28672 // 1600, -(-32768 // 1600))}
    else:
        flip(path, 20 * 384 + 3)
        lost = {(env, row) for env, row in named_rows(verify(case.path).findings)}
        assert (0, start + 20) in lost
        assert len(lost) <= 4096 / 128 + 2
    report = repair(case.path)
    assert report.set_aside[2] == 0
    assert sum(report.set_aside) == len(lost)
    assert {(env, row) for loss in report.losses for env, low, high in loss.rows
            for row in range(low, high)} == lost  # fmt: skip
    check(case, lost, before)


@every()
def test_a_file_that_is_gone_costs_every_env_its_rows(case):
    path, before = case.segments("observation")[-2], counts(case)
    path.unlink()
    rows = int(path.name.split(".")[1]) * SEGMENT + np.arange(SEGMENT)
    lost = {(env, row) for env in range(ENVS) for row in rows if row < before[env]}
    assert named_rows(verify(case.path).findings) == lost
    repair(case.path)
    check(case, lost, before)


@every()
def test_a_checkpoint_gives_back_what_each_env_had_then(case, originals):
    path, before = case.segments("observation")[-2], counts(case)
    with diskreplay.open(case.saved) as saved:
        there = saved.bounds[:, 1].copy()
    path.unlink()
    small = case.segments("reward")[-1]
    flip(small, *range(0, small.stat().st_size, 4096))
    report = repair(case.path, sources=[case.saved])
    lost = named_rows(report.losses)
    assert all(row >= there[env] for env, row in lost)
    check(case, lost, before)


@every()
def test_rotten_small_columns_are_set_aside_env_by_env(case):
    """A reward that is not finite, in a store that was killed: nothing has a checksum there."""
    shutil.rmtree(case.path)
    shutil.copytree(case.saved.parent / "killed", case.path)
    before = counts(case)
    path = case.segments("reward")[-1]
    field = case.field("reward")
    values = np.fromfile(path, "<f4").reshape(field["segment_rows"], ENVS)
    row = int(before[1]) - 5
    values[row % field["segment_rows"], 1] = np.nan
    path.chmod(0o644)
    values.tofile(path)
    (finding,) = verify(case.path).findings
    assert (finding.kind, finding.rows) == ("rows", ((1, row, row + 1),))
    report = repair(case.path)
    assert report.set_aside == (0, 1, 0)
    check(case, {(1, row)}, before)


# -- a packed field while rows come, and after a power cut


def open_shards(case):
    """Those with blocks: the maintenance thread may have made the next one by then, or not."""
    paths = (p for p in (case.path / LIVE / "open.0").iterdir() if (index_of(p)[:, 0] >= 0).any())
    return sorted(paths, key=lambda p: int(p.name.split(".")[0]))


@every(["packed"], ["killed"])
def test_a_rotten_block_of_an_open_shard(case):
    before = counts(case)
    path = open_shards(case)[-1]
    index = index_of(path)
    entry = int(np.flatnonzero(index[:, 0] >= 0)[-1])
    flip(path, int(index[entry, 0]) + 30)
    block, env = divmod(entry, ENVS)
    start = int(path.name.split(".")[0]) * SEGMENT + block * BLOCK
    (finding,) = verify(case.path).findings
    assert (finding.path, finding.rows) == (path, ((env, start, start + BLOCK),))
    repair(case.path)
    check(case, {(env, row) for row in range(start, start + BLOCK)}, before)


@every(["packed"], ["killed"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_tail_that_is_lost_costs_what_is_in_no_block(case, how):
    before, tail = counts(case), case.path / LIVE / "tail.0"
    page = np.fromfile(case.path / LIVE / "state", "<i8", offset=4096)
    packed = page[2 * ENVS : 3 * ENVS]
    lost = {(env, row) for env in range(ENVS) for row in range(packed[env], before[env])}
    assert lost
    if how == "gone":
        tail.unlink()
    else:
        tail.write_bytes(tail.read_bytes()[:-1])
    (finding,) = verify(case.path).findings
    assert finding.path == tail
    assert named_rows([finding]) == lost
    repair(case.path)
    check(case, lost, before)


@every(["packed"], ["killed"])
def test_an_open_shard_that_is_gone(case):
    before, path = counts(case), open_shards(case)[-1]
    start = int(path.name.split(".")[0]) * SEGMENT
    index = index_of(path)
    path.unlink()
    lost = set()
    for entry in np.flatnonzero(index[:, 0] >= 0).tolist():
        block, env = divmod(entry, ENVS)
        rows = range(start + block * BLOCK, start + (block + 1) * BLOCK)
        lost |= {(env, row) for row in rows if row >= max(before[env] - KEPT, 0)}
    chunk = case.path / "observation" / f"c.{path.name}.0.0"
    chunk.unlink()  # of the last flush
    (finding,) = verify(case.path).findings
    assert (finding.path, named_rows([finding])) == (chunk, lost)
    repair(case.path)
    check(case, lost, before)


@every(["packed"], ["cut"])
def test_after_a_power_cut_a_block_may_be_in_either_file(case):
    before = counts(case)
    for path in open_shards(case):  # nothing of what was appended last reached the disk
        index = index_of(path)
        there = np.flatnonzero(index[:, 0] >= 0)
        data = bytearray(path.read_bytes())
        at, size = index[there[-1]].tolist()
        data[at : at + size] = bytes(size)
        path.write_bytes(data)
    assert [str(finding) for finding in verify(case.path).findings] == []
    shutil.rmtree(case.path / LIVE / "open.0")
    assert [str(finding) for finding in verify(case.path).findings] == []
    (case.path / LIVE / "tail.0").unlink()
    assert [str(finding) for finding in verify(case.path).findings] == []
    path = case.segments("observation")[-1]
    path.unlink()
    rows = int(path.name.split(".")[1]) * SEGMENT + np.arange(SEGMENT)
    lost = {(env, row) for env in range(ENVS) for row in rows if row < before[env]}
    assert named_rows(verify(case.path).findings) == lost
    repair(case.path)
    check(case, lost, before)


# -- a rotten index


@pytest.mark.costly(1)
@every(["packed"])
@pytest.mark.parametrize("entries", [[0], [5], [3, 4], [23]])
def test_a_block_whose_entry_is_rotten_is_found_where_that_can_be_told(case, entries):
    before, path = counts(case), case.chunk(4)
    flip(path, *(16 * entry + 1 for entry in entries))
    (finding,) = verify(case.path).findings
    assert (finding.path, finding.kind) == (path, "index")
    lost = set()
    if len(entries) > 1:  # two blocks and two envs: nothing says which is whose
        start = int(path.name.split(".")[1]) * SEGMENT
        for block, env in (divmod(entry, ENVS) for entry in entries):
            rows = range(start + block * BLOCK, start + (block + 1) * BLOCK)
            lost |= {(env, row) for row in rows if max(before[env] - KEPT, 0) <= row < before[env]}
    repair(case.path)
    check(case, lost, before)


@every(["packed"])
def test_entries_that_name_one_block_are_both_doubted(case):
    before, path = counts(case), case.chunk(4)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[0:16] = data[16 * ENVS : 16 * ENVS + 16]  # block 0 of the first env is said to be block 1
    path.write_bytes(data)
    start = int(path.name.split(".")[1]) * SEGMENT
    repair(case.path)
    check(case, {(0, start + row) for row in range(2 * BLOCK)}, before)


@every(["packed"])
def test_an_index_of_which_nothing_is_left(case):
    before, path = counts(case), case.chunk(4)
    flip(path, *range(SEGMENT // BLOCK * ENVS * 16))
    rows = int(path.name.split(".")[1]) * SEGMENT + np.arange(SEGMENT)
    lost = {(env, row) for env in range(ENVS) for row in rows
            if before[env] - KEPT <= row < before[env]}  # fmt: skip
    repair(case.path)
    check(case, lost, before)


# -- in a sentence
