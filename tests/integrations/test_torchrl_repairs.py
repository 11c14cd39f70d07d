"""torchrl's storage after a repair: a record is what was written last, or there is an error."""

import numpy as np
import pytest

pytest.importorskip("torchrl")
from tests.integrations import torchrl_extension

torchrl_extension.load()

import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.data import SliceSampler, TensorDictReplayBuffer  # noqa: E402

from diskreplay.check.repair import repair  # noqa: E402
from diskreplay.check.verify import verify  # noqa: E402
from diskreplay.errors import CorruptSegmentError  # noqa: E402
from diskreplay.integrations.torchrl import DiskStorage  # noqa: E402
from tests.check.damaged import flip, open_segments, segments  # noqa: E402

SIZE, SIDE = 200, 34


def record(number, stack):
    rng = [np.random.default_rng(max(n, 0)) for n in range(number - stack + 1, number + 2)]
    frames = torch.tensor(np.stack([r.integers(1, 255, (SIDE, SIDE), np.uint8) for r in rng]))
    return {
        "pixels": frames[:-1], ("next", "pixels"): frames[1:], "number": torch.tensor(number + 1),
        ("next", "done"): torch.tensor([number % 13 == 12]),
    }  # fmt: skip


def make(path, options):
    storage = DiskStorage(SIZE, path=path, **options)
    return TensorDictReplayBuffer(storage=storage, batch_size=8), storage


@pytest.mark.costly(12)
@pytest.mark.parametrize("options", [{}, {"next_of": True}, {"next_of": True, "stack": 3}])
@pytest.mark.parametrize("steps", [150, 330])
@pytest.mark.parametrize("name", ["pixels", "number", "slot"])
@pytest.mark.parametrize("where", [0.3, 0.99])
def test_what_is_set_aside_is_refused(tmp_path, options, steps, name, where):
    path, stack = tmp_path / "store", options.get("stack", 1)
    buffer, storage = make(path, options)
    rows = {}
    for n in range(steps):
        one = record(n, stack)
        buffer.add(TensorDict(one, batch_size=[]))
        rows[n % SIZE] = one
    storage.close()
    field = "observation/pixels" if name == "pixels" else name
    damage(path, field, where)
    buffer, storage = make(path, options)
    there = check(storage, rows)
    assert len(there) < len(rows)
    if name == "pixels":
        assert len(there) >= len(rows) - 8 - 2 * stack
    if there:
        drawn = 0
        for _ in range(60):
            try:
                numbers = buffer.sample()["number"]
            except CorruptSegmentError:
                continue
            drawn += 1
            assert {int(n) for n in numbers} <= {int(rows[s]["number"]) for s in there}
        assert drawn or name != "pixels"
    gone = sorted(rows.keys() - there)
    made = [record(1000 + n, stack) for n in range(len(gone))]
    for slot, one in zip(gone, made, strict=True):
        storage.set(slot, TensorDict(one, batch_size=[]))
        rows[slot] = one
    assert check(storage, rows) == set(rows)
    storage.close()
    assert verify(path).clean
    assert check(make(path, options)[1], rows) == set(rows)


def check(storage, rows):
    there = set()
    for slot, row in rows.items():
        if slot >= len(storage):
            continue
        try:
            found = storage.get(slot)
        except CorruptSegmentError:
            continue
        for key, value in row.items():
            assert torch.equal(found[key], value), (slot, key)
        there.add(slot)
    return there


@pytest.mark.parametrize("key", ["number", ("next", "done")])
def test_samplers_look_at_other_leaves(tmp_path, key):
    """Slices are read leaf by leaf, so that one that a sampler does not need refuses nothing."""
    path, options = tmp_path / "store", {"next_of": True}
    buffer, storage = make(path, options)
    for n in range(150):
        buffer.add(TensorDict(record(n, 1), batch_size=[]))
    storage.close()
    damage(path, "observation/pixels", 0.3)
    _, storage = make(path, options)
    sampler = SliceSampler(slice_len=4, end_key=("next", "done"), traj_key=None)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=8)
    gone = np.flatnonzero(storage._shelf.log.missing)
    assert 0 < len(gone) == storage._shelf.log.lost < 20
    drawn = 0
    for _ in range(40):
        try:
            numbers = buffer.sample()["number"].reshape(-1, 4)
        except CorruptSegmentError:
            continue
        drawn += 1
        assert (numbers[:, 1:] == numbers[:, :-1] + 1).all()
        assert not set(numbers.reshape(-1).tolist()) & set((gone + 1).tolist())
    assert drawn
    low, high = int(gone[0]), int(gone[0]) + 1
    assert storage[:][key].shape[0] == 150
    for index in (low, low - 150, [0, low], torch.tensor([low]), torch.arange(150) == low):
        with pytest.raises(CorruptSegmentError):
            storage.get(index)
    lazy = storage[low:high]["pixels"]
    with pytest.raises(CorruptSegmentError):
        lazy.tolist()
    storage.set(low, TensorDict(record(low, 1), batch_size=[]))
    assert lazy.tolist() == record(low, 1)["pixels"][None].tolist()
    assert storage._shelf.log.lost == len(gone) - 1


@pytest.mark.parametrize(("emptied", "missing"), [(15, [100]), (17, [])])
def test_what_was_emptied_before_is_not_missing(tmp_path, emptied, missing):
    """A repair sets the rows aside before and behind the one that says so."""
    path, options = tmp_path / "store", {"next_of": True, "stack": 3}
    buffer, storage = make(path, options)
    for n in range(emptied):
        buffer.add(TensorDict(record(n, 3), batch_size=[]))
    buffer.empty()
    storage.set(100, TensorDict(record(100, 3), batch_size=[]))
    storage.close()
    damage(path, "observation/pixels", 0.7)
    log = make(path, options)[1]._shelf.log
    assert np.flatnonzero(log.missing).tolist() == missing
    assert log.lost == len(missing)


def damage(path, field, where):
    segment = segments(path, field)[-1]
    flip(segment, int(min(segment.stat().st_size, open_segments(path)[field].size) * where))
    repair(path)
