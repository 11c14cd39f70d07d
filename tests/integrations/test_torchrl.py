"""torchrl's replay buffers over a DiskStorage beside the same over a LazyTensorStorage."""
# ruff: noqa: E402 - torchrl's trees are loaded before what looks for them

import contextlib
import hashlib
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchrl")
from tests.integrations import torchrl_extension

torchrl_extension.load()

import torch
from tensordict import TensorDict, lazy_stack, tensorclass
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from torchrl.envs import Compose, MultiStepTransform, RewardScaling, ToTensorImage

from diskreplay import ReplayBuffer as Store
from diskreplay.errors import (
    CheckpointNotFoundError,
    DiskFullError,
    DtypeError,
    InvalidInputError,
    ReadOnlyError,
    ReentryError,
    SchemaError,
    ShapeError,
    UsageError,
)
from diskreplay.integrations.disk_tensor import DiskTensor
from diskreplay.integrations.record_log import RecordLog
from diskreplay.integrations.torchrl import DiskStorage
from diskreplay.locks import Lock
from tests import processes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SIZE = 40
HERE = "tests.integrations.test_torchrl"  # which has loaded all that children need


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def storage(*arguments, **options):
    made = DiskStorage(*arguments, **options)
    try:
        yield made
    finally:
        made.close()


