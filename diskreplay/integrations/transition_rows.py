"""Transitions as rows of a store: which ones an opened store has, and those of a first stack."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.integrations.stacked_leaf import StackedLeaf

Complete = tuple[np.ndarray, np.ndarray, np.ndarray]
_SLACK = 16


def slack(buffer_size: int) -> int:
    """So many transitions that no slot shows any more may wait until their rows leave."""
    return buffer_size // _SLACK + 1


def rows_for(buffer_size: int, stack: int) -> int:
    """Rows of each env that a ring needs at most: each transition may end an episode, and have a
    final row; the oldest one has a stack, and the newest may be written before the oldest leaves.
    """
    return 2 * buffer_size + 2 * slack(buffer_size) + stack + 2


def complete_transitions(buffer: ReplayBuffer, longest: int) -> tuple[list[Complete], int]:
    """The transitions whose observations are all there, of stacks of at most `longest` frames.

    Returns
    -------
    found : list of (rows, steps, blind), one for each env
        Oldest first; `blind` where nobody knows what a terminated step led to.
    lost : int
        Transitions of which that is not known, and that did not terminate.
    """
    found, lost = [], 0
    for env, (first, count) in enumerate(buffer.bounds.tolist()):
        rows = np.arange(first, count)
        step, is_final, terminated = buffer.take(
            ["step", "is_final", "terminated"], rows * buffer.num_envs + env
        )
        has_next = np.zeros(len(rows), np.bool_)
        has_next[:-1] = step[1:] == step[:-1] + 1
        whole = ~is_final & (has_next | terminated)
        lost += int((~is_final & ~whole).sum())
        whole &= rows - np.minimum(step, longest - 1) >= first
        found.append((rows[whole], step[whole], ~has_next[whole]))
    return found, lost


def lead_in(
    fields: Mapping[str, tuple[tuple[int, ...], np.dtype]], leaves: Sequence[StackedLeaf],
    seen: Sequence[np.ndarray], ends: Sequence[np.ndarray] | None, action: Any, reward: Any,
    done: bool, truncated: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The columns, for `ReplayBuffer.extend`, of a step whose stack goes back further.

    Its older frames are rows that hold only an observation, then comes the step, and behind it the
    frame that the episode ended with, if it did. For each leaf `seen` has an array of leaf.shape,
    and `ends` one of leaf.frame_shape. `fields` are the store's.
    """
    older = max(leaf.stack for leaf in leaves) - 1
    rows = older + 1 + (ends is not None)
    columns = {name: np.zeros((rows, *shape), dtype) for name, (shape, dtype) in fields.items()}
    for at, (leaf, observation) in enumerate(zip(leaves, seen, strict=True)):
        column = columns[leaf.field]
        column[older + 1 - leaf.stack : older + 1] = leaf.split(observation[None])[0]
        if ends is not None:
            column[-1] = ends[at]
    columns["action"][older], columns["reward"][older] = action, reward
    columns["terminated"][older], columns["truncated"][older] = (
        done and not truncated, done and truncated,
    )  # fmt: skip
    columns["step"][:] = np.arange(rows)
    columns["is_final"][:] = np.arange(rows) != older
    return columns
