"""Rows as the page gets them, beside what was recorded."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
pytest.importorskip("PIL")

from tests.pictures.making import record
from tests.view.serving import asked, of, pixels, serving


def test_a_row_with_its_transition(tmp_path):
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (20, 8, 8), np.uint8)
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 255, (8, 8), "uint8"), action_space=Discrete(3),
        capacity=100, stack_size=3, update_horizon=2, gamma=0.5, alpha=1.0,
        metadata={"action_meanings": ["A", "B", "C"]},
    ) as buffer:  # fmt: skip
        for step in range(20):
            buffer.add(frames[step], step % 3, float(step), step == 19, False)
        buffer.update_priorities(buffer.sampleable_ids(), np.arange(1.0, 21.0))
    with serving(tmp_path) as client:
        row = asked(client, of(tmp_path / "s", "rows/10"))
        assert (row["before"], row["behind"], row["episode"]["place"]) == (9, 11, 10)
        assert row["transition"]["reward"] == 10 + 0.5 * 11
        assert row["transition"]["discount"] == 0.25
        assert row["priority"]["priority"] == 11
        assert row["priority"]["probability"] == pytest.approx(11 / 210)
        assert row["priority"]["below"] == 0.5
        window = {each["id"]: each for each in row["window"]}
        assert (window[11]["reward"], window[11]["action"]) == (11, "2 C")
        picture = of(tmp_path / "s", "rows/10/picture")
        for which, wanted in (
            ("stored", frames[10:11]), ("observation", frames[8:11]),
            ("next_observation", frames[10:13]),
        ):  # fmt: skip
            found = pixels(client, picture, field="observation", which=which)
            np.testing.assert_array_equal(found, np.concatenate(wanted, axis=1))
        ends = asked(client, of(tmp_path / "s", "rows"))
        assert (ends["first"], ends["last"]) == ([0], [19])


def test_a_row_that_is_not_sampled_says_why(tmp_path):
    record(tmp_path / "s", (5,))
    with serving(tmp_path) as client:
        row = asked(client, of(tmp_path / "s", "rows/5"))
        assert "final" in row["transition"]["why_not"]
        assert row["priority"] is None
        for id in (6, 10**25):
            answered = client.get(f"/api/{of(tmp_path / 's', f'rows/{id}')}")
            assert answered.status_code == 404
            assert "env 0 has the rows 0 to 5 now" in answered.json()["error"]
    record(tmp_path / "none", ())
    with serving(tmp_path) as client:
        answered = client.get(f"/api/{of(tmp_path / 'none', 'rows/0')}")
        assert (answered.status_code, answered.json()["error"]) == (
            404, "row 0: env 0 has no rows now"
        )  # fmt: skip


def test_a_picture_of_no_kind(tmp_path):
    record(tmp_path / "s", (5,))
    with serving(tmp_path) as client:
        wrong = of(tmp_path / "s", "rows/0/picture?field=observation&which=x")
        answered = client.get(f"/api/{wrong}")
        assert answered.status_code == 404
        assert "stored or an observation expected" in answered.json()["error"]


@pytest.mark.parametrize("space", [Box(0, 255, (8, 8), "uint8"), Dict({"a": Discrete(3)})])
def test_a_picture_of_an_extra_is_that_which_is_stored(tmp_path, space):
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Discrete(3),
        capacity=9, extras={"map": ((9, 9), "uint8")},
    ) as buffer:  # fmt: skip
        for _ in range(3):
            buffer.add(space.sample(), 0, 0.0, False, False, map=np.full((9, 9), 7, np.uint8))
    with serving(tmp_path) as client:
        picture = of(tmp_path / "s", "rows/0/picture")
        assert (pixels(client, picture, field="map") == 7).all()
        answered = client.get(f"/api/{picture}?field=map&which=observation")
        assert answered.status_code == 404
        assert "stored expected for map, which is no observation" in answered.json()["error"]


def test_what_is_not_finite_is_told_apart(tmp_path):
    space, seen = Box(-np.inf, np.inf, (4,)), np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Discrete(2), capacity=10
    ) as buffer:
        for _ in range(3):
            buffer.add(seen, 1, 1.0, False, False)
    with serving(tmp_path) as client:
        fields = asked(client, of(tmp_path / "s", "rows/1"))["fields"]
    assert {each["name"]: each["values"] for each in fields}["observation"] == [
        "NaN", "Infinity", "-Infinity", 1,
    ]  # fmt: skip
