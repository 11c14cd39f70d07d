"""The id of a process that is known without asking the system."""

import os
import subprocess
import sys

from diskreplay import fork
from tests.processes import ROOT

FORKS = """
import os
from diskreplay import fork

print(os.getpid(), fork.pid, flush=True)
child = os.fork()
if not child:
    print(os.getpid(), fork.pid, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(os.getpid(), fork.pid, flush=True)
"""


def test_it_is_that_of_a_child_after_a_fork():
    assert fork.pid == os.getpid()
    command = [sys.executable, "-c", FORKS]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    pairs = [tuple(map(int, line.split())) for line in said.splitlines()]
    assert all(real == known for real, known in pairs)
    assert pairs[0] == pairs[2] != pairs[1]
    assert fork.pid == os.getpid() != pairs[0][0]


TOLD = """
import os
from diskreplay import fork

class Asks:
    def _after_fork(self):
        print(os.getppid(), fork.pid == os.getpid(), flush=True)

stays, goes = Asks(), Asks()
fork.tell(stays)
fork.tell(goes)
del goes
print(os.getpid(), flush=True)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_who_is_there_is_told_in_the_child():
    command = [sys.executable, "-c", TOLD]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    parent, *told = said.splitlines()
    assert told == [f"{parent} True"]
