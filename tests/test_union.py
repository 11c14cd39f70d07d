"""Several stores as one: draws, batches, priorities, resuming."""

import json
import signal
import textwrap
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.sequence_reader import SequenceReader
from diskreplay.store import reading_pool
from tests import processes
from tests.contracts import CAPACITY, FRAME
from tests.sequences.test_sequences import read_again
from tests.test_contracts import TestReplayBuffer as OfReplayBuffer
from tests.test_prefetch import assert_equal, kept

SPACES = {"observation_space": Box(0, 255, FRAME, np.uint8), "action_space": Discrete(1000)}


def make(path, kind=diskreplay.PrioritizedReplayBuffer, **options):
    return kind(path, **SPACES, **{"capacity": 300, "gamma": 0.9, **options})


def fill(buffer, rows, start=0):
    """Each reward and frame says which step it is of, each tenth ends an episode."""
    for i in range(start, start + rows):
        buffer.add(np.full(FRAME, i % 256, np.uint8), i % 7, float(i), i % 10 == 9, False)


@pytest.fixture
def stores(tmp_path):
    """A buffer that is recorded to, and the path of one that was closed: steps from 1,000 on."""
    with make(tmp_path / "old", seed=5) as old:
        fill(old, 40, 1000)
        old.update_priorities(old.sampleable_ids(), np.linspace(0.5, 2, len(old)))
    with make(tmp_path / "live", seed=4) as live:
        fill(live, 80)
        live.update_priorities(live.sampleable_ids(), np.linspace(1, 3, len(live)))
        yield live, tmp_path / "old"


def powers(buffer):
    """``p ** alpha`` by id, from what the buffer itself says of one draw."""
    ids = buffer.sampleable_ids()
    return dict(zip(ids.tolist(), buffer.gather(ids).probability * buffer.tree.total, strict=True))


@pytest.mark.costly(1)
@pytest.mark.parametrize("mixture", [None, (0.5, 0.5), (3, 1), (0, 1)])
def test_draws_are_exact(stores, mixture):
    live, old = stores
    with diskreplay.ReplayUnion([live, old], mixture=mixture, seed=1) as union:
        of = [powers(member) for member in union.members]
        total = [sum(each.values()) for each in of]
        share = np.array(mixture or total) / sum(mixture or total)
        np.testing.assert_allclose(union.shares(), share)
        expected = {
            own * 2 + member: share[member] * power / total[member]
            for member, each in enumerate(of) for own, power in each.items()
        }  # fmt: skip
        found, drawn, size = dict.fromkeys(expected, 0), 0, 60
        for _ in range(400):
            batch = union.sample(size)
            for i, id_ in enumerate(batch.id.tolist()):
                assert batch.probability[i] == pytest.approx(expected[id_])
                found[id_] += 1
            members, _own = union.locate(batch.id)
            assert (np.diff(members) >= 0).all()
            counts = np.bincount(members, minlength=2)
            assert (np.abs(counts - share * size) < 1 + 1e-9).all()
            drawn += size
        there = [id_ for id_ in expected if expected[id_]]
        assert not any(found[id_] for id_ in expected if not expected[id_])
        counts, wanted = (np.array([of[id_] for id_ in there]) for of in (found, expected))
        wanted = wanted * drawn
        # Stratified draws deviate less than independent ones, which exceed it once in a thousand.
        freedom = len(there) - 1
        bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
        assert (np.square(counts - wanted) / wanted).sum() < bound


def test_uniform_members_are_drawn_evenly(tmp_path):
    with (
        make(tmp_path / "a", diskreplay.ReplayBuffer) as a,
        make(tmp_path / "b", diskreplay.ReplayBuffer, num_envs=1) as b,
    ):
        fill(a, 30)
        fill(b, 90, 1000)
        union = diskreplay.ReplayUnion([a, b], batch_size=24)
        assert len(union) == len(a) + len(b)
        rewards = np.concatenate([union.sample().reward for _ in range(300)])
        counts = np.array([(rewards == a_reward).sum() for a_reward in np.unique(rewards)])
        assert len(counts) == len(union)
        expected = 7200 / len(union)
        assert (np.square(counts - expected) / expected).sum() < 2 * len(union)
        assert (union.sample().weight == 1).all()
        with pytest.raises(errors.UsageError, match="prioritized"):
            union.update_priorities([0], [1.0])


