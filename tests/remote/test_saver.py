"""`save` and `load` of a buffer with a URL."""

import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import diskreplay
from diskreplay import errors
from diskreplay.locks import Lock
from diskreplay.remote import RemoteCheckpoints
from tests.remote import servers
from tests.remote.conftest import Run
from tests.test_interrupt import interrupted


@pytest.fixture
def url(tmp_path):
    return f"memory://{servers.own(tmp_path)}"


def wait_for(condition, patience=240.0):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < patience
        time.sleep(0.01)


def test_save_and_load(run, url, tmp_path):
    run.add(600)
    path = run.buffer.save(url, 1, attachments={"agent.pt": b"weights"})
    assert path == run.place / "replay.remote" / "replay_ckpt.1"
    status = run.buffer.save_status()
    assert (status.suffix, status.state, status.error) == ("1", "published", None)
    expected = [run.buffer.sample(16).id for _ in range(20)]
    with run.open(tmp_path / "elsewhere" / "replay") as other:
        assert other.save_status() is None
        loaded = other.load(url)
        assert loaded.number == 1
        assert loaded.attachments["agent.pt"].read_bytes() == b"weights"
        for ids in expected:
            assert (other.sample(16).id == ids).all()
        with pytest.raises(errors.TakenOverError):
            other.save(url, 2)
        other.save(RemoteCheckpoints(url, takeover=True), 2)
    with pytest.raises(errors.TakenOverError):
        run.buffer.save(url, 3)
    assert [one.suffix for one in RemoteCheckpoints(url).list()] == ["1", "2"]


def test_a_run_that_goes_on_is_the_same_run(tmp_path, url):
    for number in range(3):
        run = Run(tmp_path)
        run.add(100)
        run.buffer.save(url, number)
        run.buffer.close()
    assert [one.rows for one in RemoteCheckpoints(url).list()] == [100, 200, 300]
    assert os.listdir(tmp_path / "replay.remote").count("replay_ckpt.2") == 1


def test_so_many_are_kept(run, url):
    for number in range(6):
        run.add(50)
        run.buffer.save(url, number, keep=2)
    run.buffer.save(url, "best", keep=2)
    assert [one.suffix for one in RemoteCheckpoints(url).list()] == ["best", "4", "5"]
    run.buffer.save(url, 6, keep=None)
    assert len(RemoteCheckpoints(url).list()) == 4
    with pytest.raises(errors.InvalidInputError, match="keep"):
        run.buffer.save(url, 7, keep=0)


@pytest.mark.parametrize("outer", ["save", "load"])
def test_a_handler_amid_a_save_or_load(run, url, outer):
    """It removed what the call that it came amid was about to publish, or to load: that ended with
    a CorruptCheckpointError, or an IncompleteCheckpointError."""
    run.add(60)
    number, refused, served = 100, 0, 0

    def handler():
        nonlocal number, refused, served
        number += 1
        try:
            run.buffer.save(url, number, keep=None)
            served += 1
        except errors.ReentryError:
            refused += 1

    handler()
    calls = {
        "save": lambda: run.buffer.save(url, number - 100),
        "load": lambda: run.buffer.load(url),
    }
    place = 0
    while interrupted(calls[outer], place, handler):
        place += 701
    assert refused > 5
    assert served > 0
    assert [one.suffix for one in RemoteCheckpoints(url).list()][-1] == str(100 + served)


@pytest.mark.parametrize("with_what", ["buffer", "destination"])
def test_a_save_amid_a_call_of(run, url, with_what):
    """Whoever saves to a URL may wait for the end of that call."""
    run.add(60)
    remote = RemoteCheckpoints(url)
    lock = run.buffer._lock if with_what == "buffer" else remote._turn
    with lock:
        for call in (lambda: run.buffer.save(remote, 1), lambda: run.buffer.load(remote)):
            with pytest.raises(errors.ReentryError):
                call()
    run.buffer.save(remote, 1)


