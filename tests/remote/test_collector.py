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

import numpy as np
import pytest

import diskreplay
from diskreplay import errors
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


@pytest.mark.costly
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
    Collector(registry, 4).collect(2, 0)
    assert len(turns) == 2
    assert [one.suffix for one in remote().list()] == ["1", "2"]
    assert remote().verify(deep=True).clean


def unrelated(place):
    """Two checkpoints of one name that have no file in common."""
    paths = []
    for number in (1, 2):
        run, rng = Run(place / str(number), diskreplay.ReplayBuffer), np.random.default_rng(number)
        for row in rng.integers(0, 255, (700, 16), np.uint8):
            run.buffer.add(row, 0, float(rng.random()), False, False)
        paths.append(run.buffer.save(place / "saved", number))
        run.buffer.close()
    return paths


def packs(remote):
    return {found.key for found in remote._bucket.list("packs/")}


@pytest.mark.costly(3)
@pytest.mark.parametrize("collections", [0, 1, 2])
def test_a_collection_that_is_stopped_before_it_deletes(tmp_path, anywhere, collections):
    """Another run takes over, and publishes objects of the same contents: they stay when the first
    one goes on."""
    paths = unrelated(tmp_path)
    one, two = anywhere(run="one"), anywhere(run="two", takeover=True)
    for path in paths:
        one.push(path)
    delete, deleted = one._bucket.delete, set()

    def stopped(keys):
        for _ in range(collections):
            two.collect(1, 0)
        two.push(paths[0])
        assert two.verify(deep=True).clean
        deleted.update(keys)
        delete(keys)

    one._bucket.delete = stopped
    assert one.collect(1, 0).checkpoints == ("1",)
    assert {key.partition("/")[0] for key in deleted} == {"packs", "checkpoints"}
    assert {key[-2:] for key in packs(two)} >= {".1"}  # the same bytes by another name
    for _ in range(2):
        assert two.verify(deep=True).clean
        assert same(paths[0], two.pull(1, tmp_path / "pulled"))
        two.collect(1, 0)
        two.push(paths[0])


def names(remote):
    """What the catalog says about deletions."""
    found, _tag = remote._reading().read()
    return found.doomed, found.least


@pytest.mark.costly(2)
@pytest.mark.parametrize("stopped", ["before the push", "amid it"])
def test_a_push_amid_all_that_a_stopped_collection_leaves(tmp_path, remote, stopped):
    """The first collection is stopped before it deletes, and the second one lets go of the names.
    The deletions of the first come when the push has published the same contents."""
    paths = unrelated(tmp_path)
    for stop in range(30):
        url = f"memory://{servers.own(tmp_path)}"
        with RemoteCheckpoints(url, run="r") as one:
            for path in paths:
                one.push(path)
        late, killed = [], RemoteCheckpoints(url, run="r")
        other, pushing = RemoteCheckpoints(url, run="r"), RemoteCheckpoints(url, run="r")

        def gone(keys, late=late):
            late.extend(keys)
            raise errors.RemoteUnavailableError(5, "killed", "memory://")

        def collections(late=late, killed=killed, other=other):
            if not late:
                with pytest.raises(errors.RemoteUnavailableError):
                    killed.collect(1, 0)
                assert names(other)[0]
            assert other.collect(1, 0).objects > 0
            assert names(other) == (frozenset(), 1)

        killed._bucket.delete = gone
        if stopped == "before the push":
            with pytest.raises(errors.RemoteUnavailableError):
                killed.collect(1, 0)
        calls = interrupted(pushing, stop, collections)
        pushing.push(paths[0])
        if len(calls) <= stop:
            break
        other._bucket.delete(late)
        assert other.verify(deep=True).clean
        pushing.push(paths[1])  # what this program has put before is known to it
        pushing.collect(2, 0)
        other._bucket.delete([key for key in late if key not in packs(other)])
        assert other.verify(deep=True).clean
        assert same(paths[0], other.pull(1, tmp_path / f"pulled-{stop}"))
    assert stop > 4