def steps(count, seed=0, start=0, length=7):
    """Steps of episodes whose frames follow each other, as a collector gives them."""
    rng = np.random.default_rng(seed)
    frames = torch.from_numpy(rng.integers(0, 256, (count + 1, 2, 4, 4), np.uint8))
    number = torch.arange(start, start + count)
    done = (number % length == length - 1)[:, None]
    following = frames[1:].clone()
    following[done[:, 0]] = 9
    return TensorDict(
        {
            "pixels": frames[:-1].clone(),
            "action": number,
            "collector": {"traj_ids": number // length},
            "next": {
                "pixels": following,
                "reward": torch.from_numpy(rng.normal(size=(count, 1)).astype(np.float32)),
                "done": done,
                "terminated": done,
                "truncated": torch.zeros_like(done),
            },
        },
        batch_size=[count],
    )


def same(one, other):
    assert one.batch_size == other.batch_size
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert (one == other).all()


OPTIONS = [
    {"min_bytes": 0}, {"min_bytes": 30}, {"min_bytes": 1024},
    {"min_bytes": 30, "next_of": True},
    {"min_bytes": 30, "next_of": True, "stack": {"pixels": 2}},
    {"min_bytes": 8, "stack": {"pixels": 2}, "compressor": "lz4"},
]  # fmt: skip
CALLS = st.lists(
    st.tuples(
        st.sampled_from(
            ["extend", "extend", "extend", "add", "set", "set slice", "set list", "sample", "get",
             "whole", "reopen", "empty", "dumps", "state"]
        ),
        st.integers(1, 50), st.integers(0, 2**16),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@settings(deadline=None, max_examples=4)
@given(calls=CALLS)
def test_all_calls_do_the_same(options, calls, tmp_path_factory):
    place = tmp_path_factory.mktemp("torchrl")
    kinds = [LazyTensorStorage, lambda size: DiskStorage(size, path=place / "store", **options)]
    buffers = [TensorDictReplayBuffer(storage=kind(SIZE), batch_size=9) for kind in kinds]
    theirs, ours = buffers
    try:
        for call, count, seed in calls:
            if call != "extend" and call != "add" and not len(theirs):
                continue
            if call in ("extend", "add"):
                for buffer in buffers:
                    data = steps(count, seed, count)
                    buffer.extend(data) if call == "extend" else buffer.add(data[0])
            elif call == "set":
                for buffer in buffers:
                    buffer[seed % len(buffer)] = theirs[count % len(theirs)].clone()
            elif call == "set slice":
                for buffer in buffers:
                    part = slice(seed % len(buffer), len(buffer))
                    buffer[part] = buffer[part].clone().flip(0)
            elif call == "set list":
                index = np.random.default_rng(seed).permutation(len(theirs))[:count]
                for buffer in buffers:
                    data = steps(len(index), seed)
                    buffer[index] = data.set("index", torch.zeros(len(index), dtype=torch.int64))
            elif call == "sample":
                found = []
                for buffer in buffers:
                    torch.manual_seed(seed)
                    found.append(buffer.sample())
                same(*found)
            elif call == "get":
                index = torch.randint(0, len(theirs), (count,))
                same(theirs[index], ours[index])
            elif call == "reopen":
                ours.storage.close()
                ours = TensorDictReplayBuffer(storage=kinds[1](SIZE), batch_size=9)
            elif call == "empty":
                [buffer.empty() for buffer in buffers]
            elif call == "dumps":
                ours.dumps(place / "dumped")
                ours.storage.close()
                fresh = DiskStorage(SIZE, **options)
                ours = TensorDictReplayBuffer(storage=fresh, batch_size=9)
                ours.loads(place / "dumped")
                fresh.close()
                ours = TensorDictReplayBuffer(storage=kinds[1](SIZE), batch_size=9)
                ours.loads(place / "dumped")
            elif call == "state":
                state = ours.state_dict()
                ours.extend(steps(5, seed))
                ours.load_state_dict(state)
            buffers = [theirs, ours]
            assert len(theirs) == len(ours)
            if len(theirs):
                assert theirs.writer._cursor == ours.writer._cursor
                same(theirs[:], ours[:])
                assert (theirs[:]["next", "reward"].sum() == ours[:]["next", "reward"].sum()).all()
    finally:
        ours.storage.close()


SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "prioritized": lambda: PrioritizedSampler(SIZE, 0.7, 0.5),
    "slices": lambda: SliceSampler(num_slices=3, traj_key=("collector", "traj_ids")),
    "slices by ends": lambda: SliceSampler(num_slices=3, end_key=("next", "done")),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(
        num_slices=3, traj_key=("collector", "traj_ids"), strict_length=False
    ),
    "prioritized slices": lambda: PrioritizedSliceSampler(
        SIZE, 0.7, 0.5, num_slices=3, traj_key=("collector", "traj_ids"), strict_length=False
    ),
}


def drawn(made, kind, draws=5, **options):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - what the trees draw with
    buffer = TensorDictReplayBuffer(
        storage=made, sampler=SAMPLERS[kind](), batch_size=12, priority_key="td_error",
        generator=torch.Generator().manual_seed(1), **options,
    )  # fmt: skip
    found = []
    for start in range(0, 63, 21):
        buffer.extend(steps(21, start, start))
        for _ in range(draws):
            batch = buffer.sample()
            found.append(batch.clone())
            if kind.startswith("prioritized"):
                batch["td_error"] = batch["next", "reward"].abs().flatten() + 0.1
                buffer.update_tensordict_priority(batch)
    return found


@pytest.mark.parametrize("min_bytes", [0, 30])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_draw_the_same(kind, min_bytes):
    wanted = drawn(LazyTensorStorage(SIZE), kind)
    with storage(SIZE, min_bytes=min_bytes, next_of=True) as made:
        for one, other in zip(wanted, drawn(made, kind), strict=True):
            same(one, other)


def test_sequences_as_a_sample_unit():
    from torchrl.data import Sequence

    def draws(made):
        return drawn(made, "random", sample_unit=Sequence(length=4))

    wanted = draws(LazyTensorStorage(SIZE))
    with storage(SIZE, min_bytes=30) as made:
        for one, other in zip(wanted, draws(made), strict=True):
            same(one, other)


def test_slices_look_for_ends_without_reading_frames(monkeypatch):
    with storage(SIZE, min_bytes=30) as made:
        sampler = SliceSampler(num_slices=2, end_key=("next", "done"), cache_values=False)
        buffer = TensorDictReplayBuffer(storage=made, sampler=sampler, batch_size=8)
        buffer.extend(steps(SIZE))
        read = []
        real = made._shelf.log.read
        monkeypatch.setattr(
            made._shelf.log,
            "read",
            lambda name, slots: read.append(slots.size) or real(name, slots),
        )
        buffer.sample()
        assert set(read) == {8}
        assert len(read) == 2  # pixels and next pixels, once each: not for the sampler, too


def test_a_write_amid_a_call_of_the_buffer_takes_no_lock():
    """Another thread that wrote had the storage's, and waited for the end of that call."""
    taken = []

    class Noted(Lock):
        def __enter__(self):
            taken.append(1)
            return super().__enter__()

    with storage(SIZE, min_bytes=30) as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=8)
        buffer.extend(steps(SIZE))
        made._shelf._lock = Noted()
        with made._shelf.log.buffer._lock, pytest.raises(ReentryError):
            buffer.extend(steps(2))
        assert taken == []
        buffer.extend(steps(2))
        assert taken != []


def test_frames_that_two_leaves_have_in_common_are_read_once(monkeypatch):
    with storage(SIZE, min_bytes=30, next_of=True) as made:
        sampler = SliceSampler(num_slices=2, end_key=("next", "done"), cache_values=False)
        buffer = TensorDictReplayBuffer(storage=made, sampler=sampler, batch_size=8)
        buffer.extend(steps(SIZE))
        read = []
        for name in ("take", "take_both"):
            real = getattr(made._shelf.log.buffer, name)

            def noted(field, ids, *out, real=real, name=name, **options):
                read.append((name, field, ids.shape))
                return real(field, ids, *out, **options)

            monkeypatch.setattr(made._shelf.log.buffer, name, noted)
        batch = buffer.sample()
        assert [call[:2] for call in read] == [("take_both", "observation/pixels")]
        assert read[0][2] in [(2, 5), (1, 9)]  # a frame more than records; slices may touch
        batch["pixels"].zero_()
        assert batch["next", "pixels"].any()
        buffer[:]["pixels"][torch.tensor([3])]  # by itself
        assert [call[:2] for call in read[1:]] == [("take", "observation/pixels")]


@pytest.mark.parametrize("next_of", [False, True])
@pytest.mark.parametrize(
    "since", ["nothing", "held", "changed", "written", "index", "elsewhere", "cleared"]
)
def test_what_was_looked_at_is_read_again_where_it_may_differ(since, next_of):
    twin = LazyTensorStorage(SIZE)
    with storage(SIZE, min_bytes=30, next_of=next_of) as made:
        buffers = [TensorDictReplayBuffer(storage=each, batch_size=8) for each in (made, twin)]
        for buffer in buffers:
            buffer.extend(steps(SIZE))
        index = (torch.tensor([3, 5, 4]),)
        looked = made[index]
        held = looked["pixels"] if since == "held" else None
        if since == "changed":
            looked["pixels"].zero_()
        del looked
        if since == "written":
            for each in (made, twin):
                each[5] = steps(1, seed=2)[0]
        elif since == "index":
            index[0][0] = 7
        elif since == "elsewhere":
            index = (torch.tensor([1, 2, 3]),)
        elif since == "cleared":
            for buffer in buffers:
                buffer.empty()
                buffer.extend(steps(SIZE, seed=1))
        found = made.get((*index,))
        if held is not None:
            held.zero_()
        same(twin.get(index), found)
        found["pixels"].zero_()
        same(twin.get(index), made.get(index))


@pytest.mark.parametrize("index_too", [False, True])
def test_samplers_look_in_inference_mode(index_too):
    def sampled(made):
        sampler = SliceSampler(num_slices=2, end_key=("next", "done"))
        buffer = TensorDictReplayBuffer(storage=made, sampler=sampler, batch_size=8)
        buffer.extend(steps(SIZE))
        torch.manual_seed(0)
        with torch.inference_mode():
            found, index = buffer.sample(), (torch.tensor([3, 5, 4]),)
        with torch.inference_mode(index_too):
            return found, made[index], made.get(index)

    with storage(SIZE, min_bytes=30) as made:
        for one, other in zip(sampled(LazyTensorStorage(SIZE)), sampled(made), strict=True):
            same(one, other)


def test_what_is_written_while_records_are_looked_at_is_read(monkeypatch):
    with storage(SIZE, min_bytes=30) as made:
        made.set(range(SIZE), steps(SIZE))
        index, read = (torch.tensor([3, 5, 4]),), RecordLog.read

        def read_and_write(log, name, slots):
            found = read(log, name, slots)
            if len(slots) == 3:
                monkeypatch.undo()
                made[5] = steps(1, seed=2)[0]
            return found

        monkeypatch.setattr(RecordLog, "read", read_and_write)
        assert not made[index].is_empty()
        same(made.get((*index,)), made.get(index))


def test_transforms_do_the_same():
    def batches(made):
        buffer = TensorDictReplayBuffer(
            storage=made, batch_size=12, generator=torch.Generator().manual_seed(1),
            transform=Compose(
                MultiStepTransform(n_steps=3, gamma=0.9), ToTensorImage(in_keys=["pixels"]),
                RewardScaling(0.0, 2.0, in_keys=[("next", "reward")]),
            ),
        )  # fmt: skip
        for start in range(0, 90, 18):
            buffer.extend(steps(18, start, start))
        return [buffer.sample() for _ in range(5)]

    wanted = batches(LazyTensorStorage(SIZE))
    with storage(SIZE, min_bytes=30, next_of=True) as made:
        for one, other in zip(wanted, batches(made), strict=True):
            same(one, other)


def test_a_writer_that_keeps_the_best():
    contents = []
    with storage(SIZE, min_bytes=30, next_of=True) as made:
        for kind in (LazyTensorStorage(SIZE), made):
            writer = TensorDictMaxValueWriter(rank_key=("next", "reward"))
            buffer = TensorDictReplayBuffer(storage=kind, writer=writer, batch_size=4)
            for start in range(0, 400, 25):
                buffer.extend(steps(25, start, start))
            contents.append(buffer[:].clone())
    same(*contents)


def test_several_record_axes(tmp_path):
    def filled(made):
        buffer = TensorDictReplayBuffer(
            storage=made, batch_size=16, generator=torch.Generator().manual_seed(2),
            sampler=SliceSampler(num_slices=4, traj_key=("collector", "traj_ids")),
        )  # fmt: skip
        for start in range(0, 100, 10):
            rollout = steps(40, start, start * 4).reshape(4, 10)
            buffer.extend(rollout)
        return buffer

    theirs = filled(LazyTensorStorage(60, ndim=2))
    with storage(60, ndim=2, min_bytes=30, path=tmp_path / "store") as made:
        ours = filled(made)
        same(theirs[:], ours[:])
        for _ in range(5):
            same(theirs.sample(), ours.sample())
        same(theirs[2:, 3], ours[2:, 3])
    with storage(60, ndim=2, min_bytes=30, path=tmp_path / "store") as made:
        assert made.shape == theirs.storage.shape
        assert (made.get(slice(None)) == theirs.storage.get(slice(None))).all()
    with pytest.raises(SchemaError, match="made for records of shape"):
        DiskStorage(60, path=tmp_path / "store")


@tensorclass
class Step:
    """A record that is a class."""

    pixels: torch.Tensor
    reward: torch.Tensor


RECORDS = {
    "tensor": lambda n: torch.arange(n * 6.0).view(n, 3, 2),
    "tree": lambda n: {"a": torch.arange(n * 4).view(n, 4), "b": (torch.ones(n), torch.ones(n, 2))},
    "tensorclass": lambda n: Step(torch.rand(n, 4, 4), torch.rand(n, 1), batch_size=[n]),
    "dtypes": lambda n: TensorDict(
        {
            str(dtype).removeprefix("torch."): torch.arange(n * 3).view(n, 3).to(dtype)
            for dtype in (
                torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int8, torch.int16,
                torch.complex64, torch.int64,
            )
        },
        batch_size=[n],
    ),
    "lazy stack": lambda n: lazy_stack([steps(1, k)[0] for k in range(n)]),
}  # fmt: skip


@pytest.mark.parametrize("min_bytes", [0, 1024])
@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_all_kinds(kind, min_bytes, tmp_path):
    theirs = ReplayBuffer(storage=LazyTensorStorage(SIZE), batch_size=8)
    with storage(SIZE, min_bytes=min_bytes, path=tmp_path / "store") as made:
        ours = ReplayBuffer(storage=made, batch_size=8)
        batches = []
        for buffer in (theirs, ours):
            for _ in range(4):
                buffer.extend(RECORDS[kind](15) if kind != "tensorclass" else _steps(15))
            torch.manual_seed(3)
            batches.append(buffer.sample())
        one, other = batches
        assert type(one) is type(other)
        for a, b in zip(_leaves(one), _leaves(other), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        whole = list(_leaves(theirs[:]))
    with storage(SIZE, min_bytes=min_bytes, path=tmp_path / "store") as made:
        again = ReplayBuffer(storage=made, batch_size=8)
        for a, b in zip(whole, _leaves(again[:]), strict=True):
            assert torch.equal(a, b.read() if isinstance(b, DiskTensor) else b)


def _steps(count):
    torch.manual_seed(count)
    return RECORDS["tensorclass"](count)


def _leaves(data):
    if hasattr(data, "batch_size") and not isinstance(data, torch.Tensor):
        data = {str(key): value for key, value in data.to_tensordict().items(True, True)}
        return [data[key] for key in sorted(data)]
    return torch.utils._pytree.tree_leaves(data)


def test_ragged_and_other_leaves_are_in_memory_and_in_checkpoints(tmp_path):
    def records(count):
        return TensorDict(
            {"pixels": torch.ones(count, 40, 40), "name": [f"step {k}" for k in range(count)]},
            batch_size=[count],
        )

    with storage(SIZE, path=tmp_path / "store") as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        with pytest.warns(UserWarning, match="gone after a kill"):
            buffer.extend(records(5))
        assert buffer[2]["name"] == "step 2"
        assert isinstance(made._storage["pixels"], DiskTensor)
        buffer.dumps(tmp_path / "dumped")
        buffer.extend(records(3))
        buffer.loads(tmp_path / "dumped")
        assert len(buffer) == 5
        assert buffer[4]["name"] == "step 4"


# -- what is refused


def test_another_dtype_shape_or_leaf_is_refused_and_changes_nothing():
    with storage(SIZE, min_bytes=30) as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(10))
        before, cursor = buffer[:].clone(), buffer.writer._cursor
        pixels = steps(3)["pixels"]
        for key, value, error, message in (
            (
                "pixels",
                pixels.float(),
                DtypeError,
                r"'pixels'.*uint8 expected, found torch.float32",
            ),
            ("pixels", pixels[..., :3], ShapeError, r"'pixels'.*records of shape \(2, 4, 4\)"),
            ("action", torch.ones(3), DtypeError, "int64 expected, found torch.float32"),
            (("next", "reward"), torch.ones(3, 2), ShapeError, r"shape \(1,\)"),
            ("more", torch.zeros(3, 2000), InvalidInputError, "'more'.*is new, and large"),
        ):
            for one in (False, True):
                wrong = steps(3).set(key, value)
                with pytest.raises(error, match=message):
                    buffer.add(wrong[0]) if one else buffer.extend(wrong)
                assert len(buffer) == 10
                assert buffer.writer._cursor == cursor
                same(buffer[:], before)
        buffer.extend(steps(3))
        assert len(buffer) == 13


@pytest.mark.parametrize("min_bytes", [0, 30])
def test_leaves_that_are_set_in_place_are_written(min_bytes):
    rows = TensorDict({"frame": torch.ones(6, 8, 8), "value": torch.ones(6)}, [6])
    with storage(SIZE, min_bytes=min_bytes) as made:
        theirs, ours = (
            TensorDictReplayBuffer(storage=kind, batch_size=2)
            for kind in (LazyTensorStorage(SIZE), made)
        )
        for buffer in (theirs, ours):
            buffer.extend(rows)
            buffer.update_(buffer[:].clone().apply(lambda leaf: leaf * 3))
            buffer.set_at_("frame", torch.full((2, 8, 8), 9.0), torch.tensor([2, 5]))
            buffer.set_at_("value", torch.tensor([8.0, 9.0]), torch.tensor([1, 5]))
        same(theirs[:], ours[:])
        assert (ours[:]["value"][1].item(), ours[1]["value"].item()) == (8, 8)


def test_a_part_of_the_storage_is_written_elsewhere_in_it():
    with storage(SIZE, min_bytes=1024) as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(10))
        wanted = buffer[:].clone()
        for at in (slice(2, 5), torch.tensor([9, 1, 4])):
            wanted[at] = wanted[:3].clone()
            buffer[at] = buffer[:3]  # small leaves: views of what is in memory
            same(wanted, buffer[:])


