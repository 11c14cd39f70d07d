"""Commands that look at a store as a whole: info, stats, bench."""

import datetime
import itertools
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.bar import Bar
from rich.table import Table

from diskreplay.cli.common import (
    JsonOption,
    PathArgument,
    console,
    explained,
    facts,
    opened,
    plain,
    say_json,
    table,
)
from diskreplay.inspection.wording import number_text, size_text

_BAR = 40  # columns
_FEW = 24  # actions that are counted one by one

commands = typer.Typer()


@commands.command(epilog="Example: `diskreplay info runs/pong/replay`")
def info(path: PathArgument, as_json: JsonOption = False) -> None:
    """What a store is: fields, rows, episodes, sizes, who writes to it, checkpoints beside it."""
    from diskreplay.inspection.overview import overview_of

    with explained(path):
        found = overview_of(path)
    if as_json:
        say_json(found)
        return
    fill = "no limit" if found.fill is None else f"{found.fill:.1%} of {found.capacity:,}"
    console.print(facts({
        "path": f"{found.path} ({found.what}, {found.kind})",
        "format": f"{found.format_version}, made by {found.created_by}",
        "observations": found.observation_space,
        "actions": found.action_space,
        "options": ", ".join(f"{name} {value}" for name, value in found.options.items()),
        "rows": f"{found.rows:,} in {found.num_envs} env(s); {fill}",
        "transitions": f"{found.retained:,} retained, {found.transitions:,} ever recorded",
        "episodes": f"{found.episodes:,} retained",
        "last write": _when(found.last_write),
        "writer": _writer_text(plain(found)),
    }))  # fmt: skip
    sizes = table("field", "shape", "dtype", "codec", ">segments", ">raw", ">on disk", ">ratio")
    for name, field in found.fields.items():
        sizes.add_row(
            name, str(field.shape), field.dtype, field.compressor, f"{field.segments:,}",
            size_text(field.raw_bytes), size_text(field.disk_bytes), _ratio(field.ratio),
        )  # fmt: skip
    sizes.add_section()
    sizes.add_row(
        "all", "", "", "", f"{found.segments:,}", size_text(found.raw_bytes),
        size_text(found.disk_bytes), _ratio(found.ratio),
    )  # fmt: skip
    console.print(sizes)
    if found.checkpoints:
        beside = table("checkpoint near it", "suffix", "saved")
        for checkpoint in found.checkpoints:
            name = os.path.relpath(checkpoint.path, Path(found.path).parent)
            beside.add_row(name, checkpoint.suffix, _when(checkpoint.saved))
        console.print(beside)


def _writer_text(document: dict[str, Any]) -> str:
    writer = document["writer"]
    if writer is None:
        return "none: a checkpoint never changes"
    if writer["holds"]:
        return f"process {writer['pid']} holds it"
    if writer["holds"] is None:
        return f"perhaps process {writer['pid']}: this system does not say who holds a lock"
    if document["closed"]:
        return "none; it was closed in good order"
    return f"none; process {writer['pid']} left without closing it, which loses nothing"


