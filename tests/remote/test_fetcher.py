"""pull: whole or not at all; what is here already is not fetched again."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import diskreplay
from diskreplay import errors
from diskreplay.remote import RemoteCheckpoints
from tests import disks
from tests.remote import servers
from tests.remote.conftest import Run
from tests.remote.test_checkpoints import same

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("DISKREPLAY_KILLS", "6")) // 2


@pytest.mark.costly(1)
def test_a_flipped_bit_in_any_object_is_named(run, anywhere, tmp_path):
    run.add(900)
    path = run.save(1)
    one = anywhere(pack_bytes=5000)
    one.push(path)
    objects = [found.key for found in one._bucket.list("packs/")]
    assert len(objects) > 2
    for key in objects:
        data, _tag = one._bucket.get(key, 1 << 30)
        for spoilt in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"\0", b""):
            one._bucket.put(key, spoilt)
            with pytest.raises((errors.CorruptCheckpointError, errors.RemoteError), match=key):
                one.pull(1, tmp_path / "pulled")
            assert not list((tmp_path / "pulled").glob("*"))
            assert not one.verify(deep=True).clean
        one._bucket.delete([key])
        with pytest.raises(errors.CorruptCheckpointError, match=f"{key}: missing"):
            one.pull(1, tmp_path / "pulled")
        assert one.verify().findings == (f"{one._bucket.where(key)}: missing (checkpoints 1)",)
        one._bucket.put(key, data)
    assert same(path, one.pull(1, tmp_path / "pulled"))
    assert not list((tmp_path / "pulled").glob(".*"))


def test_what_other_checkpoints_have_is_linked(tmp_path, remote):
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(2000)
    one = remote()
    one.push(run.save(1))
    run.add(50)
    path = run.save(2)
    one.push(path)
    first = one.pull(1, tmp_path / "pulled")
    second = one.pull(2, tmp_path / "pulled")
    shared = [p for p in second.rglob("c.*") if p.stat().st_nlink > 1]
    assert len(shared) > 10
    one.pull(2, tmp_path / "pulled")  # there already
    for file in first.rglob("c.*"):  # rotten here: not taken
        file.chmod(0o644)
        file.write_bytes(bytes(len(file.read_bytes())))
    os.rename(second, tmp_path / "pulled" / "aside")
    assert same(path, one.pull(2, tmp_path / "pulled"))
    run.buffer.close()


@pytest.mark.parametrize("how", ["pull", "open", "load"])
def test_what_has_rotted_here_is_made_anew(run, remote, tmp_path, how):
    """In the same length, so that only its bytes tell. What is right of it is linked."""
    run.add(900)
    path = run.save(1)
    one = remote()
    one.push(path)
    if how == "load":
        run.buffer.load(one)
        pulled = run.place / "replay.remote" / path.name
    else:
        pulled = one.pull(1, tmp_path / "pulled")
    before = run.buffer.sample(32)
    for file in (pulled / "observation").glob("c.*"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.unlink()  # not in the other checkpoints
        file.write_bytes(data)
    assert not same(path, pulled)
    sound = next((pulled / "reward").glob("c.*"))
    number = sound.stat().st_ino
    if how == "pull":
        assert one.pull(1, tmp_path / "pulled") == pulled
    elif how == "open":
        one.open(1, cache=tmp_path / "pulled").close()
    else:
        assert run.buffer.load(one).number == 1
        assert len(run.buffer.sample(32).id) == len(before.id)
    assert same(path, pulled)
    assert sound.stat().st_ino == number


def test_what_is_right_here_is_not_fetched(run, remote, tmp_path):
    run.add(100)
    one = remote()
    one.push(run.save(1))
    one.pull(1, tmp_path / "pulled")
    for found in one._bucket.list("packs/"):
        one._bucket.delete([found.key])
    one.pull(1, tmp_path / "pulled")


def said_to_be(one, change):
    """Let a published checkpoint say something else of its files and objects."""
    registry = one._reading()
    at = registry.find(None)
    found = json.loads(registry.document(at).encode())
    found["manifest"] = json.loads(found["manifest"])
    change(found)
    found["manifest"] = json.dumps(found["manifest"])
    one._bucket.put(at.document, json.dumps(found).encode())
    one._reader._documents.clear()


def of_zeros_without_end(found):
    found["manifest"]["files"]["reward/zarr.json"][0] = 1 << 60
    found["files"]["reward/zarr.json"][2] = 0


@pytest.mark.timeout(60)
def test_a_file_that_cannot_be(run, remote, tmp_path):
    """Its zeros take no room in the store."""
    run.add(100)
    one = remote()
    one.push(run.save(1))
    said_to_be(one, of_zeros_without_end)
    requests = one._bucket.requests
    with pytest.raises(errors.CorruptCheckpointError, match=r"reward/zarr\.json.*the whole file"):
        one.pull(1, tmp_path / "pulled")
    assert one._bucket.requests == requests + 2  # the catalog and the document
    assert not (tmp_path / "pulled").exists()


@pytest.mark.timeout(60)
def test_files_that_cannot_be_together(run, remote, tmp_path):
    """Each of them is shorter than the file system."""

    def of_zeros(found):
        size = shutil.disk_usage(tmp_path).total * 3 // 5
        for key in ("reward/zarr.json", "action/zarr.json"):
            found["manifest"]["files"][key][0] = size

    run.add(100)
    one = remote()
    one.push(run.save(1))
    said_to_be(one, of_zeros)
    with pytest.raises(errors.CorruptCheckpointError, match=r"of zeros together, and the whole"):
        one.pull(1, tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.timeout(60)
def test_zeros_without_end_are_no_work(run, remote, tmp_path, monkeypatch):
    """On a file system that does not say how large it is."""
    monkeypatch.setattr("shutil.disk_usage", lambda _path: types.SimpleNamespace(total=0))
    run.add(100)
    one = remote()
    one.push(run.save(1))
    said_to_be(one, of_zeros_without_end)
    with pytest.raises(errors.CorruptCheckpointError, match=r"reward/zarr\.json do not match"):
        one.pull(1, tmp_path / "pulled")


def test_an_object_that_does_not_fit_into_memory(run, remote, tmp_path, monkeypatch):
    run.add(100)
    one = remote()
    one.push(run.save(1))
    monkeypatch.setattr("diskreplay.store.machine.memory", lambda: 1000)
    with pytest.raises(errors.StorageError, match="in memory at once") as refused:
        one.pull(1, tmp_path / "pulled")
    assert refused.value.errno == errno.ENOMEM

    def change(found):
        found["objects"][0][1] = 1 << 60

    said_to_be(one, change)
    with pytest.raises(errors.CorruptCheckpointError, match=r"bytes found, 1,152,9.* expected"):
        one.pull(1, tmp_path / "again")
    assert "bytes found" in one.verify(deep=True).findings[0]


def test_a_directory_that_is_there_is_replaced_whole(run, remote, tmp_path):
    run.add(100)
    path = run.save(1)
    remote().push(path)
    pulled = tmp_path / "pulled" / "replay_ckpt.1"
    (pulled / "notes").mkdir(parents=True)
    (pulled / "zarr.json").write_text("{}")
    assert remote().pull(1, tmp_path / "pulled") == pulled
    assert same(path, pulled)


def test_no_room(run, remote, tmp_path):
    run.add(100)
    remote().push(run.save(1))
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StorageError):
        remote().pull(1, tmp_path / "file")


IN_MEMORY = """
import errno, sys
from pathlib import Path
import numpy as np
import diskreplay
from diskreplay.remote import RemoteCheckpoints
from tests import disks
room = Path(sys.argv[2])
room.mkdir()
disks.mount(room, "size=32m")
pulled = RemoteCheckpoints(sys.argv[1]).pull(1, room / "pulled")
try:
    with open(room / "fill", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    assert error.errno == errno.ENOSPC
with diskreplay.open(pulled) as buffer:
    print(len(buffer.take("reward", np.arange(2000))), flush=True)
"""


@pytest.mark.skipif(not disks.can_mount(), reason="needs a file system of its own")
def test_zeros_in_memory_have_room(tmp_path):
    """Reading a hole there takes a page, and without one the process gets SIGBUS."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    for _ in range(2000):
        run.buffer.add(np.zeros(16, np.uint8), 0, 0.0, False, False)
    url = f"file://{tmp_path}/bucket"
    with RemoteCheckpoints(url) as remote:
        remote.push(run.save(1))
    run.buffer.close()
    command, options = disks.alone("-c", IN_MEMORY, url, tmp_path / "room")
    ended = subprocess.run(command, **options, capture_output=True, check=False)
    assert ended.stdout == "2000\n", (ended.returncode, ended.stderr)


CHILD = """
import sys
sys.path.insert(0, {root!r})
from diskreplay.remote import RemoteCheckpoints
remote = RemoteCheckpoints(sys.argv[1], concurrency=1)
remote.list()
print("begins", flush=True)
for suffix in sys.argv[3:]:
    print(remote.pull(suffix, sys.argv[2]), flush=True)
"""


def test_what_a_kill_left_goes_also_where_the_checkpoint_is_there(tmp_path):
    """Killed behind the last rename, before its directory of work was removed."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    with RemoteCheckpoints(f"file://{tmp_path}/bucket") as remote:
        run.add(50)
        remote.push(run.save(1))
        target = tmp_path / "pulled"
        path = remote.pull(1, target)
        (target / f".{path.name}.tmp-0123456789abcdef" / path.name).mkdir(parents=True)
        assert remote.pull(1, target) == path
        assert [each.name for each in target.iterdir()] == [path.name]
    run.buffer.close()


@pytest.mark.costly
@pytest.mark.parametrize("urls", ["directory", *servers.AZURITE], indirect=True)
def test_kills_amid_pull(tmp_path, urls, record_property):
    """A checkpoint is there whole or not; the next pull goes on, and leaves nothing behind."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    url = urls("bucket")
    with RemoteCheckpoints(url, pack_bytes=3000) as remote:
        for number in range(4):
            run.add(500)
            remote.push(run.save(number, keep=None))
    run.buffer.close()
    rng, saved = random.Random(1), run.place / "checkpoints"
    killed = 0  # those that it did not come too late for
    for kill in range(KILLS):
        target = tmp_path / f"pulled-{kill}"
        command = [sys.executable, "-c", CHILD.format(root=str(ROOT)), url, str(target)]
        child = subprocess.Popen([*command, *"0123"], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "begins\n"
        threading.Timer(rng.random() * 0.1, child.kill).start()
        said = [Path(line.strip()) for line in child.stdout]
        child.wait()
        child.stdout.close()
        assert child.returncode in (0, -signal.SIGKILL)
        killed += child.returncode != 0
        for path in {*said, *target.glob("replay_ckpt.*")}:
            assert same(saved / path.name, path)
        with RemoteCheckpoints(url) as remote:
            for suffix in "0123":
                assert same(saved / f"replay_ckpt.{suffix}", remote.pull(suffix, target))
        assert not list(target.glob(".*"))
        shutil.rmtree(target)
    record_property("killed", killed)


def test_a_pull_does_not_look_for_the_directories_that_it_has_made(
    run, remote, tmp_path, monkeypatch
):
    """Such a look raises a bare FileNotFoundError where they vanish meanwhile."""
    run.add(100)
    path, one, place, look = run.save(1), remote(), tmp_path / "pulled", os.scandir
    one.push(path)

    def overtaken(at="."):
        if str(at).endswith(path.name) and place.exists():
            place.rename(tmp_path / "moved")
        return look(at)

    monkeypatch.setattr(os, "scandir", overtaken)
    assert same(path, one.pull(1, place))