def test_names_of_collections_that_failed_do_not_stay(tmp_path, anywhere):
    """Nor those whose deletion was repeated; and pushes find names that are free."""
    paths = unrelated(tmp_path)
    one = anywhere(run="one")
    delete = one._bucket.delete

    def failing(_keys):
        raise errors.RemoteUnavailableError(5, "no answer", "memory://")

    for least in (1, 2, 3):
        for path in paths:
            one.push(path)
        one._bucket.delete = failing
        with pytest.raises(errors.RemoteUnavailableError):
            one.collect(1, 0)
        assert names(one)[0]
        one._bucket.delete = delete
        one.collect(1, 0)
        assert names(one) == (frozenset(), least)
        assert one.verify(deep=True).clean
    one.push(paths[0])
    assert names(one) == (frozenset(), 3)
    assert one.collect(2, 0).objects == 0
    assert one.verify(deep=True).clean


def test_names_of_a_killed_collection_go_also_if_nothing_is_left_to_delete(tmp_path, anywhere):
    paths = unrelated(tmp_path)
    one = anywhere(run="one")
    for path in paths:
        one.push(path)
    delete = one._bucket.delete

    def killed(keys):
        delete(keys)
        raise errors.RemoteUnavailableError(5, "killed", "memory://")

    one._bucket.delete = killed
    with pytest.raises(errors.RemoteUnavailableError):
        one.collect(1, 0)
    assert names(one)[0]
    assert one.collect(1, 0).objects == 0
    assert names(one) == (frozenset(), 1)


def test_two_collections_of_one_run(tmp_path, anywhere):
    """The second one is stopped before it deletes what the first one does, too."""
    paths = unrelated(tmp_path)
    one, two = anywhere(run="one"), anywhere(run="one")
    for path in paths:
        one.push(path)
    delete, is_deleting, may_delete = two._bucket.delete, threading.Event(), threading.Event()

    def stopped(keys):
        is_deleting.set()
        assert may_delete.wait(240)
        delete(keys)

    two._bucket.delete = stopped
    thread = threading.Thread(target=two.collect, args=(1, 0))
    its_delete = one._bucket.delete

    def amid(keys):
        thread.start()
        assert is_deleting.wait(240)
        its_delete(keys)

    one._bucket.delete = amid
    one.collect(1, 0)
    one.push(paths[0])
    may_delete.set()
    thread.join()
    assert one.verify(deep=True).clean
    assert same(paths[0], one.pull(1, tmp_path / "pulled"))


def test_names_may_be_used_again_once_a_collection_has_ended(tmp_path, anywhere):
    paths = unrelated(tmp_path)
    one = anywhere(run="one")
    for path in paths:
        one.push(path)
    before = packs(one)
    assert one.collect(1, 0).objects > 0
    one.push(paths[0])
    assert packs(one) == before


@pytest.mark.costly(2)
@pytest.mark.parametrize("damage", ["missing", "other bytes"])
def test_a_checkpoint_that_does_not_say_what_it_needs(tmp_path, anywhere, damage):
    """No object goes then; old checkpoints do. It can be pushed again."""
    paths = unrelated(tmp_path)
    one = anywhere(run="one")
    for path in paths:
        one.push(path)
    (last,) = (found for found in one.list() if found.suffix == "2")
    one._bucket.delete([last.document])
    if damage == "other bytes":
        one._bucket.put(last.document, b"{}")
    one, there = anywhere(run="one"), packs(one)
    for _ in range(2):
        with pytest.raises(errors.CorruptCheckpointError, match="push checkpoint 2 again"):
            one.collect(1, 0)
        assert [found.suffix for found in one.list()] == ["2"]
        assert packs(one) == there
    one.push(paths[1])
    assert one.collect(1, 0).objects > 0
    assert one.verify(deep=True).clean
