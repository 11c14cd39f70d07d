"""What `verify` names in a damaged store, that it names nothing in a sound one, and what `repair`
makes of it: a store that is sound, with rows that are those recorded or not there."""

import errno
import itertools
import json
import os
import shutil
import tarfile
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check import row_check
from diskreplay.check.repair import repair
from diskreplay.check.row_check import set_aside
from diskreplay.check.verify import verify
from diskreplay.errors import DiskReplayError, FormatError, LockedError
from diskreplay.store import files
from tests import processes
from tests.effort import effort

LIVE = "is_final/live"
MANIFEST = "is_final/saved/manifest.json"
NEARLY = 2190  # of the transitions in the store below: what little damage must leave
GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden"
STEPS, CAPACITY, STACK, SEGMENT = 3000, 2400, 3, 512
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
EXTRAS = {"hidden": ((64,), "float64")}  # 512 bytes a row: raw segments of 512 rows, sealed


def make(path, **options):
    options = {
        "observation_space": Box(0, 255, (40, 32), "uint8"), "action_space": Discrete(5),
        "capacity": CAPACITY, "stack_size": STACK, "update_horizon": 2, "extras": EXTRAS,
        "segment_rows": SEGMENT, "seed": 3, **options,
    }  # fmt: skip
    return diskreplay.PrioritizedReplayBuffer(path, **options)


def columns(start, stop, ends):
    """Rows of one env in which episodes end after `ends` steps, by turns in each way: terminated
    with a final row, truncated with a final row, terminated without one, cut."""
    rows = np.arange(start, stop)
    lengths = [ends + 1, ends + 1, ends, ends]
    period = sum(lengths)
    starts = np.cumsum([0, *lengths])
    which = np.searchsorted(starts, rows % period, side="right") - 1
    step = rows % period - starts[which]
    final = (which < 2) & (step == ends)
    last = step == ends - 1
    noise = np.random.default_rng(start).integers(0, 256, (len(rows), 40, 32), np.uint8)
    noise[:, ::2] = 7
    noise[:, 0, :8] = rows[:, None].view(np.uint8)
    return {
        "observation": noise,
        "action": np.where(final, 0, rows % 5),
        "reward": np.where(final, 0, rows % 97).astype(np.float32),
        "terminated": last & np.isin(which, (0, 2)),
        "truncated": last & (which == 1),
        "step": step.astype(np.int32),
        "is_final": final,
        "hidden": np.where(final[:, None], 0, rows[:, None] + np.arange(64) / 64),
    }


NAMES = (
    "observation", "action", "reward", "next_observation", "discount", "terminated", "truncated",
    "steps", "hidden",
)  # fmt: skip


