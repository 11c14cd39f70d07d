"""What commands that write stores and files share: options, and what they say at the end."""

from pathlib import Path
from typing import Annotated, Any

import typer

from diskreplay.buffer import ReplayBuffer
from diskreplay.cli.common import console, error_console, opened, say_json
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.humanize import size_text

CapacityOption = Annotated[
    int | None, typer.Option("--capacity", min=1, help="Rows that the new store keeps.")
]
CompressorOption = Annotated[
    str | None,
    typer.Option(
        "--compressor",
        help="auto, raw, lz4 or zstd, for all fields or for some: observation=zstd,mask=raw.",
    ),
]  # fmt: skip


def compressors(text: str | None) -> str | dict[str, str] | None:
    """``zstd``, or ``field=zstd,other=raw``."""
    if text is None or "=" not in text:
        return text
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not (name and value) for name, _equals, value in pairs):
        raise InvalidInputError(
            f"--compressor: a name, or field=name,field=name expected, found {text!r}"
        )
    return {name.strip(): value.strip() for name, _equals, value in pairs}


def oldest(buffer: ReplayBuffer) -> int:
    """How many rows have left the store so far, over all envs."""
    return int(buffer.bounds[:, 0].sum())


def say_written(out: Path, kind: str | None, as_json: bool, left: int = 0) -> None:
    """What was written; a store where there is no `kind`; and that so many rows left meanwhile."""
    found: dict[str, Any] = {"out": out, "format": kind or "diskreplay"}
    paths = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    found["bytes"] = sum(path.stat().st_size for path in paths)
    if kind is None:
        with opened(out) as buffer:
            first, count = buffer.bounds.T
            found["rows"] = int((count - first).sum())
    if left > 0:  # else nobody writes, or the copy took the store's place
        found["left_meanwhile"] = left
        error_console.print(
            f"{left:,} rows left the store meanwhile; what was not read before is not in {out}",
            soft_wrap=True,
        )
    if as_json:
        say_json(found)
        return
    rows = f"{found['rows']:,} rows, " if "rows" in found else ""
    console.print(f"wrote {out} ({rows}{size_text(found['bytes'])})", soft_wrap=True)
