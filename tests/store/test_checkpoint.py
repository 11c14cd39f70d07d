"""A checkpoint step by step, while rows come, leave and come back: what it has is of one moment."""

import contextlib
import os
import shutil
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import checkpoint_saver
from diskreplay.check.verify import verify
from diskreplay.errors import StoreMovedError
from diskreplay.store import checkpoint, manifest, priorities

FRAME = Box(0, 255, (64, 64), np.uint8)  # a page: segments are as short as one likes


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2),
        **{"capacity": 400, "segment_rows": 8, "update_horizon": 1, "alpha": 0.5, **options},
    )  # fmt: skip


def add(buffer, rows):
    for _ in range(rows):
        frame = np.full((64, 64), int(buffer.bounds[0, 1]) % 251, np.uint8)
        buffer.add(frame, 1, 1.0, False, False)


def killed(buffer, copy):
    """The store as a kill would leave it now."""
    with buffer._rows.store.maintenance.lock:
        shutil.copytree(buffer.path, copy)
    return copy


# -- step by step


@contextlib.contextmanager
def begun(buffer, tmp_path, wanted=None, suffix=1):
    with checkpoint.begun(tmp_path / "c", "n", suffix, wanted or {}) as found:
        yield found


def meta_of(buffer):
    return buffer._meta(buffer._views.states(buffer._rows, []))


def taken_and_finished(buffer, construction, leaves=None, keep=None, between=lambda: None):
    store = buffer._rows.store
    with store.maintenance.lock:
        taken = checkpoint.take(construction, store, {**meta_of(buffer), "prefetch": []})
        between()
        taken.copy()
        return checkpoint.finish(construction, store, "n", taken, leaves or {}, keep)


def rows_of(path):
    with diskreplay.open(path) as reader:
        ((first, count),) = reader.bounds.tolist()
        frames = reader.take("observation", np.arange(first, count))
        assert (frames == frames[:, :1, :1]).all()
        return (first, count), frames[:, 0, 0].tolist()


def expected_rows(first, count):
    return (first, count), [row % 251 for row in range(first, count)]


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("rows", [8, 50])
def test_what_is_sealed_is_linked_and_the_rest_is_copied(tmp_path, compressor, prepared, rows):
    with make(tmp_path / "r", compressor=compressor) as buffer:
        add(buffer, rows)
        store = buffer._rows.store
        with begun(buffer, tmp_path) as construction:
            if prepared:
                checkpoint.prepare(construction, store)
                full = rows // 8 if compressor == "raw" else None
                if full is not None:
                    assert sorted(construction.linked["observation"]) == [
                        (number, 0) for number in range(full)
                    ]
            else:
                assert construction.linked == {}
            path = taken_and_finished(buffer, construction)
        assert path == tmp_path / "c" / "n_ckpt.1"
        assert rows_of(path) == expected_rows(0, rows)
        assert verify(path).findings == ()
        ours = {file.stat().st_ino for file in (tmp_path / "r" / "observation").glob("c.*")}
        linked = [file for file in (path / "observation").glob("c.*") if file.stat().st_ino in ours]
        sealed = [s for s in store.columns["observation"].segments.mapped.values() if s.seal]
        assert len(linked) <= len(sealed)
        if prepared and compressor == "raw":
            assert len(linked) == rows // 8
        add(buffer, 20)
        assert rows_of(path) == expected_rows(0, rows)
    assert rows_of(tmp_path / "r") == expected_rows(0, rows + 20)


def test_the_list_has_every_file_and_no_other(tmp_path):
    with make(tmp_path / "r") as buffer:
        add(buffer, 30)
        leaves = {"priority": priorities.Unsaved(np.full((30, 1), 2.0), 0.5)}
        with begun(buffer, tmp_path, {"a/b.pt": b"agent"}) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            path = taken_and_finished(buffer, construction, leaves)
        listed = manifest.read_whole(path).files
        there = {
            file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()
        } - {manifest.NAME.as_posix()}  # fmt: skip
        assert there == listed.keys()
        assert (path / manifest.ATTACHMENTS / "a/b.pt").read_bytes() == b"agent"
        saved = priorities.read(path / "priority", 1)
        assert saved.start == 0
        assert saved.alpha == 0.5
        assert saved.leaves.tolist() == [[2.0]] * 30


