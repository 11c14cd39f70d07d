"""A client of ours never starts a Ray cluster by itself, and never meets another one."""

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT

PATIENCE = 300  # seconds


@pytest.mark.parametrize("which", ["another", "same"])
def test_late_calls_start_no_cluster_and_old_handles_are_refused(tmp_path, which):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools' / 'torture'}"}
    environment |= {"RAY_worker_niceness": "0", "RAY_raylet_start_wait_time_s": "300"}
    environment["RAY_AUTH_MODE"] = "disabled"
    environment.pop("RAY_ENABLE_AUTO_CONNECT", None)  # which would hide what is tested
    done = subprocess.run(
        [sys.executable, "-m", "tests.on_ray.after_shutdown", tmp_path, which], cwd=ROOT, text=True,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["held"]), done.stdout
