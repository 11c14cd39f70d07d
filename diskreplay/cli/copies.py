"""Commands that make a store of stores: convert, merge, trim."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from diskreplay.cli.common import (
    OF_A_PATH,
    ForceOption,
    JsonOption,
    NewStoreOption,
    PathArgument,
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
from diskreplay.errors import InvalidInputError, SchemaError

commands = typer.Typer()


@commands.command(epilog="""\
Examples:

    diskreplay convert runs/pong/replay --compressor zstd --out runs/pong/small

    diskreplay convert replay --compressor observation=lz4 --out replay --force
""")  # fmt: skip
def convert(
    path: PathArgument,
    out: NewStoreOption,
    compressor: CompressorOption = None,
    segment_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows in one file; by default chosen.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store with other compressors or another size of files.

    The rows of the copy are numbered from 0; `diskreplay diff --newest` compares the two.
    """
    from diskreplay.convert import copying

    with opened(path) as buffer, progress(f"writing {out.name}") as advance:
        before = oldest(buffer)
        copying.convert(
            buffer, out, compressor=compressors(compressor), segment_rows=segment_rows,
            overwrite=force, progress=advance,
        )  # fmt: skip
        left = oldest(buffer) - before
    say_written(out, None, as_json, left)


@commands.command(epilog="Example: `diskreplay merge runs/a/replay runs/b/replay --out both`")
def merge(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            **OF_A_PATH,
            help="Stores or checkpoints of the same spaces and number of envs.",
        ),
    ],
    out: NewStoreOption,
    capacity: CapacityOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make one store from several: env by env, the rows of the first, then those of the next.

    The rows of the new store are numbered from 0. What is left of an episode whose beginning was
    evicted is taken over from the first store only; a warning says how many rows that leaves out.
    """
    from diskreplay.convert import copying

    with contextlib.ExitStack() as stack:
        buffers = [stack.enter_context(opened(path)) for path in paths]
        advance = stack.enter_context(progress(f"writing {out.name}"))
        before = sum(map(oldest, buffers))
        try:
            copying.merge(buffers, out, capacity=capacity, overwrite=force, progress=advance)
        except SchemaError as error:  # each by itself can be read; it is these that do not fit
            raise InvalidInputError(str(error)) from error
        left = sum(map(oldest, buffers)) - before
    say_written(out, None, as_json, left)


@commands.command(
    epilog="Example: `diskreplay trim runs/pong/replay --capacity 100000 --out small`"
)
def trim(
    path: PathArgument,
    out: NewStoreOption,
    capacity: Annotated[
        int, typer.Option("--capacity", min=1, help="Rows that are kept, over all envs.")
    ],
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy the newest rows of a store into one of another capacity.

    The rows of the copy are numbered from 0. To compare the two, use `diskreplay diff --newest`: it
    finds that the capacity differs, so its exit code is 1. Its last line is about the rows.
    """
    from diskreplay.convert import copying

    with opened(path) as buffer, progress(f"writing {out.name}") as advance:
        before = oldest(buffer)
        beyond = int(buffer.bounds[:, 1].sum()) - before - capacity  # not asked for: these may go
        copying.trim(buffer, out, capacity, overwrite=force, progress=advance)
        left = oldest(buffer) - before - max(0, beyond)
    say_written(out, None, as_json, left)
