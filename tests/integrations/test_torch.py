"""PyTorch: the tensors are the batch's, in this process and in workers."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import diskreplay  # noqa: E402
from diskreplay import InvalidInputError, NotSampleableError, ShapeError  # noqa: E402
from diskreplay.integrations.torch import (  # noqa: E402
    SampleStream,
    TransitionDataset,
    to_torch,
)
from tests.integrations.handing import make, pairs  # noqa: E402

# Newer Pythons warn of forking beside PyTorch's own threads, which is the subject here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]
KINDS = [diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer]
WORKERS = [(0, None), (2, "fork"), (2, "spawn")]


@pytest.fixture
def buffer(tmp_path):
    with make(tmp_path / "store") as buffer:
        yield buffer


def assert_equal(batch, tensors):
    for array, tensor in pairs(batch.asdict(), tensors):
        assert str(tensor.dtype) == f"torch.{array.dtype}"
        np.testing.assert_array_equal(tensor.numpy(), array)


# -- batches


def test_on_the_cpu_nothing_is_copied(buffer):
    batch = buffer.sample(8)
    tensors = to_torch(batch)
    assert_equal(batch, tensors)
    for array, tensor in pairs(batch.asdict(), tensors):
        assert tensor.data_ptr() == array.ctypes.data
    batch.reward[0] = 77
    assert tensors["reward"][0] == 77


def test_tensors_keep_their_memory(buffer):
    ids = buffer.sampleable_ids()[:8]
    tensors = to_torch(buffer.gather(ids))
    for _ in range(10):  # batches that nobody holds are filled again
        buffer.sample(8)
    assert_equal(buffer.gather(ids), tensors)


@pytest.mark.parametrize("stack_size", [1, 2, 4])
@pytest.mark.parametrize("update_horizon", [1, 3])
def test_shapes_on_another_device(stack_size, update_horizon):
    with make(stack_size=stack_size, update_horizon=update_horizon) as buffer:
        batch = buffer.sample(8)
        tensors = to_torch(batch, "meta", non_blocking=True)
        for array, tensor in pairs(batch.asdict(), tensors):
            assert tensor.device.type == "meta"
            assert tuple(tensor.shape) == array.shape
            assert str(tensor.dtype) == f"torch.{array.dtype}"


if torch.cuda.is_available():

    @pytest.mark.parametrize("stack_size", [1, 4])
    @pytest.mark.parametrize("non_blocking", [False, True])
    def test_values_on_cuda(stack_size, non_blocking):
        with make(stack_size=stack_size) as buffer, buffer.prefetch(batch_size=8) as batches:
            for _ in range(20):
                batch = next(batches)
                before = pickle.loads(pickle.dumps(batch))
                tensors = to_torch(batch, "cuda", non_blocking=non_blocking)
                next(batches)  # may fill the first batch's memory again
                for array, tensor in pairs(before.asdict(), tensors):
                    np.testing.assert_array_equal(tensor.cpu().numpy(), array)
            seen, following = (
                tensors["observation"]["camera"],
                tensors["next_observation"]["camera"],
            )
            shared = seen.untyped_storage().data_ptr() == following.untyped_storage().data_ptr()
            assert shared == (stack_size == 4)


# -- every transition


def test_items_are_what_gather_gives(buffer):
    dataset = TransitionDataset(buffer)
    assert len(dataset) == len(buffer) == 90
    np.testing.assert_array_equal(dataset.ids, buffer.sampleable_ids())
    for index in (0, 41, -1, np.int64(7)):
        batch = buffer.gather(dataset.ids[[index]])
        for array, tensor in pairs(batch.asdict(), dataset[index]):
            np.testing.assert_array_equal(tensor.numpy(), array[0])
    for outside in (90, -91):
        with pytest.raises(IndexError, match="90"):
            dataset[outside]
    assert sum(1 for _ in dataset) == 90
    dataset.close()
    assert dataset[3]["reward"] == buffer.gather(dataset.ids[[3]]).reward[0]
    dataset.close()


def test_loaders_need_no_collate(buffer):
    dataset = TransitionDataset(buffer)
    ids = [batch["id"] for batch in dataset.loader(32)]
    assert torch.cat(ids).tolist() == buffer.sampleable_ids().tolist()
    order = torch.Generator().manual_seed(1)
    for batch in dataset.loader(32, shuffle=True, drop_last=True, generator=order):
        assert_equal(buffer.gather(batch["id"].numpy()), batch)
        assert len(batch["id"]) == 32
        assert batch["id"].tolist() != sorted(batch["id"])
    dataset.close()
    loader = SampleStream(buffer, 16, batches=3).loader()
    assert [len(batch["id"]) for batch in loader] == [16] * 3 == [16] * len(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_reads_ahead_draws_the_same(tmp_path, kind):
    with make(tmp_path / "store", kind=kind) as buffer:
        drawn = []
        for prefetch in (0, 3):
            torch.manual_seed(1)
            stream = SampleStream(buffer, 16, batches=10, prefetch=prefetch)
            batches = [{"id": b["id"].clone(), "reward": b["reward"].clone()} for b in stream]
            drawn.append(batches)
        for one, two in zip(*drawn, strict=True):
            assert torch.equal(one["id"], two["id"])
            assert torch.equal(one["reward"], two["reward"])
        with pytest.raises(InvalidInputError, match="prefetch: a whole number from 0 on expected"):
            SampleStream(buffer, prefetch=-1)


@pytest.mark.costly(1)
@pytest.mark.parametrize(("workers", "start"), WORKERS)
def test_an_epoch_has_every_transition_once(buffer, workers, start):
    dataset = TransitionDataset(buffer.path)
    dataset[0]  # opened in this process too, which a worker must not notice
    loader = DataLoader(
        dataset, batch_size=32, shuffle=True, collate_fn=dataset.collate, num_workers=workers,
        multiprocessing_context=start, generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [32, 32, 26]
    ids = np.concatenate([batch["id"].numpy() for batch in batches])
    assert ids.tolist() != sorted(ids)
    assert sorted(ids) == sorted(buffer.sampleable_ids())
    for batch in batches:
        assert_equal(buffer.gather(batch["id"].numpy()), batch)
    dataset.close()


def test_the_default_collation_gives_the_same(buffer):
    dataset = TransitionDataset(buffer)
    whole, apart = (
        list(DataLoader(dataset, batch_size=7, collate_fn=collate))
        for collate in (dataset.collate, None)
    )
    for one, other in zip(whole, apart, strict=True):
        for name in ("id", "reward", "mark"):
            assert torch.equal(one[name], other[name])
        for when in ("observation", "next_observation"):
            assert torch.equal(one[when]["camera"], other[when]["camera"])
    dataset.close()


def test_chosen_transitions(buffer):
    dataset = TransitionDataset(buffer, ids=[12, 3, 5])
    assert [dataset[index]["mark"].item() for index in range(3)] == [11, 3, 5]  # 10 is a final row
    dataset.close()
    with pytest.raises(ShapeError, match="one axis"):
        TransitionDataset(buffer, ids=[[1]])
    dataset = TransitionDataset(buffer, ids=[10])
    with pytest.raises(NotSampleableError, match="final row"):
        dataset[0]
    dataset.close()


def test_items_stay_while_the_run_goes_on(buffer):
    dataset = TransitionDataset(buffer)
    before = buffer.gather(dataset.ids[:5])
    space = buffer.observation_space
    for step in range(20):
        buffer.add(space.sample(), 0, 0.0, False, False, mark=step)
    assert len(dataset) == 90
    after = dataset.__getitems__(range(5)).batch
    assert torch.equal(after["reward"], torch.from_numpy(before.reward))
    assert after["mark"].tolist() == before.mark.tolist()
    for step in range(300):
        buffer.add(space.sample(), 0, 0.0, False, False, mark=step)
    with pytest.raises(NotSampleableError, match="evicted"):
        dataset[0]
    dataset.close()


def test_pickling_passes_the_path_and_the_ids(buffer):
    dataset = TransitionDataset(buffer)
    dataset[0]
    state = pickle.dumps(dataset)
    assert len(state) < 8 * len(dataset) + 1000
    copy = pickle.loads(state)
    assert copy.path == buffer.path
    assert copy[4]["reward"] == dataset[4]["reward"]
    copy.close(), dataset.close()


# -- a stream


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("kind", "workers", "start"),
    [(kind, *how) for kind in KINDS for how in WORKERS[:2]] + [(KINDS[1], *WORKERS[2])],
)
def test_a_stream_draws_apart_in_each_worker(tmp_path, kind, workers, start):
    with make(tmp_path / "store", kind=kind) as buffer:
        with buffer.prefetch(depth=3, batch_size=8) as batches:
            next(batches)  # at close, drawn numbers are put back and saved
        buffer.flush()
        stream = SampleStream(buffer, 8, batches=11)
        passes = []
        for seed in (1, 1, 2):
            loader = DataLoader(
                stream, batch_size=None, num_workers=workers, multiprocessing_context=start,
                generator=torch.Generator().manual_seed(seed),
            )  # fmt: skip
            torch.manual_seed(seed)
            assert len(loader) == 11
            passes.append([batch["id"].tolist() for batch in loader])
            if start == "spawn":
                break  # it takes its time
        for drawn in passes:
            assert len(drawn) == 11
            assert len(set(map(tuple, drawn))) == 11  # no two workers draw the same
        if start != "spawn":
            assert passes[0] == passes[1] != passes[2]


def test_a_stream_is_as_the_store(tmp_path):
    with make(tmp_path / "store", kind=diskreplay.PrioritizedReplayBuffer) as buffer:
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, np.where(ids % 3 == 0, 1.0, 0.0))
        buffer.flush()
        for batch in SampleStream(buffer.path, 16, batches=5, beta=1.0):
            assert (batch["id"] % 3 == 0).all()
            ours = buffer.gather(batch["id"].numpy())
            np.testing.assert_allclose(batch["probability"], ours.probability)
            assert torch.equal(
                batch["next_observation"]["camera"],
                torch.from_numpy(ours.next_observation["camera"]),
            )


def test_a_stream_is_uniform(buffer):
    torch.manual_seed(4)
    counts = np.zeros(buffer.bounds[0, 1])
    for batch in SampleStream(buffer, 90, batches=200):
        np.add.at(counts, batch["id"].numpy(), 1)
    counts = counts[buffer.sampleable_ids()]
    assert counts.sum() == 90 * 200
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert 50 < chi_square < 141  # 89 degrees of freedom: 0.9997 of the distribution


def test_an_endless_stream(buffer):
    stream = SampleStream(buffer)
    with pytest.raises(TypeError, match="endless"):
        len(stream)
    drawn = [len(batch["id"]) for batch, _ in zip(stream, range(40), strict=False)]
    assert drawn == [buffer.batch_size] * 40


def test_a_stream_follows_the_run(buffer):
    newest = buffer.bounds[0, 1]
    batches = iter(SampleStream(buffer, 64))
    assert next(batches)["id"].max() < newest
    for step in range(100):
        buffer.add(buffer.observation_space.sample(), 0, 0.0, False, False, mark=step)
    assert next(batches)["id"].max() > newest
    batches.close()


def test_what_is_wrong_is_said_at_once(tmp_path, buffer):
    for made in (SampleStream, TransitionDataset):
        with pytest.raises(diskreplay.FormatError):
            made(tmp_path / "nothing")
    for options in ({"batch_size": 0}, {"batches": -1}, {"batches": 1.5}):
        with pytest.raises(InvalidInputError, match="positive integer"):
            SampleStream(buffer, **options)


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "diskreplay.integrations.torch")
    with pytest.raises(ModuleNotFoundError, match=r'pip install "diskreplay\[torch\]"'):
        import diskreplay.integrations.torch  # noqa: F401


# -- processes


class Looking(TransitionDataset):
    """Says which files of the store its process has open."""

    def __getitems__(self, indices):
        super().__getitems__(indices)
        return [open_files(self.path)]


def descriptors():
    """What the descriptors of this process are open on, by name: that of a pipe has its number."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own; another thread's
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return names


