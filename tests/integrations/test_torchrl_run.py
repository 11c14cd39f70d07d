"""A replay buffer of torchrl in the checkpoints of a run: killed anywhere, records, priorities and
networks are those of one moment."""
# ruff: noqa: E402 - torchrl's trees are loaded before what looks for them

import contextlib
import random
import signal
import subprocess
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("torchrl")
from tests.integrations import torchrl_extension

torchrl_extension.load()

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

import diskreplay
from diskreplay.errors import (
    CorruptCheckpointError,
    IncompleteCheckpointError,
    InvalidInputError,
    SchemaError,
)
from diskreplay.integrations.torch import RunState
from diskreplay.integrations.torchrl import DiskStorage, SavedReplayBuffer
from tests import processes
from tests.integrations.test_dqn_example import assert_alike

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ROOT = Path(__file__).resolve().parents[2]
HERE = "tests.integrations.test_torchrl_run"  # which has loaded all that children need
SIZE = 40


@contextlib.contextmanager
def opened(path, sampler=None, size=SIZE, **options):
    """A replay buffer whose sampler has state."""
    storage = DiskStorage(size, path=path, min_bytes=16)
    sampler = sampler or PrioritizedSampler(size, alpha=0.7, beta=0.5)
    options = {"batch_size": 8, "generator": torch.Generator().manual_seed(1), **options}
    yield TensorDictReplayBuffer(storage=storage, sampler=sampler, **options)
    storage.close()


def records(number, count=5):
    """Records that all say this number."""
    return TensorDict(
        {"pixels": torch.full((count, 4, 4), number % 256, dtype=torch.uint8),
         "number": torch.full((count,), number)},
        [count],
    )  # fmt: skip


def play(buffer, network, first, count):
    """Extend, draw and reprioritize; what was drawn."""
    drawn = []
    for number in range(first, first + count):
        buffer.extend(records(number))
        torch.nn.init.constant_(network.weight, number)
        batch = buffer.sample()
        drawn += [batch["index"].tolist(), batch["number"].tolist(), batch["pixels"].tolist()]
        if isinstance(buffer.sampler, PrioritizedSampler):
            buffer.update_priority(batch["index"], (batch["index"] * 7 + number) % 11 + 0.5)
    return drawn


def network():
    return torch.nn.Linear(64, 64, bias=False)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (lambda: PrioritizedSampler(SIZE, alpha=0.7, beta=0.5), {}),
        (SamplerWithoutReplacement, {}),
    ],
    ids=["prioritized", "without replacement"],
)
def test_a_run_goes_on_with_the_same_draws(tmp_path, sampler, options):
    net, place = network(), tmp_path / "checkpoints"
    with opened(tmp_path / "store", sampler(), **options) as buffer:
        state = RunState(SavedReplayBuffer(buffer), place, modules={"net": net})
        assert state.load() == (None, {})
        with pytest.raises(InvalidInputError, match="add records first"):
            state.save(0)
        play(buffer, net, 0, 11)
        state.save(11, seen=3)
        wanted = play(buffer, net, 11, 6)
        assert state.load() == (11, {"seen": 3})
        assert play(buffer, net, 11, 6) == wanted
    # In another process's storage: reopened, and made anew from the checkpoint alone.
    for path in ("store", "other"):
        with opened(tmp_path / path, sampler(), **options) as buffer:
            state = RunState(SavedReplayBuffer(buffer), place, modules={"net": net})
            assert state.load() == (11, {"seen": 3})
            assert net.weight.unique().tolist() == [10]
            assert play(buffer, net, 11, 6) == wanted


def test_an_environment_may_hold_the_buffer_of_the_run(tmp_path):
    """Unpickled, it would read along."""
    net, place = network(), tmp_path / "checkpoints"
    env = gymnasium.Wrapper(gymnasium.make("CartPole-v1"))
    with opened(tmp_path / "store") as buffer:
        saved = SavedReplayBuffer(buffer)
        env.held = [buffer, buffer._storage, saved]
        env.reset(seed=0)
        state = RunState(saved, place, modules={"net": net}, env=env)
        play(buffer, net, 0, 11)
        state.save(11)
        wanted = play(buffer, net, 11, 6)
        state.load()
        assert env.held[0] is buffer
        assert env.held[1] is buffer._storage
        assert env.held[2] is saved
        assert play(env.held[0], net, 11, 6) == wanted


