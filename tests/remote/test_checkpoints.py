"""RemoteCheckpoints: what is pushed comes back, from every kind of store."""

import copy
import filecmp
import json
import pickle

import numpy as np
import pytest

import diskreplay
from diskreplay import errors
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.run_file import RUN_FILE
from tests.remote import servers
from tests.remote.conftest import Run


def same(one, other):
    """Whether two directories have the same files, byte for byte."""
    compared = filecmp.dircmp(one, other, ignore=[])
    if compared.left_only or compared.right_only or compared.funny_files:
        return False
    _equal, different, errors = filecmp.cmpfiles(one, other, compared.common_files, shallow=False)
    inside = all(same(one / name, other / name) for name in compared.common_dirs)
    return not different and not errors and inside


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_they_cannot_be_sent_to_another_process(tmp_path, send):
    """With their options what may be a credential would be sent, too."""
    secret = {"secret_access_key": "very-secret", "access_key_id": "me", "region": "us-east-1"}
    for one in (
        RemoteCheckpoints(f"memory://{servers.own(tmp_path)}"),
        RemoteCheckpoints("s3://bucket/run", storage_options=secret),
    ):
        with pytest.raises(errors.InvalidInputError, match="pass the URL and the options") as told:
            send(one)
        assert "very-secret" not in str(told.value)


def test_what_is_pushed_comes_back(run, anywhere, tmp_path):
    run.add(1000)
    first = run.save(1, attachments={"agent.pt": b"weights", "nets/empty": b""})
    remote = anywhere()
    pushed = remote.push(first, extra={"score": 21})
    assert pushed.suffix == "1"
    run.add(600)
    second = run.save(2)
    remote.push(second)
    assert [one.suffix for one in remote.list()] == ["1", "2"]
    assert [one.rows for one in anywhere().list()] == [1000, 1600]
    assert same(first, remote.pull(1, tmp_path / "pulled"))
    assert same(second, anywhere().pull(directory=tmp_path / "pulled"))
    assert remote.extra(1) == {"score": 21}
    assert remote.extra() == {}
    assert remote.verify().clean
    assert anywhere().verify(2, deep=True).clean


def test_the_next_batches_are_those_of_the_saved_run(run, anywhere, tmp_path):
    run.add(900)
    batch = run.buffer.sample(64)
    run.buffer.update_priorities(batch.id, np.arange(64.0))
    anywhere().push(run.save(3))
    expected = [run.buffer.sample(32) for _ in range(100)]
    pulled = anywhere().pull(directory=tmp_path / "elsewhere")
    with run.open(tmp_path / "other") as other:
        other.load(pulled)
        for one in expected:
            found = other.sample(32)
            assert (found.id == one.id).all()
            assert (found.observation == one.observation).all()
            assert (found.weight == one.weight).all()


@pytest.mark.costly(1)
def test_only_what_is_new_is_put(tmp_path, anywhere):
    run = Run(
        tmp_path, diskreplay.ReplayBuffer, capacity=20_000
    )  # priorities are all new each time
    run.add(15_000)
    remote = anywhere()
    whole = remote.push(run.save(1))
    run.add(100)
    path = run.save(2)
    more = remote.push(path)
    assert more.bytes < whole.bytes / 2
    again = anywhere().push(path)  # another process: it knows by what is published
    assert again.objects == 1  # its document
    run.buffer.close()


def test_the_same_suffix_is_replaced(run, anywhere, tmp_path):
    run.add(300)
    remote = anywhere()
    remote.push(run.save("best"))
    run.add(10)
    path = run.save("best")
    remote.push(path)
    assert [one.suffix for one in remote.list()] == ["best"]
    assert same(path, remote.pull("best", tmp_path / "pulled"))


def test_a_directory_of_checkpoints_gives_the_highest(run, remote):
    run.add(100)
    for number in (9, 10):
        run.save(number)
    directory = run.place / "checkpoints"
    assert remote().push(directory).suffix == "10"
    assert remote().push(directory, 9).suffix == "9"
    with pytest.raises(errors.CheckpointNotFoundError, match="no such checkpoint"):
        remote().push(directory, 3)
    with pytest.raises(errors.InvalidInputError, match="leave the suffix out"):
        remote().push(directory / "replay_ckpt.9", 10)


def test_another_run_is_refused_and_may_take_over(run, anywhere, tmp_path):
    run.add(200)
    path = run.save(1)
    first = anywhere()
    first.push(path)
    with pytest.raises(errors.TakenOverError, match="takeover=True"):
        anywhere(run="other").push(path)
    assert len(anywhere().list()) == 1
    second = anywhere(run="other", takeover=True)
    second.pull(directory=tmp_path / "second")  # takes over before it has pushed anything
    with pytest.raises(errors.TakenOverError, match="run other"):
        first.push(path)
    with pytest.raises(errors.TakenOverError):
        first.collect(1, 0)
    second.push(path)
    assert [(one.run, one.epoch) for one in anywhere().list()] == [("other", 1)]
    third = anywhere(run="third", takeover=True)
    third.push(path)
    with pytest.raises(errors.TakenOverError, match="run third"):
        second.push(path)  # once only: two that take over do not go on taking turns


