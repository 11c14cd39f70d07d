"""info --watch and stats --watch: a store looked at again and again."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import record


class Watching:
    """The command in a process of its own, read line by line."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "diskreplay", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "COLUMNS": "80"},
        )  # fmt: skip

    def until(self, holds):
        """The first document for which this holds; a test's own time limit ends the wait."""
        while True:
            line = self._process.stdout.readline()
            assert line, self._process.stderr.read()
            document = json.loads(line)
            if holds(document):
                return document

    def line(self):
        return self._process.stdout.readline()

    def end(self):
        self._process.send_signal(signal.SIGINT)
        _out, err = self._process.communicate()
        return self._process.returncode, err


@pytest.fixture
def watching():
    made = []

    def start(*arguments):
        made.append(Watching(*arguments))
        return made[-1]

    yield start
    for each in made:
        each._process.kill()
        each._process.communicate()


@pytest.mark.costly(1)
@pytest.mark.parametrize("command", ["info", "stats"])
def test_a_store_is_watched_through_its_life(watching, make, tmp_path, command):
    path = tmp_path / "replay"
    buffer = make(path)
    record(buffer, 100)
    buffer.save(tmp_path / "checkpoints", 1)
    watch = watching(command, path, "--json", "--watch", "0.05")
    first = watch.until(lambda d: True)
    assert first["watch"]["rows_per_second"] is None
    assert first["watch"]["exact"] is False
    returns = [sum(t % 4 - 1 for t in range(start, start + 10)) for start in range(0, 100, 10)]
    assert first["watch"]["returns"] == returns[-5:]
    assert first["watch"]["mean_return"] == pytest.approx(sum(returns) / 10)
    assert watch.until(lambda d: d["watch"]["rows_per_second"] == 0)["watch"]["exact"] is False
    record(buffer, 50, 100)
    came = watch.until(lambda d: d["watch"]["rows_per_second"])
    assert came["watch"]["rows_per_second"] > 0
    assert came["watch"]["exact"] is True
    assert came["watch"]["last_write"] == came["time"]
    # Closed, opened again, another store loaded in its place, moved away, there again.
    buffer.close()
    watch.until(lambda d: d["watch"]["exact"])
    buffer = make(path)
    record(buffer, 10, 150)
    watch.until(lambda d: d.get("watch", {}).get("rows_per_second"))
    buffer.load(tmp_path / "checkpoints", 1)
    assert watch.until(lambda d: d.get("watch", {}).get("replaced"))["watch"]["returns"]
    buffer.close()
    path.rename(tmp_path / "aside")
    assert str(path) in watch.until(lambda d: "error" in d)["error"]
    (tmp_path / "aside").rename(path)
    again = watch.until(lambda d: "error" not in d)
    assert again["watch"]["exact"] is True
    assert watch.end() == (130, "")


@pytest.mark.costly
def test_blocks_where_no_terminal_is(watching, store):
    watch = watching("info", store, "-w", "0.05")
    blocks = 0
    while blocks < 3:
        line = watch.line()
        assert line
        blocks += line.startswith("rows a second")
    assert watch.end() == (130, "")


@pytest.mark.costly
def test_on_a_terminal(store):
    """The display is drawn over itself, and the last one stays."""
    process, screen = pty.fork()
    if process == 0:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "diskreplay", "info", str(store), "--watch", "0.05"],
            {**os.environ, "COLUMNS": "80", "LINES": "50", "TERM": "xterm"},
        )
    text = b""
    while text.count(b"rows a second") < 4:
        text += os.read(screen, 65536)
    os.kill(process, signal.SIGINT)
    try:
        while more := os.read(screen, 65536):
            text += more
    except OSError:  # the other end is closed
        pass
    _pid, status = os.waitpid(process, 0)
    os.close(screen)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"\x1b[1A" in text  # up again
    assert b"mean of the last 100" in text


@pytest.mark.parametrize("command", ["info", "stats"])
def test_no_store_at_all(cli, tmp_path, command):
    assert "no such directory" in cli(command, tmp_path / "no", "--watch", code=3).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [(["--watch=0"], 2, "0"), (["--watch", "x"], 2, "Usage"), (["-w", "--bogus"], 2, "bogus")],
)
def test_usage(cli, store, arguments, code, says):
    assert says in cli("info", store, *arguments, code=code).stderr


@pytest.mark.costly
def test_the_number_may_be_left_out_anywhere(watching, store, tmp_path):
    shutil.copytree(store, tmp_path / "copy")
    for arguments in (
        ["info", "--watch", store, "--json"], ["info", store, "--json", "--watch"],
        ["info", "-w", "--json", store],
    ):  # fmt: skip
        watch = watching(*arguments)
        assert watch.until(lambda d: True)["path"] == str(store)
        assert watch.end()[0] == 130