class Slow:
    """A bucket whose puts wait until they may."""

    def __init__(self, remote):
        self.may = threading.Event()
        create = remote._bucket.create
        remote._bucket.create = lambda *args: self.may.wait(240) and create(*args)


def test_a_run_that_counts_from_the_beginning_again_keeps_its_newest(run, url, tmp_path):
    run.add(50)
    for number in (100, 200, 300, 400):
        run.buffer.save(url, number)
    with run.open(tmp_path / "elsewhere" / "replay") as other:
        remote = RemoteCheckpoints(url, takeover=True)
        for number in (1, 2, 3):
            other.save(remote, number)
            assert other.save_status().state == "published"
            left = [one.suffix for one in remote.list()]
            assert left == [str(number), "100", "200", "300", "400"]
            assert other.load(remote, number).number == number


def test_not_to_wait(run, url):
    remote = RemoteCheckpoints(url)
    slow = Slow(remote)
    run.add(200)
    run.buffer.save(remote, 1, wait=False)
    assert run.buffer.save_status().state == "publishing"
    run.add(200)  # training goes on
    run.buffer.sample(8)
    assert RemoteCheckpoints(url).list() == []
    slow.may.set()
    wait_for(lambda: run.buffer.save_status().state == "published")
    assert [one.rows for one in RemoteCheckpoints(url).list()] == [200]


def test_the_next_save_and_close_wait(run, url):
    remote = RemoteCheckpoints(url)
    slow = Slow(remote)
    run.add(100)
    run.buffer.save(remote, 1, wait=False)
    threading.Timer(0.2, slow.may.set).start()
    run.buffer.save(remote, 2, wait=False)
    assert "1" in [one.suffix for one in RemoteCheckpoints(url).list()]
    run.buffer.close()
    assert [one.suffix for one in RemoteCheckpoints(url).list()] == ["1", "2"]


def refusing(error):
    def refuse(*_args):
        raise error

    return refuse


def test_a_failure_on_the_thread_is_told(run, url):
    remote = RemoteCheckpoints(url)
    create = remote._bucket.create
    run.add(100)
    gone = errors.RemoteUnavailableError(5, "no answer", "memory://")
    remote._bucket.create = refusing(gone)
    run.buffer.save(remote, 1, wait=False)
    wait_for(lambda: run.buffer.save_status().state == "failed")
    assert run.buffer.save_status().error is gone
    remote._bucket.create = create
    with pytest.warns(RuntimeWarning, match="checkpoint 1 was not published"):
        run.buffer.save(remote, 2)  # it came back: this one makes up for it
    assert run.buffer.save_status().state == "published"

    RemoteCheckpoints(url, run="other", takeover=True).push(run.save(3))
    run.buffer.save(remote, 4, wait=False)
    wait_for(lambda: run.buffer.save_status().state == "failed")
    with pytest.raises(errors.TakenOverError):  # no later one can be published
        run.buffer.save(remote, 5, wait=False)


@pytest.mark.parametrize("wait", [True, False])
def test_a_push_that_anything_cuts_has_failed(tmp_path, url, wait):
    """What is no `Exception`, too: else it would be under way for ever."""
    run, remote, cut = Run(tmp_path), RemoteCheckpoints(url), BaseException("cut")
    remote._bucket.create = refusing(cut)
    run.add(100)
    if wait:
        with pytest.raises(BaseException, match="cut"):
            run.buffer.save(remote, 1)
    else:
        run.buffer.save(remote, 1, wait=False)
        wait_for(lambda: run.buffer.save_status().state == "failed")
        assert run.buffer.save_status().error is cut
        with pytest.warns(RuntimeWarning, match="checkpoint 1 was not published: cut"):
            run.buffer.close()
    assert run.buffer.save_status().state == "failed"
    run.buffer.close()


