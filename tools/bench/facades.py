"""The older APIs beside the engine they sit on, and beside their original where it installs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import numpy as np
from contender import ALPHA, BATCH, BETA, GAMMA, stacks_last_axis
from stream import FRAME_SHAPE, NUM_ACTIONS, STACK, Piece, Stream
from timing import Timed, time_in_turn

FRAMES, VECTORS = "frames", "vectors"
VECTOR = 8
"""Numbers in an observation of the buffers that hold no frames."""


@dataclass(frozen=True)
class Facade:
    """One API: how its buffer is made, given a step and asked for a batch."""

    name: str
    data: str
    make: Callable[[int], Any]
    add: Callable[[Any, tuple], None]
    sample: Callable[[Any], Any]
    engine: str = ""
    """Whose figures its own are divided by; an engine has none."""
    rival: str = ""
    """The original, where it installs."""


def engine(prioritized: bool, shape: tuple[int, ...], dtype: str, stack: int) -> Callable:
    def make(frames: int) -> Any:
        from gymnasium.spaces import Box, Discrete

        import diskreplay

        low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        kind = diskreplay.PrioritizedReplayBuffer if prioritized else diskreplay.ReplayBuffer
        return kind(
            None, observation_space=Box(low, high, shape, dtype), capacity=frames,
            action_space=Discrete(NUM_ACTIONS), stack_size=stack, gamma=GAMMA, batch_size=BATCH,
            **({"alpha": ALPHA, "beta": BETA} if prioritized else {}),
        )  # fmt: skip

    return make


def add_to_engine(buffer: Any, step: tuple) -> None:
    frame, action, reward, done, following, *_ = step
    buffer.add(frame, action, reward, done, False, following)


def reagent(name: str, shape: tuple[int, ...], dtype: str, stack: int) -> Callable:
    def make(frames: int) -> Any:
        kind = _compat("reagent", name)
        return kind(shape, stack, frames, BATCH, gamma=GAMMA, observation_dtype=np.dtype(dtype))

    return make


def keras_gym(stack: int) -> Callable:
    def make(frames: int) -> Any:
        # Classes that are named as gym's are all that keras-gym asks of an environment.
        space = type("Discrete", (), {"n": NUM_ACTIONS, "shape": ()})()
        env = SimpleNamespace(action_space=space, num_frames=stack)
        return _compat("keras_gym", "ExperienceReplayBuffer")(env, frames, BATCH, 1, GAMMA, 0)

    return make


def add_to_cs294(buffer: Any, step: tuple) -> None:
    frame, action, reward, done, *_ = step
    buffer.store_effect(buffer.store_frame(frame[..., None]), action, reward, done)


def rainbow(name: str) -> Callable:
    return lambda frames: _compat("rainbow", name)(VECTOR, frames, BATCH)


CPPRB_FRAMES = {
    "obs": {"shape": (*FRAME_SHAPE, STACK), "dtype": np.uint8},
    "act": {"dtype": np.int32}, "rew": {}, "done": {},
}  # fmt: skip
CPPRB_VECTORS = {
    "obs": {"shape": VECTOR}, "act": {"dtype": np.int32}, "rew": {}, "next_obs": {"shape": VECTOR},
    "done": {},
}  # fmt: skip


def cpprb(package: str, name: str, fields: dict, **options: str) -> Callable:
    if "next_obs" not in fields:
        options |= {"next_of": "obs", "stack_compress": "obs"}

    def make(frames: int) -> Any:
        module = import_module(package)
        return getattr(module, name)(frames, fields, **options)

    return make


def add_stacks_to_cpprb(buffer: Any, step: tuple) -> None:
    _frame, action, reward, done, _following, stack, next_stack, *_ = step
    buffer.add(obs=stack, act=action, rew=reward, next_obs=next_stack, done=done)
    if done:
        buffer.on_episode_end()


def add_vectors_to_cpprb(buffer: Any, step: tuple) -> None:
    observation, action, reward, done, following, *_ = step
    buffer.add(obs=observation, act=action, rew=reward, next_obs=following, done=done)
    if done:
        buffer.on_episode_end()


def _compat(module: str, name: str) -> Any:
    return getattr(import_module(f"diskreplay.compat.{module}"), name)


def _facades() -> Iterator[Facade]:
    def by_size(buffer: Any) -> Any:
        return buffer.sample(BATCH)

    def add_transition(buffer: Any, step: tuple) -> None:
        buffer.add(*step[:4])

    def add_with_priority(buffer: Any, step: tuple) -> None:
        buffer.add(*step[:4], 1.0)

    for data, shape, dtype, stack, suffix in (
        (FRAMES, FRAME_SHAPE, "uint8", STACK, ""),
        (VECTORS, (VECTOR,), "float32", 1, ", vectors"),
    ):
        uniform, prioritized = (f"engine, {data}, {kind}" for kind in ("uniform", "prioritized"))
        kinds = (  # with the engine of each, and how names of its facades end
            ("ReplayBuffer", uniform, suffix),
            ("PrioritizedReplayBuffer", prioritized, f"{suffix}, prioritized"),
        )
        for name, weighted in ((uniform, False), (prioritized, True)):
            yield Facade(name, data, engine(weighted, shape, dtype, stack), add_to_engine, by_size)
        for kind, its_engine, end in kinds:
            yield Facade(
                f"reagent{end}", data, reagent(kind, shape, dtype, stack),
                add_transition if its_engine == uniform else add_with_priority,
                lambda buffer: buffer.sample_transition_batch(), its_engine,
            )  # fmt: skip
        yield Facade(
            f"keras_gym{suffix}", data, keras_gym(stack),
            lambda buffer, step: buffer.add(step[5], *step[1:4], step[7]),
            lambda buffer: buffer.sample(), uniform,
        )  # fmt: skip
        if data == FRAMES:
            yield Facade(
                "cs294", data,
                lambda frames: _compat("cs294", "ReplayBuffer")(frames, STACK), add_to_cs294,
                by_size, uniform,
            )  # fmt: skip
            fields, add, ways = CPPRB_FRAMES, add_stacks_to_cpprb, ({}, {"compressor": "raw"})
        else:
            for kind, its_engine, end in kinds:
                yield Facade(
                    f"rainbow{end.removeprefix(suffix)}", data, rainbow(kind),
                    lambda buffer, step: buffer.store(step[0], *step[1:3], step[4], step[3]),
                    lambda buffer: buffer.sample_batch(), its_engine,
                )  # fmt: skip
            fields, add, ways = CPPRB_VECTORS, add_vectors_to_cpprb, ({},)
        for kind, its_engine, end in kinds:
            original = f"cpprb{end}, the original"
            for options in ways:
                yield Facade(
                    ", ".join([f"cpprb{end}", *options.values()]), data,
                    cpprb("diskreplay.compat.cpprb", kind, fields, **options), add, by_size,
                    its_engine, original,
                )  # fmt: skip
            yield Facade(original, data, cpprb("cpprb", kind, fields), add, by_size)


def time_facades(stream: Stream, frames: int, calls: int, budget_s: float) -> dict[str, Any]:
    """Add `frames` steps to each, then time samples of all that hold the same data in turns."""
    figures: dict[str, Any] = {}
    for data in (FRAMES, VECTORS):
        facades = [facade for facade in _facades() if facade.data == data]
        buffers = {}
        for facade in facades:
            try:
                buffers[facade.name] = facade.make(frames)
            except ModuleNotFoundError as error:
                figures[facade.name] = {"failed": str(error)}
                continue
            steps = _steps(stream, frames, data)
            figures[facade.name] = {
                "add_us": _fill(facade, buffers[facade.name], steps),
                "engine": facade.engine,
                "rival": facade.rival,
            }
        timed = {
            facade.name: Timed(lambda f=facade, b=buffers[facade.name]: f.sample(b))
            for facade in facades
            if facade.name in buffers
        }
        timings = time_in_turn(timed, calls=calls, budget_s=budget_s * len(timed))
        for name, timing in timings.items():
            figures[name]["sample"] = timing.as_dict()
        timed.clear()
        while buffers:
            _name, buffer = buffers.popitem()
            if hasattr(buffer, "close"):
                buffer.close()
    return figures


def _fill(facade: Facade, buffer: Any, steps: Iterator[list[tuple]]) -> float:
    """Microseconds of one add in the mean; the first piece is not counted."""
    taken = rows = 0
    for number, piece in enumerate(steps):
        begin = perf_counter_ns()
        for step in piece:
            facade.add(buffer, step)
        if number:
            taken += perf_counter_ns() - begin
            rows += len(piece)
    return taken / rows / 1000


def _steps(stream: Stream, frames: int, data: str) -> Iterator[list[tuple]]:
    """Lists of (observation, action, reward, done, next, stack, next stack, episode)."""
    vectors = np.random.default_rng(0).normal(size=(1000, VECTOR)).astype(np.float32)
    episode = count = 0
    for piece in stream.cursor().pieces(frames):
        episode += piece.starts
        observed = vectors if data == VECTORS else piece.frames[STACK - 1 :]
        stacks = stacks_last_axis(piece) if data == FRAMES else observed
        yield [_step(piece, i, observed, stacks, episode, count) for i in range(len(piece))]
        count += len(piece)


def _step(
    piece: Piece, i: int, observed: np.ndarray, stacks: np.ndarray, episode: int, count: int
) -> tuple:
    at = i if len(observed) == len(piece) + 1 else (count + i) % (len(observed) - 1)
    return (
        observed[at], int(piece.action[i]), float(piece.reward[i]), bool(piece.terminated[i]),
        observed[at + 1], stacks[at], stacks[at + 1], episode,
    )  # fmt: skip


def run(stream: str, frames: int, calls: int, budget_s: float) -> dict[str, Any]:
    """All figures, from the path of a recorded stream."""
    return time_facades(Stream(Path(stream)), frames, calls, budget_s)
