"""The same buffer without Stable-Baselines3, as single files have it."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")
import torch
from stable_baselines3.common import buffers as original  # which CleanRL has copied

from diskreplay import errors
from diskreplay.integrations.cleanrl import ReplayBuffer
from tests import processes

# CleanRL pins Gymnasium 0.29, whose vector environments know this mode alone.
WITH_MODES = hasattr(gym.vector, "AutoresetMode")
SAME_STEP = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP} if WITH_MODES else {}
FINAL = "final_obs" if WITH_MODES else "final_observation"
FrameStack = gym.wrappers.FrameStackObservation if WITH_MODES else gym.wrappers.FrameStack


class Pictures(gym.Env):
    """Four noisy pictures; terminates at random, and is truncated after nine steps."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self.np_random.integers(0, 256, (8, 8), np.uint8), {}

    def step(self, action):
        self._steps += 1
        picture = self.np_random.integers(0, 256, (8, 8), np.uint8)
        return picture, float(action), self.np_random.random() < 0.1, self._steps == 9, {}


def make(number):
    env = FrameStack(Pictures(), 4)
    env.action_space.seed(number)
    return env


def trained(kind, steps=300, **options):
    """CleanRL's loop: terminations alone are done, and their next observation is the next
    episode's, as its `dqn_atari.py` has it with Gymnasium's vector environments."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    envs = gym.vector.SyncVectorEnv([lambda: make(0)], **SAME_STEP)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 3))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    buffer = kind(
        80, envs.single_observation_space, envs.single_action_space, "cpu",
        handle_timeout_termination=False, **options,
    )  # fmt: skip
    seen, _ = envs.reset(seed=3)
    rng = np.random.default_rng(4)
    for step in range(steps):
        actions = rng.integers(0, 3, 1)
        led, rewards, terminated, truncated, infos = envs.step(actions)
        real = led.copy()
        for env in np.flatnonzero(truncated):
            real[env] = infos[FINAL][env]
        buffer.add(seen, real, actions, rewards, terminated, infos)
        seen = led
        if step == 150:
            seen, _ = envs.reset(seed=5)
        if step > 30 and step % 3 == 0:
            batch = buffer.sample(16)
            with torch.no_grad():
                wanted = net(batch.next_observations.float().div(255)).max(dim=1)[0]
                wanted = batch.rewards.flatten() + 0.9 * wanted * (1 - batch.dones.flatten())
            found = net(batch.observations.float().div(255)).gather(1, batch.actions).squeeze()
            loss = torch.nn.functional.mse_loss(wanted, found)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return buffer, torch.cat([part.flatten() for part in net.parameters()]).detach().numpy()


class Original(original.ReplayBuffer):
    """Which asks each info; CleanRL's loop hands over a dict of arrays."""

    def add(self, obs, next_obs, action, reward, done, infos):
        super().add(obs, next_obs, action, reward, done, [{}])


@pytest.fixture(scope="module")
def original_run():
    return trained(Original)


@pytest.mark.parametrize(
    "options",
    [{"frame_stack": 4, "stack_padding": "reset"}, {"frame_stack": 4}, {}],
    ids=str,
)
def test_a_run_ends_in_the_same_weights(tmp_path, original_run, options):
    plain, wanted = original_run
    buffer, found = trained(
        ReplayBuffer, path=tmp_path / "r", optimize_memory_usage=True, **options
    )
    assert np.isfinite(wanted).all()
    assert wanted.tobytes() == found.tobytes()
    assert (buffer.pos, buffer.full, buffer.size()) == (plain.pos, plain.full, plain.size())
    np.testing.assert_array_equal(plain.observations, np.asarray(buffer.observations))
    alive = plain.dones[..., None, None, None] == 0
    led = np.asarray(buffer.next_observations)
    np.testing.assert_array_equal((plain.next_observations * alive), led * alive)
    frames = np.diff(buffer.disk.bounds).item()
    assert frames < (80 if options else 2 * 80) + 40
    assert buffer.disk.fields["observation"][0] == ((8, 8) if options else (4, 8, 8))


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(5), spaces.Box(-1, 1, (3,), np.float32), spaces.MultiBinary([2, 2]),
     spaces.MultiDiscrete([3, 4]),
     spaces.Dict({"a": spaces.Box(0, 1, (2, 2), np.float32)}),
     spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Box(0, 1, (2, 2), np.float32)})],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("goes_on", [True, False])
def test_spaces_as_the_original(space, n_envs, goes_on):
    named = isinstance(space, spaces.Dict)
    theirs = original.DictReplayBuffer if named else original.ReplayBuffer
    action = spaces.Box(-1, 1, (2,), np.float32)
    one, other = (kind(20, space, action, "cpu", n_envs=n_envs) for kind in (theirs, ReplayBuffer))
    assert (one.obs_shape, one.action_dim, one.device) == (
        other.obs_shape, other.action_dim, other.device,
    )  # fmt: skip
    space.seed(0)
    rng = np.random.default_rng(0)

    def observe():
        them = [space.sample() for _ in range(n_envs)]
        return {k: np.stack([t[k] for t in them]) for k in them[0]} if named else np.stack(them)

    led = observe()
    for step in range(30):
        seen, led = led if goes_on else observe(), observe()
        rest = rng.normal(size=(n_envs, 2)), rng.normal(size=n_envs), rng.random(n_envs) < 0.3
        infos = [{"TimeLimit.truncated": step % 2 == 0}, {}][:n_envs]
        for each in (one, other):
            each.add(seen, led, *rest, infos)
    np.random.seed(0)  # noqa: NPY002
    wanted = one.sample(32)
    np.random.seed(0)  # noqa: NPY002
    found = other.sample(32)
    for name in found._fields:
        a, b = getattr(wanted, name), getattr(found, name)
        for key in a if isinstance(a, dict) else [...]:
            assert a[key].dtype == b[key].dtype
            assert torch.equal(a[key], b[key])


