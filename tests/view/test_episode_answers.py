"""Episodes and vectors as the page gets them, beside what was recorded."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
pytest.importorskip("PIL")

from tests.pictures.making import record, record_vectors
from tests.view.serving import asked, of, pixels, serving


def test_an_episode_is_what_was_recorded(tmp_path):
    _first, second, _third = record(tmp_path / "s", (5, 9, 7))
    with serving(tmp_path) as client:
        table = asked(client, of(tmp_path / "s", "episodes"), order="length")
        assert [each["rows"] for each in table["episodes"]] == [9, 7, 5]
        start = table["episodes"][0]["start_id"]
        assert start == 6
        base = of(tmp_path / "s", f"episodes/{start}")
        found = asked(client, base)
        assert (found["rows"], found["frames"], found["before"], found["behind"]) == (9, 10, 0, 16)
        assert found["return"] == sum(second.rewards)
        assert found == asked(client, of(tmp_path / "s", "episodes/9"))  # any row of it leads to it
        lines = {line["channel"]["name"]: line for line in found["lines"]}
        assert lines["reward"]["low"] == lines["reward"]["high"] == [second.rewards]
        assert lines["return so far"]["low"] == [np.cumsum(second.rewards).tolist()]
        assert lines["priority"]["low"] == [[1.0] * 9]
        steps = asked(client, f"{base}/steps", first=2, count=4)
        assert steps["ids"] == [8, 9, 10, 11]
        assert steps["rewards"] == second.rewards[2:6]
        so_far = np.cumsum(second.rewards)[2:6]
        assert np.ravel(steps["values"]["return so far"]).tolist() == so_far.tolist()
        assert steps["actions"] == list(map(str, second.actions[2:6]))
        (camera,) = found["cameras"]
        assert (camera["name"], camera["width"], camera["height"]) == ("observation", 16, 12)
        strip = pixels(client, f"{base}/frames", field="observation", first=3, count=7)
        np.testing.assert_array_equal(strip, np.concatenate(second.frames[3:]))


def test_about_when_an_episode_was_recorded(tmp_path):
    record(tmp_path / "s", (5, 9))  # in one file: nothing is older than it
    closed = (tmp_path / "s" / "zarr.json").stat().st_mtime
    with serving(tmp_path) as client:
        for query, count in (({}, 2), ({"after": closed - 9}, 2), ({"after": closed + 9}, 0),
                             ({"before": closed - 9}, 0)):  # fmt: skip
            table = asked(client, of(tmp_path / "s", "episodes"), **query)
            assert len(table["episodes"]) == count
        found = asked(client, of(tmp_path / "s", "episodes/0"))
    assert abs(found["ended"] - closed) < 9
    assert found["is_latest"]


def test_several_cameras_vectors_and_extras(tmp_path):
    space = Dict(left=Box(0, 255, (8, 9), "uint8"), right=Box(0, 255, (10, 8, 3), "uint8"),
                 joints=Box(-1, 1, (2,)))  # fmt: skip
    rng, seen, values = np.random.default_rng(0), [], []
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Box(-1, 1, (3,)), capacity=100,
        extras={"value": ((), "float32")},
        metadata={"names": {"observation/joints": ["hip", "knee"]}},
    ) as buffer:  # fmt: skip
        for step in range(12):
            seen.append({name: part.sample() for name, part in space.items()})
            values.append(rng.random(dtype=np.float32))
            buffer.add(seen[-1], np.full(3, step / 12), 1.0, step == 11, False, value=values[-1])
    with serving(tmp_path) as client:
        found = asked(client, of(tmp_path / "s", "episodes/0"))
        assert [each["name"] for each in found["cameras"]] == [
            "observation/left", "observation/right",
        ]  # fmt: skip
        channels = {line["channel"]["name"]: line["channel"]["names"] for line in found["lines"]}
        assert channels["observation/joints"] == ["hip", "knee"]
        assert channels["value"] == ["value"]
        steps = asked(client, of(tmp_path / "s", "episodes/0/steps"), first=0, count=12)
        np.testing.assert_allclose(np.ravel(steps["values"]["value"]), values, rtol=1e-6)
        joints = np.array([each["joints"] for each in seen])
        np.testing.assert_allclose(steps["values"]["observation/joints"], joints, rtol=1e-6)
        for side in ("left", "right"):
            strip = pixels(client, of(tmp_path / "s", "episodes/0/frames"),
                           field=f"observation/{side}", first=0, count=12)  # fmt: skip
            np.testing.assert_array_equal(strip, np.concatenate([each[side] for each in seen]))
        vectors = {each["name"]: each for each in asked(client, of(tmp_path / "s", "vectors"))}
    knee = vectors["observation/joints"]["components"][1]
    assert knee["name"] == "knee"
    assert knee["mean"] == pytest.approx(joints[:, 1].mean(dtype=np.float64), abs=1e-7)
    assert sum(knee["histogram"]["counts"]) == 12
    np.testing.assert_allclose(knee["time"]["middle"], joints[:, 1], rtol=1e-6)
    assert knee["time"]["x"] == list(range(12))


def test_a_long_episode_is_thinned_out_to_its_extremes(tmp_path):
    rewards = np.random.default_rng(1).normal(size=9000).astype(np.float32)
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 1, (1,)), action_space=Discrete(2), capacity=None
    ) as buffer:
        buffer.extend({
            "observation": np.zeros((9000, 1), np.float32), "action": np.zeros(9000, np.int64),
            "reward": rewards, "terminated": np.arange(9000) == 8999,
            "truncated": np.zeros(9000, bool), "step": np.arange(9000, dtype=np.int32),
            "is_final": np.zeros(9000, bool),
        })  # fmt: skip
    with serving(tmp_path) as client:
        lines = asked(client, of(tmp_path / "s", "episodes/0"))["lines"]
        low, high = (np.array(lines[0][edge][0]) for edge in ("low", "high"))
    assert len(low) == len(high) == 400
    starts = np.arange(400) * 9000 // 400
    np.testing.assert_allclose(low, np.minimum.reduceat(rewards, starts))
    np.testing.assert_allclose(high, np.maximum.reduceat(rewards, starts))


@pytest.mark.parametrize(
    "wrong",
    [
        "episodes?order=x", "episodes?least_return=x", "episodes?size=9999", "episodes/99",
        f"episodes/{10**30}", "episodes/0/steps?count=99999", "episodes/0/frames?field=reward",
        "episodes/0/frames?field=none", "episodes/0/frames?field=observation&first=77",
        "episodes/0/frames?field=observation&side=0",
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_to_be_not(tmp_path, wrong):
    record(tmp_path / "s", (5,))
    with serving(tmp_path) as client:
        answered = client.get(f"/api/{of(tmp_path / 's', wrong)}")
        assert answered.status_code == 404
        assert len(answered.json()["error"]) > 10


@pytest.mark.parametrize("record_", [record_vectors, lambda path: record(path, (5,))])
@pytest.mark.parametrize("query", [{"count": 0}, {"first": 10**6}, {"first": 10**17, "count": 9}])
def test_no_step_at_all(tmp_path, record_, query):
    record_(tmp_path / "s")
    with serving(tmp_path) as client:
        found = asked(client, of(tmp_path / "s", "episodes/0/steps"), **query)
    assert found["ids"] == found["rewards"] == found["actions"] == []
    assert set(map(tuple, found["values"].values())) == {()}


def test_envs_and_vectors_without_a_picture(tmp_path):
    record_vectors(tmp_path / "s", rows=40)
    with serving(tmp_path) as client:
        table = asked(client, of(tmp_path / "s", "episodes"), env=1)
        assert {each["env"] for each in table["episodes"]} == {1}
        found = asked(client, of(tmp_path / "s", f"episodes/{table['episodes'][0]['start_id']}"))
        assert found["cameras"] == []
        assert (found["env"], found["num_envs"]) == (1, 2)
