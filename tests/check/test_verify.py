"""What `verify` names in a damaged store, and that it names nothing in a sound one."""

import json
import os
import shutil
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import FormatError
from tests import processes
from tests.check.damaged import (
    CAPACITY,
    LIVE,
    MANIFEST,
    SEGMENT,
    STEPS,
    columns,
    files_of,
    flip,
    make,
    named,
    open_segments,
    segments,
)
from tests.copies import unpack
from tests.effort import effort

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden"


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
        unpack(tar, tmp_path)
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


@pytest.mark.costly(1)
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


@pytest.mark.costly
def test_every_flipped_bit_of_a_checkpoint_is_named(original, tmp_path):
    shutil.copytree(original[0] / "copy", tmp_path / "saved")
    rng = np.random.default_rng(2)
    root = tmp_path / "saved"
    for path in files_of(root):
        size = path.stat().st_size
        for offset in (size - 1, int(rng.integers(size)))[effort(1, 0) :]:
            flip(path, offset, 1)
            try:
                found = named(verify(root))
            except FormatError:  # without the group's attributes nothing else can be read
                found = {root / "zarr.json"}
            # A list whose own bytes are rotten accuses a file that it lists.
            assert found if path.name == "manifest.json" else path in found, (path, offset)
            flip(path, offset, 1)
    assert verify(root).findings == ()


@pytest.mark.costly
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


@pytest.mark.costly
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


def left_open(store):
    """As a writer leaves it that is killed: no file that it may write to has a checksum."""
    code = """
import os, sys, numpy as np, diskreplay
buffer = diskreplay.open(sys.argv[1], mode="a")
os.kill(os.getpid(), 9)
"""
    processes.run(code, store)


@pytest.mark.costly
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


@pytest.mark.costly
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


@pytest.mark.costly
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


@pytest.mark.costly
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


def test_a_raw_file_with_a_hole_behind_its_rows(store):
    """Of which no more than its rows is read: the hole alone would take minutes."""
    path = segments(store, "reward")[0]
    path.chmod(0o644)
    os.truncate(path, 1 << 40)
    found = [finding for finding in verify(store).findings if finding.path == path]
    assert [finding.kind for finding in found] == ["length"]
    assert f"{1 << 40} bytes found" in found[0].meaning
    assert path in named(repair(store))
    assert verify(store).clean


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


def test_metadata_that_are_lost_take_the_checksums_of_raw_files_along(store):
    told = "so what has rotted in these files is not found"
    for name, is_told in (("hidden", True), ("observation", False)):
        path = store / name / "zarr.json"
        data = path.read_bytes()
        for damaged in (None, b"{}"):
            path.unlink(missing_ok=True)
            if damaged is not None:
                path.write_bytes(damaged)
            (finding,) = (f for f in verify(store).findings if f.path == path)
            assert (told in finding.meaning) == is_told
        path.write_bytes(data)
