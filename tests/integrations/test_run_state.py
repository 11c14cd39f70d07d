"""A run of PyTorch in one checkpoint: it goes on bit for bit, and nothing is loaded by halves."""

import itertools
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

torch = pytest.importorskip("torch")

import diskreplay  # noqa: E402
from diskreplay import (  # noqa: E402
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidInputError,
    ReentryError,
)
from diskreplay.integrations.gymnasium import Recorder  # noqa: E402
from diskreplay.integrations.torch import RunState  # noqa: E402
from tests import processes  # noqa: E402
from tests.effort import effort  # noqa: E402
from tests.test_interrupt import interrupted  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BITS = ["PCG64", "MT19937", "Philox", "SFC64"]


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on how many threads there are, and on a busy machine they wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_buffer(path):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(-np.inf, np.inf, (4,), "float32"), action_space=Discrete(2),
        capacity=500, update_horizon=3, segment_rows=16, seed=0,
    )  # fmt: skip


class Run:
    """A run that draws from every generator there is and learns with dropout, Adam and a schedule.

    What is made here depends on `seed` only until something is loaded.
    """

    def __init__(self, path, seed, **changed):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)  # noqa: NPY002
        self.buffer = make_buffer(path / "replay")
        self.env = Recorder(gymnasium.make("CartPole-v1"), self.buffer)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(), torch.nn.ReLU(),
            torch.nn.Linear(16, 2),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [30, 60])
        self.generators = {
            name: np.random.Generator(getattr(np.random, name)(seed)) for name in BITS
        }
        self.generators["torch"] = torch.Generator().manual_seed(seed)
        self.state = RunState(
            self.buffer, path / "checkpoints",
            **{
                "modules": {"network": self.network},
                "optimizers": {"adam": self.optimizer, "schedule": self.schedule},
                "generators": self.generators, "env": self.env, **changed,
            },
        )  # fmt: skip
        self.observation, _ = self.env.reset(seed=seed)

    def drawn(self):
        """A number of every generator."""
        return [
            random.gauss(0, 1), np.random.normal(), torch.rand(()).item(),  # noqa: NPY002
            *(self.generators[name].normal() for name in BITS),
            torch.rand((), generator=self.generators["torch"]).item(),
        ]  # fmt: skip

    def steps(self, count):
        """What came of so many steps; the state of the end is in it."""
        seen = []
        for _ in range(count):
            seen.append(self.drawn())
            action = int(seen[-1][0] > 0)
            self.observation, _, terminated, truncated, _ = self.env.step(action)
            seen.append(self.observation.tolist())
            if terminated or truncated:
                self.observation, _ = self.env.reset()
            if len(self.buffer) > 20:
                batch = self.buffer.sample(16).to_torch()
                values = self.network(batch["observation"]).gather(1, batch["action"][:, None])
                error = values[:, 0] - batch["reward"]
                self.optimizer.zero_grad()
                error.square().mean().backward()
                self.optimizer.step()
                self.schedule.step()
                self.buffer.update_priorities(batch["id"], error.detach().abs() + 1e-3)
        return seen, self.now()

    def now(self):
        """What a run consists of, but the generators."""
        weights = [each.tolist() for each in self.network.state_dict().values()]
        count = self.buffer.add_count
        rows = self.buffer.take("reward", np.arange(count)).tolist() if count else []
        return weights, self.schedule.get_last_lr(), self.buffer.bounds.tolist(), rows

    def close(self):
        self.buffer.close()
        self.env.close()


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path, 1)
    yield run
    run.close()


def test_a_run_goes_on_bit_for_bit_in_the_middle_of_an_episode(tmp_path, run):
    run.steps(123)
    path = run.state.save(123, observation=torch.from_numpy(run.observation), epsilon=0.25)
    assert path.name == "replay_ckpt.123"
    expected = run.steps(100)
    run.close()
    other = Run(tmp_path, 2)
    number, extras = other.state.load()
    assert (number, extras["epsilon"]) == (123, 0.25)
    other.observation = extras["observation"].numpy()
    assert other.steps(100) == expected
    other.close()


def test_a_run_goes_back_to_any_checkpoint(run):
    assert run.state.load() == (None, {})
    run.steps(60)
    run.state.save(60)
    first = run.steps(20)
    run.state.save("best", loss=[1.5, None, ("a", 2j)])
    second = run.steps(20)
    assert run.state.load(60) == (60, {})
    assert run.steps(20) == first
    assert run.state.load("best") == ("best", {"loss": [1.5, None, ("a", 2j)]})
    assert run.steps(20) == second
    assert run.state.load() == (60, {})
    with pytest.raises(diskreplay.CheckpointNotFoundError, match=r"no checkpoint 7 .*: best, 60"):
        run.state.load(7)


