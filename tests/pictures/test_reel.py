"""Episodes for the page's players, decoded again."""

import base64
import io

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.inspection.episodes import episodes_of
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.reel import chosen, reel_of
from tests.pictures.making import record, record_vectors

Image = pytest.importorskip("PIL.Image")


def reel(path, number, most_bytes=1 << 20):
    with diskreplay.open(path) as buffer:
        return reel_of(buffer, FrameField.every(buffer), episodes_of(buffer), number, most_bytes)


def decoded(reel):
    """The frames of the first camera as the page's script cuts them out, (n, h, w, 3)."""
    frames, camera = [], reel["cameras"][0]
    for strip in reel["strips"][0]:
        with Image.open(io.BytesIO(base64.b64decode(strip))) as image:
            pixels = np.asarray(image.convert("RGB"))
        assert pixels.shape[1] == camera["width"]
        assert len(pixels) <= camera["per"] * camera["height"]
        frames += np.split(pixels, len(pixels) // camera["height"])
    return np.array(frames)


@pytest.mark.parametrize("shape", [(12, 16), (12, 16, 3), (500, 40)])
def test_frames_and_figures_of_an_episode(tmp_path, shape):
    episodes = record(tmp_path / "s", (3, 40), shape=shape)
    found, recorded = reel(tmp_path / "s", 1), episodes[1]
    frames = np.array(recorded.frames)
    if shape == (500, 40):  # larger than is shown: means of three by three
        (camera,) = found["cameras"]
        assert (camera["height"], camera["width"]) == (167, 14)
        assert len(found["strips"][0]) == 1
    else:
        np.testing.assert_array_equal(
            decoded(found), np.broadcast_to(frames.reshape(41, 12, 16, -1), (41, 12, 16, 3))
        )
    assert (found["frames"], found["stride"]) == (41, 1)
    steps = found["steps"]
    assert steps["actions"] == [str(action) for action in recorded.actions]
    assert steps["rewards"] == recorded.rewards
    assert steps["values"]["return so far"] == np.cumsum(recorded.rewards)[:, None].tolist()
    assert found["return"] == sum(recorded.rewards)
    assert found["lines"][0]["low"] == [recorded.rewards]
    assert abs(recorded.rewards[found["poster"]]) == 1  # where something is gained or lost


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("rewards", "poster"),
    [([1, 0, 0, 1, 0, 0, 0], 3), ([1, 0, 0, 0, 0, -1, 0], 5), ([1, 0, 5, 1, 1], 2), ([0] * 5, 2)],
)
def test_the_first_picture_is_where_most_happens_near_the_middle(tmp_path, rewards, poster):
    space = Box(0, 255, (12, 16), "uint8")
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Discrete(2), capacity=None
    ) as buffer:
        for at, reward in enumerate(rewards):
            seen = np.zeros((12, 16), np.uint8)
            buffer.add(seen, 0, reward, at + 1 == len(rewards), False, seen)
    assert reel(tmp_path / "s", 0)["poster"] == poster


def test_several_strips(tmp_path):
    episodes = record(tmp_path / "s", (50,), shape=(200, 8))
    found = reel(tmp_path / "s", 0)
    assert len(found["strips"][0]) == 2
    np.testing.assert_array_equal(decoded(found)[..., 0], episodes[0].frames)


def test_a_large_episode_is_thinned_out(tmp_path):
    (recorded,) = record(tmp_path / "s", (200,))
    whole = sum(len(base64.b64decode(s)) for s in reel(tmp_path / "s", 0)["strips"][0])
    found = reel(tmp_path / "s", 0, whole // 3)
    assert found["stride"] == 4
    assert sum(len(base64.b64decode(s)) for s in found["strips"][0]) <= whole // 3
    frames = [*recorded.frames[:200:4], recorded.frames[200]]
    np.testing.assert_array_equal(decoded(found)[..., 0], frames)
    assert found["frames"] == len(frames)
    steps, gained = found["steps"], np.add.reduceat(recorded.rewards, range(0, 200, 4))
    assert steps["rewards"] == gained.tolist()
    assert steps["values"]["return so far"] == np.cumsum(gained)[:, None].tolist()
    assert len(steps["actions"]) == found["count"] == 50
    assert found["stack"]["size"] == 1  # the frames between are not there


def test_an_episode_without_a_final_row(tmp_path):
    record(tmp_path / "s", (4,))
    with diskreplay.open(tmp_path / "s", mode="a") as buffer:
        buffer.add(np.zeros((12, 16), np.uint8), 1, 2.5, False, False)
    found = reel(tmp_path / "s", 1)
    assert (found["frames"], found["steps"]["actions"]) == (1, ["1"])
    assert found["steps"]["rewards"] == [2.5]


def test_an_episode_of_vectors_plays_too(tmp_path):
    actions = record_vectors(tmp_path / "s")
    found = reel(tmp_path / "s", 0)
    assert (found["cameras"], found["strips"], found["frames"], found["count"]) == ([], [], 10, 10)
    np.testing.assert_allclose(found["steps"]["values"]["action"], actions[:10, 0], rtol=1e-6)


def test_an_episode_that_a_writer_evicted(tmp_path):
    record(tmp_path / "s", (4,))
    with diskreplay.open(tmp_path / "s", mode="a") as buffer:
        fields, episodes = FrameField.every(buffer), episodes_of(buffer)
        for _step in range(10_000):
            buffer.add(np.zeros((12, 16), np.uint8), 0, 0.0, False, False)
        assert reel_of(buffer, fields, episodes, 0, 1 << 20) is None


def test_telling_episodes_are_chosen(tmp_path):
    episodes = record(tmp_path / "s", (7, 3, 9, 4, 5, 8, 6))
    returns = [sum(e.rewards) for e in episodes]
    with diskreplay.open(tmp_path / "s") as buffer:
        found = episodes_of(buffer)
    named = {name: number for number, name in chosen(found, 4).items()}
    assert returns[named["Best"]] == max(returns)
    assert named.get("Newest", named["Best"]) == 6
    assert returns[named["Worst"]] == min(returns)
    assert len(chosen(found, 5)) == 5
    assert sorted(chosen(found, 100)) == list(range(7))
    assert chosen(found, 0) == {}


def test_no_episode_to_choose_from(tmp_path):
    record(tmp_path / "s", ())
    record_vectors(tmp_path / "v", rows=5)  # one open episode in each env
    with diskreplay.open(tmp_path / "s") as empty, diskreplay.open(tmp_path / "v") as opened:
        assert chosen(episodes_of(empty), 4) == {}
        assert sorted(chosen(episodes_of(opened), 4)) == [0, 1]
