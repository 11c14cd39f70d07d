"""Batches on their way to a device: what is copied is what was read, however late it is copied."""

import itertools
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import diskreplay  # noqa: E402
from diskreplay import InvalidInputError  # noqa: E402
from diskreplay.integrations.device_copies import DeviceCopies, Transfer  # noqa: E402
from tests.integrations.handing import make, pairs  # noqa: E402


class Late(Transfer):
    """Copies as late as a device may: when somebody waits for an event behind them, not before.

    Of CUDA's rules it knows those of the memory that is copied from. The consumer's own wait is in
    the order of the device's work and holds up nobody here.
    """

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.begun, self.copied, self.joined, self.memories = [], 0, 0, 0
        self.lock = threading.Lock()

    def memory(self, shape, dtype):
        self.memories += 1
        return super().memory(shape, dtype)

    def copy(self, tensor):
        copied = torch.full_like(tensor, 99)
        with self.lock:
            self.begun.append((tensor, copied))
        return copied

    def mark(self):
        return len(self.begun)

    def wait(self, event):
        with self.lock:
            for tensor, copied in self.begun[self.copied : event]:
                copied.copy_(tensor)
            self.copied = max(self.copied, event)

    def join(self, event, copies):
        assert len(copies) >= 8
        self.joined += 1

    def finish(self):
        self.wait(self.mark())


@pytest.fixture
def late(monkeypatch):
    late = Late()
    monkeypatch.setattr(
        "diskreplay.integrations.torch.handovers_to",
        lambda device, map: lambda: DeviceCopies(late, map),
    )
    return late


def frozen(value):
    """A copy of the arrays."""
    if isinstance(value, dict):
        return {key: frozen(inner) for key, inner in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, tuple) else np.array(value)


def assert_equal(arrays, tensors):
    for array, tensor in pairs(arrays, tensors):
        assert str(tensor.dtype) == f"torch.{array.dtype}"
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("stack_size", [1, 3])
def test_memory_is_not_written_to_before_it_is_copied(late, depth, stack_size):
    with make(stack_size=stack_size) as buffer, make(stack_size=stack_size) as twin:
        got, expected = [], []
        with buffer.prefetch(depth, 8, device="cuda") as ahead:
            for _ in range(25):
                got.append(next(ahead))
                expected.append(frozen(twin.sample(8).asdict()))
        assert late.joined == 25
        late.finish()
        for arrays, tensors in zip(expected, got, strict=True):
            assert_equal(arrays, tensors)
        arrays = len(pairs(expected[0], expected[0]))
        assert late.memories <= (depth + 2) * 3 * arrays < 25 * arrays, "memory is used again"


def test_the_window_goes_over_once(late):
    with make(steps=9) as buffer, buffer.prefetch(2, 8, device="cuda") as ahead:
        for _ in range(6):
            tensors = next(ahead)
            seen, following = (tensors[k]["camera"] for k in ("observation", "next_observation"))
            assert seen.untyped_storage().data_ptr() == following.untyped_storage().data_ptr()


def test_what_map_makes_goes_over(late):
    def halved(batch):
        frames = batch.observation["camera"]
        return {
            "a": frames[:, ::2].astype("float32") / 2,
            "b": (torch.from_numpy(batch.id), batch.id),
        }

    with make() as buffer, make() as twin:
        got, expected = [], []
        with buffer.prefetch(2, 8, device="cuda", map=halved) as ahead:
            late.join = lambda event, copies: None
            for _ in range(12):
                got.append(next(ahead))
                made = halved(twin.sample(8))
                expected.append(frozen({**made, "b": (made["b"][0].numpy(), made["b"][1])}))
        late.finish()
        for arrays, tensors in zip(expected, got, strict=True):
            assert_equal(arrays, tensors)


def test_windows_of_sequences(late):
    with make() as buffer, make() as twin:
        view, other = buffer.sequences(6, seed=1), twin.sequences(6, seed=1)
        got, expected = [], []
        with view.prefetch(2, 4, device="cuda") as ahead:
            for _ in range(10):
                got.append(next(ahead))
                expected.append(frozen(other.sample(4).asdict()))
        late.finish()
        for arrays, tensors in zip(expected, got, strict=True):
            assert_equal(arrays, tensors)
        size = got[0]["observation"]["camera"].untyped_storage().nbytes()
        assert size == 4 * (6 + 2 + 2) * 4 * 3, "each frame once"