def transitions(buffer):
    """The ids of all transitions that can be sampled, and what a batch holds of each."""
    ids = np.sort(buffer.sampleable_ids())
    batch = buffer.gather(ids)
    return {"id": ids} | {name: getattr(batch, name).copy() for name in NAMES}


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A closed store that has wrapped, a checkpoint of it on its own inodes, and its content."""
    root = tmp_path_factory.mktemp("original")
    with make(root / "store") as buffer:
        for start in range(0, STEPS, 500):
            buffer.extend(columns(start, start + 500, 13))
        buffer.update_priorities(buffer.sample(200).id, np.linspace(0.1, 9, 200))
        buffer.save(root / "saved", 5)
        recorded = transitions(buffer)
    shutil.copytree(root / "saved" / "replay_ckpt.5", root / "copy")
    return root, recorded


@pytest.fixture
def store(original, tmp_path):
    shutil.copytree(original[0] / "store", tmp_path / "store")
    return tmp_path / "store"


def files_of(root):
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name != "lock")


def flip(path, offset, bit=0):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def named(report):
    return {finding.path for finding in report.findings}


def check_mended(store, recorded, *, least=0):
    """Sound; all that can be sampled is as recorded; it goes on; a second repair does nothing."""
    assert verify(store).findings == ()
    with diskreplay.open(store, mode="a") as buffer:
        found = transitions(buffer)
        ids = found["id"]
        assert len(ids) >= least
        where = np.searchsorted(recorded["id"], ids)
        np.testing.assert_array_equal(recorded["id"][where], ids)
        for name in NAMES:
            value, expected = found[name], recorded[name][where]
            if name == "next_observation":  # of a terminated row: its final row may be lost, and
                lost = found["terminated"] & ~value.any(axis=(1, 2, 3))  # nothing depends on it
                value, expected = value[~lost], expected[~lost]
            np.testing.assert_array_equal(value, expected, err_msg=name)
        if len(ids):
            assert np.isin(buffer.sample(64).id, ids).all()
        count = int(buffer.bounds[0, 1])
        for i in range(20):
            buffer.add(np.full((40, 32), i, np.uint8), 1, 1.0, False, False, hidden=np.ones(64))
        batch = buffer.gather([count + 10])
        assert batch.observation[0, :, 0, 0].tolist() == [8, 9, 10]
    assert verify(store).findings == ()
    before = {p: p.stat().st_ino for p in files_of(store)}
    report = repair(store)
    assert report.clean
    assert report.aside is None
    assert {p: p.stat().st_ino for p in files_of(store)} == before
    return ids


def segments(store, name, *, env=0):
    return sorted((store / name).glob("c.*"), key=lambda path: int(path.name.split(".")[1]))


# -- sound stores


def test_a_closed_store_is_sound(original):
    report = verify(original[0] / "store")
    assert report.findings == ()
    assert (report.kind, report.rows) == ("store", CAPACITY)
    assert report.blocks >= CAPACITY // 8
    assert report.files == len(files_of(original[0] / "store")) + 1  # the lock
    assert report.clean


def test_a_checkpoint_is_sound(original):
    report = verify(original[0] / "copy")
    assert report.findings == ()
    assert report.kind == "checkpoint"


@pytest.mark.parametrize("case", sorted(p.name for p in GOLDEN.glob("*.tar.gz")))
def test_golden_stores_are_sound(tmp_path, case):
    with tarfile.open(GOLDEN / case) as tar:
        tar.extractall(tmp_path, filter="data")
    groups = [p.parent for p in tmp_path.rglob("zarr.json")]
    roots = [p for p in groups if (p / LIVE / "state").exists() or (p / MANIFEST).exists()]
    assert len(roots) >= 2
    for root in roots:
        assert verify(root).findings == ()


def test_what_is_no_store(tmp_path):
    with pytest.raises(FormatError, match="no such directory"):
        verify(tmp_path / "nothing")
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(FormatError, match="not a diskreplay store"):
        verify(tmp_path)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "end", "flush", "save", "reopen", "load", "drop"]),
        st.integers(1, 40),
    ),
    max_size=14,
)


@settings(max_examples=8, deadline=None)
@given(OPERATIONS, st.sampled_from([1, 3]), st.sampled_from(["raw", "lz4"]), st.integers(0, 99))
def test_nothing_is_found_after_random_operations(
    tmp_path_factory, operations, envs, compressor, seed
):
    root = tmp_path_factory.mktemp("random")
    rng = np.random.default_rng(seed)

    def opened():
        return diskreplay.ReplayBuffer(
            root / "store", observation_space=Box(0, 255, (64,), "uint8"), num_envs=envs,
            action_space=Discrete(3), capacity=90, stack_size=2, compressor=compressor,
            segment_rows=16, seed=1,
        )  # fmt: skip

    buffer = opened()
    for what, number in operations:
        if what == "add":
            for _ in range(number):
                lead = () if envs == 1 else (envs,)
                observation = rng.integers(0, 256, (*lead, 64), np.uint8)
                ends = rng.random((2, *lead)) < 0.1
                buffer.add(
                    observation, np.ones(lead, np.int64), np.ones(lead, np.float32), *ends,
                    observation if rng.random() < 0.7 else None,
                )  # fmt: skip
        elif what == "end":
            buffer.end_episode()
        elif what == "flush":
            buffer.flush()
        elif what == "save":
            buffer.save(root / "saved", number)
        elif what == "load" and (root / "saved").exists():
            buffer.load(root / "saved", resume_episodes=bool(number % 2))
        elif what == "reopen":
            buffer.close()
            assert verify(root / "store").findings == ()
            buffer = opened()
        elif what == "drop":  # as a kill leaves it
            del buffer
            assert verify(root / "store").findings == ()
            buffer = opened()
        assert verify(root / "store").findings == ()
    buffer.close()
    assert verify(root / "store").findings == ()
    for saved in (root / "saved").glob("*"):
        assert verify(saved).findings == ()


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_nothing_is_found_while_a_writer_works(tmp_path, compressor):
    stop, failed = threading.Event(), []
    buffer = make(tmp_path / "store", capacity=300, segment_rows=16, compressor=compressor)

    def write():
        start = 0
        while not stop.is_set():
            buffer.extend(columns(start, start + 56, 13))
            start += 56
            if start % 560 == 0:
                buffer.flush()
        buffer.close()

    def checked():
        try:
            write()
        except BaseException as error:
            failed.append(error)
            raise

    writer = threading.Thread(target=checked)
    writer.start()
    try:
        for _ in range(effort(25, 60)):
            assert verify(tmp_path / "store").findings == ()
    finally:
        stop.set()
        writer.join()
    assert not failed
    assert verify(tmp_path / "store").findings == ()


# -- rot


def is_sealed(path):
    return not path.stat().st_mode & 0o200


def test_every_flipped_bit_of_a_checksummed_file_is_named(store):
    rng = np.random.default_rng(1)
    tried = 0
    for path in files_of(store):
        if path.name == "zarr.json" or not is_sealed(path):
            continue
        size = path.stat().st_size
        offsets = (0, size - 1, size - 5, *rng.integers(0, size, 2).tolist())
        for offset in offsets[:: effort(2, 1)]:
            bit = int(rng.integers(8))
            flip(path, offset, bit)
            assert named(verify(store)) == {path}, (path, offset)
            flip(path, offset, bit)
            tried += 1
    assert tried > effort(30, 50)
    assert verify(store).findings == ()


def test_every_flipped_bit_of_a_checkpoint_is_named(original, tmp_path):
    shutil.copytree(original[0] / "copy", tmp_path / "saved")
    rng = np.random.default_rng(2)
    root = tmp_path / "saved"
    for path in files_of(root):
        size = path.stat().st_size
        for offset in (size - 1, int(rng.integers(size))):
            flip(path, offset, 1)
            try:
                found = named(verify(root))
            except FormatError:  # without the group's attributes nothing else can be read
                found = {root / "zarr.json"}
            # A list whose own bytes are rotten accuses a file that it lists.
            assert found if path.name == "manifest.json" else path in found, (path, offset)
            flip(path, offset, 1)
    assert verify(root).findings == ()


def test_a_field_s_metadata_are_checked_to_the_letter(store):
    rng = np.random.default_rng(3)
    for path in sorted(store.glob("*/zarr.json")):
        if path.parent.name == "priority":
            continue
        data = path.read_bytes()
        for offset in rng.integers(0, len(data), effort(2, 3)).tolist():
            if data[offset : offset + 1].isspace():
                continue
            flip(path, offset)
            report = verify(store)
            # A seal's digits are held against the file that they seal.
            named_ = path in named(report) or any(f.kind == "checksum" for f in report.findings)
            if not named_:  # but of a file that is gone, since its rows have left
                harmed = json.loads(path.read_bytes())["attributes"]["diskreplay"]["seals"]
                sealed = json.loads(data)["attributes"]["diskreplay"]["seals"]
                ((key, _seal),) = [
                    item for item in sealed.items() if harmed.get(item[0]) != item[1]
                ]
                assert key == "0/0", (path, offset, data[offset - 30 : offset + 9])
            path.write_bytes(data)


def test_the_state_page_is_checked(store):
    path = store / LIVE / "state"
    offsets = {
        "magic": 0, "closed": 9, "the boot": 30, "padding": 200, "the count": 4096 + 1,
        "finals": 4096 + 8 + 4, "packed": 4096 + 16 + 5, "behind": 8191,
    }  # fmt: skip
    for what, offset in offsets.items():
        flip(path, offset, 7)
        assert path in named(verify(store)), what
        flip(path, offset, 7)


class Open(NamedTuple):
    """A field's segment that is not full: its file, its first row, and bytes of rows that count."""

    path: Path
    first: int
    row_bytes: int
    size: int