def test_without_an_environment_the_open_episode_is_over(tmp_path):
    run = Run(tmp_path, 1, env=None)
    run.env.reset(seed=0)
    run.env.step(0)
    run.state.save(1)
    run.state.load()
    run.env.reset(seed=0)
    run.env.step(0)
    assert run.buffer.take("step", [0, 1]).tolist() == [0, 0]
    run.close()


def test_the_file_holds_nothing_that_runs(run):
    run.steps(40)
    run.state.save(40, best={"score": 1})
    (checkpoint,) = diskreplay.checkpoints(run.buffer.path.parent / "checkpoints")
    assert sorted(checkpoint.attachments) == ["agent.pt", "env.pkl"]
    agent = torch.load(checkpoint.attachments["agent.pt"], weights_only=True)
    assert agent["extras"] == {"best": {"score": 1}}
    assert agent["modules"]["network"].keys() == run.network.state_dict().keys()


# -- what is refused


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ({"epsilon": np.float64(0.1)}, r"extras\['epsilon'\]: .*numpy.float64: say .item\(\)"),
        ({"a": {"b": [np.zeros(3)]}}, r"extras\['a'\]\['b'\]\[0\]: .*torch.from_numpy"),
        ({"path": Path("x")}, r"extras\['path'\]: .*Path"),
        ({"function": print}, r"extras\['function'\]: .*builtin"),
        ({"visited": 1 << 2100}, r"extras\['visited'\]: an int of 2101 bits"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(run, extras, words):
    with pytest.raises(InvalidInputError, match=words):
        run.state.save(1, **extras)
    assert diskreplay.checkpoints(run.buffer.path.parent / "checkpoints") == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"modules": [1]}, "modules: a dict of names expected"),
        ({"modules": {"q": 7}}, r"modules\['q'\]: something with state_dict and load_state_dict"),
        ({"optimizers": {1: None}}, "optimizers: a dict of names"),
        ({"generators": {"a": random}}, r"generators\['a'\]: something with Generator.*module"),
        ({"rng": ("torch", "jax")}, "rng: 'jax' found, one of .*'python'"),
        ({"rng": [["numpy"]]}, r"rng: \['numpy'\] found, one of"),
        ({"rng": None}, r"rng: names of .* expected, found None; say \(\)"),
        ({"rng": 3}, "rng: names of .* expected, found 3"),
        ({"env": "CartPole-v1"}, "env: a gymnasium.Env .*found 'CartPole-v1'; make it first"),
        ({"env": 3}, "env: a gymnasium.Env or SyncVectorEnv expected, found 3"),
        ({"env": [gymnasium.make("CartPole-v1")]}, "env: a gymnasium.Env .*found \\["),
        ({"env": gymnasium.Env}, "env: a gymnasium.Env .*found <class"),
        ({"env": "vector"}, "other processes"),
    ],
)
def test_bad_arguments_are_named(tmp_path, run, changed, words):
    if changed.get("env") == "vector":
        changed = {"env": gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])}
    with pytest.raises(InvalidInputError, match=words):
        RunState(run.buffer, tmp_path, **{"modules": {}, **changed})
    if "AsyncVectorEnv" in words or "processes" in words:
        changed["env"].close()
    with pytest.raises(InvalidInputError, match="buffer: a ReplayBuffer expected, found str"):
        RunState("path", tmp_path, modules={})


