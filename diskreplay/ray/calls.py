"""Calls of actors, and what becomes of their errors."""

import time
from typing import Any

from ray import exceptions

from diskreplay.errors import DiskReplayError, ShardsLostError
from diskreplay.ray.actors import Actor, Call, get

LOST = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.GetTimeoutError,
    ShardsLostError,
)
"""What says that a shard, its store, or what it had answered, is not there now."""


def answer(call: Call, timeout: float | None = None) -> Any:
    """What an actor answers; its errors are raised as they were there.

    Raises
    ------
    RayActorError, ObjectLostError, GetTimeoutError
        It is not there, see `LOST`.
    DisconnectedError
    """
    try:
        return get(call, timeout)
    except exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, DiskReplayError):
            raise cause from None
        raise


def patient(actor: Actor, method: str, *arguments: Any, timeout: float) -> Any:
    """The answer of a call that is made again when the actor dies, and waits while Ray restarts it.
    Only for calls that may be made twice.

    Raises
    ------
    RayActorError, GetTimeoutError, DisconnectedError
    """
    until = time.monotonic() + timeout
    while True:
        left = until - time.monotonic()
        try:
            return answer(actor.call(method, *arguments, again=True), max(left, 0.001))
        except exceptions.ActorUnavailableError:
            if left <= 0:
                raise
            time.sleep(0.05)  # the network; a restart is waited for by Ray


def let_pass(coordinator: Actor, what: str, count: int, timeout: float, *more: Any) -> Any:
    """Wait for a rate limiter. Where its actor dies it is asked again: what it had let pass by then
    may be counted twice.

    Parameters
    ----------
    coordinator
        Its actor.
    what : {"acquire_insert", "acquire_sample"}
    count : int
    timeout : float
        That the limiter may take.
    *more
        Further arguments.

    Returns
    -------
    object
        What its actor answers.

    Raises
    ------
    RateLimiterTimeout
    ShardsLostError
        The actor does not come back.
    """
    try:
        return patient(coordinator, what, count, timeout, *more, timeout=timeout + 60.0)
    except LOST as error:
        raise ShardsLostError(
            f"the actor with the rate limiter does not answer, waited {timeout + 60.0:g} s: see "
            "`ray status`"
        ) from error