def open_segments(store):
    """Of each field."""
    attributes = json.loads((store / "zarr.json").read_text())["attributes"]["diskreplay"]
    found = {}
    for field in attributes["fields"]:
        row_bytes = np.dtype(field["dtype"]).itemsize * int(np.prod(field["shape"]))
        used = attributes["count"][0] % field["segment_rows"]
        path = segments(store, field["name"])[-1]
        first = attributes["count"][0] - used
        found[field["name"]] = Open(path, first, row_bytes, used * row_bytes)
    return found


def left_open(store):
    """As a writer leaves it that is killed: no file that it may write to has a checksum."""
    code = """
import os, sys, numpy as np, diskreplay
buffer = diskreplay.open(sys.argv[1], mode="a")
os.kill(os.getpid(), 9)
"""
    processes.run(code, store)


def test_every_flipped_bit_of_a_segment_that_is_not_full_is_named(store):
    rng = np.random.default_rng(5)
    found = open_segments(store)
    for name, (path, first, row_bytes, size) in found.items():
        size = path.stat().st_size if name == "observation" else size
        for offset in (0, size - 1, int(rng.integers(size)), path.stat().st_size - 1):
            bit = int(rng.integers(8))
            flip(path, offset, bit)
            findings = verify(store).findings
            assert {finding.path for finding in findings} == {path}, (path, offset)
            if name != "observation" and offset < size:
                (found,) = [f for f in findings if f.kind == "checksum"]
                ((env, start, stop),) = found.rows
                row = max(first + offset // row_bytes, STEPS - CAPACITY)  # the oldest retained one
                assert env == 0
                assert start <= row < stop
                assert stop - start <= 4096 // row_bytes
            flip(path, offset, bit)
    assert verify(store).findings == ()


def test_closing_says_of_every_file_what_it_is(store):
    for path in store.glob("*/zarr.json"):
        document = json.loads(path.read_text())
        if document["attributes"].get("diskreplay", {}).pop("open", None):
            whole = path.read_bytes()
            path.write_text(json.dumps(document))
            assert named(verify(store)) == {path}
            path.write_bytes(whole)
    assert verify(store).findings == ()


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "buffer.flush(); os._exit(0)"])
def test_checksums_of_open_segments_count_while_the_store_is_closed_only(store, ending):
    code = f"""
import os, sys, numpy as np, diskreplay
buffer = diskreplay.open(sys.argv[1], mode="a")
for i in range(5):
    buffer.add(np.zeros((40, 32), np.uint8), 1, 1.0, False, False, hidden=np.ones(64))
{ending}
"""
    processes.run(code, store)
    assert verify(store).findings == ()
    with diskreplay.open(store, mode="a") as buffer:
        count = int(buffer.bounds[0, 1])
        assert verify(store).findings == ()
        buffer.add(np.zeros((40, 32), np.uint8), 1, 1.0, False, False, hidden=np.ones(64))
        assert verify(store).findings == ()
    assert verify(store).findings == ()
    path = open_segments(store)["hidden"].path
    flip(path, count % SEGMENT * 512)
    (finding,) = verify(store).findings
    assert finding.path == path
    assert finding.rows[0].stop == count + 1


