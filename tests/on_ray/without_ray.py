"""Actors that are objects of this process, whose answers may be lost: no cluster is needed."""

import asyncio
import inspect
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from ray import exceptions

from diskreplay.ray import (
    calls,
    client,
    draw_request,
    leasing,
    noted_parts,
    shard_handle,
    shard_writer,
    sharded_checkpoints,
)
from diskreplay.ray.shard import Shard

BUFFER = {
    "observation_space": Box(0, 255, (4,), "uint8"), "action_space": Discrete(5),
    "extras": {"number": ((), "int64")}, "compressor": "raw",
}  # fmt: skip


class LocalCall:
    """What became of a call: its answer or its error; lost, if nobody is to hear of it."""

    def __init__(self, answer: Any = None, error: BaseException | None = None) -> None:
        self.answer, self.error = answer, error


class LocalActor:
    """Calls the methods of an object at once.

    Attributes
    ----------
    faults : list
        What is to become of the next calls: "before" they are made the answer is lost, or "after".
    is_away : bool
        Nothing is made, and nothing answered.
    """

    def __init__(self, made: Any) -> None:
        self.made, self.faults, self.asked = made, [], []
        self.is_away = False

    def call(self, method: str, *arguments: Any, again: bool = False) -> LocalCall:
        self.asked.append(method)
        fault = self.faults.pop(0) if self.faults else None
        if self.is_away or fault == "before":
            return LocalCall(error=exceptions.GetTimeoutError())
        try:
            answer = getattr(self.made, method)(*arguments)
            if inspect.isawaitable(answer):
                answer = asyncio.run(answer)
        except Exception as error:
            return LocalCall(error=error)
        return LocalCall(error=exceptions.GetTimeoutError()) if fault else LocalCall(answer)

    def kill(self) -> None:
        self.asked.append("kill")


def answer(call: LocalCall, timeout: float | None = None) -> Any:
    if call.error is not None:
        raise call.error
    return call.answer


def patient(actor: LocalActor, method: str, *arguments: Any, timeout: float) -> Any:
    return answer(actor.call(method, *arguments, again=True))


def wait(found: list, timeout: float) -> bool:
    return all(call.error is None for call in found)


def use_local_actors(monkeypatch: Any) -> None:
    """Have all modules that ask actors ask local ones."""
    modules = (
        client, draw_request, leasing, noted_parts, shard_handle, shard_writer, sharded_checkpoints,
    )  # fmt: skip
    for module in modules:
        for function in (answer, patient, wait):
            if hasattr(module, function.__name__):
                monkeypatch.setattr(module, function.__name__, function)
    monkeypatch.setattr(calls, "get", answer)


def local_shard(directory: Any, number: int = 0, shards: int = 1, envs: int = 2, **options: Any):
    """An actor of a shard."""
    identity = {"shard": number, "num_shards": shards, "num_envs": envs}
    options = BUFFER | {"num_envs": envs, "name": f"r-{number}", "capacity": None} | options
    return LocalActor(Shard(number, directory / f"shard-{number}", identity, options))


def frames(numbers: Any) -> np.ndarray:
    """A frame for each number."""
    return (np.asarray(numbers)[..., None] * np.array([1, 3, 5, 7])).astype(np.uint8)