def test_close_warns_of_a_failure_and_lets_go(tmp_path, url):
    run = Run(tmp_path)
    run.add(100)
    RemoteCheckpoints(url, run="other").push(run.save(1))
    run.buffer.save(url, 2, wait=False)
    with pytest.warns(RuntimeWarning, match="checkpoint 2 was not published.*run other"):
        run.buffer.close()
    assert run.buffer.closed
    run.open(run.buffer.path).close()  # nobody holds it


@pytest.mark.parametrize("dropped", ["when it has failed", "before it fails"])
def test_a_failure_of_a_dropped_buffer_is_told_once(tmp_path, url, dropped):
    """Without `close`: as asyncio tells of an exception that nobody has asked for."""
    run, remote, may = Run(tmp_path), RemoteCheckpoints(url), threading.Event()

    def refuse(*_args):
        may.wait(240)
        raise errors.RemoteUnavailableError(5, "no answer", "memory://")

    remote._bucket.create = refuse
    run.add(100)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run.buffer.save(remote, 7, wait=False)
        pushing = run.buffer._saver._pushing
        if dropped == "when it has failed":
            may.set()
            wait_for(lambda: run.buffer.save_status().state == "failed")
            pushing.join()
            assert told == []
            path = run.buffer.path
            del run.buffer  # no collection of garbage is needed
            run.open(path).close()
        else:
            del run.buffer
            may.set()
            pushing.join()
        gc.collect()
    (one,) = told
    assert one.category is RuntimeWarning
    assert str(one.message).startswith(f"{url}: checkpoint 7 was not published: ")
    assert "no answer" in str(one.message)


def test_a_failure_that_was_told_is_not_told_again(tmp_path, url):
    run, remote = Run(tmp_path), RemoteCheckpoints(url)
    remote._bucket.create = refusing(errors.RemoteUnavailableError(5, "no answer", "memory://"))
    run.add(100)
    with pytest.raises(errors.RemoteUnavailableError):
        run.buffer.save(remote, 1)
    run.buffer.save(remote, 2, wait=False)
    with pytest.warns(RuntimeWarning, match=f"{url}: checkpoint 2 was not published"):
        run.buffer.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del run.buffer
        gc.collect()


AT_THE_END = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from diskreplay.remote import RemoteCheckpoints
from tests.remote.conftest import Run
from tests.test_interrupt import interrupted
run = Run(Path(sys.argv[1]))
run.add(100)
RemoteCheckpoints(sys.argv[2], run="another").push(run.save(1))
run.buffer.save(sys.argv[2], 2, wait=False)
if sys.argv[3] == "forked":
    import os
    run.buffer._saver.wait()
    if not os.fork():
        sys.exit()  # it is not this one's to tell
    os.wait()
