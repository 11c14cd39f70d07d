"""The files of a store that somebody copied by hard links, before it is written to."""

import contextlib
import os
import stat
from pathlib import Path

from diskreplay.errors import StorageError
from diskreplay.store import commit_page, files, private
from diskreplay.store.system_errors import explained


def make_own(root: Path) -> None:
    """Give a store files of its own where it has some together with another directory, which
    ``cp -al`` made, say, and would write to them in place: its rows would change the other store's,
    a backup mostly. What is read-only is never written to, and is left.

    The caller has locked the store. After a kill the next opening does the rest.
    """
    page = private.commit_page(root)
    if not _is_shared(page):  # diskreplay makes no second name of it
        return
    # Actors have these mapped; and a lock that is held is no lock at another file.
    kept = {page, private.lock_file(root), private.taker(root), *private.rings(root)}
    # Among the copies that are not whole: an opening removes it.
    beside = private.directory(root) / "unsealed.own"
    files.remove(beside)  # of a kill: it may have been copied by a hard link since
    found = [Path(base, name) for base, _dirs, names in os.walk(root) for name in sorted(names)]
    for path in [path for path in found if path not in kept and _is_shared(path)]:
        _copy(path, beside)
        files.rename(beside, path)
    # Before the page, by which the next opening would think that all is done.
    files.sync_dirs({path.parent for path in found})
    _copy(page, beside)
    with commit_page.exchanged(page):
        files.rename(beside, page)
    files.sync_dirs([page.parent])


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
    return stat.S_ISREG(about.st_mode) and about.st_nlink > 1 and bool(about.st_mode & 0o222)
