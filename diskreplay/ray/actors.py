"""Actors of Ray and calls of them, each by way of the connection that it was made in."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.runtime_context import get_runtime_context
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskreplay.ray import connection
from diskreplay.ray.connection import Connection, plain

NAMESPACE = "diskreplay"


class Call(NamedTuple):
    """What an actor was asked.

    Attributes
    ----------
    reference
        To its answer.
    connection : Connection
        By way of which it was asked.
    """

    reference: Any
    connection: Connection


class Actor:
    """An actor, as this process calls it. Of one that is sent to another process, it is that one's.

    Parameters
    ----------
    handle
        Of Ray.

    Raises
    ------
    DisconnectedError
        Also by the methods, where Ray was shut down since, or connected anew.
    """

    def __init__(self, handle: Any) -> None:
        self.handle, self._connection = handle, connection.current()

    def call(self, method: str, *arguments: Any, again: bool = False) -> Call:
        """Ask it something.

        Parameters
        ----------
        method : str
        *arguments
        again : bool
            Ray asks again where its process dies; only for calls that may be made twice.
        """
        with self._connection.used():
            asked = getattr(self.handle, method)
            options = {"max_task_retries": -1} if again else {}
            submit = plain(type(asked)._remote)
            return Call(submit(asked, arguments, {}, **options), self._connection)

    def kill(self) -> None:
        """End its process for good."""
        with self._connection.used():
            plain(ray.kill)(self.handle)

    def __reduce__(self) -> tuple:
        return Actor, (self.handle,)


def wait(calls: Sequence[Call], timeout: float) -> bool:
    """Wait until all are answered; whether they are by now.

    Raises
    ------
    DisconnectedError
    """
    if not calls:
        return True
    references = [call.reference for call in calls]
    with calls[0].connection.used():
        done, _ = plain(ray.wait)(references, num_returns=len(references), timeout=timeout)
        return len(done) == len(references)


def get(call: Call, timeout: float | None = None) -> Any:
    """The answer of a call.

    Raises
    ------
    DisconnectedError
        And what `ray.get` raises.
    """
    with call.connection.used():
        return plain(ray.get)(call.reference, timeout=timeout)


def named(name: str) -> Actor | None:
    """The actor of this name in the cluster, None if there is none.

    Raises
    ------
    DisconnectedError
    """
    with connection.current().used():
        try:
            return Actor(plain(ray.get_actor)(name, namespace=NAMESPACE))
        except ValueError:  # what Ray raises when there is none
            return None


def started(
    kind: type, arguments: Sequence[Any], *, name: str, node: str | None = None,
    resources: Mapping[str, float] | None = None, **options: Any,
) -> Actor:  # fmt: skip
    """Start an actor that outlives this process and that Ray starts again where it dies.

    Parameters
    ----------
    kind : type
    arguments : sequence
    name : str
    node : str, optional
        Where it is to run, if that node is there.
    resources : mapping, optional
        What its node has.
    **options
        More of Ray's.

    Raises
    ------
    DisconnectedError
    """
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    if resources is not None:
        options["resources"] = dict(resources)
    with connection.current().used():
        made: Any = ray.remote(kind)
        how = options | {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        return Actor(made.options(**how, max_restarts=-1, num_cpus=0).remote(*arguments))


def living_nodes() -> list[str]:
    """The nodes of the cluster.

    Raises
    ------
    DisconnectedError
    """
    with connection.current().used():
        found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return sorted(node["NodeID"] for node in found if node["Alive"])


def this_node() -> str:
    """The node of this process.

    Raises
    ------
    DisconnectedError
    """
    with connection.current().used():
        node: str = get_runtime_context().get_node_id()
        return node
