"""What of a union no member saves: its generator, priorities of members that are read only, and
which new windows were handed out.

A member saves which of its windows were handed out, too. It counts those of batches under way among
them, which a resumed run draws again.
"""

import io
import json
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import FormatError
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.rng import parse as parse_rng
from diskreplay.sequence_state import parse_new
from diskreplay.signals import undisturbed
from diskreplay.store import numbers, priorities
from diskreplay.union_members import UnionMembers, UnionPrefetchers


def packed(members: UnionMembers, rng: ReplayableRng) -> bytes:
    """An ``.npz`` file of it all. Needs the members locked."""
    arrays, known = {}, []
    for number, member in enumerate(members):
        says: dict[str, Any] = {"path": str(member.buffer.path)}
        if member.alpha is not None and not member.keeps_itself:
            says["start"] = int(member.rows.store.first.min())
            says["largest"] = float(member.sampler.largest)
            arrays[f"leaves{number}"] = member.sampler.leaves()
        if member.new is not None:
            says |= member.new.as_json()
        known.append(says)
    state = json.dumps({"version": 1, "rng": rng.state(), "members": known})
    stream = io.BytesIO()
    np.savez(stream, state=np.frombuffer(state.encode(), np.uint8), **arrays)
    return stream.getvalue()


class UnionState:
    """What `packed` wrote, read and checked: a `FormatError` where it is damaged, or of other
    members."""

    def __init__(self, path: Path, members: UnionMembers) -> None:
        try:
            # np.load does not close what it opened itself where it is no archive.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            state = json.loads(arrays["state"].tobytes())
            says, self._rng = state["members"], parse_rng(state["rng"])
            if state["version"] != 1 or len(says) != len(members):
                raise ValueError(f"{len(says)} members; this union has {len(members)}")
            self._restored, self._new = [], []
            for number, (member, said) in enumerate(zip(members, says, strict=True)):
                leaves = arrays.get(f"leaves{number}")
                expected = member.alpha is not None and not member.keeps_itself
                if (leaves is not None) != expected:
                    raise ValueError(
                        f"member {number} was {said['path']}, and {member.buffer.path} is "
                        "prioritized or opened in another way"
                    )
                if leaves is not None:
                    _check(f"leaves{number}", leaves, member.buffer.num_envs)
                    start = numbers.integer("start", said["start"], 0, numbers.MOST_ROWS)
                    # Its power may be above the largest leaf, which new rows get then.
                    largest = numbers.real(
                        "largest", said["largest"], sys.float_info.min, sys.float_info.max
                    )
                    self._restored.append((member, start, leaves, largest))
                if "cursor" in said:
                    self._new.append((member, parse_new(said, member.buffer.num_envs)))
        except (
            FormatError, LookupError, ValueError, TypeError, OSError, EOFError,
            zipfile.BadZipFile, zlib.error,
            RuntimeError,  # flags of the archive that rotted: encrypted, packed in another way
        ) as error:  # fmt: skip
            raise FormatError(f"{path}: no saved state of this union ({error})") from error

    def restore(self, rng: ReplayableRng, prefetchers: UnionPrefetchers) -> None:
        """Go on there; batches under way are given up. Needs the members locked."""
        prefetchers.put_back(prefetchers.open)
        with undisturbed():  # or some members would go on there, and others would not
            for member, start, leaves, largest in self._restored:
                member.restore(start, leaves, largest)
            for member, new in self._new:
                member.restore_new(new)
            rng.adopt(*self._rng)


def _check(name: str, leaves: np.ndarray, num_envs: int) -> None:
    """Refuse what cannot be leaves of so many envs. All of it before anything is restored; and
    without it a sum may be infinite, with which kernels leave the tree's memory."""
    if leaves.ndim != 2 or leaves.shape[1] != num_envs or leaves.dtype != np.float64:
        raise ValueError(
            f"{name}: float64 of shape (rows, {num_envs}) expected, found {leaves.dtype} of shape "
            f"{leaves.shape}"
        )
    bad = leaves[priorities.unlikely(leaves)]
    if len(bad):
        raise ValueError(
            f"{name}: numbers from 0 to {priorities.LARGEST_LEAF:g}, or NaN for none, expected, "
            f"found {bad[0]}"
        )
