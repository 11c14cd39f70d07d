"""A store to be damaged, what is in it, and that it is mended."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify

LIVE = "is_final/live"
MANIFEST = "is_final/saved/manifest.json"
NEARLY = 2190  # of the transitions in the store below: what little damage must leave
STEPS, CAPACITY, STACK, SEGMENT = 3000, 2400, 3, 512
EXTRAS = {"hidden": ((64,), "float64")}  # 512 bytes a row: raw segments of 512 rows, sealed


def make(path, **options):
    options = {
        "observation_space": Box(0, 255, (40, 32), "uint8"), "action_space": Discrete(5),
        "capacity": CAPACITY, "stack_size": STACK, "update_horizon": 2, "extras": EXTRAS,
        "segment_rows": SEGMENT, "seed": 3, **options,
    }  # fmt: skip
    return diskreplay.PrioritizedReplayBuffer(path, **options)


def columns(start, stop, ends):
    """Rows of one env in which episodes end after `ends` steps, by turns in each way: terminated
    with a final row, truncated with a final row, terminated without one, cut."""
    rows = np.arange(start, stop)
    lengths = [ends + 1, ends + 1, ends, ends]
    period = sum(lengths)
    starts = np.cumsum([0, *lengths])
    which = np.searchsorted(starts, rows % period, side="right") - 1
    step = rows % period - starts[which]
    final = (which < 2) & (step == ends)
    last = step == ends - 1
    noise = np.random.default_rng(start).integers(0, 256, (len(rows), 40, 32), np.uint8)
    noise[:, ::2] = 7
    noise[:, 0, :8] = rows[:, None].view(np.uint8)
    return {
        "observation": noise,
        "action": np.where(final, 0, rows % 5),
        "reward": np.where(final, 0, rows % 97).astype(np.float32),
        "terminated": last & np.isin(which, (0, 2)),
        "truncated": last & (which == 1),
        "step": step.astype(np.int32),
        "is_final": final,
        "hidden": np.where(final[:, None], 0, rows[:, None] + np.arange(64) / 64),
    }


NAMES = (
    "observation", "action", "reward", "next_observation", "discount", "terminated", "truncated",
    "steps", "hidden",
)  # fmt: skip


def transitions(buffer):
    """The ids of all transitions that can be sampled, and what a batch holds of each."""
    ids = np.sort(buffer.sampleable_ids())
    batch = buffer.gather(ids)
    return {"id": ids} | {name: getattr(batch, name).copy() for name in NAMES}


def files_of(root):
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name != "lock")


def flip(path, offset, bit=0):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def named(report):
    return {finding.path for finding in report.findings}


def check_mended(store, recorded, *, least=0):
    """Sound; all that can be sampled is as recorded; it goes on; a second repair does nothing."""
    assert verify(store).findings == ()
    with diskreplay.open(store, mode="a") as buffer:
        found = transitions(buffer)
        ids = found["id"]
        assert len(ids) >= least
        where = np.searchsorted(recorded["id"], ids)
        np.testing.assert_array_equal(recorded["id"][where], ids)
        for name in NAMES:
            value, expected = found[name], recorded[name][where]
            if name == "next_observation":  # of a terminated row: its final row may be lost, and
                lost = found["terminated"] & ~value.any(axis=(1, 2, 3))  # nothing depends on it
                value, expected = value[~lost], expected[~lost]
            np.testing.assert_array_equal(value, expected, err_msg=name)
        if len(ids):
            assert np.isin(buffer.sample(64).id, ids).all()
        count = int(buffer.bounds[0, 1])
        for i in range(20):
            buffer.add(np.full((40, 32), i, np.uint8), 1, 1.0, False, False, hidden=np.ones(64))
        batch = buffer.gather([count + 10])
        assert batch.observation[0, :, 0, 0].tolist() == [8, 9, 10]
    assert verify(store).findings == ()
    before = {p: p.stat().st_ino for p in files_of(store)}
    report = repair(store)
    assert report.clean
    assert report.aside is None
    assert {p: p.stat().st_ino for p in files_of(store)} == before
    return ids


def segments(store, name, *, env=0):
    return sorted((store / name).glob("c.*"), key=lambda path: int(path.name.split(".")[1]))


class Open(NamedTuple):
    """A field's segment that is not full: its file, its first row, and bytes of rows that count."""

    path: Path
    first: int
    row_bytes: int
    size: int


def open_segments(store):
    """Of each field."""
    attributes = json.loads((store / "zarr.json").read_text())["attributes"]["diskreplay"]
    found = {}
    for field in attributes["fields"]:
        row_bytes = np.dtype(field["dtype"]).itemsize * int(np.prod(field["shape"]))
        used = attributes["count"][0] % field["segment_rows"]
        path = segments(store, field["name"])[-1]
        first = attributes["count"][0] - used
        found[field["name"]] = Open(path, first, row_bytes, used * row_bytes)
    return found
