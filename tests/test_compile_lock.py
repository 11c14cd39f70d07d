"""A fork waits for a kernel that another thread compiles: the child could never compile one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORKING = """
import os, signal, threading
from diskreplay.compile_lock import alone

begun, go = threading.Event(), threading.Event()

def compile_slowly():
    begun.set()
    go.wait()

threading.Thread(target=alone(compile_slowly)).start()
begun.wait()
threading.Timer(0.2, go.set).start()
child = os.fork()
if not child:
    signal.alarm(60)
    alone(lambda: None)()
    os._exit(0 if go.is_set() else 1)
_, status = os.waitpid(child, 0)
alone(lambda: None)()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_waits_and_the_child_can_compile():
    done = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
