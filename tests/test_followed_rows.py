"""What a reader takes over of what the writer did since it was opened."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.testing import assert_allclose, assert_array_equal

import diskreplay
from diskreplay.errors import StoreMovedError, UnknownIdError
from diskreplay.sampling.priority_tree import PriorityTree


def make(path, kind=diskreplay.PrioritizedReplayBuffer, **options):
    return kind(
        path,
        **{
            "observation_space": Box(0, 1e9, (1,), np.float64), "action_space": Discrete(10**6),
            "capacity": 120, "num_envs": 2, "seed": 0, **options,
        },
    )  # fmt: skip


def fill(buffer, rows, base=0):
    envs, no = buffer.num_envs, np.zeros(buffer.num_envs, bool)
    for row in range(rows):
        buffer.add(np.full((envs, 1), row), np.full(envs, base + row), np.ones(envs), no, no)


def probabilities(buffer):
    ids = buffer.sampleable_ids()
    return ids, buffer.gather(ids).probability


def assert_same_priorities(writer, *readers):
    expected = probabilities(writer)
    for reader in readers:
        found = probabilities(reader)
        assert_array_equal(found[0], expected[0])
        assert_allclose(found[1], expected[1], rtol=1e-12)
        assert reader.priority_mass().largest == writer.priority_mass().largest


@pytest.mark.parametrize("index_made", [True, False])
def test_priorities_are_those_of_the_last_flush(tmp_path, index_made):
    rng = np.random.default_rng(0)
    with make(tmp_path / "s") as writer:
        fill(writer, 30)
        writer.flush()
        with diskreplay.open(tmp_path / "s") as reader:
            if index_made:
                assert_same_priorities(writer, reader)
            for priority in (1000.0, 5.0, 7000.0):
                ids = writer.sampleable_ids()
                writer.update_priorities(ids, rng.random(len(ids)))
                writer.update_priorities(ids[3:4], [priority])
                before = probabilities(reader) if index_made else None
                if index_made:  # not those that were set since
                    assert_array_equal(probabilities(reader)[1], before[1])
                writer.flush()
                assert_same_priorities(writer, reader)
                index_made = True
                fill(writer, 4)  # later rows have the largest
                assert_same_priorities(writer, reader)
            fill(writer, 70)  # round the ring
            writer.update_priorities(writer.sampleable_ids()[:1], [9.0])
            writer.flush()
            fill(writer, 3)
            assert_same_priorities(writer, reader)


def test_the_same_seed_draws_the_same_from_both(tmp_path):
    with make(tmp_path / "s") as writer:
        fill(writer, 30)
        writer.flush()
        with diskreplay.open(tmp_path / "s") as reader:
            reader.sample(4)
            ids = writer.sampleable_ids()
            writer.update_priorities(ids, np.arange(len(ids)) + 1.0)
            writer.flush()
            fill(writer, 5)
            writer.rng.bit_generator.state = reader.rng.bit_generator.state
            assert_array_equal(writer.sample(64).id, reader.sample(64).id)


@pytest.mark.parametrize("ending", ["save", "close"])
def test_so_are_those_of_a_save_and_of_closing(tmp_path, ending):
    writer = make(tmp_path / "s")
    fill(writer, 20)
    writer.flush()
    with diskreplay.open(tmp_path / "s") as reader:
        probabilities(reader)
        writer.update_priorities([4, 6], [50.0, 70.0])
        expected = probabilities(writer)
        if ending == "save":
            writer.save(tmp_path / "ck", 1)
        else:
            writer.close()
        assert_allclose(probabilities(reader)[1], expected[1], rtol=1e-12)
        assert reader.priority_mass().largest == 70.0
        writer.close()


def test_a_reader_that_does_not_follow_keeps_its_priorities(tmp_path):
    with make(tmp_path / "s") as writer:
        fill(writer, 20)
        writer.flush()
        with diskreplay.open(tmp_path / "s", follow=False) as reader:
            before = probabilities(reader)
            writer.update_priorities([4], [50.0])
            writer.flush()
            assert_array_equal(probabilities(reader)[1], before[1])


def test_an_interruption_leaves_them_to_be_taken_over(tmp_path, monkeypatch):
    with make(tmp_path / "s") as writer:
        fill(writer, 20)
        writer.flush()
        with diskreplay.open(tmp_path / "s") as reader:
            probabilities(reader)
            writer.update_priorities([4], [50.0])
            writer.flush()

            def interrupted(*arguments):
                raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr(reader._rows, "make_sampler", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    reader.sample(2)
            assert_same_priorities(writer, reader)


def test_priorities_and_the_largest_one_are_of_one_moment(tmp_path, monkeypatch):
    """A reader that looks between the two keeps those that it has, also if the writer dies."""
    from diskreplay.store.record import Record

    writer = make(tmp_path / "s")
    fill(writer, 20)
    writer.flush()
    reader = diskreplay.open(tmp_path / "s")
    before, seen = probabilities(reader), []
    writer.update_priorities(writer.sampleable_ids(), np.full(len(writer), 1000.0))
    write = Record.write

    def looked_at(self, *arguments, **options):
        seen.append((probabilities(reader)[1], reader.priority_mass().largest))
        if len(seen) == 1:
            raise diskreplay.DiskFullError(28, "full", "x")
        write(self, *arguments, **options)

    monkeypatch.setattr(Record, "write", looked_at)
    with pytest.raises(diskreplay.DiskFullError):
        writer.flush()
    assert reader.priority_mass().largest == 1.0
    writer.flush()
    for found, largest in seen:
        assert_array_equal(found, before[1])
        assert largest == 1.0
    assert_same_priorities(writer, reader)
    seen.clear()
    writer.update_priorities(writer.sampleable_ids(), np.full(len(writer), 9000.0))
    with pytest.raises(diskreplay.DiskFullError):
        writer.flush()
    monkeypatch.undo()
    writer._rows.store.close()  # as a kill does, nothing else is written
    with diskreplay.open(tmp_path / "s") as new:
        assert new.priority_mass().largest == pytest.approx(9000.0)
    with diskreplay.open(tmp_path / "s", mode="a") as again:
        # It goes by the leaves, and so do those who look.
        assert again.priority_mass().largest == pytest.approx(9000.0)
        fill(again, 3)
        assert again.gather(again.sampleable_ids()).probability == pytest.approx(1 / len(again))
        again.flush()
        assert_same_priorities(again, reader)
    reader.close()


def test_views_priorities_are_none_of_the_rows(tmp_path, monkeypatch):
    """A record of a view's makes no sampler anew."""
    with make(tmp_path / "s", diskreplay.ReplayBuffer) as writer:
        fill(writer, 20)
        view = writer.sequences(3, prioritized=True, name="v")
        writer.flush()
        with diskreplay.open(tmp_path / "s") as reader:
            reader.sample(2)
            sampler = reader._rows.sampler
            view.update_priorities(view.sample(2).anchor, [3.0, 4.0])
            writer.flush()
            reader.sample(2)
            assert reader._rows.sampler is sampler


