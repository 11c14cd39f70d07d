"""Processes for which the modes of files and directories hold, also where root runs the tests."""

import os
import subprocess
import sys

from tests.processes import ROOT

# It stays root, but without what lets root pass by modes and owners: another user could not read
# the package or Python where they lie below a directory of root's own.
_MODES_HOLD = () if os.geteuid() else (
    "setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner",
    "--inh-caps=-dac_override,-dac_read_search,-fowner",
)  # fmt: skip

ATTEMPT = """
def attempt(what, call):
    try:
        call()
    except Exception as error:
        print(f"{what}: {type(error).__module__}.{type(error).__name__}: {error}")
    else:
        print(f"{what}: went through")
"""


def run_under_modes(code, *arguments):
    """What Python prints that runs `code`, which may call `attempt` of `ATTEMPT`."""
    done = subprocess.run(
        [*_MODES_HOLD, sys.executable, "-c", ATTEMPT + code, *map(str, arguments)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def check_refused(line, path):
    """That a line of `attempt` says it as it is said everywhere."""
    _what, kind, text = line.split(": ", 2)
    assert kind == "diskreplay.errors.StorePermissionError", line
    assert str(path) in text, line
    assert "owner and mode" in text, line