def open_files(path):
    """Descriptors and mappings of this process below `path`."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    fds = [name for name in descriptors() if name.startswith(f"{path}/")]
    return len(fds), sum(f"{path}/" in line for line in maps)


@pytest.mark.costly
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_workers_share_nothing_and_leave_nothing(tmp_path):
    """In a process of its own: in this one, threads that other tests left open files."""
    make(tmp_path / "store").close()
    code = "import sys; from tests.integrations import test_torch; test_torch.use(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def use(path):
    dataset = Looking(path)
    assert open_files(dataset.path) == (0, 0)  # nothing for a forked worker to inherit
    here = open_after_reading(path)
    read_by_workers(dataset, here)  # what torch and Python open once is open after this
    before = set(descriptors())
    for _ in range(3):
        read_by_workers(dataset, here)
    new = set(descriptors()) - before
    assert not new, new
    assert open_files(dataset.path) == (0, 0)


def read_by_workers(dataset, expected):
    """Two forked workers give a batch each and end: none is left, nor a reference to one."""
    loader = DataLoader(
        dataset, batch_size=45, num_workers=2, multiprocessing_context="fork", collate_fn=list
    )
    assert [found for [found] in loader] == [expected, expected]
    del loader
    while children := multiprocessing.active_children():  # told to end: may need a turn
        for child in children:
            child.join(400)
            assert child.exitcode is not None
        del children, child  # a process that is referred to keeps its pipes open
    for thread in threading.enumerate():  # PyTorch does not wait for those that write to workers
        if thread.name == "QueueFeederThread":
            thread.join(400)  # it closes its end of the pipe as it ends
            assert not thread.is_alive()
    gc.collect()


def open_after_reading(path):
    """What one process that reads the store has open."""
    with diskreplay.open(path) as reader:
        reader.gather(reader.sampleable_ids()[:45])
        return open_files(path)
