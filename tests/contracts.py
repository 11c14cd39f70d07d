"""What every buffer must do, whatever its calls are named: the older APIs too.

A test module derives a class from `BufferContract`, says how its buffer is made, added to and drawn
from, and gets all tests. Step `i` is one transition whose observation, action and reward say `i`.
"""

import gc
import os
import pickle
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors

CAPACITY = 32
FRAME = (3,)


class BufferContract:
    """One env, stacks of one, `CAPACITY` rows; no step ends an episode but each tenth."""

    def make(self, path):
        """A buffer at `path`, which may hold one that was made so before."""
        raise NotImplementedError

    def add(self, buffer, i):
        """Record step `i`."""
        raise NotImplementedError

    def draw(self, buffer, size):
        """Draw transitions; their observations and their rewards, whose first axis is the batch."""
        raise NotImplementedError

    def recorded(self, buffer):
        """The rewards of all retained transitions that count, in any order."""
        raise NotImplementedError

    def refused(self, buffer):
        """Try to record a step that no such buffer takes."""
        self.add(buffer, "no number")

    # -- recording

    def filled(self, path, steps):
        buffer = self.make(path)
        for i in range(steps):
            self.add(buffer, i)
        return buffer

    def test_what_was_added_is_there(self, tmp_path):
        with self.filled(tmp_path / "store", 20) as buffer:
            assert sorted(self.recorded(buffer)) == list(range(20))

    def test_the_newest_rows_stay(self, tmp_path):
        with self.filled(tmp_path / "store", 3 * CAPACITY) as buffer:
            found = sorted(self.recorded(buffer))
            assert found == list(range(3 * CAPACITY - len(found), 3 * CAPACITY))
            assert CAPACITY - 3 <= len(found) <= CAPACITY

    def test_a_step_that_is_refused_changes_nothing(self, tmp_path):
        with self.filled(tmp_path / "store", 15) as buffer:
            before = sorted(self.recorded(buffer))
            with pytest.raises((ValueError, TypeError)):
                self.refused(buffer)
            assert sorted(self.recorded(buffer)) == before
            self.add(buffer, 15)
            assert sorted(self.recorded(buffer)) == [*before, 15]

    # -- drawing

    def test_what_is_drawn_was_added_and_is_whole(self, tmp_path):
        with self.filled(tmp_path / "store", 25) as buffer:
            seen = set()
            for _ in range(40):
                observations, rewards = self.draw(buffer, 8)
                assert len(observations) == len(rewards) == 8
                newest = np.asarray(observations).reshape(8, -1)[:, -1]
                np.testing.assert_array_equal(newest, np.asarray(rewards).reshape(8))
                seen |= set(np.asarray(rewards).reshape(8).tolist())
            assert seen <= set(range(25))
            assert len(seen) > 15

    def test_a_batch_is_the_users_own(self, tmp_path):
        """Neither what is written to it, nor what is added later, is seen on the other side."""
        with self.filled(tmp_path / "store", 25) as buffer:
            observations, rewards = self.draw(buffer, 8)
            kept = np.array(rewards)
            for i in range(25, 25 + CAPACITY):
                self.add(buffer, i)
            np.testing.assert_array_equal(np.asarray(rewards), kept)
            np.asarray(observations)[...] = 99
            np.asarray(rewards)[...] = 99
            for _ in range(10):
                assert (np.asarray(self.draw(buffer, 8)[0]) != 99).all()

    # -- the disk

    def test_closing_and_reopening(self, tmp_path):
        buffer = self.filled(tmp_path / "store", 20)
        expected = sorted(self.recorded(buffer))
        buffer.close()
        buffer.close()
        for call in (lambda: self.add(buffer, 20), lambda: self.draw(buffer, 4)):
            with pytest.raises(errors.ClosedError):
                call()
        with self.make(tmp_path / "store") as again:
            assert sorted(self.recorded(again)) == expected
            self.add(again, 20)
            assert 20 in self.recorded(again)

    def test_one_that_is_dropped_lets_go_of_its_store(self, tmp_path):
        buffer = self.filled(tmp_path / "store", 20)
        expected = sorted(self.recorded(buffer))
        del buffer
        gc.collect()
        with self.make(tmp_path / "store") as again:
            assert sorted(self.recorded(again)) == expected

    def test_there_is_one_writer(self, tmp_path):
        with self.filled(tmp_path / "store", 3), pytest.raises(errors.LockedError):
            self.filled(tmp_path / "store", 1)

    def test_readers_and_the_command_line_open_its_store(self, tmp_path):
        with self.filled(tmp_path / "store", 20) as buffer:
            buffer.flush()
            with diskreplay.open(tmp_path / "store") as reader:
                rows = np.arange(*reader.bounds[0])
                rewards = reader.take("reward", rows)[~reader.take("is_final", rows)]
                assert set(self.recorded(buffer)) <= set(rewards.tolist())

    def test_another_kinds_store_is_refused(self, tmp_path):
        with diskreplay.ReplayBuffer(
            tmp_path / "store", observation_space=Box(0, 1, (2, 2)), action_space=Discrete(2),
            capacity=CAPACITY,
        ) as other:  # fmt: skip
            other.add(np.zeros((2, 2), np.float32), 0, 0.0, False, False)
        with pytest.raises((errors.DiskReplayError, ValueError)):
            self.filled(tmp_path / "store", 1)
        with diskreplay.open(tmp_path / "store", mode="a") as same:
            assert same.add_count == 1

    # -- processes

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_a_forked_child_is_refused(self, tmp_path):
        with self.filled(tmp_path / "store", 20) as buffer:
            expected = sorted(self.recorded(buffer))
            child = os.fork()
            if not child:  # says by its exit status how it went
                status = 1
                try:
                    self.add(buffer, 20)
                except errors.ForkedError:
                    status = 0
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert sorted(self.recorded(buffer)) == expected

    def test_it_is_not_pickled(self, tmp_path):
        """Two writers of one store would be the outcome."""
        with self.filled(tmp_path / "store", 3) as buffer:
            with pytest.raises((TypeError, ValueError, pickle.PicklingError)):
                pickle.dumps(buffer)