@pytest.mark.parametrize("mixture", [None, (0.5, 0.5)])
def test_weights(stores, mixture):
    live, old = stores
    union = diskreplay.ReplayUnion([live, old], mixture=mixture, beta=0.7)
    batch = union.sample(50)
    members, own = union.locate(batch.id)
    if mixture is None:
        rarity = 1 / batch.probability
    else:
        rarity = np.array([
            1 / (len(union.members[m]) * union.members[m].gather(own[i : i + 1]).probability[0])
            for i, m in enumerate(members)
        ])  # fmt: skip
    np.testing.assert_allclose(batch.weight, (rarity / rarity.max()) ** 0.7, rtol=1e-5)
    assert len(np.unique(batch.weight)) > 5
    assert (union.sample(10, beta=0.0).weight == 1).all()


@pytest.mark.parametrize("stack_size", [1, 3])
@pytest.mark.parametrize("horizon", [1, 2])
def test_batches_are_those_of_the_members(tmp_path, stack_size, horizon):
    options = {"stack_size": stack_size, "update_horizon": horizon}
    with (
        make(tmp_path / "a", **options) as a,
        make(tmp_path / "b", compressor={"observation": "zstd"}, **options) as b,
        diskreplay.ReplayUnion([a, b]) as union,
    ):
        fill(a, 60)
        fill(b, 45, 100)
        kept = []
        for size in (20, 20, 7, 20, 20):
            batch = union.sample(size)
            members, own = union.locate(batch.id)
            assert set(members) == {0, 1}
            parts = [union.members[m].gather(own[members == m]) for m in (0, 1)]
            for name in batch:
                if name not in ("id", "weight", "probability"):
                    wanted = np.concatenate([part[name] for part in parts])
                    np.testing.assert_array_equal(batch[name], wanted, err_msg=name)
            again = union.gather(batch.id[::-1])
            for name in batch:
                if name != "weight":
                    np.testing.assert_array_equal(again[name][::-1], batch[name], err_msg=name)
            kept.append((batch, {name: batch[name].copy() for name in batch}))
        for batch, copies in kept:  # no batch was overwritten by a later one
            for name, copied in copies.items():
                np.testing.assert_array_equal(batch[name], copied)
        assert len(union.gather([])) == 0


def test_threads_change_nothing_of_what_is_read(stores, monkeypatch):
    monkeypatch.setattr(reading_pool, "_PART_BYTES", 1)
    live, old = stores
    batches = []
    for threads in (1, 3):
        with diskreplay.ReplayUnion([live, old], seed=2) as union:
            batch = union.sample(40, threads=threads)
            batches.append([kept(batch), kept(union.gather(batch.id[::-1], threads=threads))])
    for one, other in zip(*batches, strict=True):
        assert_equal(one, other)


def test_nested_spaces_are_joined(tmp_path):
    from gymnasium.spaces import Dict, Tuple

    space = Dict({"a": Box(-9, 999, (2,)), "b": Tuple([Discrete(500), Box(-9, 9, ())])})

    def record(path, start):
        buffer = diskreplay.ReplayBuffer(
            path, observation_space=space, action_space=Discrete(3), capacity=100
        )
        for i in range(start, start + 30):
            buffer.add({"a": [i, i], "b": (i, 0.5)}, 0, i, False, False)
        return buffer

    with record(tmp_path / "x", 0) as x, record(tmp_path / "y", 100) as y:
        batch = diskreplay.ReplayUnion([x, y]).sample(20)
        np.testing.assert_array_equal(batch.observation["a"][:, 1], batch.reward)
        np.testing.assert_array_equal(batch.observation["b"][0], batch.reward.astype(int))
        np.testing.assert_array_equal(batch.next_observation["b"][0], batch.reward.astype(int) + 1)


