"""Tianshou's buffers on disk where a transition cannot be recorded: it is in no part of them."""

import numpy as np
import pytest

pytest.importorskip("tianshou")
from tianshou.data import Batch

from diskreplay.errors import DiskFullError
from diskreplay.integrations import tianshou as ours
from tests.effort import effort
from tests.integrations.tianshou_twins import KINDS, compare, make, player, shared
from tests.test_interrupt import interrupted


class Failing:
    """The same buffer while the disk is full."""

    def __init__(self, buffer):
        self.buffer = buffer
        if hasattr(buffer, "buffers"):
            self.buffers = buffer.buffers

    def add(self, batch, **more):
        def put(*_arguments):
            raise DiskFullError(28, "no space", "store")

        slots = self.buffer.disk
        slots.put = put
        try:
            with pytest.raises(DiskFullError):
                self.buffer.add(batch, **more)
        finally:
            del slots.put


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_transition_that_is_not_recorded_is_not_there(kind, shares):
    """What comes next goes where it would have gone; also in place of one that it is put over."""
    name, options = KINDS[kind]
    plays, rng = player(kind), np.random.default_rng(1)
    disk, plain = make(name, shared(kind) if shares else {}, **options), make(name, **options)
    for step in range(75):
        plays.step(*([Failing(disk)] if step > 3 and step % 3 == 0 else []), disk, plain)
        if step % 15 == 14:
            compare(disk, plain, rng)
    plays.step(Failing(disk))
    compare(disk, plain, rng)
    disk.close()


def test_what_is_in_memory_alone_stays_too():
    buffer = ours.DiskReplayBuffer(3)
    with pytest.warns(UserWarning, match="info/name"):
        buffer.add(row(0, info={"name": "it is 0"}))
    for at in range(1, 4):
        buffer.add(row(at, info={"name": f"it is {at}"}))
    before = buffer.info.name.tolist()
    Failing(buffer).add(row(4, info={"name": "it is 4"}))
    assert buffer.info.name.tolist() == before == ["it is 3", "it is 1", "it is 2"]
    buffer.close()


def row(stamp, **more):
    frame = np.full((40, 40), stamp % 250, np.uint8)
    return Batch(
        obs=frame, act=stamp, rew=float(stamp), terminated=False, truncated=False,
        obs_next=frame + np.uint8(1), **{"info": {}, **more},
    )  # fmt: skip


BUFFERS = {
    "one": lambda path: ours.DiskReplayBuffer(20, path=path),
    "priorities": lambda path: ours.DiskPrioritizedReplayBuffer(20, alpha=1, beta=1, path=path),
    "two": lambda path: ours.DiskVectorReplayBuffer(20, 2, path=path, next_of=True),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # amid a generator
@pytest.mark.parametrize("kind", BUFFERS)
def test_ctrl_c_at_any_place(tmp_path, kind):
    """A transition that counts is on the disk, whole and in its place."""
    buffer, number = BUFFERS[kind](tmp_path / "store"), 0
    envs = 2 if kind == "two" else 1

    def add():
        add.stamp += 1
        rows = [row(add.stamp) for _ in range(envs)]
        buffer.add(Batch.stack(rows) if envs > 1 else rows[0])

    add.stamp = 0
    for _ in range(5):
        add()
    while interrupted(add, number):
        check(buffer)
        add()
        check(buffer)
        number += effort(11, 3, 1)
    assert number > 200
    acts = buffer.act.tolist()
    buffer.close()
    buffer = BUFFERS[kind](tmp_path / "store")
    assert buffer.act.tolist() == acts
    buffer.close()


def check(buffer):
    for lane, (first, part) in enumerate(buffer._parts()):
        counted = first + (part._insertion_idx + np.arange(-part._size, 0)) % part.maxsize
        assert buffer._rows.order(lane).tolist() == counted.tolist()
        acts = buffer.act[counted]
        assert (np.diff(acts) > 0).all()
        assert (buffer.rew[counted] == acts).all()
        assert (buffer.obs[counted][:, 0, 0] == acts % 250).all()
        assert part.last_index[0] == counted[-1] - first
        if hasattr(buffer, "weight"):
            assert (buffer.weight[counted] > 0).all()
    if hasattr(buffer, "buffers"):
        assert buffer._lengths.tolist() == [len(part) for part in buffer.buffers]