def test_what_is_not_finished_leaves_nothing(tmp_path):
    with make(tmp_path / "r") as buffer:
        add(buffer, 30)

        def stop():
            assert any(construction.build.rglob("c.*"))
            raise KeyError("stop")

        with begun(buffer, tmp_path) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            with pytest.raises(KeyError, match="stop"):
                taken_and_finished(buffer, construction, between=stop)
        assert list((tmp_path / "c").iterdir()) == []
        path = buffer.save(tmp_path / "c", 1)  # and the store is as before
        assert rows_of(path) == expected_rows(0, 30)
    assert verify(tmp_path / "r").findings == ()


def test_rows_that_come_behind_the_moment_are_in_no_file_of_it(tmp_path):
    with make(tmp_path / "r", compressor="raw") as buffer:
        add(buffer, 21)
        with begun(buffer, tmp_path) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            add(buffer, 3)  # fills a segment that was not linked
            path = taken_and_finished(buffer, construction)
        assert rows_of(path) == expected_rows(0, 24)
        with begun(buffer, tmp_path, suffix=2) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            path = taken_and_finished(buffer, construction, between=lambda: add(buffer, 2))
        assert rows_of(path) == expected_rows(0, 24)
        assert verify(path).findings == ()
        assert not (path / "observation" / "c.3.0.0.0").exists()  # rows 24 and 25
    assert rows_of(tmp_path / "r") == expected_rows(0, 26)