def test_priorities_go_to_their_owner(stores):
    live, old = stores
    with diskreplay.ReplayUnion([live, old]) as union:
        reader = union.members[1]
        first, third = live.sampleable_ids()[[0, 2]]
        ids = np.array([first * 2, 4 * 2 + 1, third * 2, 4 * 2 + 1])
        assert union.update_priorities(ids, [10.0, 1.0, 20.0, 30.0]) == 0
        for member, own, priority in ((live, first, 10), (live, third, 20), (reader, 4, 30)):
            found = member.gather([own]).probability[0] * member.tree.total
            assert found == pytest.approx(priority**member.alpha)
        before = powers(live), powers(reader)
        for wrong, priorities, error in (
            ([0, 1], [1.0, -1.0], errors.PriorityError),
            ([0, 1], [1.0, np.nan], errors.PriorityError),
            ([0, 1], [1.0, np.inf], errors.PriorityError),
            ([0, 999_999], [5.0, 5.0], errors.UnknownIdError),
            ([0, -1], [5.0, 5.0], errors.UnknownIdError),
            ([0, 1], [5.0], errors.ShapeError),
            ([0, 1], ["a", "b"], errors.PriorityError),
            ([0.5], [1.0], errors.DtypeError),
        ):
            with pytest.raises(error):
                union.update_priorities(wrong, priorities)
        assert (powers(live), powers(reader)) == before
        fill(live, 400, 80)  # the first have left
        assert union.update_priorities([0, 3], [5.0, 5.0]) == 1
        with pytest.raises(errors.UnknownIdError) as caught:
            union.gather([999_999])
        assert "of member 1" in caught.value.__notes__[0]


def test_powers_that_no_tree_takes(tmp_path):
    with make(tmp_path / "a", alpha=2.0) as a, make(tmp_path / "b", alpha=2.0) as b:
        fill(a, 20)
        fill(b, 20)
        union = diskreplay.ReplayUnion([a, b])
        before = powers(a)
        with pytest.raises(errors.PriorityError, match="alpha=2"):
            union.update_priorities([0, 1], [7.0, 1e200])
        assert powers(a) == before


def test_a_mixture_of_windows(stores):
    live, old = stores
    with diskreplay.open(old) as reader:
        views = [
            each.sequences(6, burn_in=2, prioritized=True, name="mixed") for each in (live, reader)
        ]
        union = diskreplay.ReplayUnion(views, mixture=(0.5, 0.5), seed=3)
        assert union.batch_size == 16
        for _ in range(4):
            batch = union.sample(12)
            assert isinstance(batch, diskreplay.SequenceBatch)
            members, own = union.locate(batch.anchor)
            assert members.tolist() == [0] * 6 + [1] * 6
            for m, view in enumerate(views):
                part = view.gather(own[members == m])
                for name in ("observation", "reward", "begin", "returns", "target", "step"):
                    np.testing.assert_array_equal(batch[name][members == m], part[name])
                wanted = np.where(part.id < 0, -1, part.id * 2 + m)
                np.testing.assert_array_equal(batch.id[members == m], wanted)
            again = union.gather(batch.anchor[::-1])
            np.testing.assert_array_equal(again.observation[::-1], batch.observation)
        anchors = batch.anchor[[0, 11]]
        union.update_priorities(anchors, [50.0, 70.0])
        own = union.locate(anchors)[1]
        for view, anchor, priority in zip(views, own, (50, 70), strict=True):
            total = view._view.anchors.tree.total
            found = view.gather([anchor]).probability[0] * total
            assert found == pytest.approx(priority**0.9)
        assert len(union) == sum(map(len, views))


def test_new_windows_are_handed_out_once(stores):
    live, old = stores
    with diskreplay.open(old) as reader:
        union = diskreplay.ReplayUnion(
            [live.sequences(5, online=True), reader.sequences(5, online=True)], mixture=(1, 1)
        )
        union.sample(4)
        fill(live, 20, 80)
        new = {int(a) * 2 for a in live.sequences(5, name="all").anchors() if a >= 80}
        with union.prefetch(3, 4) as batches:
            seen = next(batches).anchor[:2].tolist()
        for _ in range(12):  # what was under way is handed out again
            seen += union.sample(4).anchor[:2].tolist()
        assert seen[: len(new)] == sorted(new)
        assert 10 < len(new) < len(seen)


@pytest.fixture
def view_in_union(stores):
    """A view of a buffer that is recorded to, and a union of it that draws two windows of it."""
    live, old = stores
    with diskreplay.open(old) as reader:
        view = live.sequences(5, online=True)
        others = reader.sequences(5, online=True)
        yield live, view, diskreplay.ReplayUnion([view, others], mixture=(1, 1), batch_size=4)


