"""The twin itself, on examples small enough to have been worked out by hand."""

import numpy as np
import pytest

from tests.naive import NaiveReplayBuffer, NaiveSumTree, SideBySide, make_frame

CELL = {"observation": ((), "uint8")}


def make(num_envs=1, **options):
    return NaiveReplayBuffer(num_envs=num_envs, observation=CELL, **options)


def add(twin, frame, reward=0.0, *, terminated=False, truncated=False, final=None):
    """One step of a single env whose observation is one number."""
    return twin.add(
        [{"observation": np.uint8(frame)}],
        [np.int64(frame % 6)],
        [reward],
        [terminated],
        [truncated],
        None if final is None else [{"observation": np.uint8(final)}],
    )


def stacks(twin, id):
    transition = twin.transition(id)
    return transition["observation"].tolist(), transition["next_observation"].tolist()


def test_a_row_is_pending_until_its_window_is_complete():
    twin = make(update_horizon=2)
    assert add(twin, 10, 1.0) == [0]
    assert twin.sampleable_ids() == []
    assert add(twin, 11, 2.0) == [1]
    assert twin.sampleable_ids() == []
    assert add(twin, 12, 4.0) == [2]
    assert twin.sampleable_ids() == [0]
    assert (len(twin), twin.add_count, twin.rows) == (1, 3, 3)


def test_n_step_reward_discount_and_next_observation():
    twin = make(update_horizon=2, gamma=0.5)
    for frame, reward in ((10, 1.0), (11, 2.0), (12, 4.0)):
        add(twin, frame, reward)
    transition = twin.transition(0)
    assert transition["reward"] == 2.0  # 1 + 2 / 2
    assert transition["discount"] == 0.25
    assert transition["steps"] == 2
    assert transition["observation"] == 10
    assert transition["next_observation"] == 12
    assert not transition["terminated"]


def test_a_cut_whose_last_observation_is_known_loses_no_transition():
    twin = make(update_horizon=3, gamma=0.5)
    for frame, reward in ((10, 1.0), (11, 2.0)):
        add(twin, frame, reward)
    twin.end_episode([True], [{"observation": np.uint8(12)}])
    twin.end_episode([True], [{"observation": np.uint8(99)}])  # no episode is open: no row
    add(twin, 20, 4.0)
    assert twin.sampleable_ids() == [0, 1]
    assert twin.rows == 4
    first, second = twin.transition(0), twin.transition(1)
    assert (first["reward"], first["discount"], first["steps"]) == (2.0, 0.25, 2)
    assert (second["reward"], second["discount"], second["steps"]) == (2.0, 0.5, 1)
    assert first["next_observation"] == second["next_observation"] == 12
    assert not first["terminated"]
    assert not first["truncated"]


def test_a_termination_shortens_the_window_and_zeroes_the_discount():
    twin = make(update_horizon=3, gamma=0.5)
    add(twin, 10, 1.0)
    add(twin, 11, 2.0, terminated=True)
    assert twin.sampleable_ids() == [0, 1]
    assert twin.transition(0)["reward"] == 2.0
    assert twin.transition(0)["steps"] == 2
    assert twin.transition(0)["discount"] == 0
    assert twin.transition(1)["reward"] == 2.0
    assert twin.transition(1)["steps"] == 1
    assert twin.transition(0)["terminated"]
    assert twin.transition(1)["terminated"]
    assert twin.transition(1)["next_observation"] == 0
    add(twin, 12)  # the next episode's frame is nobody's next observation
    assert twin.transition(1)["next_observation"] == 0


def test_a_final_row_after_a_termination_is_the_next_observation():
    twin = make()
    assert add(twin, 10, 1.0, terminated=True, final=11) == [0]
    assert add(twin, 12) == [2]  # row 1 is the final row
    assert twin.sampleable_ids() == [0]
    assert twin.transition(0)["next_observation"] == 11
    assert twin.transition(0)["discount"] == 0
    assert (twin.add_count, twin.rows) == (2, 3)


def test_a_truncation_is_bootstrapped_from_its_final_row_alone():
    with_final = make(update_horizon=3, gamma=0.5)
    add(with_final, 10, 1.0)
    add(with_final, 11, 2.0, truncated=True, final=12)
    assert with_final.sampleable_ids() == [0, 1]
    assert with_final.transition(0)["discount"] == 0.25
    assert with_final.transition(1)["discount"] == 0.5
    assert with_final.transition(0)["next_observation"] == 12
    assert with_final.transition(0)["truncated"]

    without = make(update_horizon=3, gamma=0.5)
    add(without, 10, 1.0)
    add(without, 11, 2.0, truncated=True)
    for frame in range(20, 24):
        add(without, frame)
    assert without.sampleable_ids() == [2]


