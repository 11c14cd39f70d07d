"""Episodes as they were recorded, against a list kept beside."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.episodes import about, episodes_of, unbroken
from diskreplay.inspection.overview import overview_of
from diskreplay.inspection.profile import profile_of
from tests.check import damaged


def make_buffer(path, num_envs=1, capacity=None, env_group=None):
    return diskreplay.ReplayBuffer(
        path, observation_space=Discrete(1000), action_space=Discrete(2), capacity=capacity,
        num_envs=num_envs, env_group=env_group,
    )  # fmt: skip


EVENT = st.tuples(
    st.sampled_from(["on", "on", "on", "terminated", "truncated", "both", "cut"]),
    st.booleans(),  # whether the next observation is given
    st.booleans(),  # whether an env of several takes part; the first always does
    st.integers(-3, 3),
)


class Record:
    """One env's rows, as dicts, and nothing cleverer."""

    def __init__(self):
        self.rows, self.episode, self.under_way = [], 0, False

    def step(self, reward, terminated, truncated, final):
        self.rows.append({"episode": self.episode, "reward": reward, "final": False,
                          "terminated": terminated, "truncated": truncated})  # fmt: skip
        self.under_way = True
        if terminated or truncated:
            if final:
                self.rows.append({"episode": self.episode, "final": True})
            self.end()

    def end(self):
        if self.under_way:
            self.episode += 1
        self.under_way = False


def expected(records, rows_per_env):
    """(start row, env, first step, transition rows, final row, return, terminated, truncated)."""
    found = []
    for env, record in enumerate(records):
        first = max(0, len(record.rows) - rows_per_env) if rows_per_env else 0
        for episode in range(record.episode + 1):
            every = [i for i, row in enumerate(record.rows) if row["episode"] == episode]
            kept = [i for i in every if i >= first]
            transitions = [i for i in kept if not record.rows[i]["final"]]
            if not transitions:
                continue
            finals = [i for i in kept if record.rows[i]["final"]]
            rows = [record.rows[i] for i in transitions]
            newest = kept[-1] == len(record.rows) - 1
            found.append({
                "start": kept[0], "env": env, "first_step": kept[0] - every[0],
                "rows": transitions, "final": finals[0] if finals else -1,
                "return": sum(row["reward"] for row in rows),
                "terminated": any(row["terminated"] for row in rows),
                "truncated": any(row["truncated"] for row in rows), "newest": newest,
            })  # fmt: skip
    return sorted(found, key=lambda e: (e["start"], e["env"]))


@pytest.mark.costly
@settings(max_examples=30, deadline=None)
@given(
    events=st.lists(st.lists(EVENT, min_size=3, max_size=3), max_size=40),
    num_envs=st.sampled_from([1, 1, 3]),
    rows_per_env=st.sampled_from([None, 2, 7]),
    env_group=st.sampled_from([None, 1, 2]),
)
def test_episodes_are_those_recorded(tmp_path_factory, events, num_envs, rows_per_env, env_group):
    path = tmp_path_factory.mktemp("store") / "replay"
    records = [Record() for _ in range(num_envs)]
    capacity = None if rows_per_env is None else rows_per_env * num_envs
    with make_buffer(path, num_envs, capacity, env_group) as buffer:
        for moment in events:
            replay(buffer, records, moment[:num_envs])
        check(episodes_of(buffer), expected(records, rows_per_env), num_envs)
    assert overview_of(path).episodes == len(expected(records, rows_per_env))
    with diskreplay.open(path) as reader:
        check(episodes_of(reader), expected(records, rows_per_env), num_envs)


def replay(buffer, records, moment):
    cuts = np.array([kind == "cut" for kind, *_ in moment])
    takes_part = np.array([e == 0 or part for e, (_, _, part, _) in enumerate(moment)]) & ~cuts
    terminated = np.array([kind in ("terminated", "both") for kind, *_ in moment])
    truncated = np.array([kind in ("truncated", "both") for kind, *_ in moment])
    finals = np.array([final for _, final, _, _ in moment])
    rewards = np.array([reward for *_, reward in moment], np.float32)
    for env, record in enumerate(records):
        if cuts[env]:
            record.end()
        elif takes_part[env]:
            record.step(rewards[env], terminated[env], truncated[env], finals[env])
    if cuts.any():
        buffer.end_episode(mask=cuts)
    if buffer.num_envs > 1:
        zeros = np.zeros(buffer.num_envs, np.int64)
        buffer.add(
            zeros, zeros, rewards, terminated, truncated, zeros, mask=takes_part,
            next_observation_mask=finals,
        )  # fmt: skip
    elif takes_part[0]:
        buffer.add(
            0, 0, rewards[0], terminated[0], truncated[0], next_observation=0 if finals[0] else None
        )


