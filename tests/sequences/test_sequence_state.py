"""What is saved of a view: draws go on bit for bit."""

import itertools
import json
import random
import shutil
import signal
import textwrap
import warnings

import numpy as np
import pytest

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import DiskReplayError, FormatError, StorageError
from diskreplay.store.store import Store
from tests import processes
from tests.effort import effort
from tests.sequences.test_sequences import make_buffer, play
from tests.test_interrupt import interrupted

VIEWS = {
    "even": {"ends": "shift", "burn_in": 2},
    "ranked": {"prioritized": True, "alpha": 0.7, "ends": "pad", "stride": 2},
    "fresh": {"online": True, "ends": "cross", "prioritized": True},
    "buffered": {"online": True, "finished": True},
}


def views_of(buffer, **options):
    return [
        buffer.sequences(3, **{"name": name} | asked | options) for name, asked in VIEWS.items()
    ]


def learn(buffer, views, rng, steps=20, start=0):
    """A run: what it drew."""
    drawn = []
    for i in range(steps):
        play(buffer, 3, start=start + 3 * i)
        for view in views:
            batch = view.sample(5)
            drawn.append((batch.anchor.tolist(), batch.weight.tolist(), batch.reward.tolist()))
            if view.options.prioritized:
                view.update_priorities(batch.anchor, [rng.random() for _ in range(5)])
    return drawn


def ctrl_c():
    signal.raise_signal(signal.SIGINT)  # a real one, which waits for what must not stop


def begun(path, **options):
    buffer = make_buffer(path, capacity=100, **options)
    play(buffer, 40)
    views = [buffer.sequences(3, name=n, seed=i, **o) for i, (n, o) in enumerate(VIEWS.items())]
    learn(buffer, views, random.Random(1), start=40)
    return buffer, views


def same_from_here(buffer, start=100):
    """What the saved run draws, of the views that were saved."""
    return learn(buffer, views_of(buffer), random.Random(2), start=start)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path, elsewhere):
    buffer, views = begun(tmp_path / "replay")
    buffer.save(tmp_path / "saved", 1)
    wanted = learn(buffer, views, random.Random(2), start=100)
    if elsewhere:
        buffer.close()
        buffer = make_buffer(tmp_path / "other", capacity=100)
    buffer.load(tmp_path / "saved", 1)
    with buffer:
        assert same_from_here(buffer) == wanted
        buffer.load(tmp_path / "saved", 1)
        assert same_from_here(buffer) == wanted
    for path in (buffer.path, tmp_path / "saved" / "replay_ckpt.1"):
        assert verify(path).findings == ()


def test_a_store_goes_on_bit_for_bit(tmp_path):
    buffer, views = begun(tmp_path / "replay")
    buffer.flush()
    with buffer._rows.store.maintenance.lock:
        copy = shutil.copytree(tmp_path / "replay", tmp_path / "copy")
    buffer.end_episode()  # as a reopening does
    wanted = learn(buffer, views, random.Random(2), start=100)
    buffer.close()
    with make_buffer(copy, capacity=100) as again:
        assert same_from_here(again) == wanted
    assert verify(copy).findings == ()
    assert verify(tmp_path / "replay").findings == ()


def test_a_load_is_done_where_a_view_cannot_read_its_priorities_then(tmp_path, monkeypatch):
    """The rows are exchanged by then. The view looks again when it is used."""
    buffer, views = begun(tmp_path / "replay")
    buffer.save(tmp_path / "saved", 1)
    wanted = views[1].gather(views[1].anchors()).probability
    rows, read, failed = buffer.add_count, Store.read_priorities, []

    def fails(store, name=None):
        if name == "priority.ranked" and store is buffer._rows.store and len(failed) < 2:
            failed.append(store)
            raise StorageError(5, "Input/output error")
        return read(store, name)

    play(buffer, 20, start=100)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "read_priorities", fails)
        buffer.load(tmp_path / "saved", 1)
        assert buffer.add_count == rows
        with pytest.raises(StorageError):
            views[1].sample(3)
        np.testing.assert_array_equal(views[1].gather(views[1].anchors()).probability, wanted)
    assert len(failed) == 2
    buffer.close()


