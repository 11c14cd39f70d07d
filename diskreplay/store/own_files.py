"""Files of a store that are also another one's, or another user's, before it is written to."""

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from diskreplay.errors import StorageError, StorePermissionError
from diskreplay.store import commit_page, files, private
from diskreplay.store.system_errors import explained


def make_own(root: Path) -> None:
    """Give a store files of its own where it has some together with another directory, which
    ``cp -al`` made, say, and would write to them in place: its rows would change the other store's,
    a backup mostly. So too where files are another user's, after a run as root, say: nobody else
    can make them read-only once they are full, or even write to them. What is read-only is never
    written to, and is left.

    The caller has locked the store. After a kill the next opening does the rest.
    """
    page, live = private.commit_page(root), private.directory(root)
    # Actors have these mapped; and a lock that is held is no lock at another file.
    stay = {private.lock_file(root), private.taker(root), *private.rings(root)}
    # diskreplay makes no second name of the page. What another user has written to a store shows
    # among its private files and in its record, or they have begun nothing.
    first = [root / "zarr.json", *(path for path in files.listed(live) if path not in stay)]
    # Among the copies that are not whole, which an opening removes: one of them says that what is
    # begun here is not done, since only the last step tells readers.
    beside, begun = live / "unsealed.own", live / "unsealed.others"
    if not (files.is_there(begun) or _is_shared(page) or any(map(_is_of_others, first))):
        return
    kept = {page, begun, *stay}
    files.remove(beside)  # of a kill: it may have been copied by a hard link since
    found = [Path(base, name) for base, _dirs, names in os.walk(root) for name in sorted(names)]
    wanted = [path for path in found if path not in kept and _is_not_own(path)]
    _check_may_replace(root, wanted)
    if not _is_shared(page):
        files.write(begun, [])
        files.sync_dirs([live])
    for path in wanted:
        _copy(path, beside)
        files.rename(beside, path)
    # Before the page, by which the next opening would think that all is done.
    files.sync_dirs({path.parent for path in found})
    _copy(page, beside)
    with commit_page.exchanged(page):
        files.rename(beside, page)
    files.sync_dirs([page.parent])
    files.remove(begun)


def _check_may_replace(root: Path, paths: Iterable[Path]) -> None:
    """Refuse what could not be done to its end, before anything is changed."""
    for path in paths:
        for each, needed in ((path, os.R_OK), (path.parent, os.W_OK | os.X_OK)):
            if not os.access(each, needed):
                with explained(each, "cannot look at it"):
                    owner = os.lstat(each).st_uid
                raise StorePermissionError(
                    errno.EACCES,
                    f"it belongs to {_user(owner)}, who has written to the store, and "
                    f"{_user(os.geteuid())} may not replace it: give the whole store to one user, "
                    f"as by `chown -R {_user(os.geteuid())} {root}`, and go on as that one",
                    os.fspath(each),
                )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container
        return str(number)


def _copy(path: Path, beside: Path) -> None:
    try:
        files.copy(path, beside)
        files.sync([beside])
    except BaseException:  # on a full disk it would take what is left
        with contextlib.suppress(StorageError):  # then the next opening removes it
            files.remove(beside)
        raise


def _is_shared(path: Path) -> bool:
    """Whether it is a file that may be written to and has another name."""
    with explained(path, "cannot look at the file"):
        try:
            about = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):  # whoever needs it says so
            return False
    return about.st_nlink > 1 and _may_be_written_to(about)


def _may_be_written_to(about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) and bool(about.st_mode & 0o222)


def _is_of_others(path: Path) -> bool:
    """Whether it is a file that may be written to by whose it is, and that is another user's, whom
    this process may not act for."""
    with explained(path, "cannot look at the file"):
        try:
            about = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    if about.st_uid == os.geteuid() or not _may_be_written_to(about):
        return False
    return not is_ours_to_seal(path, about.st_mode)


def is_ours_to_seal(path: Path, mode: int) -> bool:
    """Whether the system lets this process change a file's mode, as it lets its owner and root; it
    is given the mode that it has."""
    with explained(path, "cannot look at the file"):
        try:
            os.chmod(path, stat.S_IMODE(mode))
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            return False
        return True


def _is_not_own(path: Path) -> bool:
    return _is_shared(path) or _is_of_others(path)