def test_checksums_of_open_segments_that_make_no_sense(store):
    path = store / "reward" / "zarr.json"
    whole = json.loads(path.read_text())
    ((key, right),) = whole["attributes"]["diskreplay"]["open"].items()
    for entries in ({}, {key: []}, {key: [1, 2, 3, 4]}, {key: ["x"]}, {key: None}, [], None,
                    {key: [*right[:2], "AAAA"]}, {"x/0": right}, {"9/0": right},
                    {key: right, "9/1": right}, {key: right, "9/0": [1]}):  # fmt: skip
        document = json.loads(json.dumps(whole))
        document["attributes"]["diskreplay"]["open"] = entries
        path.write_text(json.dumps(document))
        assert named(verify(store)) == {path}, entries
    path.write_text(json.dumps(whole))
    assert verify(store).findings == ()


def test_impossible_rows_without_a_checksum_are_named(store):
    left_open(store)
    assert verify(store).findings == ()

    def damage(name, row, value):
        path = segments(store, name)[-1]
        dtype = {"step": "<i4", "reward": "<f4"}.get(name, "u1")
        values = np.fromfile(path, dtype)
        values[row % len(values)] = value
        path.chmod(0o644)
        path.write_bytes(values.tobytes())

    with diskreplay.open(store) as buffer:
        count = int(buffer.bounds[0, 1])
        tail = range(count - 40, count)
        columns_ = {n: buffer.take(n, np.array(tail)) for n in ("step", "is_final", "terminated")}
    plain = next(r for i, r in enumerate(tail) if 2 < columns_["step"][i] < 9)
    final = next(r for i, r in enumerate(tail) if columns_["is_final"][i])
    cases = [
        ("step", plain, 99), ("step", plain, -1), ("step", plain, 0), ("reward", plain, np.nan),
        ("reward", plain, np.inf), ("terminated", plain, 1), ("truncated", plain, 1),
        ("terminated", plain, 2), ("is_final", plain, 1), ("is_final", final, 0),
        ("reward", final, 5),
    ]  # fmt: skip
    for name, row, value in cases:
        path = segments(store, name)[-1]
        kept = path.read_bytes()
        damage(name, row, value)
        findings = verify(store).findings
        assert any(
            f.kind == "rows" and any(low <= row < high for _env, low, high in f.rows)
            for f in findings
        ), (name, row, value)
        path.write_bytes(kept)