def check(found, wanted, num_envs):
    assert len(found) == len(wanted)
    np.testing.assert_array_equal(found.number, np.arange(len(wanted)))
    for k, episode in enumerate(wanted):
        ids = np.array(episode["rows"]) * num_envs + episode["env"]
        final = episode["final"]
        np.testing.assert_array_equal(found.ids(k), ids)
        whole = episode["first_step"] == 0 and (episode["terminated"] or episode["truncated"])
        assert found.whole[k] == whole
        assert found.env[k] == episode["env"]
        assert found.start_id[k] == episode["start"] * num_envs + episode["env"]
        assert found.first_step[k] == episode["first_step"]
        assert found.rows[k] == len(ids)
        assert found.final_id[k] == (final * num_envs + episode["env"] if final >= 0 else -1)
        assert found.returns[k] == episode["return"]
        assert found.terminated[k] == episode["terminated"]
        assert found.truncated[k] == episode["truncated"]
        unended = not (episode["terminated"] or episode["truncated"])
        assert found.unfinished[k] == (unended and episode["newest"])
        assert found.cut[k] == (unended and not episode["newest"])
        assert {found.find(int(id)) for id in ids} == {k}
        if final >= 0:
            assert found.find(int(found.final_id[k])) == k


def test_an_empty_buffer_has_none(tmp_path):
    with make_buffer(tmp_path / "replay", num_envs=2) as buffer:
        episodes = episodes_of(buffer)
        assert len(episodes) == 0
        assert episodes.find(0) == -1
        with pytest.raises(InvalidInputError, match="there is none"):
            episodes.ids(0)


def test_episodes_count_from_the_newest_too(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        for step in range(6):
            buffer.add(step, 0, 1.0, step % 3 == 2, False)
        episodes = episodes_of(buffer)
        np.testing.assert_array_equal(episodes.ids(-1), [3, 4, 5])
        for wrong in (2, -3):
            with pytest.raises(InvalidInputError, match="there are 0 to 1"):
                episodes.ids(wrong)
        assert episodes.find(6) == -1


def test_a_frame_on_its_own_is_no_transition(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        buffer.add(0, 0, 1.0, False, False)
        buffer.add_frame(1)
        buffer.add(2, 0, 2.0, True, False, 3)
        buffer.add_frame(4)
        buffer.add(5, 0, 4.0, False, False)
        buffer.add_frame(6)
        episodes = episodes_of(buffer)
        np.testing.assert_array_equal(episodes.ids(0), [0, 2])
        np.testing.assert_array_equal(episodes.ids(1), [5])
        np.testing.assert_array_equal(episodes.start_id, [0, 4])
        np.testing.assert_array_equal(episodes.final_id, [3, -1])
        np.testing.assert_array_equal(episodes.returns, [3, 4])
        np.testing.assert_array_equal(episodes.unfinished, [False, True])


@pytest.mark.parametrize("place", [0.2, 0.33, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("stack_size", [1, 3])
def test_an_episode_whose_beginning_was_lost_is_not_whole(tmp_path, stack_size, place):
    options = {"stack_size": stack_size, "capacity": None}
    columns = damaged.columns(0, 1500, 13)
    with damaged.make(tmp_path / "store", **options) as buffer:
        buffer.extend(columns)
        before = buffer.episodes()
    assert not before.beginning_lost.any()
    path = damaged.segments(tmp_path / "store", "observation")[0]
    damaged.flip(path, int(path.stat().st_size * place))
    ((_env, low, high),) = repair(tmp_path / "store").findings[0].rows
    with damaged.make(tmp_path / "store", **options) as buffer:
        found = buffer.episodes()
        profile = profile_of(buffer)
    begins = columns["step"][high] == 0  # with what was lost an episode ends
    kept = before.whole & ((before.start_id >= high) | (before.start_id + before.rows <= low))
    if stack_size == 1:  # nothing is left by which it could be told that it begins there
        kept &= before.start_id != high
    for name in ("start_id", "rows", "returns"):
        wanted = getattr(before, name)[kept].tolist()
        assert getattr(found, name)[found.whole].tolist() == wanted
    if not begins:
        (lost,) = np.flatnonzero(found.beginning_lost)
        assert found.rows[lost] < 13
        assert about(found, lost)["beginning_lost"] is True
    assert profile["observation"].rows == 1500 - (high - low)


def test_what_the_newest_transition_led_to_is_the_frame_behind_it(tmp_path):
    """Whether the episode goes on behind that frame is not known yet."""

    def pieces(buffer):
        episodes = episodes_of(buffer)
        return [
            (ids.tolist(), last)
            for number in range(len(episodes))
            for ids, last in unbroken(episodes, number)
        ]

    with make_buffer(tmp_path / "replay") as buffer:
        buffer.add(0, 0, 1.0, False, False)
        buffer.end_episode(next_observation=1)
        assert pieces(buffer) == [([0], 1)]
        buffer.add(2, 0, 1.0, False, False)
        assert pieces(buffer) == [([0], 1), ([2], -1)]
        buffer.add_frame(3)
        assert pieces(buffer) == [([0], 1), ([2], 3)]
        buffer.add(4, 0, 1.0, False, True)  # truncated, and nobody knows what it led to
        buffer.add_frame(5)  # of the next episode
        buffer.add(6, 0, 1.0, False, False)
        assert pieces(buffer) == [([0], 1), ([2], 3), ([4], -1), ([6], -1)]