@commands.command(epilog="Example: `diskreplay stats runs/pong/replay --all`")
def stats(
    path: PathArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="Read large fields in full, not a sample of 64 MiB each.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Figures: of each field, of returns and lengths, of actions, rewards, priorities and ages."""
    from diskreplay.inspection.profile import SAMPLE_BYTES
    from diskreplay.inspection.summary import summary_of

    with opened(path) as buffer:
        found = plain(summary_of(buffer, most_bytes=None if everything else SAMPLE_BYTES))
    if as_json:
        say_json(found)
        return
    console.print(_field_table(found["fields"]))
    console.print(facts(_figures(found)))
    console.print(_quantile_table(found))
    for name in ("returns", "lengths"):
        if (values := found["episodes"][name]) is not None:
            console.print(_histogram(f"{name} of whole episodes", **values["histogram"]))
    for name, counts in found["actions"].items():
        if counts is not None and len(counts) <= _FEW:
            console.print(_bars(name, list(counts), list(counts.values())))


def _field_table(fields: dict[str, Any]) -> Table:
    made = table("field", "dtype", ">min", ">max", ">mean", ">zeros", ">rows read")
    for name, field in fields.items():
        zeros = "-" if field["zeros"] is None else f"{field['zeros']:.1%}"
        odd = f" ({field['not_finite']:,} not finite)" if field["not_finite"] else ""
        figures = (number_text(field[key]) for key in ("min", "max", "mean"))
        made.add_row(name, field["dtype"], *figures, zeros, f"{field['rows']:,}{odd}")
    return made


def _figures(found: dict[str, Any]) -> dict[str, str]:
    episodes, signs, age = found["episodes"], found["rewards"], found["age"]
    ends = (f"{episodes[how]:,} {how}" for how in ("terminated", "truncated", "cut", "open"))
    total = sum(signs.values()) or 1
    lines = {
        "episodes": f"{episodes['retained']:,} retained, {episodes['whole']:,} whole; "
        + ", ".join(ends),
        "rewards": ", ".join(f"{n:,} {sign} ({n / total:.1%})" for sign, n in signs.items()),
        "oldest row": f"{age['oldest_rows']:,} rows ago, its file last written "
        + _when(age["oldest_written"]),
    }
    if (priorities := found["priorities"]) is not None:
        lines["priorities"] = (
            f"effective sample size {priorities['effective']:,.0f} of {priorities['drawable']:,}; "
            f"about {priorities['never_updated']:.1%} never updated; largest seen "
            f"{number_text(priorities['largest_seen'])}"
        )
        lines["mean age"] = (
            f"{priorities['mean_age']:,.0f} rows; {priorities['mean_drawn_age']:,.0f} of what is "
            "drawn"
        )
    return lines


def _quantile_table(found: dict[str, Any]) -> Table:
    quantiles = {
        name: found["episodes"][name]["quantiles"]
        for name in ("returns", "lengths")
        if found["episodes"][name] is not None
    }
    if found["priorities"] is not None:
        quantiles["priorities"] = found["priorities"]["quantiles"]
    heads = sorted({head for of in quantiles.values() for head in of}, key=float)
    made = table("quantiles", *(f">{float(head):.0%}" for head in heads))
    for name, of in quantiles.items():
        made.add_row(name, *(number_text(of.get(head)) for head in heads))
    return made


def _histogram(title: str, edges: list[float], counts: list[int]) -> Table:
    ends = [number_text(edge) for edge in edges]
    labels = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
    return _bars(title, labels, counts)


def _bars(title: str, labels: list[str], counts: list[int]) -> Table:
    made = table(f">{title}", ">count", "")
    for label, count in zip(labels, counts, strict=True):
        made.add_row(label, f"{count:,}", Bar(max(counts), 0, count, width=_BAR))
    return made


@commands.command(epilog="Example: `diskreplay bench runs/pong/replay --batch-size 256`")
def bench(
    path: PathArgument,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 20,
            show_default=False,
            help="Transitions in a batch. Default: the store's own.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="How long to sample from memory.")
    ] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Sample this very store: microseconds a batch, bytes a second, from memory and from disk.

    For the latter the system is asked to forget the files, which slows down for a moment whoever
    else reads them.
    """
    from diskreplay.inspection import speed

    with opened(path):  # says what is wrong with it, and lets go: what is mapped stays in memory
        pass
    found = speed.bench(path, batch_size=batch_size, seconds=seconds)
    if as_json:
        say_json(found)
        return
    console.print(f"{found.batch_size} transitions a batch, {size_text(found.batch_bytes)}")
    made = table("pages", ">batches", ">median", ">90%", ">a second")
    for name, speeds in (("warm", found.warm), ("cold", found.cold)):
        if speeds is not None:
            made.add_row(
                name, f"{speeds.batches:,}", f"{speeds.median_us:,.0f} us",
                f"{speeds.p90_us:,.0f} us", size_text(speeds.bytes_per_second),
            )  # fmt: skip
    console.print(made)
    if found.why_not_cold:
        why = f"cold: not measured: {found.why_not_cold}"
        console.print(why, style="dim", soft_wrap=True)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}x"


def _when(seconds: float | None) -> str:
    """A moment as people read it; `seconds` since the epoch."""
    if seconds is None:
        return "unknown"
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    ago, unit = max(0.0, time.time() - seconds), "seconds"
    for larger, length in (("minutes", 60), ("hours", 60), ("days", 24)):
        if ago < 2 * length:
            break
        ago, unit = ago / length, larger
    return f"{moment:%Y-%m-%d %H:%M:%S} ({ago:.0f} {unit} ago)"