def test_a_description_of_before_windows_were_put_back_is_read(tmp_path):
    buffer, views = begun(tmp_path / "replay")
    cursor = views[3]._view.anchors.new.cursor.tolist()
    buffer.close()
    document = json.loads((tmp_path / "replay/zarr.json").read_text())
    for view in document["attributes"]["diskreplay"]["views"].values():
        assert view.pop("returned") == []
    (tmp_path / "replay/zarr.json").unlink()
    (tmp_path / "replay/zarr.json").write_text(json.dumps(document))
    with make_buffer(tmp_path / "replay", capacity=100) as buffer:
        view = buffer.sequences(3, name="buffered", **VIEWS["buffered"])
        assert view._view.anchors.new.as_json() == {"cursor": cursor, "returned": []}


def test_what_was_under_way_at_a_flush_comes_again_after_a_kill(tmp_path):
    """Of the buffer's and of a view's prefetcher; what was taken before does not."""
    code = f"""
        import json, os, signal
        from pathlib import Path
        from tests.sequences.test_sequence_state import VIEWS
        from tests.sequences.test_sequences import make_buffer, play
        buffer = make_buffer(Path({str(tmp_path / "replay")!r}))
        view = buffer.sequences(3, name="buffered", **VIEWS["buffered"])
        play(buffer, 60)
        rows, windows = buffer.prefetch(3, 4), view.prefetch(2, 4)
        for _ in range(3):
            next(rows), next(windows), buffer.sample(2), view.sample(2)
        buffer.flush()
        print(json.dumps(
            [[next(rows).id.tolist(), next(windows).anchor.tolist()] for _ in range(4)]
        ), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = processes.run(textwrap.dedent(code))
    assert done.returncode == -signal.SIGKILL
    wanted = json.loads(done.stdout)
    with make_buffer(tmp_path / "replay") as buffer:
        view = buffer.sequences(3, name="buffered", **VIEWS["buffered"])
        found = [[buffer.sample(4).id.tolist(), view.sample(4).anchor.tolist()] for _ in range(4)]
    assert found == wanted


def test_a_kill_leaves_what_was_flushed(tmp_path):
    code = f"""
        import os, signal
        from pathlib import Path
        from tests.sequences.test_sequence_state import begun
        from tests.sequences.test_sequences import play
        buffer, views = begun(Path({str(tmp_path / "replay")!r}))
        buffer.flush()
        play(buffer, 20, start=100)
        views[1].update_priorities(views[1].anchors(), [5.0] * len(views[1]))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = processes.run(textwrap.dedent(code))
    assert done.returncode == -signal.SIGKILL
    buffer, views = begun(tmp_path / "twin")
    buffer.flush()
    play(buffer, 20, start=100)
    with buffer, make_buffer(tmp_path / "replay", capacity=100) as killed:
        buffer.end_episode()
        view = killed.sequences(3, name="ranked", **VIEWS["ranked"])
        assert view.anchors().tolist() == views[1].anchors().tolist()
        found = view.gather(view.anchors()).probability
        np.testing.assert_array_equal(found, views[1].gather(view.anchors()).probability)


def test_a_view_that_nobody_opens_is_kept(tmp_path):
    buffer, views = begun(tmp_path / "replay")
    anchors = views[1].anchors()
    of = dict(zip(anchors.tolist(), views[1].gather(anchors).probability.tolist(), strict=True))
    buffer.close()
    for _ in range(2):
        with make_buffer(tmp_path / "replay", capacity=100) as buffer:
            play(buffer, 7, start=200)
            buffer.flush()
            buffer.save(tmp_path / "saved", 3)
            assert verify(tmp_path / "saved" / "replay_ckpt.3").findings == ()
    assert verify(tmp_path / "replay").findings == ()
    for path in (tmp_path / "replay", tmp_path / "saved" / "replay_ckpt.3"):
        with diskreplay.open(path) as reader:
            view = reader.sequences(3, name="ranked", **VIEWS["ranked"])
            there = [a for a in view.anchors().tolist() if a in of]
            assert len(there) > 10
            ratios = view.gather(there).probability / [of[a] for a in there]
            np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)