def test_truncated_and_removed_files_are_named(store):
    for number, path in enumerate(files_of(store)):
        if path == store / "zarr.json":
            continue
        data, mode = path.read_bytes(), path.stat().st_mode
        # A tail may be missing: its shard has the same rows, and a store that was loaded has none.
        cuts = (None, len(data) - 1)[path.is_relative_to(store / LIVE) :]
        for cut in effort([cuts[number % len(cuts)]], cuts):
            path.unlink(missing_ok=True)
            if cut is not None:
                path.write_bytes(data[:cut])
            assert path in named(verify(store)), (path, cut)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    assert verify(store).findings == ()


def test_swapped_and_doubled_segments_are_named(store):
    for name in ("observation", "hidden"):
        one, other = segments(store, name)[1:3]
        kept = one.read_bytes(), other.read_bytes()
        for path, data in zip((one, other), reversed(kept), strict=True):
            path.chmod(0o644)
            path.write_bytes(data)
        assert named(verify(store)) == {one, other}
        one.write_bytes(kept[0])
        other.write_bytes(kept[0])
        assert named(verify(store)) == {other}
        other.write_bytes(kept[1])
    assert verify(store).findings == ()


def test_swapped_segments_of_equal_blocks_are_named_and_go_back(tmp_path):
    """Frames that do not compress make blocks of one length: only what is in them differs."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (48, 40, 32), np.uint8)
    with make(tmp_path / "store", segment_rows=16, extras=None) as buffer:
        for frame in frames:
            buffer.add(frame, 0, 0.0, False, False)
        buffer.save(tmp_path, 1)
    one, two = (tmp_path / "store" / "observation" / f"c.{n}.0.0.0" for n in (0, 1))
    assert one.stat().st_size == two.stat().st_size
    for root in (tmp_path / "store", tmp_path / "replay_ckpt.1"):
        paths = [root / "observation" / f"c.{n}.0.0.0" for n in (0, 1)]
        paths[0].rename(tmp_path / "aside")
        paths[1].rename(paths[0])
        (tmp_path / "aside").rename(paths[1])
        report = verify(root)
        assert {f.path for f in report.findings} == set(paths)
        assert {f.kind for f in report.findings} == {"checksum"}
    repair(tmp_path / "store")
    assert verify(tmp_path / "store").clean
    with diskreplay.open(tmp_path / "store") as reader:
        np.testing.assert_array_equal(reader.take("observation", np.arange(48)), frames)


def test_orphans_are_named(store):
    newest = segments(store, "observation")[-1]
    orphans = [
        store / "observation" / "c.99.0.0.0", store / LIVE / "x.1",
        store / "reward" / "0.tmp", store / "notes.txt",
    ]  # fmt: skip
    for path in orphans:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(newest, path)
    report = verify(store)
    assert named(report) == set(orphans)
    assert {f.kind for f in report.findings} == {"orphan"}


def test_links_and_devices_are_refused(store, tmp_path):
    path = segments(store, "observation")[1]
    data = path.read_bytes()
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(data)
    path.symlink_to(tmp_path / "elsewhere")
    assert named(verify(store)) == {path}
    path.unlink()
    os.mkfifo(path)
    assert named(verify(store)) == {path}


def test_priorities_are_checked(store):
    path = store / "priority" / "c.0.0"
    data = np.fromfile(path)
    where = np.flatnonzero(~np.isnan(data))[0]
    for value in (-1.0, np.inf):
        broken = data.copy()
        broken[where] = value
        broken.tofile(path)
        assert [f.kind for f in verify(store).findings] == ["priority"]
    data[-1] = 1.0
    data.tofile(path)
    assert [f.kind for f in verify(store).findings] == ["priority"]


# -- repair


def test_a_sound_store_is_left_alone(store, original):
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in files_of(store)}
    assert repair(store).aside is None
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in files_of(store)} == before


def test_a_checkpoint_is_never_repaired(original):
    with pytest.raises(FormatError, match="never changed"):
        repair(original[0] / "copy")


def test_a_store_that_is_open_is_not_repaired(store):
    with diskreplay.open(store, mode="a"), pytest.raises(LockedError):
        repair(store)


def test_a_rotten_block_costs_its_own_rows(store, original):
    _root, recorded = original
    path = segments(store, "observation")[2]
    bad = path.read_bytes()[:3000] + b"\xff" + path.read_bytes()[3001:]
    path.chmod(0o644)
    path.write_bytes(bad)
    report = repair(store)
    assert [f.kind for f in report.findings] == ["block"]
    ((env, low, high),) = report.findings[0].rows
    assert env == 0
    assert high - low == 8
    kept = [p for p in report.aside.rglob("*") if p.is_file()]
    assert report.aside / path.relative_to(store) in kept
    assert (report.aside / path.relative_to(store)).read_bytes() == bad
    found = check_mended(store, recorded)
    # Before the hole as far as the horizon, behind it as far as the stack.
    gone = np.setdiff1d(recorded["id"], found)
    assert set(range(low, high)).isdisjoint(found)
    assert low - 2 <= gone.min()
    assert gone.max() <= high + STACK - 2


def test_rot_in_a_segment_that_is_not_full_costs_few_rows(store, original):
    path, _first, _row_bytes, size = open_segments(store)["hidden"]
    flip(path, size // 2)
    report = repair(store)
    assert named(report) == {path}
    assert 8 <= report.set_aside[0] <= 8 + STACK - 1
    check_mended(store, original[1], least=NEARLY)


def test_a_rotten_index_costs_nothing(store, original):
    path = segments(store, "observation")[1]
    data = path.read_bytes()
    flip(path, 16 * 3 + 2, 3)
    with pytest.raises(DiskReplayError):
        diskreplay.open(store, mode="a")
    assert [f.kind for f in repair(store).findings] == ["index"]
    assert path.read_bytes() == data
    check_mended(store, original[1], least=NEARLY)


def test_swapped_segments_go_back(store, original):
    for name in ("observation", "hidden"):
        one, other = segments(store, name)[1:3]
        beside = store / "beside"
        one.rename(beside)
        other.rename(one)
        beside.rename(other)
    assert len(repair(store).findings) == 4
    check_mended(store, original[1], least=NEARLY)


def test_a_checkpoint_gives_back_what_is_rotten(store, original):
    lost = [segments(store, name)[2] for name in ("observation", "hidden")]
    flip(lost[0], 700)
    lost[1].unlink()
    report = repair(store, sources=[original[0] / "copy"])
    assert named(report) == set(lost)
    check_mended(store, original[1], least=NEARLY)


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated", "step", "is_final"])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("bit", [0, 5])
def test_a_checkpoint_gives_back_the_small_columns(store, original, name, at, bit):
    """Their rows were set aside, and that was written over the whole file."""
    path = segments(store, name)[at]
    flip(path, 8, bit)
    report = repair(store, sources=[original[0] / "copy"])
    assert path in named(report)
    assert sum(report.set_aside) == 0
    check_mended(store, original[1])


@pytest.mark.parametrize("name", ["terminated", "step"])
def test_rot_behind_the_last_row_costs_none(store, original, name):
    path = segments(store, name)[-1]
    flip(path, path.stat().st_size - 1)
    report = repair(store)
    assert named(report) == {path}
    assert sum(report.set_aside) == 0
    check_mended(store, original[1], least=len(original[1]["id"]) - 3)  # the open episode was cut


def test_metadata_are_written_anew(store, original):
    (store / "observation" / "zarr.json").unlink()
    (store / "reward" / "zarr.json").write_text("{")
    (store / LIVE / "state").write_bytes(b"rotten")
    (store / "priority" / "zarr.json").unlink()
    repair(store)
    check_mended(store, original[1], least=NEARLY)


def test_a_store_whose_own_description_is_rotten_is_refused(store):
    """Every row would be set aside, for the sake of one letter in the group's attributes."""
    path = store / "zarr.json"
    text = path.read_text()
    path.write_text(text.replace('"name": "hidden"', '"name": "hiddeo"'))
    before = files_of(store)
    assert not verify(store).clean
    with pytest.raises(FormatError, match="nothing in it is as"):
        repair(store)
    assert files_of(store) == before
    path.write_text(text.replace('"count": [', '"count": ["'))
    with pytest.raises(FormatError):
        repair(store)


