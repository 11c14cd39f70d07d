"""Parts of episodes behind others, as imports bring them: whose rows they are."""

import signal
import textwrap

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import FormatError
from diskreplay.inspection.overview import overview_of
from tests import processes

STACK = 3


def make_buffer(path, **options):
    options = {"capacity": 60, "stack_size": STACK, "num_envs": 1} | options
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (2,), "uint8"), action_space=Discrete(2), **options
    )


def play(buffer, steps):
    for step in range(steps):
        buffer.add(np.full(2, step, np.uint8), 0, 1.0, False, False)


def part(start, stop, frame=100, *, ends=False):
    rows = stop - start
    ended = np.zeros(rows, bool)
    ended[-1] = ends
    return {
        "observation": np.arange(frame, frame + rows, dtype=np.uint8)[:, None].repeat(2, axis=1),
        "action": np.zeros(rows, np.int64),
        "reward": np.ones(rows, np.float32),
        "terminated": ended,
        "truncated": np.zeros(rows, bool),
        "step": np.arange(start, stop, dtype=np.int32),
        "is_final": np.zeros(rows, bool),
    }


def check(buffer):
    """Rows 0 to 4 are an episode that was cut; 5 to 9, of steps 5 to 9, are another one's."""
    assert buffer.sampleable_ids().tolist() == [0, 1, 2, 3, 7, 8, 9]
    batch = buffer.gather([7])
    assert batch.observation[0, :, 0].tolist() == [100, 101, 102]
    episodes = buffer.episodes()
    assert episodes.start_id.tolist() == [0, 5]
    assert episodes.rows.tolist() == [5, 5]
    assert episodes.first_step.tolist() == [0, 5]
    assert episodes.returns.tolist() == [5.0, 5.0]
    assert episodes.cut.tolist() == [True, False]
    assert episodes.terminated.tolist() == [False, True]
    assert overview_of(buffer.path, patience=0).episodes == 2


def test_a_part_behind_a_cut_episode_is_not_its_continuation(tmp_path):
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        play(buffer, 5)
        reader = diskreplay.open(path)
        assert len(reader) == 4
        buffer.end_episode()
        buffer.extend(part(5, 10, ends=True))
        check(buffer)
        with reader:
            check(reader)
        buffer.save(tmp_path / "saved", 1)
        play(buffer, 3)
        buffer.load(tmp_path / "saved", 1)
        check(buffer)
        with diskreplay.open(tmp_path / "saved" / "replay_ckpt.1") as checkpoint:
            check(checkpoint)
    with make_buffer(path) as buffer:
        check(buffer)
        play(buffer, 60)
        buffer.flush()
        assert "begins" in buffer.zarr().attrs["diskreplay"]
        assert buffer.zarr().attrs["diskreplay"]["begins"] == []


def test_a_part_goes_on_with_the_open_episode(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        play(buffer, 5)
        buffer.extend(part(5, 10, ends=True))
        assert buffer.sampleable_ids().tolist() == list(range(10))
        assert buffer.gather([5]).observation[0, :, 0].tolist() == [3, 4, 100]


def test_a_kill_right_after_the_part_does_not_join_it(tmp_path):
    path = tmp_path / "replay"
    code = f"""
        import os, signal
        from tests.test_episode_parts import make_buffer, part, play
        from pathlib import Path
        buffer = make_buffer(Path({str(path)!r}))
        play(buffer, 5)
        buffer.end_episode()
        buffer.extend(part(5, 10, ends=True))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = processes.run(textwrap.dedent(code))
    assert done.returncode == -signal.SIGKILL
    with make_buffer(path) as buffer:
        check(buffer)


def test_a_part_of_another_step_shows_no_frames_of_the_episode_before(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        play(buffer, 5)
        buffer.end_episode()
        buffer.extend(part(7, 12, ends=True))
        assert buffer.sampleable_ids().tolist() == [0, 1, 2, 3, 7, 8, 9]


def test_envs_have_their_own_parts(tmp_path):
    with make_buffer(tmp_path / "replay", num_envs=2) as buffer:
        for env in range(2):
            buffer.extend(part(0, 5), env=env)
        buffer.end_episode(mask=np.array([False, True]))
        for env in range(2):
            buffer.extend(part(5, 10, ends=True), env=env)
        ids = buffer.sampleable_ids()
        assert ids[ids % 2 == 0].tolist() == [2 * row for row in range(10)]
        assert ids[ids % 2 == 1].tolist() == [2 * row + 1 for row in [0, 1, 2, 3, 7, 8, 9]]


@pytest.mark.parametrize("found", [{"1": 2}, [-1], ["3"]])
def test_a_damaged_list_of_parts_is_refused(tmp_path, found):
    import json

    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        play(buffer, 5)
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["begins"] = found
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="begins"):
        diskreplay.open(path)
