"""Calls every kernel, as users do: buffers of each kind, readers, a check, a tree and
the older APIs. Run by tests/cli/test_warmup.py in processes of its own, in an empty directory.

Prints the kernels that this process compiled itself, one a line: their names, or a part's.
"""

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay import jit
from diskreplay.check.verify import verify
from diskreplay.compat import cpprb, rainbow
from diskreplay.compat.cs294 import ReplayBuffer as CS294Buffer
from diskreplay.compat.keras_gym import ExperienceReplayBuffer
from diskreplay.integrations.stack_kernels import window_ids
from diskreplay.integrations.stacked_leaf import StackedLeaf
from diskreplay.integrations.tip import Tip
from diskreplay.store import batch_kernels, codec, ordering_kernels, read_job
from diskreplay.store.field import Field
from diskreplay.store.stored_blocks import StoredBlocks

rng = np.random.default_rng(0)
FRAME = Box(0, 255, (12, 12), "uint8")
POSITION = Box(-1, 1, (3,), "float32")


def fill_and_use(kind, path, space, envs, **options):
    prioritized = kind is diskreplay.PrioritizedReplayBuffer
    space.seed(0)
    options = {
        "observation_space": space, "action_space": Discrete(3), "capacity": 120,
        "num_envs": envs, "update_horizon": 3, "segment_rows": 16,
    } | options  # fmt: skip
    with kind(path, **options) as buffer:
        for i in range(150):
            add(buffer, space, envs, terminated=i % 7 == 6, truncated=i % 11 == 10)
        batch = buffer.sample(32)
        buffer.gather(batch.id)  # before rows are added: the oldest leave then
        field = next(iter(buffer.fields))
        one = buffer.take(field, batch.id)
        pairs = np.stack([batch.id, batch.id], axis=1)
        buffer.take_both(field, pairs, np.stack([one, one])[:, :, None])
        if prioritized:
            buffer.update_priorities(batch.id, np.ones(32))
            buffer.extend(
                {name: buffer.take(name, batch.id[:1]) for name in buffer.fields}
                | {"step": np.zeros(1, np.int32)},
                priority=np.ones(1),
            )
            buffer.sample(32, beta=0.4)
        windows(buffer)
        buffer.save(f"{path}.saved", 1)
        add(buffer, space, envs, terminated=False, truncated=False)
        buffer.load(f"{path}.saved", 1)
        buffer.evict(buffer.bounds[:, 0] + 1)
        buffer.sample(32)
        if (column := buffer._rows.store.columns[field]).field.packed:
            watched = np.array([0, 16]), np.zeros(32, np.int64)
            assert StoredBlocks.of(column, np.array([[0, 120, 123]]), 1 << 20, *watched)
        with diskreplay.open(path) as reader:
            reader.sample(8)
    assert verify(Path(path)).findings == ()
    with kind(path, **options) as buffer:
        buffer.sample(32)


def windows(buffer):
    even = buffer.sequences(3, ends="cross", online=True, returns_to_go=0.9, name="even")
    even.sample(8, threads=2)
    with buffer.sequences(3, prioritized=True, name="ranked").prefetch(1, 4) as batches:
        next(batches)
    if hasattr(buffer.observation_space, "spaces") and buffer.update_horizon == 1:
        goals = {"achieved": "position", "desired": "target"}
        buffer.hindsight(lambda reached, goal, info: np.zeros(len(goal)), **goals).sample(8)
    ranked = buffer.sequences(3, prioritized=True, name="ranked")
    ranked.update_priorities(ranked.anchors()[:4], np.ones(4))


def add(buffer, space, envs, *, terminated, truncated):
    seen = [space.sample() for _ in range(envs)]
    final = [space.sample() for _ in range(envs)]
    if envs == 1:
        buffer.add(
            seen[0], 1, 0.5, terminated, truncated,
            next_observation=final[0] if truncated else None,
        )  # fmt: skip
        return
    together, last = (
        {key: np.stack([one[key] for one in some]) for key in space}
        if isinstance(space, Dict)
        else np.stack(some)
        for some in (seen, final)
    )
    ends = np.full(envs, terminated), np.full(envs, truncated)
    buffer.add(
        together, np.ones(envs, np.int64), np.full(envs, 0.5), *ends,
        next_observation=last if truncated else None,
    )  # fmt: skip


def buffers():
    both = Dict({"frame": FRAME, "position": POSITION, "target": POSITION})
    for kind in (diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer):
        for envs in (1, 2):
            name = f"{kind.__name__}-{envs}"
            fill_and_use(
                kind, f"{name}-frames", FRAME, envs, stack_size=4, stack_padding="reset",
                compressor={"observation": "lz4"},
            )  # fmt: skip
            fill_and_use(kind, f"{name}-zeros", FRAME, envs, stack_size=4, compressor="raw")
            fill_and_use(kind, f"{name}-dict", both, envs, update_horizon=1)
    with diskreplay.ReplayBuffer(
        "mutable", observation_space=POSITION, action_space=Discrete(3), capacity=100,
        extras={"state": ((2,), "float32", "mutable")},
    ) as buffer:  # fmt: skip
        ids = buffer.add(POSITION.sample(), 1, 0.5, False, False, state=np.zeros(2))
        buffer.write("state", ids, np.ones((1, 2)))
    wide = Box(0, 255, (1024,), "uint8")  # of many envs, in segments of 1 MiB
    with diskreplay.ReplayBuffer(
        "wide", observation_space=wide, action_space=Discrete(3), capacity=6400, num_envs=64,
        segment_rows=16, compressor="raw",
    ) as buffer:  # fmt: skip
        add(buffer, wide, 64, terminated=False, truncated=False)
    ordering_kernels.full(0)  # called on other processors only
    # Called after a major fault only.
    batch_kernels.advise(np.zeros(99, np.int64), np.zeros((0, 5), np.int64))
    tree = diskreplay.SumTree(100)
    tree.set([1], [2.0])
    tree.sample(5, rng)


