"""What every command shares: opening a store, its options, and how output looks."""

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

import diskreplay
from diskreplay.buffer import ReplayBuffer
from diskreplay.convert import output
from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptSegmentError,
    FormatError,
    InvalidInputError,
    StorageError,
)
from diskreplay.inspection.harmless import harmless
from diskreplay.inspection.plain import plain
from diskreplay.store import files, format, manifest
from diskreplay.store.paths import resolved

_PIPE_WIDTH = 120  # columns, where no terminal says how many there are
_TRAILING = re.compile(r" +$", re.MULTILINE)
_DEEPEST = 8  # directories above one that is asked for, in which its store is looked for
_NAMED = 5  # stores that are named where a directory of stores was given
# As a Path, which completes names in a shell, a URL has lost one of its slashes.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.IGNORECASE)
_OBJECT_STORES = ("s3", "gs", "az", "azure", "abfs", "abfss", "https", "file", "memory")


class Code(IntEnum):
    """Exit codes, the same for every command."""

    FINE = 0
    FOUND = 1  # `verify` or `diff` found something
    USAGE = 2
    NO_STORE = 3
    SYSTEM = 4  # the operating system refused
    LOCKED = 5  # by another writer
    DAMAGED = 6
    PACKAGE = 7  # an optional package is missing
    DEFECT = 70  # as sysexits.h has it: an error that nobody foresaw
    INTERRUPTED = 130


def absolute(given: Any) -> Any:
    """Paths as all messages name them, whatever was typed; for arguments and options.

    Raises
    ------
    InvalidInputError
        A URL: as a path it would be a directory ``s3:`` here.
    StorageError
        The working directory is gone.
    """
    if isinstance(given, list | tuple):
        return [absolute(path) for path in given]
    url = _URL.fullmatch(str(given))
    if url is not None and not os.path.lexists(given):
        raise InvalidInputError(
            f"{url[1]}://{url[2]}: a URL; a path on this machine expected. `diskreplay pull` gets "
            "a checkpoint from a URL, and `diskreplay push` puts one there"
        )
    try:
        return Path(os.path.abspath(given)) if given is not None else None
    except FileNotFoundError:  # the working directory is gone, which this says
        return resolved(given)


def absolute_or_url(given: Path) -> Any:
    """As `absolute`; a URL of an object store as it was typed. Not for a callback: some versions of
    Typer make a Path of what that returns."""
    url = _URL.fullmatch(str(given))
    if url is None or url[1] not in _OBJECT_STORES:
        return absolute(given)
    return f"{url[1]}:///{url[2]}" if url[1] == "file" else f"{url[1]}://{url[2]}"


OF_A_PATH: dict[str, Any] = {"callback": absolute, "readable": False}
"""For each argument and option that is a path. Else Typer calls one that may not be read a mistake
in the usage (2) and not the system's refusal (4), and says less than the error does."""

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="Directory of a live store or of a checkpoint.", **OF_A_PATH
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="File to write.", **OF_A_PATH)]
NewStoreOption = Annotated[
    Path, typer.Option("--out", "-o", help="Directory of the new store.", **OF_A_PATH)
]
EpisodeOption = Annotated[
    int | None,
    typer.Option(
        "--episode", "-e", show_default=False,
        help="Number of an episode, as `diskreplay episodes` lists them; -1 is the newest.",
    ),
]  # fmt: skip


