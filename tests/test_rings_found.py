"""Rings that an opening finds: of a kill, of before a power cut, rotten, of other options."""

import errno
import os
import pickle
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import (
    ClosedError,
    CorruptSegmentError,
    InvalidInputError,
    StorageError,
    StoreMovedError,
)
from diskreplay.inspection.overview import overview_of
from diskreplay.store import files, private
from diskreplay.store.actor_ring import ActorRing
from diskreplay.store.mapping import Mapping
from tests.actors import make, step_of
from tests.effort import effort

PRIORITIZED = diskreplay.PrioritizedReplayBuffer


def left(path: Path, envs: int = 1, **options) -> Path:
    """The first ring of a store whose learner was killed: five rows wait in each."""
    child = os.fork()
    if child == 0:
        try:
            priority = options.pop("priority", None)
            for writer in make(path, envs, **options).env_writers(rows=8, automatic=False):
                for number in range(5):
                    given = {} if priority is None else {"priority": priority}
                    writer.add(**step_of(0, number), **given)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return private.ring(path, 0)


def rewards(buffer) -> list[float]:
    return buffer.take("reward", np.arange(*buffer.bounds[0])).tolist()


def test_a_kill_while_a_ring_is_made_leaves_a_store_that_opens(tmp_path, monkeypatch):
    """Whatever point of it the kill came at."""
    calls = ("allocate", "rename")
    for killed in calls:
        child = os.fork()
        if child == 0:
            real = getattr(files, killed)

            def dies(*arguments, real=real, killed=killed):
                if killed == "rename":
                    os._exit(9)
                real(*arguments)
                os._exit(9)

            buffer = make(tmp_path / killed, 1)
            monkeypatch.setattr(files, killed, dies)
            buffer.env_writers()
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert not private.ring(tmp_path / killed, 0).exists()
        with make(tmp_path / killed, 1) as buffer:
            (writer,) = buffer.env_writers()
            writer.add(**step_of(0, 0))
            assert buffer.drain() == 1
            writer.close()
        assert sorted(os.listdir(private.directory(tmp_path / killed))) == ["lock", "state"]


@pytest.mark.costly(1)
@pytest.mark.parametrize("header", [b"", b"\0" * 100, b"\0" * 8192, "other boot"])
def test_what_a_power_cut_leaves_of_a_ring(tmp_path, header):
    """A file that no sync was asked for may have nothing of what was written, or a part of it."""
    path = left(tmp_path / "a")
    whole = path.read_bytes()
    if header == "other boot":
        header = whole[:8] + b"another boot".ljust(56, b"\0") + whole[64:]
    path.write_bytes(header)
    with pytest.warns(RuntimeWarning, match=r"ring\.0: .*rows? .*lost|ring\.0: .*removed"):
        buffer = make(tmp_path / "a", 1)
    with buffer:
        assert not buffer.bounds.any()
        assert not path.exists()


@pytest.mark.parametrize("how", ["opening", "ctrl_c"])
def test_a_ring_of_another_length_that_is_not_opened(tmp_path, monkeypatch, how):
    """The old one is no file any more, or as it was: it has an actor again."""
    mapped, rename = Mapping.open, files.rename

    def fails(path, **options):
        if "ring.0" in path.name:
            raise StorageError(errno.EMFILE, "too many", str(path))
        return mapped(path, **options)

    def interrupted(source, target):
        rename(source, target)
        signal.raise_signal(signal.SIGINT)

    with make(tmp_path / "store", 1) as buffer:
        buffer.env_writers(rows=8, automatic=False)
        with monkeypatch.context() as patched:
            if how == "opening":
                patched.setattr(Mapping, "open", fails)
            else:
                patched.setattr(files, "rename", interrupted)
            with pytest.raises(StorageError if how == "opening" else KeyboardInterrupt):
                buffer.env_writers(rows=16, automatic=False)
        (writer,) = buffer.env_writers(rows=8, automatic=False)
        with writer:
            for number in range(5):
                writer.add(**step_of(0, number))
        assert buffer.drain() == 5
        assert len(rewards(buffer)) == 5


