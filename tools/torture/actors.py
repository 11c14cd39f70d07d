"""Actors in processes of their own, and their learner, killed at random instants."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crew
import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify

_FRAME = (12, 12)
_STUCK_S = 300.0
_AT_ONCE = 50_000  # rows that are compared


def run(
    *,
    rows: int = 1_000_000,
    kills: int = 0,
    actors: int = 16,
    seed: int = 0,
    directory: Path | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Let actors add so many rows in all, or until there were so many kills, and compare each row.

    A killed actor is followed by another one, which leaves out the number of the step that the
    killed one may have been amid: that is the only one that may be there or not.

    Returns
    -------
    dict
        ``acknowledged`` steps, ``rows_compared``, ``killed`` by kind, ``unsaid`` (steps that are
        there and whose `add` had not returned), and ``failures``.
    """
    base = Path(tempfile.mkdtemp(prefix="torture-", dir=directory or crew.MEMORY))
    chance, killed = random.Random(seed), Counter[str]()
    said_at = base / "said"
    np.full(actors, -1, np.int64).tofile(said_at)
    said = np.memmap(said_at, np.int64, "r+")
    spared: list[set[int]] = [set() for _ in range(actors)]  # steps that may be there or not
    context = multiprocessing.get_context("fork")
    try:
        _warm_up(base / "warm")
        learner = _learner(context, base, actors)
        players = [_actor(context, base, env, 0) for env in range(actors)]
        told, stuck = 0, time.monotonic() + _STUCK_S
        while said.sum() + actors < rows if not kills else sum(killed.values()) < kills:
            time.sleep(chance.uniform(0.0, 0.2) if kills else 0.2)
            now = sum(killed.values()) if kills else int(said.sum()) + actors
            if now > told:
                advance(now - told)
                told, stuck = now, time.monotonic() + _STUCK_S
            elif time.monotonic() > stuck:
                raise RuntimeError(f"nothing has happened for {_STUCK_S:.0f} s at {told}")
            if not kills:
                continue
            if chance.random() < 0.3:
                _kill(learner)
                killed["learner"] += 1
                learner = _learner(context, base, actors)
            else:
                env = chance.randrange(actors)
                _kill(players[env])
                killed["actor"] += 1
                spared[env].add(int(said[env]) + 1)
                players[env] = _actor(context, base, env, int(said[env]) + 2)
        for env, player in enumerate(players):
            _kill(player)
            spared[env].add(int(said[env]) + 1)
        _kill(learner)
        return {"killed": dict(killed), **_examine(base, said, spared)}
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        shutil.rmtree(base, ignore_errors=True)


def step_of(env: int, number: int) -> dict[str, Any]:
    """What a step holds follows from its number."""
    ends = number % 11 == 10
    frame = np.full(_FRAME, (number * 7 + env) % 256, np.uint8)
    frame[0, :8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
    return {
        "observation": frame, "action": number % 5, "reward": float(number % 1000),
        "terminated": ends and number % 2 == 0, "truncated": ends and number % 2 == 1,
        "next_observation": frame if ends else None, "number": number,
        "priority": None if number % 3 else 1.0 + number % 9,
    }  # fmt: skip


def _warm_up(path: Path) -> None:
    """Import and load what learners need; forked ones have it then."""
    with _make(path, 1) as buffer:
        (writer,) = buffer.env_writers(automatic=False)
        for number in range(40):
            writer.add(**step_of(0, number))
        writer.close()
        buffer.drain()
        buffer.update_priorities(buffer.sample(16).id, np.ones(16))


def _make(path: Path, actors: int) -> diskreplay.PrioritizedReplayBuffer:
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, _FRAME, "uint8"), action_space=Discrete(5),
        capacity=None, num_envs=actors, stack_size=2, update_horizon=3,
        extras={"number": ((), "int64")}, compressor={"observation": "lz4"},
    )  # fmt: skip


