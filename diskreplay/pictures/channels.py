"""What happens along an episode besides its frames: actions, rewards, extras, vectors."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.inspection.identity import action_labels, component_names
from diskreplay.inspection.plain import plain

_WIDEST = 64  # components of a field that are shown
_BUCKETS = 400  # of a line over a whole episode
_AT_ONCE = 4096  # rows
_OWN = ("reward", "terminated", "truncated", "step", "is_final")


@dataclass(frozen=True)
class Channel:
    """A field that is small enough to be drawn as lines."""

    name: str
    group: str  # action, extra, observation or reward
    names: list[str]  # of the components; a scalar has one, called as the field
    size: int  # how many components there are; `names` are of the first ones


def channels_of(buffer: ReplayBuffer) -> list[Channel]:
    """The fields of a buffer that are numbers and no pictures: actions, extras, observations."""
    found = []
    for name, (shape, dtype) in buffer.fields.items():
        if name in _OWN or dtype.kind not in "biuf" or len(shape) > 1:
            continue
        group = name.split("/")[0]
        group = group if group in ("action", "observation") else "extra"
        names = component_names(buffer, name)[:_WIDEST] if shape else [name]
        if names:
            found.append(Channel(name, group, names, int(np.prod(shape))))
    order = ("action", "extra", "observation")
    return sorted(found, key=lambda channel: order.index(channel.group))


def values_of(buffer: ReplayBuffer, channel: Channel, ids: np.ndarray) -> np.ndarray:
    """The values in some rows, float64 of shape ``(len(ids), len(channel.names))``."""
    values = buffer.take(channel.name, ids)
    return values.reshape(len(ids), channel.size)[:, : len(channel.names)].astype(np.float64)


def action_texts(buffer: ReplayBuffer, ids: np.ndarray) -> list[str]:
    """What was done in each row, by name where it is known; of a vector, the first numbers."""
    names = [name for name in buffer.fields if name.split("/")[0] == "action"]
    columns = [buffer.take(name, ids) for name in names]
    if (label := action_labels(buffer)) is not None:
        return [label(action) for action in columns[0]]
    texts = []
    for row in range(len(ids)):
        numbers = [value for column in columns for value in column[row].ravel().tolist()]
        shown = ", ".join(f"{value:.3g}" for value in numbers[:6])
        texts.append(shown + (", …" if len(numbers) > 6 else ""))
    return texts


def steps_of(buffer: ReplayBuffer, ids: np.ndarray) -> dict[str, Any]:
    """All that is shown of some transitions, one by one.

    Parameters
    ----------
    ids : ndarray of int64, shape (n,)

    Returns
    -------
    dict
        ``ids``; ``actions``: texts; ``rewards``; ``values``: of each channel by name, a list for
        each row.

    Raises
    ------
    NotSampleableError
        A row is evicted.
    """
    return plain(
        {
            "ids": ids,
            "actions": action_texts(buffer, ids),
            "rewards": buffer.take("reward", ids).astype(np.float64),
            "values": {c.name: values_of(buffer, c, ids) for c in channels_of(buffer)},
        }
    )


def lines_of(
    buffer: ReplayBuffer, ids: np.ndarray, more: dict[str, np.ndarray] | None = None
) -> list[dict[str, Any]]:
    """Each channel over a whole episode, thinned out to some hundred points.

    Parameters
    ----------
    ids : ndarray of int64, shape (n,)
        Of its transitions.
    more : dict of str to ndarray of float64, shape (n,), optional
        Further channels of one component.

    Returns
    -------
    list of dict
        For each channel its `Channel`, and ``low`` and ``high``: for each component the smallest
        and largest value in each of at most 400 runs of rows; the reward is the first one, and
        then the sum of rewards.

    Notes
    -----
    Reads the channels in parts of 4,096 rows.
    """
    buckets = min(_BUCKETS, len(ids))
    starts = np.arange(buckets) * len(ids) // max(1, buckets)

    def read(channel: Channel) -> np.ndarray:
        parts = np.split(ids, range(_AT_ONCE, len(ids), _AT_ONCE))
        return np.concatenate([values_of(buffer, channel, part) for part in parts])

    reward = Channel("reward", "reward", ["reward"], 1)
    returns = Channel("return so far", "reward", ["return so far"], 1)
    rewards = read(reward)
    lines = [_line(reward, rewards, starts), _line(returns, np.cumsum(rewards, axis=0), starts)]
    for name, values in (more or {}).items():
        lines.append(_line(Channel(name, "extra", [name], 1), values[:, None], starts))
    lines += [_line(channel, read(channel), starts) for channel in channels_of(buffer)]
    return lines


def _line(channel: Channel, values: np.ndarray, starts: np.ndarray) -> dict[str, Any]:
    def over(combine: np.ufunc) -> np.ndarray:
        return combine.reduceat(values, starts, axis=0).T if len(starts) else values.T

    return plain({"channel": channel, "low": over(np.fmin), "high": over(np.fmax)})