def test_a_small_leaf_that_comes_later_is_in_memory_and_said_so():
    with storage(SIZE, min_bytes=30) as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(10))
        with pytest.warns(UserWarning, match="'more'.*gone after a kill"):
            buffer.extend(steps(3).set("more", torch.ones(3)))
        assert buffer[:]["more"].tolist() == [0] * 10 + [1] * 3


def test_a_full_disk_takes_nothing(monkeypatch):
    with storage(SIZE, min_bytes=30) as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        for start in (0, 30):
            buffer.extend(steps(30, start))
        before, cursor = buffer[:].clone(), buffer.writer._cursor
        real = Store.extend
        error = DiskFullError(28, "No space left on device", "segment")
        monkeypatch.setattr(Store, "extend", lambda *_a: (_ for _ in ()).throw(error))
        for call in (buffer.extend, lambda data: buffer.add(data[0])):
            with pytest.raises(DiskFullError):
                call(steps(5, 99))
        monkeypatch.setattr(Store, "extend", real)
        assert buffer.writer._cursor == cursor
        same(buffer[:], before)


def test_a_path_that_holds_something_else_is_refused(tmp_path):
    from gymnasium.spaces import Box, Discrete

    Store(
        tmp_path / "store", observation_space=Box(0, 1, (3,)), action_space=Discrete(2), capacity=9
    ).close()
    with pytest.raises(SchemaError, match="not made by a DiskStorage"):
        DiskStorage(SIZE, path=tmp_path / "store")
    for wrong in ({"min_bytes": -1}, {"stack": 0}, {"stack": {"pixels": 1.5}}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            DiskStorage(SIZE, **wrong)
    with pytest.raises(InvalidInputError, match="max_size"):
        DiskStorage(0)


# -- saving


def digests(directory):
    return {
        path.relative_to(directory): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*")) if path.is_file()
    }  # fmt: skip


@pytest.mark.parametrize("how", ["dumps", "state_dict"])
@pytest.mark.parametrize("kind", ["random", "prioritized", "prioritized slices"])
def test_a_run_goes_on_with_the_same_draws(how, kind, tmp_path):
    def made(name):
        return TensorDictReplayBuffer(
            storage=DiskStorage(SIZE, path=tmp_path / name, min_bytes=30, next_of=True),
            sampler=SAMPLERS[kind](), batch_size=12, priority_key="td_error",
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip

    def go_on(buffer):
        np.random.seed(5)  # noqa: NPY002
        found = []
        for start in range(200, 260, 20):
            buffer.extend(steps(20, start, start))
            batch = buffer.sample()
            found.append(batch.clone())
            if kind != "random":
                batch["td_error"] = batch["next", "reward"].abs().flatten() + 0.1
                buffer.update_tensordict_priority(batch)
        return found

    first = made("one")
    go_on(first)
    if how == "dumps":
        first.dumps(tmp_path / "saved")
    else:
        torch.save(first.state_dict(), tmp_path / "saved.pt")
    saved = tmp_path / ("saved" if how == "dumps" else "one.checkpoints")
    before = digests(saved)
    wanted = go_on(first)
    assert digests(saved) == before  # later training does not touch it
    first.storage.close()
    second = made("two")
    if how == "dumps":
        second.loads(tmp_path / "saved")
    else:
        second.load_state_dict(torch.load(tmp_path / "saved.pt", weights_only=False))
    for one, other in zip(wanted, go_on(second), strict=True):
        same(one, other)
    second.storage.close()


def test_states_of_other_storages_are_taken(tmp_path):
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(SIZE), batch_size=4)
    theirs.extend(steps(25))
    theirs.dumps(tmp_path / "dumped")
    for load in (
        lambda buffer: buffer.load_state_dict(theirs.state_dict()),
        lambda buffer: buffer.loads(tmp_path / "dumped"),
    ):
        with storage(SIZE, min_bytes=30) as made:
            buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
            load(buffer)
            same(theirs[:], buffer[:])
            buffer.extend(steps(3))
            assert len(buffer) == 28


def test_a_state_whose_checkpoint_is_gone_says_so(tmp_path):
    with storage(SIZE, path=tmp_path / "store") as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(25))
        first = buffer.state_dict()
        for _ in range(4):
            buffer.state_dict()
        with pytest.raises(CheckpointNotFoundError, match="newest 4"):
            buffer.load_state_dict(first)
        assert len(buffer) == 25


