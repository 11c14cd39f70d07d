"""Errors of the operating system, as ours."""

import errno
import itertools
import os

import pytest

from diskreplay import errors
from diskreplay.store.system_errors import errno_if_full, explained, says_lost, translated


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        (errno.ENOSPC, errors.DiskFullError, "free some space"),
        (errno.EDQUOT, errors.DiskFullError, "free some space"),
        (errno.EACCES, errors.StorePermissionError, "check the owner"),
        (errno.EPERM, errors.StorePermissionError, "check the owner"),
        (errno.EROFS, errors.StorePermissionError, "can be written to"),
        (errno.EXDEV, errors.StorageError, "copy the whole store to a volume"),
        (errno.EMFILE, errors.StorageError, "ulimit -n"),
        (errno.ENFILE, errors.StorageError, "ulimit -n"),
        (errno.EIO, errors.StorageError, "mend the cause"),
    ],
)
def test_translated(tmp_path, code, kind, hint):
    with pytest.raises(kind) as caught, explained(tmp_path / "x", "cannot do it"):
        raise OSError(code, os.strerror(code))
    assert type(caught.value) is kind
    assert caught.value.errno == code
    assert caught.value.filename == str(tmp_path / "x")
    assert "cannot do it" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert hint in str(caught.value)


def test_explained_leaves_other_errors_alone(tmp_path):
    ours = errors.DiskFullError(errno.ENOSPC, "said already", "elsewhere")
    for error in (ours, ValueError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, explained(tmp_path, "cannot"):
            raise error
        assert caught.value is error


def test_a_busy_directory_is_named_as_a_mount_point():
    error = translated(OSError(errno.EBUSY, "busy"), "/x", "cannot rename")
    assert type(error) is errors.StorageError
    assert "mounted at this very directory" in str(error)


def test_an_error_without_words_has_its_own():
    error = translated(OSError("no number, no words"), "/x", "cannot do it")
    assert error.errno is None
    assert "cannot do it: no number, no words" in str(error)


def test_nothing_is_raised_where_nothing_was():
    with explained("/x", "cannot do it"):
        pass


LOST = [errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.EBADMSG]
UNKNOWN = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.ENOSPC,
           errno.EINTR, errno.ETIMEDOUT, errno.ESTALE]  # fmt: skip


def test_which_errors_say_that_a_file_is_lost():
    for code in LOST:
        assert says_lost(OSError(code, "x"))
        assert says_lost(errors.StorageError(code, "x", "/x"))
    for code in UNKNOWN:
        assert not says_lost(OSError(code, "x"))
    assert says_lost(OSError("without a number"))
    assert says_lost(errors.CorruptSegmentError("x"))


def chain(*found, context=False):
    """Errors of which each comes of the one before it."""
    for error, cause in itertools.pairwise(found):
        if context:
            error.__context__ = cause
        else:
            error.__cause__ = cause
    return found[0]


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_found_behind_other_errors(tmp_path, code, context):
    full = OSError(code, "full")
    assert errno_if_full(full, tmp_path) == code
    left = chain(ValueError(), RuntimeError(), OSError(errno.EIO, "x"), full, context=context)
    assert errno_if_full(left, tmp_path) == code
    assert errno_if_full(chain(KeyError(), TypeError(), full), tmp_path) == code


def test_an_error_of_its_own_meaning_comes_of_no_full_disk(tmp_path):
    """It is raised where one was dealt with."""
    full = OSError(errno.ENOSPC, "full")
    for own in (KeyError("x"), TypeError("x"), AssertionError(), NotImplementedError(),
                UnicodeError(), KeyboardInterrupt()):  # fmt: skip
        assert errno_if_full(chain(own, full, context=True), tmp_path) is None
        assert errno_if_full(chain(RuntimeError(), own, full, context=True), tmp_path) is None
    said = chain(RuntimeError("x"), full, context=True)
    assert errno_if_full(said, tmp_path) == errno.ENOSPC
    said.__suppress_context__ = True
    assert errno_if_full(said, tmp_path) is None


def test_a_file_on_another_disk_says_nothing_of_this_one(tmp_path):
    for name, code in (
        (str(tmp_path / "x"), errno.ENOSPC), (bytes(tmp_path), errno.ENOSPC),
        (str(tmp_path / "no" / "such"), errno.ENOSPC), ("/dev/full", None),
        ("/proc/gone", None), (None, errno.ENOSPC),
    ):  # fmt: skip
        full = OSError(errno.ENOSPC, "full", name)
        assert errno_if_full(full, tmp_path) == code, name
    full = OSError(errno.ENOSPC, "full", "/dev/full")
    assert errno_if_full(chain(full, OSError(errno.ENOSPC, "full")), tmp_path) == errno.ENOSPC


def test_what_does_not_come_of_a_full_disk(tmp_path):
    full, other = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")
    assert errno_if_full(other, tmp_path) is None
    assert errno_if_full(ValueError(), tmp_path) is None
    error = chain(ValueError(), other, full)
    assert errno_if_full(error, tmp_path, before=other) is None  # and what is behind it
    assert errno_if_full(error, tmp_path, before=full) is None
    assert errno_if_full(error, tmp_path, before=KeyError()) == errno.ENOSPC


def test_errors_in_a_circle_come_to_an_end(tmp_path):
    one, two = ValueError(), KeyError()
    one.__cause__, two.__cause__ = two, one
    assert errno_if_full(one, tmp_path) is None
