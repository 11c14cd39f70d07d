"""What `repair` makes of a damaged store: one that is sound, with rows that are those recorded or
not there."""

import errno
import itertools
import os
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import CorruptSegmentError, DiskReplayError, FormatError, LockedError
from diskreplay.store import files, interrupted_repair
from tests import processes
from tests.check.damaged import (
    LIVE,
    NEARLY,
    STACK,
    check_mended,
    files_of,
    flip,
    named,
    open_segments,
    segments,
    transitions,
)
from tests.effort import effort


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


@pytest.mark.costly
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
@pytest.mark.costly(2)
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


@pytest.mark.costly
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


@pytest.mark.costly
def test_what_a_kill_left_is_repaired(tmp_path):
    code = """
import os, sys
from tests.check.damaged import columns, make
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


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", ["link", "write", "sync", "exchange", "rename", "remove"])
@pytest.mark.parametrize("call", [1, 4])
@pytest.mark.filterwarnings("ignore:.*a repair of it was cut off")
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


@pytest.mark.parametrize("again", [repair, lambda path: diskreplay.open(path, mode="a").close()])
def test_a_killed_repair_says_what_is_lost(store, monkeypatch, again):
    flip(segments(store, "observation")[2], 50_000)
    shutil.copytree(store, store.with_name("another"))
    losses = [f"set aside: {loss}" for loss in repair(store.with_name("another")).losses]
    assert len(losses) == 2
    real = files.exchange

    def dying(*arguments):
        real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files, "exchange", dying)
        patch.setattr(interrupted_repair, "finish", lambda _path: None)  # nothing cleans up
        with pytest.raises(Killed):
            repair(store)
    with pytest.warns(RuntimeWarning, match=r"cut off.* replaced is in .*store\.repair-1"):
        again(store)
    assert verify(store).clean
    lines = (store.with_name("store.repair-1") / "findings.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("set aside: ")] == losses


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
    with pytest.warns(RuntimeWarning, match="cut off"):
        report = repair(store)
    assert report.aside == store.with_name(f"{name}.repair-2")
    assert not begun.parent.exists()
    assert not replaced.parent.exists()
    assert {p.name for p in store.with_name(f"{name}.repair-1").iterdir()} == {
        "zarr.json", "findings.txt",
    }  # fmt: skip
    assert all(path.is_dir() for path in foreign)


@pytest.mark.costly
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


@pytest.mark.parametrize("what", ["is_final/live", "is_final/live/state"])
def test_a_store_without_its_private_files_is_mended(store, original, what):
    gone = store / what
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    for mode in ("r", "a"):
        with pytest.raises(CorruptSegmentError, match=r"is_final/live.*: missing; .* --repair`"):
            diskreplay.open(store, mode=mode)
    (finding,) = repair(store).findings
    assert (finding.kind, finding.path) == ("missing", store / "is_final/live/state")
    assert "nothing opens the store until `--repair`" in finding.remedy
    assert check_mended(store, original[1]).tolist() == original[1]["id"].tolist()


@pytest.mark.parametrize("field", ["is_final", "step", "observation"])
def test_a_field_that_is_gone_is_taken_from_a_checkpoint(store, original, tmp_path, field):
    root, recorded = original
    shutil.rmtree(store / field)
    with pytest.raises(FormatError, match=r"nothing in it is as .*`--repair --from CHECKPOINT`"):
        repair(store)
    shutil.copytree(root / "copy", tmp_path / "lacking")
    shutil.rmtree(tmp_path / "lacking" / field)
    with pytest.raises(FormatError, match=r"from another checkpoint \(lacking: .*\), or load one"):
        repair(store, sources=[tmp_path / "lacking"])
    assert repair(store, sources=[root / "copy"]).set_aside == (0,)
    assert check_mended(store, recorded).tolist() == recorded["id"].tolist()


def filled_store(path, rows, compressor, copied_at=None):
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(-1, 1, (300,), "float32"), action_space=Discrete(2),
        capacity=None, compressor=compressor, seed=0,
    ) as buffer:  # fmt: skip
        for row in range(rows):
            buffer.add(np.full(300, 1 + row, "f4"), 1, 1.0 + row, False, False)
            if row + 1 == copied_at:
                buffer.flush()
                shutil.copyfile(path / "zarr.json", path.parent / "older.json")


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_an_older_record_costs_no_file(tmp_path, compressor):
    """As where somebody has put one document back from a backup: its rows count, and what the rest
    of the store has is kept and told."""
    path = tmp_path / "a"
    filled_store(path, 500, compressor, copied_at=100)
    whole = {p.name: p.read_bytes() for p in (path / "reward").glob("c.*")}
    shutil.copyfile(tmp_path / "older.json", path / "zarr.json")
    report = repair(path)
    (span,) = {span for loss in report.losses for span in loss.rows}
    assert tuple(span) == (0, 100, 500)
    assert "the record (zarr.json) does not" in report.losses[0].reason
    assert verify(path).clean
    with diskreplay.open(path) as reader:
        assert reader.bounds.tolist() == [[0, 100]]
    kept = {p.name: p.read_bytes() for p in (report.aside / "reward").glob("c.*")}
    assert kept == whole


def test_a_record_with_more_rows_than_there_are_is_told(tmp_path):
    filled_store(tmp_path / "a", 100, "raw")
    filled_store(tmp_path / "other", 103, "raw")
    shutil.copyfile(tmp_path / "other" / "zarr.json", tmp_path / "a" / "zarr.json")
    assert not verify(tmp_path / "a").clean
    with pytest.raises(FormatError, match=r"closed with .100. rows of each env, and .103. are"):
        diskreplay.open(tmp_path / "a")
    with pytest.warns(RuntimeWarning, match="rows that are recorded may be none"):
        diskreplay.open(tmp_path / "a", mode="a").close()
