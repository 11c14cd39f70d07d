"""Whatever a reading call returns may be written to: what is read afterwards is what it was."""

import contextlib
import random
from collections.abc import Mapping

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay
from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from tests.integrations.dreamer_steps import steps as dreamer_steps

FRAMES, SIDE = 3, 6
STACKS = spaces.Box(0, 255, (FRAMES, SIDE, SIDE), np.uint8)
VECTOR = spaces.Box(-1, 1, (5,), np.float32)
TWO = spaces.Discrete(2)
SLOTS, ENVS = np.array([3, 0, 3, 7, 19]), np.array([1, 0, 1, 0, 1])
PLACES = (
    0, -1, slice(2, 5), [1, 4], np.arange(20) % 3 == 0, ..., (3, 1), (slice(1, 9, 3), 0),
    ([5, 6], [0, 1]), (SLOTS, ENVS), (SLOTS, ENVS, slice(None)), (4, 1, slice(0, 1)),
    (slice(None), 1, ..., 2),
)  # fmt: skip


# -- what each buffer can be asked: calls by name, each of which gives the same whenever it is made


def played(add, space, envs=2, steps=37):
    """Random observations, as stacks of frames where the space has some; some episodes end."""
    rng = np.random.default_rng(0)

    def fresh(space, before=None):
        if isinstance(space, spaces.Dict):
            return {key: fresh(part, before and before[key]) for key, part in space.items()}
        if space is STACKS:
            newest = rng.integers(1, 256, (envs, 1, SIDE, SIDE), np.uint8)
            zeros = np.zeros((envs, FRAMES, SIDE, SIDE), np.uint8)
            return np.concatenate([(zeros if before is None else before)[:, 1:], newest], axis=1)
        return rng.normal(size=(envs, *space.shape)).astype(np.float32)

    seen = fresh(space)
    for step in range(steps):
        led = fresh(space, seen)
        done = np.full(envs, step % 9 == 8)
        infos = [{"TimeLimit.truncated": step % 18 == 8} for _ in range(envs)]
        add(seen, led, rng.integers(0, 2, (envs, 1)), rng.normal(size=envs), done, infos)
        seen = fresh(space) if done[0] else led


def of_arrays(buffer, batch=16):
    """The two arrays in memory's stead, at all kinds of places, and samples."""
    calls = {"sample": lambda: seeded(buffer.sample, batch)}
    for name in ("observations", "next_observations"):
        arrays = getattr(buffer, name)
        for key, array in (arrays if isinstance(arrays, dict) else {"": arrays}).items():
            for place in PLACES:
                calls[f"{name}{key}[{place}]"] = lambda a=array, p=place: a[p]
            calls[f"array({name}{key})"] = lambda a=array: np.asarray(a)
            calls[f"list({name}{key})"] = lambda a=array: list(a)
    return calls


def seeded(call, *arguments):
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - what frameworks draw from
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        torch.manual_seed(3)
    return call(*arguments)


class Rewards:
    """All that hindsight asks of an environment."""

    def env_method(self, name, achieved, desired, infos, indices):
        return [np.abs(achieved - desired).sum(axis=1)]


def sb3(path, kind="DiskReplayBuffer", space=STACKS, **options):
    pytest.importorskip("stable_baselines3")
    from diskreplay.integrations import sb3 as ours

    stack = {"frame_stack": FRAMES} if space is STACKS else {}
    if space is PAIR:
        stack = {"frame_stack": {"picture": FRAMES}}
    if kind == "DiskHerReplayBuffer":
        options, stack = {"env": Rewards(), **options}, {"frame_stack": {"observation": FRAMES}}
    buffer = getattr(ours, kind)(
        40, space, TWO, device="cpu", n_envs=2, path=path, **stack, **options
    )
    played(buffer.add, space)
    return buffer, of_arrays(buffer)


PAIR = spaces.Dict({"picture": STACKS, "vector": VECTOR})
GOALS = spaces.Dict({"observation": STACKS, "achieved_goal": VECTOR, "desired_goal": VECTOR})


def sb3_prioritized(path):
    buffer, calls = sb3(path, "DiskPrioritizedReplayBuffer")
    del calls["sample"]  # draws with a generator of its own
    return buffer, calls


def cleanrl(path, space=STACKS):
    pytest.importorskip("torch")
    from diskreplay.integrations.cleanrl import ReplayBuffer

    stack = {"frame_stack": FRAMES} if space is STACKS else {}
    buffer = ReplayBuffer(40, space, TWO, "cpu", 2, path=path, **stack)
    played(buffer.add, space)
    return buffer, of_arrays(buffer)


