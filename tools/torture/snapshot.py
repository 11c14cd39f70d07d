"""All that a buffer shows of itself, to be compared before and after something that must change
nothing."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

import diskreplay


def of(buffer: diskreplay.ReplayBuffer) -> dict[str, Any]:
    """Rows, counts, priorities and the generator, each as a value that can be compared.

    Reading them changes nothing.
    """
    bounds = buffer.bounds
    ids = np.concatenate(
        [
            np.arange(first, count) * buffer.num_envs + env
            for env, (first, count) in enumerate(bounds.tolist())
        ]
    )
    shown: dict[str, Any] = {
        "bounds": bounds.tolist(),
        "len": len(buffer),
        "add_count": buffer.add_count,
        "sampleable": _digest(buffer.sampleable_ids()),
        "generator": repr(buffer.rng.bit_generator.state),
    }
    for field, values in zip(buffer.fields, buffer.take(list(buffer.fields), ids), strict=True):
        shown[f"field {field}"] = _digest(values)
    if isinstance(buffer, diskreplay.PrioritizedReplayBuffer):
        buffer.tree.check()
        shown["priorities"] = _digest(buffer.tree.leaves)
    return shown


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not the same, by name."""
    return [name for name in before if before[name] != after[name]]


def _digest(values: np.ndarray) -> str:
    values = np.ascontiguousarray(values)
    return f"{values.dtype}{values.shape} {blake2b(values, digest_size=12).hexdigest()}"