def test_a_new_window_comes_once_where_a_view_is_drawn_from_beside_the_union(view_in_union):
    live, view, union = view_in_union
    fill(live, 60, 80)
    new = view.anchors()[view.anchors() >= 80].tolist()
    found = []
    with union.prefetch(3, 4) as batches:
        for _ in range(3):
            found += union.locate(next(batches).anchor[:2])[1].tolist()
            found += view.sample(2).anchor.tolist()
    while len(found) < len(new):
        found += view.sample(2).anchor.tolist()
    assert sorted(found[: len(new)]) == new


def test_a_new_window_comes_once_where_a_prefetcher_is_closed_amid_draws_of_the_view(
    view_in_union,
):
    live, view, union = view_in_union
    fill(live, 1500, 80)
    new = view.anchors()[view.anchors() >= 80].tolist()
    by_union, by_view = [], []

    def take():
        while len(by_union) + len(by_view) < len(new) // 2:
            with union.prefetch(3, 4) as batches:
                by_union.extend(union.locate(next(batches).anchor[:2])[1].tolist())

    thread = threading.Thread(target=take)
    thread.start()
    while thread.is_alive() and len(by_union) + len(by_view) < len(new) // 2:
        by_view += view.sample(2).anchor.tolist()
    thread.join()
    found = by_union + by_view
    while len(found) < len(new):
        found += view.sample(1).anchor.tolist()
    assert sorted(found) == new


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_new_window_comes_once_where_a_draw_of_a_union_is_made_again(
    view_in_union, monkeypatch, prefetch
):
    live, view, union = view_in_union
    fill(live, 60, 80)
    new = view.anchors()[view.anchors() >= 80].tolist()
    monkeypatch.setattr(SequenceReader, "read", read_again(SequenceReader.read))
    batches, found = union.prefetch(1, 4) if prefetch else None, []
    while len(found) < len(new):
        batch = next(batches) if prefetch else union.sample(4)
        found += union.locate(batch.anchor[:2])[1].tolist()
    assert sorted(found[: len(new)]) == new


