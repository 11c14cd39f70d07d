"""Ctrl-C while a server takes a connection and never answers."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from diskreplay.cli import ctrl_c

pytest.importorskip("obstore")


@pytest.fixture
def silent():
    """The address of a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        kept = []

        def accept():
            try:
                while True:
                    kept.append(server.accept()[0])
            except OSError:
                pass

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], kept
        server.shutdown(socket.SHUT_RDWR)
        for each in kept:
            each.close()


@pytest.mark.costly(1)
@pytest.mark.parametrize("what", ["checkpoints", "pull", "push", "verify", "collect"])
def test_a_server_that_never_answers(silent, store, tmp_path, what):
    port, kept = silent
    arguments = {
        "push": ["push", str(store.parent / "checkpoints"), "s3://box/x"],
        "pull": ["pull", "s3://box/x", "--out", str(tmp_path / "out")],
        "collect": ["collect", "s3://box/x", "--keep", "1", "--run", "r"],
    }.get(what, [what, "s3://box/x"])
    own = {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "here",
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "diskreplay", *arguments], env={**os.environ, **own},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while not kept and child.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        assert kept
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        said, _nothing = child.communicate(timeout=ctrl_c.PATIENCE_S + 10)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not list(tmp_path.glob("out/*"))


def test_what_ends_by_itself_is_left_alone(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(ctrl_c, "PATIENCE_S", 0.3)
    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), ctrl_c.ends_soon():
        signal.raise_signal(signal.SIGINT)
    with ctrl_c.ends_soon():
        pass
    time.sleep(0.6)
    assert ended == []
    assert signal.set_wakeup_fd(-1) == -1
    assert set(threading.enumerate()) <= threads


def slow_to_stop():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        time.sleep(0.6)


def test_what_does_not_end_is_ended(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(ctrl_c, "PATIENCE_S", 0.3)
    with pytest.raises(KeyboardInterrupt), ctrl_c.ends_soon():
        slow_to_stop()
    assert ended == [130]


def test_on_another_thread_there_are_no_signals():
    done = []

    def run():
        with ctrl_c.ends_soon():
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [1]