def test_orphans_are_moved_aside(store, original):
    path = store / "observation" / "c.77.0.0.0"
    path.write_bytes(b"something")
    report = repair(store)
    assert not path.exists()
    assert (report.aside / path.relative_to(store)).read_bytes() == b"something"
    assert "77" in (report.aside / "findings.txt").read_text()
    check_mended(store, original[1], least=NEARLY)


@settings(max_examples=effort(8, 12), deadline=None)
@given(st.data())
def test_any_damage_is_mended(original, tmp_path_factory, data):
    """Up to three files at once are flipped, cut or removed."""
    store = tmp_path_factory.mktemp("damaged") / "store"
    shutil.copytree(original[0] / "store", store)
    paths = [p for p in files_of(store) if p != store / "zarr.json"]
    damaged = data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True))
    for path in damaged:
        own = path.relative_to(store).parts[0]
        unchecked = path.is_relative_to(store / LIVE) or (
            own == "priority" and path.name != "zarr.json"
        )
        # The checksums of raw segments are in their field's metadata, and those of open ones hold
        # while `state` says that the store is closed: without these, nobody knows.
        needed = {path.parent / "zarr.json", store / LIVE / "state"} - {path}
        unchecked |= path.name != "zarr.json" and not needed.isdisjoint(damaged)
        how = data.draw(st.sampled_from(["cut", "remove"] + ["flip"] * 2 * (not unchecked)))
        if how == "remove":
            path.unlink()
            continue
        at = data.draw(st.integers(0, path.stat().st_size - 1))
        if how == "flip":
            flip(path, at, data.draw(st.integers(0, 7)))
        else:
            path.chmod(0o644)
            os.truncate(path, at)
    try:
        repair(store)
    except FormatError:  # only if of one field the metadata and all the rows are hit at once
        fields = [path.relative_to(store).parts[0] for path in damaged]
        assert any(fields.count(p.parent.name) > 1 for p in damaged if p.name == "zarr.json")
        return
    check_mended(store, original[1])