def test_what_a_prefetcher_had_under_way_comes_again_after_a_flush_and_a_kill(tmp_path):
    code = f"""
        import json, os, signal
        import diskreplay
        from pathlib import Path
        from tests.test_union import fill, make
        live = make(Path({str(tmp_path / "live")!r}))
        union = diskreplay.ReplayUnion([live.sequences(3, online=True, name="v")], batch_size=4)
        fill(live, 60)
        batches, own = union.prefetch(2, 4), live.sequences(3, name="w", online=True).prefetch(2, 4)
        print(json.dumps(next(batches).anchor.tolist()), flush=True)
        next(own)
        live.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = processes.run(textwrap.dedent(code))
    assert done.returncode == -signal.SIGKILL
    found = json.loads(done.stdout)
    with make(tmp_path / "live") as live:
        view = live.sequences(3, online=True, name="v")
        new = view.anchors().tolist()
        while len(found) < len(new):
            found += view.sample(4).anchor.tolist()
        assert found[: len(new)] == new


def test_windows_under_way_in_a_view_and_in_a_union_come_again_in_a_resumed_run(stores, tmp_path):
    """Which prefetcher has which is for their threads to say, and what was asked for after the
    save may come before what was under way then. So each run goes on till all were handed out."""
    live, _ = stores
    view = live.sequences(3, online=True, name="v")
    union = diskreplay.ReplayUnion([view], batch_size=4, seed=1)
    fill(live, 60, 80)
    new = view.anchors()[view.anchors() >= 80].tolist()

    def handed_out(before):
        found = [*before, *(a for each in (joint, joint, own, own) for a in next(each).anchor)]
        own.close()
        joint.close()
        while len(found) < len(new):
            found += view.sample(4).anchor.tolist()
        return sorted(found[: len(new)])

    own, joint, found = view.prefetch(2, 4), union.prefetch(2, 4), []
    for _ in range(2):
        found += [*next(own).anchor.tolist(), *next(joint).anchor.tolist()]
    live.save(tmp_path / "saved", 1, attachments={"union.npz": union.save})
    assert handed_out(found) == new
    live.close()
    with make(tmp_path / "other") as live:
        view = live.sequences(3, online=True, name="v")
        union = diskreplay.ReplayUnion([view], batch_size=4, seed=2)
        saved = live.load(tmp_path / "saved", resume_episodes=True)
        union.load(saved.attachments["union.npz"])
        own, joint = view.prefetch(2, 4), union.prefetch(2, 4)
        assert handed_out(found) == new


@pytest.mark.costly
def test_a_member_that_was_cleared_and_has_rows_again_is_not_empty(stores):
    """Nor is what was asked for before drawn in between."""
    live, old = stores
    with diskreplay.ReplayUnion([live, old], mixture=(1, 1)) as union, union.prefetch(1, 8) as b:
        for turn in range(20):
            next(b)
            live.clear()
            fill(live, 30, 100 * turn)
            next(b)


@pytest.mark.parametrize("windows", [False, True])
def test_a_prefetcher_gives_nothing_of_rows_that_are_gone(stores, tmp_path, windows):
    """Neither after `clear` of a member, nor after a `load` that the union is told nothing of."""
    live, old = stores
    with diskreplay.open(old) as reader:
        members = [each.sequences(5) if windows else each for each in (live, reader)]
        union = diskreplay.ReplayUnion(members, mixture=(1, 1), seed=3)
        with union.prefetch(3, 8) as batches:
            next(batches)
            live.save(tmp_path / "saved", 1)
            live.clear()
            fill(live, 30, 1000)
            cleared = [next(batches) for _ in range(4)]
            # Behind the end of an episode a window has no rows, and zeros.
            there = [batch.observed[:4] if windows else slice(0, 4) for batch in cleared]
            rewards = np.concatenate(
                [batch.reward[:4][mask] for batch, mask in zip(cleared, there, strict=True)]
            )
            assert len(rewards) >= 16
            assert set(rewards) <= set(live.take("reward", np.arange(30)))
            live.load(tmp_path / "saved")
            batch = next(batches)
            ids = batch.anchor[:4] if windows else batch.id[:4]
            again = members[0].gather(union.locate(ids)[1])
            np.testing.assert_array_equal(batch.reward[:4], again.reward)


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_run_goes_on_bit_for_bit(stores, tmp_path, prefetch):
    live, old = stores

    def learn(union, steps, start):
        drawn = []
        batches = union.prefetch(2, 10) if prefetch else None
        for step in range(steps):
            batch = next(batches) if prefetch else union.sample(10)
            drawn.append((batch.id.tolist(), batch.weight.tolist(), batch.reward.tolist()))
            fill(live, 1, start + step)
            union.update_priorities(batch.id, batch.reward % 5 + 0.1)
        return drawn, batches

    with diskreplay.ReplayUnion([live, old], seed=8) as union:
        _, batches = learn(union, 20, 80)
        live.save(tmp_path / "saved", 1, attachments={"union.npz": union.save})
        if prefetch:
            batches.close()
        wanted, _ = learn(union, 20, 100)
    live.close()
    with make(tmp_path / "other") as live, diskreplay.ReplayUnion([live, old], seed=9) as union:
        saved = live.load(tmp_path / "saved", resume_episodes=True)
        union.load(saved.attachments["union.npz"])
        assert learn(union, 20, 100)[0] == wanted


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_resumed_run_is_handed_the_new_windows_that_were_under_way(stores, tmp_path, prefetch):
    """A member saves which were handed out, with those of batches that nobody has taken."""
    live, old = stores

    def draw(union, batches, count=12):
        drawn = (next(batches) if prefetch else union.sample(4) for _ in range(count))
        return [batch.anchor.tolist() for batch in drawn]

    options = {"length": 5, "batch_size": 4, "online": True}
    with (
        diskreplay.ReplayUnion([live, old], mixture=(1, 1)) as union,
        union.sequences(**options, seed=8) as windows,
    ):
        windows.sample(4)
        fill(live, 30, 80)
        batches = windows.prefetch(2, 4) if prefetch else None
        draw(windows, batches, 2)
        live.save(tmp_path / "saved", 1, attachments={"windows.npz": windows.save})
        wanted = draw(windows, batches)
    live.close()
    with (
        make(tmp_path / "other") as live,
        diskreplay.ReplayUnion([live, old], mixture=(1, 1)) as union,
        union.sequences(**options, seed=9) as windows,
    ):
        saved = live.load(tmp_path / "saved", resume_episodes=True)
        windows.load(saved.attachments["windows.npz"])
        assert draw(windows, windows.prefetch(2, 4) if prefetch else None) == wanted


@pytest.mark.parametrize("union_first", [False, True])
def test_a_view_with_a_prefetcher_of_its_own_counts_by_itself(stores, tmp_path, union_first):
    live, old = stores
    with diskreplay.open(old) as reader:
        views = [each.sequences(1, online=True, batch_size=2) for each in (live, reader)]
        union = diskreplay.ReplayUnion(views, mixture=(1, 1))
        batches = views[0].prefetch(2, 2)
        fill(live, 60, 80)
        next(batches)
        live.save(tmp_path / "saved", 1, attachments={"union.npz": union.save})
        wanted = [next(batches).anchor.tolist() for _ in range(5)]
    live.close()
    with make(tmp_path / "other") as live, diskreplay.open(old) as reader:
        views = [each.sequences(1, online=True, batch_size=2) for each in (live, reader)]
        union = diskreplay.ReplayUnion(views, mixture=(1, 1))
        saved = live.load(tmp_path / "saved", resume_episodes=True)
        if union_first:
            union.load(saved.attachments["union.npz"])
        batches = views[0].prefetch(2, 2)
        if not union_first:
            union.load(saved.attachments["union.npz"])
        assert [next(batches).anchor.tolist() for _ in range(5)] == wanted


def test_what_is_made_of_prefetched_batches(tmp_path):
    with make(tmp_path / "a") as a, make(tmp_path / "b") as b:
        fill(a, 90, 60), fill(b, 80, 40)
        union = diskreplay.ReplayUnion([a, b], seed=1)
        expected = [union.sample(8).id.tolist() for _ in range(10)]
    with make(tmp_path / "a") as a, make(tmp_path / "b") as b:
        union = diskreplay.ReplayUnion([a, b], seed=1)
        with union.prefetch(2, 8, map=lambda batch: batch.id.tolist()) as ahead:
            assert [next(ahead) for _ in range(10)] == expected


def test_prefetched_draws_do_not_depend_on_timing(tmp_path):
    """The members' own calls wait for the draws that were asked for."""

    def run(path, pause):
        with make(path / "a", seed=1) as a, make(path / "b", seed=2) as b:
            fill(a, 50)
            fill(b, 50, 500)
            drawn = []
            with diskreplay.ReplayUnion([a, b]) as union, union.prefetch(3, 8) as batches:
                for step in range(60):
                    batch = next(batches)
                    drawn.append(batch.id.tolist())
                    pause()
                    fill(a, 2, 50 + 2 * step)
                    b.update_priorities(b.sampleable_ids()[:5], np.full(5, 1.0 + step))
            return drawn

    assert run(tmp_path / "one", lambda: None) == run(
        tmp_path / "other", lambda: threading.Event().wait(0.002)
    )