def linear(inputs=4):
    return torch.nn.Linear(inputs, 2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"modules": {"q": linear()}}, r"names of modules: \['network'\] saved, and \['q'\] here"),
        ({"modules": {"network": linear()}}, r"modules\['network'\], 0.bias: \(16,\) saved, and N"),
        ({"optimizers": {"adam": 0, "schedule": 0}, "sgd": 1}, "'Adam' saved, and 'SGD' here"),
        (
            {"optimizers": {"adam": 0, "schedule": 0}, "sgd": 0},
            r"group: \[6\] saved, and \[2\] here",
        ),
        ({"optimizers": {}}, "names of optimizers"),
        ({"generators": {}}, "names of generators"),
        ({"rng": ()}, None),  # some need not be wanted
        ({"env": gymnasium.make("CartPole-v1")}, "env: the state of Recorder > TimeLimit"),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path, run, changed, words):
    run.steps(50)
    run.state.save(50)
    run.steps(30)
    if "sgd" in changed:
        kind = torch.optim.SGD if changed["sgd"] else torch.optim.Adam
        made = kind(linear().parameters(), 0.1)
        changed = {"optimizers": {"adam": made, "schedule": run.schedule}}
    parts = {
        "modules": {"network": run.network}, "generators": run.generators, "env": run.env,
        "optimizers": {"adam": run.optimizer, "schedule": run.schedule},
    }  # fmt: skip
    state = RunState(run.buffer, tmp_path / "checkpoints", **{**parts, **changed})
    if words is None:
        assert state.load() == (50, {})
        return
    before = run.now(), torch.get_rng_state().tolist()
    with pytest.raises(InvalidInputError, match=words):
        state.load()
    assert (run.now(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("name", ["agent.pt", "env.pkl", "other"])
@pytest.mark.parametrize("harm", ["empty", "flip", "missing"])
def test_damage_changes_nothing(run, name, harm):
    run.steps(50)
    path = run.state.save(50)
    run.steps(10)
    if name == "other":
        path = max(each for each in path.rglob("*") if each.is_file() and each.stat().st_size > 64)
    else:
        path = diskreplay.checkpoints(path.parent)[-1].attachments[name]
    path.chmod(0o644)
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        place = len(data) // 2
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        path.write_bytes(b"" if harm == "empty" else flipped)
    before = run.now(), torch.get_rng_state().tolist()
    with pytest.raises(diskreplay.DiskReplayError) as caught:
        run.state.load()
    if name != "other":
        assert isinstance(caught.value, CorruptCheckpointError)
        assert name in str(caught.value)
    assert (run.now(), torch.get_rng_state().tolist()) == before
    run.steps(5)


@pytest.mark.parametrize("name", ["agent.pt", "env.pkl"])
def test_damaged_bytes_are_never_unpickled(run, monkeypatch, name):
    """Whatever they say would run: what is read first is their checksum."""
    run.steps(30)
    path = run.state.save(30)
    path = diskreplay.checkpoints(path.parent)[-1].attachments[name]
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(run.state._env, "read", None)
    with pytest.raises(CorruptCheckpointError, match=f"{name}: its checksum is not the one"):
        run.state.load()


def test_a_file_that_pytorch_does_not_read_is_named(run, tmp_path):
    run.steps(30)
    at = tmp_path / "checkpoints"
    run.buffer.save(at, 1, attachments={"agent.pt": b"cbuiltins\nprint\n."})
    with pytest.raises(CorruptCheckpointError, match=r"agent\.pt: it cannot be read"):
        RunState(run.buffer, at, modules={}).load()


def test_a_checkpoint_that_others_wrote(run, tmp_path):
    run.steps(30)
    at = tmp_path / "checkpoints"
    run.buffer.save(at, 1)
    with pytest.raises(InvalidInputError, match=r"no attachment agent\.pt: .* else than RunState"):
        run.state.load()
    run.buffer.save(at, 1, attachments={"agent.pt": lambda path: torch.save({"a": 1}, path)})
    without = RunState(run.buffer, at, modules={})
    with pytest.raises(InvalidInputError, match="written by something else than RunState"):
        without.load()
    without.save(2)
    with pytest.raises(InvalidInputError, match=r"no attachment env\.pkl: .*without env="):
        RunState(run.buffer, at, modules={}, env=run.env).load()
    assert issubclass(CorruptCheckpointError, CheckpointError)


# -- kills


SAVING = """
import sys
import time
from pathlib import Path
import numpy as np, torch
from diskreplay.integrations.torch import RunState
from tests.integrations.test_run_state import make_buffer

root = Path(sys.argv[1])
network = torch.nn.Linear(64, 64, bias=False)
with make_buffer(root / "replay") as buffer:
    state = RunState(buffer, root / "checkpoints", modules={"network": network}, keep=3)
    number = state.load()[0] or 0
    while True:
        number += 1
        for _ in range(5):
            buffer.add(np.full(4, number), 0, float(number), False, False)
        torch.nn.init.constant_(network.weight, number)
        state.save(number, number=number)
        print(number, flush=True)
"""


def test_a_kill_never_leaves_a_network_without_its_rows(tmp_path):
    """Killed while it saves, time and again: in each checkpoint there is, rows and network are of
    the same save, and none is lost that was finished."""
    rng = random.Random(5)
    network, done = torch.nn.Linear(64, 64, bias=False), 0
    for _ in range(3):
        saver = processes.Process(SAVING, tmp_path, stdout=subprocess.PIPE, imports=["torch"])
        with saver:
            for _ in range(rng.randrange(1, 30)):
                done = int(saver.stdout.readline())
            time.sleep(rng.random() / 50)  # somewhere in one of the next ones
            saver.send_signal(signal.SIGKILL)
            done = max([done, *(int(line) for line in saver.stdout if line.endswith("\n"))])
        found = [each for each in diskreplay.checkpoints(tmp_path / "checkpoints") if each.whole]
        assert found[-1].number >= done
        with make_buffer(tmp_path / "other") as buffer:
            state = RunState(buffer, tmp_path / "checkpoints", modules={"network": network})
            for each in found:
                assert state.load(each.number) == (each.number, {"number": each.number})
                assert network.weight.unique().tolist() == [each.number]
                assert buffer.add_count == 5 * each.number
                newest = buffer.take("reward", np.arange(*buffer.bounds[0]))
                assert newest[-5:].tolist() == [each.number] * 5


class Refusing:
    """Has a state, and does not take one."""

    def state_dict(self):
        return {"x": 1}

    def load_state_dict(self, state):
        if state["x"] != 2:  # 2 is that of this run
            raise RuntimeError("it is of another kind")


def changed(agent, part, name, value):
    return agent | {part: agent[part] | {name: value}}


FORGED = {
    "no modules": lambda agent: agent | {"modules": None},
    "modules in a list": lambda agent: agent | {"modules": ["q"]},
    "a module of nothing": lambda agent: changed(agent, "modules", "q", None),
    "no optimizer": lambda agent: changed(agent, "optimizers", "adam", None),
    "groups that are none": lambda agent: changed(
        agent, "optimizers", "adam", {"state": {}, "param_groups": [5]}
    ),
    "an optimizer without states": lambda agent: changed(
        agent, "optimizers", "adam", {"param_groups": agent["optimizers"]["adam"]["param_groups"]}
    ),
    "no classes": lambda agent: agent | {"classes": 3},
    "no generators": lambda agent: agent | {"rng": None},
    "Python's generator": lambda agent: changed(agent, "rng", "python", (3, (1, 2), None)),
    "NumPy's generator": lambda agent: changed(agent, "rng", "numpy", {"bit_generator": "PCG64"}),
    "PyTorch's generator": lambda agent: changed(agent, "rng", "torch", torch.zeros(5).byte()),
    "a generator": lambda agent: changed(
        agent, "generators", "mine", {"bit_generator": "PCG64", "state": {"state": 1}}
    ),
    "extras in a list": lambda agent: agent | {"extras": [1]},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_state_that_is_not_taken_changes_nothing(tmp_path, name):
    """Names and shapes fit, or what is checked is no state at all: rows stay, and all else."""

    def parts(seed):
        network = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(network.parameters())
        network(torch.ones(4)).sum().backward(), optimizer.step()
        return network, optimizer, np.random.default_rng(seed)

    with make_buffer(tmp_path / "replay") as buffer:

        def run_of(network, optimizer, generator):
            return RunState(
                buffer, tmp_path / "ckpt", modules={"q": network}, optimizers={"adam": optimizer},
                generators={"mine": generator},
            )  # fmt: skip

        saved = run_of(*parts(0)).save(1)
        agent = torch.load(saved / "is_final/saved/attachments/agent.pt", weights_only=True)
        forged = FORGED[name](agent)
        buffer.save(tmp_path / "ckpt", 2, attachments={"agent.pt": lambda p: torch.save(forged, p)})
        buffer.add(np.zeros(4, np.float32), 0, 1.0, False, False)
        network, optimizer, generator = mine = parts(1)

        def now():
            return [
                [value.tolist() for value in network.state_dict().values()],
                str(optimizer.state_dict()), str(generator.bit_generator.state),
                random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(),  # noqa: NPY002
                buffer.add_count,
            ]  # fmt: skip

        before = now()
        with pytest.raises(InvalidInputError, match=r"replay_ckpt\.2"):
            run_of(*mine).load()
        assert now() == before
        assert run_of(*mine).load(1) == (1, {})
        assert now() != before


def test_a_part_that_refuses_its_state_is_named(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        network, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        more = {"optimizers": {"mine": Refusing()}}
        RunState(buffer, tmp_path / "ckpt", modules={"q": network}, **more).save(1)
        buffer.add(np.zeros(4, np.float32), 0, 1.0, False, False)
        weights = other.weight.clone()
        mine = RunState(buffer, tmp_path / "ckpt", modules={"q": other}, **more)
        mine._optimizers["mine"].state_dict = lambda: {"x": 2}
        with pytest.raises(InvalidInputError, match=r"optimizers\['mine'\].*of another kind"):
            mine.load()
        assert torch.equal(other.weight, weights)
        assert buffer.add_count == 1


def test_rows_that_cannot_be_loaded_leave_the_networks(tmp_path, monkeypatch):
    with make_buffer(tmp_path / "replay") as buffer:
        network = torch.nn.Linear(4, 2)
        run = RunState(buffer, tmp_path / "ckpt", modules={"q": network})
        run.save(1)
        with torch.no_grad():
            network.weight.add_(1)
        weights, state = network.weight.clone(), torch.get_rng_state()

        def full(*_arguments, **_options):
            raise diskreplay.DiskFullError(28, "full", "x")

        monkeypatch.setattr(buffer, "load", full)
        with pytest.raises(diskreplay.DiskFullError):
            run.load()
        assert torch.equal(network.weight, weights)
        assert torch.equal(torch.get_rng_state(), state)


class Moody(gymnasium.Env):
    """Says its state itself, and may take no other."""

    observation_space, action_space = Box(-np.inf, np.inf, (4,), "float32"), Discrete(2)

    def __init__(self):
        self.takes = lambda state: True

    def reset(self, *, seed=None, options=None):
        self.place = 0
        return np.zeros(4, np.float32), {}

    def get_state(self):
        return {"place": self.place}

    def set_state(self, state):
        if not self.takes(state):
            raise ValueError("it is another game")
        self.place = state["place"]


def moody_run(tmp_path, buffer):
    """One with a checkpoint of zeros, that has gone on to ones."""
    network, env = torch.nn.Linear(4, 2), Moody()
    run = RunState(buffer, tmp_path / "ckpt", modules={"q": network}, env=env)
    env.reset()
    go_on(network, env, 0)
    run.save(1)
    buffer.add(np.zeros(4, np.float32), 0, 1.0, False, False)
    go_on(network, env, 1)
    return run, network, env


def go_on(network, env, number):
    env.place = number
    with torch.no_grad():
        network.weight.fill_(number)


def test_an_environment_that_refuses_its_state_changes_nothing(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        run, network, env = moody_run(tmp_path, buffer)
        env.takes = lambda state: state["place"] == 1
        with pytest.raises(InvalidInputError, match=r"replay_ckpt\.1: env: .*another game"):
            run.load()
        assert (buffer.add_count, network.weight.unique().item(), env.place) == (1, 1, 1)
        env.takes = lambda state: False
        with (
            pytest.raises(InvalidInputError, match="another game"),
            pytest.warns(RuntimeWarning, match="env: it does not take its own state"),
        ):
            run.load()
        assert (buffer.add_count, network.weight.unique().item(), env.place) == (1, 1, 1)
        env.takes = lambda state: True
        assert run.load() == (1, {})
        assert (buffer.add_count, network.weight.unique().item(), env.place) == (0, 0, 0)


class Rewarded(gymnasium.Wrapper):
    """Has a network of the agent, of which the reward is, a part and a parameter of it, and what
    holds the rest of the run."""

    def __init__(self, env, network, held):
        super().__init__(env)
        self.network, self.held = network, held
        self.inner = [network[0], network[0].weight]

    def step(self, action):
        observation, _, *more = self.env.step(action)
        with torch.no_grad():
            reward = self.network(torch.from_numpy(observation)).sum().item()
        return observation, reward, *more


def rewarded_run(tmp_path, buffer):
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(4, 2))
    adam, rng = torch.optim.Adam(network.parameters()), np.random.default_rng(0)
    held = [adam, rng, buffer.rng, buffer.rng.bit_generator]
    env = Rewarded(Recorder(gymnasium.make("CartPole-v1"), buffer), network, held)
    run = RunState(
        buffer, tmp_path / "ckpt", modules={"net": network}, optimizers={"adam": adam},
        generators={"rng": rng}, env=env,
    )  # fmt: skip
    return run, env


def test_what_the_environment_shares_with_the_agent_stays_shared(tmp_path):
    def trained(env, steps):
        rewards, (adam, rng, *_) = [], env.held
        for _ in range(steps):
            rewards.append(env.step(int(rng.integers(2)))[1])
            adam.zero_grad()
            env.network(torch.ones(4)).sum().backward()
            adam.step()
        return rewards

    with make_buffer(tmp_path / "replay") as buffer:
        run, env = rewarded_run(tmp_path, buffer)
        env.reset(seed=0)
        trained(env, 3)
        run.save(3)
        expected = trained(env, 5)
    with diskreplay.open(tmp_path / "replay", mode="a") as buffer:
        run, env = rewarded_run(tmp_path, buffer)
        before = env.network, env.held[:], env.inner[:]
        run.load()
        assert env.network is before[0]
        for now, then in zip([*env.held, *env.inner], [*before[1], *before[2]], strict=True):
            assert now is then
        assert trained(env, 5) == expected


class Drawing(gymnasium.Env):
    """Draws from a global generator, which it holds."""

    observation_space, action_space = Box(-np.inf, np.inf, (4,), "float32"), Discrete(2)

    def __init__(self, holder, draw):
        self.held, self.draw = [holder], draw

    def reset(self, *, seed=None, options=None):
        return self.step(0)[0], {}

    def step(self, action):
        seen = np.full(4, self.draw(self.held[0]), np.float32)
        return seen, float(seen[0]), False, False, {}


DRAWING = {
    "numpy": (lambda: np.random.mtrand._rand, lambda held: held.normal()),
    "bits": (lambda: np.random.mtrand._rand._bit_generator, lambda held: held.random_raw() % 1000),
    "python": (lambda: random._inst, lambda held: held.random()),
    "torch": (lambda: torch.default_generator, lambda held: torch.rand((), generator=held).item()),
    "cuda": (
        lambda: torch.cuda.default_generators[0],
        lambda held: torch.rand((), generator=held).item(),
    ),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_the_global_generators_stay_shared_with_the_environment(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(),))  # if CUDA is used
    holder, draw = DRAWING[kind]

    def drawn(env):  # of the environment, and of all others
        return [float(env.step(0)[1]) if at % 2 else float(draw(holder())) for at in range(6)]

    with make_buffer(tmp_path / "replay") as buffer:
        env = Drawing(holder(), draw)
        run = RunState(buffer, tmp_path / "ckpt", modules={}, env=env)
        run.save(1)
        expected = drawn(env)
        other = Drawing(holder(), draw)
        RunState(buffer, tmp_path / "ckpt", modules={}, env=other).load()
        assert other.held[0] is holder()
        if kind != "cuda":  # whose state only CUDA gives
            assert drawn(other) == expected
        name = {"bits": "numpy"}.get(kind, kind)
        others = {"python", "numpy", "torch", "cuda"} - {name}
        words = f"attribute held of Drawing .*global generator '{name}'.* name it in rng"
        with pytest.raises(InvalidInputError, match=words):
            RunState(buffer, tmp_path / "ckpt", modules={}, env=env, rng=others).save(2)
        with pytest.raises(InvalidInputError, match=f"it had the global generator '{name}'"):
            RunState(buffer, tmp_path / "ckpt", modules={}, env=other, rng=others).load()


@pytest.mark.parametrize("bounds", [Box(-2, 2, (4,), "float32"), Discrete(2, start=1)])
def test_spaces_of_other_bounds_are_refused(tmp_path, bounds):
    with make_buffer(tmp_path / "replay") as buffer:
        one, other = (gymnasium.Wrapper(Moody()) for _ in range(2))
        one.goals = Box(-1, 1, (4,), "float32") if isinstance(bounds, Box) else Discrete(2)
        other.goals = bounds
        for env in (one, other):
            env.reset()
        network = torch.nn.Linear(4, 2)
        RunState(buffer, tmp_path / "ckpt", modules={"q": network}, env=one).save(1)
        weights, before = network.weight.detach().clone(), str(bounds)
        with torch.no_grad():
            network.weight.add_(1)
        with pytest.raises(InvalidInputError, match=r"env: goals of Wrapper: .* saved, and .* her"):
            RunState(buffer, tmp_path / "ckpt", modules={"q": network}, env=other).load()
        assert other.goals is bounds
        assert str(bounds) == before
        assert torch.equal(network.weight, weights + 1)


def test_an_optimizer_in_another_order_and_another_dtype_change_nothing(tmp_path):
    def parts(turn=1, dtype=torch.float32):
        network = torch.nn.Linear(4, 4).to(dtype)
        optimizer = torch.optim.Adam([*network.parameters()][::turn])
        network(torch.ones(1, 4, dtype=dtype)).sum().backward()
        optimizer.step()
        return {"modules": {"q": network}, "optimizers": {"adam": optimizer}}

    with make_buffer(tmp_path / "replay") as buffer:
        RunState(buffer, tmp_path / "ckpt", **parts()).save(1)
        for other, words in (
            (parts(turn=-1), r"optimizers\['adam'\], parameter 0: .*q\.weight.* saved, .*q\.bias"),
            (parts(dtype=torch.float64), "bias, dtype: torch.float32 saved, and torch.float64"),
        ):
            before = str(other["optimizers"]["adam"].state_dict())
            with pytest.raises(InvalidInputError, match=words):
                RunState(buffer, tmp_path / "ckpt", **other).load()
            assert str(other["optimizers"]["adam"].state_dict()) == before


def test_a_refused_load_leaves_the_objects_of_the_environment(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        run, env = rewarded_run(tmp_path, buffer)
        env.reset(seed=0)
        env.step(0)
        rows = Path(run.save(1)) / "reward"
        (file,) = (each for each in rows.iterdir() if each.name.startswith("c."))
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.chmod(0o644)
        file.write_bytes(data)
        env.step(1)
        before = dict(vars(env)), dict(vars(env.unwrapped))
        with pytest.raises(diskreplay.CorruptCheckpointError):
            run.load()
        for layer, attributes in zip((env, env.unwrapped), before, strict=True):
            assert vars(layer).keys() == attributes.keys()
            assert all(vars(layer)[name] is value for name, value in attributes.items())


def test_a_buffer_without_a_generator_names_nothing(tmp_path):
    """Each None of the environment was taken for that generator."""

    class Bare:
        name = "replay"

        def __init__(self, buffer):
            self.save, self.load = buffer.save, buffer.load

    with make_buffer(tmp_path / "replay") as buffer:
        network = torch.nn.Linear(1, 1)
        env = gymnasium.Wrapper(gymnasium.make("CartPole-v1"))
        env.goal = None
        env.reset(seed=0)
        RunState(Bare(buffer), tmp_path / "ckpt", modules={"net": network}, env=env).save(1)
        RunState(buffer, tmp_path / "ckpt", modules={"net": network}, env=env).load()
        assert env.goal is None


def test_a_buffer_that_is_not_the_runs_is_refused_in_the_environment(tmp_path):
    from diskreplay.integrations.sb3 import DiskReplayBuffer

    spaces = gymnasium.make("CartPole-v1")
    other = DiskReplayBuffer(
        100, spaces.observation_space, spaces.action_space, path=tmp_path / "other"
    )
    with make_buffer(tmp_path / "replay") as buffer:
        run, env = rewarded_run(tmp_path, buffer)
        env.reset(seed=0)
        env.held.append(other)
        with pytest.raises(
            InvalidInputError, match=r"held of Rewarded .*only the buffer of the run"
        ):
            run.save(1)
    other.close()


def test_an_environment_without_a_state_gets_one(tmp_path):
    """It has none before its first reset, and that of a run that goes on is never reset."""
    with make_buffer(tmp_path / "replay") as buffer:
        _, network, _ = moody_run(tmp_path, buffer)
        fresh = Moody()
        RunState(buffer, tmp_path / "ckpt", modules={"q": network}, env=fresh).load()
        assert fresh.place == 0


def test_ctrl_c_amid_a_load_leaves_all_of_one_moment(tmp_path):
    """A real one, which waits for what must not stop; mostly near the end, when rows are there."""
    before, seen = signal.signal(signal.SIGINT, signal.default_int_handler), set()
    try:
        with make_buffer(tmp_path / "replay") as buffer:
            run, network, env = moody_run(tmp_path, buffer)

            def is_cut(number):
                if not interrupted(run.load, number, lambda: signal.raise_signal(signal.SIGINT)):
                    return False
                found = buffer.add_count, network.weight.unique().item(), env.place
                assert found in ((0, 0, 0), (1, 1, 1)), number
                seen.add(found[0])
                if not buffer.add_count:
                    buffer.add(np.zeros(4, np.float32), 0, 1.0, False, False)
                    go_on(network, env, 1)
                return True

            end = next(number for number in itertools.count(0, 101) if not is_cut(number))
            for number in range(end - 200, end, effort(7, 3, 1)):
                is_cut(number)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == {0, 1}


@pytest.mark.parametrize("amid", ["the networks", "the rows"])
@pytest.mark.parametrize("number", [None, 1])
def test_a_checkpoint_that_a_save_retires_while_it_is_loaded(tmp_path, monkeypatch, amid, number):
    """Another process saves meanwhile, and keeps one: the newer one is loaded, whole."""
    networks = [torch.nn.Linear(2, 2) for _ in range(2)]
    writer, reader = (make_buffer(tmp_path / name / "replay") for name in "ab")
    with writer, reader:
        saving, loading = (
            RunState(buffer, tmp_path / "checkpoints", modules={"q": network}, keep=1)
            for buffer, network in zip((writer, reader), networks, strict=True)
        )
        for at in range(5):
            writer.add(np.zeros(4, "float32"), 0, float(at), False, False)
        saving.save(1)

        def save_first(call):
            def saved(*arguments, **options):
                monkeypatch.undo()
                networks[0].bias.data += 1
                writer.add(np.zeros(4, "float32"), 0, 5.0, False, False)
                saving.save(2)
                return call(*arguments, **options)

            return saved

        if amid == "the networks":
            monkeypatch.setattr(torch, "load", save_first(torch.load))
        else:
            monkeypatch.setattr(reader, "load", save_first(reader.load))
        if number is None:
            assert loading.load() == (2, {})
            assert len(reader) == len(writer)
            assert (networks[0].bias == networks[1].bias).all()
        else:
            before = networks[1].bias.clone()
            with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint 1 of .* there: 2"):
                loading.load(1)
            assert not len(reader)
            assert (networks[1].bias == before).all()


@pytest.mark.parametrize("amid", ["the listing", "the networks", "the rows"])
@pytest.mark.parametrize("then", ["it fits", "it does not", "it goes"])
def test_a_save_of_the_same_number_while_it_is_loaded(tmp_path, monkeypatch, amid, then):
    """By another process: its checkpoint is loaded whole, or nothing is. Rows came that had no
    networks, where those of the new one do not fit, or it was gone a moment later."""
    networks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    place = tmp_path / "checkpoints"
    writer, reader = (make_buffer(tmp_path / name / "replay") for name in "ab")
    with writer, reader:
        saving, loading = (
            RunState(buffer, place, modules={"q": network})
            for buffer, network in zip((writer, reader), networks, strict=True)
        )
        writer.add(np.zeros(4, "float32"), 0, 1.0, False, False)
        saving.save(1)
        before = networks[1].bias.clone()

        def save_again():
            monkeypatch.undo()
            networks[0].bias.data += 1
            writer.add(np.zeros(4, "float32"), 0, 2.0, False, False)
            if then == "it fits":
                saving.save(1)
            else:
                RunState(writer, place, modules={"q": torch.nn.Linear(3, 3)}).save(1)

        def amid_of(call):
            def called(*arguments, **options):
                if amid == "the listing":
                    found = call(*arguments, **options)
                    save_again()
                    return found
                save_again()
                try:
                    return call(*arguments, **options)
                finally:
                    if then == "it goes":
                        shutil.rmtree(place)

            return called

        owner, name = {
            "the listing": (loading, "_find"), "the networks": (torch, "load"),
            "the rows": (reader, "load"),
        }[amid]  # fmt: skip
        monkeypatch.setattr(owner, name, amid_of(getattr(owner, name)))
        if then == "it fits":
            assert loading.load(1) == (1, {})
            assert reader.add_count == 2
            assert (networks[1].bias == networks[0].bias).all()
            return
        if then == "it goes" and amid != "the listing":
            assert loading.load() == (None, {})
        else:
            with pytest.raises(InvalidInputError, match=r"\(3,\) saved, and \(2,\) here"):
                loading.load(1)
        assert reader.add_count == 0
        assert (networks[1].bias == before).all()


@pytest.fixture
def ctrl_c():
    """What Python does by itself where nobody has said anything else."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def three_layers(tmp_path, buffer):
    """A run whose checkpoint 1 has layers of ones and a row, and that has twos and none now."""
    layers = [torch.nn.Linear(1, 1, bias=False) for _ in range(3)]
    run = RunState(buffer, tmp_path / "saved", modules={"all": torch.nn.Sequential(*layers)})
    for value in (1.0, 2.0):
        for layer in layers:
            torch.nn.init.constant_(layer.weight, value)
        if value == 1:
            buffer.add(np.zeros(4, np.float32), 0, 1.0, False, False)
            run.save(1)
            buffer.clear()
    return run, layers, lambda: ([each.weight.item() for each in layers], buffer.add_count)


@pytest.mark.parametrize(
    ("at", "whole"),
    [({2}, True), ({2, 4}, True), ({0, 1}, False), ({1, 2, 3}, False), ({1, 2, 4}, False)],
)
def test_ctrl_c_amid_the_networks_leaves_them_of_one_moment(tmp_path, ctrl_c, at, whole):
    """`at`: as which layers are given their states, those of before included. The first is put off,
    the second ends the load, and the third is put off until all have gone back."""
    with make_buffer(tmp_path / "replay") as buffer:
        run, layers, now = three_layers(tmp_path, buffer)
        calls = itertools.count()
        for layer in layers:
            layer.register_load_state_dict_pre_hook(lambda *_: next(calls) in at and ctrl_c())
        with pytest.raises(KeyboardInterrupt):
            run.load(1)
        assert now() == (([1.0] * 3, 1) if whole else ([2.0] * 3, 0))


def test_ctrl_c_amid_a_load_leaves_gradients_on(tmp_path, monkeypatch, ctrl_c):
    with make_buffer(tmp_path / "replay") as buffer:
        run, _, now = three_layers(tmp_path, buffer)
        enter = torch.no_grad.__enter__

        def enters(self):
            monkeypatch.undo()
            enter(self)
            ctrl_c()

        monkeypatch.setattr(torch.no_grad, "__enter__", enters)
        try:
            with pytest.raises(KeyboardInterrupt):
                run.load(1)
            assert torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)
        assert now() == ([1.0] * 3, 1)


def test_ctrl_c_between_two_tries_leaves_all_of_one_moment(tmp_path, monkeypatch, ctrl_c):
    """Another process saves as rows are loaded, and Ctrl-C comes before they are loaded anew."""
    with make_buffer(tmp_path / "a") as writer, make_buffer(tmp_path / "b") as buffer:
        saving, layers, _ = three_layers(tmp_path, writer)
        run, _, now = three_layers(tmp_path, buffer)
        load = buffer.load

        def loads(*arguments, **options):
            monkeypatch.undo()
            for layer in layers:
                torch.nn.init.constant_(layer.weight, 3.0)
            for _ in range(5):
                writer.add(np.zeros(4, np.float32), 0, 1.0, False, False)
            saving.save(1)
            try:
                return load(*arguments, **options)  # refused: the networks are of the first save
            finally:
                ctrl_c()

        monkeypatch.setattr(buffer, "load", loads)
        with pytest.raises(KeyboardInterrupt):
            run.load(1)
        assert now() == ([3.0] * 3, 5)


def test_a_handler_that_loads_amid_a_save(tmp_path):
    """The checkpoint had the rows that were loaded, and the network of before."""
    net, refused = torch.nn.Linear(1, 1), 0
    with make_buffer(tmp_path / "replay") as buffer:
        state = RunState(buffer, tmp_path / "run", modules={"net": net}, rng=(), keep=None)

        def add(count):
            for _ in range(count):
                buffer.add(np.zeros(4, np.float32), 0, 0.0, False, False)
            with torch.no_grad():
                net.bias.fill_(buffer.add_count)

        def handler():
            nonlocal refused
            try:
                state.load("first")
            except ReentryError:
                refused += 1

        add(3)
        state.save("first")
        place, under_way = 0, True
        while under_way:
            state.load("first")
            add(2)
            under_way = interrupted(lambda: state.save("second"), place, handler)
            state.load("second")
            assert buffer.add_count == net.bias.item()
            place += 41
        assert refused > 3
