"""Attachments and rows of one checkpoint, which another process replaces or removes meanwhile."""

import contextlib
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidInputError,
    StoreMovedError,
)
from diskreplay.one_checkpoint import loaded_with, only
from diskreplay.store.place import Place

OBSERVATION = Box(0, 255, (8,), np.uint8)


@pytest.fixture
def buffer(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=OBSERVATION, action_space=Discrete(2), capacity=100
    ) as buffer:
        yield buffer


def save(buffer, rows):
    """So many rows, and what says so."""
    while buffer.add_count < rows:
        buffer.add(OBSERVATION.sample(), 0, float(buffer.add_count), False, False)
    return buffer.save(
        buffer.path.parent / "saved", 1, attachments={"rows.txt": str(rows).encode()}
    )


def rows_said(attached):
    return int(attached["rows.txt"].read_text())


def both(buffer, path, read=rows_said, load=None):
    said, found = loaded_with(
        path, read, load or (lambda: buffer.load(path.parent, 1)), needs="rows.txt"
    )
    return said, found.rows, buffer.add_count


def once(act):
    """`act`, at the first call of what it returns."""
    calls = iter([act])
    return lambda: next(calls, lambda: None)()


def test_what_is_read_is_of_the_rows(buffer):
    path = save(buffer, 5)
    save_more = once(lambda: save(buffer, 9))
    assert both(buffer, path) == (5, 5, 5)
    assert both(buffer, path, load=lambda: (save_more(), buffer.load(path.parent, 1))[1]) == (
        9,
        9,
        9,
    )


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_replaced_while_it_is_read(buffer, fails):
    """What `read` raises then, of a file that is gone say, is no matter."""
    path = save(buffer, 5)
    save_more = once(lambda: save(buffer, 9))

    def read(attached):
        said = rows_said(attached)
        save_more()
        if fails and said == 5:
            raise KeyError("the end of a file")
        return said

    assert both(buffer, path, read) == (9, 9, 9)


def test_what_read_raises_of_one_that_is_there(buffer):
    path = save(buffer, 5)
    with pytest.raises(KeyError, match="mine"):
        both(buffer, path, lambda attached: {}["mine"])


@pytest.mark.parametrize("amid", ["read", "load"])
def test_it_is_removed(buffer, amid):
    path = save(buffer, 5)
    save(buffer, 9)
    buffer.add(OBSERVATION.sample(), 0, 0.0, False, False)

    def read(attached):
        said = rows_said(attached)
        if amid == "read":
            shutil.rmtree(path)
        return said

    def load():
        if amid == "load":
            shutil.rmtree(path)
        return buffer.load(path.parent, 1)

    with pytest.raises(CheckpointNotFoundError, match="not there any more; nothing was loaded"):
        both(buffer, path, read, load)
    assert buffer.add_count == 10


def test_one_that_is_not_there(buffer, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="not there any more"):
        both(buffer, tmp_path / "saved" / "replay_ckpt.7")


def test_bytes_that_were_changed_are_not_read(buffer):
    path = save(buffer, 5)
    file = path / "is_final/saved/attachments/rows.txt"
    file.chmod(0o644)
    file.write_bytes(b"6")
    with pytest.raises(CorruptCheckpointError, match=r"rows\.txt: its checksum"):
        both(buffer, path, read=lambda attached: pytest.fail("it was read"))


def test_a_checkpoint_of_something_else(buffer, tmp_path):
    save(buffer, 5)
    path = buffer.save(tmp_path / "others", 1)
    with pytest.raises(InvalidInputError, match=r"no attachment rows\.txt"):
        both(buffer, path)


def test_each_of_several_has_to_be_there(buffer, tmp_path):
    """One who reads, and calls another one who reads."""
    path = save(buffer, 5)
    with (
        contextlib.closing(Place(path)) as there,
        contextlib.closing(Place(buffer.path)) as other,
        only(there),
    ):
        with only(other):
            buffer.load(path.parent, 1)
        save(buffer, 9)
        with only(other), pytest.raises(StoreMovedError):
            buffer.load(path.parent, 1)
        with pytest.raises(StoreMovedError):
            buffer.load(path.parent, 1)
        assert buffer.add_count == 9
    buffer.load(path.parent, 1)