@pytest.mark.parametrize("fails", ["draw", "read"])
def test_a_prefetched_batch_that_fails_leaves_no_reader_inside(tmp_path, monkeypatch, fails):
    """Its members could unmap nothing any more: `close` waited for ever."""
    with make(tmp_path / "a") as a, make(tmp_path / "b") as b:
        fill(a, 50)
        fill(b, 50, 500)
        union = diskreplay.ReplayUnion([a, b], mixture=(0.5, 0.5))
        member = list(union._members)[fails == "draw"]
        draw = member.draw

        def fail(*_arguments, **_options):
            raise MemoryError

        class Drawn:
            def __init__(self, *arguments):
                self.drawn, self.read = draw(*arguments), fail

            def __getattr__(self, name):
                return getattr(self.drawn, name)

        monkeypatch.setattr(member, "draw", fail if fails == "draw" else Drawn)
        batches = union.prefetch(2, 8)
        with pytest.raises(MemoryError):
            next(batches)
        monkeypatch.undo()
        batches.close()
        left = [each._rows.store.rwlock._inside for each in (a, b)]
        for each in (a, b):  # else `close` waits
            each._rows.store.rwlock._inside = 0
        assert left == [0, 0]


def test_a_live_store_is_followed(tmp_path):
    with make(tmp_path / "live") as live:
        fill(live, 30)
        with diskreplay.ReplayUnion([tmp_path / "live"]) as union:
            assert len(union) == len(live)
            fill(live, 600, 30)
            assert len(union) == len(live)
            batch = union.sample(64)
            np.testing.assert_array_equal(batch.observation[:, 0], batch.reward.astype(int) % 256)
            assert batch.reward.min() >= 320


