"""The power goes out: what `tools/torture` tries at length, for some seconds."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.effort import effort

pytestmark = pytest.mark.usefixtures("tools")


def trace(*events):
    """A disk that has seen some events."""
    from disk import Disk

    disk = Disk()
    for kind, *arguments in events:
        getattr(disk, kind)(*arguments)
    return disk


def found(disk, samples=30):
    """What may be left, as path to bytes."""
    states = [state for _how, state in disk.states(random.Random(1), samples)]
    return [{path: data for path, (_i, data, _m) in state.files.items()} for state in states]


def page(letter):
    return letter * 4096


def test_a_file_lasts_when_it_and_its_directory_are_synced():
    from disk import Entry

    made = [
        ("file", 1), ("names", Entry(0, "a", 1)), ("page", 1, 0, page(b"x")), ("size", 1, 4096),
    ]  # fmt: skip
    seen = found(trace(*made))
    assert {} in seen
    assert {"a": b""} in seen
    assert {"a": bytes(4096)} in seen
    assert {"a": page(b"x")} in seen
    assert {"a": b"x" * 2048 + bytes(2048)} in seen, "torn"
    seen = found(trace(*made, ("sync", 1)))
    assert {} in seen, "its name is not durable"
    assert all(files in ({}, {"a": page(b"x")}) for files in seen)
    assert found(trace(*made, ("sync", 1), ("sync", 0))) == [{"a": page(b"x")}]


def test_names_of_one_directory_keep_their_order_those_of_two_do_not():
    from disk import Entry

    disk = trace(
        ("directory", 1), ("directory", 2), ("names", Entry(0, "p", 1)),
        ("names", Entry(0, "q", 2)), ("sync", 0), ("file", 3), ("file", 4), ("file", 5),
        ("names", Entry(1, "a", 3)),
        ("names", Entry(1, "b", 4)), ("names", Entry(2, "c", 5)),
    )  # fmt: skip
    seen = {frozenset(files) for files in found(disk, 100)}
    assert seen == {
        frozenset(names)
        for names in ([], ["p/a"], ["p/a", "p/b"], ["q/c"], ["p/a", "q/c"], ["p/a", "p/b", "q/c"])
    }


def test_a_rename_between_directories_is_there_in_both_or_in_none():
    from disk import Entry

    disk = trace(
        ("directory", 1), ("file", 2), ("names", Entry(0, "d", 1)), ("names", Entry(1, "a", 2)),
        ("sync", 0), ("sync", 1), ("names", Entry(1, "a", None), Entry(0, "b", 2)),
    )  # fmt: skip
    assert {frozenset(files) for files in found(disk)} == {frozenset(["d/a"]), frozenset(["b"])}


def test_old_versions_of_a_page_may_be_what_is_left():
    from disk import Entry

    disk = trace(
        ("file", 1), ("names", Entry(0, "a", 1)), ("size", 1, 4096), ("sync", 1), ("sync", 0),
        *(("page", 1, 0, page(letter)) for letter in (b"x", b"y", b"z")),
    )  # fmt: skip
    assert {files["a"][:1] for files in found(disk, 100)} == {b"\0", b"x", b"y", b"z"}


@pytest.mark.costly
def test_nothing_goes_past_the_recorder_and_its_trace_leads_to_the_same_tree(tmp_path):
    import power
    from disk import Disk
    from recording import CUT, MARK

    events, calls = power.record(power.Setting("short", steps=12))  # compares the trees at its end
    assert calls > 200
    disk = Disk()
    for kind, *arguments in events:
        if kind not in (CUT, MARK):
            getattr(disk, kind)(*arguments)
    disk.sync_all()
    state = disk.build(set(), {})
    state.write_to(tmp_path)
    assert (tmp_path / "run" / "replay" / "zarr.json").exists()
    saved = tmp_path / "run" / "checkpoints" / "replay_ckpt.1"
    assert (saved / "is_final/saved/manifest.json").exists()


@pytest.mark.costly(3)
@pytest.mark.parametrize("number", range(6))
def test_cuts(number):
    """Two states at some points of each workload; other points on each run of the long one."""
    import power

    setting = replace(power.SETTINGS[number], steps=20)
    every = effort(1600, 400)
    figures = power.explore(
        setting, samples=1, singly=False, every=every, start=50 * number, again=0
    )
    assert figures.failures == []
    assert figures.opened > 6 * 400 // every


@pytest.mark.costly
def test_a_promise_that_is_not_kept_is_seen(monkeypatch):
    """The examination can fail: here nothing is ever synced."""
    import power

    from diskreplay.store import files

    monkeypatch.setattr(files, "sync", lambda paths: [Path(p).stat() for p in paths])
    with monkeypatch.context() as patched:
        patched.setattr("recording.Recorder._on_sync", lambda *_: None)
        figures = power.explore(
            power.Setting("never synced", steps=6), samples=0, singly=False, every=40, again=0
        )
    assert figures.failures


def test_after_a_save_the_checkpoint_has_what_the_live_store_may_lose(tmp_path):
    """`save` syncs no open segments of large fields, which would cost a third more: after a power
    cut the live store has its full ones, and the checkpoint all rows and files."""
    import numpy as np
    import power
    from disk import Disk
    from examiner import another_boot
    from recording import CUT, MARK, Recorder

    from diskreplay.check.verify import verify

    setting = power.Setting("large", large=True)
    before, after = tmp_path / "before", tmp_path / "after"
    for directory in (before / "run", after):
        directory.mkdir(parents=True)
    with setting.maintenance_in_line(), Recorder(before) as recorder:
        buffer = setting.make(before / "run" / "replay")
        for row in range(21):
            frame, hidden = np.full(64, row, np.uint8), np.full(512, row, np.uint8)
            latent = np.full(64, row)
            buffer.add(frame, row % 4, row, False, False, hidden=hidden, latent=latent)
        agent = {"nets/agent.bin": b"of 21 rows"}
        buffer.save(before / "run" / "checkpoints", 1, attachments=agent)
        recorder.check()
    buffer.close()
    disk = Disk()
    for kind, *arguments in recorder.events:
        if kind not in (CUT, MARK):
            getattr(disk, kind)(*arguments)
    disk.build(set(), {}).write_to(after)  # nothing but what is durable
    checkpoints = after / "run" / "checkpoints"
    assert verify(checkpoints / "replay_ckpt.1").findings == ()
    with another_boot(0):
        live = setting.make(after / "run" / "replay")
    with live:
        assert live.add_count == 16, "two full segments"
        found = live.load(checkpoints)
        assert live.take("reward", np.arange(21)).tolist() == list(range(21))
        assert found.attachments["nets/agent.bin"].read_bytes() == b"of 21 rows"
