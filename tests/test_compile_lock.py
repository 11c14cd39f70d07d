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

INTERRUPTED = """
import os, signal, threading, time
from diskreplay.compile_lock import alone

begun, go, told = threading.Event(), threading.Event(), []

def compile_slowly():
    begun.set()
    go.wait()

def raises(number, frame):
    told.append(go.is_set())
    raise KeyboardInterrupt

def interrupt(main):
    begun.wait()
    limit = time.monotonic() + 2
    while signal.getsignal(signal.SIGINT) is raises and time.monotonic() < limit:
        time.sleep(0.01)
    signal.pthread_kill(main, signal.SIGINT)
    signal.pthread_kill(main, signal.SIGINT)
    go.set()

signal.signal(signal.SIGINT, raises)
signal.alarm(20)
threading.Thread(target=alone(compile_slowly)).start()
threading.Thread(target=interrupt, args=(threading.main_thread().ident,)).start()
begun.wait()
try:
    child = os.fork()
    if not child:
        signal.alarm(10)
        alone(lambda: None)()
        os._exit(0 if signal.getsignal(signal.SIGINT) is raises and not told else 1)
    signal.pause()  # not for long: Ctrl-C has come
except KeyboardInterrupt:
    pass
_, status = os.wait()
alone(lambda: None)()
print(os.waitstatus_to_exitcode(status), told, signal.getsignal(signal.SIGINT) is raises)
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_a_fork_waits_and_the_child_can_compile():
    done = run(FORKING)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_ctrl_c_while_a_fork_waits_comes_behind_it():
    done = run(INTERRUPTED)
    found = done.returncode, done.stdout, done.stderr
    assert found == (0, "0 [True] True\n", "")
