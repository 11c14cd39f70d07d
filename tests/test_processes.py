"""Processes that are forks do what new interpreters do."""

import os
import signal
import subprocess
import sys

import pytest

from tests import processes

SAYING = """
import os, sys
print(sys.argv[1:], __name__, os.getcwd(), os.environ.get("SAID"), sys.path[:2])
print("wrong", file=sys.stderr)
sys.exit(3)
"""


def test_one_is_as_a_new_interpreter(tmp_path):
    environment = {**os.environ, "SAID": "yes", "PYTHONPATH": "/nowhere"}
    done = processes.run(SAYING, "a", 1, cwd=tmp_path, env=environment)
    known = subprocess.run(
        [sys.executable, "-c", SAYING, "a", "1"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (known.returncode, known.stdout)
    assert done.stderr == known.stderr == "wrong\n"


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("pass", 0), ("1 / 0", 1), ("import os; os._exit(5)", 5), ("raise KeyboardInterrupt", -2),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import atexit, os; atexit.register(os._exit, 4)", 4),
    ],
)  # fmt: skip
def test_how_one_ends(code, ends):
    assert processes.run(code).returncode == ends
    if ends == 1:
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            processes.run(code, check=True)


def test_pipes_and_signals():
    code = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with processes.Process(code, **pipes) as one, processes.Process(code, **pipes) as other:
        for process in (one, other):
            process.stdin.write("said\n")
            process.stdin.flush()
            assert process.stdout.readline() == "SAID\n"
            assert process.poll() is None
        assert os.getpid() != one.pid != other.pid
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.01)
        one.send_signal(signal.SIGTERM)
        assert one.wait() == one.poll() == -signal.SIGTERM
        assert other.communicate() == ("", None)
        assert other.communicate() == (None, None)
        assert other.returncode == 0


def test_no_two_draw_the_same():
    code = "import random, numpy as np; print(random.random(), np.random.default_rng().random())"
    first, second = (processes.run(code, check=True).stdout.split() for _ in range(2))
    assert not set(first) & set(second)