@pytest.mark.parametrize("replaced", [5, 9])
def test_a_checkpoint_that_is_replaced_as_its_state_is_loaded(tmp_path, monkeypatch, replaced):
    """Records on disk, in memory and their number are of one of the two: of the one that has 9
    where it comes before the records are loaded."""
    load = RecordLog.load
    with storage(SIZE, path=tmp_path / "store") as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(5))
        state = buffer.state_dict()
        buffer.extend(steps(4, 5))
        later = made.write(tmp_path / "later", 1, None)
        wanted = buffer[:replaced].clone()

        def replace():
            path = Path(state["_storage"]["checkpoint"])
            shutil.rmtree(path)
            shutil.copytree(later, path)

        def amid(log, checkpoint):
            monkeypatch.undo()
            if replaced == 9:
                replace()
                return load(log, checkpoint)
            found = load(log, checkpoint)
            replace()
            return found

        monkeypatch.setattr(RecordLog, "load", amid)
        buffer.load_state_dict(state)
        same(wanted, buffer[:])


# -- other processes


def read_along(storage, asked, answers):
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    while asked.get():
        answers.put((len(buffer), buffer[:]["pixels"].numpy(), buffer[:]["action"].numpy()))
    try:
        buffer.extend(steps(3))
    except ReadOnlyError as error:
        answers.put(str(error))


