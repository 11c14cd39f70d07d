"""A reader that looks while the writer replaces, deletes or closes what it is about to read."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.hindsight import Hindsight
from diskreplay.relabelling import Relabelling
from diskreplay.sequence_hindsight import SequenceHindsight
from diskreplay.store import format
from diskreplay.store.open_store import OpenStore


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (8,), "uint8"), action_space=Discrete(4),
        extras={"latent": ((2,), "int64", "mutable")}, segment_rows=8,
        **{"capacity": 40, **options},
    )  # fmt: skip


def record(buffer, rows):
    for number in range(int(buffer.bounds[0, 1]), int(buffer.bounds[0, 1]) + rows):
        frame = np.full(8, number % 251, np.uint8)
        buffer.add(frame, 1, float(number), number % 9 == 8, False, latent=np.full(2, number))


def once(function, before):
    """`function`, with something else done before its first call."""
    waiting = [before]

    def called(*arguments, **options):
        if waiting:
            waiting.pop()()
        return function(*arguments, **options)

    return called


def test_priorities_that_are_replaced_while_they_are_read(tmp_path, monkeypatch):
    with make(tmp_path / "r") as buffer, diskreplay.open(tmp_path / "r") as reader:
        record(buffer, 40)
        buffer.update_priorities([39], [5.0])
        buffer.flush()

        def listed(directory):
            monkeypatch.undo()
            found = format.priority_chunks(directory)
            record(buffer, 400)
            buffer.update_priorities([438], [7.0])
            buffer.flush()
            return found

        monkeypatch.setattr(format, "priority_chunks", listed)
        assert reader.statistics().transitions == 40
        assert reader.sampleable_ids().tolist() == buffer.sampleable_ids().tolist()


@pytest.mark.parametrize("follow", [True, False])
def test_a_writer_that_closes_between_the_record_and_the_page(tmp_path, monkeypatch, follow):
    buffer = make(tmp_path / "r", capacity=400)
    record(buffer, 20)
    buffer.flush()
    record(buffer, 30)
    open_page = OpenStore.open_page
    monkeypatch.setattr(OpenStore, "open_page", once(open_page, buffer.close))
    with diskreplay.open(tmp_path / "r", follow=follow) as reader:
        assert buffer.closed
        assert reader.bounds.tolist() == [[0, 50]]
        assert reader.gather(reader.sampleable_ids()).reward.max() == 48


def test_rows_that_left_by_the_number_of_transitions_and_had_values_that_change(tmp_path):
    """A reader that does not follow maps mutable files again once any was replaced."""
    with make(tmp_path / "r", max_transitions=600, capacity=None) as buffer:
        record(buffer, 1000)
        with diskreplay.open(tmp_path / "r", follow=False) as reader:
            ids = reader.sampleable_ids()
            assert ids[0] <= 400
            record(buffer, 500)
            buffer.save(tmp_path / "c", 1)
            buffer.write("latent", [1400], np.full((1, 2), 7))
            buffer.flush()  # files of rows before 900 are deleted
            first = int(reader.bounds[0, 0])
            kept = ids[ids >= max(first, 900)]
            assert reader.take("latent", kept)[:, 0].tolist() == kept.tolist()
            assert first <= 900


@pytest.mark.parametrize("kind", [Hindsight, SequenceHindsight])
def test_goals_whose_rows_leave_before_they_are_read(tmp_path, monkeypatch, kind):
    goal = Box(-1e9, 1e9, (1,), "float32")
    with diskreplay.ReplayBuffer(
        tmp_path / "r", observation_space=Dict({"achieved_goal": goal, "desired_goal": goal}),
        action_space=Discrete(2), capacity=400, compressor="lz4", segment_rows=64,
    ) as writer:  # fmt: skip

        def play(rows):
            for number in range(int(writer.bounds[0, 1]), int(writer.bounds[0, 1]) + rows):
                seen = {"achieved_goal": np.float32([number]), "desired_goal": np.float32([-1])}
                writer.add(seen, 0, 0.0, False, number % 20 == 19)

        play(60)
        with diskreplay.open(tmp_path / "r") as reader:
            source = reader if kind is Hindsight else reader.sequences(4, ends="shift")
            goals = source.hindsight(
                lambda achieved, desired, _info: -abs(achieved - desired)[:, 0]
            )
            assert type(goals) is kind
            monkeypatch.setattr(Relabelling, "read", once(Relabelling.read, lambda: play(500)))
            ids = goals.sample(32).id
            assert ids.max() >= 60
            assert ids[ids >= 0].min() >= writer.bounds[0, 0]
