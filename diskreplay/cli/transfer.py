"""Commands that take a store to other formats and back: export, import."""

import importlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from diskreplay.buffer import ReplayBuffer
from diskreplay.cli.common import (
    ForceOption,
    JsonOption,
    NewStoreOption,
    PathArgument,
    absolute,
    opened,
    progress,
)
from diskreplay.cli.output_options import (
    CapacityOption,
    CompressorOption,
    compressors,
    oldest,
    say_written,
)
from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.store import files, format

commands = typer.Typer()


class Format(StrEnum):
    """Files that a store can be written as and made from."""

    PARQUET = "parquet"
    CSV = "csv"
    NPZ = "npz"
    MINARI = "minari"
    LEROBOT = "lerobot"
    DOPAMINE = "dopamine"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format", "-f",
        help="By default told from the name: .parquet, .csv or .npz. dopamine means checkpoints of "
        "Dopamine and, to import, of ReAgent.",
    ),
]  # fmt: skip
SuffixOption = Annotated[
    str | None,
    typer.Option(
        "--suffix", help="Number of the checkpoint; for those of Dopamine and ReAgent only."
    ),
]


@commands.command(epilog="""\
Examples:

    diskreplay export runs/pong/replay --out pong.parquet

    diskreplay export runs/pong/replay -o pong/ --format parquet --partition env

    diskreplay export runs/pong/replay --out pong/random-v0 --format minari

    diskreplay export runs/door/replay -o door -f lerobot --task "Open the door"

    diskreplay export runs/pong/replay --out old/ --format dopamine --suffix 7
""")  # fmt: skip
def export(
    path: PathArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="File or directory to write; for minari the data set's id, like "
            "pong/random-v0, which goes below MINARI_DATASETS_PATH or ~/.minari/datasets.",
        ),
    ],
    format: FormatOption = None,
    partition: Annotated[
        Literal["env", "episodes"] | None,
        typer.Option(
            help="Parquet: --out is a directory, with a file for each env or some episodes."
        ),
    ] = None,
    episodes_per_file: Annotated[
        int | None, typer.Option(min=1, help="Parquet, with --partition episodes. Default: 1000.")
    ] = None,
    compression: Annotated[
        Literal["zstd", "lz4", "snappy", "gzip", "none"] | None,
        typer.Option(help="Parquet. Default: zstd."),
    ] = None,
    fps: Annotated[
        int | None,
        typer.Option(
            min=1, help="LeRobot: steps a second; av1 videos have at most 240. Default: 30."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="LeRobot: what the episodes try to do, in words. Default: the environment's id."
        ),
    ] = None,
    pictures: Annotated[
        Literal["av1", "h264", "lossless", "png"] | None,
        typer.Option(
            help="LeRobot: videos that lose some detail (av1, h264), lossless ones, or PNG. "
            "Default: av1.",
        ),
    ] = None,
    suffix: SuffixOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a store's transitions as Parquet, CSV, .npz, Minari or LeRobot data set, or Dopamine
    checkpoint.

    Parquet and .npz files hold all that a store does; CSV leaves out large observations. What was
    there before stays until the new files are whole; a directory with a store in it is not
    replaced.
    """
    target = absolute(out)
    kind = format or _told_from(target)
    given: dict[Format, dict[str, Any]] = {
        Format.PARQUET: {
            "partition": partition, "compression": compression,
            "episodes_per_file": episodes_per_file,
        },
        Format.LEROBOT: {"fps": fps, "task": task, "pictures": pictures},
        Format.DOPAMINE: {"suffix": suffix},
    }  # fmt: skip
    for of, options in given.items():
        for name, value in options.items():
            _check_fits(f"--{name.replace('_', '-')}", value, kind, of)
    chosen = {name: value for name, value in given.get(kind, {}).items() if value is not None}
    if episodes_per_file is not None and partition != "episodes":
        raise InvalidInputError("--episodes-per-file: goes with --partition episodes")
    if partition is not None and target.suffix == ".parquet":
        raise InvalidInputError(
            f"--partition: makes a directory of files, so one whose name does not end in .parquet "
            f"is expected, found {target}"
        )
    with opened(path) as buffer, progress(f"writing {target.name}") as advance:
        before = oldest(buffer)
        if kind is Format.DOPAMINE:
            _export_dopamine(buffer, target, _needed(suffix), force, advance)
        elif kind is Format.MINARI:
            to_minari = _converter("to", kind)
            if force:
                raise InvalidInputError(
                    "--force: a Minari data set is not replaced; choose the next version, or "
                    f"remove it with `minari delete {out}`"
                )
            made = to_minari(buffer, out, progress=advance)
            target = Path(made.storage.data_path).parent
        else:
            export_as = _converter("to", kind)
            export_as(buffer, target, overwrite=force, progress=advance, **chosen)
        left = oldest(buffer) - before
    say_written(target, kind.value, as_json, left)


def _export_dopamine(
    buffer: ReplayBuffer, out: Path, suffix: str, force: bool, advance: Callable[..., None]
) -> None:
    from diskreplay.convert import gz_checkpoint

    if gz_checkpoint.found(out, suffix) and not force:
        raise InvalidInputError(
            f"{out}: a checkpoint with the suffix {suffix} is there already; choose another one, "
            "or ask for it to be replaced (--force)"
        )
    gz_checkpoint.write(buffer, out, suffix, flavour="dopamine", progress=_from_totals(advance))


@commands.command("import", epilog="""\
Examples:

    diskreplay import pong.parquet --out runs/pong/offline

    diskreplay import D4RL/door/human-v2 --format minari --out runs/door/offline

    diskreplay import lerobot/pusht --out runs/pusht/offline

    diskreplay import old/ --format dopamine --suffix 7 --out runs/pong/replay
