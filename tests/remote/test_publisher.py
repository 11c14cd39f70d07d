"""push: what is damaged is not published, packs do not pile up, and kills lose nothing."""

import datetime
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import diskreplay
from diskreplay import errors
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.registry import KEPT
from tests.effort import effort
from tests.remote import servers
from tests.remote.conftest import Run
from tests.remote.test_checkpoints import same

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("DISKREPLAY_KILLS", "6"))
RACES = max(5, KILLS // 4)


def damaged(path):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.costly(1)
@pytest.mark.parametrize("field", ["observation", "reward", "zarr.json", "is_final/saved"])
def test_a_rotten_file_is_not_published(run, remote, field):
    run.add(900)
    path = run.save(1, attachments={"agent.pt": b"0123456789" * 100})
    place = path / field
    file = place if place.is_file() else max(
        (p for p in place.rglob("*") if p.is_file() and p.suffix != ".json"),
        key=lambda p: p.stat().st_size,
    )  # fmt: skip
    damaged(file)
    with pytest.raises((errors.CorruptCheckpointError, errors.FormatError)):
        remote().push(path)
    assert remote().list() == []
    run.add(300)
    run.buffer.save(run.place / "other", 2)


def test_a_block_that_is_rotten_in_a_shard_is_found(tmp_path, remote):
    """The checksum of a shard is of its blocks' checksums: the bytes of a block are not in it."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(900)
    path = run.save(1)
    shard = max(path.glob("observation/c.*"), key=lambda p: p.stat().st_size)
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    data[-10] ^= 1  # in the last block, before its checksum
    shard.write_bytes(data)
    with pytest.raises(errors.CorruptCheckpointError, match="do not match their checksum"):
        remote().push(path)
    run.buffer.close()


def test_what_was_published_before_is_not_read_again(run, remote):
    run.add(2000)
    first = run.save(1)
    one = remote()
    one.push(first)
    sealed = min(first.glob("observation/c.*"))
    damaged(sealed)  # it is there already: the next push does not look at it
    again = run.save(2)
    assert one.push(again).suffix == "2"


@pytest.mark.costly(6)
@pytest.mark.parametrize("which", ["packs/", "checkpoints/"])
@pytest.mark.parametrize("instead", [None, b"{}"])
@pytest.mark.parametrize(("is_new", "rows"), [(False, 0), (False, 10), (True, 0)])
def test_what_is_gone_or_damaged_is_not_used_again(
    run, anywhere, which, instead, is_new, rows, tmp_path
):
    """Objects that a rule of the bucket has deleted, say. The next checkpoints are whole, also of
    the same suffix."""
    run.add(2000)
    one = anywhere()
    one.push(run.save("best"))
    one.push(run.save(1))
    for found in list(one._bucket.list(which)):
        one._bucket.delete([found.key])
        if instead is not None:
            one._bucket.put(found.key, instead)
    pushing = anywhere() if is_new else one
    run.add(rows)
    for suffix in ("best", 2, 1):
        path = run.save(suffix)
        pushing.push(path)
        assert pushing.verify(suffix, deep=True).clean
        assert same(path, pushing.pull(suffix, tmp_path / "pulled"))
    assert anywhere().verify(deep=True).clean


@pytest.mark.parametrize("which", ["packs/", "checkpoints/"])
def test_what_is_gone_is_put_again_without_the_right_to_list(run, tmp_path, moto, which):
    """S3 denies then to look at what is not there."""
    endpoint, faults = moto
    faults.reset()
    place = servers.served("moto", endpoint)
    url = f"{place.url}/no-list-{which}".rstrip("/")
    one = RemoteCheckpoints(url, storage_options=place.options)
    run.add(900)
    one.push(run.save(1))
    for found in list(one._bucket.list(which)):
        one._bucket.delete([found.key])
    faults.may_list = False
    run.add(10)
    pushing = RemoteCheckpoints(url, storage_options=place.options)
    for suffix in (2, 1):
        path = run.save(suffix)
        pushing.push(path)
        assert same(path, pushing.pull(suffix, tmp_path / "pulled"))
    with pytest.raises(errors.RemoteError, match="what they may do there"):
        pushing.collect(1, 0)
    faults.reset()
    assert pushing.verify(deep=True).clean


def test_who_may_not_list_is_told_what_the_first_push_needs(run, moto):
    endpoint, faults = moto
    faults.reset()
    place = servers.served("moto", endpoint)
    faults.may_list = False
    remote = RemoteCheckpoints(f"{place.url}/first", storage_options=place.options)
    run.add(50)
    path = run.save(1)
    for call in (remote.list, lambda: remote.push(path)):
        with pytest.raises(errors.RemoteError, match=r"nothing .* there yet: .*s3:ListBucket.*"):
            call()
    assert not [what for what in faults.seen if what.startswith("PUT")]
    faults.reset()
    remote.push(path)
    faults.may_list = False
    assert [one.suffix for one in remote.list()] == ["1"]


def test_what_is_denied_otherwise_is_told(run, moto):
    """From whichever request on: nothing is published then."""
    endpoint, faults = moto
    faults.reset()
    place = servers.served("moto", endpoint)
    options = {"run": "r", "storage_options": place.options}
    url = f"{place.url}/denied"
    run.add(900)
    RemoteCheckpoints(url, **options).push(run.save(1))
    run.add(900)
    path = run.save(2)
    remote = RemoteCheckpoints(url, **options)
    for number in range(5):  # the catalog, the document, a pack; to put a pack and the document
        faults.reset(dict.fromkeys(range(number, 100), "403"))
        with pytest.raises(errors.RemoteError, match="what they may do there"):
            RemoteCheckpoints(url, **options).push(path)
        faults.reset()
        assert [one.suffix for one in remote.list()] == ["1"]
    RemoteCheckpoints(url, **options).push(path)
    assert remote.verify(deep=True).clean
    assert [one.suffix for one in remote.list()] == ["1", "2"]


def test_many_checkpoints_make_no_push_or_collection_longer(run, remote):
    """Of thousands that are kept, not all documents are read each time."""
    one = remote(run="r")
    for number in range(40):
        run.add(5)
        pushed = one.push(run.save(number))
        if number >= 30:
            assert pushed.requests < 16
    run.add(5)
    assert remote(run="r").push(run.save(40)).requests < KEPT + 16  # of a program that begins
    one.collect(100, 0)
    for number in (41, 42):
        run.add(5)
        one.push(run.save(number))
        before = one._bucket.requests
        one.collect(100, 0)
        assert one._bucket.requests - before < 16
    assert one.verify(deep=True).clean
    assert len(one.list()) == 43


def test_a_run_whose_clock_is_late_finds_what_it_has_put(run, remote, monkeypatch):
    """Of the newest checkpoints, although those of the run before say that they are newer."""
    one = remote(run="r")
    for number in range(KEPT + 1):
        run.add(5)
        one.push(run.save(number))
    late = SimpleNamespace(now=lambda zone: datetime.datetime(2001, 1, 1, tzinfo=zone))
    clock = SimpleNamespace(UTC=datetime.UTC, datetime=late)
    monkeypatch.setattr("diskreplay.remote.publisher.datetime", clock)
    other = remote(run="s", takeover=True)
    run.add(900)
    path = run.save(KEPT + 1)
    assert other.push(path).objects > 1
    assert other.push(path).objects == 1  # the document


@pytest.mark.costly
def test_packs_do_not_pile_up(tmp_path, remote):
    """A run that publishes a thousand times needs no thousand packs to be pulled."""
    run = Run(tmp_path, diskreplay.ReplayBuffer, capacity=40_000)
    one = remote()
    for number in range(effort(30, 60)):
        run.add(300)
        path = run.save(number, keep=1)
        one.push(path)
        needed = one.verify(number).objects
        assert needed <= 20
    assert same(path, one.pull(directory=tmp_path / "pulled"))
    run.buffer.close()


def test_large_files_are_objects_of_their_own(tmp_path, anywhere, monkeypatch):
    monkeypatch.setattr("diskreplay.remote.publisher._ALONE", 2000)
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(2000)
    path = run.save(1)
    one = anywhere(pack_bytes=4000)
    one.push(path)
    kinds = {found.key.split("/")[0] for found in one._bucket.list("")}
    assert {"objects", "packs", "checkpoints"} <= kinds
    assert same(path, one.pull(directory=tmp_path / "pulled"))
    assert one.zarr()["reward"][:].sum() == diskreplay.open(path).to_pandas()["reward"].sum()
    run.buffer.close()


CHILD = """
import sys
sys.path.insert(0, {root!r})
from diskreplay.remote import RemoteCheckpoints
url, path, numbers = sys.argv[1], sys.argv[2], sys.argv[3:]
remote = RemoteCheckpoints(url, pack_bytes=4000)
for number in numbers:
    remote.push(path, number)
    print(number, flush=True)
"""


@pytest.mark.costly
@pytest.mark.parametrize("urls", ["directory", *servers.AZURITE], indirect=True)
def test_kills_amid_push(tmp_path, urls, record_property):
    """Every checkpoint that is listed pulls and verifies, and each acknowledged one is there."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    numbers = []
    for number in range(6):
        run.add(400)
        run.save(number, keep=None)
        numbers.append(str(number))
    run.buffer.close()
    url = urls("bucket")
    rng = random.Random(0)
    acknowledged = set()
    saved = run.place / "checkpoints"
    command = [sys.executable, "-c", CHILD.format(root=str(ROOT)), url, str(saved)]
    killed = 0  # those that it did not come too late for
    for kill in range(KILLS):
        child = subprocess.Popen([*command, *numbers], stdout=subprocess.PIPE, text=True)
        said = child.stdout.readline()  # it has begun, and is amid the pushes from here on
        stop = threading.Timer(rng.random() * 0.05, child.kill)
        stop.start()
        acknowledged |= {line.strip() for line in [said, *child.stdout] if line.strip()}
        child.wait()
        stop.cancel()
        child.stdout.close()
        assert child.returncode in (0, -signal.SIGKILL)
        killed += child.returncode != 0
        with RemoteCheckpoints(url) as remote:
            listed = {one.suffix for one in remote.list()}
            assert acknowledged <= listed
            assert remote.verify(deep=True).clean
            for suffix in sorted(listed):
                pulled = remote.pull(suffix, tmp_path / f"pulled-{kill}")
                assert same(saved / f"replay_ckpt.{suffix}", pulled)
        shutil.rmtree(tmp_path / f"pulled-{kill}", ignore_errors=True)  # none, if none is listed
        if kill % 3 == 2:  # and once more from nothing
            url = urls(f"bucket-{kill}")
            command[3], acknowledged = url, set()
    record_property("killed", killed)


def test_two_runs_beside_each_other(tmp_path, racing):
    """One goes on, the other raises TakenOverError; all that is listed verifies."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(500)
    path = run.save(1)
    options = racing.options
    for number in range(RACES):
        url = f"{racing.url}/race-{number}"
        results = {}
        barrier = threading.Barrier(3)

        def publish(name, url=url, results=results, barrier=barrier):
            remote = RemoteCheckpoints(url, run=name, storage_options=options)
            barrier.wait()
            try:
                results[name] = remote.push(path)
            except errors.TakenOverError as error:
                results[name] = error

        threads = [threading.Thread(target=publish, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [name for name, one in results.items() if not isinstance(one, Exception)]
        assert len(results) == 3
        assert len(winners) == 1
        remote = RemoteCheckpoints(url, storage_options=options)
        assert [one.run for one in remote.list()] == winners
        assert remote.verify(deep=True).clean
    run.buffer.close()
