"""Actors of Ray and calls of them, each by way of the connection that it was made in."""

import functools
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import ray
from ray import exceptions
from ray.dag import InputNode, MultiOutputNode
from ray.experimental.channel import ChannelContext
from ray.runtime_context import get_runtime_context
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskreplay.locks import LOOK_AGAIN_S
from diskreplay.ray import connection
from diskreplay.ray.connection import Connection, plain
from diskreplay.ray.quiet_reads import QuietChannel

NAMESPACE = "diskreplay"
_FIRST_S = 120.0  # for the loops of a graph to begin
_PLACED = 1 << 20  # bytes; Ray starts an actor that needs nothing on any node, whatever is asked
_ENDING_S = 10.0  # for a graph to end; its loops wake ten times a second


class Call:
    """What an actor was asked.

    Its answer is waited for in Python, and not in ``ray.wait`` or ``ray.get``: ``ray.shutdown`` in
    another thread frees the memory that these read, and they crash or loop for ever
    (https://github.com/ray-project/ray/issues/31145).

    Parameters
    ----------
    reference
        To its answer.
    connection : Connection
        By way of which it was asked.
    """

    def __init__(self, reference: Any, connection: Connection) -> None:
        self._reference, self.connection = reference, connection

    @functools.cached_property
    def future(self) -> futures.Future[Any]:
        """Its answer. Nobody sets it once the connection has ended."""
        found: futures.Future[Any] = self._reference.future()
        return found


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
        options = {"max_task_retries": -1} if again else {}
        with self._connection.used():
            return Call(_submit(self.handle, method, arguments, **options), self._connection)

    def kill(self) -> None:
        """End its process for good."""
        with self._connection.used():
            plain(ray.kill)(self.handle)

    def restart(self) -> None:
        """End its process; Ray starts it again."""
        with self._connection.used():
            plain(ray.kill)(self.handle, no_restart=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Actor, (self.handle,)


def leave_torch_alone() -> None:
    """Have the graphs that this process takes part in send arrays only. Else Ray imports torch for
    them, where it is installed: seconds, and some hundred megabytes an actor."""
    ChannelContext.get_current()._torch_available = False


def _submit(handle: Any, method: str, arguments: tuple[Any, ...], **options: Any) -> Any:
    asked = getattr(handle, method)
    return plain(type(asked)._remote)(asked, arguments, {}, **options)


def wait(calls: Sequence[Call], timeout: float) -> bool:
    """Wait until all are answered; whether they are by now.

    Raises
    ------
    DisconnectedError
    """
    if not calls:
        return True
    with calls[0].connection.used():
        return _are_answered(calls, timeout)


def get(call: Call, timeout: float | None = None) -> Any:
    """The answer of a call.

    Raises
    ------
    DisconnectedError
        And what `ray.get` raises.
    """
    with call.connection.used():
        if not _are_answered([call], timeout):
            raise exceptions.GetTimeoutError(f"no answer in {timeout:g} s")
        return call.future.result()


def _are_answered(calls: Sequence[Call], timeout: float | None) -> bool:
    until = math.inf if timeout is None else time.monotonic() + timeout
    asked = [call.future for call in calls]
    while futures.wait(asked, max(min(LOOK_AGAIN_S, until - time.monotonic()), 0.0)).not_done:
        if time.monotonic() >= until:
            return False
        calls[0].connection.check()
    return True


class Graph:
    """A compiled graph of Ray: one method of some actors, called together by this process alone,
    and once at a time. Each actor has a loop for it on a thread of its own, beside its calls.

    Parameters
    ----------
    actors : sequence of Actor
        None has another graph.
    method : str
        It takes one argument, and answers None to None.
    farewell : tuple
        What each actor is called with once its loop has ended: a method and its argument.

    Raises
    ------
    DisconnectedError
        And what Ray raises where an actor dies meanwhile.
    """

    def __init__(self, actors: Sequence[Actor], method: str, farewell: tuple[str, Any]) -> None:
        self._connection = connection.current()
        with self._connection.used():
            with InputNode() as given:
                answers = [
                    getattr(actor.handle, method).bind(given[number])
                    for number, actor in enumerate(actors)
                ]
            self._compiled: Any = MultiOutputNode(answers).experimental_compile(
                _max_inflight_executions=1, _submit_timeout=1.0
            )
            reader = self._compiled._dag_output_fetcher
            reader._input_channels = [QuietChannel(each) for each in reader._input_channels]
            # As this process shuts Ray down, Ray would kill the actors of its graphs for good.
            self._compiled.teardown = functools.partial(
                _end_loops, self._compiled, [actor.handle for actor in actors], farewell
            )
        try:
            self.answers(self.execute([None] * len(actors)), _FIRST_S)
        except BaseException:
            self.end()
            raise

    def execute(self, arguments: Sequence[Any]) -> list[Any]:
        """Call the method of each actor; references to the answers.

        Raises
        ------
        DisconnectedError
            And what Ray raises where the graph is broken.
        """
        with self._connection.used():
            found: list[Any] = self._compiled.execute(*arguments)
            return found

    def answers(self, references: list[Any], timeout: float) -> list[Any]:
        """What the actors answer. Arrays are views of Ray's memory: while there is one of them, the
        next answer of its actor waits.

        Raises
        ------
        DisconnectedError
            And what Ray raises where not all answer in time; the graph is broken then.
        """
        with self._connection.used():
            found: list[Any] = plain(ray.get)(references, timeout=timeout)
            return found

    def end(self) -> None:
        """End its loops; an actor that does not answer ends its own when it does.

        Raises
        ------
        DisconnectedError
        """
        with self._connection.used():
            self._compiled.teardown()


def _end_loops(
    compiled: Any, handles: list[Any], farewell: tuple[str, Any], kill_actors: bool = False
) -> None:
    """In the place of Ray's ``teardown``: it spares the actors, and does not wait for ever for one
    that does not answer."""

    def end() -> None:
        type(compiled).teardown(compiled)
        compiled.__dict__.pop("teardown", None)  # nothing is to be kept by itself
        method, argument = farewell
        told = [_submit(handle, method, (argument,)).future() for handle in handles]
        futures.wait(told, _ENDING_S)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    ending.join(_ENDING_S)


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
        options["memory"] = _PLACED
    if resources is not None:
        options["resources"] = dict(resources)
    with connection.current().used():
        made: Any = ray.remote(kind)
        how = options | {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        # Ray's head keeps what became of the last 100,000 calls, a kilobyte and more of each.
        how["enable_task_events"] = False
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


def was_restarted() -> bool:
    """Whether this process is an actor that died before, and that Ray has started again."""
    if not ray.is_initialized():
        return False
    context = get_runtime_context()
    return context.get_actor_id() is not None and context.was_current_actor_reconstructed


def this_node() -> str:
    """The node of this process.

    Raises
    ------
    DisconnectedError
    """
    return connection.current().node
