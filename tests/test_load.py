"""`load` is all or nothing: whatever is wrong with a checkpoint, or goes wrong, the buffer stays as
it was, and goes on.

The cases that may end the process run in one of their own.
"""

import errno
import json
import os
import re
import shutil
import threading
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.store import file_locks, files
from diskreplay.store.system_errors import translated
from tests import processes
from tests.effort import effort

ROOT = Path(__file__).resolve().parent.parent
FRAME = (8, 8)
MANIFEST = "is_final/saved/manifest.json"
OPTIONS = {
    "observation_space": Box(0, 255, FRAME, "uint8"), "action_space": Discrete(4),
    "capacity": 96, "stack_size": 2, "update_horizon": 2, "batch_size": 8, "segment_rows": 16,
    "compressor": {"observation": "lz4", "hidden": "raw"}, "seed": 3, "alpha": 0.5,
}  # fmt: skip
BIG_BYTES = 4096  # a raw field of large rows: its segments are full, the small ones' are not


def make(path, **changed):
    options = OPTIONS | {"extras": {"hidden": ((BIG_BYTES,), "uint8")}} | changed
    return diskreplay.PrioritizedReplayBuffer(path, **options)


def add(buffer, i):
    return buffer.add(
        np.full(FRAME, i % 251, np.uint8), i % 4, float(i), i % 17 == 16, False,
        np.full(FRAME, (i + 1) % 251, np.uint8), hidden=np.full(BIG_BYTES, i % 241, np.uint8),
    )  # fmt: skip


def record(buffer, count):
    for i in range(buffer.add_count, buffer.add_count + count):
        add(buffer, i)


def everything(buffer):
    """All that a caller can see: the rows, the figures, the next batch (drawn and put back)."""
    rows = np.arange(*buffer.bounds[0])
    generator = buffer.rng.bit_generator.state
    batch = buffer.sample()
    after = buffer.rng.bit_generator.state
    buffer.rng.bit_generator.state = generator
    return {
        "bounds": buffer.bounds, "len": np.array(len(buffer)), "count": np.array(buffer.add_count),
        "ids": buffer.sampleable_ids(), "generator": np.array(str(generator)),
        "generator after": np.array(str(after)),
        "probability": buffer.gather(buffer.sampleable_ids()).probability,
        **dict(zip(buffer.fields, buffer.take(list(buffer.fields), rows), strict=True)),
        **{f"batch {name}": np.array(value) for name, value in batch.asdict().items()},
    }  # fmt: skip


def assert_same(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def goes_on(buffer):
    """Steps can be added, drawn, weighed."""
    before = buffer.add_count
    for i in range(before, before + 40):  # a segment of each field gets full
        (id_,) = add(buffer, i)
    assert buffer.add_count == before + 40
    assert buffer.take("reward", np.array([id_])).tolist() == [before + 39]
    batch = buffer.sample()
    buffer.update_priorities(batch.id, np.full(len(batch.id), 0.5))


def outlives(buffer, tmp_path):
    """It can be saved and loaded, closed and opened."""
    goes_on(buffer)
    buffer.save(tmp_path / "later", 9)
    before = everything(buffer)
    record(buffer, 3)
    buffer.load(tmp_path / "later", 9)
    assert_same(before, everything(buffer))
    buffer.close()
    with make(buffer.path) as again:
        np.testing.assert_array_equal(again.bounds, before["bounds"])
        np.testing.assert_array_equal(again.take("reward", np.arange(*again.bounds[0])),
                                      before["reward"])  # fmt: skip
    assert [p.name for p in buffer.path.parent.iterdir() if p.name.startswith(".")] == []


@pytest.fixture
def saved(tmp_path):
    """A buffer, and a checkpoint of it that shares no file with it."""
    buffer = make(tmp_path / "store")
    record(buffer, 70)
    buffer.update_priorities(
        buffer.sampleable_ids()[::2], np.full(len(buffer.sampleable_ids()[::2]), 3.0)
    )
    made = buffer.save(tmp_path / "made", 1)
    shutil.copytree(made, tmp_path / "checkpoints" / made.name)
    record(buffer, 25)
    yield buffer, tmp_path / "checkpoints" / made.name
    buffer.close()


def files_of(path):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())


