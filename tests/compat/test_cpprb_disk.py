"""cpprb's buffers and their directories: reopened, killed, full, read by others."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import diskreplay
from diskreplay.compat.cpprb import PrioritizedReplayBuffer, ReplayBuffer, create_buffer
from diskreplay.compat.slot_buffer import SlotBuffer
from tests import processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("size", [2, 4, 5, 6, 30])
@pytest.mark.parametrize("added", [3, 13])
def test_reopening_with_another_size_keeps_the_newest(tmp_path, size, added):
    with ReplayBuffer(5, {"a": {}}, path=tmp_path / "store") as buffer:
        buffer.add(a=np.arange(added))
    with ReplayBuffer(size, {"a": {}}, path=tmp_path / "store") as buffer:
        kept = min(5, size, added)
        newest = list(range(added))[-kept:]
        assert buffer.get_stored_size() == kept
        assert sorted(buffer.get_all_transitions()["a"].ravel().tolist()) == newest
        buffer.add(a=100)
        assert buffer.get_stored_size() == min(kept + 1, size)
        newest = [*newest, 100][-size:]
        assert sorted(buffer.get_all_transitions()["a"].ravel().tolist()) == newest


@pytest.mark.parametrize("size", [5, 7])
def test_a_reopened_buffer_begins_an_episode(tmp_path, size):
    with ReplayBuffer(5, {"a": {}, "done": {}}, path=tmp_path / "store") as buffer:
        buffer.add(a=[0, 1, 2], done=[0, 1, 0])
    with ReplayBuffer(size, {"a": {}, "done": {}}, path=tmp_path / "store") as buffer:
        for number in (3, 4):
            buffer.add(a=number, done=0)
    with diskreplay.open(tmp_path / "store") as reader:
        assert reader.take("step", np.arange(5)).tolist() == [0, 1, 0, 0, 1]


def test_compressor(tmp_path):
    env = {"obs": {"shape": (32, 32, 4), "dtype": np.uint8}, "act": {"shape": 3}}
    found = {}
    for kind in ("auto", "raw", "zstd"):
        path = tmp_path / kind
        options = {"next_of": "obs", "stack_compress": "obs", "compressor": kind}
        with create_buffer(9, env, path=path, **options) as buffer:
            buffer.add(obs=np.zeros((32, 32, 4)), next_obs=np.zeros((32, 32, 4)), act=[1, 2, 3])
        with diskreplay.open(path) as reader:
            fields = reader.statistics().fields
            assert set(fields) == set(reader.fields)
            group = reader.zarr()
            codecs = {name: str(group[name].metadata.codecs) for name in fields}
        found[kind] = [
            ("lz4" in text) + 2 * ("zstd" in text)
            for text in map(codecs.get, ("next_obs_frame", "obs_whole", "action", "obs_run"))
        ]
    assert found == {"auto": [1, 1, 0, 0], "raw": [0, 1, 0, 0], "zstd": [2, 1, 2, 0]}
    with pytest.raises(ValueError, match="gzip"):
        ReplayBuffer(9, env, compressor="gzip")


def test_the_store_can_be_read_by_itself(tmp_path):
    env = {"obs": {"shape": 2}, "act": {}, "rew": {}, "next_obs": {"shape": 2}, "done": {}}
    with ReplayBuffer(8, env, path=tmp_path / "store") as buffer:
        obs = np.arange(12).reshape(6, 2)
        buffer.add(obs=obs, act=range(6), rew=range(6), next_obs=obs + 2, done=[0, 0, 1, 0, 0, 0])
        buffer.add(obs=[0, 1], act=7, rew=8, next_obs=[2, 3], done=1)
    with diskreplay.open(tmp_path / "store") as reader:
        rows = np.arange(7)
        assert reader.take("observation", rows)[:, 0].tolist() == [0, 2, 4, 6, 8, 10, 0]
        assert reader.take("action", rows).ravel().tolist() == [0, 1, 2, 3, 4, 5, 7]
        assert reader.take("reward", rows).tolist() == [0, 1, 2, 3, 4, 5, 8]
        assert reader.take("terminated", rows).tolist() == [False] * 2 + [True] + [False] * 3 + [
            True
        ]
        assert reader.take("step", rows).tolist() == [0, 1, 2, 0, 1, 2, 3]
        assert reader.take("next_obs", rows)[:, 1].tolist() == [3, 5, 7, 9, 11, 13, 3]


def test_mmap_prefix(tmp_path):
    prefix = str(tmp_path / "run")
    with ReplayBuffer(4, {"done": {}, "obs": {}}, mmap_prefix=prefix) as buffer:
        buffer.add(done=1, obs=2)
        assert buffer.path == tmp_path / "run"
        assert os.path.exists(prefix + "_done.dat")
        assert os.path.exists(prefix + "_obs.dat")
    with ReplayBuffer(4, {"done": {}, "obs": {}}, mmap_prefix=prefix) as buffer:
        assert buffer.get_all_transitions()["obs"] == 2
    with ReplayBuffer(4, {"a": {}}, mmap_prefix=prefix, path=tmp_path / "else") as buffer:
        assert buffer.path == tmp_path / "else"


def test_a_closed_buffer():
    buffer = ReplayBuffer(4, {"a": {}})
    buffer.add(a=1)
    buffer.close()
    for call in (lambda: buffer.add(a=1), lambda: buffer.add(a=[1, 2]), lambda: buffer.sample(1)):
        with pytest.raises(diskreplay.errors.ClosedError):
            call()


def test_a_full_disk_keeps_what_fitted(monkeypatch):
    """The store takes rows in portions; what came before the portion that failed is there."""
    env = {"obs": {"shape": (8, 32, 4), "dtype": np.uint8}}
    stacks = np.random.default_rng(0).integers(0, 256, (9, 8, 32, 4), np.uint8)
    for i in range(1, 9):
        stacks[i, ..., :-1] = stacks[i - 1, ..., 1:]
    with PrioritizedReplayBuffer(20, env, stack_compress="obs", alpha=1, eps=0) as buffer:
        buffer.add(obs=stacks[0], priorities=1)
        extend = SlotBuffer.extend

        def fill(ring, columns):
            extend(ring, {name: values[:3] for name, values in columns.items()})
            raise diskreplay.errors.DiskFullError(28, "no space left")

        monkeypatch.setattr(SlotBuffer, "extend", fill)
        with pytest.raises(OSError, match="no space"):
            buffer.add(obs=stacks[1:8], priorities=np.arange(2, 9))
        monkeypatch.undo()
        assert buffer.get_stored_size() == buffer.get_current_episode_len() == 4
        buffer.add(obs=stacks[8], priorities=50)
        assert (buffer.get_all_transitions()["obs"] == stacks[[0, 1, 2, 3, 8]]).all()
        weights = buffer.sample(500, beta=1.0)
        of_slot = dict(zip(weights["indexes"].tolist(), weights["weights"].tolist(), strict=True))
        assert of_slot == pytest.approx({0: 1, 1: 1 / 2, 2: 1 / 3, 3: 1 / 4, 4: 1 / 50})


def test_a_temporary_store_is_gone_after_close():
    buffer = ReplayBuffer(4, {"a": {}})
    buffer.add(a=1)
    path = buffer.path
    assert path.exists()
    buffer.close()
    buffer.close()
    assert not path.exists()


KILLED = """
import os, signal, sys
import numpy as np
from diskreplay.compat.cpprb import create_buffer
env = {"obs": {"shape": (16, 16, 4), "dtype": np.uint8}, "rew": {}, "done": {}}
buffer = create_buffer(
    6, env, prioritized=sys.argv[2] == "1", next_of="obs", stack_compress="obs", path=sys.argv[1]
)
for i in range(17):
    frames = np.arange(i, i + 5, dtype=np.uint8) * np.ones((16, 16, 5), np.uint8)
    buffer.add(obs=frames[..., :4], next_obs=frames[..., 1:], rew=i, done=i == 9)
    print(i, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_kill_loses_nothing(tmp_path, prioritized):
    done = processes.run(KILLED, tmp_path / "store", int(prioritized))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split()[-1] == "16"
    env = {"obs": {"shape": (16, 16, 4), "dtype": np.uint8}, "rew": {}, "done": {}}
    with create_buffer(
        6, env, prioritized=prioritized, next_of="obs", stack_compress="obs",
        path=tmp_path / "store",
    ) as buffer:  # fmt: skip
        for _again in range(2):
            found = buffer.get_all_transitions()
            by_slot = {n % 6: n for n in range(17)}
            for slot, number in by_slot.items():
                if number < 11:
                    continue
                stack = np.arange(number, number + 4)
                assert found["rew"][slot] == number
                assert (found["obs"][slot] == stack).all()
                assert (found["next_obs"][slot] == stack + 1).all()
            if prioritized:
                assert set(buffer.sample(600)["indexes"].tolist()) == set(range(6))
            buffer.on_episode_end()