def test_what_a_kill_left_is_repaired(tmp_path):
    code = """
import os, sys
from tests.check.test_verify import columns, make
buffer = make(sys.argv[1])
for start in range(0, 3000, 100):
    buffer.extend(columns(start, start + 100, 13))
os.kill(os.getpid(), 9)
"""
    path = tmp_path / "store"
    assert processes.run(code, path).returncode == -9
    assert verify(path).findings == ()
    shutil.copytree(path, tmp_path / "twin")
    with diskreplay.open(tmp_path / "twin", mode="a") as twin:
        recorded = transitions(twin)
    chunk = segments(path, "hidden")[1]
    chunk.unlink()
    assert named(repair(path)) == {chunk}
    check_mended(path, recorded, least=len(recorded["id"]) - 540)


class Killed(BaseException):
    """In the place of a process's death."""


@pytest.mark.parametrize("name", ["link", "write", "sync", "exchange", "rename", "remove"])
@pytest.mark.parametrize("call", [1, 4])
def test_a_repair_that_dies_leaves_a_store(store, original, monkeypatch, name, call):
    """At each kind of disk operation, before it; nothing cleans up behind it either."""
    path = segments(store, "observation")[2]
    flip(path, 500)
    rotten = path.read_bytes()
    real, calls = getattr(files, name), []

    def dying(*arguments, **more):
        calls.append(arguments)
        if len(calls) == call:
            raise Killed
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(files, name, dying)
        patch.setattr(files, "remove_tree", lambda _path: None)
        try:
            repair(store)
        except Killed:
            pass
        else:
            assert len(calls) < call
    repair(store)
    check_mended(store, original[1], least=NEARLY)
    assert not list(store.parent.glob(".store*"))
    kept = [aside / path.relative_to(store) for aside in store.parent.glob("store.repair-*")]
    assert rotten in [p.read_bytes() for p in kept if p.exists()]


