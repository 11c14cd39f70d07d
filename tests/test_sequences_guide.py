"""The recipes of docs/sequences.md and docs/hindsight.md run, and do what they say."""

import runpy

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from tests.blocks import ROOT, blocks, paste


def recipe(page, word):
    """The one Python block of a page that has this text in it."""
    found = [text for language, text in blocks(page) if language == "python" and word in text]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def buffer(tmp_path):
    made = diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (3,), "uint8"),
        action_space=Discrete(4), capacity=2000, update_horizon=5,
        extras={"h": ((2,), "float32", "mutable"), "c": ((2,), "float32")},
    )  # fmt: skip
    with made as buffer:
        for i in range(1500):
            seen = np.full(3, i % 256, np.uint8)
            buffer.add(
                seen, i % 4, 1.0, i % 150 == 149, False, next_observation=seen,
                h=np.full(2, i), c=np.full(2, -i),
            )  # fmt: skip
        yield buffer


def test_r2d2(buffer):
    drawn = {}

    class Values:
        """What a network would give; made when the batch is there."""

        def __init__(self, scale):
            self.scale = scale

        def of(self):
            steps = drawn["batch"].step[..., None] * np.ones(4)
            return self.scale * (steps + np.arange(4))

    text = recipe("docs/sequences.md", "priority(td, learn)")
    first, rest = text.split("batch = view.sample(64)\n")
    names = {"buffer": buffer, "np": np}
    paste(first + "batch = view.sample(64)\n", "docs/sequences.md", names)
    batch = drawn["batch"] = names["batch"]
    assert batch.h.shape == (64, 2)
    names |= {"q": Values(0.5).of(), "next_q": Values(2.0).of()}
    paste(rest, "docs/sequences.md", names)
    for i in range(64):
        for j in range(80):
            if not batch.learn[i, 40 + j]:
                continue
            step = int(batch.step[i, 40 + j])
            steps = min(5, 150 - step)
            value = 0.0 if steps + step == 150 else 2.0 * (step + 5 + 3)
            target = sum(0.99**k for k in range(steps)) + 0.99**steps * value
            chosen = 0.5 * (step + batch.action[i, 40 + j])
            assert names["td"][i, j] == pytest.approx(target - chosen, rel=1e-5)
    assert np.isfinite(names["loss"])
    view = names["view"]
    found = view.gather(batch.anchor).probability
    assert len(set(np.round(found, 12))) > 3


def test_states_that_are_written_again(buffer):
    names = {"buffer": buffer, "unroll": lambda batch: batch.id[..., None] + np.float32([0, 0.5])}
    paste(recipe("docs/sequences.md", "view.write("), "docs/sequences.md", names)
    again = names["view"].gather(names["batch"].anchor)
    first = np.array([ids[ids >= 0][0] for ids in again.id])
    assert (again.h == first[:, None] + np.float32([0, 0.5])).all()


def test_dreamer(buffer):
    names = {"buffer": buffer}
    paste(recipe("docs/sequences.md", "arrival=True"), "docs/sequences.md", names)
    batch = names["batch"]
    assert batch.reward.shape == (16, 64)
    assert (batch.reward[batch.is_first] == 0).all()
    assert (batch.is_last == (batch.observed & ~batch.transition)).all()
    assert batch.is_terminal[batch.is_last].all()


def test_td_mpc2(buffer):
    names = {"buffer": buffer}
    paste(recipe("docs/sequences.md", "batch_size=256"), "docs/sequences.md", names)
    batch = names["batch"]
    assert batch.observation.shape == (256, 4, 3)
    assert batch.transition[:, :3].all()
    np.testing.assert_array_equal(batch.id[:, :3], batch.anchor[:, None] + np.arange(3))
    rows = buffer.take("observation", batch.id)
    np.testing.assert_array_equal(batch.observation, rows)


def test_decision_transformer(buffer):
    names = {"buffer": buffer}
    paste(recipe("docs/sequences.md", "returns_to_go=1.0"), "docs/sequences.md", names)
    left = 150.0 - names["steps"]
    mask = names["mask"]
    np.testing.assert_allclose(names["returns_to_go"][mask], left[mask])
    assert 0 < (~mask).sum() < mask.size / 2


def test_hindsight(tmp_path):
    goal = Box(-9, 9, (2,), "float32")
    space = Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})

    class Reach:
        @staticmethod
        def compute_reward(achieved, desired, info):
            return -(np.linalg.norm(achieved - desired, axis=-1) > 0.5).astype(np.float32)

    class Env:
        unwrapped = Reach

    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=space, action_space=Discrete(4), capacity=None
    ) as buffer:
        for i in range(100):
            seen = dict.fromkeys(space, np.full(2, i % 10, np.float32))
            buffer.add(seen, 0, -1.0, False, i % 10 == 9, next_observation=seen)
        names = {"buffer": buffer, "env": Env}
        paste(recipe("docs/hindsight.md", "view = buffer.hindsight("), "docs/hindsight.md", names)
        batch = names["batch"]
        assert batch.relabelled.sum() == 204
        assert (batch.reward[batch.relabelled] == 0).sum() > 20
        names = {"buffer": buffer, "env": Env}
        text = recipe("docs/hindsight.md", "view.hindsight(").replace("40, burn_in=10", "5")
        paste(text, "docs/hindsight.md", names)
        batch = names["batch"]
        assert batch.relabelled.sum() == 51
        assert (batch.reward[batch.relabelled] == 0).sum() > 20


def test_the_example_learns_with_hindsight_and_not_without(tmp_path):
    pytest.importorskip("torch")
    names = runpy.run_path(str(ROOT / "docs/examples/hindsight.py"))
    share = {
        hindsight: names["train"](
            tmp_path / str(hindsight), hindsight=hindsight, bits=8, episodes=400
        )
        for hindsight in (True, False)
    }
    assert share[True] > 0.7
    assert share[False] < 0.3