def test_other_options_under_a_saved_name_start_anew(tmp_path):
    buffer, _ = begun(tmp_path / "replay")
    buffer.close()
    with make_buffer(tmp_path / "replay", capacity=100) as buffer:
        with pytest.warns(RuntimeWarning, match=r"length=3, not 4.*starts anew"):
            view = buffer.sequences(4, name="ranked", **VIEWS["ranked"])
        probability = view.gather(view.anchors()).probability
        assert (probability == probability[0]).all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            buffer.sequences(3, name="even", batch_size=99, **VIEWS["even"])


def test_other_options_than_a_checkpoint_has_where_warnings_are_errors(tmp_path):
    """The rows are loaded by then, and so are all views."""
    buffer, views = begun(tmp_path / "replay")
    buffer.save(tmp_path / "saved", 1)
    saved = buffer.take("reward", np.arange(*buffer.bounds[0]))
    for view in views:
        view.close()
    with pytest.warns(RuntimeWarning, match="length=3, not 5"):
        others = [buffer.sequences(5, name=name, **VIEWS[name]) for name in ("ranked", "even")]
    with buffer, warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        buffer.load(tmp_path / "saved", 1)
        assert [str(each.message).split("view ")[1].split(" is")[0] for each in shown] == [
            "'ranked'", "'even'",
        ]  # fmt: skip
        assert {each.category for each in shown} == {RuntimeWarning}
        np.testing.assert_array_equal(buffer.take("reward", np.arange(*buffer.bounds[0])), saved)
        for view in others:
            view.sample(4)


def test_a_checkpoint_does_not_change_later(tmp_path):
    buffer, views = begun(tmp_path / "replay")
    saved = buffer.save(tmp_path / "saved", 1)
    before = {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()}
    learn(buffer, views, random.Random(5), start=100)
    buffer.flush()
    buffer.close()
    assert {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()} == before


def test_clear_keeps_the_generators(tmp_path):
    buffer, _ = begun(tmp_path / "replay")
    with buffer:
        before = [view.rng.bit_generator.state for view in views_of(buffer)]
        buffer.clear()
        views = views_of(buffer)
        assert [len(view) for view in views] == [0] * len(views)
        assert [view.rng.bit_generator.state for view in views] == before
        play(buffer, 30)
        assert views[2].sample(4).anchor.tolist() == [0, 1, 2, 3]
        buffer.flush()
    assert verify(tmp_path / "replay").findings == ()


def test_batches_under_way_are_drawn_again(tmp_path):
    buffer, _ = begun(tmp_path / "replay")
    view = buffer.sequences(3, name="fresh", **VIEWS["fresh"])
    batches = view.prefetch(3, 4)
    next(batches)
    play(buffer, 10, start=100)
    next(batches)
    play(buffer, 10, start=110)
    buffer.save(tmp_path / "saved", 1)

    def go_on(buffer, batches):
        play(buffer, 9, start=120)
        return [next(batches).anchor.tolist() for _ in range(6)]

    wanted = go_on(buffer, batches)
    buffer.close()
    with make_buffer(tmp_path / "other", capacity=100) as buffer:
        buffer.load(tmp_path / "saved", 1)
        view = buffer.sequences(3, name="fresh", **VIEWS["fresh"])
        assert go_on(buffer, view.prefetch(3, 4)) == wanted


def test_ctrl_c_while_they_are_drawn_again_leaves_them_to_who_asks_next(tmp_path):
    """A prefetcher that nobody had stayed open, so that there could be no other one."""
    buffer, _ = begun(tmp_path / "replay")
    view = buffer.sequences(3, name="fresh", **VIEWS["fresh"])
    batches = view.prefetch(3, 4)
    next(batches)
    buffer.save(tmp_path / "saved", 1)
    wanted = [next(batches).anchor.tolist() for _ in range(4)]
    buffer.close()

    def is_cut(number):
        """Whether it was, and what stayed open."""
        buffer.load(tmp_path / "saved", 1)
        made = []
        cut = interrupted(lambda: made.append(view.prefetch(3, 4)), number, ctrl_c)
        lost = [] if made else [*view._prefetchers.open]
        (batches,) = made or lost or [view.prefetch(3, 4)]
        assert [next(batches).anchor.tolist() for _ in range(4)] == wanted, number
        batches.close()
        assert not buffer._views.prefetching
        return cut, bool(lost)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with make_buffer(tmp_path / "other", capacity=100) as buffer:
            view = buffer.sequences(3, name="fresh", **VIEWS["fresh"])
            step = effort(23, 7, 1)
            end = next(number for number in itertools.count(0, step) if not is_cut(number)[0])
            found = [is_cut(number) for number in range(end - step - 7, end)]
    finally:
        signal.signal(signal.SIGINT, before)
    assert end > 300
    # Nobody but its caller can close what a function returns.
    assert sum(lost for _cut, lost in found) < 6
    assert not any(lost for _cut, lost in found[:3])


