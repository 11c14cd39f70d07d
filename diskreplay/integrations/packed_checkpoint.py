"""The checkpoint of a pickle: as one value that has all rows, or one that it refers to."""

from pathlib import Path

from diskreplay.errors import CheckpointNotFoundError, FormatError
from diskreplay.store import files

_NAME = "replay_ckpt.embedded"


def packed(directory: Path) -> dict[str, bytes]:
    """The files of a checkpoint, by their names in it."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def unpacked(contents: dict[str, bytes], room: Path) -> Path:
    """The checkpoint that `packed` was given, made again in the directory `room`.

    Raises
    ------
    FormatError
        A name leads out of it.
    """
    directory = room / _NAME
    for name, data in contents.items():
        path = directory / name
        if ".." in path.parts or directory not in path.parents:
            raise FormatError(f"{name!r}: no file of a checkpoint; this pickle is not ours")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def check_is_kept(checkpoint: Path, keep: int | None) -> None:
    """Refuse a pickle whose checkpoint is gone, of which so many are kept."""
    if not files.is_there(checkpoint):
        raise CheckpointNotFoundError(
            f"{checkpoint}: the rows of this pickle are not there any more; keep={keep} says how "
            "many checkpoints stay, and None keeps all"
        )
