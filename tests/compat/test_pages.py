"""The code on the pages of the older APIs runs when pasted, on fewer rows."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import diskreplay
from tests.blocks import blocks, paste


class Enough(Exception):
    """Ends the loop of a page."""


class Env:
    """As gym once was; an episode has seven steps, and there are so many steps in all."""

    num_frames, action_space, ep = 4, Discrete(3), 0
    spec = SimpleNamespace(max_episode_steps=60)

    def __init__(self, shape, steps=60):
        self.shape, self.steps, self.taken = shape, steps, 0

    def reset(self):
        self.ep += 1
        return np.full(self.shape, self.taken, np.uint8)

    def step(self, _action):
        self.taken += 1
        if self.taken > self.steps:
            raise Enough
        return np.full(self.shape, self.taken, np.uint8), 1.0, self.taken % 7 == 6, {}


def run(page, variables, *, part=slice(1, None)):
    code = [text for language, text in blocks(f"docs/compat/{page}.md") if language == "python"]
    for number, text in list(enumerate(code))[part]:
        text = text.replace("1_000_000", "1_000").replace("100_000", "1_000")
        paste(text.replace("50_000", "40"), f"{page} block {number}", variables)


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_cs294():
    env, variables = Env((8, 8, 1)), {"choose": lambda history: history.shape[-1] % 3}
    with pytest.raises(Enough):
        run("cs294", {"env": env} | variables)
    with diskreplay.open("runs/mario/replay") as reader:
        assert reader.bounds.tolist() == [[0, 60]]


def test_keras_gym():
    env, batches = Env((8, 8, 4)), []
    q = SimpleNamespace(
        env=env, bootstrap_n=1, gamma=0.99, batch_update=lambda *batch: batches.append(batch)
    )
    variables = {"env": env, "q": q, "policy": lambda _s: 1, "np": np}
    run("keras_gym", variables, part=slice(1, 2))
    while env.taken < 55:
        run("keras_gym", variables, part=slice(2, 3))
    assert batches[0][0].shape == (32, 8, 8, 4)


def test_rainbow():
    rng, updates = np.random.default_rng(0), []
    variables = {
        "obs_dim": 3, "memory_size": 100, "batch_size": 1, "beta": 0.5, "action": 1, "reward": 1.0,
        "state": rng.random(3), "next_state": rng.random(3), "done": False,
        "update": lambda samples: updates.append(samples) or np.ones(len(samples["indices"])),
    }  # fmt: skip
    run("rainbow", variables)
    assert updates[0]["obs"].shape == (1, 3)


def test_cpprb():
    env = {"obs": {"shape": 3}, "rew": {}, "next_obs": {"shape": 3}, "done": {}}
    variables = {"env_dict": env}
    run("cpprb", variables, part=slice(1, 2))
    stack = np.zeros((84, 84, 4), np.uint8)
    variables["rb"].add(obs=stack, act=0, rew=0, next_obs=stack, done=0)
    assert variables["rb"].sample(2)["obs"].shape == (2, 84, 84, 4)
    run("cpprb", variables, part=slice(2, 3))
    for _ in range(3):
        variables["rb"].add(obs=np.ones(3), rew=1, next_obs=np.ones(3), done=0)
    assert variables["rb"].get_stored_size() == 1


def test_reagent():
    pytest.importorskip("torch")
    variables = {}
    run("reagent", variables)
    assert variables["batch"].state.shape == (32, 84, 84, 4)
    with diskreplay.open("store") as reader:
        assert reader.add_count == 100