def test_windows_that_end_before_a_truncation_without_a_final_row_are_whole():
    twin = make(update_horizon=1)
    add(twin, 10)
    add(twin, 11, truncated=True)
    assert twin.sampleable_ids() == [0]


def test_termination_wins_over_truncation():
    twin = make()
    add(twin, 10, terminated=True, truncated=True)
    assert twin.transition(0)["discount"] == 0
    assert twin.transition(0)["terminated"]
    assert twin.transition(0)["truncated"]


def test_stacks_are_padded_with_zeros_and_never_cross_episodes():
    twin = make(stack_size=3)
    add(twin, 10)
    add(twin, 11, terminated=True)
    add(twin, 12)
    add(twin, 13)
    add(twin, 14, truncated=True, final=15)
    assert stacks(twin, 0) == ([0, 0, 10], [0, 10, 11])
    assert stacks(twin, 1) == ([0, 10, 11], [0, 0, 0])
    assert stacks(twin, 2) == ([0, 0, 12], [0, 12, 13])
    assert stacks(twin, 4) == ([12, 13, 14], [13, 14, 15])
    assert twin.sampleable_ids() == [0, 1, 2, 3, 4]


def test_stacks_are_padded_with_the_first_frame_if_that_is_asked_for():
    twin = make(stack_size=3, stack_padding="reset")
    add(twin, 10)
    add(twin, 11, terminated=True)
    add(twin, 12)
    add(twin, 13, truncated=True, final=15)
    add(twin, 16, terminated=True, final=17)
    assert stacks(twin, 0) == ([10, 10, 10], [10, 10, 11])
    assert stacks(twin, 1) == ([10, 10, 11], [0, 0, 0])
    assert stacks(twin, 2) == ([12, 12, 12], [12, 12, 13])
    assert stacks(twin, 3) == ([12, 12, 13], [12, 13, 15])
    assert stacks(twin, 5) == ([16, 16, 16], [16, 16, 17])


def test_eviction_takes_rows_and_those_whose_frames_it_took():
    twin = make(stack_size=2, capacity=4)
    for frame in range(10, 17):
        add(twin, frame)
    assert twin.first == [3]
    assert twin.rows == 4
    assert twin.sampleable_ids() == [4, 5]  # 3 needs the frame of row 2; 6 is pending


def test_zero_padding_needs_nothing_to_be_retained():
    twin = make(stack_size=2, capacity=4)
    for frame in range(10, 13):
        add(twin, frame, terminated=frame == 12)
    for frame in range(20, 24):
        add(twin, frame)
    assert twin.first == [3]  # row 3 begins an episode
    assert twin.sampleable_ids() == [3, 4, 5]


def test_final_rows_count_for_the_capacity():
    twin = make(capacity=4)
    add(twin, 10)
    add(twin, 11, terminated=True, final=12)
    add(twin, 13)
    add(twin, 14, terminated=True, final=15)
    assert twin.first == [2]
    assert twin.sampleable_ids() == [3, 4]


def test_several_envs_with_masks_have_rows_of_their_own():
    twin = make(num_envs=2, capacity=9)

    def step(frames, mask, terminated=(False, False), finals=None, given=None):
        observation = [{"observation": np.uint8(frame)} for frame in frames]
        final = finals and [{"observation": np.uint8(frame)} for frame in finals]
        return twin.add(observation, [0, 0], [0, 0], terminated, [False, False], final, mask, given)

    assert step((10, 20), None) == [0, 1]
    assert step((11, 0), [True, False]) == [2]
    assert step((12, 21), [True, True], (True, True), (13, 22), [False, True]) == [4, 3]
    assert step((14, 23), [False, True]) == [7]  # row 2 of env 1, id 5, is a final row
    assert twin.sampleable_ids() == [0, 2, 4, 1, 3]
    assert twin.transition(3)["next_observation"] == 22
    assert twin.transition(4)["next_observation"] == 0
    for _ in range(3):
        step((0, 30), [False, True])
    assert twin.first == [0, 3]  # 9 // 2 rows each
    assert twin.rows == 3 + 4


def test_cut_episodes_keep_their_whole_windows():
    twin = make(update_horizon=2)
    for frame in range(10, 14):
        add(twin, frame)
    assert twin.sampleable_ids() == [0, 1]
    twin.cut()
    for frame in range(20, 23):
        add(twin, frame)
    assert twin.sampleable_ids() == [0, 1, 4]
    assert twin.history[0][4]["step"] == 0


def test_a_restored_copy_forgets_what_came_after_it():
    twin = make()
    add(twin, 10)
    add(twin, 11)
    saved = twin.copy()
    add(twin, 12, terminated=True)
    twin.restore(saved)
    assert (twin.add_count, twin.rows, twin.sampleable_ids()) == (2, 2, [0])
    assert add(twin, 13) == [2]
    assert twin.sampleable_ids() == [0]  # row 1 was cut
    twin.restore(saved, resume_episodes=True)
    assert add(twin, 13) == [2]
    assert twin.sampleable_ids() == [0, 1]
    assert twin.transition(1)["next_observation"] == 13