def tianshou(path, kind="DiskVectorReplayBuffer", **options):
    pytest.importorskip("tianshou")
    from tianshou.data import Batch

    from diskreplay.integrations import tianshou as ours

    buffer = getattr(ours, kind)(40, 2, path=path, stack_num=3, **options)

    def add(seen, led, action, reward, done, infos):
        buffer.add(
            Batch(obs=seen[:, -1], act=action[:, 0], rew=reward, terminated=done,
                  truncated=~done & False, obs_next=led[:, -1], info=Batch()),
        )  # fmt: skip

    played(add, STACKS)
    at = np.array([5, 0, 21, 5])
    return buffer, {
        "[indices]": lambda: buffer[at], "[slice]": lambda: buffer[2:9],
        "[number]": lambda: buffer[4],
        "get": lambda: buffer.get(at, "obs"), "get number": lambda: buffer.get(3, "obs"),
        "get one": lambda: buffer.get(at, "obs", stack_num=1), "obs": lambda: buffer.obs[at],
        "sample": lambda: buffer[buffer.next(at)], "prev": lambda: buffer.prev(at),
        "indices": lambda: buffer.sample_indices(0),
    }  # fmt: skip


def torchrl(path, **options):
    pytest.importorskip("torchrl")
    from tests.integrations import torchrl_extension

    torchrl_extension.load()
    import torch
    from tensordict import TensorDict
    from torchrl.data import SliceSampler, TensorDictReplayBuffer

    from diskreplay.integrations.torchrl import DiskStorage

    storage = DiskStorage(40, path=path, **options)
    buffer = TensorDictReplayBuffer(
        storage=storage, batch_size=12, sampler=SliceSampler(slice_len=3, end_key=("next", "done"))
    )

    def add(seen, led, action, reward, done, infos):
        parts = [torch.from_numpy(part.copy()) for part in (seen, led, action, done)]
        buffer.add(TensorDict({
            "pixels": parts[0][0], "action": parts[2][0],
            "next": TensorDict({"pixels": parts[1][0], "done": parts[3]}, []),
        }, []))  # fmt: skip

    played(add, STACKS, envs=1)
    at = torch.tensor([5, 0, 30, 5])
    return buffer, {
        "sample": lambda: seeded(buffer.sample), "[tensor]": lambda: buffer[at],
        "storage[tensor]": lambda: storage[at], "storage[list]": lambda: storage[[3, 4, 5]],
        "get": lambda: storage.get(at), "leaf": lambda: storage[:]["pixels"][at],
        "next": lambda: storage[:]["next", "pixels"] * 1,
        "numpy": lambda: storage[:]["pixels"].numpy(), "of a slice": lambda: storage[2:8].clone(),
        "computed": lambda: storage[:]["pixels"] + 0, "mask": lambda: storage[torch.arange(37) < 5],
    }  # fmt: skip


def slots(path):
    fields = {"frame": ((40, 40), "uint8"), "number": ((), "int64"), "flags": ((3,), "bool")}
    buffer = diskreplay.Slots(path, fields, 20, lanes=2, weighted=True)
    rng = np.random.default_rng(0)
    for _ in range(3):
        at = rng.permutation(20)[:15]
        buffer.put(at, {
            "frame": rng.integers(0, 256, (15, 40, 40)), "number": rng.integers(0, 99, 15),
            "flags": rng.random((15, 3)) < 0.5,
        })  # fmt: skip
    at = np.array([[3, 4, 5], [19, 0, 3]])
    reads = {f"read {name}": lambda n=name: buffer.read(n, at) for name in fields}
    views = {
        f"view {name}{key}": lambda n=name, k=key: np.asanyarray(buffer.view(n)[k])
        for name in fields for key in (0, slice(2, 5), [1, 1, 4], ...)
    }  # fmt: skip
    return buffer, {
        **reads, **views, "read all": lambda: buffer.read(list(fields), at),
        "columns": lambda: buffer.columns, "used": lambda: buffer.used,
        "order": lambda: buffer.order(1), "sizes": lambda: buffer.sizes,
        "offsets": lambda: buffer.offsets, "bounds": lambda: buffer.bounds,
    }  # fmt: skip


