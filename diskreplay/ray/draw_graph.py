"""Draws of all shards by a compiled graph of Ray, in the place of a call of each shard."""

import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from diskreplay.errors import DisconnectedError, ShardsLostError, UsageError
from diskreplay.locks import Lock
from diskreplay.ray.actors import Actor, Graph, this_node
from diskreplay.ray.calls import LOST, answer, patient
from diskreplay.ray.shard import GraphName
from diskreplay.ray.shard_handle import ShardHandle

_START_S = 20.0  # for the first graph; without it draws begin by calls
_END_S = 10.0  # for one that is being built
_PAUSE_S = 3.0  # between two that are built
_REPLACED_S = 60.0  # for a shard that gets another process


class Execution:
    """What the shards of a graph were asked together.

    Attributes
    ----------
    numbers : tuple of int
        Of the shards.
    """

    def __init__(self, owner: "DrawGraph", numbers: tuple[int, ...], references: list[Any]) -> None:
        self._owner, self.numbers, self._references = owner, numbers, references

    def answers(self, timeout: float) -> dict[int, Any] | None:
        """By shard, what `Shard.draw_in_graph` answers; None where not all did.

        Raises
        ------
        DisconnectedError
        """
        owner = self._owner
        graph, found = owner._graph, None
        try:
            if graph is not None:
                found = graph.answers(self._references, timeout)
        except DisconnectedError:
            raise
        except Exception as error:  # of many kinds; calls say what is the matter
            let_go(error)
        finally:
            with owner._lock:
                owner._running = None
                if found is None:
                    owner._break()
        return None if found is None else dict(zip(self.numbers, found, strict=True))


class DrawGraph:
    """Asks the shards that answer by a compiled graph, as long as there is one.

    It is the one place that says whether shards are asked by calls or by the graph: `execute`
    gives None where they are to be called. A graph has all shards of this node that are not lost;
    those of other nodes are called beside it. When one dies, or does not answer in time, the whole
    graph is broken; a thread ends it and builds one of those that are left, and again when the lost
    one is back. Calls go on meanwhile.
    """

    def __init__(self, handles: Sequence[ShardHandle]) -> None:
        self._handles, self._name = handles, GraphName(time.time_ns(), 0)
        self._lock = Lock()
        self._graph: Graph | None = None
        self._broken: Graph | None = None  # to be ended by the next builder
        self._numbers: tuple[int, ...] = ()
        self._of: tuple[int, ...] = ()  # which shards there were when it was made
        self._warned = False
        self._running: weakref.ref[Execution] | None = None
        self._builder: threading.Thread | None = None
        self._not_before, self._ended = 0.0, False

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shards that are asked by a graph now."""
        return self._numbers

    def start(self) -> None:
        """Have the first graph, if the shards are there."""
        with self._lock:
            self._keep_up()
            builder = self._builder
        if builder is not None:
            builder.join(_START_S)

    def execute(self, asked: Mapping[int, Any]) -> Execution | None:
        """Ask the shards of the graph. None where there is none, or another request has it.

        Needs the client's lock.

        Raises
        ------
        DisconnectedError
        """
        with self._lock:
            if self._running is not None and self._running() is None:
                self._break()  # it was given up before its answers came
            if self._running is None:
                self._keep_up()
            if self._running is not None or self._graph is None:
                return None
            arguments = [asked.get(number) for number in self._numbers]
            try:
                references = self._graph.execute(arguments)
            except DisconnectedError:
                raise
            except Exception:  # of many kinds where an actor dies
                self._break()
                return None
            execution = Execution(self, self._numbers, references)
            self._running = weakref.ref(execution)
            return execution

    def _break(self) -> None:
        self._running, self._numbers, self._of = None, (), ()
        self._broken, self._graph = self._graph or self._broken, None

    def _keep_up(self) -> None:
        """See to it that the graph is of the shards that are there."""
        wanted = tuple(handle.number for handle in self._handles if not handle.is_lost)
        if wanted == self._of or self._builder is not None or self._ended or not wanted:
            return
        if time.monotonic() < self._not_before:
            return
        self._break()
        before, self._broken = self._broken, None
        self._builder = threading.Thread(
            target=self._build, args=(before, wanted), name="diskreplay graph", daemon=True
        )
        self._builder.start()

    def _build(self, before: Graph | None, wanted: tuple[int, ...]) -> None:
        made: Graph | None = None
        here: tuple[int, ...] = ()
        looked = False
        try:
            if before is not None:
                before.end()
            here, looked = self._here(wanted), True
            if here:
                made = self._made([self._handles[number].actor for number in here])
        except UsageError as error:  # another learner has it, or Ray was shut down
            self._ended = True
            if not isinstance(error, DisconnectedError):
                warnings.warn(f"draws go by calls from now on: {error}", RuntimeWarning, 2)
        except LOST:
            pass  # a shard died meanwhile; calls find out
        except Exception as error:
            warnings.warn(
                f"no compiled graph could be made, so draws go by calls, and it is tried again: "
                f"{type(error).__name__}: {error}", RuntimeWarning, 2,
            )  # fmt: skip
        with self._lock:
            self._builder, self._not_before = None, time.monotonic() + _PAUSE_S
            if looked and not self._ended and (made is not None or not here):
                self._graph, self._numbers, self._of, made = made, here, wanted, None
        if made is not None:
            made.end()

    def _here(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Those of these shards that are on this node. The others are asked by calls: where a
        graph over several nodes ends while an answer is on its way to another node, the raylet
        there ends too, and with it all that runs on that node."""
        mine = this_node()
        calls = [(number, self._handles[number].actor.call("describe")) for number in wanted]
        here = tuple(n for n, call in calls if answer(call, _REPLACED_S)["node"] == mine)
        if len(here) < len(wanted) and not self._warned:
            self._warned = True
            away = sorted(set(wanted) - set(here))
            warnings.warn(
                f"shards {away} are on other nodes than this client, and are drawn from by calls: "
                "a compiled graph is made of shards on its own node", RuntimeWarning, 2,
            )  # fmt: skip
        return here

    def _made(self, actors: Sequence[Actor]) -> Graph:
        self._name = self._name._replace(number=self._name.number + 1)
        self._take_over(actors)
        return Graph(actors, "draw_in_graph", ("end_graph", self._name))

    def _take_over(self, actors: Sequence[Actor]) -> None:
        """Be rid of the loops that a learner left which was killed."""
        calls = [(actor, actor.call("begin_graph", self._name)) for actor in actors]
        replaced = [actor for actor, call in calls if not answer(call, _REPLACED_S)]
        for actor in replaced:
            actor.restart()
        until = time.monotonic() + _REPLACED_S
        for actor in replaced:
            while not patient(actor, "begin_graph", self._name, timeout=_REPLACED_S):
                if time.monotonic() > until:
                    raise ShardsLostError("a shard was not started again for a new learner")
                time.sleep(0.1)  # the process that is being ended answered once more

    def end(self) -> None:
        """End the graph, and let another learner have one.

        Raises
        ------
        DisconnectedError
        """
        with self._lock:
            self._ended, builder = True, self._builder
        if builder is not None:
            builder.join(_END_S)
        with self._lock:
            self._break()
            graph, self._broken = self._broken, None
        if graph is not None:
            graph.end()


def let_go(error: BaseException | None) -> None:
    """Of the answers that Ray's frames have. They are views of memory of Ray's, and the process
    ends with a SIGSEGV if one is let go of, by the garbage collector, after Ray was shut down."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
