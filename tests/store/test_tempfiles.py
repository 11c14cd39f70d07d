"""Which directories a listing shows, whatever is exchanged, put there or retired meanwhile."""

import itertools
import os
from pathlib import Path

import pytest

from diskreplay.store import tempfiles
from tests.permission import run_under_modes

NAMES = r"replay_ckpt\..+"


class Meanwhile:
    """Has so many of the steps of another process done before the listing, before what it names is
    looked at, and before the next look."""

    def __init__(self, monkeypatch, steps, counts):
        self._steps, self._counts = iter(steps), iter(counts)
        scandir, is_dir = os.scandir, Path.is_dir

        def listing(path):
            self.go_on()
            with scandir(path) as entries:
                found = list(entries)
            self.go_on()
            return Listing(found)

        def look(path):
            seen = is_dir(path)
            self.go_on()
            return seen

        monkeypatch.setattr(os, "scandir", listing)
        monkeypatch.setattr(Path, "is_dir", look)

    def go_on(self):
        for step in itertools.islice(self._steps, next(self._counts, 0)):
            step()


class Listing(list):
    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        pass


def checkpoint(path, content):
    path.mkdir(parents=True)
    (path / "content").write_text(content)


@pytest.mark.parametrize("counts", list(itertools.product(range(4), repeat=3)), ids=str)
def test_a_place_whose_exchange_by_renames_is_under_way(tmp_path, monkeypatch, counts):
    place, room = tmp_path / "replay_ckpt.7", tmp_path / f".replay_ckpt.7.tmp-{'0' * 16}"
    made, aside = room / "replay_ckpt.7", room / "aside"
    checkpoint(place, "old")
    checkpoint(made, "new")
    steps = (
        lambda: place.rename(aside), lambda: made.rename(place), lambda: aside.rename(made)
    )  # fmt: skip
    with monkeypatch.context() as patched:
        Meanwhile(patched, steps, counts)
        found = tempfiles.places(tmp_path, NAMES)
    assert list(found) == [place]
    assert found[place] in (place, aside)


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("counts", list(itertools.product(range(3), repeat=2)), ids=str)
def test_the_only_checkpoint_is_retired_for_a_new_one(tmp_path, monkeypatch, counts, is_link):
    old, new = tmp_path / "replay_ckpt.1", tmp_path / "replay_ckpt.2"
    checkpoint(tmp_path / "elsewhere", "old")
    if is_link:
        old.symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").rename(old)
    checkpoint(tmp_path / "made", "new")
    steps = lambda: (tmp_path / "made").rename(new), lambda: old.rename(tmp_path / "retired")
    with monkeypatch.context() as patched:
        Meanwhile(patched, steps, counts)
        found = tempfiles.places(tmp_path, NAMES)
    assert found == (
        {old: old} if counts[0] == 0 else {old: old, new: new} if counts[0] == 1 else {new: new}
    )


def test_what_is_no_directory(tmp_path):
    (tmp_path / "replay_ckpt.1").write_text("a file")
    (tmp_path / "replay_ckpt.2").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "replay_ckpt.3")
    checkpoint(tmp_path / "other_ckpt.4", "of another buffer")
    (tmp_path / f".replay_ckpt.5.tmp-{'0' * 16}").mkdir()
    assert tempfiles.places(tmp_path, NAMES) == {}
    assert tempfiles.places(tmp_path / "gone", NAMES) == {}
    assert tempfiles.places(tmp_path / "replay_ckpt.1", NAMES) == {}


LISTED = """
import sys
from pathlib import Path
from diskreplay.store import tempfiles
print(sorted(path.name for path in tempfiles.places(Path(sys.argv[1]), r"replay_ckpt\\..+")))
"""


def test_what_another_user_is_making_and_lets_nobody_look_at(tmp_path):
    """With umask 077, say; the checkpoints that are there are all that can be loaded."""
    (tmp_path / "replay_ckpt.1").mkdir()
    closed = tmp_path / f".replay_ckpt.2.tmp-{16 * '0'}"
    closed.mkdir()
    closed.chmod(0)
    try:
        assert run_under_modes(LISTED, tmp_path) == "['replay_ckpt.1']\n"
    finally:
        closed.chmod(0o700)