def rainbow_buffers():
    with rainbow.ReplayBuffer(3, 50, 8) as plain, rainbow.PrioritizedReplayBuffer(3, 50, 8) as ours:
        for i in range(70):
            row = rng.random(3), 1, 0.5, rng.random(3), i % 9 == 8
            plain.store(*row)
            ours.store(*row)
        plain.sample_batch()
        batch = ours.sample_batch(beta=0.5)
        ours.update_priorities(batch["indices"], np.ones(8))
    for kind in (rainbow.SumSegmentTree, rainbow.MinSegmentTree):
        tree = kind(8)
        tree[[1, 2]] = [3.0, 4.0]
    tree = rainbow.SumSegmentTree(8)
    tree[3] = 1.0
    tree.retrieve(0.5)


def cs294_buffer():
    with CS294Buffer(100, 4) as buffer:
        for i in range(130):
            at = buffer.store_frame(rng.integers(0, 255, (8, 8, 1), np.uint8))
            buffer.encode_recent_observation()
            buffer.store_effect(at, 1, 0.5, i % 9 == 8)
        buffer.sample(8)


def keras_gym_buffer():
    class Env:
        action_space, num_frames = Discrete(3), 4

    with ExperienceReplayBuffer(Env(), 100, 8, bootstrap_n=3, random_seed=1) as buffer:
        for i in range(130):
            stack = rng.integers(0, 255, (8, 8, 4), np.uint8)
            buffer.add(stack, 1, 0.5, i % 9 == 8, episode_id=i // 9)
        buffer.sample()


def cpprb_buffers():
    columns = {"obs": {"shape": (8, 32, 4), "dtype": np.uint8}, "rew": {}, "done": {}}
    for options in ({"next_of": "obs"}, {}):
        with cpprb.PrioritizedReplayBuffer(50, columns, stack_compress="obs", **options) as buffer:
            stack = np.zeros((8, 32, 4), np.uint8)
            for i in range(70):
                following = np.roll(stack, -1, axis=-1)
                following[..., -1] = rng.integers(0, 255, (8, 32))
                row = {"obs": stack, "rew": 0.5, "done": i % 9 == 8}
                if options:
                    row["next_obs"] = following
                buffer.add(**row)
                stack = following
                if i % 9 == 8:
                    buffer.on_episode_end()
            batch = buffer.sample(8)
            buffer.update_priorities(batch["indexes"], np.ones(8))


def reagent_buffers():
    from diskreplay.compat import reagent

    for kind in (reagent.ReplayBuffer, reagent.PrioritizedReplayBuffer):
        with kind((8, 8), 4, 60, 8, update_horizon=3) as buffer:
            for i in range(90):
                more = {} if kind is reagent.ReplayBuffer else {"priority": 1.0}
                frame = rng.integers(0, 255, (8, 8), np.uint8)
                buffer.add(frame, 1, 0.5, i % 9 == 8, **more)
            buffer.sample_transition_batch()
            if more:
                buffer.set_priority(np.arange(20, 24, dtype=np.int32), np.ones(4, np.float32))


def stacks():
    """As the replay buffers of SB3 and CleanRL look at them."""
    space = Box(0, 255, (4, 32, 32), "uint8")
    tip = Tip(StackedLeaf("", space, space.shape, 4, 0), 1)
    stack = np.zeros((1, *space.shape), np.uint8)
    assert tip.goes_on(stack, stack)
    slots, flags = np.zeros(1, np.int64), np.zeros((1, 1), np.bool_)
    ids = np.empty((1, 5), np.int64)
    window_ids(
        np.ones((1, 1), np.int64), np.zeros((1, 1), np.uint8), flags, flags[0], slots, slots, slots,
        -3, 1, 3, False, ids,
    )  # fmt: skip


def chunk_of_a_writer():
    """As it is sent to a shard, which needs no Ray."""
    field = Field("observation", (12, 12), np.dtype("uint8"), "lz4")
    rows, used = np.zeros((8, 12, 12), np.uint8), np.array([8])
    codec.decode(field, *codec.encode(field, np.array([rows.ctypes.data]), used), used, rows)


def main():
    buffers()
    chunk_of_a_writer()
    stacks()
    rainbow_buffers()
    cs294_buffer()
    keras_gym_buffer()
    cpprb_buffers()
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        reagent_buffers()
    # Threads that help with a sample call it too, but nobody waits until one has come to it.
    batch_kernels.help_read(np.zeros(read_job.JOB, np.int64))
    for each, declared in jit.kernels.items():
        assert len(each.signatures) == len(declared), f"{each}: {each.signatures} were called"
        if each._cache.kept is not None:
            print(each.__name__)
    for symbol, part in jit._parts.items():
        if part._compiled is None or part._compiled._cache.kept is not None:
            print(symbol)


if __name__ == "__main__":
    main()
