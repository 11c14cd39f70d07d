"""What becomes of the errors of actors, and who asks again; without a cluster."""

import pytest
from ray import exceptions

from diskreplay.errors import RateLimiterTimeout, ShardsLostError
from diskreplay.ray import calls


class Actor:
    """Answers what is listed, one after the other; errors are raised."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def call(self, method, *arguments, again=False):
        self.asked.append((method, *arguments, again))
        return self.answers.pop(0)


@pytest.fixture(autouse=True)
def waited(monkeypatch):
    """The timeouts that answers were waited for with."""
    found = []

    def get(call, timeout):
        found.append(timeout)
        if isinstance(call, BaseException):
            raise call
        return call

    monkeypatch.setattr(calls, "get", get)
    monkeypatch.setattr(calls.time, "sleep", lambda seconds: None)
    return found


def of_a_task(cause):
    return exceptions.RayTaskError("f", "traceback", cause)


def test_errors_of_ours_are_raised_as_they_were(waited):
    assert calls.answer(3, 1.5) == 3
    assert calls.answer(4) == 4
    assert waited == [1.5, None]
    cause = RateLimiterTimeout("waited")
    with pytest.raises(RateLimiterTimeout) as found:
        calls.answer(of_a_task(cause))
    assert found.value is cause
    with pytest.raises(exceptions.RayTaskError):
        calls.answer(of_a_task(ValueError("of a user")))
    with pytest.raises(exceptions.GetTimeoutError):
        calls.answer(exceptions.GetTimeoutError())


def unavailable():
    return exceptions.ActorUnavailableError("the network", None)


def test_a_call_is_made_again_while_the_actor_cannot_be_reached(waited):
    actor = Actor(unavailable(), unavailable(), 7)
    assert calls.patient(actor, "state", 1, 2, timeout=30.0) == 7
    assert actor.asked == [("state", 1, 2, True)] * 3
    assert all(0 < timeout <= 30.0 for timeout in waited)
    assert waited == sorted(waited, reverse=True)


def test_patience_ends(waited):
    actor = Actor(unavailable(), unavailable())
    with pytest.raises(exceptions.ActorUnavailableError):
        calls.patient(actor, "state", timeout=-1.0)
    assert len(actor.asked) == 1
    assert waited == [0.001]
    for error in (exceptions.GetTimeoutError(), ShardsLostError("gone")):
        actor = Actor(error, 7)
        with pytest.raises(type(error)):
            calls.patient(actor, "state", timeout=30.0)
        assert len(actor.asked) == 1


def test_the_limiter_has_a_minute_beyond_its_own_time(waited):
    limiter = Actor(None)
    calls.let_pass(limiter, "acquire_insert", 5, 10.0)
    assert limiter.asked == [("acquire_insert", 5, 10.0, True)]
    assert 60 < waited[0] <= 70.0
    with pytest.raises(RateLimiterTimeout):
        calls.let_pass(Actor(of_a_task(RateLimiterTimeout("no"))), "acquire_sample", 5, 10.0)
    for error in (exceptions.GetTimeoutError(), exceptions.ActorDiedError()):
        with pytest.raises(ShardsLostError, match="does not answer, waited 70 s"):
            calls.let_pass(Actor(error), "acquire_sample", 5, 10.0)