def engine(path, reader=False):
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=spaces.Box(0, 255, (SIDE, SIDE), np.uint8), action_space=TWO,
        capacity=80, num_envs=2, stack_size=3, update_horizon=2, seed=0,
        extras={"flag": ((), "bool")},
    )  # fmt: skip

    def add(seen, led, action, reward, done, infos):
        last = led[:, -1] if done.any() else None
        buffer.add(seen[:, -1], action[:, 0], reward, done, ~done & False, last, flag=done)

    played(add, STACKS)
    found = buffer.sampleable_ids()
    ids = found[[3, 9, 9, -1]]
    if reader:
        buffer.close()
        buffer = diskreplay.open(path)
    calls = {f"take {name}": lambda n=name: buffer.take(n, ids) for name in buffer.fields}
    return buffer, {
        **calls, "gather": lambda: buffer.gather(ids), "ids": buffer.sampleable_ids,
        "take many": lambda: buffer.take(list(buffer.fields), ids[None]),
        "bounds": lambda: buffer.bounds,
        "window": lambda: buffer.gather(found[:3]).window("observation"),
        "tensors": lambda: _torch(buffer.gather(ids)),
    }  # fmt: skip


def _torch(batch):
    pytest.importorskip("torch")
    from diskreplay.integrations.torch import to_torch

    return to_torch(batch)


def data_set(path):
    pytest.importorskip("torch")
    from diskreplay.integrations.torch import TransitionDataset

    engine(path)[0].close()
    found = TransitionDataset(path)
    return found, {
        "one": lambda: found[3], "many": lambda: list(found.__getitems__([1, 2, 2])),
        "loader": lambda: next(iter(found.loader(8))),
    }  # fmt: skip


