"""The errors for segments whose files are missing, or are not the newest."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.store.field import Field
from diskreplay.store.field_paths import FieldPaths
from diskreplay.store.manifest import NAME
from diskreplay.store.missing import all_there, check_used

FIELD = Field("f", (), np.dtype("u1"), "lz4", 16, 3, 8)


def column(root):
    paths = FieldPaths(root, 0, FIELD)
    return SimpleNamespace(field=FIELD, files=SimpleNamespace(paths=paths, root=root))


def raised(root, error, envs=(3, 5), count=(0, 0, 0, 40, 40, 40)):
    with all_there(column(root), (2, 1), np.array(envs), np.array(count)):
        raise error


def missing(path):
    return StorageError(errno.ENOENT, "no such file", os.fspath(path))


def test_a_missing_file_names_the_rows_that_it_had(tmp_path):
    path = FieldPaths(tmp_path, 0, FIELD).chunk(2, 1)
    with pytest.raises(CorruptSegmentError) as caught:
        raised(tmp_path, missing(path))
    text = str(caught.value)
    assert f"{path}: missing, and with it rows 32 to 39 of env 3 and of 1 more env;" in text
    assert f"`diskreplay verify {tmp_path} --repair`" in text
    assert isinstance(caught.value.__cause__, StorageError)
    with pytest.raises(CorruptSegmentError, match="rows 32 to 47 of env 5; restore the file"):
        raised(tmp_path, missing(path), envs=[5], count=[0] * 5 + [99])


def test_of_a_checkpoint_another_one_is_the_remedy(tmp_path):
    (tmp_path / NAME).parent.mkdir(parents=True)
    (tmp_path / NAME).touch()
    with pytest.raises(CorruptSegmentError, match="or load another checkpoint") as caught:
        raised(tmp_path, missing(FieldPaths(tmp_path, 0, FIELD).chunk(2, 1)))
    assert "--repair" not in str(caught.value)


def test_other_errors_are_left_as_they_are(tmp_path):
    path = FieldPaths(tmp_path, 0, FIELD).chunk(2, 1)
    for error in (
        missing(tmp_path / "elsewhere"), StorageError(errno.EIO, "x", os.fspath(path)),
        FileNotFoundError(errno.ENOENT, "x", os.fspath(path)), ValueError("x"), KeyboardInterrupt(),
    ):  # fmt: skip
        with pytest.raises(type(error)) as caught:
            raised(tmp_path, error)
        assert caught.value is error
    with all_there(column(tmp_path), (2, 1), np.array([3]), np.zeros(6)):
        pass


def shard(used):
    """That of rows 16 to 31 of envs 3 to 5, or of the last two where there are only five."""
    return SimpleNamespace(
        used=None if used is None else np.array(used), envs=slice(3, 6), start=16, stop=32,
        key=(1, 1),
    )  # fmt: skip


def used(tmp_path, rows, first, stop):
    check_used(column(tmp_path), shard(rows), np.array(first), np.array(stop))


def test_a_shard_that_has_all_rows_that_there_have_to_be(tmp_path):
    for rows, first, stop in (
        (None, [0] * 6, [99] * 6),
        ([5, 16, 0], [0] * 6, [9, 9, 9, 21, 32, 16]),
        ([5, 16, 0], [0] * 6, [9, 9, 9, 21, 99, 3]),
        ([5, 16, 0], [0] * 5, [9, 9, 9, 21, 32]),
        ([5, 0, 0], [0, 0, 0, 0, 30, 32], [9, 9, 9, 21, 16, 32]),  # rows that have left
        ([5, 0, 0], [0, 0, 0, 0, 32, 32], [9, 9, 9, 21, 40, 40]),
    ):
        used(tmp_path, rows, first, stop)


@pytest.mark.parametrize(
    ("rows", "stop", "said"),
    [
        ([5, 16, 0], [9, 9, 9, 22, 32, 16], "rows 21 to 21 of env 3, which the"),
        ([5, 15, 0], [9, 9, 9, 21, 99, 16], "rows 31 to 31 of env 4, which the"),
        ([5, 8, 1], [9, 9, 9, 21, 99, 20], "rows 24 to 31 of env 4 and of 1 more env, which"),
    ],
)
def test_one_that_lacks_rows_is_not_the_newest(tmp_path, rows, stop, said):
    with pytest.raises(CorruptSegmentError, match=said) as caught:
        used(tmp_path, rows, [0] * 6, stop)
    assert str(FieldPaths(tmp_path, 0, FIELD).open_segment(1, 1)) in str(caught.value)
