"""`diskreplay view`: what it prints, whom it answers, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from diskreplay.cli.app import app
from tests.pictures.making import record
from tests.processes import Process

CODE = """
import sys
sys.argv[0] = "diskreplay"
from diskreplay.cli.app import main
main()
"""


def run(*arguments):
    return CliRunner().invoke(app, ["view", *map(str, arguments)])


def started(*arguments):
    return Process(CODE, "view", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_it_serves_until_it_is_interrupted(tmp_path):
    record(tmp_path / "store", (3, 4))
    with started(tmp_path, "--port", "0") as process:
        url = process.stdout.readline().strip()
        address, _mark, token = url.partition("/?token=")
        assert address.startswith("http://127.0.0.1:")
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(f"{address}/api/stores")
        refused.value.close()
        request = urllib.request.Request(
            f"{address}/api/stores", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request) as answer:
            (store,) = json.load(answer)["stores"]
            assert "server" not in answer.headers
        assert store["path"] == str(tmp_path / "store")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""


def test_a_host_that_others_can_reach_is_warned_of(tmp_path):
    record(tmp_path / "store", (3,))
    with started(tmp_path, "--port", "0", "--host", "0.0.0.0") as process:
        url = process.stdout.readline()
        assert f"http://{socket.gethostname()}:" in url
        process.send_signal(signal.SIGTERM)
        process.wait()
        warned = " ".join(process.stderr.read().split())
    assert "warning: whoever can reach 0.0.0.0 and has the token can read these stores" in warned


def test_a_port_that_is_taken(tmp_path):
    record(tmp_path / "store", (3,))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(tmp_path, "--port", taken.getsockname()[1])
    assert done.exit_code == 4
    assert "in use" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([".", "--token", "short"], "token: 16 or more letters"),
        ([".", "--token", "a token with blanks"], "token: 16 or more letters"),
        ([".", "--name", "*"], "name: a host's name expected"),
        ([".", "--name", "*lan"], "name: a host's name expected"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, "--port", "0")
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert "http://" not in done.output  # nothing is served


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("diskreplay.view")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = run(tmp_path)
    assert done.exit_code == 7
    assert 'pip install "diskreplay[view]"' in " ".join(done.output.split())