def test_what_does_not_fit_changes_nothing(tmp_path):
    net, place = network(), tmp_path / "checkpoints"
    with opened(tmp_path / "store") as buffer:
        play(buffer, net, 0, 11)
        RunState(SavedReplayBuffer(buffer), place, modules={"net": net}).save(1)
        buffer.dumps(tmp_path / "plain")  # without a sampler in it
        found = diskreplay.checkpoints(place)[0]
        cases = [
            (place, SamplerWithoutReplacement(), SIZE, InvalidInputError, "PrioritizedSampler of"),
            (place, PrioritizedSampler(50, 0.7, 0.5), SIZE, InvalidInputError, "of 40.*of 50"),
            (place, None, SIZE + 10, InvalidInputError, "of 40.*of 50"),
            (place, SamplerWithoutReplacement(), SIZE + 10, InvalidInputError, "saved, and"),
            (tmp_path / "plain" / "storage", None, SIZE, InvalidInputError, "no attachment"),
        ]
        for directory, sampler, size, error, words in cases:
            with opened(None, sampler, size) as other:
                play(other, net, 20, 3)
                before = other[:].clone(), other.sampler.state_dict(), other.writer._cursor
                with pytest.raises(error, match=words):
                    SavedReplayBuffer(other).load(directory)
                assert (before[0] == other[:]).all()
                assert before[2] == other.writer._cursor
        with opened(None, PrioritizedSampler(SIZE, 0.7, 0.5), SIZE + 10) as other:
            play(other, net, 20, 3)
            most = other.sampler._max_priority
            with pytest.raises(SchemaError, match="max_size=50"):
                SavedReplayBuffer(other).load(place)
            assert other.sampler._max_priority == most
            assert len(other) == 15
        state = found.attachments["torchrl.pkl"]
        state.write_bytes(bytes(len(state.read_bytes())))
        with pytest.raises(CorruptCheckpointError, match=r"torchrl\.pkl: its checksum"):
            SavedReplayBuffer(buffer).load(place)
        found.attachments["memory.pt"].unlink()
        with pytest.raises(IncompleteCheckpointError):
            SavedReplayBuffer(buffer).load(place)
        play(buffer, net, 11, 1)


def test_a_save_of_the_same_number_while_it_is_loaded(tmp_path, monkeypatch):
    """By another process, between the sampler's state and the records: both are of the new one."""
    net, place = network(), tmp_path / "saved"
    with opened(None) as saving, opened(None) as loading:
        play(saving, net, 0, 3)
        SavedReplayBuffer(saving).save(place, 1)
        play(saving, net, 3, 2)
        restore = type(loading.storage).restore

        def amid(storage, checkpoint):
            monkeypatch.undo()
            SavedReplayBuffer(saving).save(place, 1)
            return restore(storage, checkpoint)

        monkeypatch.setattr(type(loading.storage), "restore", amid)
        SavedReplayBuffer(loading).load(place, 1)
        assert (loading[:] == saving[:]).all()
        assert loading.writer._cursor == saving.writer._cursor
        mine, theirs = (each.sampler._sum_tree.query(0, SIZE) for each in (loading, saving))
        assert mine == theirs


def test_other_storages_and_urls_are_refused(tmp_path):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(SIZE), batch_size=2)
    with pytest.raises(InvalidInputError, match="over LazyTensorStorage"):
        SavedReplayBuffer(buffer)
    with opened(None) as buffer:
        with pytest.raises(InvalidInputError, match="add records first"):
            RunState(SavedReplayBuffer(buffer), "memory://a/b", modules={}).load()

    class Plain:
        name, save, load = "replay", None, None

    with pytest.raises(InvalidInputError, match="is not saved to URLs"):
        RunState(Plain(), "memory://a/b", modules={})


