"""Archives of ReAgent, Dopamine and NumPy that were made to hurt whoever imports them."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harm import HUGE, INSTEAD, NO_NUMBERS, Case, hole, instead


class _Runs:
    """Unpickled, it would leave a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def _pickled(make: Callable[[Path], bytes], name: str) -> Case:
    def harm(place: Path, outside: Path) -> None:
        (place / name).write_bytes(gzip.compress(make(outside)))

    return harm


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npy_header(text: str, version: int = 1) -> bytes:
    data = text.encode().ljust(118) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(data))
    return b"\x93NUMPY" + bytes((version, 0)) + size + data


def _gz_bomb(name: str, header: str, mebibytes: int) -> Case:
    """A stream of a few megabytes that unpacks to many more; its checksum nobody gets to."""

    def harm(place: Path, _outside: Path) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        with open(place / name, "wb") as file:
            file.write(packer.compress(_npy_header(header)) + packer.flush(zlib.Z_FULL_FLUSH))
            packer.compress(bytes(1 << 20))
            packer.flush(zlib.Z_FULL_FLUSH)
            once = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
            for _ in range(mebibytes):
                file.write(once)

    return harm


def gz() -> Iterator[tuple[str, Case]]:
    column, count = "$store$_reward_ckpt.1.gz", "add_count_ckpt.1.gz"
    frames, tree = "$store$_observation_ckpt.1.gz", "sum_tree_ckpt.1.gz"
    for name in (column, count, frames, tree, "episode_end_indices_ckpt.1.gz"):
        short = name.partition("_ckpt")[0]
        yield f"a pickle as {short}", _pickled(lambda o: pickle.dumps(_Runs(f"{o}/ran")), name)
        yield (
            f"objects as {short}",
            _pickled(lambda o: _npy(np.array([_Runs(f"{o}/ran")], object)), name),
        )
        for how in INSTEAD:
            yield f"{how} as {short}", instead(name, how)
    spec = "{'descr': '|u1', 'fortran_order': False, 'shape': %s}"
    for shape in ("(10**12,)", "(1000000000000,)", "(-1,)", "(2, 1000000000000)", "(0,)", "()",
                  "(99999999999999999999,)", "(106, 64, 64, 0)", "(True,)", "(1e3,)"):  # fmt: skip
        yield f"shape {shape}", _pickled(lambda o, s=shape: _npy_header(spec % s), frames)
    for text in ("__import__('os').mkdir('/tmp/ran')", "(" * 90, "{" * 90, "{'descr': 'O'}",
                 "{'descr': ('u1', (10**9,)), 'fortran_order': False, 'shape': (1,)}",
                 "{'descr': '|V1000000000', 'fortran_order': False, 'shape': (1,)}"):  # fmt: skip
        yield f"the header {text[:30]}", _pickled(lambda o, t=text: _npy_header(t), frames)
    yield (
        "version 2 with a header of 4 GB",
        _pickled(lambda o: b"\x93NUMPY\2\0" + b"\xff" * 4 + b" " * 1000, frames),
    )
    yield "a bomb of 2 GB for frames", _gz_bomb(frames, spec % "(106, 64, 64)", 2048)
    yield "a bomb of 2 GB for a count", _gz_bomb(count, spec % "(2000000000,)", 2048)
    yield "a bomb of 2 GB for a tree", _gz_bomb(tree, "", 2048)
    yield "a hole of 8 GB behind", partial(hole, column, 8 << 30)
    yield "a memo of 2 GB", _pickled(lambda o: b"\x80\x03Kr" + b"\xff" * 4 + b".", tree)
    yield "a long of 2 GB", _pickled(lambda o: b"\x80\x03\x8b\xff\xff\xff\x7f.", tree)
    yield "a laugh", _pickled(lambda o: b"\x80\x03]" + b"2" * 100_000 + b"e" + b".", tree)
    yield "lists 100000 deep", _pickled(lambda o: b"(" * 100_000 + b"l" * 100_000 + b".", tree)
    yield (
        "a dtype that never ends",
        _pickled(lambda o: b"\x80\x03cnumpy\ndtype\nX\x0b\0\0\0S2000000000\x85R.", tree),
    )
    yield "an array as large as the world", _pickled(
        lambda o: b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
                  b"J\xff\xff\xff\x7f\x85C\1b\x87R.", tree
    )  # fmt: skip