@pytest.mark.parametrize("name", ["store", "st[1]"])
def test_what_killed_repairs_leave(store, name):
    """A directory just begun goes, one that was replaced stays; other stores keep theirs."""
    store = store.rename(store.with_name(name))
    flip(segments(store, "observation")[2], 500)
    digits = [f"{number:016x}" for number in range(3)]
    begun, replaced = (store.with_name(f".{name}.repair-{each}") / name for each in digits[:2])
    foreign = [
        store.with_name(f".{other}.repair-{digits[2]}") / other
        for other in ("st1", f"{name}.repair-1")
    ]
    for path in (begun, *foreign):
        (path / LIVE).mkdir(parents=True)
    replaced.mkdir(parents=True)
    for file in ("zarr.json", "findings.txt"):
        (replaced / file).write_text("{}")
    # The directory that a repair has made is the one that is written down.
    (replaced.parent / "built").write_text("1")
    (begun / "zarr.json").write_text("{}")
    (begun.parent / "built").write_text(str(begun.stat().st_ino))
    assert repair(store).aside == store.with_name(f"{name}.repair-2")
    assert not begun.parent.exists()
    assert not replaced.parent.exists()
    assert {p.name for p in store.with_name(f"{name}.repair-1").iterdir()} == {
        "zarr.json", "findings.txt",
    }  # fmt: skip
    assert all(path.is_dir() for path in foreign)


def test_what_the_system_refuses_is_not_taken_for_damage(tmp_path, monkeypatch):
    """A repair that may open no more files, at any of its calls, is refused; it sets no row aside
    and keeps the priorities."""
    space = Box(0, 255, (16,), "uint8")
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "sound", observation_space=space, action_space=Discrete(2), capacity=40,
        compressor="lz4", segment_rows=8, batch_size=4,
    ) as buffer:  # fmt: skip
        for number in range(20):
            buffer.add(np.full(16, number, np.uint8), 1, float(number), False, False)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, 1.0 + ids)
        leaves = buffer.tree.leaves.copy()
    (tmp_path / "sound" / "reward" / "zarr.json").write_bytes(b"rot")
    path, open_, left = tmp_path / "store", os.open, []

    def refusing(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_(*arguments, **options)

    refused = 0
    for call in itertools.count(1, effort(17, 7)):
        shutil.copytree(tmp_path / "sound", path)
        left[:] = [call]
        monkeypatch.setattr(os, "open", refusing)
        try:
            repair(path)
        except diskreplay.StorageError as error:
            refused += error.errno == errno.EMFILE
        finally:
            monkeypatch.undo()
        assert verify(path).findings == () or repair(path).set_aside == (0,)
        with diskreplay.open(path, mode="a") as buffer:
            np.testing.assert_array_equal(buffer.tree.leaves, leaves)
            rows = np.arange(20)
            np.testing.assert_array_equal(buffer.take("observation", rows)[:, 3], rows)
        assert len(list(tmp_path.glob("store.repair-*"))) == 1
        for each in tmp_path.glob("store*"):
            shutil.rmtree(each)
        if left[0] > 0:
            break
    assert refused > effort(2, 5)


def test_rows_set_aside_are_cut_off():
    def rows(step, final=()):
        n = len(step)
        flags = np.zeros(n, np.uint8)
        flags[list(final)] = 1
        return row_check.SmallColumns(
            np.array(step, np.int32), np.ones(n, np.float32) * (flags == 0), np.zeros(n, np.uint8),
            np.zeros(n, np.uint8), flags,
        )  # fmt: skip

    one = rows([0, 1, 2, 3, 4, 5, 6, 0, 1])
    set_aside(one, np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], bool), stack_size=3)
    assert one.step.tolist() == [0, 1, 0, 0, 1, 2, 3, 0, 1]
    assert one.is_final.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert one.reward.tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert not row_check.faults(one, np.ones(9, bool), np.zeros(9, bool))
    two = rows([3, 4, 0, 1, 2])
    set_aside(two, np.array([0, 1, 0, 0, 0], bool), stack_size=4)
    assert two.step.tolist() == [3, 0, 0, 1, 2]
    assert two.is_final.tolist() == [0, 1, 0, 0, 0]
    three = rows([0, 1, 2])
    set_aside(three, np.array([1, 0, 1], bool), stack_size=1)
    assert three.step.tolist() == [0, 0, 0]
    assert three.is_final.tolist() == [1, 0, 1]