SAVING = """
import sys
from pathlib import Path
from tests.integrations import torchrl_extension
torchrl_extension.load()
from diskreplay.integrations.torch import RunState
from tests.integrations.test_torchrl_run import SavedReplayBuffer, network, opened, play

root, net = Path(sys.argv[1]), network()
with opened(root / "store") as buffer:
    state = RunState(SavedReplayBuffer(buffer), root / "checkpoints", modules={"net": net}, keep=3)
    number = state.load()[0]
    if number is None:
        number = 0
        buffer.empty()
    while True:
        play(buffer, net, number, 1)
        number += 1
        state.save(number, number=number)
        print("at", number, flush=True)
"""


def test_a_kill_never_leaves_a_network_without_its_records(tmp_path):
    """Killed while it saves or adds, time and again: in each checkpoint that there is, records,
    priorities and network are of the same save, and none is lost that was finished."""
    rng, net, done = random.Random(5), network(), 0
    for _ in range(3):
        saver = processes.Process(SAVING, tmp_path, stdout=subprocess.PIPE, imports=[HERE])
        with saver:
            lines = (line for line in saver.stdout if line.startswith("at ") and line[-1] == "\n")
            for _ in range(rng.randrange(1, 12)):
                done = int(next(lines)[3:])
            time.sleep(rng.random() / 30)  # somewhere in one of the next ones
            saver.send_signal(signal.SIGKILL)
            done = max([done, *(int(line[3:]) for line in lines)])
        found = [each for each in diskreplay.checkpoints(tmp_path / "checkpoints") if each.whole]
        assert found[-1].number >= done
        with opened(None) as buffer, opened(None) as twin:
            state = RunState(
                SavedReplayBuffer(buffer), tmp_path / "checkpoints", modules={"net": net}
            )
            at = 0
            for each in found:
                assert state.load(each.number) == (each.number, {"number": each.number})
                assert net.weight.unique().tolist() == [each.number - 1]
                play(twin, network(), at, each.number - at)
                at = each.number
                assert (buffer[:] == twin[:]).all()
                assert buffer.sampler._sum_tree.query(0, SIZE) == twin.sampler._sum_tree.query(
                    0, SIZE
                )
                assert buffer.writer._cursor == twin.writer._cursor


LIVES = """
import os, random, signal, sys
from pathlib import Path
sys.path[:0] = ["docs/examples"]
from tests.integrations import torchrl_extension
torchrl_extension.load()
import torch
from torchrl_dqn import Settings, TensorDictReplayBuffer, train

torch.set_num_threads(1)
where, name, settings = Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
add = TensorDictReplayBuffer.add

def live(run, left):
    child = os.fork()
    if child:
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    def counting(buffer, data):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return add(buffer, data)
    TensorDictReplayBuffer.add = counting
    random.seed(0)
    train(name, run, settings, log=lambda line: None)
    os._exit(0)

assert live(where / "once", 0) == 0
for steps in (30, 90, 70):  # before the first save, and after some
    assert live(where / "killed", steps) == signal.SIGKILL
assert live(where / "killed", 0) == 0
"""


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1", "Settings(240, 200, 8, begin=40, save_every=40, explore=100)"),
        ("ALE/Pong-v5", "Settings(150, 90, 2, begin=40, every=16, save_every=40, stack=4)"),
    ],
)
def test_the_example_ends_bit_for_bit_as_if_it_had_not_been_killed(tmp_path, name, settings):
    if name.startswith("ALE/"):
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    processes.run(LIVES, tmp_path, name, settings, cwd=ROOT, check=True, imports=[HERE])
    once, killed = (
        diskreplay.checkpoints(tmp_path / run / "checkpoints")[-1] for run in ("once", "killed")
    )
    assert once.number == killed.number == int(settings[9:12])
    assert_alike(*(torch.load(each.attachments["agent.pt"]) for each in (once, killed)))
    slots = np.arange(len(_shown(once)))
    np.testing.assert_array_equal(_shown(once)[slots], _shown(killed)[slots])


def _shown(checkpoint):
    """The rewards that slots have, the newest row of each."""
    with diskreplay.open(checkpoint.path) as buffer:
        rows = np.arange(*buffer.bounds[0])
        slots, rewards = buffer.take(["slot", "next_reward"], rows)
        there = slots >= 0
        found = dict(zip(slots[there] % (1 << 62), rewards[there, 0], strict=True))
        return np.array([found[slot] for slot in sorted(found)])