@pytest.mark.parametrize("kind", [diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer])
def test_the_generation_is_the_writers(tmp_path, kind):
    with make(tmp_path / "s", kind) as writer:
        fill(writer, 20)
        writer.save(tmp_path / "ck", 1)
        with diskreplay.open(tmp_path / "s") as reader:
            for change in (writer.clear, lambda: writer.load(tmp_path / "ck", 1)):
                before = reader.generation
                change()
                fill(writer, 5, base=100)
                assert reader.generation != before
                assert reader.generation == writer.generation
        last = reader.generation, reader.add_count
    assert (reader.generation, reader.add_count) == last  # closed, they say what they said


def test_only_the_generation_tells_old_anchors_from_those_of_new_rows(tmp_path):
    """As docs/buffer.md says: numbers of rows that are gone come again."""
    with make(tmp_path / "s") as writer:
        fill(writer, 20)
        with diskreplay.open(tmp_path / "s") as reader:
            view = reader.sequences(2, prioritized=True)
            run, old = reader.generation, view.sample(4).anchor
            assert reader.generation == run
            writer.clear()
            with pytest.raises(UnknownIdError, match="also one by another process"):
                view.update_priorities(old, np.full(4, 3.0))
            fill(writer, 20, base=100)
            assert view.update_priorities(old, np.full(4, 3.0)) == 0
            assert reader.generation != run


@pytest.mark.parametrize("follow", [True, False])
def test_metadata_and_arrays_are_not_those_of_a_store_that_came_to_the_path(tmp_path, follow):
    with make(tmp_path / "s", metadata={"who": "A"}) as writer:
        fill(writer, 5)
    with diskreplay.open(tmp_path / "s", follow=follow) as reader:
        assert reader.metadata == {"who": "A"}
        assert reader.zarr()["action"].shape == (5, 2)
        (tmp_path / "s").rename(tmp_path / "moved")
        with make(tmp_path / "s", metadata={"who": "B"}) as other:
            fill(other, 7)
        with pytest.raises(StoreMovedError):
            _ = reader.metadata
        with pytest.raises(StoreMovedError):
            reader.zarr()


def test_a_checkpoint_that_was_replaced_has_its_own_metadata(tmp_path):
    with make(tmp_path / "s", metadata={"who": "A"}) as writer:
        fill(writer, 5)
        path = writer.save(tmp_path / "ck", 1)
        with diskreplay.open(path) as reader:
            writer.set_metadata({"who": "B"})
            fill(writer, 5)
            writer.save(tmp_path / "ck", 1)
            assert len(reader) == 8
            assert reader.metadata == {"who": "A"}
            with pytest.raises(StoreMovedError):
                reader.zarr()


def test_a_reader_without_memory_for_more_leaves_asks_again(tmp_path, monkeypatch):
    with make(tmp_path / "s", capacity=None) as writer:
        fill(writer, 900)
        with diskreplay.open(tmp_path / "s") as reader:
            assert len(reader) == len(writer)
            size = reader._rows.index.size

            def refuse(*_arguments):
                raise MemoryError

            fill(writer, 200)  # more than it has places for, and not so many that it reads all anew
            monkeypatch.setattr(PriorityTree, "grown", refuse)
            with pytest.raises(MemoryError):
                len(reader)
            monkeypatch.undo()
            assert len(reader) == len(writer)
            rows = reader._rows
            assert rows.index.size > size
            assert rows.sampler.tree.capacity == rows.index.size  # kernels write to as many
