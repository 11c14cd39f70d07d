"""Tianshou's buffers on disk where a transition cannot be recorded: it is in no part of them."""

import numpy as np
import pytest

pytest.importorskip("tianshou")
import tianshou.data
from tianshou.data import Batch

from diskreplay.errors import ClosedError, DiskFullError
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
        number += effort(11, 5, 1)
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


def full(buffer, call, after=0):
    """What is called while the disk takes so many puts and is full then."""
    slots, puts = buffer.disk, []

    def put(*arguments):
        puts.append(arguments)
        if len(puts) > after:
            raise DiskFullError(28, "no space", "store")
        return type(slots).put(slots, *arguments)

    slots.put = put
    try:
        with pytest.raises(DiskFullError):
            call()
    finally:
        del slots.put


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_that_is_refused_is_one_in_memory_and_may_be_made_again(tmp_path, kind):
    name, options = KINDS[kind]
    how = {"path": tmp_path / "replay"}
    plays, disk, plain = player(kind), make(name, how, **options), make(name, **options)
    for _ in range(20):
        plays.step(disk, plain)
    full(disk, disk.reset)
    plain.reset()
    assert len(disk) == len(plain) == 0
    disk.reset()
    disk.close()
    disk = make(name, how, **options)
    assert len(disk) == 0
    for step in range(20):
        plays.step(disk, plain)
        if step == 8:
            full(disk, disk.reset)
            plain.reset()
    compare(disk, plain, np.random.default_rng(1), sizes=(0,))
    disk.close()
    with pytest.raises(ClosedError):
        disk.reset()
    assert len(disk) == len(plain)


@pytest.mark.parametrize("after", range(3))
def test_an_episode_that_ends_as_the_disk_is_full_is_there_once_at_most(tmp_path, after):
    def make_one():
        main = tianshou.data.ReplayBuffer(30)
        return ours.DiskCachedReplayBuffer(main, 2, 6, path=tmp_path / "replay")

    def add(at, *, done=False):
        batch = row(at)
        batch.terminated = done
        buffer.add(Batch([batch]), [0])

    buffer = make_one()
    for at in range(2):
        add(at)
    full(buffer, lambda: add(2, done=True), after)
    for at in range(10, 12):
        add(at)
    add(12, done=True)
    for _ in range(2):
        rewards = buffer.main_buffer.rew[: len(buffer.main_buffer)].tolist()
        assert rewards in ([0, 1, 2, 10, 11, 12], [0, 1, 10, 11, 12])
        assert (after == 2) <= (len(rewards) == 6)
        buffer.close()
        buffer = make_one()
    buffer.close()
