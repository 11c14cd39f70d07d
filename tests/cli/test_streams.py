"""Streams that are closed, full, or of another encoding: the exit code says what it always says."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay


@pytest.fixture
def store(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-1, 1, (3,)), action_space=Discrete(2),
        capacity=100,
    ) as buffer:  # fmt: skip
        for number in range(30):
            buffer.add(np.zeros(3, np.float32), 0, float(number), number % 10 == 9, False)
    return tmp_path / "store"


def run(redirected, *arguments, **env):
    """Not by `processes`: it is about how an interpreter starts."""
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirected}', "sh", sys.executable, "-m", "diskreplay",
         *map(str, arguments)],
        capture_output=True, env=os.environ | env, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_stream_that_is_closed(store, redirected):
    done = run(redirected, "verify", store)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"sound" in done.stdout) == (redirected == "2>&-")


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", ">&- 2>/dev/full"])
def test_an_error_that_cannot_be_said(tmp_path, redirected):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    done = run(redirected, "info", tmp_path / "none")
    assert (done.returncode, done.stdout) == (3, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_that_lacks_what_is_drawn(store, encoding):
    done = run("", "stats", store, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert "returns" in shown
    assert ("?" in shown) == (encoding != "utf-8")
