"""The place of a new Minari data set: there whole, or not at all."""

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.output import new_directory, written
from diskreplay.errors import DiskFullError, InvalidInputError, StorageError
from diskreplay.locks import Lock
from diskreplay.store import files

_ROOT = "MINARI_DATASETS_PATH"
_NAMESPACE = "namespace_metadata.json"
# For whoever has Minari find its root: another thread's export may have it elsewhere meanwhile.
root_lock = Lock()


@contextlib.contextmanager
def new_dataset(dataset_id: str) -> Iterator[Path]:
    """A root to make the data set `dataset_id` in, which goes to its own place, in one step, when
    the block ends well. An `InvalidInputError` if the id is malformed or taken, or Minari's root is
    no absolute path.

    The root is a hidden directory in Minari's: Minari lists nothing that is in it, and nothing else
    is left by a process that is killed. The next export of that id removes it.
    """
    from minari.storage import get_dataset_path

    with root_lock:
        path, root = _new_path(dataset_id), get_dataset_path()
    levels = [root / level for level in path.relative_to(root).parents if level.name]
    made: list[Path] = []
    try:
        # No id has a "+" in it, so no two ids share a name.
        with new_directory(path, instead=root / dataset_id.replace("/", "+")) as beside:
            own = beside / "root"
            files.make_dirs(own)
            with written(path):
                yield own
            files.rename(own / dataset_id / "data", beside / "data")
            files.remove_tree(own)
            files.sync_tree(beside)
            _check_free(dataset_id, path)
            made += [level for level in levels if not files.is_there(level)]
            _make_namespaces(levels, beside.parent)
    except BaseException as error:
        for level in made:  # from the inside out; what others have put there meanwhile stays
            if {each.name for each in level.glob("*")} <= {_NAMESPACE}:
                files.remove(level / _NAMESPACE)
                files.remove_empty_dir(level)
        if isinstance(error, StorageError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            _check_free(dataset_id, path)  # another export was there first
        raise


def _make_namespaces(levels: list[Path], build: Path) -> None:
    """Make the directories that Minari takes for namespaces. Its own `create_namespace` raises a
    bare error where another export has just made one, and leaves half a file where it is killed."""
    for level in levels:
        if not files.is_there(level / _NAMESPACE):
            files.make_lasting_dirs(level)
            files.replace({level / _NAMESPACE: b"{}"}, build=build)


def _new_path(dataset_id: str) -> Path:
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import validate_namespace
    from minari.storage import get_dataset_path

    try:
        namespace, _name, _version = parse_dataset_id(dataset_id)
        if namespace:  # has a rule of its own, which Minari goes by when all is written
            validate_namespace(namespace)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"dataset_id: {dataset_id!r} found, '(namespace/)name-v0' expected, with a namespace "
            "of two characters or more"
        ) from error
    path = get_dataset_path(dataset_id)
    if not path.is_absolute():
        raise InvalidInputError(
            f"{_ROOT}: Minari needs an absolute path, found {os.environ[_ROOT]!r}"
        )
    _check_free(dataset_id, path)
    return path


def _check_free(dataset_id: str, path: Path) -> None:
    if files.is_there(path):
        raise InvalidInputError(
            f"dataset_id: {dataset_id} is there already, in {path}; choose another version or name"
        )


@contextlib.contextmanager
def datasets_below(root: Path) -> Iterator[None]:
    """Meanwhile Minari, which takes ids and no paths, makes data sets below this directory."""
    with root_lock:
        before = os.environ.get(_ROOT)
        os.environ[_ROOT] = str(root)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_ROOT]
            else:
                os.environ[_ROOT] = before


def check_space(buffer: ReplayBuffer, steps: int, root: Path) -> None:
    """Say by a `DiskFullError`, before much is written, that so many transitions have no room
    without compression."""
    row = sum(
        math.prod(shape) * dtype.itemsize
        for name, (shape, dtype) in buffer.fields.items()
        if name not in ("step", "is_final")
    )
    free = shutil.disk_usage(root).free
    if steps * row > free:
        raise DiskFullError(
            errno.ENOSPC,
            f"the data set takes {steps * row:,} bytes or more, and {free:,} are free (free some "
            "space, or take data_format='parquet')",
            str(root),
        )