"""


@pytest.mark.parametrize("how", ["plain", "forked"])
def test_a_failure_is_told_at_the_end_of_the_program(tmp_path, how):
    program = AT_THE_END.format(root=str(Path(__file__).resolve().parents[2]))
    url = f"file://{tmp_path}/bucket"
    command = [sys.executable, "-c", program, str(tmp_path), url, how]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr.count(f"RuntimeWarning: {url}: checkpoint 2 was not published") == 1
    assert "run another publishes" in ended.stderr


def test_a_dropped_buffer_lets_go(tmp_path, url):
    run = Run(tmp_path)
    run.add(100)
    run.buffer.save(url, 1)
    path = run.buffer.path
    del run.buffer  # no collection of garbage is needed
    run.open(path).close()


def test_the_local_checkpoint_is_there_when_publishing_fails(run, url):
    remote = RemoteCheckpoints(url)
    remote._bucket.create = refusing(errors.RemoteUnavailableError(5, "no answer", "memory://"))
    run.add(100)
    with pytest.raises(errors.RemoteUnavailableError):
        run.buffer.save(remote, 1)
    path = run.buffer.save_status().path
    with diskreplay.open(path) as saved:
        assert len(saved) == 100


def test_load_is_all_or_nothing(run, url):
    run.add(300)
    run.buffer.save(url, 1)
    run.add(100)
    before = len(run.buffer)
    for how, error in (
        ((url, 9), errors.CheckpointNotFoundError),
        (("memory://nothing-there",), errors.CheckpointNotFoundError),
        (("nothing://bucket",), errors.InvalidInputError),
    ):
        with pytest.raises(error):
            run.buffer.load(*how)
    remote = RemoteCheckpoints(url)
    one = remote.list()[0]
    with run.open(run.place / "second") as other:
        other.add(np.zeros(16, "uint8"), 0, 0.0, False, False)
        key = next(iter(remote._reading().document(one).objects))
        data, _tag = remote._bucket.get(key, 1 << 30)
        remote._bucket.put(key, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(errors.CorruptCheckpointError):
            other.load(url)
        assert len(other._rows.store.count) == 1
        assert int(other._rows.store.count[0]) == 1
    assert len(run.buffer) == before


def test_a_reader_cannot(run, url):
    run.add(10)
    with diskreplay.open(run.buffer.path) as reader:
        with pytest.raises(errors.ReadOnlyError):
            reader.save(url, 1)
        with pytest.raises(errors.ReadOnlyError):
            reader.load(url)


def test_another_name(run, url, tmp_path):
    run.add(10)
    run.buffer.save(url, 1)
    with (
        diskreplay.ReplayBuffer(
            tmp_path / "named", observation_space=run.buffer.observation_space,
            action_space=run.buffer.action_space, capacity=100, name="evaluation",
        ) as other,
        pytest.raises(errors.CheckpointNotFoundError, match="of others: replay"),
    ):  # fmt: skip
        other.load(url)


def test_run_state(tmp_path, url):
    """A run on another machine goes on from the bucket: rows, network and generator."""
    torch = pytest.importorskip("torch")
    from diskreplay.integrations.torch import RunState

    def state(run, where):
        torch.manual_seed(run.added)
        network = torch.nn.Linear(3, 2)
        return RunState(run.buffer, where, modules={"q": network}), network

    one = Run(tmp_path / "one")
    saved, network = state(one, url)
    assert saved.load() == (None, {})
    one.add(200)
    saved.save(7, epsilon=0.5)
    expected = torch.rand(3)
    one.buffer.close()
    other = Run(tmp_path / "two")
    other.add(3)
    loaded, copy = state(other, RemoteCheckpoints(url, takeover=True))
    assert loaded.load() == (7, {"epsilon": 0.5})
    assert (copy.weight == network.weight).all()
    assert (torch.rand(3) == expected).all()
    assert len(other.buffer) == 200
    loaded.save(8)
    with pytest.raises(errors.CheckpointNotFoundError):
        loaded.load(9)
    other.buffer.close()


@pytest.mark.parametrize("first", ["list", "load", "another directory"])
def test_a_run_that_has_looked_first_keeps_what_it_has_published(run, url, tmp_path, first):
    remote = RemoteCheckpoints(url, takeover=True)
    remote.list()
    if first == "load":
        with pytest.raises(errors.CheckpointNotFoundError):
            run.buffer.load(remote)
    elif first == "another directory":
        with run.open(tmp_path / "b" / "replay") as other:
            other.save(remote, 0)
    for number in range(1, 9):
        run.add(50)
        run.buffer.save(remote, number)
    assert [one.number for one in remote.list()] == [5, 6, 7, 8]


@pytest.mark.parametrize("takeover", [False, True])
def test_old_ones_are_removed_by_a_run_that_was_loaded(tmp_path, url, takeover):
    run = Run(tmp_path)
    run.add(50)
    run.buffer.save(url, 1)
    run.buffer.close()
    place = tmp_path / "elsewhere" if takeover else tmp_path
    where = RemoteCheckpoints(url, takeover=True) if takeover else url
    run = Run(place)
    run.buffer.load(where)
    for number in range(2, 9):
        run.add(50)
        run.buffer.save(where, number)
    run.buffer.close()
    assert [one.number for one in RemoteCheckpoints(url).list()] == [5, 6, 7, 8]


def test_a_run_that_was_preempted_between_its_load_and_its_first_save(tmp_path, url):
    first = Run(tmp_path / "first")
    first.add(100)
    first.buffer.save(url, 1)
    one, two = Run(tmp_path / "one"), Run(tmp_path / "two")
    mine, theirs = (RemoteCheckpoints(url, takeover=True) for _ in range(2))
    one.buffer.load(mine)
    two.buffer.load(theirs)
    two.buffer.save(theirs, 2)
    for number in (3, 4):
        with pytest.raises(errors.TakenOverError):
            one.buffer.save(mine, number)
    two.buffer.save(theirs, 3)
    assert [each.number for each in theirs.list()] == [1, 2, 3]
    for each in (first, one, two):
        each.buffer.close()


def test_a_run_that_took_over_and_was_killed_is_the_same_run(tmp_path, url):
    """It needs no leave to take over again: its name is in the directory that it loaded to."""
    first = Run(tmp_path / "first")
    first.add(100)
    first.buffer.save(url, 1)
    first.buffer.close()
    second = Run(tmp_path / "second")
    second.buffer.load(RemoteCheckpoints(url, takeover=True))
    second.buffer.close()
    again = Run(tmp_path / "second")
    again.buffer.save(url, 2)
    again.buffer.close()
    assert [each.number for each in RemoteCheckpoints(url).list()] == [1, 2]


def test_no_directory_is_made_where_there_is_nothing_to_pull(tmp_path, url):
    with pytest.raises(errors.CheckpointNotFoundError):
        RemoteCheckpoints(url, takeover=True).pull(None, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_pulls_to_other_directories_leave_the_run_that_publishes(run, url, tmp_path):
    run.add(100)
    run.buffer.save(url, 0)
    remote = RemoteCheckpoints(url, takeover=True)
    run.buffer.save(remote, 1)
    before = remote.list()[-1].run
    for number in (2, 3):
        remote.pull(None, tmp_path / "eval")
        run.buffer.save(url, number)
    assert {one.run for one in remote.list()} == {before}


def test_a_push_that_is_refused_leaves_the_run_that_collects(run, url, tmp_path):
    remote = RemoteCheckpoints(url)
    for number in range(3):
        run.add(50)
        path = run.buffer.save(remote, number)
    with run.open(tmp_path / "b" / "replay") as other, pytest.raises(errors.TakenOverError):
        other.save(remote, 9)
    assert remote.collect(1, 0).checkpoints == ("0", "1")
    assert path.exists()


class Told(Lock):
    """Says when somebody has to wait for it."""

    def __init__(self):
        super().__init__()
        self.awaited = threading.Event()

    def __enter__(self):
        if not self.acquire(blocking=False):
            self.awaited.set()
            self.acquire()
        return True


def test_a_save_of_another_thread_amid_a_load_of_a_run(run, url):
    """It replaced what had been fetched, and the load ended with a CheckpointNotFoundError."""
    torch = pytest.importorskip("torch")
    from diskreplay.integrations.torch import RunState

    class Net(torch.nn.Module):
        """Another thread saves as it is loaded."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.meanwhile = lambda: None

        def load_state_dict(self, *state, **options):
            self.meanwhile()
            return super().load_state_dict(*state, **options)

    run.add(60)
    net = Net()
    state = RunState(run.buffer, url, modules={"net": net})
    state.save(1, step=7)
    run.add(10)
    saver = run.buffer._remote_saver()
    saver._saving = lock = Told()
    other = threading.Thread(target=lambda: (run.buffer.save(url, 2), lock.awaited.set()))

    def meanwhile():
        net.meanwhile = lambda: None
        other.start()
        assert lock.awaited.wait(60)

    net.meanwhile = meanwhile
    assert state.load(1) == (1, {"step": 7})
    assert run.buffer.add_count == 60
    other.join(60)
    assert [one.suffix for one in RemoteCheckpoints(url).list()] == ["1", "2"]