def _learner(context: Any, base: Path, actors: int) -> Any:
    ready = context.Event()
    process = context.Process(target=_learn, args=(base, actors, ready))
    process.start()
    if not ready.wait(_STUCK_S):
        raise RuntimeError("the learner does not open its store")
    return process


def _learn(base: Path, actors: int, ready: Any) -> None:
    buffer = _make(base / "store", actors)
    for writer in buffer.env_writers(rows=64, timeout=_STUCK_S):
        beside = base / f"writer.{writer.env}.new"
        beside.write_bytes(pickle.dumps(writer))
        os.replace(beside, base / f"writer.{writer.env}")
    ready.set()
    while True:
        if len(buffer) < 100:
            time.sleep(0.01)
            continue
        batch = buffer.sample(16)
        numbers = batch.observation[:, -1, 0, :8].copy().view(np.int64)[:, 0]
        if not np.array_equal(numbers, batch.number):
            (base / "wrong").write_text(f"{batch.id} {numbers} {batch.number}")
        buffer.update_priorities(batch.id, np.full(16, 2.0))
        time.sleep(0.02)


def _actor(context: Any, base: Path, env: int, start: int) -> Any:
    process = context.Process(target=_act, args=(base, env, start))
    process.start()
    return process


def _act(base: Path, env: int, start: int) -> None:
    said = np.memmap(base / "said", np.int64, "r+")
    writer = pickle.loads((base / f"writer.{env}").read_bytes())
    number = start
    while True:
        writer.add(**step_of(env, number))
        said[env] = number
        number += 1


def _kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def _examine(base: Path, said: np.ndarray, spared: list[set[int]]) -> dict[str, Any]:
    """Every row of the store, held against what was acknowledged."""
    failures, compared, unsaid = [], 0, 0
    if (base / "wrong").exists():
        failures.append(f"a batch with wrong rows: {(base / 'wrong').read_text()}")
    with _make(base / "store", len(said)) as buffer:
        for env in range(len(said)):
            last = -1
            there: set[int] = set()
            for start in range(0, int(buffer.bounds[env, 1]), _AT_ONCE):
                stop = min(start + _AT_ONCE, int(buffer.bounds[env, 1]))
                ids = np.arange(start, stop) * len(said) + env
                of = {name: buffer.take(name, ids) for name in buffer.fields}
                steps = ~of["is_final"]
                numbers = of["number"][steps]
                compared += len(ids)
                frames = np.empty((len(numbers), *_FRAME), np.uint8)
                frames[:] = ((numbers * 7 + env) % 256).astype(np.uint8)[:, None, None]
                frames[:, 0, :8] = numbers[:, None].view(np.uint8)
                ends = numbers % 11 == 10
                wanted = {
                    "observation": frames, "action": numbers % 5,
                    "reward": (numbers % 1000).astype(np.float32),
                    "terminated": ends & (numbers % 2 == 0), "truncated": ends & (numbers % 2 == 1),
                }  # fmt: skip
                failures += [
                    f"env {env}: {name} differs" for name, values in wanted.items()
                    if not np.array_equal(of[name][steps], values)
                ]  # fmt: skip
                if len(numbers) and (numbers[0] <= last or (np.diff(numbers) <= 0).any()):
                    failures.append(f"env {env}: a row is there twice, or not in order")
                if len(numbers):
                    last = int(numbers[-1])
                there.update(numbers.tolist())
            wanted_numbers = set(range(int(said[env]) + 1)) - spared[env]
            if missing := wanted_numbers - there:
                failures.append(f"env {env}: {len(missing)} are missing, the first {min(missing)}")
            more = there - wanted_numbers
            unsaid += len(more)
            if more - spared[env]:
                failures.append(f"env {env}: {sorted(more - spared[env])[:5]} were never added")
    findings = verify(base / "store").findings
    failures += [f"verify: {finding}" for finding in findings]
    return {
        "acknowledged": int((said + 1).sum()), "rows_compared": compared, "unsaid": unsaid,
        "failures": failures,
    }  # fmt: skip
