"""collect: what is needed stays, whoever pushes meanwhile."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import diskreplay
from diskreplay import errors
from diskreplay.errors import TakenOverError
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.collector import Collector, seconds_of
from diskreplay.remote.fenced_object import Takeover
from diskreplay.remote.registry import Registry
from tests.remote import servers
from tests.remote.conftest import Run
from tests.remote.test_checkpoints import same

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("DISKREPLAY_KILLS", "6")) // 2


def interrupted(remote, number, what):
    """Call `what` before the request of this number that `remote` makes; returns its requests."""
    calls, bucket = [], remote._bucket

    def wrapped(call):
        def counted(*args):
            calls.append(args[0])
            if len(calls) == number + 1:
                what()
            return call(*args)

        return counted

    for name in ("create", "swap", "size", "get", "delete", "list"):
        setattr(bucket, name, wrapped(getattr(bucket, name)))
    return calls


def test_times():
    assert seconds_of("1.5h") == 5400
    assert seconds_of(7) == 7
    assert seconds_of("365000d") == 365_000 * 86_400


@pytest.mark.parametrize("grace", ["99999999999d", "9" * 400, 1e15, "365001d"])
def test_an_age_that_nothing_has_is_refused(run, remote, grace):
    run.add(50)
    one = remote()
    one.push(run.save(1))
    with pytest.raises(errors.InvalidInputError, match="1,000 years"):
        one.collect(1, grace)


def test_the_longest_age(run, remote):
    run.add(50)
    one = remote()
    one.push(run.save(1))
    assert one.collect(1, "365000d").objects == 0


def test_what_none_needs_goes(tmp_path, anywhere):
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    one = anywhere(pack_bytes=4000)
    for number in range(5):
        run.add(700)
        path = run.save(number)
        one.push(path)
    one.push(run.save("kept"))
    before = sum(found.size for found in one._bucket.list(""))
    young = one.collect(2, "24h")
    assert young.checkpoints == ("0", "1", "2")
    assert young.objects == 0
    done = one.collect(2, 0)
    assert done.checkpoints == ()
    assert done.objects > 3
    assert sum(found.size for found in one._bucket.list("")) < before
    assert [each.suffix for each in one.list()] == ["kept", "3", "4"]
    assert one.verify(deep=True).clean
    assert same(path, one.pull(4, tmp_path / "pulled"))
    assert one.collect(2, 0).objects == 0
    needed = {k for each in one.list() for k in one._reading().document(each).objects}
    documents = {each.document for each in one.list()}
    there = {found.key for found in one._bucket.list("")}
    assert there - {".checkpoints.json.lock"} == needed | documents | {"checkpoints.json"}
    run.buffer.close()


@pytest.mark.parametrize("urls", ["memory", *servers.AZURITE], indirect=True)
def test_a_push_amid_a_collection(tmp_path, urls):
    """Every interleaving of one push with one collection that deletes what the push needs."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(500)
    first = run.save(1)
    run.add(500)
    second = run.save(2)
    for stop in range(30):
        url = urls(stop)
        with RemoteCheckpoints(url, run="r") as one:
            one.push(first)
            one.push(second)
            one.collect(1, 3600)  # the first is gone, and its objects are still there
        pushing = RemoteCheckpoints(url, run="r", concurrency=1)
        collecting = RemoteCheckpoints(url, run="r")
        calls = interrupted(pushing, stop, partial(collecting.collect, 1, 0))
        pushing.push(first)
        assert RemoteCheckpoints(url).verify(deep=True).clean
        target = tmp_path / f"pulled-{stop}"
        assert same(first, RemoteCheckpoints(url).pull(1, target))
        collecting.collect(2, 0)
        assert RemoteCheckpoints(url).verify(deep=True).clean
        if len(calls) <= stop:
            break
    assert stop > 4
    run.buffer.close()


