"""Whether this process has the connection that something was made in; without a cluster."""

import threading

import pytest

from diskreplay.errors import DisconnectedError
from diskreplay.ray import connection
from diskreplay.ray.connection import Connection, current, plain

FIRST, SECOND = Connection("worker 1", "node"), Connection("worker 2", "node")


@pytest.fixture
def now(monkeypatch):
    """Which connection there is."""
    found = [FIRST]
    monkeypatch.setattr(connection, "_found", lambda: found[0])
    monkeypatch.setattr(connection._client_mode, "is_connected", lambda: False)
    return found


def test_it_is_current_until_ray_is_shut_down(now):
    made = current()
    assert made == FIRST
    assert made.is_current
    made.check()
    for other, message in ((None, "Ray is not connected in this process"),
                           (SECOND, "connected anew since this was made")):  # fmt: skip
        now[0] = other
        assert not made.is_current
        with pytest.raises(DisconnectedError, match=message):
            made.check()
        with pytest.raises(DisconnectedError, match=message), made.used():
            raise AssertionError("begun")
    assert current() == SECOND
    now[0] = None
    with pytest.raises(DisconnectedError, match="Ray is not connected"):
        current()


def test_ray_client_is_refused(now, monkeypatch):
    monkeypatch.setattr(connection._client_mode, "is_connected", lambda: True)
    with pytest.raises(DisconnectedError, match="Ray Client"):
        current()


def raise_amid(made, error, now, found=None):
    with made.used():
        now[0] = found
        raise error


def test_what_ray_raises_as_it_ends_is_our_error(now):
    error = ValueError("half shut down")
    with pytest.raises(DisconnectedError, match="not any more") as raised:
        raise_amid(FIRST, error, now)
    assert raised.value.__cause__ is error
    now[0] = FIRST
    with pytest.raises(ValueError, match="half"):
        raise_amid(FIRST, error, now, FIRST)
    now[0] = FIRST
    with pytest.raises(KeyboardInterrupt):  # is the program's own
        raise_amid(FIRST, KeyboardInterrupt(), now)


def test_an_exit_is_the_programs_own_in_the_main_thread_alone(now):
    with pytest.raises(SystemExit):
        raise_amid(FIRST, SystemExit(), now)
    now[0], seen = FIRST, []

    def elsewhere():
        for found, error in ((None, DisconnectedError), (FIRST, SystemExit)):
            now[0] = FIRST
            with pytest.raises(error):
                raise_amid(FIRST, SystemExit(), now, found)
            seen.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [DisconnectedError, SystemExit]


def test_without_ray_there_is_none(monkeypatch):
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    assert connection._found() is None
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: True)

    def shut_down():
        raise AssertionError("another thread shuts it down")

    monkeypatch.setattr(connection, "get_runtime_context", shut_down)
    assert connection._found() is None

    class Context:
        def get_worker_id(self):
            return "w"

        def get_node_id(self):
            return "n"

    monkeypatch.setattr(connection, "get_runtime_context", Context)
    assert connection._found() == Connection("w", "n")


def test_functions_of_ray_are_called_without_what_connects():
    def inner():
        pass

    def outer():
        pass

    outer.__wrapped__ = inner
    assert plain(outer) is inner
    assert plain(inner) is inner
