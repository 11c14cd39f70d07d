"""Which segments a store has: worked out from the rows that count, in one place."""

import numpy as np

from diskreplay.store.format import Field


def segments_of(
    field: Field, first: np.ndarray, count: np.ndarray
) -> list[tuple[tuple[int, int], np.ndarray]]:
    """The segments that hold rows ``first[e]`` up to ``count[e]`` of any env `e`.

    Parameters
    ----------
    first, count : ndarray of int64, shape (num_envs,)

    Returns
    -------
    list of ((number, group), envs)
        The oldest first, each with the envs that have rows in it, in order. Costs some bytes of
        memory for each segment and env.
    """
    rows = field.segment_rows
    low, high = first // rows, -(-count // rows)
    sizes = np.where(count > first, high - low, 0)
    envs = np.repeat(np.arange(len(first)), sizes)
    if not len(envs):
        return []
    numbers = low[envs] + np.arange(len(envs)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.lexsort((envs, envs // field.env_group, numbers))
    numbers, envs = numbers[order], envs[order]
    groups = envs // field.env_group
    changes = (np.diff(numbers) != 0) | (np.diff(groups) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1]).tolist()
    return [
        ((int(numbers[start]), int(groups[start])), some)
        for start, some in zip(starts, np.split(envs, starts[1:]), strict=True)
    ]
