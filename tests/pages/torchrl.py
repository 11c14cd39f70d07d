"""Records are drawn, and a run saves them with its network."""

import contextlib

import gymnasium
import pytest

CHANGED = {"1_000_000": "1_000"}


def check_records(names):
    torch, records = names["torch"], names["records"]
    names["buffer"].extend(records)
    assert names["buffer"].sample()["pixels"].shape == (32, 8, 8)
    names["loss"] = torch.nn.Linear(2, 2)
    names["optimizer"] = torch.optim.Adam(names["loss"].parameters())


def check_the_run(names):
    assert len(names["buffer"]) == 0  # there was no checkpoint
    names["buffer"].extend(names["records"])
    names["run"].save(1)
    assert names["run"].load()[0] == 1
    assert len(names["buffer"]) == 64


CHECKS = {"DiskStorage(1_000_000": check_records, "SavedReplayBuffer(buffer)": check_the_run}


@contextlib.contextmanager
def around(_said):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tests.integrations import torchrl_extension

    torchrl_extension.load()
    from tensordict import TensorDict
    from torchrl.data import PrioritizedSampler, TensorDictReplayBuffer

    records = TensorDict({"pixels": torch.zeros(64, 8, 8, dtype=torch.uint8)}, [64])
    yield {
        "torch": torch, "records": records, "PrioritizedSampler": PrioritizedSampler,
        "TensorDictReplayBuffer": TensorDictReplayBuffer, "game": gymnasium.make("CartPole-v1"),
    }  # fmt: skip
