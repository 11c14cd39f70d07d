"""Reads of a graph's channels that sleep until something is there.

Ray's own wait in a loop that never sleeps, whatever the timeout (Ray 2.50 to 2.60,
`PlasmaObjectHeader::ReadAcquire`). The loop of an actor is in a read whenever nobody asks for
anything. So each shard kept a core busy while nobody drew, and the learner another one while it
waited for answers.
"""

import math
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayChannelTimeoutError
from ray.experimental.channel.shared_memory_channel import Channel

# What is waited for is late by a tenth of the wait, and by 20 ms at most. A look takes some 15 us.
_SHARE, _SHORTEST_S, _LONGEST_S = 0.1, 0.0002, 0.02


class QuietWait:
    """A wait for the next value of one channel, which several reads may share: those that end by
    their timeout do not begin it anew."""

    def __init__(self) -> None:
        self._since: float | None = None

    def read(self, look: Callable[[float], Any], timeout: float | None) -> Any:
        """What `look` finds.

        Parameters
        ----------
        look : callable
            `read` of a channel. It is called with a timeout of 0 seconds.
        timeout : float or None
            Seconds; None or -1 for no limit.

        Raises
        ------
        RayChannelTimeoutError
            Nothing came in time. And all else that `look` raises.
        """
        began = time.monotonic()
        if self._since is None:
            self._since = began
        stop = math.inf if timeout is None or timeout < 0 else began + timeout
        while True:
            try:
                found = look(0)
            except RayChannelTimeoutError:
                now = time.monotonic()
                if now >= stop:
                    raise
                pause = min(max(_SHORTEST_S, _SHARE * (now - self._since)), _LONGEST_S)
            else:
                self._since = None
                return found
            time.sleep(min(pause, stop - now))


class QuietChannel:
    """A channel whose `read` sleeps; all else is the channel's own.

    Parameters
    ----------
    channel : ChannelInterface
    """

    def __init__(self, channel: Any) -> None:
        self._channel, self._wait = channel, QuietWait()

    def read(self, timeout: float | None = None) -> Any:
        """As the channel's own."""
        return self._wait.read(self._channel.read, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def read_quietly() -> None:
    """Have each channel of this process be read so: for an actor, whose channels Ray makes. Calling
    it again changes nothing."""
    if Channel.read is not _read:
        Channel.read = _read  # type: ignore[assignment, method-assign]


_ray_read = Channel.read


def _read(channel: Any, timeout: float | None = None) -> Any:
    wait: QuietWait = channel.__dict__.setdefault("_quiet_wait", QuietWait())
    return wait.read(lambda nothing: _ray_read(channel, nothing), timeout)