@pytest.fixture
def spawn():
    """Processes are spawned, as torchrl has it outside of these tests: its counts are of that."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield multiprocessing.get_context("spawn")
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.costly
def test_another_process_reads_along(tmp_path, spawn):
    context = spawn
    with storage(SIZE, min_bytes=30, path=tmp_path / "store") as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(30))
        asked, answers = context.Queue(), context.Queue()
        process = context.Process(target=read_along, args=(made, asked, answers))
        process.start()
        for start in (30, 60, 90):
            asked.put(True)
            length, pixels, action = answers.get(timeout=300)
            assert length == len(buffer)
            assert (pixels == buffer[:]["pixels"].numpy()).all()
            assert (action == buffer[:]["action"].numpy()).all()
            buffer.extend(steps(25, start, start))
        asked.put(False)
        assert "reads along" in answers.get(timeout=300)
        process.join(300)
        code = (
            "from tests.integrations import torchrl_extension; torchrl_extension.load();"
            "from diskreplay.integrations.torchrl import DiskStorage;"
            f"DiskStorage({SIZE}, path={os.fspath(tmp_path / 'store')!r})"
        )
        done = processes.run(code, imports=[HERE])
        assert "LockedError" in done.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*")
def test_a_forked_child_reads_along(tmp_path):
    with storage(SIZE, min_bytes=30, path=tmp_path / "store") as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(30))
        child = os.fork()
        if not child:
            code = 1
            try:
                if torch.equal(made.get(slice(None))["pixels"].read(), steps(30)["pixels"]):
                    buffer.extend(steps(3))
            except ReadOnlyError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        buffer.extend(steps(3))
        assert len(buffer) == 33


def test_a_pickle_reads_along():
    with storage(SIZE, min_bytes=30, next_of=True) as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=4)
        buffer.extend(steps(30))
        data = pickle.dumps(buffer)
        assert len(data) < 20_000  # no records
        other = pickle.loads(data)
        same(buffer[:], other[:])
        buffer.extend(steps(25))
        assert len(other) == SIZE
        same(buffer[:], other[:])
        with pytest.raises(ReadOnlyError):
            other.extend(steps(3))
        same(buffer[:], other[:])
        buffer.empty()
        assert len(other) == 0
        other.storage.close()


WRITER = """
import sys
from tests.integrations import torchrl_extension
torchrl_extension.load()
from tests.integrations.test_torchrl import SIZE, steps
from torchrl.data import TensorDictReplayBuffer
from diskreplay.integrations.torchrl import DiskStorage
storage = DiskStorage(SIZE, path=sys.argv[1], min_bytes=30, next_of=True, stack={"pixels": 2})
buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
start = 0
while True:
    count = 1 + start % 5
    data = steps(count, start, start)
    buffer.extend(data) if count > 1 else buffer.add(data[0])
    start += count
    print("at", start, flush=True)
