"""The maintenance thread, and a process that can have none."""

import errno
import threading

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.store import files


@pytest.mark.costly(1)
@pytest.mark.parametrize("compressor", ["lz4", "raw"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_are_added_where_no_more_threads_are_to_be_had(
    tmp_path, monkeypatch, compressor, num_envs
):
    start, refused = threading.Thread.start, []

    def full(thread):
        if thread.name.startswith("diskreplay maintenance") and len(refused) < 200:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    shape = (num_envs,) if num_envs > 1 else ()
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (16, 16), "uint8"),
        action_space=Discrete(2), capacity=300 * num_envs, num_envs=num_envs, segment_rows=32,
        compressor=compressor,
    ) as buffer:  # fmt: skip
        for i in range(1000):
            seen, no = np.full((*shape, 16, 16), i % 256, np.uint8), np.zeros(shape, bool)
            buffer.add(seen, np.zeros(shape, int), np.zeros(shape), no, no)
            if i % 200 == 50:
                newest = np.arange(i * num_envs, (i + 1) * num_envs)
                assert (buffer.take("observation", newest) == i % 256).all()
                buffer.save(tmp_path, i, keep=2)
        assert refused
        first, stop = buffer.bounds[0]
        for row in range(first, stop):
            assert (buffer.take("observation", [row * num_envs]) == row % 256).all()
    assert verify(tmp_path / "replay").clean
    with diskreplay.open(tmp_path / "replay") as reader:
        assert reader.bounds[0][1] == 1000


@pytest.mark.parametrize("error", [RecursionError, NotImplementedError])
def test_what_else_is_raised_as_the_thread_starts_is_no_lack_of_threads(
    tmp_path, monkeypatch, error
):
    """By a signal handler, say, or where there is no room on the stack."""

    def start(thread):
        raise error(thread.name)

    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (4,), "uint8"),
        action_space=Discrete(2), capacity=300,
    ) as buffer:  # fmt: skip
        maintenance = buffer._rows.store.maintenance
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, "_thread", None)
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(error, match="diskreplay maintenance"):
                maintenance.wake()


def test_what_is_sealed_when_the_next_one_is_refused_is_synced_all_the_same(
    tmp_path, monkeypatch, no_upkeep
):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Discrete(9), action_space=Discrete(3),
        capacity=None, segment_rows=16, extras={"state": ((64,), "float32")},
    ) as buffer:  # fmt: skip
        for _ in range(50):
            buffer.add(1, 1, 0.0, False, False, state=np.zeros(64, np.float32))
        store, real, sealed, synced = buffer._rows.store, files.seal, [], set()

        def seal_one(path):
            if sealed:
                raise errors.StorageError(errno.EIO, "refused", str(path))
            real(path)
            sealed.append(path)

        with monkeypatch.context() as patched:
            patched.setattr(files, "seal", seal_one)
            with pytest.raises(errors.StorageError, match="refused"):
                store.maintenance.run()
        monkeypatch.setattr(files, "sync", lambda paths: synced.update(paths))
        store.maintenance.run(durable=True)
        assert store.durable_count.tolist() == [50]
        assert sealed[0] in synced  # before the record counts on it
