"""Commands that check: verify, checkpoints, prune, diff."""

import datetime
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.padding import Padding
from rich.text import Text

from diskreplay.check.report import Finding, Report
from diskreplay.cli import remote
from diskreplay.cli.common import (
    OF_A_PATH,
    JsonOption,
    absolute_or_url,
    check_directory,
    console,
    ending,
    explained,
    opened,
    progress,
    say_json,
)
from diskreplay.cli.layout import Listing
from diskreplay.errors import (
    CheckpointNotFoundError,
    DiskReplayError,
    InvalidInputError,
    LockedError,
    StorageError,
)
from diskreplay.inspection.humanize import count_text, size_text
from diskreplay.inspection.plain import plain
from diskreplay.inspection.store_activity import checkpoints_elsewhere, time_of
from diskreplay.store import format, listing, manifest
from diskreplay.store.listing import Checkpoint

_LARGEST_TEXT = 60
_OF_ROWS = ("field", "value", "priority")  # differences of the rows that are compared
_EITHER: dict[str, Any] = {"help": "Directory of a store or a checkpoint.", **OF_A_PATH}

commands = typer.Typer()

_DIRECTORY = "Directory that checkpoints are saved in"
DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help=f"{_DIRECTORY}.", **OF_A_PATH)
]


@commands.command(
    epilog="Examples: `diskreplay verify runs/pong/replay`, "
    "`diskreplay verify runs/pong/replay --repair`"
)
def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Directory of a live store or of a checkpoint, or a URL that checkpoints are "
            "published at.",
            readable=False,
        ),
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what is found; nobody may be writing.")
    ] = False,
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            **OF_A_PATH,
            help="With --repair: take lost rows from this checkpoint, as far as it has them whole. "
            "One beside the store shares files with it by hard links: damage to such a file is in "
            "both. May be given several times; the first one is asked first.",
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Of a URL: read every object, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every file: structure, checksums, lengths, counts, steps, flags, superfluous files.

    Exit code 1 says that something was found. A live store may be written to meanwhile.

    With `--repair`, rows that are lost are set aside, each with the reason: they are never sampled
    again, and all else goes on. With `--from`, what a checkpoint still has is taken from there.
    What is replaced is kept in `PATH.repair-N`, with `findings.txt`, which says what was found and
    set aside; delete it when you need it no more. The exit code is 0 if the store is sound
    afterwards.
    """
    from diskreplay.check.repair import repair as mend
    from diskreplay.check.verify import verify as check

    if sources and not repair:
        raise typer.BadParameter("--from goes with --repair")
    path = absolute_or_url(path)
    if isinstance(path, str):
        if repair:
            raise typer.BadParameter("what is published is never repaired: push it again")
        remote.say_verified(path, deep=deep, as_json=as_json)
        return
    if deep:
        raise typer.BadParameter("--deep goes with a URL: of a directory every byte is read anyway")
    if repair and manifest.is_checkpoint(path):
        raise typer.BadParameter(
            "a checkpoint is never repaired: restore its files, or load another one"
        )
    for given in sources or ():
        with explained(given):
            format.read_attributes(given)
    # Not read before: a repair first puts a store back that a kill has left aside.
    with explained(path), progress("checking", _size(path)) as advance:
        report = mend(path, sources=sources or (), advance=advance) if repair else check(
            path, advance=advance
        )  # fmt: skip
    after = report if report.aside is None else check(path)
    findings = after.findings or tuple(_unusable(path))
    with ending(found=bool(findings)):
        if as_json:
            say_json({
                "clean": not findings, "found": [_plain(f) for f in report.findings],
                "left": [_plain(f) for f in findings], "kind": report.kind, "files": report.files,
                "bytes": report.bytes, "blocks": report.blocks, "rows": report.rows,
                "seconds": report.seconds, "aside": report.aside, "set_aside": report.set_aside,
                "losses": report.losses,
            })  # fmt: skip
        else:
            _say(report, findings)


def _size(path: Path) -> int | None:
    total = 0
    for base, _dirs, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except FileNotFoundError:  # the writer has deleted it
                continue
    return total or None


def _unusable(path: Path) -> list[Finding]:
    """What only opening sees: options and spaces in the attributes that make no sense."""
    try:
        with opened(path):
            return []
    except (LockedError, StorageError):
        raise
    except DiskReplayError as error:
        return [Finding("metadata", path / "zarr.json", str(error), format.RESTORE)]


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind, "path": finding.path, "field": finding.field, "env": finding.env,
        "rows": finding.rows, "meaning": finding.meaning, "remedy": finding.remedy,
    }  # fmt: skip


def _say(report: Report, left: tuple[Finding, ...]) -> None:
    for finding in report.findings or left:
        kind = Text(f"{finding.kind:<10} ", style="bold red")
        console.print(Text.assemble(kind, f"{finding.where}:"), soft_wrap=True)
        # A repair has done what is advised.
        remedy = "" if report.aside is not None else f"; {finding.remedy}"
        console.print(Padding(Text(f"{finding.meaning}{remedy}"), (0, 0, 0, 4)))
    speed = report.bytes / max(report.seconds, 1e-9)
    console.print(
        f"{report.kind}: {report.rows:,} rows, {report.files:,} files, {size_text(report.bytes)}, "
        f"{report.blocks:,} packed blocks in {report.seconds:.2f} s ({size_text(speed)}/s)"
    )
    if report.aside is not None:
        console.print(f"mended; what was replaced is in {report.aside}", soft_wrap=True)
        lost = [f"{rows:,} of env {env}" for env, rows in enumerate(report.set_aside) if rows]
        console.print(f"rows set aside: {', '.join(lost) or 'none'}", soft_wrap=True)
        for loss in report.losses:
            console.print(Padding(Text(str(loss)), (0, 0, 0, 2)))
    if left:
        console.print(Text(count_text(len(left), "finding"), style="bold red"))
    else:
        console.print(Text("sound", style="bold green"))


@commands.command(epilog="Example: `diskreplay checkpoints runs/pong/checkpoints`")
def checkpoints(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help=f"{_DIRECTORY}, or a URL that they are published at.",
            readable=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a directory: suffix, time, rows, bytes, whole or not, attachments.

    Shared bytes are in files that the live store or another checkpoint has too. Deleting one
    checkpoint frees only its own bytes. Both are what the files take on the disk. At a URL, and in
    `diskreplay verify`, bytes are the lengths of the files, which are more where a file has holes.
    """
    directory = absolute_or_url(directory)
    if isinstance(directory, str):
        remote.say_published(directory, as_json=as_json)
        return
    found = _found_in(directory)
    if as_json:
        say_json([_plain_checkpoint(one) for one in found])
        return
    attached = ["attachments"] if any(one.attachments for one in found) else []
    shown = Listing("name", "suffix", "saved", ">rows", ">own", ">shared", "whole", *attached)
    for one in found:
        own, shared = listing.disk_usage(one)
        saved = datetime.datetime.fromtimestamp(time_of(one)).astimezone()
        shown.add(
            one.name, one.suffix, f"{saved:%Y-%m-%d %H:%M:%S}",
            "-" if one.rows is None else f"{one.rows:,}", size_text(own), size_text(shared),
            Text("yes") if one.whole else Text("no", style="bold red"),
            *[", ".join(one.attachments)] * len(attached),
        )  # fmt: skip
    console.print(shown)
    for one in found:
        if one.trouble:
            console.print(Text(one.trouble), soft_wrap=True)


