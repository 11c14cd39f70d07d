"""Streams that are closed, full, or of another encoding: the exit code says what it always says."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from tests.effort import effort

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


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
    """Not by `processes`: it is about how an interpreter starts. Its output is kept until it is
    flushed, as by default."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | env
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {redirected}', "sh",
         sys.executable, "-m", "diskreplay", *map(str, arguments)],
        capture_output=True, env=environment, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.costly(1)
def test_a_stream_that_is_closed(store, redirected):
    done = run(redirected, "verify", store)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"sound" in done.stdout) == (redirected == "2>&-")


@FULL
@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", ">&- 2>/dev/full"])
@pytest.mark.costly(1)
def test_an_error_that_cannot_be_said(tmp_path, redirected):
    done = run(redirected, "info", tmp_path / "none")
    assert (done.returncode, done.stdout) == (3, b"")


@FULL
@pytest.mark.parametrize("redirected", ["2>/dev/full", ">/dev/full 2>/dev/full", "2>&1 | true"])
@pytest.mark.parametrize(
    "arguments", effort([["info"]], [["bogus"], ["info"], ["info", "--bogus", "x"], []]), ids=str
)
@pytest.mark.costly(1)
def test_a_mistake_of_usage_that_cannot_be_said(arguments, redirected):
    done = run(redirected, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


@pytest.mark.costly
@FULL
@pytest.mark.parametrize(
    "arguments",
    effort([["info", "--help"]], [["--version"], ["--help"], ["info", "--help"]]),
    ids=str,
)
def test_an_answer_that_cannot_be_given(arguments):
    full = run(">/dev/full", *arguments)
    assert (full.returncode, full.stdout) == (4, b"")
    assert full.stderr == b"error: No space left on device\n"
    assert run(">/dev/full 2>/dev/full", *arguments).returncode == 4
    cut = run("| true", *arguments)
    assert (cut.returncode, cut.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.costly(1)
def test_an_encoding_that_lacks_what_is_drawn(store, encoding):
    done = run("", "stats", store, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert "returns" in shown
    assert ("?" in shown) == (encoding != "utf-8")


@pytest.mark.parametrize("redirected", ["| true", "| head -n 1 >/dev/null", ">/dev/null"])
@pytest.mark.costly
def test_what_was_found_is_told_by_the_exit_code_though_nobody_reads(store, tmp_path, redirected):
    shutil.copytree(store, tmp_path / "other")
    diff = "diff", store, tmp_path / "other"
    for command in (("verify", store), ("verify", store, "--json"), diff, (*diff, "--json")):
        assert run(redirected, *command).returncode == 0, command
    for path in (tmp_path / "other" / "reward").glob("c.*"):
        path.chmod(0o644)
        path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))
    verify = "verify", tmp_path / "other"
    for command in (verify, (*verify, "--json"), diff, (*diff, "--json")):
        done = run(redirected, *command)
        assert (done.returncode, done.stderr) == (1, b""), command
