"""Copies of directories, with the links between their files; and what is in archives."""

import os
import shutil
import tarfile


def copy_tree(source, target):
    """Copy all that is in `source` to `target`, which may be there. Files of which the source has
    several names have as many in the copy: a store shares some with its checkpoints."""
    copies = {}

    def copy(one, other):
        inode = os.stat(one, follow_symlinks=False).st_ino
        if inode in copies:
            os.link(copies[inode], other)
        else:
            copies[inode] = shutil.copy2(one, other, follow_symlinks=False)

    shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def unpack(archive, directory):
    """Put what an archive of ours has into a directory. Before Python 3.11.4 `extractall` knows no
    `filter`."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(directory)
