"""Which connection to Ray this process has, and whether it is the one that something was made in.

Ray starts a cluster by itself, or connects to one that it finds, at the first call in a process
that is not connected. A call of ours that comes late, after ``ray.shutdown``, must not do that: it
would leave a cluster behind, or meet somebody else's. So calls are made with a `Connection`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ray
from ray.runtime_context import get_runtime_context
from ray.util.client import ray as _client

from diskreplay.errors import DisconnectedError

_client_mode: Any = _client


class Connection(NamedTuple):
    """One connection, from ``ray.init`` to ``ray.shutdown``.

    Attributes
    ----------
    worker : str
        Of a driver it follows from its job, which is another one after each ``ray.init`` of a
        cluster.
    node : str
        A random number, which tells clusters apart.
    """

    worker: str
    node: str

    @property
    def is_current(self) -> bool:
        """Whether it is the one that this process has now."""
        return self == _found()

    def check(self) -> None:
        """Refuse to go on by way of another one, or of none.

        Raises
        ------
        DisconnectedError
        """
        now = _found()
        if now is None:
            raise _not_connected()
        if now != self:
            raise DisconnectedError(
                "Ray was shut down and connected anew since this was made, so this is void: make "
                "it anew, with ShardedReplayBuffer.connect"
            )

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Calls of Ray by way of it; what they raise where it ends meanwhile is our error.

        Raises
        ------
        DisconnectedError
        """
        self.check()
        try:
            yield
        except SystemExit:
            # Ray raises it where a thread waits when it is shut down; in the main thread it is the
            # program's own, of a handler of signals.
            if threading.current_thread() is not threading.main_thread():
                self.check()
            raise
        except Exception as error:  # of many kinds where Ray is half shut down
            if self.is_current:
                raise
            raise _not_connected() from error


def current() -> Connection:
    """The one that this process has.

    Raises
    ------
    DisconnectedError
        None; or it is one of Ray Client.
    """
    if _client_mode.is_connected():
        raise DisconnectedError(
            "Ray is connected by Ray Client (a ray:// address), by which shards cannot be called: "
            "run the program on a node of the cluster, with address='auto', or by `ray job submit`"
        )
    found = _found()
    if found is None:
        raise _not_connected()
    return found


def _found() -> Connection | None:
    if not ray.is_initialized():
        return None
    try:
        context = get_runtime_context()
        return Connection(context.get_worker_id(), context.get_node_id())
    except (AssertionError, AttributeError, RuntimeError):  # another thread shuts it down now
        return None


def _not_connected() -> DisconnectedError:
    return DisconnectedError(
        "Ray is not connected in this process, or not any more: call ray.init with the address of "
        "the cluster, and then ShardedReplayBuffer.connect; or make the buffer again if the "
        "cluster has ended"
    )


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Ray without what connects by itself: the check before it may have been
    overtaken by another thread."""
    return getattr(function, "__wrapped__", function)
