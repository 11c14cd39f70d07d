"""A pytest plugin: every replay buffer of Tianshou is one of diskreplay's.

All arrays of numbers are on disk, small ones too, but flags. With NEXT_OF=1 in the environment what
observations have in common is stored once. Says at the end how many were made.
"""

import os
import sys

import tianshou.data

from diskreplay.integrations import tianshou as ours
from diskreplay.integrations.tianshou_disk import BufferOnDisk

REPLACED = {
    getattr(tianshou.data, name.removeprefix("Disk")): getattr(ours, name)
    for name in ours.__all__
    if name.startswith("Disk")
}
made = 0


def count(self, options):
    global made
    made += 1
    set_up(self, options._replace(min_bytes=2, next_of=os.environ.get("NEXT_OF") == "1"))


set_up = BufferOnDisk._set_up
BufferOnDisk._set_up = count
for name, module in list(sys.modules.items()):
    # Its own buffers consist of its own.
    if name.startswith("tianshou") and not name.startswith("tianshou.data.buffer"):
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and value in REPLACED:
                setattr(module, key, REPLACED[value])


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"{made} replay buffers of diskreplay were made")