@pytest.mark.parametrize("urls", ["memory", *servers.AZURITE], indirect=True)
def test_a_collection_amid_a_push(tmp_path, urls):
    """And of one collection with one push."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    run.add(500)
    first = run.save(1)
    run.add(500)
    second = run.save(2)
    for stop in range(30):
        url = urls(stop)
        with RemoteCheckpoints(url, run="r") as one:
            one.push(first)
            one.push(second)
            one.collect(1, 3600)
        pushing = RemoteCheckpoints(url, run="r", concurrency=1)
        collecting = RemoteCheckpoints(url, run="r")
        calls = interrupted(collecting, stop, partial(pushing.push, first))
        collecting.collect(2, 0)
        checked = RemoteCheckpoints(url).verify(deep=True)
        assert checked.clean
        if len(calls) <= stop:
            break
        assert "1" in checked.checkpoints
    assert stop > 4
    run.buffer.close()


CHILD = """
import sys
sys.path.insert(0, {root!r})
from diskreplay.remote import RemoteCheckpoints
remote = RemoteCheckpoints(sys.argv[1], run="r")
remote.list()
print("begins", flush=True)
print(remote.collect(2, 0), flush=True)
"""


@pytest.mark.parametrize("urls", ["directory", *servers.AZURITE], indirect=True)
def test_kills_amid_collect(tmp_path, urls, record_property):
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    saved = []
    for number in range(5):
        run.add(500)
        saved.append(run.save(number, keep=None))
    run.buffer.close()
    rng = random.Random(2)
    killed = 0  # those that it did not come too late for
    for kill in range(KILLS):
        url = urls(f"bucket-{kill}")
        with RemoteCheckpoints(url, run="r", pack_bytes=3000) as remote:
            for path in saved:
                remote.push(path)
        command = [sys.executable, "-c", CHILD.format(root=str(ROOT)), url]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "begins\n"
        threading.Timer(rng.random() * 0.03, child.kill).start()
        child.communicate()
        assert child.returncode in (0, -signal.SIGKILL)
        killed += child.returncode != 0
        with RemoteCheckpoints(url, run="r") as remote:
            assert remote.verify(deep=True).clean
            listed = [int(one.suffix) for one in remote.list()]
            assert listed in ([0, 1, 2, 3, 4], [3, 4])
            remote.push(saved[0])
            remote.push(saved[4])
            remote.collect(3, 0)
            assert remote.verify(deep=True).clean
            for one in remote.list():
                assert same(saved[one.number], remote.pull(one.suffix, tmp_path / f"p{kill}"))
        shutil.rmtree(tmp_path / f"p{kill}")
        shutil.rmtree(tmp_path / f"bucket-{kill}", ignore_errors=True)  # none in Azurite
    record_property("killed", killed)


def test_only_of_the_catalog_it_has_read(run, remote):
    """A collection that is overtaken deletes by what is true then."""
    run.add(300)
    path = run.save(1)
    remote(run="r").push(path)
    registry = Registry(remote()._bucket, "r", takeover=Takeover(False), unsafe=False)
    read = registry.read_to_write
    turns = []

    def overtaken():
        found = read()
        if not turns:
            remote(run="r").push(run.save(2))
        turns.append(found)
        return found

    registry.read_to_write = overtaken
    Collector(registry).collect(2, 0)
    assert len(turns) == 2
    assert [one.suffix for one in remote().list()] == ["1", "2"]
    assert remote().verify(deep=True).clean


@pytest.mark.parametrize("again", ["pushes", "collects and pushes", "collects twice and pushes"])
def test_a_collection_that_is_stopped_before_it_deletes(tmp_path, anywhere, again):
    """Another run takes over, and publishes objects of the same contents: they stay when the first
    one goes on."""
    run = Run(tmp_path, diskreplay.ReplayBuffer)
    paths = []
    for number in (1, 2):
        run.add(700)
        paths.append(run.save(number))
    run.buffer.close()
    one, two = anywhere(run="one"), anywhere(run="two", takeover=True)
    for path in paths:
        one.push(path)
    delete = one._bucket.delete

    def stopped(keys):
        if again != "pushes":
            two.collect(1, 0)
            two.collect(1, 0 if "twice" in again else 3600)
        two.push(paths[0])
        assert two.verify(deep=True).clean
        delete(keys)

    one._bucket.delete = stopped
    with pytest.raises(TakenOverError, match="run two"):
        one.collect(1, 0)
    assert two.verify(deep=True).clean
    assert same(paths[0], two.pull(1, tmp_path / "pulled"))
    two.collect(1, 0)
    two.push(paths[0])
    assert two.verify(deep=True).clean


def test_names_may_be_used_again_once_a_collection_has_ended(run, anywhere):
    """Also where somebody of the same run has published while it deleted."""
    run.add(700)
    first = run.save(1)
    run.add(700)
    second = run.save(2)
    one, beside = anywhere(run="one"), anywhere(run="one")
    for path in (first, second):
        one.push(path)
    delete, pushed = one._bucket.delete, []

    def slow(keys):
        pushed.append(beside.push(second))
        delete(keys)

    one._bucket.delete = slow
    assert one.collect(1, 0).objects > 0
    assert len(pushed) == 1
    assert one._reading().read()[0].doomed == frozenset()
    assert one.verify(deep=True).clean