def test_rows_that_left_since_the_links_were_made_are_not_in_it(tmp_path):
    with make(tmp_path / "r", capacity=40, compressor="raw") as buffer:
        add(buffer, 40)
        with begun(buffer, tmp_path) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            assert (0, 0) in construction.linked["observation"]
            add(buffer, 30)
            path = taken_and_finished(buffer, construction)
        assert rows_of(path) == expected_rows(30, 70)
        numbers = {int(file.name.split(".")[1]) for file in (path / "observation").glob("c.*")}
        assert numbers == set(range(30 // 8, 69 // 8 + 1))
        assert verify(path).findings == ()


@pytest.mark.parametrize("keep", [1, 2, None])
def test_the_highest_numbers_stay(tmp_path, keep):
    with make(tmp_path / "r") as buffer:
        for number in (3, 1, 7, 5):
            add(buffer, 3)
            with begun(buffer, tmp_path, suffix=number) as construction:
                path = taken_and_finished(buffer, construction, keep=keep)
            assert path.exists()  # what was written last stays until the next one
        with begun(buffer, tmp_path, suffix="best") as construction:
            taken_and_finished(buffer, construction, keep=keep)
    found = {path.name for path in (tmp_path / "c").iterdir()}
    highest = {None: {1, 3, 5, 7}, 2: {5, 7}, 1: {7}}[keep]
    assert found == {f"n_ckpt.{number}" for number in highest} | {"n_ckpt.best"}


def test_one_that_is_there_is_replaced_as_a_whole(tmp_path):
    with make(tmp_path / "r") as buffer:
        add(buffer, 20)
        with begun(buffer, tmp_path, {"old.pt": b"1"}) as construction:
            path = taken_and_finished(buffer, construction)
        with begun(buffer, tmp_path, {"new.pt": b"2"}) as construction:
            add(buffer, 5)
            assert rows_of(path) == expected_rows(0, 20)  # till the end
            assert taken_and_finished(buffer, construction) == path
        assert rows_of(path) == expected_rows(0, 25)
        assert manifest.read_whole(path).attachments.keys() == {"new.pt"}


def test_a_store_that_was_moved_amid_it_is_saved_nowhere(tmp_path):
    with make(tmp_path / "r") as buffer:
        add(buffer, 20)

        def exchanged():
            os.rename(tmp_path / "r", tmp_path / "elsewhere")
            shutil.copytree(tmp_path / "elsewhere", tmp_path / "r")

        with begun(buffer, tmp_path) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            with pytest.raises(StoreMovedError):
                taken_and_finished(buffer, construction, between=exchanged)
        assert list((tmp_path / "c").iterdir()) == []
        shutil.rmtree(tmp_path / "r")
        os.rename(tmp_path / "elsewhere", tmp_path / "r")


@pytest.mark.parametrize("what", ["links", "copies"])
def test_where_no_link_can_be_made_there_is_a_copy(tmp_path, monkeypatch, what):
    def refuse(*_arguments, **_options):
        raise OSError(95, "no links here")

    with make(tmp_path / "r", compressor="raw") as buffer:
        add(buffer, 30)
        if what == "copies":
            monkeypatch.setattr(os, "link", refuse)
        with begun(buffer, tmp_path) as construction:
            checkpoint.prepare(construction, buffer._rows.store)
            path = taken_and_finished(buffer, construction)
        monkeypatch.undo()
        ours = {file.stat().st_ino for file in (tmp_path / "r" / "observation").glob("c.*")}
        theirs = {file.stat().st_ino for file in (path / "observation").glob("c.*")}
        assert bool(ours & theirs) == (what == "links")
        assert rows_of(path) == expected_rows(0, 30)
        assert verify(path).findings == ()


# -- with the steps of a save


@pytest.fixture
def between(monkeypatch):
    """Have something done when a save has linked what is sealed, and not yet taken the rows."""
    calls = []
    prepare = checkpoint_saver.checkpoint.prepare

    def prepared(*arguments):
        prepare(*arguments)
        while calls:  # on a thread of its own, as what adds while another one saves
            thread = threading.Thread(target=calls.pop())
            thread.start()
            thread.join(60)
            assert not thread.is_alive()

    monkeypatch.setattr(checkpoint_saver.checkpoint, "prepare", prepared)
    return calls.append


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_rows_that_leave_amid_a_save_are_not_in_it(tmp_path, between, compressor):
    with make(tmp_path / "r", capacity=64, compressor=compressor) as buffer:
        add(buffer, 64)
        between(lambda: add(buffer, 41))
        saved = buffer.save(tmp_path / "c", 1)
        assert verify(saved).findings == ()
        numbers = {int(path.name.split(".")[1]) for path in (saved / "observation").glob("c.*")}
        assert numbers == set(range(41 // 8, 105 // 8 + 1))
        with diskreplay.open(saved) as reader:
            assert reader.bounds.tolist() == [[41, 105]]


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_an_env_that_comes_back_amid_a_save_harms_no_file_that_is_shared(
    tmp_path, between, compressor
):
    def step(buffer, envs):
        rows = buffer.bounds[:, 1]
        frames = np.array([np.full((64, 64), (row + 100 * env) % 251, np.uint8)
                           for env, row in enumerate(rows)])  # fmt: skip
        zeros = np.zeros(2)
        buffer.add(frames, zeros.astype(int), zeros, zeros > 0, zeros > 0, mask=np.array(envs))

    def right(it):
        for env, (first, count) in enumerate(it.bounds.tolist()):
            rows = np.arange(first, count)
            found = it.take("observation", rows * 2 + env)[:, 7, 7]
            assert found.tolist() == ((rows + 100 * env) % 251).tolist()

    with make(tmp_path / "r", num_envs=2, compressor=compressor, env_group=2) as buffer:
        for _ in range(3):
            step(buffer, [True, True])
        for _ in range(60):
            step(buffer, [True, False])  # the first segments are sealed without the slow one
        buffer.flush()
        first = buffer.save(tmp_path / "c", 1)
        between(lambda: [step(buffer, [False, True]) for _ in range(3)])
        second = buffer.save(tmp_path / "c", 2)
        for path, rows in ((first, 3), (second, 6)):
            assert verify(path).findings == ()
            with diskreplay.open(path) as reader:
                assert reader.bounds[:, 1].tolist() == [63, rows]
                right(reader)
        right(buffer)
        between(lambda: [step(buffer, [False, True]) for _ in range(30)])
        third = buffer.save(tmp_path / "c", 3)
        assert [verify(path).findings for path in (first, second, third)] == [()] * 3
        right(buffer)
        copy = killed(buffer, tmp_path / "killed")
    for path in (tmp_path / "r", copy):
        assert verify(path).findings == ()
