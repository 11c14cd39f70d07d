"""What happens along an episode, beside lists of its rows."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.pictures import channels
from diskreplay.pictures.channels import action_texts, channels_of, lines_of, steps_of, values_of

SPACE = Dict({"arm": Box(-9, 9, (3,)), "camera": Box(0, 255, (6, 6), np.uint8)})
ROWS = 25


@pytest.fixture(params=["discrete", "vector"])
def buffer(request):
    action = Discrete(4) if request.param == "discrete" else Box(-9, 9, (8,))
    with diskreplay.ReplayBuffer(
        None, observation_space=SPACE, action_space=action, capacity=100,
        extras={"value": ((), "float32"), "wide": ((100,), "float32")},
    ) as made:  # fmt: skip
        for row in range(ROWS):
            seen = {"arm": np.full(3, row / 4), "camera": np.zeros((6, 6), np.uint8)}
            act = row % 4 if request.param == "discrete" else np.arange(8) + row
            made.add(seen, act, float(row % 3 - 1), False, False, value=-row, wide=np.arange(100))
        yield made


def test_fields_that_are_numbers_and_no_pictures(buffer):
    found = channels_of(buffer)
    assert [(each.name, each.group) for each in found] == [
        ("action", "action"), ("value", "extra"), ("wide", "extra"), ("observation/arm",
                                                                     "observation"),
    ]  # fmt: skip
    action, value, wide, arm = found
    assert (value.names, value.size) == (["value"], 1)
    assert (len(wide.names), wide.size) == (64, 100)
    assert (len(arm.names), arm.size) == (3, 3)
    assert action.size == (8 if buffer.fields["action"][0] else 1)
    ids = np.array([3, 7])
    assert values_of(buffer, wide, ids).tolist() == [list(range(64))] * 2
    assert values_of(buffer, value, ids).tolist() == [[-3.0], [-7.0]]


def test_what_was_done(buffer):
    texts = action_texts(buffer, np.arange(3))
    if buffer.fields["action"][0]:
        assert texts[0] == "0, 1, 2, 3, 4, 5, …"
        assert texts[2] == "2, 3, 4, 5, 6, 7, …"
    else:
        assert [text.split()[0].strip(":") for text in texts] == ["0", "1", "2"]
    found = steps_of(buffer, np.array([4, 5]))
    assert found["ids"] == [4, 5]
    assert found["rewards"] == [0.0, 1.0]
    assert found["actions"] == action_texts(buffer, np.array([4, 5]))
    assert found["values"]["value"] == [[-4.0], [-5.0]]


@pytest.mark.parametrize("buckets", [4, 400])
def test_lines_have_the_least_and_the_largest_of_each_run(buffer, monkeypatch, buckets):
    monkeypatch.setattr(channels, "_BUCKETS", buckets)
    monkeypatch.setattr(channels, "_AT_ONCE", 7)
    ids = np.arange(ROWS)
    found = {
        each["channel"]["name"]: each
        for each in lines_of(buffer, ids, {"more": np.where(ids == 3, np.nan, ids * 1.0)})
    }
    assert list(found)[:3] == ["reward", "return so far", "more"]
    rewards = ids % 3 - 1.0
    several = min(buckets, ROWS)
    starts = [at * ROWS // several for at in range(several)]
    parts = [slice(*each) for each in zip(starts, [*starts[1:], ROWS], strict=True)]
    for name, values in (
        ("reward", rewards), ("return so far", np.cumsum(rewards)), ("value", -ids),
    ):  # fmt: skip
        assert found[name]["low"] == [[values[part].min() for part in parts]]
        assert found[name]["high"] == [[values[part].max() for part in parts]]
    assert len(found["observation/arm"]["low"]) == 3
    if buckets == 4:
        assert found["more"]["low"][0][0] == 0.0  # NaN is passed over


def test_an_episode_without_rows(buffer):
    found = lines_of(buffer, np.empty(0, np.int64))
    assert found[0]["low"] == [[]]