def restore(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


# -- rot


def test_a_flipped_bit_anywhere_is_refused(saved, tmp_path):
    """In packed shards, which are not read as a whole, the block says so when it is drawn."""
    buffer, checkpoint = saved
    before, refused, names = everything(buffer), 0, files_of(checkpoint)
    assert "hidden/c.0.0.0" in names
    for name in names:
        if name.startswith("observation/c"):
            continue
        path = checkpoint / name
        whole = path.read_bytes()
        places = [0, len(whole) // 3, len(whole) // 2, len(whole) - 1]
        if name == MANIFEST:  # which has no checksum: all that `load` goes by is checked
            sums = re.finditer(rb'"observation/c[^]]*, (\d+)\]', whole)  # of shards: for `verify`
            unread = {at for found in sums for at in range(*found.span(1))}
            places = sorted(set(range(whole.index(b'"files"'), len(whole), 37)) - unread)
        for at in places:
            rotten = bytearray(whole)
            rotten[at] ^= 1 << at % 7
            restore(path, rotten)
            with pytest.raises(errors.DiskReplayError) as caught:
                buffer.load(checkpoint.parent, 1)
            assert str(checkpoint) in str(caught.value)
            refused += 1
        restore(path, whole)
        assert_same(before, everything(buffer))
    assert refused > 60
    outlives(buffer, tmp_path)


def test_a_rotten_index_of_a_shard_is_refused(saved, tmp_path):
    buffer, checkpoint = saved
    before = everything(buffer)
    for path in checkpoint.glob("observation/c.*"):
        whole = path.read_bytes()
        restore(path, whole[:9] + bytes([whole[9] ^ 4]) + whole[10:])
        with pytest.raises(errors.CorruptSegmentError, match="index"):
            buffer.load(checkpoint.parent, 1)
        restore(path, whole)
    assert_same(before, everything(buffer))
    outlives(buffer, tmp_path)


def test_what_the_manifest_does_not_list_is_refused(saved, tmp_path):
    """The manifest has no checksum: it has to name all that is needed."""
    buffer, checkpoint = saved
    before, path = everything(buffer), checkpoint / MANIFEST
    whole = json.loads(path.read_text())
    for name in whole["files"]:
        less = {key: value for key, value in whole["files"].items() if key != name}
        path.write_text(json.dumps(whole | {"files": less}))
        with pytest.raises(errors.CorruptCheckpointError, match=r"manifest\.json"):
            buffer.load(checkpoint.parent, 1)
    path.write_text(json.dumps(whole))
    shutil.rmtree(checkpoint / "priority")
    whole["files"] = {k: v for k, v in whole["files"].items() if not k.startswith("priority/")}
    path.write_text(json.dumps(whole))
    with pytest.raises(FileNotFoundError, match="priority"):
        buffer.load(checkpoint.parent, 1)
    assert_same(before, everything(buffer))
    outlives(buffer, tmp_path)


# -- numbers, with checksums that fit: what a bug, or somebody, may have written


def agree(checkpoint):
    """Write the manifest anew."""
    path = checkpoint / MANIFEST
    document = json.loads(path.read_text())
    for key in document["files"]:
        if "/c." in key and key.startswith("observation"):
            continue
        data = (checkpoint / key).read_bytes()
        document["files"][key] = [len(data), google_crc32c.value(data)]
    path.write_text(json.dumps(document))


def places(value, at=()):
    """The way to every number, text and null in a JSON document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from places(inner, (*at, key))
    else:
        yield at


def changed(document, at, value):
    document = json.loads(json.dumps(document))
    inside = document
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = value
    return document


def is_number(document, at):
    for key in at:
        document = document[key]
    return type(document) in (int, float)


EXTREMES = (-1, 0, 2**31 - 1, 2**40, 2**63, 1e308, -0.5, True, "abc", None, [])
STEPS = (-(2**31), -1, 2**31 - 1)
LEAVES = (-1.0, np.inf, -np.inf, 1e308)


def hurt(checkpoint, which):
    """Change one thing after the other; yields what, and leaves the checkpoint as it was."""
    names = {
        "group": ["zarr.json"],
        "fields": ["step/zarr.json", "observation/zarr.json"],
        "priority": ["priority/zarr.json"],
    }
    for name in names.get(which, []):
        path = checkpoint / name
        whole = path.read_bytes()
        document = json.loads(whole)
        for at in places(document):
            for value in EXTREMES if is_number(document, at) else EXTREMES[::4]:
                path.write_text(json.dumps(changed(document, at, value)))
                agree(checkpoint)
                yield f"{name} {at} = {value!r}"
        path.write_bytes(whole)
        agree(checkpoint)
    if which == "manifest":
        path = checkpoint / MANIFEST
        whole = path.read_bytes()
        for at in places(json.loads(whole)):
            for value in EXTREMES:
                path.write_text(json.dumps(changed(json.loads(whole), at, value)))
                yield f"{path.name} {at} = {value!r}"
        path.write_bytes(whole)
    if which == "columns":
        for name, dtype, values in (
            ("step/c.0.0", "<i4", STEPS), ("priority/c.0.0", "<f8", LEAVES),
            ("terminated/c.0.0", "u1", (8, 255)), ("is_final/c.0.0", "u1", (8, 255)),
        ):  # fmt: skip
            path = checkpoint / name
            whole = path.read_bytes()
            for value in values:
                for rows in (slice(None), slice(5, 6), slice(69, 71)):
                    numbers = np.frombuffer(whole, dtype).copy()
                    numbers[rows] = value
                    restore(path, numbers.tobytes())
                    agree(checkpoint)
                    yield f"{name} {rows} = {value!r}"
            restore(path, whole)
        agree(checkpoint)


# There are hundreds of these, and the torture tries its own with each file.
EVERY = effort(5, 3, 1)


def drive(place, which):
    """Load what was hurt in every way: refused, with nothing changed, or good to go on with."""
    buffer, counts = make(place / "store"), [0, 0]
    checkpoint = place / "checkpoints" / "replay_ckpt.1"
    with buffer:
        before = everything(buffer)
        for number, what in enumerate(hurt(checkpoint, which)):
            if number % EVERY:
                continue
            print(what, flush=True)
            try:
                buffer.load(checkpoint.parent, 1, resume_episodes=True)
            except errors.DiskReplayError as error:
                if str(checkpoint) not in str(error):
                    raise
                counts[0] += 1
                assert_same(before, everything(buffer))
                continue
            counts[1] += 1
            goes_on(buffer)
            buffer.save(place / "others", 1)
            buffer.load(place / "good", 1)
            assert_same(before, everything(buffer))
        goes_on(buffer)
    with make(place / "store") as buffer:
        goes_on(buffer)
    print("refused and taken:", *counts)


@pytest.mark.parametrize("which", ["group", "fields", "priority", "manifest", "columns"])
@pytest.mark.costly
def test_numbers_at_their_extremes(tmp_path, which):
    with make(tmp_path / "store") as buffer:
        record(buffer, 70)
        made = buffer.save(tmp_path / "made", 1)
        shutil.copytree(made, tmp_path / "checkpoints" / made.name)
        record(buffer, 5)
        buffer.save(tmp_path / "good", 1)
    code = "import pathlib, sys\nfrom tests import test_load\n"
    code += "test_load.drive(pathlib.Path(sys.argv[1]), sys.argv[2])"
    done = processes.run(code, tmp_path, which)
    said = done.stdout.splitlines()
    assert done.returncode == 0, f"{said[-1:]} {done.stderr[-3000:]}"
    assert int(said[-1].split()[-2]) > effort(3, 5), said[-1]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "next_step",
    [[2**40], [-(2**31)], [2**31], [-1], [3.0], [True], ["1"], [12345], [], [1, 1], 1, None],
)
@pytest.mark.costly(3)
def test_the_next_step(saved, tmp_path, next_step, resume):
    buffer, checkpoint = saved
    before = everything(buffer)
    document = json.loads((checkpoint / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["next_step"] = next_step
    (checkpoint / "zarr.json").write_text(json.dumps(document))
    agree(checkpoint)
    with pytest.raises(errors.FormatError, match="next_step"):
        buffer.load(checkpoint.parent, 1, resume_episodes=resume)
    assert_same(before, everything(buffer))
    outlives(buffer, tmp_path)


# -- the moment of the exchange


def failing(code=errno.EIO):
    def fail(path, *_arguments, **_options):
        raise translated(OSError(code, os.strerror(code)), path, "cannot")

    return fail


@pytest.mark.parametrize("name", ["exchange", "sync_dirs"])
def test_an_exchange_that_fails(saved, tmp_path, monkeypatch, name):
    buffer, checkpoint = saved
    before, original = everything(buffer), getattr(files, name)
    reader = diskreplay.open(buffer.path)

    def fail(*arguments):
        if name == "exchange" or arguments == ([buffer.path.parent],):
            failing()(buffer.path)
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(files, name, fail)
        with pytest.raises(errors.StorageError):
            buffer.load(checkpoint.parent, 1)
    assert_same(before, everything(buffer))
    add(buffer, buffer.add_count)
    assert reader.add_count == buffer.add_count
    reader.close()
    outlives(buffer, tmp_path)


def test_an_exchange_with_no_way_back(saved, tmp_path, monkeypatch):
    """The name may not last, and cannot be changed back: the loaded rows stay, and it is said."""
    buffer, checkpoint = saved
    with diskreplay.open(checkpoint) as reader:
        expected = everything(reader)
    exchange, sync_dirs, exchanged = files.exchange, files.sync_dirs, []

    def once(*arguments):
        if exchanged:
            failing()(buffer.path)
        exchanged.append(1)
        exchange(*arguments)

    def sync(paths):
        if exchanged:
            failing()(buffer.path)
        sync_dirs(paths)

    with monkeypatch.context() as patched:
        patched.setattr(files, "exchange", once)
        patched.setattr(files, "sync_dirs", sync)
        with pytest.warns(RuntimeWarning, match="power cut"):
            buffer.load(checkpoint.parent, 1)
    assert_same(expected, everything(buffer))
    goes_on(buffer)
    buffer.close()
    with make(buffer.path) as again:
        assert again.add_count == 110
    assert [p.name for p in buffer.path.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("links", [True, False])
def test_a_second_writer_is_refused_at_any_moment(saved, tmp_path, monkeypatch, links):
    """Also on file systems without hard links, where the two directories cannot share a lock."""
    buffer, checkpoint = saved
    with diskreplay.open(checkpoint) as reader:
        expected = everything(reader)
    tried, exchange = [], files.exchange

    def attempt():
        with pytest.raises(errors.LockedError):
            diskreplay.open(buffer.path, mode="a")
        tried.append(1)

    def watched(*arguments):
        attempt()
        exchange(*arguments)
        attempt()

    if not links:
        monkeypatch.setattr(files, "link", lambda *_: False)
    monkeypatch.setattr(files, "exchange", watched)
    buffer.load(checkpoint.parent, 1)
    attempt()
    assert len(tried) >= 3
    assert_same(expected, everything(buffer))
    attempt()
    monkeypatch.setattr(files, "exchange", exchange)
    outlives(buffer, tmp_path)


def test_a_lock_file_that_was_replaced_meanwhile(tmp_path, monkeypatch):
    """A writer opens the lock file, a load exchanges the directories and lets go of the old one."""
    path, flock = tmp_path / "lock", file_locks.fcntl.flock
    held, replaced = [], []

    def late(fd, operation):
        if not replaced:
            replaced.append(1)
            path.rename(tmp_path / "old")
            held.append(file_locks.lock(path, of=tmp_path))
        flock(fd, operation)

    monkeypatch.setattr(file_locks.fcntl, "flock", late)
    with pytest.raises(errors.LockedError):
        file_locks.lock(path, of=tmp_path)
    file_locks.unlock(held[0])
    file_locks.unlock(file_locks.lock(path, of=tmp_path))


def test_no_thread_for_clearing_away(saved, monkeypatch):
    """It is done at once then."""
    buffer, checkpoint = saved
    start = threading.Thread.start

    def refuse(thread):
        if "clearing" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    buffer.load(checkpoint.parent, 1)
    assert buffer.add_count == 70
    assert [p.name for p in buffer.path.parent.iterdir() if p.name.startswith(".")] == []
    goes_on(buffer)


def test_a_load_records_the_options_of_the_buffer(tmp_path):
    """In the same step as the rows: nothing is written after the exchange that could fail."""
    with make(tmp_path / "one", alpha=0.5, stack_size=2) as one:
        record(one, 50)
        one.update_priorities(one.sampleable_ids(), 1.0 + one.sampleable_ids())
        one.save(tmp_path / "checkpoints", 1)
    with make(tmp_path / "two", alpha=1.0, stack_size=3, capacity=64) as two:
        two.load(tmp_path / "checkpoints", 1)
        ids = two.sampleable_ids()
        ratio = two.gather(ids).probability / (1.0 + ids)
        # Final rows among them have no priority, and rows of before have the one that they had.
        known = np.isclose(ratio, ratio[0])
        assert known.mean() > 0.9
        with diskreplay.open(two.path) as reader:
            assert (reader.alpha, reader.stack_size, reader.capacity) == (1.0, 3, 64)


# -- readers


def test_a_reader_opens_while_the_capacity_changes(tmp_path, monkeypatch):
    """The record that it read names segments that a writer with a smaller capacity deletes."""
    path = tmp_path / "store"
    with make(path) as buffer:
        record(buffer, 90)
    capacities = [48, 32]
    original = diskreplay.store.store.Store._open_for_reading

    def late(store):
        if capacities:
            with make(path, capacity=capacities.pop(0), shrink=True):
                pass
        original(store)

    monkeypatch.setattr(diskreplay.store.store.Store, "_open_for_reading", late)
    with diskreplay.open(path) as reader:
        assert not capacities
        assert np.ptp(reader.bounds) == 32
        reader.sample()


@pytest.mark.parametrize("capacities", [(48,), (48, 96), (160,)])
def test_a_reader_follows_over_changes_of_the_capacity(tmp_path, capacities):
    path = tmp_path / "store"
    writer = make(path)
    record(writer, 90)
    reader = diskreplay.open(path)
    reader.sample()
    for capacity in capacities:
        writer.close()
        writer = make(path, capacity=capacity, shrink=True)
        record(writer, 20)
    assert reader.add_count == writer.add_count
    reader.sample()
    rows = np.arange(max(writer.bounds[0, 0], reader.bounds[0, 0]), writer.bounds[0, 1])
    np.testing.assert_array_equal(reader.take("reward", rows), writer.take("reward", rows))
    reader.close()
    writer.close()