def test_ids_of_before_a_clear_of_a_followed_store_are_called_that(tmp_path):
    with make(tmp_path / "live") as live:
        fill(live, 30)
        with diskreplay.ReplayUnion([tmp_path / "live"]) as union:
            batch = union.sample(8)
            live.clear()
            fill(live, 2)
            match = r"2 rows; .* anew after a `load` or `clear`, also one by another process"
            with pytest.raises(errors.UnknownIdError, match=match):
                union.update_priorities([*batch.id, 20], np.ones(9))
            with pytest.raises(errors.UnknownIdError, match=match):
                live.take("reward", [20])


def test_drawing_beside_adding(tmp_path):
    """Rows leave all the time; no batch ever holds what another row brought."""
    with make(tmp_path / "a", capacity=64, segment_rows=8) as a, make(tmp_path / "b") as b:
        fill(a, 60)
        fill(b, 50, 5000)
        with diskreplay.ReplayUnion([a, b], mixture=(1, 1)) as union:
            failed, done = [], threading.Event()

            def draw():
                try:
                    while not done.is_set():
                        batch = union.sample(32)
                        np.testing.assert_array_equal(
                            batch.observation[:, 0], batch.reward.astype(int) % 256
                        )
                        union.update_priorities(batch.id, np.ones(32))
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=draw) for _ in range(2)]
            for thread in threads:
                thread.start()
            fill(a, 1500, 60)
            done.set()
            for thread in threads:
                thread.join()
            assert not failed


def test_what_is_refused(stores, tmp_path):
    live, old = stores
    with (
        make(tmp_path / "stacked", stack_size=2) as stacked,
        make(tmp_path / "a", alpha=1) as other,
    ):
        for members, mixture, error, words in (
            ([], None, errors.InvalidInputError, "at least one"),
            ([live, live], None, errors.InvalidInputError, "comes twice"),
            ([live, 3], None, errors.InvalidInputError, "found 3"),
            ([live, tmp_path / "nothing"], None, errors.DiskReplayError, "nothing"),
            ([live, stacked], None, errors.SchemaError, "stack_size: 1 expected"),
            ([live, other], None, errors.SchemaError, "one alpha"),
            ([live, live.sequences(4)], None, errors.InvalidInputError, "either"),
            ([live, old], [1], errors.InvalidInputError, "2 members"),
            ([live, old], [1, -1], errors.InvalidInputError, "from 0 on"),
            ([live, old], [0, 0], errors.InvalidInputError, "from 0 on"),
            ([live, old], [1e308, 1e308], errors.InvalidInputError, "from 0 on"),
            ([live, old], ["a", 1], errors.InvalidInputError, "numbers"),
            (
                [live.sequences(4), other.sequences(5)], None, errors.SchemaError, "windows",
            ),
        ):  # fmt: skip
            with pytest.raises(error, match=words):
                diskreplay.ReplayUnion(members, mixture=mixture)
        union = diskreplay.ReplayUnion([live, other], mixture=(1, 1))
        with pytest.raises(errors.EmptyBufferError, match="member 1"):
            union.sample()
        assert len(union.gather([live.sampleable_ids()[0] * 2])) == 1
        (tmp_path / "broken").write_bytes(b"PK no")
        union.save(tmp_path / "good")
        with diskreplay.ReplayUnion([live]) as fewer:
            for path in ("broken", "missing", "good"):
                with pytest.raises(errors.FormatError, match="no saved state"):
                    fewer.load(tmp_path / path)
        with diskreplay.ReplayUnion([live, old]) as union:
            with pytest.raises(errors.FormatError, match="opened in another way"):
                union.load(tmp_path / "good")
            with union.prefetch(1), pytest.raises(errors.UsageError):
                union.prefetch(1)
        with pytest.raises(errors.ClosedError):
            union.sample()
        assert not live.closed
        assert union.members[1].closed


