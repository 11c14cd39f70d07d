"""Who may read and write the files of a store: as the umask says, of all of them."""

import errno
import os

import pytest

from diskreplay.store import files, modes
from tests.disks import needs_leases
from tests.permission import run_under_modes
from tests.processes import run

# Frames of a megabyte a segment, whose files are used again once the ring has turned.
RECORD = """
import os, sys
from pathlib import Path
import numpy as np
from gymnasium.spaces import Box, Discrete
import diskreplay
from diskreplay.store import files, leases
from tests.numbered import FRAME, ROWS, add, upkeep

os.umask(int(sys.argv[1], 8))
at = Path(sys.argv[2])
leases.is_of_one_machine = lambda path: True  # as on a file system that has leases
again, blank = [], files.blank
def blanked(path, size):
    blank(path, size)
    again.append(os.stat(path).st_ino)
files.blank = blanked
buffer = diskreplay.ReplayBuffer(
    at / "store", observation_space=Box(0, 255, FRAME, np.uint8), action_space=Discrete(4),
    compressor=sys.argv[3], capacity=2 * ROWS, segment_rows=ROWS,
)
for step in range(8):
    add(buffer, ROWS)
    buffer.flush()
    upkeep(buffer)
buffer.save(at / "checkpoints", 1)
add(buffer, ROWS // 2)
upkeep(buffer)
there = {path.stat().st_ino for path in at.rglob("*")}
print(len(there.intersection(again)))
sys.stdout.flush()
os._exit(0)  # what only a live store has stays there
"""


@needs_leases
@pytest.mark.parametrize("compressor", ["raw", "lz4"])
@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022, 0o002])
def test_as_the_umask_says(tmp_path, umask, compressor):
    ended = run(RECORD, oct(umask), tmp_path, compressor, check=True)
    assert (int(ended.stdout) > 0) == (compressor == "raw"), "files that were used again are there"
    found = {True: set(), False: set()}
    for path in [each for each in tmp_path.rglob("*") if each.is_file()]:
        mode = path.stat().st_mode & 0o777
        found[bool(mode & 0o200)].add(mode)
    assert found == {True: {0o666 & ~umask}, False: {0o444 & ~umask}}


def test_a_seal_takes_away_no_more_than_writing(tmp_path):
    path = tmp_path / "a"
    for mode in (0o600, 0o640, 0o664, 0o666, 0o750):
        path.write_bytes(b"x")
        path.chmod(mode)
        files.seal(path)
        assert path.stat().st_mode & 0o777 == mode & 0o555
        path.unlink()


@pytest.mark.parametrize(
    ("directory", "sealed", "blank"),
    [(0o700, 0o400, 0o600), (0o750, 0o440, 0o640), (0o755, 0o444, 0o644), (0o775, 0o444, 0o664)],
)
def test_a_file_that_is_used_again_is_for_those_of_a_new_one(tmp_path, directory, sealed, blank):
    below = tmp_path / "below"
    below.mkdir()
    (below / "a").write_bytes(b"xyz")
    os.chmod(below / "a", sealed)
    os.chmod(below, directory)
    files.blank(below / "a", 3)
    assert (below / "a").read_bytes() == bytes(3)
    assert (below / "a").stat().st_mode & 0o777 == blank


# A umask that denies the owner, for a while, and what is made meanwhile.
DENY = """
import os, sys
from pathlib import Path
import numpy as np
from gymnasium.spaces import Box, Discrete
import diskreplay
from diskreplay.store import temporary
from tests.numbered import FRAME, ROWS, add

at = Path(sys.argv[1])
buffer = diskreplay.ReplayBuffer(
    at / "store", observation_space=Box(0, 255, FRAME, np.uint8), action_space=Discrete(4),
    compressor=sys.argv[3], capacity=8 * ROWS, segment_rows=ROWS,
)
os.umask(int(sys.argv[2], 8))
attempt("add", lambda: add(buffer, 3 * ROWS))
attempt("flush", buffer.flush)
attempt("save", lambda: buffer.save(at / "new" / "checkpoints", 1))
attempt("temporary", lambda: temporary.make().remove())
os.umask(0o022)
attempt("add", lambda: add(buffer, ROWS))
attempt("save", lambda: buffer.save(at / "new" / "checkpoints", 2))
attempt("close", buffer.close)
saved = at / "new" / "checkpoints" / "replay_ckpt.2"
for path in (at / "store", saved):
    with diskreplay.open(path) as reader:
        print(len(reader.take("reward", np.arange(*reader.bounds[0]))) == 4 * ROWS)
"""


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
@pytest.mark.parametrize("umask", [0o377, 0o777])
def test_what_is_made_under_a_umask_that_denies_the_owner_can_be_used(
    tmp_path, monkeypatch, umask, compressor
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lines = run_under_modes(DENY, tmp_path, oct(umask), compressor).splitlines()
    assert [line.partition(": ")[2] for line in lines[:7]] == ["went through"] * 7
    assert lines[7:] == ["True", "True"]


@pytest.mark.parametrize("umask", [0o377, 0o777])
def test_the_owner_may_use_each_kind_of_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.make_dirs(tmp_path / "a" / "b")
        files.write(tmp_path / "a" / "written", [b"x"])
        files.copy(tmp_path / "a" / "written", tmp_path / "a" / "copied")
        os.close(files.allocate(tmp_path / "a" / "allocated", 3))
        os.close(files.open_plain(tmp_path / "a" / "lock", os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    made = dict.fromkeys(["written", "copied", "allocated", "lock"], 0o600)
    assert modes == {"a": 0o700, "b": 0o700, **made}


def test_a_file_system_that_has_modes_of_its_own_is_left_as_it_is(tmp_path, monkeypatch):
    def refused(path, mode):
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(modes.os, "chmod", refused)
    before = os.umask(0o200)
    try:
        files.make_dirs(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o577