def lerobot(path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    from diskreplay.integrations.lerobot import ReplayBuffer

    keys = "observation.images.front", "observation.state"
    buffer = ReplayBuffer(30, "cpu", keys, path=path)

    def state(number):
        return {
            keys[0]: torch.full((1, 3, 16, 16), number / 255),
            keys[1]: torch.tensor([[float(number), -1.0]]),
        }

    for number in range(40):
        buffer.add(
            state(number), torch.ones(1, 2) * number, float(number), state(number + 1), False,
            False, {"grip": torch.tensor([0.5])},
        )  # fmt: skip
    return buffer, {"sample": lambda: seeded(buffer.sample, 8)}


def dreamer(path):
    from diskreplay.integrations.dreamerv3 import Replay

    class First:
        """Draws the oldest sequence again and again."""

        def __init__(self):
            self.keys = []

        def __call__(self):
            return self.keys[0]

        def __setitem__(self, key, ids):
            self.keys.append(key)

        def __delitem__(self, key):
            self.keys.remove(key)

        def __len__(self):
            return len(self.keys)

        def prioritize(self, ids, priorities):
            pass

    buffer = Replay(5, capacity=100, directory=path, selector=First())
    for worker, step in dreamer_steps(0, 60):
        buffer.add(step, worker)
    return buffer, {"sample": lambda: buffer.sample(4, "eval")}


def older(kind):
    """The older APIs."""

    def numbers(path):
        buffer = rainbow.ReplayBuffer(3, 32, batch_size=8, path=path)
        for i in range(40):
            buffer.store([i] * 3, i, i, [i + 1] * 3, i % 10 == 9)
        calls = {
            name: lambda n=name: getattr(buffer, n)
            for name in ("obs_buf", "next_obs_buf", "acts_buf", "rews_buf", "done_buf")
        }
        return buffer, {**calls, "sample": lambda: seeded(buffer.sample_batch)}

    def columns(path):
        columns = {"obs": {"shape": (3, SIDE, SIDE), "dtype": np.uint8}, "rew": {}, "done": {}}
        buffer = cpprb.ReplayBuffer(20, columns, next_of="obs", stack_compress="obs", path=path)

        def add(seen, led, action, reward, done, infos):
            buffer.add(obs=seen[0], rew=reward, done=done, next_obs=led[0])
            if done[0]:
                buffer.on_episode_end()

        played(add, STACKS, envs=1)
        return buffer, {
            "all": buffer.get_all_transitions,
            "sample": lambda: seeded(buffer._encode_sample, [3, 4, 0]),
        }

    def histories(path):
        buffer = cs294.ReplayBuffer(32, 3, path=path)
        for i in range(40):
            slot = buffer.store_frame(np.full((4, 4, 1), i, np.uint8))
            buffer.store_effect(slot, i, float(i), i % 10 == 9)
        names = "obs", "action", "reward", "done"
        calls = {name: lambda n=name: getattr(buffer, n) for name in names}
        return buffer, {
            **calls, "sample": lambda: seeded(buffer.sample, 8),
            "recent": buffer.encode_recent_observation,
        }  # fmt: skip

    def episodes(path):
        class Env:
            action_space, num_frames = spaces.Discrete(1000), 3

        buffer = keras_gym.ExperienceReplayBuffer(Env(), 31, 8, path=path)
        for i in range(40):
            newest = i - i % 10 + np.maximum(i % 10 - np.arange(3)[::-1], 0)
            stack = np.broadcast_to(newest, (4, 4, 3)).astype(np.uint8)
            buffer.add(stack, i, float(i), i % 10 == 9, i // 10)

        def sample():
            buffer.random_seed = 3  # it has a generator of its own
            return buffer.sample()

        return buffer, {"sample": sample}

    def tensors(path, prioritized=False):
        pytest.importorskip("torch")
        from diskreplay.compat import reagent

        made = reagent.PrioritizedReplayBuffer if prioritized else reagent.ReplayBuffer
        buffer = made((4,), 3, 32, 8, update_horizon=2, path=path)
        for i in range(40):
            buffer.add(np.full(4, i, np.uint8), i, float(i), i % 10 == 9, *[1.0] * prioritized)
        calls = {
            name: lambda n=name: buffer._store[n]
            for name in ("observation", "action", "reward", "terminal")
        }
        return buffer, {
            **calls, "valid": lambda: buffer.is_valid_transition(slice(None)),
            "all": buffer.sample_all_valid_transitions,
            "sample": lambda: seeded(buffer.sample_transition_batch, 8),
        }  # fmt: skip

    return locals()[kind]


CASES = {
    "sb3": sb3,
    "sb3 vectors": lambda path: sb3(path, space=VECTOR),
    "sb3 dict": lambda path: sb3(path, space=PAIR),
    "sb3 stacks at the end": lambda path: sb3(path, frame_axis=0, stack_padding="zero"),
    "sb3 n-step": lambda path: sb3(path, "DiskNStepReplayBuffer", n_steps=3),
    "sb3 her": lambda path: sb3(path, "DiskHerReplayBuffer", GOALS),
    "sb3 prioritized": sb3_prioritized,
    "cleanrl": cleanrl,
    "cleanrl vectors": lambda path: cleanrl(path, VECTOR),
    "tianshou": tianshou,
    "tianshou, small on disk": lambda path: tianshou(path, min_bytes=2),
    "tianshou, one frame": lambda path: tianshou(path, min_bytes=2, ignore_obs_next=True),
    "torchrl": lambda path: torchrl(path, min_bytes=64),
    "torchrl, all on disk": lambda path: torchrl(path, min_bytes=0),
    "torchrl, stacks": lambda path: torchrl(path, min_bytes=64, next_of=True, stack={"pixels": 3}),
    "slots": slots,
    "engine": engine,
    "reader": lambda path: engine(path, reader=True),
    "data set": data_set,
    "lerobot": lerobot,
    "dreamerv3": dreamer,
    "rainbow": older("numbers"),
    "cpprb": older("columns"),
    "cs294": older("histories"),
    "keras_gym": older("episodes"),
    "reagent": older("tensors"),
    "reagent prioritized": lambda path: older("tensors")(path, True),
}


# -- what came back


def arrays(found, name=""):
    """All arrays and tensors in what was returned, by where they are."""
    if isinstance(found, np.ndarray):
        yield name, found
    elif type(found).__module__ == "torch":
        yield name, found.detach().numpy()  # the same memory
    elif isinstance(found, diskreplay.Batch):
        yield from arrays({key: found[key] for key in found}, name)
    elif isinstance(found, Mapping) or hasattr(found, "items"):
        for key, value in found.items():
            yield from arrays(value, f"{name}[{key!r}]")
    elif isinstance(found, tuple | list):
        for at, value in enumerate(found):
            yield from arrays(value, f"{name}[{at}]")


def written_over(array):
    """Other values everywhere; or it says that it can only be read."""
    if array.dtype.kind == "O":
        return
    other = ~array if array.dtype.kind == "b" else array + array.dtype.type(1)
    with contextlib.suppress(ValueError):
        array[...] = other


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.costly(6)
def test_what_is_read_is_what_was_recorded_whatever_is_written_to_it(case, tmp_path):
    # One that has no `close` may be there until the garbage is collected, and pytest gives another
    # test the directory again: so each has a path of its own.
    buffer, calls = CASES[case](tmp_path / f"store of {case}")
    # Before anything is written to.
    wanted = {name: {at: a.copy() for at, a in arrays(call())} for name, call in calls.items()}
    assert all(wanted.values()), [name for name, found in wanted.items() if not found]
    rng = np.random.default_rng(0)
    for turn in range(3):
        for at in rng.permutation(len(calls)):
            name, call = list(calls.items())[at]
            found = dict(arrays(call()))
            assert found.keys() == wanted[name].keys()
            for where, array in found.items():
                np.testing.assert_array_equal(
                    array, wanted[name][where], err_msg=f"turn {turn}: {name}, {where}"
                )
            for array in found.values():
                written_over(array)
    if hasattr(buffer, "close"):
        buffer.close()