def test_a_run_is_known_by_the_directory_it_pushes_from(run, remote, tmp_path):
    run.add(100)
    path = run.save(1)
    remote().push(path)
    known = json.loads((path.parent / RUN_FILE).read_text())["run"]
    assert remote().list()[0].run == known
    remote().push(path)  # as after a restart
    (path.parent / RUN_FILE).write_text('{"run": 3}')
    with pytest.raises(errors.FormatError, match="remove it"):
        remote().push(path)


def test_buffers_of_two_names_need_two_places(run, remote, tmp_path):
    run.add(100)
    remote(run="r").push(run.save(1))
    with run.open(tmp_path / "named") as other:
        other.name = "evaluation"
        for _ in range(10):
            other.add(np.zeros(16, "uint8"), 0, 0.0, False, False)
        path = other.save(tmp_path / "others", 1)
    with pytest.raises(errors.InvalidInputError, match="of its own"):
        remote(run="r").push(path)


def test_nothing_there(remote, tmp_path):
    assert remote().list() == []
    assert remote().verify().checkpoints == ()
    assert remote().collect(1, 0).objects == 0
    for call in (remote().pull, remote().zarr, remote().open, remote().extra):
        with pytest.raises(errors.CheckpointNotFoundError, match="no numbered checkpoint"):
            call()
    with pytest.raises(errors.CheckpointNotFoundError, match="no checkpoint 7"):
        remote().pull(7, tmp_path)


def test_open_reads_a_copy(run, remote, tmp_path):
    run.add(500)
    remote().push(run.save(4))
    with remote().open(cache=tmp_path / "cache") as buffer:
        assert len(buffer) == 500
        assert buffer.mode == "r"
    with remote().open(4, cache=tmp_path / "cache") as again:
        assert again.path == tmp_path / "cache" / "replay_ckpt.4"


def test_the_default_cache(run, remote, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run.add(100)
    remote().push(run.save(4))
    with remote().open() as buffer:
        assert buffer.path.is_relative_to(tmp_path / "cache" / "diskreplay")


def test_after_close(run, remote):
    run.add(100)
    with remote() as closed:
        pass
    for call in (closed.list, closed.verify, closed.zarr, lambda: closed.push(run.save(1))):
        with pytest.raises(errors.ClosedError):
            call()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"keep": 0}, "keep"),
        ({"keep": None}, "keep"),
        ({"concurrency": 0}, "concurrency"),
        ({"pack_bytes": 1.5}, "pack_bytes"),
        ({"run": ""}, "run"),
        ({"run": "a\nb"}, "run"),
    ],
)
def test_arguments(remote, how, says):
    with pytest.raises(errors.InvalidInputError, match=says):
        remote(**how)


@pytest.mark.parametrize("grace", ["soon", "-1", True, "1 week", None])
def test_grace(remote, grace):
    with pytest.raises(errors.InvalidInputError, match="grace"):
        remote().collect(1, grace)


def test_extra_is_json(run, remote):
    run.add(100)
    path = run.save(1)
    for extra in ({"a": np.zeros(3)}, [1], {"a": float("nan")}):
        with pytest.raises(errors.InvalidInputError, match="extra"):
            remote().push(path, extra=extra)
    assert remote().list() == []


def test_a_store_without_conditions_is_refused(run, tmp_path):
    if servers.program("rclone") is None:
        pytest.skip("needs rclone: pip install diskreplay[servers]")
    run.add(100)
    path = run.save(1)
    with servers.rclone() as endpoint:
        how = {"storage_options": servers.options(endpoint)}
        with pytest.raises(errors.UnsupportedStoreError, match="unsafe_single_writer"):
            RemoteCheckpoints("s3://bucket/pong", **how).push(path)
        trusting = RemoteCheckpoints("s3://bucket/other", unsafe_single_writer=True, **how)
        trusting.push(path)
        assert same(path, trusting.pull(1, tmp_path / "pulled"))


def test_servers_that_are_right_in_races(run, racing, tmp_path):
    run.add(2000)
    remote = RemoteCheckpoints(f"{racing.url}/all", storage_options=racing.options)
    remote.push(run.save(1))
    run.add(400)
    path = run.save(2)
    remote.push(path)
    assert same(path, remote.pull(2, tmp_path / "pulled"))
    assert remote.collect(1, 0).checkpoints == ("1",)
    assert remote.verify(deep=True).clean
    assert diskreplay.open(remote.pull(2, tmp_path / "again")).episodes()
