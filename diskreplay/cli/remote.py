"""Commands for checkpoints in an object store: push, pull, collect; and what others say of one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from diskreplay.cli import ctrl_c
from diskreplay.cli.common import (
    OF_A_PATH,
    JsonOption,
    check_directory,
    console,
    ending,
    say_json,
)
from diskreplay.cli.layout import Listing
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.humanize import count_text, size_text

if TYPE_CHECKING:
    from diskreplay.remote import RemoteCheckpoints

commands = typer.Typer()

UrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Where checkpoints are published: s3://bucket/runs/pong, gs://, az:// or "
        "file:///directory. Credentials come from the environment.",
    ),
]
SuffixOption = Annotated[
    str | None,
    typer.Option(
        "--suffix", "-s",
        help="Which checkpoint; by default the one of the highest number.",
    ),
]  # fmt: skip
RunOption = Annotated[
    str | None,
    typer.Option(help="Who publishes; by default what remote.json beside the checkpoints says."),
]
TakeoverOption = Annotated[
    bool, typer.Option("--takeover", help="Go on although another run published last.")
]


@contextlib.contextmanager
def _remote(url: str, **options: Any) -> Iterator["RemoteCheckpoints"]:
    from diskreplay.remote import RemoteCheckpoints

    if "://" not in url:
        raise InvalidInputError(f"URL: s3://bucket/runs/pong or the like expected, found {url!r}")
    with ctrl_c.ends_soon(), RemoteCheckpoints(url, **options) as remote:
        yield remote


@commands.command(
    epilog="""\
Examples:

    diskreplay push runs/pong/checkpoints s3://bucket/pong

    diskreplay push checkpoints/replay_ckpt.7 s3://bucket/pong --takeover
"""
)
def push(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", help="A checkpoint, or the directory that they are saved in.",
            **OF_A_PATH,
        ),
    ],
    url: UrlArgument,
    suffix: SuffixOption = None,
    run: RunOption = None,
    takeover: TakeoverOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Publish a checkpoint in an object store.

    Only what no published checkpoint has yet is put there. The checkpoint is there whole or not at
    all, and a run that was replaced by another one cannot publish any more.
    """
    check_directory(checkpoint)
    with _remote(url, run=run, takeover=takeover) as remote:
        pushed = remote.push(checkpoint, suffix)
    if as_json:
        say_json(pushed._asdict())
        return
    console.print(
        f"published {pushed.suffix} at {url}: {size_text(pushed.bytes)} in "
        f"{count_text(pushed.objects, 'object')}, {count_text(pushed.requests, 'request')}, "
        f"{pushed.seconds:.1f} s",
        soft_wrap=True,
    )


@commands.command(epilog="Example: `diskreplay pull s3://bucket/pong --out runs/pong/checkpoints`")
def pull(
    url: UrlArgument,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Directory that gets the checkpoint.", **OF_A_PATH),
    ] = Path("."),
    suffix: SuffixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Get a published checkpoint: whole, checked, or not at all."""
    with _remote(url) as remote:
        path = remote.pull(suffix, out)
    if as_json:
        say_json({"path": path})
    else:
        console.print(str(path), soft_wrap=True)


@commands.command(
    epilog="Example: `diskreplay collect s3://bucket/pong --keep 4 --from runs/pong/checkpoints`"
)
def collect(
    url: UrlArgument,
    keep: Annotated[
        int, typer.Option(min=1, help="How many numbered checkpoints to keep.")
    ],
    grace: Annotated[
        str, typer.Option(help="Objects younger than this stay: 90s, 30m, 24h, 7d.")
    ] = "24h",
    directory: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", **OF_A_PATH,
            help="Where the run pushes from: remote.json in it says which run it is.",
        ),
    ] = None,
    run: RunOption = None,
    takeover: TakeoverOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Remove published checkpoints, and all objects that none of the others needs.

    Only the run that published last may: say with `--from` or `--run` that you speak for it. It may
    go on pushing meanwhile.
    """
    if directory is not None:
        check_directory(directory)
    with _remote(url, run=run, takeover=takeover) as remote:
        if directory is None and run is None and not takeover:
            raise typer.BadParameter(
                "which run publishes there? Give --from DIR, where it pushes from, or --run; or "
                "--takeover, if that run has ended"
            )
        done = remote.collect(keep, grace, directory=directory)
    if as_json:
        say_json(done._asdict())
        return
    suffixes = f" ({', '.join(done.checkpoints)})" if done.checkpoints else ""
    console.print(
        f"removed {count_text(len(done.checkpoints), 'checkpoint')}{suffixes}, "
        f"{count_text(done.objects, 'object')}, {size_text(done.bytes)}",
        soft_wrap=True,
    )


def say_published(url: str, *, as_json: bool) -> None:
    """What is published at a URL."""
    with _remote(url) as remote:
        found = remote.list()
    if as_json:
        say_json([
            {
                "name": one.name, "suffix": one.suffix, "number": one.number, "run": one.run,
                "epoch": one.epoch, "saved": one.saved_at and one.saved_at.timestamp(),
                "published": one.published_at.timestamp(), "rows": one.rows, "bytes": one.bytes,
            }
            for one in found
        ])  # fmt: skip
        return
    shown = Listing("name", "suffix", "published", ">rows", ">bytes", "run")
    for one in found:
        shown.add(
            one.name, one.suffix, f"{one.published_at.astimezone():%Y-%m-%d %H:%M:%S}",
            "-" if one.rows is None else f"{one.rows:,}", size_text(one.bytes), one.run,
        )  # fmt: skip
    console.print(shown if found else "nothing is published there")


def say_verified(url: str, *, deep: bool, as_json: bool) -> None:
    """Check what is published at a URL."""
    with _remote(url) as remote:
        report = remote.verify(deep=deep)
    with ending(found=not report.clean):
        if as_json:
            say_json({
                "clean": report.clean, "found": report.findings, "checkpoints": report.checkpoints,
                "objects": report.objects, "bytes": report.bytes,
            })  # fmt: skip
        else:
            for finding in report.findings:
                console.print(Text(finding, style="bold red"), soft_wrap=True)
            console.print(
                f"{count_text(len(report.checkpoints), 'checkpoint')}, "
                f"{count_text(report.objects, 'object')}, {size_text(report.bytes)}"
            )
            console.print("sound" if report.clean else count_text(len(report.findings), "finding"))