def test_a_copy_that_fails_is_not_waited_for_by_halves(late):
    copy, left = late.copy, [30]

    def failing(tensor):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("CUDA out of memory")
        return copy(tensor)

    late.copy = failing
    with make() as buffer, make() as twin, buffer.prefetch(2, 8, device="cuda") as ahead:
        failed = 0
        got, expected = [], []
        for _ in range(12):
            arrays = frozen(twin.sample(8).asdict())
            try:
                got.append(next(ahead))
                expected.append(arrays)
            except RuntimeError:
                failed += 1
        late.finish()
        assert failed == 1
        for arrays, tensors in zip(expected, got, strict=True):
            assert_equal(arrays, tensors)


def test_a_device_that_fails_while_it_is_waited_for(tmp_path, late):
    wait, left = late.wait, [5]

    def failing(event):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("CUDA error: an illegal memory access")
        wait(event)

    late.wait = failing
    with make() as buffer, buffer.prefetch(2, 8, device="cuda") as ahead:
        with pytest.raises(RuntimeError, match="illegal memory"):
            list(itertools.islice(ahead, 20))
        next(ahead)
        buffer.add(buffer.observation_space.sample(), 0, 0.0, False, False, mark=0)
        buffer.save(tmp_path, 1)  # nothing is left inside the store


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_on_the_cpu_the_tensors_are_the_batch(device):
    with make() as buffer, make() as twin:
        with buffer.prefetch(2, 8, device=device) as ahead:
            places = set()
            for _ in range(10):
                tensors = next(ahead)
                assert_equal(twin.sample(8).asdict(), tensors)
                places.add(tensors["observation"]["camera"].data_ptr())
        assert len(places) <= 4, "memory is used again"


def test_on_another_device():
    with make() as buffer, make() as twin, buffer.prefetch(2, 8, device="meta") as ahead:
        for _ in range(5):
            for array, tensor in pairs(twin.sample(8).asdict(), next(ahead)):
                assert tensor.device.type == "meta"
                assert tuple(tensor.shape) == array.shape


def test_after_a_load(tmp_path, late):
    with make(tmp_path / "store") as buffer:
        with buffer.prefetch(2, 8) as ahead:
            next(ahead)
            buffer.save(tmp_path / "ckpt", 1)
            expected = [frozen(next(ahead).asdict()) for _ in range(5)]
    with make(tmp_path / "other", steps=0) as buffer:
        buffer.load(tmp_path / "ckpt")
        with buffer.prefetch(2, 8, device="cuda") as ahead:
            got = [next(ahead) for _ in range(5)]
        late.finish()
    for arrays, tensors in zip(expected, got, strict=True):
        assert_equal(arrays, tensors)


def test_what_is_refused():
    with make() as buffer:
        if not torch.cuda.is_available():
            with pytest.raises(InvalidInputError, match="'cuda' found, and PyTorch finds 0 CUDA"):
                buffer.prefetch(device="cuda")
        with pytest.raises(InvalidInputError, match="device: 'gpu' found"):
            buffer.prefetch(device="gpu")
        for made in ([1], {"a": 1.0}):
            with buffer.prefetch(device="cpu", map=lambda batch, made=made: made) as ahead:
                with pytest.raises(InvalidInputError, match="map: with a device"):
                    next(ahead)


if torch.cuda.is_available():

    @pytest.mark.parametrize("depth", [1, 4])
    def test_values_on_cuda(depth):
        with make(kind=diskreplay.PrioritizedReplayBuffer) as buffer:
            kept = []
            with buffer.prefetch(depth, 8, device="cuda") as ahead:
                for _ in range(50):
                    tensors = next(ahead)
                    torch.cuda._sleep(100_000)
                    kept.append(tensors)
            for tensors in kept:
                batch = buffer.gather(tensors["id"].cpu().numpy())
                for name in ("observation", "reward", "next_observation", "mark"):
                    for array, tensor in pairs(batch[name], tensors[name]):
                        np.testing.assert_array_equal(tensor.cpu().numpy(), array)
