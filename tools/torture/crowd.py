"""One writer and everybody else at once: each row carries a checksum, and every one must match."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import content
import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify

STACK, HORIZON, CAPACITY, SEGMENT = 3, 2, 400, 32
READERS = 4
LATENTS = 64  # numbers of a row's latent: its id times so many, and the number of the write
VERSIONS = 10**9
_SPAWN = get_context("spawn")
_PATIENCE_S = 400.0


def run(
    *,
    seconds: float = 60.0,
    compressors: tuple[str, ...] = ("lz4", "raw"),
    with_loaders: bool = True,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run processes, then threads, then data loaders, for `seconds` each.

    Returns
    -------
    dict
        For each part what was done and compared, and ``failures``.
    """
    figures: dict[str, Any] = {"failures": []}
    parts: list[tuple[str, Callable[..., dict], str]] = []
    for compressor in compressors:
        parts += [("processes", processes, compressor), ("threads", threads, compressor)]
    if with_loaders:
        parts.append(("loaders", loaders, compressors[0]))
    for name, part, compressor in parts:
        label = f"{name} {compressor}"
        say(label)
        with tempfile.TemporaryDirectory(prefix="torture-", dir=directory) as base:
            try:
                figures[label] = part(Path(base) / "store", compressor, seconds)
            except Failed as error:
                figures["failures"].append(f"{label}: {error}")
    return figures


class Failed(AssertionError):
    """A row that is not as it was written, a thread that hangs, or something that is left."""


def make(path: Path, compressor: str) -> diskreplay.PrioritizedReplayBuffer:
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, content.FRAME, "uint8"), action_space=Discrete(6),
        capacity=CAPACITY, stack_size=STACK, update_horizon=HORIZON,
        extras={**content.EXTRAS, "latent": ((LATENTS,), "int64", "mutable")},
        compressor=compressor, segment_rows=SEGMENT, seed=1,
    )  # fmt: skip


class Adder:
    """Adds row after row of `content`."""

    def __init__(self, buffer: diskreplay.ReplayBuffer) -> None:
        self.buffer, self.row = buffer, 0

    def __call__(self, count: int = 1) -> None:
        for _ in range(count):
            made = dict(content.row(0, self.row))
            ended = bool(made["terminated"])
            del made["is_final"]
            after = content.frame(0, self.row + 1) if ended else None
            latent = latents([self.row], 0)[0]
            self.buffer.add(**made, next_observation=after, latent=latent)
            self.row += 2 if ended else 1


def latents(ids: Any, version: int) -> np.ndarray:
    """What a write gives these rows."""
    return np.repeat(np.asarray(ids)[:, None] * VERSIONS + version, LATENTS, axis=1)


def write_back(buffer: diskreplay.ReplayBuffer, ids: Any, version: int) -> int:
    """Give rows new latents, and see that they have them, or have left."""
    ignored = buffer.write("latent", ids, latents(ids, version))
    if not 0 <= ignored <= len(ids):
        raise Failed(f"{ignored} of {len(ids)} rows were ignored")
    return len(ids) - ignored