"""


@pytest.mark.costly(1)
@pytest.mark.parametrize("patience", [2, 37, 110])
def test_a_kill_takes_nothing_that_was_acknowledged(patience, tmp_path):
    process = processes.Process(WRITER, tmp_path / "store", stdout=subprocess.PIPE, imports=[HERE])
    lines = (line for line in process.stdout if line.startswith("at ") and line.endswith("\n"))
    seen = [int(line[3:]) for line in itertools.islice(lines, patience)]
    process.send_signal(signal.SIGKILL)
    acknowledged = [*seen, *(int(line[3:]) for line in lines)][-1]
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    wanted, start = [], 0
    while start < acknowledged + 6:
        count = 1 + start % 5
        wanted.append(steps(count, start, start))
        start += count
    wanted = torch.cat(wanted)
    options = {"min_bytes": 30, "next_of": True, "stack": {"pixels": 2}}
    with storage(SIZE, path=tmp_path / "store", **options) as made:
        buffer = TensorDictReplayBuffer(storage=made, writer=RoundRobinWriter(), batch_size=4)
        found = buffer[:].exclude("index")
        newest = int(found["action"].max()) + 1
        assert newest >= acknowledged
        assert len(buffer) == min(newest, SIZE)
        same(found, wanted[found["action"]])
        assert buffer.writer._cursor == newest % SIZE
        kept = set(range(max(newest - SIZE, 0), newest))
        assert kept == set(found["action"].tolist())
        buffer.extend(steps(5))
        same(buffer.sample()[:0], buffer.sample()[:0])


def numbered(first, count):
    number = torch.arange(first, first + count)
    pixels = (number[:, None] % 250).expand(count, 1200).to(torch.uint8).clone()
    return TensorDict({"x": number.float(), "pixels": pixels}, [count])


def test_a_reader_sees_that_a_checkpoint_was_loaded(tmp_path):
    """Though the rows that have come since are more than it had seen."""
    with storage(10, path=tmp_path / "store") as made:
        buffer = TensorDictReplayBuffer(storage=made, batch_size=2)
        buffer.extend(numbered(0, 3))
        buffer.dumps(tmp_path / "saved")
        reader = pickle.loads(pickle.dumps(made))
        buffer.extend(numbered(100, 3))
        assert len(reader) == 6
        buffer.loads(tmp_path / "saved")
        buffer.extend(numbered(50, 5))
        found = reader.get(torch.arange(len(reader)))
        assert found["x"].tolist() == [0, 1, 2, 50, 51, 52, 53, 54]
        assert found["pixels"][:, 0].tolist() == [0, 1, 2, 50, 51, 52, 53, 54]
        with pytest.raises(ReadOnlyError):
            reader._empty()
        assert len(reader) == 8


def test_another_storage_of_the_same_path_takes_it_over(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    first = TensorDictReplayBuffer(storage=DiskStorage(10, path="store"), batch_size=2)
    monkeypatch.chdir(tmp_path / "other")
    first.extend(numbered(0, 5))
    assert first.storage.path == tmp_path / "store"
    with storage(10, path=tmp_path / "store") as second:
        assert len(second) == 5
        for call in (first.sample, lambda: first.extend(numbered(5, 1))):
            with pytest.raises(UsageError, match="another storage of this process"):
                call()


@pytest.mark.costly(3)
@pytest.mark.parametrize("min_bytes", [0, 1024])
@pytest.mark.parametrize("how", ["first", "later", "tree", "list"])
def test_of_records_that_go_to_one_slot_the_last_one_stays_whole(tmp_path, how, min_bytes):
    """Torch sets any of them, and of each leaf another one."""

    def records(start, stop):
        number = torch.arange(start, stop)[:, None].int()
        parts = {"pixels": number.expand(-1, 1600), "state": number.expand(-1, 200)}
        parts = {name: part.contiguous() for name, part in parts.items()}
        if how == "tree":
            return parts
        made = TensorDict(parts, batch_size=[stop - start])
        return list(made.unbind(0)) if how == "list" else made

    for attempt in range(8):
        path = tmp_path / str(attempt)
        with storage(200, path=path, min_bytes=min_bytes) as disk:
            buffer = ReplayBuffer(storage=disk)
            if how != "first":
                buffer.extend(records(9000, 9001))
            count = 350 - (how != "first")
            buffer.extend(records(0, count))
            wanted = np.zeros(200, int)
            first = how != "first"
            for number in range(count):
                wanted[(first + number) % 200] = number
            for name in ("pixels", "state"):
                found = disk.get(slice(None))[name]
                assert (found[:].numpy() == wanted[:, None]).all(), name
        with storage(200, path=path, min_bytes=min_bytes) as disk:
            for name in ("pixels", "state"):
                assert (disk.get(slice(None))[name][:].numpy() == wanted[:, None]).all(), name


def test_a_refused_extend_by_more_records_than_there_is_room_for_leaves_the_cursor(tmp_path):
    with storage(10, path=tmp_path / "s") as disk:
        buffer = ReplayBuffer(storage=disk)
        buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
        with pytest.raises(DtypeError):
            buffer.extend(TensorDict({"x": torch.ones(25)}, [25]))
        buffer.extend(TensorDict({"x": torch.arange(3, 6)}, [3]))
        assert disk.get(slice(None))["x"].tolist() == list(range(6))
