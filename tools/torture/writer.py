"""A writer that says what it is about to do and what it has done, until somebody kills it."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import content
import latents
import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.store import raw_column, spare_files

OPEN, ADD, EXTEND, FLUSH, SAVE, LOAD, REOPEN, WRITE, PART, EVICT, CLEAR = range(11)
NAMES = (
    "open", "add", "extend", "flush", "save", "load", "reopen", "write", "part", "evict", "clear",
)  # fmt: skip
ADDING = frozenset((ADD, EXTEND, PART))
BESIDE = frozenset((FLUSH, SAVE, WRITE))  # what another thread may do while rows are added
BEGUN, DONE = 0, 1
KEPT = 4  # numbered checkpoints, as diskreplay says


class Life(NamedTuple):
    """What stays the same while a store lives."""

    directory: Path
    num_envs: int
    compressor: str
    segment_rows: int | None
    capacity: int
    prioritized: bool
    seed: int
    drift: bool = False
    """Whether the first env stops after some rows, and the others are slower the lower they are."""
    threads: bool = False
    """Whether one thread adds while another flushes, saves, and writes what may be replaced."""

    @property
    def store(self) -> Path:
        return self.directory / "live" / "replay"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"


def open_buffer(life: Life) -> diskreplay.ReplayBuffer:
    """The store of a life, made or reopened."""
    if life.compressor == "raw" and life.seed % 2:
        # A few envs and short files are treated as many and long ones: rows are written into files,
        # which are used again.
        raw_column._MANY, raw_column._LARGE, spare_files._LARGE = 2, 4096, 4096
    kind = diskreplay.PrioritizedReplayBuffer if life.prioritized else diskreplay.ReplayBuffer
    return kind(
        life.store,
        observation_space=Box(0, 255, content.FRAME, "uint8"),
        action_space=Discrete(6),
        capacity=life.capacity,
        num_envs=life.num_envs,
        stack_size=2,
        update_horizon=2,
        extras=content.EXTRAS | latents.EXTRA,
        compressor=life.compressor,
        segment_rows=life.segment_rows,
        seed=0,
        shrink=True,
    )


def ranked(buffer: diskreplay.ReplayBuffer) -> diskreplay.Sequences:
    """Its view of sequences with priorities of its own."""
    return buffer.sequences(3, ends="pad", prioritized=True, name="ranked")


class Message(NamedTuple):
    """One of the writer: it is about to do something, or has done it.

    Attributes
    ----------
    phase, action, suffix : int
        Of a write the suffix is its number, of a part twice its first step, and one more where the
        episode before was cut, of an evict the row from which each env keeps its rows, if it has
        that one.
    generation : int
        Of the priorities in memory: of the last update of all.
    counts : tuple of int
        Rows of each env when it is done. While another thread adds there may be more: a flush or a
        write is told with those that it is sure of, and a save that is done with those it has.
    """

    phase: int
    action: int
    suffix: int
    generation: int
    counts: tuple[int, ...]

    @staticmethod
    def size(num_envs: int) -> int:
        return 8 * (4 + num_envs)

    def pack(self) -> bytes:
        return struct.pack(f"<{4 + len(self.counts)}q", *self[:4], *self.counts)

    @classmethod
    def unpack(cls, data: bytes) -> Message:
        (*numbers,) = struct.unpack(f"<{len(data) // 8}q", data)
        return cls(*numbers[:4], tuple(numbers[4:]))


class Writer:
    """Adds, flushes, saves, loads and reopens, in an order that `seed` decides.

    Parameters
    ----------
    counts : list of int
        Rows that each env has.
    suffixes : dict of int to list of int
        The counts of each checkpoint that is there.
    """

    def __init__(
        self,
        life: Life,
        pipe: int,
        counts: list[int],
        suffixes: dict[int, list[int]],
        seed: int,
    ) -> None:
        self.life, self.pipe, self.counts, self.suffixes = life, pipe, counts, suffixes
        self.rng = random.Random(seed)
        self.generation = 0
        self.told = list(counts)  # the witness knows of these
        self._exclusive = threading.Lock()  # held for what is done by one thread alone

    def tell(self, phase: int, action: int, counts: list[int], suffix: int = 0) -> None:
        os.write(self.pipe, Message(phase, action, suffix, self.generation, tuple(counts)).pack())

    def run(self) -> None:
        """For ever."""
        self.tell(BEGUN, OPEN, self.counts)
        self.buffer = open_buffer(self.life)
        ranked(self.buffer)
        self.steps = [0] * self.life.num_envs
        self.tell(DONE, OPEN, self.counts)
        for env, count in enumerate(self.counts):
            if content.is_final(env, count):  # the last writer was killed inside an `extend`
                self.extend(env, 1)
        others = [
            self.load,
            self.load,
            self.reopen,
            self.reopen,
            self.evict,
            self.evict,
            self.clear,
        ]
        beside = [self.flush, self.save, self.save, *[self.write] * 3]
        if self.life.threads:
            seed = self.rng.randrange(2**32)
            threading.Thread(target=self._go_beside, args=(beside, seed), daemon=True).start()
        else:
            others += beside
        while True:
            for _ in range(self.rng.randrange(200 if self.life.threads else 60)):
                chance = self.rng.random()
                if chance < 0.1:
                    self.extend()
                elif chance < 0.14:
                    self.part()
                else:
                    self.add()
            with self._exclusive:
                self.rng.choice(others)()

    def _go_beside(self, calls: list, seed: int) -> None:
        """What another thread does meanwhile, for ever."""
        chance = random.Random(seed)
        try:
            while True:
                with self._exclusive:
                    chance.choice(calls)()
                time.sleep(chance.choice((0, 0, 0.001, 0.02)))  # the other one wants a turn
        except BaseException:  # the process must not go on without it
            print("the writer failed:", traceback.format_exc(), flush=True)
            os._exit(3)

    def add(self) -> None:
        """One step of some envs; the final row of an episode comes with its last step."""
        envs = self.life.num_envs
        mask = [envs == 1 or self.rng.random() < self._pace(env) for env in range(envs)]
        made = [content.row(env, count) for env, count in enumerate(self.counts)]
        ended = [bool(one["terminated"]) for one in made]
        after = list(self.counts)
        for env in range(envs):
            after[env] += mask[env] * (2 if ended[env] else 1)
        self.tell(BEGUN, ADD, after)
        step = {
            name: np.stack([one[name] for one in made]) for name in made[0] if name != "is_final"
        }
        step["latent"] = np.zeros((envs, latents.SIZE), np.int64)
        step["next_observation"] = np.stack(
            [content.frame(env, count + 1) for env, count in enumerate(self.counts)]
        )
        if envs == 1:
            step = {name: values[0] for name, values in step.items()}
            if not ended[0]:
                del step["next_observation"]
            self.buffer.add(**step)
        else:
            self.buffer.add(**step, mask=np.array(mask), next_observation_mask=np.array(ended))
        for env in range(envs):
            if mask[env]:
                over = ended[env] or content.is_truncated(env, self.counts[env])
                self.steps[env] = 0 if over else self.steps[env] + 1
        self._added(ADD, after)

    def _added(self, action: int, counts: list[int], suffix: int = 0) -> None:
        self.counts = counts
        self.tell(DONE, action, counts, suffix)
        self.told = counts

    def _pace(self, env: int) -> float:
        """Of how many steps an env takes part in."""
        if not self.life.drift:
            return 0.8
        return 0.9 * env / (self.life.num_envs - 1) if self.counts[0] > 3 else 0.8

    def rank(self) -> None:
        """New priorities of everything, as they are about to be written."""
        self.generation = self.rng.randrange(1, 1 << 30)
        if self.life.prioritized:
            self._rank(self.buffer, self.buffer.sampleable_ids())
        view = ranked(self.buffer)
        self._rank(view, view.anchors())

    def _rank(self, what, ids: np.ndarray) -> None:
        if len(ids):
            what.update_priorities(ids, content.priorities(ids, self.generation))

    def part(self) -> None:
        """Rows of an episode whose beginning is not there, or what looks like its continuation."""
        env = self.rng.randrange(self.life.num_envs)
        own = self.steps[env]
        first = self.rng.choice((0, own, own + 1, own + 2, self.rng.randrange(1000)))
        is_cut = self.rng.random() < 0.3
        if is_cut:
            self.buffer.end_episode(np.arange(self.life.num_envs) == env)
            first = self.rng.choice((own, first))  # the step that would have been the next
        self.extend(env, part=(first, is_cut))

    def evict(self) -> None:
        """Old rows leave, of the envs that have them."""
        bounds = self.buffer.bounds
        number = self.rng.randrange(int(bounds[:, 0].min()), int(bounds[:, 1].max()) + 1)
        self.tell(BEGUN, EVICT, self.counts, number)
        self.buffer.evict(np.minimum(number, np.maximum(bounds[:, 1] - 1, 0)))
        self.tell(DONE, EVICT, self.counts, number)

    def extend(
        self, env: int | None = None, rows: int | None = None,
        part: tuple[int, bool] | None = None,
    ) -> None:  # fmt: skip
        """Many rows of one env in one call; with `part` some of an episode, from that step on, and
        whether the one before was cut."""
        if env is None:
            envs = range(self.life.num_envs)
            (env,) = self.rng.choices(envs, [self._pace(env) for env in envs])
        start = self.counts[env]
        stop = start + (rows or self.rng.randrange(1, 40))
        stop += content.is_final(env, stop)  # its episode's last step brings it
        after = list(self.counts)
        after[env] = stop
        action, suffix = EXTEND, 0
        if part is not None:
            self.steps[env], action, suffix = part[0], PART, 2 * part[0] + part[1]
        self.tell(BEGUN, action, after, suffix)
        made = content.rows(env, start, stop)
        made["step"] = np.zeros(stop - start, np.int32)
        made["latent"] = np.zeros((stop - start, latents.SIZE), np.int64)
        for at in range(stop - start):
            made["step"][at] = self.steps[env]
            over = content.ends(env, start + at)
            self.steps[env] = 0 if over else self.steps[env] + 1
        self.buffer.extend(made, env)
        self._added(action, after, suffix)

    def write(self) -> None:
        """New latents of a third of the rows."""
        number, counts = self.rng.randrange(1, 1 << 60), self.told
        self.tell(BEGUN, WRITE, counts, number)
        latents.write(self.buffer, number, counts)
        self.tell(DONE, WRITE, counts, number)

    def flush(self) -> None:
        counts = self.told
        self.rank()
        self.tell(BEGUN, FLUSH, counts)
        if len(self.buffer):
            self.buffer.sample(4)
        self.buffer.flush()
        self.tell(DONE, FLUSH, counts)

    def save(self) -> None:
        suffix, counts = max(self.suffixes, default=0) + 1, self.told
        self.rank()
        self.tell(BEGUN, SAVE, counts, suffix)
        saved = self.buffer.save(self.life.checkpoints, suffix)
        group = json.loads((saved / "zarr.json").read_bytes())
        self.suffixes[suffix] = counts = group["attributes"]["diskreplay"]["count"]
        # A kill may have come before an old one was removed: all beyond the newest are gone now.
        self.suffixes = {s: self.suffixes[s] for s in sorted(self.suffixes)[-KEPT:]}
        self.tell(DONE, SAVE, counts, suffix)

    def load(self) -> None:
        suffixes = [s for s, counts in self.suffixes.items() if counts != self.counts]
        if not suffixes:
            return  # before and after could not be told apart
        suffix = self.rng.choice(suffixes)
        self.tell(BEGUN, LOAD, self.suffixes[suffix], suffix)
        self.buffer.load(self.life.checkpoints, suffix)
        self.counts = self.told = list(self.suffixes[suffix])
        self.steps = [0] * self.life.num_envs
        self.tell(DONE, LOAD, self.counts, suffix)

    def clear(self) -> None:
        if not any(self.counts):
            return  # as of `load`
        none = [0] * self.life.num_envs
        self.tell(BEGUN, CLEAR, none)
        self.buffer.clear()
        self.counts = self.told = none
        self.steps = list(none)
        self.tell(DONE, CLEAR, none)

    def reopen(self) -> None:
        self.rank()
        self.tell(BEGUN, REOPEN, self.counts)
        self.buffer.close()
        self.buffer = open_buffer(self.life)
        ranked(self.buffer)
        self.steps = [0] * self.life.num_envs
        self.tell(DONE, REOPEN, self.counts)
