"""A pytest plugin: every replay buffer of Stable-Baselines3 is one of diskreplay's.

Also where an algorithm makes one by itself. Says at the end how many were made.
"""

import sys
import types

import pytest
import stable_baselines3  # noqa: F401 - all its modules, before their names are replaced
from stable_baselines3.common import buffers
from stable_baselines3.her import her_replay_buffer

from diskreplay.integrations import sb3

REPLACED = {
    buffers.ReplayBuffer: sb3.DiskReplayBuffer,
    buffers.DictReplayBuffer: sb3.DiskDictReplayBuffer,
    buffers.NStepReplayBuffer: sb3.DiskNStepReplayBuffer,
    her_replay_buffer.HerReplayBuffer: sb3.DiskHerReplayBuffer,
}
made = 0


def count(self, *options, **engine):
    global made
    made += 1
    return set_up(self, *options, **engine)


set_up = sb3.DiskReplayBuffer._set_up
sb3.DiskReplayBuffer._set_up = count
for name, module in list(sys.modules.items()):
    if not name.startswith(("stable_baselines3", "sb3_contrib")):
        continue
    if module in (buffers, her_replay_buffer):
        # What is imported from here is ours, but its own code says ``super(ReplayBuffer, self)``.
        shown = types.ModuleType(name)
        vars(shown).update(vars(module))
        sys.modules[name] = shown
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, shown)
        module = shown
    for key, value in list(vars(module).items()):
        if isinstance(value, type) and value in REPLACED:
            setattr(module, key, REPLACED[value])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """A process of pytest-xdist has ended."""
    global made
    made += node.workeroutput["made"] if hasattr(node, "workeroutput") else 0


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["made"] = made
    elif not made:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # it was SB3 that was tested


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"{made} replay buffers of diskreplay were made")
