"""The memory that a process may have: the machine's, or less in a container."""

import os

import pytest

from diskreplay.store import machine


def total():
    with open("/proc/meminfo") as file:
        return int(file.readline().split()[1]) << 10


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Writes what a system says of control groups: lines, and limits by their files."""

    def write(lines, limits):
        listed, mounted = tmp_path / "cgroup", tmp_path / "mounted"
        listed.write_text(lines)
        for name, limit in limits.items():
            path = mounted / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{limit}\n")
        monkeypatch.setattr(machine, "_GROUPS", listed)
        monkeypatch.setattr(machine, "_MOUNTED", mounted)
        machine.memory.cache_clear()

    yield write
    machine.memory.cache_clear()


def test_a_process_has_no_more_than_the_machine():
    machine.memory.cache_clear()
    assert 0 < machine.memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory() < total() * 1.1


V1 = "9:name=systemd:/a/b\n4:cpu,memory:/a/b\n0::/c\n"
FILE = "memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        ("0::/\n", {"memory.max": 4096}),
        ("0::/a/b\n", {"a/b/memory.max": 4096, "a/memory.max": 8192, "memory.max": "max"}),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": 4096}),  # the one around it
        ("0::/a:b\n", {"a:b/memory.max": 4096}),
        ("0::/machines/own\n", {"memory.max": 4096}),  # its own group is all that is mounted
        ("0::/../a\n", {"memory.max": 4096}),
        (V1, {f"memory/a/b/{FILE}": 4096, f"memory/{FILE}": 9223372036854771712}),
        (V1, {f"memory/a/b/{FILE}": 8192, f"memory/a/{FILE}": 4096, f"a/b/{FILE}": 1}),
        (V1, {f"memory/{FILE}": 4096, "c/memory.max": "max"}),
        (V1, {f"memory/{FILE}": 8192, "c/memory.max": 4096}),  # of both
    ],
)
def test_a_limit_of_its_group_is_what_it_has(groups, lines, limits):
    groups(lines, limits)
    assert machine.memory() == 4096


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        ("", {"memory.max": 4096}),
        ("rubbish\n\n::\n0:\n", {}),
        ("0::/a\n", {}),
        ("0::/a\n", {"a/memory.max": "max"}),
        ("0::/a\n", {"a/memory.max": "rubbish", "memory.max": ""}),
        ("0::/a\n", {"a/memory.max": 1 << 62, "memory.max": 0}),
        ("3:cpu:/a\n", {f"memory/a/{FILE}": 4096}),
    ],
)
def test_without_a_limit_it_has_the_machine_s(groups, lines, limits):
    groups(lines, limits)
    assert machine.memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_system_is_asked_once(groups):
    groups("0::/\n", {"memory.max": 4096})
    assert machine.memory() == 4096
    (machine._MOUNTED / "memory.max").unlink()
    machine._GROUPS.unlink()
    assert machine.memory() == 4096
    machine.memory.cache_clear()
    assert machine.memory() > 4096