def test_a_power_cut_is_told_once_also_where_warnings_are_errors(tmp_path):
    paths = [left(tmp_path / "a", envs=2), private.ring(tmp_path / "a", 1)]
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(data[:8] + b"another boot".ljust(56, b"\0") + data[64:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match=r"ring\.0: rows .*\n.*ring\.1: rows "):
            make(tmp_path / "a", 2)
        make(tmp_path / "a", 2).close()
    assert not any(path.exists() for path in paths)


def test_a_ring_of_which_a_power_cut_has_left_some_sectors(tmp_path):
    """Counts that do not fit each other are no damage then."""
    path = left(tmp_path / "a")
    whole = path.read_bytes()
    counts = bytes(512) + np.int64(99).tobytes() + bytes(7160)  # 99 were taken, none was written
    path.write_bytes(whole[:8] + b"another boot".ljust(56, b"\0") + whole[64:512] + counts)
    with pytest.warns(RuntimeWarning, match="an unknown number of rows"):
        make(tmp_path / "a", 1).close()
    assert not path.exists()


def test_an_empty_ring_of_before_a_power_cut_is_no_news(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        buffer.env_writers()
        path = private.ring(tmp_path / "a", 0)
        data = path.read_bytes()
    path.write_bytes(data[:8] + b"another boot".ljust(56, b"\0") + data[64:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(tmp_path / "a", 1).close()
    assert not path.exists()


def test_any_byte_of_the_header_may_rot(tmp_path):
    """An error with a name, or an opening."""
    path = left(tmp_path / "a")
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    places = [*range(0, 168, effort(3, 1)), *range(512, 520), *range(1024, 1096, 5)]
    for at in places:
        data = bytearray(whole)
        data[at] = 0xFF if at % 2 else data[at] ^ int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            ring = ActorRing(path, make_fields(tmp_path))
        except diskreplay.DiskReplayError:
            continue
        assert isinstance(ring.id, str)


def make_fields(tmp_path):
    if not (tmp_path / "fields").exists():
        make(tmp_path / "fields", 1).close()
    with diskreplay.open(tmp_path / "fields") as buffer:
        return buffer._kind.schema.fields


@pytest.mark.parametrize("priority", [-1.0, np.inf, -np.inf])
def test_a_priority_that_no_actor_can_give(tmp_path, priority):
    path = left(tmp_path / "a", kind=PRIORITIZED, priority=3.0)
    data = bytearray(path.read_bytes())
    at = data.rfind(np.full(5, 3.0).tobytes())
    data[at + 8 : at + 16] = np.float64(priority).tobytes()
    path.write_bytes(data)
    with pytest.raises(CorruptSegmentError, match=r"ring\.0: damaged: a priority"):
        make(tmp_path / "a", 1, kind=PRIORITIZED)


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({}, None),
        ({"kind": PRIORITIZED, "alpha": 3.0}, 1e297),
        ({"kind": PRIORITIZED, "alpha": 0.0}, 1.0),
        ({"kind": PRIORITIZED, "alpha": 0.5}, 1e125),
    ],
)
def test_priorities_for_a_buffer_of_other_options(tmp_path, options, largest):
    """An actor knows the buffer that its writer was made by. Its rows come in all the same."""
    left(tmp_path / "a", kind=PRIORITIZED, priority=1e250)
    with make(tmp_path / "a", 1, **options) as buffer:
        assert rewards(buffer) == [0, 1, 2, 3, 4]
        if largest is not None:
            assert buffer.tree.leaves.max() == pytest.approx(largest, rel=0.6)


def test_an_actor_goes_on_under_a_learner_of_another_kind(tmp_path):
    with make(tmp_path / "a", 1, kind=PRIORITIZED) as buffer:
        writers = buffer.env_writers(rows=8)
        (writer,) = pickle.loads(pickle.dumps(writers))
        writer.add(**step_of(0, 0), priority=2.0)
    with make(tmp_path / "a", 1) as buffer:
        for number in range(1, 40):  # more than the ring has places for
            writer.add(**step_of(0, number), priority=2.0)
        buffer.drain()
        found = buffer.take("reward", np.arange(*buffer.bounds[0]))
        is_final = buffer.take("is_final", np.arange(*buffer.bounds[0]))
        assert found[~is_final].tolist() == list(range(40))
        writer.close()


def test_a_close_of_a_store_that_was_moved_lets_go_of_its_rings(tmp_path):
    buffer = make(tmp_path / "a", 1)
    (writer,) = buffer.env_writers(rows=64, automatic=False)
    for number in range(3):
        writer.add(**step_of(0, number))
    os.rename(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreMovedError):
        buffer.close()
    with pytest.raises(ClosedError):
        writer.add(**step_of(0, 3))
    with make(tmp_path / "b", 1) as found:
        assert rewards(found) == [0, 1, 2]
        writer.close()
    assert verify(tmp_path / "b").findings == ()


def test_info_says_what_waits(tmp_path):
    left(tmp_path / "a")
    found = overview_of(tmp_path / "a")
    assert (found.rows, found.waiting) == (0, 5)
    make(tmp_path / "a", 1).close()
    found = overview_of(tmp_path / "a")
    assert (found.rows, found.waiting) == (5, 0)


@pytest.mark.parametrize("data", [b"", b"short", b"\xff" * 8192])
def test_info_of_a_ring_that_is_none(tmp_path, data):
    left(tmp_path / "a").write_bytes(data)
    assert overview_of(tmp_path / "a").waiting == 0


def test_arguments_that_are_none(tmp_path):
    with make(tmp_path / "a", 1) as buffer:
        for envs in (3, 0.5, object()):
            with pytest.raises(InvalidInputError, match="envs: "):
                buffer.env_writers(envs=envs)
        buffer.env_writers()
        for timeout in ("x", None, float("nan"), -1.0, [1]):
            with pytest.raises(InvalidInputError, match="timeout: "):
                buffer.drain(timeout)