def test_without_stable_baselines(tmp_path):
    code = f"""
import sys
sys.modules["stable_baselines3"] = None
import numpy as np, pickle
from gymnasium import spaces
from diskreplay.integrations.cleanrl import ReplayBuffer
space = spaces.Box(0, 255, (3,), np.uint8)
buffer = ReplayBuffer(10, space, spaces.Discrete(2), "cpu", path={str(tmp_path / "r")!r})
for step in range(15):
    buffer.add(np.full((1, 3), step), np.full((1, 3), step + 1), np.zeros(1), np.ones(1),
               np.zeros(1), {{}})
print(buffer.sample(4).rewards.shape, pickle.loads(pickle.dumps(buffer)).pos)
try:
    import diskreplay.integrations.sb3
except ModuleNotFoundError as error:
    print(error)
"""
    run = processes.run(code, check=True, imports=["torch"])
    assert "torch.Size([4, 1]) 5" in run.stdout
    assert 'pip install "diskreplay[sb3]"' in run.stdout


def test_what_is_refused():
    with pytest.raises(errors.InvalidInputError, match="Box"):
        ReplayBuffer(10, spaces.Text(3), spaces.Discrete(2), "cpu")
    buffer = ReplayBuffer(10, spaces.Discrete(2), spaces.Discrete(2), "cpu")
    with pytest.raises(errors.InvalidInputError, match="env"):
        buffer.sample(2, env=object())
    with pytest.raises(ValueError, match="high"):
        buffer.sample(2)
    assert pickle.loads(pickle.dumps(buffer)).size() == 0


def test_read_ahead(tmp_path):
    buffer = ReplayBuffer(
        30, spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(2), "cpu", path=tmp_path / "r",
        prefetch=2,
    )  # fmt: skip
    with pytest.raises(errors.EmptyBufferError):
        buffer.sample(8)
    for step in range(100):
        buffer.add(
            np.full((1, 4), step), np.full((1, 4), step + 1), np.zeros(1), np.full(1, step),
            np.array([step % 10 == 9]), {},
        )  # fmt: skip
        if step > 5:
            batch = buffer.sample(8)
            assert batch.observations.dtype == torch.uint8
            rewards = batch.rewards.flatten().numpy()
            # Drawn two batches ago at most, of the newest thirty.
            assert rewards.min() >= step - 33
            assert (batch.observations[:, 0].numpy() == rewards).all()
            assert (batch.next_observations[:, 0].numpy() == rewards + 1).all()
            assert (batch.dones.flatten().numpy() == (rewards % 10 == 9)).all()
    buffer.close()


def blocks_of_resume():
    page = (Path(__file__).resolve().parents[2] / "docs" / "cleanrl.md").read_text()
    part = page.split("## How to resume")[1].split("\n## ")[0]
    return [each.split("```")[0] for each in part.split("```python\n")[1:]][1:]


def test_the_page_saves_all_of_a_run_in_one_file(tmp_path, monkeypatch):
    """The network of one moment is never found beside the rows of another one."""
    write, read = blocks_of_resume()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    envs = gym.vector.SyncVectorEnv([lambda: make(0)], **SAME_STEP)
    spaces_of = envs.single_observation_space, envs.single_action_space
    network, target = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam([*network.parameters()])
    names = {
        "args": SimpleNamespace(exp_name="one"), "np": np, "torch": torch, "global_step": 0,
        "q_network": network, "target_network": target, "optimizer": optimizer,
        "rb": ReplayBuffer(60, *spaces_of, "cpu", handle_timeout_termination=False,
                           path="runs/one/replay", frame_stack=4),
    }  # fmt: skip
    observation, _ = envs.reset(seed=0)

    def play(steps):
        nonlocal observation
        for _ in range(steps):
            following, reward, done, cut, infos = envs.step(np.zeros(1, int))
            real = np.array(infos[FINAL][0])[None] if cut[0] else following
            names["rb"].add(observation, real, np.zeros(1, int), reward, done, infos)
            observation = following
            names["global_step"] += 1
        with torch.no_grad():
            network.weight.fill_(names["global_step"])

    def drawn():
        return names["rb"].sample(8).observations.numpy().copy()

    play(30)
    exec(write, names)
    expected = drawn()
    play(20)
    with monkeypatch.context() as patch:  # killed before the file came to its place
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            exec(write, names)
    names["rb"].close()
    exec(read, names)
    assert names["global_step"] == names["rb"].pos == 30
    assert network.weight[0, 0].item() == 30
    np.testing.assert_array_equal(drawn(), expected)
    play(5)
    exec(write, names)
    exec(read, names)
    assert names["global_step"] == 35
    names["rb"].close()
    envs.close()