""")  # fmt: skip
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A file, a directory of them, or the id of a Minari data set."
        ),
    ],
    out: NewStoreOption,
    format: FormatOption = None,
    suffix: SuffixOption = None,
    capacity: CapacityOption = None,
    compressor: CompressorOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a store from Parquet, CSV or .npz files that `export` wrote, a Minari or LeRobot data
    set, or a checkpoint of Dopamine or ReAgent.

    The rows of the new store are numbered from 0.
    """
    kind = format or _found_at(absolute(source))
    given = source if kind is Format.MINARI else absolute(source)
    _check_fits("--suffix", suffix, kind, Format.DOPAMINE)
    chosen = {"capacity": capacity, "compressor": compressors(compressor)}
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    with progress(f"writing {out.name}") as advance:
        if kind is Format.DOPAMINE:
            from diskreplay.convert import gz_checkpoint
            from diskreplay.convert.output import new_store

            with new_store(out, overwrite=force) as beside:
                gz_checkpoint.read(
                    given, _needed(suffix), beside, progress=_from_totals(advance), **options
                )
        else:
            import_from = _converter("from", kind)
            import_from(given, out, overwrite=force, progress=advance, **options).close()
    say_written(out, None, as_json)


def _converter(way: Literal["to", "from"], kind: Format) -> Callable[..., Any]:
    """`to_parquet` and the like. Its module is imported only now: it may need a package that is not
    installed."""
    module = "table" if kind is Format.CSV else kind.value
    return getattr(importlib.import_module(f"diskreplay.convert.{module}"), f"{way}_{kind.value}")


def _told_from(path: Path) -> Format:
    """The format that a name says, or what a directory holds."""
    endings = {".parquet": Format.PARQUET, ".csv": Format.CSV, ".npz": Format.NPZ}
    if path.suffix in endings:
        return endings[path.suffix]
    if files.is_dir(path) and files.listed(path, "*.parquet"):
        return Format.PARQUET
    if files.is_file(path / "meta" / "info.json"):
        return Format.LEROBOT
    kept = ("*_ckpt.*.gz", ".ckpt.*.whole")  # the second ones: of an export that was killed
    if files.is_dir(path) and any(files.listed(path, names) for names in kept):
        return Format.DOPAMINE
    raise InvalidInputError(
        f"{path}: its name does not say which format; give --format {'|'.join(Format)}"
    )


def _found_at(path: Path) -> Format:
    """The format of what is to be imported."""
    if not files.is_there(path):
        raise FormatError(
            f"{path}: no such file or directory; for the id of a Minari data set give "
            f"--format {Format.MINARI.value}"
        )
    if format.is_store(path):
        raise FormatError(f"{path}: a store already; `diskreplay convert` copies it")
    return _told_from(path)


def _check_fits(option: str, value: str | int | None, kind: Format, of: Format) -> None:
    if value is not None and kind is not of:
        raise InvalidInputError(
            f"{option}: goes with the format {of.value}, and this is {kind.value}"
        )


def _needed(suffix: str | None) -> str:
    if suffix is None:
        raise InvalidInputError("--suffix: the number of the checkpoint is needed for dopamine")
    return suffix


def _from_totals(advance: Callable[..., None]) -> Callable[[int, int], None]:
    """A callback that is told how much is done, for a bar that is told how much more."""
    before = 0

    def told(done: int, total: int) -> None:
        nonlocal before
        advance(done - before if done >= before else done, total)
        before = done

    return told