def _plain_checkpoint(one: Checkpoint) -> dict[str, Any]:
    own, shared = listing.disk_usage(one)
    return {
        "path": one.path, "name": one.name, "suffix": one.suffix, "number": one.number,
        "saved": time_of(one), "rows": one.rows, "own_bytes": own, "shared_bytes": shared,
        "attachments": {name: path.stat().st_size for name, path in one.attachments.items()},
        "whole": one.whole, "trouble": one.trouble,
    }  # fmt: skip


def _found_in(directory: Path) -> list[Checkpoint]:
    """The checkpoints of a directory: at least one."""
    check_directory(directory)
    if found := listing.checkpoints(directory, None):
        return found
    what = "no checkpoints"
    if format.is_store(directory):
        what = "a store or a checkpoint, and no checkpoints in it"
    places = [f"{place} ({count:,})" for place, count in checkpoints_elsewhere(directory).items()]
    there = "give the directory that `save` was given"
    if places:
        there = f"there are some in {', '.join(places)}"
    raise CheckpointNotFoundError(f"{directory}: {what}; {there}")


@commands.command(epilog="Example: `diskreplay prune runs/pong/checkpoints --keep 2`")
def prune(
    directory: DirectoryArgument,
    keep: Annotated[int, typer.Option(min=1, help="How many checkpoints of each name to keep.")],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; needed with --json.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all numbered checkpoints but the newest whole ones.

    Checkpoints whose suffix is no number are never removed, nor is one that a link in the
    directory leads to, while the link is kept.
    """
    if as_json and not yes:
        raise InvalidInputError("--json: nobody is asked then; say --yes too")
    there = _found_in(directory)
    superfluous = listing.superfluous(directory, keep)
    if as_json:
        gone = {one.path for one in superfluous}
        plain = {one.path: _plain_checkpoint(one) for one in there}  # while they are there
        listing.remove(superfluous)
        say_json({
            "removed": [plain[path] for path in plain if path in gone],
            "kept": [plain[path] for path in plain if path not in gone],
        })  # fmt: skip
        return
    if not superfluous:
        console.print("nothing to remove")
        return
    sizes = [f"{c.path} ({size_text(listing.disk_usage(c)[0])} of its own)" for c in superfluous]
    if not yes:
        console.print(*map(Text, sizes), sep="\n", soft_wrap=True)
        _ask(f"Remove {count_text(len(superfluous), 'checkpoint')}?")
    listing.remove(superfluous)
    if yes:  # said only now: the system may have refused
        console.print(*map(Text, sizes), sep="\n", soft_wrap=True)
    console.print(f"{len(superfluous):,} removed")


def _ask(question: str) -> None:
    """End the command if the answer is no."""
    try:
        agreed = typer.confirm(question)
    except typer.Abort as aborted:
        if isinstance(aborted.__context__, KeyboardInterrupt):
            raise
        raise InvalidInputError(
            "nothing removed: there is nobody to ask; say --yes if that is meant"
        ) from None
    if not agreed:
        console.print("nothing removed")
        raise typer.Exit()


@commands.command(epilog="Example: `diskreplay diff checkpoints/replay_ckpt.1 runs/pong/replay`")
def diff(
    one: Annotated[Path, typer.Argument(metavar="A", **_EITHER)],
    other: Annotated[Path, typer.Argument(metavar="B", **_EITHER)],
    newest: Annotated[
        bool,
        typer.Option(
            "--newest",
            help="Compare the newest rows, whatever their numbers, as a copy needs it. Row numbers "
            "and the generator are left out; priorities may differ by 1e-9.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two stores or checkpoints: fields, options, rows in common, priorities, generator.

    Rows are compared by their numbers; `convert`, `trim`, `merge` and `import` number them from 0,
    so give `--newest` for a store that one of these made. Exit code 1 says that they differ in
    anything; the last line says whether the rows do. How rows are compressed makes no difference.
    With --json a value that is no finite number is the text "NaN", "Infinity" or "-Infinity".
    """
    from diskreplay.inspection.difference import common_rows, differences

    with opened(one) as first, opened(other) as second:
        spans = []
        if first.num_envs == second.num_envs:
            spans = common_rows(np.stack([first.bounds, second.bounds]), newest=newest)
        found = list(differences(first, second, newest=newest))
    unlike = [what for what in found if what.what in _OF_ROWS or first.num_envs != second.num_envs]
    with ending(found=bool(found)):
        if as_json:
            common = [[span.starts[0], span.starts[0] + span.rows] for span in spans]
            say_json({
                "equal": not found, "rows_equal": not unlike, "rows_in_common": common,
                "differences": plain(found, spelled=True),
            })  # fmt: skip
        else:
            for what in found:
                where = "" if what.row is None else f", first in row {what.row}"
                where += "" if what.env is None else f" of env {what.env}"
                where += "" if what.rows is None else f" ({what.rows:,} rows)"
                at = str(list(what.at)) if what.at else ""
                line = (
                    f"{what.what} {what.name}{at}{where}: {_short(what.one)} | {_short(what.other)}"
                )
                console.print(Text(line), soft_wrap=True)
            rows = (
                f"{sum(span.rows for span in spans):,} rows {'compared' if newest else 'in common'}"
            )
            if unlike or not found:
                console.print(f"{rows}: {'they differ' if found else 'no difference'}")
            else:
                names = ", ".join(what.name for what in found)
                console.print(f"{rows}: these agree; what differs is {names}", soft_wrap=True)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LARGEST_TEXT else text[: _LARGEST_TEXT - 3] + "..."
