"""Jobs in processes of their own."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import crew  # noqa: E402 - of the tools


def test_every_job_has_its_outcome():
    def work(job):
        if job == 3:
            raise ValueError("three")
        if job == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * job

    found = {outcome.job: outcome for outcome in crew.run(work, range(6), workers=2)}
    assert {job: outcome.value for job, outcome in found.items()} == {
        0: 0, 1: 2, 2: 4, 3: None, 4: None, 5: 10,
    }  # fmt: skip
    assert "ValueError: three" in found[3].trouble
    assert "exit code -9" in found[4].trouble


def test_one_that_is_stopped_has_the_outcomes_so_far(capsys, monkeypatch):
    calls, wait = itertools.count(), crew.wait

    def interrupted(*arguments):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return wait(*arguments)

    def work(job):
        if job == 2:
            signal.pause()
        return job

    monkeypatch.setattr(crew, "wait", interrupted)
    assert [outcome.value for outcome in crew.run(work, range(5), workers=1)] == [0, 1]
    assert capsys.readouterr().err.startswith("stopped: ")


def test_what_a_job_was_cut_amid_is_not_left(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "MEMORY", str(tmp_path))

    def work(job):
        Path(crew.MEMORY, "image").write_bytes(b"large")
        os.kill(os.getpid(), signal.SIGKILL)

    (outcome,) = crew.run(work, [0])
    assert "exit code -9" in outcome.trouble
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, crew
def work(job):
    if job < 2:
        return os.getpid()
    os.kill(os.getppid(), signal.SIGKILL)
for outcome in crew.run(work, range(3), workers=2):
    print(outcome.value, flush=True)
"""


def test_workers_end_with_who_asked():
    """Their output has an end when none is left."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=TORTURE, capture_output=True, check=False, timeout=20
    )
    assert done.returncode == -signal.SIGKILL