def test_a_damaged_state_is_refused(stores, tmp_path):
    with diskreplay.ReplayUnion(stores, seed=0) as union:
        union.save(tmp_path / "whole")
        whole = (tmp_path / "whole").read_bytes()
        ids = union.sample(8).id
        central = whole.index(b"PK\x01\x02")
        for at, bits in (
            (central - 1, 1),  # a value: the checksum differs
            (central + 6, 64),  # a version of the format that is yet to come
            (central + 8, 1),  # encrypted, and in the other header too
        ):
            damaged = bytearray(whole)
            damaged[at] ^= bits
            if at == central + 8:
                damaged[6] ^= bits
            (tmp_path / "damaged").write_bytes(damaged)
            with pytest.raises(errors.FormatError, match="no saved state"):
                union.load(tmp_path / "damaged")
        (tmp_path / "damaged").write_bytes(whole[:200])
        with pytest.raises(errors.FormatError, match="no saved state"):
            union.load(tmp_path / "damaged")
        union.load(tmp_path / "whole")
        assert union.sample(8).id.tolist() == ids.tolist()


class _Joined:
    """A union of one buffer, with what the contract asks of a buffer."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.union = diskreplay.ReplayUnion([buffer], seed=0)
        self.add, self.take, self.flush = buffer.add, buffer.take, buffer.flush
        self.sample = self.union.sample

    @property
    def bounds(self):
        return self.buffer.bounds

    def close(self):
        if not self.buffer.closed:
            self.union.close()
        self.buffer.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    def __reduce__(self):
        return self.union.__reduce__()


class TestUnion(OfReplayBuffer):
    """What holds for every buffer holds for a union of one."""

    def make(self, path):
        return _Joined(diskreplay.ReplayBuffer(path, **SPACES, capacity=CAPACITY, segment_rows=8))


@pytest.mark.parametrize("mixture", [None, (1, 3)])
def test_a_union_of_windows_by_its_options(stores, mixture):
    live, old = stores
    with diskreplay.ReplayUnion(
        [live, old], mixture=mixture, weight_normalization="buffer"
    ) as union:
        with union.sequences(
            6, burn_in=2, prioritized=True, batch_size=5, beta=1.0, seed=1
        ) as windows:
            assert windows.batch_size == 5
            assert len(windows) == sum(len(view.anchors()) for view in windows.members)
            anchors = windows.gather([0]).anchor
            windows.update_priorities(anchors, [0.01])
            batch = windows.sample(200)
            members, own = windows.locate(batch.anchor)
            # The rarest window of all has the weight 1, whether it is in the batch or not.
            least = windows.gather(anchors).probability[0]
            if mixture is None:
                np.testing.assert_allclose(batch.weight, least / batch.probability, rtol=1e-5)
            for m, view in enumerate(windows.members):
                part = view.gather(own[members == m])
                np.testing.assert_array_equal(batch.reward[members == m], part.reward)
            with pytest.raises(errors.InvalidInputError, match="'union' is open"):
                union.sequences(3)
            with pytest.raises(errors.UsageError, match="windows already"):
                windows.sequences(3)
        assert live._views.get("union") is None  # closed with it
        again = union.sequences(3, name="union")
        again.close()
        with pytest.raises(errors.CapacityError):
            union.sequences(10_000)


def test_a_schedule(stores):
    live, old = stores
    asked = []

    def schedule(added):
        asked.append(added)
        return 0.5

    union = diskreplay.ReplayUnion([live, old], beta=schedule, seed=1)
    with diskreplay.ReplayUnion([live, old], beta=0.5, seed=1) as other:
        np.testing.assert_array_equal(union.sample(20).weight, other.sample(20).weight)
    assert asked == [120]
    fill(live, 5, 80)
    union.sample(3, beta=schedule)
    assert asked == [120, 125]
    with pytest.raises(errors.ReentryError):
        union.sample(3, beta=lambda _added: len(union))
    with pytest.raises(errors.InvalidInputError, match="beta"):
        union.sample(3, beta=lambda _added: -1)
    with pytest.raises(errors.InvalidInputError, match="weight_normalization"):
        diskreplay.ReplayUnion([live], weight_normalization="union")
    union.sample(3)
    union.close()


def test_closing_a_prefetcher_after_its_union(stores):
    union = diskreplay.ReplayUnion(stores, seed=1)
    batches = union.prefetch(1, 4)
    next(batches)
    union.close()
    batches.close()
    batches.close()