def check_latents(latent: Any, ids: Any, *, is_whole: bool) -> None:
    """Latents are those that somebody wrote for these rows, and, where nobody else writes while
    they are read, all of one write."""
    latent = np.asarray(latent)
    if (latent // VERSIONS != np.asarray(ids)[:, None]).any():
        raise Failed(f"rows {ids} have the latents of {(latent[:, 0] // VERSIONS).tolist()}")
    if is_whole and (latent != latent[:, :1]).any():
        raise Failed(f"a latent of rows {ids} is half written")


def check(batch: diskreplay.Batch, *, is_whole: bool = True) -> int:
    """Hold every frame of every stack against the row it was added with; return how many."""
    check_latents(batch.latent, batch.id, is_whole=is_whole)
    numbers = np.asarray(batch.number)
    if not np.array_equal(numbers, batch.id):
        raise Failed(f"rows {batch.id.tolist()} carry the numbers {numbers.tolist()}")
    looked_at = 0
    for place, row in enumerate(numbers.tolist()):
        newest = batch.observation[place, -1]
        if content.checksum(newest, row) != int(batch.checksum[place]):
            raise Failed(f"row {row} does not match its checksum")
        step = _step(row)
        ahead = int(batch.steps[place])
        shown = [(batch.observation, -1 - k, row - k, k <= step) for k in range(STACK)]
        if not batch.terminated[place]:
            shown += [
                (batch.next_observation, -1 - k, row + ahead - k, k <= step + ahead)
                for k in range(STACK)
            ]
        for frames, at, number, there in shown:
            expected = content.row(0, number)["observation"] if there else 0
            if not (frames[place, at] == expected).all():
                raise Failed(f"row {row}: the frame at {at} is not that of row {number}")
            looked_at += 1
    return looked_at


def check_windows(batch: diskreplay.Batch, *, is_whole: bool = True) -> int:
    """Hold every frame of every stack of every window against its row; return how many."""
    looked_at = 0
    transition = np.asarray(batch.transition)
    check_latents(batch.latent[transition], batch.id[transition], is_whole=is_whole)
    if not np.array_equal(batch.number[transition], batch.id[transition]):
        raise Failed(f"rows {batch.id.tolist()} carry the numbers {batch.number.tolist()}")
    for window, position in zip(*np.nonzero(batch.observed), strict=True):
        row, step = int(batch.id[window, position]), int(batch.step[window, position])
        for back in range(STACK):
            there = back <= step
            expected = content.row(0, row - back)["observation"] if there else 0
            if not (batch.observation[window, position, -1 - back] == expected).all():
                raise Failed(f"row {row} of a window: the frame {back} back is another one")
            looked_at += 1
    return looked_at


def own_ids(union: diskreplay.ReplayUnion, batch: Any) -> Any:
    """The batch with the ids that its rows have in their own stores."""
    there = batch.id >= 0  # a window has positions without a row
    batch.id[there] = union.locate(batch.id[there])[1]
    return batch


def _step(row: int) -> int:
    step = 0
    while row - step > 0 and not content.ends(0, row - step - 1):
        step += 1
    return step


# -- processes


def _read_along(path: str, seconds: float, pipe: Any) -> None:
    """What a reader in another process does."""
    try:
        looks = []
        with diskreplay.open(path, seed=os.getpid()) as reader:
            first = seen = reader.add_count
            batches = frames = windows = 0
            view = reader.sequences(6, burn_in=3, ends="shift", prioritized=True)
            pipe.send("ready")
            until = time.monotonic() + seconds
            # Until the writer says so; on a busy machine that may be before the first batch.
            while batches == 0 or time.monotonic() < until or not pipe.poll():
                frames += check(reader.sample(16), is_whole=False)
                drawn = view.sample(3)
                frames += check_windows(drawn, is_whole=False)
                view.update_priorities(drawn.anchor, 0.1 + np.arange(3.0))
                batches += 1
                windows += len(drawn)
                now = reader.add_count
                if now < seen:
                    raise Failed(f"{now} rows after {seen}")
                seen = now
                if batches % 2 == 0:
                    looks.append(resources())
                if batches % 20 == 1:
                    # Between two looks of a busy machine the ring may have gone all the way round.
                    with contextlib.suppress(diskreplay.NotSampleableError):
                        if wrong := content.wrong(reader, most=20):
                            raise Failed(str(wrong))
        pipe.send({
            "batches": batches, "windows": windows, "frames": frames, "followed": seen - first,
            "leaks": grown(*_first_and_last(looks)) if len(looks) >= 10 else [],
        })  # fmt: skip
    except (Failed, diskreplay.DiskReplayError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _first_and_last(looks: list[dict[str, list[str]]]) -> tuple[dict, dict]:
    """The most of each kind at the first looks, and the least at the last ones. How many files a
    reader has mapped of a ring goes up and down with what it found when it caught up, on a busy
    machine by half: what it never lets go of grows beyond all of that."""
    return (
        {kind: max((look[kind] for look in looks[:5]), key=len) for kind in looks[0]},
        {kind: min((look[kind] for look in looks[-5:]), key=len) for kind in looks[0]},
    )


def processes(path: Path, compressor: str, seconds: float) -> dict[str, Any]:
    totals: Counter = Counter()
    with make(path, compressor) as buffer:
        add = Adder(buffer)
        add(CAPACITY)
        pipes, processes = [], []
        try:
            for _ in range(READERS):
                ours, theirs = _SPAWN.Pipe()
                process = _SPAWN.Process(
                    target=_read_along, args=(str(path), seconds, theirs), daemon=True
                )
                process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
            for pipe in pipes:
                _received(pipe, _PATIENCE_S, "a reader did not start")
            until = time.monotonic() + seconds
            while add.row < 4 * CAPACITY or time.monotonic() < until:
                if any(pipe.poll() for pipe in pipes):
                    break  # one has failed: it was not told to stop
                add(20)
                totals["written back"] += write_back(buffer, buffer.sampleable_ids()[::7], add.row)
                if add.row % 9 == 0:  # what is written to next is copied first
                    buffer.save(path.parent / "checkpoints", add.row)
                time.sleep(0.002)  # readers are to be able to follow, on two cores
            for pipe in pipes:
                with contextlib.suppress(BrokenPipeError):  # what it died of is said below
                    pipe.send("enough")
            for pipe in pipes:
                said = _received(pipe, _PATIENCE_S, "a reader died, or hangs")
                if isinstance(said, str):
                    raise Failed(said)
                if leaks := said.pop("leaks"):
                    raise Failed(f"a reader leaks: {leaks}")
                totals.update(said)
        finally:
            for process in processes:
                process.kill()
                process.join()
            for pipe in pipes:
                pipe.close()
        check(buffer.sample(64))
    return {"readers": READERS, "rows": add.row, "wraps": add.row // CAPACITY, **totals}


def _received(pipe: Any, seconds: float, otherwise: str) -> Any:
    try:
        if pipe.poll(seconds):
            return pipe.recv()
    except EOFError:
        pass
    raise Failed(otherwise)


# -- threads


def threads(path: Path, compressor: str, seconds: float) -> dict[str, Any]:
    done: Counter = Counter()
    failures: list[BaseException] = []
    stop = threading.Event()
    with make(path.with_name("warm"), compressor) as warm:  # loaded and kept once: no leak
        Adder(warm)(CAPACITY)
        warm.sample(16)
        warm.sequences(4, prioritized=True).sample(2)
    older = path.with_name("warm")
    with diskreplay.ReplayUnion([older]) as union:
        union.sample(16)
    before = resources()
    with make(path, compressor) as buffer, diskreplay.ReplayUnion([buffer, older]) as union:
        add = Adder(buffer)
        add(2 * CAPACITY)

        def adding() -> None:
            add(100)
            done["rows"] += 100
            time.sleep(0.0005)

        def sampling() -> None:
            batch = buffer.sample(16)
            done["frames"] += check(batch)
            done["sampled"] += 1
            buffer.update_priorities(batch.id, 0.1 + np.abs(batch.reward))

        def gathering() -> None:
            ids = buffer.sampleable_ids()[-64:]
            done["frames"] += check(buffer.gather(ids))
            done["gathered"] += 1

        def prefetching() -> None:
            with buffer.prefetch(2, 16) as ahead:
                for _ in range(20):
                    done["frames"] += check(next(ahead))
                    done["prefetched"] += 1

        crossing = buffer.sequences(8, ends="cross", online=True, name="crossing")
        ranked = buffer.sequences(5, burn_in=4, ends="shift", prioritized=True, name="ranked")

        def drawing_windows() -> None:
            done["frames"] += check_windows(crossing.sample(3))
            drawn = ranked.sample(3)
            done["frames"] += check_windows(drawn)
            ranked.update_priorities(drawn.anchor, 0.1 + np.abs(drawn.reward[:, 4]))
            done["windows"] += 6
            done["versions"] += 1
            done["written back"] += write_back(buffer, drawn.id[drawn.transition], done["versions"])

        def prefetching_windows() -> None:
            view = buffer.sequences(4, prioritized=True, ends="pad", name="ahead")
            with view.prefetch(2, 3) as ahead:
                for _ in range(20):
                    done["frames"] += check_windows(next(ahead))
                    done["windows ahead"] += 3

        joined = union.sequences(5, burn_in=4, ends="shift", prioritized=True, name="joined")

        def drawing_from_both() -> None:
            batch = union.sample(16)
            union.update_priorities(batch.id, 0.1 + np.abs(batch.reward))
            done["frames"] += check(own_ids(union, batch))
            drawn = joined.sample(3)
            joined.update_priorities(drawn.anchor, 0.1 + np.abs(drawn.reward[:, 4]))
            done["frames"] += check_windows(own_ids(union, drawn))
            done["from both"] += 1

        def saving() -> None:
            buffer.save(path.parent / "checkpoints", done["saved"])
            buffer.flush()
            buffer.statistics()
            done["saved"] += 1
            stop.wait(0.05)

        def guarded(work: Callable[[], None]) -> threading.Thread:
            def loop() -> None:
                try:
                    while not stop.is_set():
                        work()
                except BaseException as error:  # of whatever kind: it is raised below
                    failures.append(error)
                    stop.set()

            return threading.Thread(target=loop, daemon=True, name=work.__name__)

        works = (
            adding, sampling, gathering, prefetching, saving, sampling, drawing_windows,
            prefetching_windows, drawing_from_both,
        )  # fmt: skip
        threads = [guarded(work) for work in works]
        for thread in threads:
            thread.start()
        stop.wait(seconds)
        until = time.monotonic() + _PATIENCE_S
        parts = (
            "rows", "sampled", "gathered", "prefetched", "saved", "windows", "windows ahead",
            "written back", "from both",
        )  # fmt: skip
        while not (stop.is_set() or all(done[part] for part in parts)):
            if time.monotonic() > until:
                raise Failed(f"a thread hangs: {dict(done)}")
            stop.wait(0.05)  # a busy machine had no turn for one of them yet
        stop.set()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                raise Failed(f"{thread.name} hangs")
        if failures:
            raise Failed(f"{type(failures[0]).__name__}: {failures[0]}") from failures[0]
        buffer.tree.check()
    for checkpoint in sorted((path.parent / "checkpoints").iterdir()):
        if not verify(checkpoint).clean:
            raise Failed(f"verify: {[str(finding) for finding in verify(checkpoint).findings]}")
        with diskreplay.open(checkpoint) as reader:
            done["frames"] += check(reader.sample(64))
            view = reader.sequences(5, burn_in=4, ends="shift", prioritized=True, name="ranked")
            done["frames"] += check_windows(view.sample(8))
    leaks = grown(before, resources())
    if leaks:
        raise Failed(f"left behind: {leaks}")
    return {"threads": len(works), "wraps": done["rows"] // CAPACITY, **done}


# -- data loaders


def loaders(
    path: Path, compressor: str, seconds: float, *, methods: tuple[str, ...] = ("fork", "spawn")
) -> dict[str, Any]:
    """Workers of torch under fork and spawn over a store that is being written."""
    from torch.utils.data import DataLoader

    from diskreplay.integrations.torch import SampleStream

    done: Counter = Counter()
    failures: list[BaseException] = []
    stop = threading.Event()
    with make(path, compressor) as buffer:
        add = Adder(buffer)
        add(2 * CAPACITY)

        def adding() -> None:
            try:
                while not stop.is_set():
                    add(4)
                    time.sleep(0.004)
            except BaseException as error:
                failures.append(error)

        before = None
        for method in methods:
            until = time.monotonic() + seconds / 2
            while done[method] == 0 or time.monotonic() < until:
                # Forked while another thread adds, whose locks the child must not need.
                adder = threading.Thread(target=adding, daemon=True)
                stop.clear()
                adder.start()
                loader = DataLoader(
                    SampleStream(path, 16, batches=40), batch_size=None, num_workers=2,
                    multiprocessing_context=method, timeout=_PATIENCE_S,
                )  # fmt: skip
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
                    for batch in loader:
                        numbers = batch["number"].numpy()
                        for place, row in enumerate(numbers.tolist()):
                            frame = batch["observation"][place, -1].numpy()
                            if content.checksum(frame, row) != int(batch["checksum"][place]):
                                raise Failed(f"{method}: row {row} does not match its checksum")
                        done["batches"] += 1
                stop.set()
                adder.join(_PATIENCE_S)
                if adder.is_alive():
                    raise Failed(f"{method}: the adding thread hangs")
                del loader
                done[method] += 1
                if done[method] == 1:
                    before = resources()  # torch keeps a few of its own from then on
        leaks = grown(before, resources())
        if failures:
            raise Failed(f"adding: {failures[0]!r}")
    if leaks:
        raise Failed(f"left behind: {leaks}")
    return {**done, "rows": add.row}


# -- leaks


def resources() -> dict[str, list[str]]:
    """Threads, open files and mapped files of this process."""
    open_files = []
    for name in os.listdir("/proc/self/fd"):
        try:
            open_files.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # that of the listing itself
    with open("/proc/self/maps") as file:
        maps = [line.split(None, 5)[5].strip() if len(line.split()) > 5 else "" for line in file]
    # Libraries come when something is used first: SciPy's, with Numba's first compilation.
    maps = [name for name in maps if ".so" not in name]
    return {
        "threads": [thread.name for thread in threading.enumerate()],
        "open files": [name for name in open_files if not name.startswith("pipe:")],
        "mapped files": [name for name in maps if name.startswith("/")],
        "mappings": maps,
    }


def grown(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """What there is more of, and by how much more than a ring that goes on may have."""
    found = []
    for kind, allowed in (
        ("threads", 0), ("open files", 1), ("mapped files", 12), ("mappings", 48)
    ):  # fmt: skip
        if len(after[kind]) > len(before[kind]) + allowed:
            more = Counter(after[kind]) - Counter(before[kind])
            found.append(
                f"{kind}: {len(before[kind])} before, {len(after[kind])} after: "
                f"{more.most_common(4)}"
            )
    return found