def _zip(change: Callable[[dict[str, bytes], Path], None], **options: Any) -> Case:
    def harm(place: Path, outside: Path) -> None:
        path = place / "rows.npz"
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        change(members, outside)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return harm


def _member(name: str, make: Callable[[Path], bytes]) -> Case:
    return _zip(lambda members, outside: members.__setitem__(name, make(outside)))


def _description(change: Callable[[dict], None]) -> Case:
    def make(members: dict[str, bytes], _outside: Path) -> None:
        text = np.load(io.BytesIO(members["diskreplay.npy"]))
        document = json.loads(str(text))
        change(document)
        members["diskreplay.npy"] = _npy(np.array(json.dumps(document)))

    return _zip(make)


def npz() -> Iterator[tuple[str, Case]]:
    spec = "{'descr': '<i8', 'fortran_order': False, 'shape': %s}"
    for name in ("env.npy", "row.npy", "reward.npy", "diskreplay.npy"):
        yield (
            f"objects as {name}",
            _member(name, lambda o: _npy(np.array([_Runs(f"{o}/ran")], object))),
        )
        yield (
            f"{name} with 10**15 rows",
            _member(name, lambda o: _npy_header(spec % "(1000000000000000,)")),
        )
        yield f"{name} with -1 rows", _member(name, lambda o: _npy_header(spec % "(-1,)"))
        yield f"{name} without a shape", _member(name, lambda o: _npy_header(spec % "()"))
        yield (
            f"{name} with a header of 4 GB",
            _member(name, lambda o: b"\x93NUMPY\2\0" + b"\xff" * 4 + b" " * 1000),
        )
        yield f"{name} with brackets", _member(name, lambda o: _npy_header("(" * 100))
    yield "envs below zero", _member("env.npy", lambda o: _npy(np.full(96, -5)))
    yield "envs beyond", _member("env.npy", lambda o: _npy(np.full(96, 2**40)))
    yield "rows below zero", _member("row.npy", lambda o: _npy(np.arange(96) - 2**62))
    yield "rows in no order", _member("row.npy", lambda o: _npy(np.arange(96)[::-1].copy()))
    yield "rows far apart", _member("row.npy", lambda o: _npy(np.arange(96) * 2**50))
    yield (
        "a bomb for what it came from",
        _member(
            "diskreplay.npy",
            lambda o: (
                _npy_header("{'descr': '<U500000000', 'fortran_order': False, 'shape': ()}")
                + bytes(1 << 28)
            ),
        ),
    )
    for value in (*HUGE, *NO_NUMBERS):
        shown = repr(value)[:24]
        for key in ("capacity", "num_envs", "stack_size", "update_horizon", "batch_size", "gamma",
                    "alpha", "beta", "compressor", "extras", "observation_space"):  # fmt: skip
            yield (
                f"{key} {shown}",
                _description(lambda d, k=key, v=value: d["buffer"].__setitem__(k, v)),
            )
        yield f"members {shown}", _description(lambda d, v=value: d.__setitem__("members", v))
        yield (
            f"a member {shown}",
            _description(lambda d, v=value: d["members"].__setitem__("reward", v)),
        )
        yield (
            f"largest priority {shown}",
            _description(lambda d, v=value: d.__setitem__("largest_priority", v)),
        )
    yield "an option nobody knows", _description(lambda d: d["buffer"].__setitem__("path", "/x"))
    yield (
        "a name with ..",
        _description(
            lambda d: d["buffer"]["extras"].__setitem__("../../outside/made", [[], "int8"])
        ),
    )
    for how in INSTEAD:
        yield f"{how} as the archive", instead("rows.npz", how)