def test_damaged_priorities_are_named_and_repaired(tmp_path):
    buffer, views = begun(tmp_path / "replay")
    anchors = views[1].anchors()
    wanted = views[1].gather(anchors).probability
    saved = buffer.save(tmp_path / "saved", 1)
    buffer.close()
    chunk = next((tmp_path / "replay" / "priority.ranked").glob("c.*"))
    rotten = np.full(chunk.stat().st_size // 8, -1.0).tobytes()
    chunk.unlink()  # the checkpoint has it too, as a link
    chunk.write_bytes(rotten)
    found = verify(tmp_path / "replay").findings
    assert [(f.kind, f.path.parent.name) for f in found] == [("priority", "priority.ranked")]
    with make_buffer(tmp_path / "replay", capacity=100) as buffer:
        with pytest.raises(FormatError, match=r"priority\.ranked"):
            buffer.sequences(3, name="ranked", **VIEWS["ranked"])
        assert len(buffer.sequences(3, name="even", **VIEWS["even"])) > 0
        buffer.flush()
    repair(tmp_path / "replay", sources=[saved])
    assert verify(tmp_path / "replay").findings == ()
    with make_buffer(tmp_path / "replay", capacity=100) as buffer:
        view = buffer.sequences(3, name="ranked", **VIEWS["ranked"])
        np.testing.assert_allclose(view.gather(anchors).probability, wanted)


@pytest.mark.parametrize(
    "damage",
    [
        {"cursor": [-1]}, {"cursor": None}, {"returned": [-1]}, {"largest": 0}, {"rng": {}},
        {"returned": [1, 1]}, {"returned": [2**62]},
        {"identity": 3}, {"under_way": [1]},
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused(tmp_path, damage):
    buffer, _ = begun(tmp_path / "replay")
    saved = buffer.save(tmp_path / "saved", 1)
    buffer.close()
    for path in (tmp_path / "replay", saved):
        document = json.loads((path / "zarr.json").read_text())
        document["attributes"]["diskreplay"]["views"]["fresh"] |= damage
        (path / "zarr.json").unlink()
        (path / "zarr.json").write_text(json.dumps(document))
    with make_buffer(tmp_path / "replay", capacity=100) as buffer:
        with pytest.raises(FormatError, match="views: damaged"):
            buffer.sequences(3, name="fresh", **VIEWS["fresh"])
        with pytest.raises(DiskReplayError):
            buffer.load(tmp_path / "saved", 1)
        assert len(buffer) > 50


def test_whose_generator_a_view_draws_from(tmp_path):
    def anchors(view):
        return view.sample(20).anchor.tolist()

    with make_buffer(tmp_path / "replay", seed=4) as buffer:
        play(buffer, 90)
        followed = [anchors(buffer.sequences(3, name=name)) for name in ("one", "other")]
        assert followed[0] != followed[1]
        seeded = buffer.sequences(3, name="seeded", seed=7)
        first = anchors(seeded)
        buffer.flush()
        wanted = anchors(seeded)
        with buffer._rows.store.maintenance.lock:
            copies = [shutil.copytree(buffer.path, tmp_path / f"copy{i}") for i in range(2)]
    with make_buffer(tmp_path / "twin", seed=4) as twin:
        play(twin, 90)
        assert [anchors(twin.sequences(3, name=name)) for name in ("one", "other")] == followed
    with make_buffer(copies[0]) as again:  # the script that began it, run again
        assert anchors(again.sequences(3, name="seeded", seed=7)) == wanted
    with make_buffer(copies[1]) as again:
        assert anchors(again.sequences(3, name="seeded", seed=np.random.default_rng(7))) == first
    with diskreplay.open(tmp_path / "replay") as reader:
        assert anchors(reader.sequences(3, name="seeded", seed=7)) == first