class _Console(Console):
    """What is printed is text, and nothing that a terminal obeys.

    Without blanks at the ends of lines where no terminal is, as tables have them.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)

    def print(self, *objects: Any, **how: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **how)
            return
        with self.capture() as captured:
            super().print(*objects, **how)
        self.file.write(_TRAILING.sub("", captured.get()))
        self.file.flush()


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    # No markup: a path or a shape in brackets is text, and so is `:fire:`.
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=fixed)


console = _console()
error_console = _console(stderr=True)


def lead_nowhere(stream: TextIO) -> None:
    """Nobody reads what is printed, and Python's last flush shall not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def ending(*, found: bool) -> Iterator[None]:
    """For a block that says what a check has found: end with that exit code, also where the reader
    of it goes away. Else ``verify ... | head`` would call a damaged store fine."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        lead_nowhere(sys.stdout)
    if found:
        raise typer.Exit(Code.FOUND)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[ReplayBuffer]:
    """A read-only buffer over a live store or a checkpoint, closed at the end.

    It shows the store as it was at this moment, whatever its writer does meanwhile. Only of rows
    that were still in the tail some may leave before they are read: where as many came since as the
    store keeps.

    Raises
    ------
    FormatError, CorruptSegmentError, StorageError
        As `explained` has it.
    """
    with explained(path), diskreplay.open(path, mode="r", follow=False) as buffer:
        yield buffer


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of what fails inside, while the store or checkpoint `path` is read, what to do about it.

    Raises
    ------
    FormatError
        There is no store, or one of a newer format.
    CorruptSegmentError
        A file of it is missing or damaged; its metadata are no JSON, for example.
    StorageError
        The operating system refused.
    """
    if files.is_file(path):
        raise FormatError(f"{path}: a file; the directory of a store or a checkpoint expected")
    try:
        yield
    except FormatError as error:
        if files.is_there(path / "zarr.json") and (above := _store_above(path)) is not None:
            raise FormatError(
                f"{path}: an array or a group of the store {above}; give the path of the store"
            ) from error
        if isinstance(error, format.DamagedAttributes):
            raise CorruptSegmentError(str(error)) from error
        inside = _stores_in(path)
        if not inside:
            raise
        more = ", ..." * (len(inside) > _NAMED)
        raise FormatError(f"{error}; stores in it: {', '.join(inside[:_NAMED])}{more}") from error
    except CorruptSegmentError as error:
        text = str(error)
        if "diskreplay verify" in text or not (str(path) in text or os.path.abspath(path) in text):
            raise
        raise CorruptSegmentError(f"{text.rstrip('.')}; {remedy(path)}") from error
    except StorageError as error:
        is_ours = Path(error.filename or "").is_relative_to(os.path.abspath(path))
        if error.errno != errno.ENOENT or not is_ours:
            raise
        raise CorruptSegmentError(
            f"{error.filename}: missing, so the store {path} is not whole; {remedy(path)}"
        ) from error


def check_directory(directory: Path) -> None:
    """Refuse what is no directory, where one with checkpoints is expected.

    Raises
    ------
    CheckpointNotFoundError
    """
    if not files.is_dir(directory):
        what = "a file" if files.is_there(directory) else "no such directory"
        raise CheckpointNotFoundError(
            f"{directory}: {what}; the directory that checkpoints are saved in expected"
        )


def remedy(path: Path) -> str:
    """What to do about a store or a checkpoint that is damaged."""
    is_checkpoint = manifest.is_checkpoint(path)
    what = "names all that is damaged" if is_checkpoint else "sets the damaged rows aside"
    return f"`diskreplay verify {path}{'' if is_checkpoint else ' --repair'}` {what}"


def _store_above(path: Path) -> Path | None:
    """The store or checkpoint that a directory is a part of."""
    return next(filter(format.is_store, list(path.absolute().parents)[:_DEEPEST]), None)


def _stores_in(path: Path) -> list[str]:
    """Stores and checkpoints in a directory that is none itself."""
    if not files.is_dir(path) or files.is_there(path / "zarr.json"):
        return []
    parents = sorted(metadata.parent for metadata in path.glob("[!.]*/zarr.json"))
    return [parent.name for parent in parents if format.is_store(parent)]


def check_target(out: Path, buffer: ReplayBuffer, force: bool) -> None:
    """Refuse to put a picture or a page where a file of the store is, or something that is no file;
    and, without `force`, where there is a file.

    Raises
    ------
    InvalidInputError
    """
    if files.is_there(out) and not files.is_file(out):
        raise InvalidInputError(f"{out}: is there already and no file; choose another path")
    if out.resolve().is_relative_to(buffer.path.resolve()):
        raise InvalidInputError(f"{out}: inside the store; choose a path outside of it")
    output.check_wanted(out, force)


def say_json(document: Any) -> None:
    """Print a document as JSON: arrays as lists, what is not finite as null."""
    typer.echo(json.dumps(plain(document), indent=2, allow_nan=False))


@contextlib.contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal's stderr, nothing elsewhere.

    Yields
    ------
    callable
        ``advance(amount=1, total=None)``: so much more is done, and, if given, so much there is.
    """
    if not error_console.is_terminal:  # a disabled bar prints an empty line before rich 14.3
        yield lambda amount=1, total=None: None
        return
    from rich.progress import Progress

    with Progress(console=error_console, transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(amount: float = 1, total: float | None = None) -> None:
            bar.update(task, advance=amount, total=total)

        yield advance