def test_restoring_into_a_smaller_capacity_keeps_the_newest():
    twin = make()
    for frame in range(10, 20):
        add(twin, frame)
    smaller = make(capacity=4)
    smaller.restore(twin.copy())
    assert smaller.first == [6]
    assert smaller.sampleable_ids() == [6, 7, 8]


def test_new_rows_get_the_largest_priority_seen():
    twin = make(alpha=1.0)
    for frame in range(10, 13):
        add(twin, frame)
    assert twin.probabilities() == {0: 0.5, 1: 0.5}
    assert twin.update_priorities([0, 2, 0], [3.0, 9.0, 2.0]) == 1  # row 2 is pending
    assert twin.probabilities() == {0: 2 / 3, 1: 1 / 3}  # the later of two, and no 9
    add(twin, 13)
    assert twin.leaf(2) == 0  # sampleable now, but nothing looked yet
    assert twin.probability(2) == 3 / (2 + 1 + 3)


def test_the_largest_is_that_of_the_moment_a_row_became_sampleable():
    twin = make(alpha=1.0)
    add(twin, 10)
    add(twin, 11)
    add(twin, 12)  # row 1 is sampleable from here on, with 1.0
    twin.update_priorities([0], [7.0])
    assert twin.probability(1) == 1 / 8


def test_alpha_and_zero_priorities():
    twin = make(alpha=0.5)
    for frame in range(10, 14):
        add(twin, frame)
    twin.update_priorities([0, 1, 2], [4.0, 9.0, 0.0])
    assert [twin.probability(id) for id in range(3)] == [2 / 5, 3 / 5, 0]
    twin.alpha = 0
    assert [twin.probability(id) for id in range(3)] == [1 / 2, 1 / 2, 0]


def test_uniform_probabilities():
    twin = make()
    for frame in range(10, 15):
        add(twin, frame)
    assert twin.probabilities() == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}


def test_what_cannot_be_sampled_has_no_transition():
    twin = make()
    add(twin, 10)
    with pytest.raises(AssertionError):
        twin.transition(0)


def test_rewards_are_float32_in_storage():
    twin = make(update_horizon=2, gamma=1.0)
    for frame in range(3):
        add(twin, frame, 0.1)
    assert twin.history[0][0]["reward"] == float(np.float32(0.1))
    assert twin.transition(0)["reward"] == np.float32(2 * float(np.float32(0.1)))


def test_sum_tree():
    tree = NaiveSumTree(5)
    assert (tree.total, tree.min) == (0, float("inf"))
    tree.set([1, 3, 1], [8.0, 3.0, 1.0])
    assert tree.get([0, 1, 3]) == [0, 1, 3]
    assert (tree.total, tree.min) == (4, 1)
    assert tree.intervals() == [(1, 0, 1), (3, 1, 4)]
    assert [tree.sample(u) for u in (0.0, 0.2499, 0.25, 0.9999)] == [1, 1, 3, 3]


def test_frames_differ():
    frames = [make_frame((8, 8), "uint8", counter) for counter in range(2000)]
    assert len({frame.tobytes() for frame in frames}) == 2000
    assert {frame.shape for frame in frames} == {(8, 8)}


class Echo:
    """Stands for a real buffer in `SideBySide`: answers `add` from another twin."""

    def __init__(self, twin):
        self.twin = twin

    def add(self, observation, **step):
        finals = step.pop("next_observation", None)
        count = self.twin.num_envs
        single = count == 1

        def listed(value):
            return [value] if single else list(value)

        wrapped = [{"observation": frame} for frame in listed(observation)]
        ended = [
            a or b
            for a, b in zip(listed(step["terminated"]), listed(step["truncated"]), strict=True)
        ]
        if finals is not None and any(ended):
            step["next_observation"] = [{"observation": frame} for frame in listed(finals)]
        if single:
            step = {k: v if k == "next_observation" else [v] for k, v in step.items()}
        return np.asarray(self.twin.add(wrapped, **step), np.int64)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_driver_says_the_same_to_both_sides(monkeypatch, num_envs):
    def construct(self):
        return Echo(NaiveReplayBuffer(num_envs=num_envs, capacity=40, extras=self.twin.extras))

    monkeypatch.setattr(SideBySide, "construct", construct)
    both = SideBySide(None, num_envs=num_envs, capacity=40)
    both.play(300, seed=1, end=0.3)
    mirror = both.real.twin
    assert mirror.sampleable_ids() == both.twin.sampleable_ids()
    for id in both.twin.sampleable_ids():
        expected, actual = both.twin.transition(id), mirror.transition(id)
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], value)
