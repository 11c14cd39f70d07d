"""What is done to stores and checkpoints to hurt whoever opens them.

A case is called with a copy of a specimen and with a directory outside of it, and does its harm.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import specimen

from diskreplay.store.codec import crc32c

Case = Callable[[Path, Path], None]


def one_value(name: str, *keys: Any) -> Callable[[Any], Case]:
    def with_value(value: Any) -> Case:
        def harm(place: Path, _outside: Path) -> None:
            path = place / name
            document = holder = json.loads(path.read_bytes())
            for key in keys[:-1]:
                holder = holder[key]
            holder[keys[-1]] = value
            path.write_text(json.dumps(document))

        return harm

    return with_value


def _text(name: str, text: str | bytes) -> Case:
    def harm(place: Path, _outside: Path) -> None:
        (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return harm


def _attribute(root: str) -> Callable[..., Callable[[Any], Case]]:
    return lambda *keys: one_value(f"{root}zarr.json", "attributes", "diskreplay", *keys)


HUGE = (2**31, 2**53, 2**62, 2**63 - 1, 2**64, 10**40)
NO_NUMBERS = (-1, 0, float("nan"), float("inf"), 1e300, None, True, "1", "", [], {}, [1])


def documents(root: str) -> Iterator[tuple[str, Case]]:
    attribute = _attribute(root)
    for value in (*HUGE, *NO_NUMBERS):
        shown = repr(value)[:24]
        yield f"num_envs {shown}", attribute("num_envs")(value)
        yield f"capacity {shown}", attribute("capacity")(value)
        yield f"count {shown}", attribute("count")([value])
        yield f"first {shown}", attribute("first")([value])
        yield f"transitions {shown}", attribute("transitions")([value])
        yield f"segment_rows {shown}", attribute("fields", 0, "segment_rows")(value)
        yield f"a shape of {shown}", attribute("fields", 0, "shape")([value, value])
        yield f"the shape {shown}", attribute("fields", 0, "shape")(value)
        yield f"stack_size {shown}", attribute("stack_size")(value)
        yield f"update_horizon {shown}", attribute("update_horizon")(value)
        yield f"stack_padding {shown}", attribute("stack_padding")(value)
        yield f"metadata {shown}", attribute("metadata")(value)
        yield f"metadata of {shown}", attribute("metadata")({"a": [value]})
        yield f"prefetch {shown}", attribute("prefetch")(value)
        yield f"prefetch of depth {shown}", attribute("prefetch")([[value, 4, 0.5]])
        yield f"prefetch of size {shown}", attribute("prefetch")([[2, value, 0.5]])
        yield f"prefetch with beta {shown}", attribute("prefetch")([[2, 4, value]])
        yield f"env_group {shown}", attribute("fields", 0, "env_group")(value)
        yield f"block_rows {shown}", attribute("fields", 0, "block_rows")(value)
        yield f"seals {shown}", _attribute(f"{root}observation/")("seals")(value)
        yield f"a Box of {shown}", attribute("observation_space", "shape")([value, value])
        yield f"Discrete n {shown}", attribute("action_space", "n")(value)
        yield f"format version {shown}", attribute("format_version")(value)
        yield f"next_step {shown}", attribute("next_step")([value])
        yield f"a next_step of {shown}", attribute("next_step")(value)
        for name in ("gamma", "alpha", "beta", "batch_size", "largest_priority"):
            yield f"{name} {shown}", attribute(name)(value)
        yield f"{shown} priorities", one_value(f"{root}priority/zarr.json", "shape")([value, 1])
        yield (
            f"priorities of {shown} envs",
            one_value(f"{root}priority/zarr.json", "shape")([specimen.ROWS, value]),
        )
        yield (
            f"priorities in chunks of {shown}",
            one_value(f"{root}priority/zarr.json", "chunk_grid", "configuration", "chunk_shape")(
                [value, 1]
            ),
        )
        yield (
            f"priorities with alpha {shown}",
            one_value(f"{root}priority/zarr.json", "attributes", "diskreplay", "alpha")(value),
        )
        yield (
            f"a seal of {shown}",
            _attribute(f"{root}observation/")("seals", "5/0")([value, value]),
        )
    for value in (-1, -(2**31), 2**31 - 1, 96, 150):
        yield f"a step of {value}", _number(f"{root}step/c.0.0", "<i4", value)
        yield f"all steps {value}", _number(f"{root}step/c.0.0", "<i4", value, every=True)
    for value in (-1.0, -0.0, 1e308, 5e-324, float("inf"), -float("inf")):
        yield f"a priority of {value}", _number(f"{root}priority/c.0.0", "<f8", value)
        yield f"all priorities {value}", _number(f"{root}priority/c.0.0", "<f8", value, every=True)
    for value in (float("nan"), float("inf"), 3e38):
        yield f"all rewards {value}", _number(f"{root}reward/c.0.0", "<f4", value, every=True)
    for name in ("terminated", "truncated", "is_final"):
        for value in (0, 1, 2, 255):
            yield f"all {name} {value}", _number(f"{root}{name}/c.0.0", "<u1", value, every=True)
    for name in ("../../outside", "..", "/etc", "tail", "lock", "state", "priority", "a/../../b",
                 "", ".", "\0", "c" * 300, "zarr.json", "observation/c.0.0.0.0"):  # fmt: skip
        yield f"a field called {name[:20]!r}", attribute("fields", 0, "name")(name)
    for dtype in ("object", "O", "V8", "S1000000000", "U9", "datetime64[s]", "f4,f4", "int7"):
        yield f"dtype {dtype}", attribute("fields", 0, "dtype")(dtype)
    for codec in ("pickle", "..", "blosc", None, 7):
        yield f"compressor {codec}", attribute("fields", 0, "compressor")(codec)
    yield "the same field twice", attribute("fields", 1, "name")("observation")
    yield "no fields", attribute("fields")([])
    yield "a million fields", _fields(200_000, root)
    yield "half a million envs", _envs(500_000, root)
    for depth in (100, 900, 100_000):
        yield f"lists {depth} deep", _text(f"{root}zarr.json", "[" * depth + "]" * depth)
        yield f"spaces {depth} deep", _deep_space(root, depth)
    yield (
        "a generator of another module",
        attribute("rng")({"bit_generator": {"bit_generator": "os.system"}, "returned": []}),
    )
    yield (
        "a generator that is a function",
        attribute("rng")({"bit_generator": {"bit_generator": "seed"}, "returned": []}),
    )
    yield "a generator without a state", attribute("rng")({})
    yield "a huge integer", _text(f"{root}zarr.json", b'{"attributes": ' + b"9" * 100_000 + b"}")
    yield "no UTF-8", _text(f"{root}zarr.json", b'{"a": "\xff\xfe"}')
    yield "an empty document", _text(f"{root}zarr.json", b"")
    yield "a document of a gigabyte", partial(hole, f"{root}zarr.json", 1 << 30)


def _number(name: str, form: str, value: float, *, every: bool = False) -> Case:
    """A number of a raw column or of the priorities, in row 100, which is retained, or in each."""

    def harm(place: Path, _outside: Path) -> None:
        path = place / name
        numbers = np.frombuffer(path.read_bytes(), form).copy()
        numbers[slice(None) if every else 100] = value
        path.write_bytes(numbers.tobytes())

    return harm


def relisted(root: str, case: Case) -> Case:
    """The same harm, and a manifest that has the length and the checksum of what is there then."""

    def harm(place: Path, outside: Path) -> None:
        case(place, outside)
        listing = place / root / specimen.MANIFEST
        document = json.loads(listing.read_bytes())
        for key, entry in document["files"].items():
            path = place / root / key
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= 1 << 20:
                data = path.read_bytes()
                entry[0] = len(data)
                if not key.startswith("observation/c."):  # a shard's is of its blocks' checksums
                    entry[1] = crc32c(data)
        listing.write_text(json.dumps(document))

    return harm


def hole(name: str, size: int, place: Path, _outside: Path) -> None:
    os.truncate(place / name, size)


def _fields(count: int, root: str) -> Case:
    def harm(place: Path, outside: Path) -> None:
        described = [
            {"name": f"f{i}", "shape": [], "dtype": "uint8", "compressor": "raw", "segment_rows": 8}
            for i in range(count)
        ]
        _attribute(root)("fields")(described)(place, outside)

    return harm


def _envs(count: int, root: str) -> Case:
    def harm(place: Path, _outside: Path) -> None:
        path = place / f"{root}zarr.json"
        document = json.loads(path.read_bytes())
        attributes = document["attributes"]["diskreplay"]
        zeros = [0] * count
        attributes |= {"num_envs": count, "capacity": 10**15, "count": zeros, "first": zeros,
                       "transitions": zeros}  # fmt: skip
        path.write_text(json.dumps(document))

    return harm


def _deep_space(root: str, depth: int) -> Case:
    def harm(place: Path, _outside: Path) -> None:
        path = place / f"{root}zarr.json"
        document = json.loads(path.read_bytes())
        inner = json.dumps(document["attributes"]["diskreplay"]["observation_space"])
        document["attributes"]["diskreplay"]["observation_space"] = "%"
        deep = '{"type": "Tuple", "spaces": [' * depth + inner + "]}" * depth
        path.write_text(json.dumps(document).replace('"%"', deep))

    return harm


# -- files that are none


def instead(name: str, how: str) -> Case:
    """Something else in the place of a file."""

    def harm(place: Path, outside: Path) -> None:
        path = place / name
        size = path.stat().st_size
        path.unlink()
        if how == "link":
            with open(outside / "secret", "r+b") as secret:
                secret.truncate(size)
            path.symlink_to(outside / "secret")
        elif how == "dangling":
            path.symlink_to(outside / "made")
        elif how == "loop":
            path.symlink_to(path)
        elif how == "fifo":
            os.mkfifo(path)
        elif how == "device":
            path.symlink_to("/dev/zero")
        elif how == "random":
            path.symlink_to("/dev/urandom")
        elif how == "socket":
            os.chdir(path.parent)  # a socket's name is short
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
            os.chdir("/")
        elif how == "directory":
            path.mkdir()
        elif how == "empty":
            path.touch()

    return harm


INSTEAD = ("link", "dangling", "loop", "fifo", "device", "random", "socket", "directory", "empty")


def directory_link(name: str) -> Case:
    """A directory of the store that is another one."""

    def harm(place: Path, outside: Path) -> None:
        path = place / name
        if path.is_dir():
            shutil.rmtree(path)
        path.symlink_to(outside)

    return harm


# -- packed blocks that lie


def _shard(change: Callable[[bytearray, np.ndarray], None], name: str) -> Case:
    """Change a shard's blocks or index, with all checksums as they should be then."""

    def harm(place: Path, _outside: Path) -> None:
        path = place / name
        data = bytearray(path.read_bytes())
        head = 16 * (specimen.SEGMENT // 8)
        entries = np.frombuffer(bytes(data[:head]), "<u8").reshape(-1, 2).copy()
        change(data, entries)
        for offset, size in entries.tolist():
            if offset + size <= len(data) and size >= 4:
                crc = crc32c(bytes(data[offset : offset + size - 4]))
                data[offset + size - 4 : offset + size] = struct.pack("<I", crc)
        data[:head] = entries.tobytes()
        data[head : head + 4] = struct.pack("<I", crc32c(entries.tobytes()))
        path.write_bytes(data)

    return harm


def _header(at: int, form: str, *values: int) -> Callable[[bytearray, np.ndarray], None]:
    def change(data: bytearray, entries: np.ndarray) -> None:
        for offset, _size in entries.tolist():
            struct.pack_into(form, data, offset + at, *values)

    return change


def _entry(offset: int | None, size: int | None) -> Callable[[bytearray, np.ndarray], None]:
    def change(_data: bytearray, entries: np.ndarray) -> None:
        for column, value in enumerate((offset, size)):
            if value is not None:
                entries[0, column] = value

    return change


def shards(name: str) -> Iterator[tuple[str, Case]]:
    for value in (0, 1, 15, 16, 2**31 - 1, 2**31, 2**32 - 1):
        yield f"a block of {value} bytes", _shard(_header(4, "<I", value), name)
        yield f"a blocksize of {value}", _shard(_header(8, "<I", value), name)
        yield f"a compressed size of {value}", _shard(_header(12, "<I", value), name)
        yield f"a block that starts at {value}", _shard(_header(16, "<I", value), name)
        yield f"a stream of {value} bytes", _shard(_header(20, "<I", value), name)
    for value in range(0, 256, 5):
        yield f"flags {value}", _shard(_header(2, "<B", value), name)
    for value in (0, 1, 5, 255):
        yield f"Blosc version {value}", _shard(_header(0, "<B", value), name)
        yield f"typesize {value}", _shard(_header(3, "<B", value), name)
    for value in (2**20, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 5):
        yield f"a block at {value}", _shard(_entry(value, None), name)
        yield f"a block of {value}", _shard(_entry(None, value), name)
        yield f"a block at {value}, that long", _shard(_entry(value, 2**64 - value), name)
    for value in (0, 1, 3, 4, 5, 19, 20):
        yield f"a block of only {value}", _shard(_entry(None, value), name)


def files() -> Iterator[tuple[tuple[str, str], Case]]:
    live = specimen.LIVE
    sealed = "c.5.0.0.0"
    partial_ = f"c.{specimen.ROWS // specimen.SEGMENT}.0.0.0"
    for kind, root in (
        ("store-lz4", ""),
        ("store-raw", ""),
        ("store-killed", ""),
        ("checkpoint", "replay_ckpt.1/"),
    ):
        names = ["zarr.json", "observation/zarr.json", f"observation/{sealed}", "reward/c.0.0",
                 "priority/zarr.json", "priority/c.0.0"]  # fmt: skip
        names += [] if kind == "store-killed" else [f"observation/{partial_}"]
        names += [f"{live}/state", f"{live}/lock"] if not root else [specimen.MANIFEST]
        names += [f"{live}/tail.0", f"{live}/open.0/8.0"] if kind == "store-killed" else []
        for name in names:
            for how in INSTEAD:
                yield (kind, f"{how} as {name}"), instead(root + name, how)
        for name in (
            "observation",
            "reward",
            "is_final",
            "priority",
            live,
            f"{live}/open.0",
        ):
            if not name.startswith(live) or not root:
                yield (kind, f"{name} is a link to a directory"), directory_link(root + name)
