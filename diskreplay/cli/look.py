"""Commands that look at a store as a whole: info, stats, bench."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from diskreplay.cli.common import (
    JsonOption,
    PathArgument,
    console,
    explained,
    opened,
    remedy,
    say_json,
)
from diskreplay.cli.layout import Listing, facts
from diskreplay.cli.watch import Seen, WatchOption, watch_store
from diskreplay.episodes import Episodes
from diskreplay.inspection.humanize import count_text, number_text, size_text, space_text, when_text
from diskreplay.inspection.identity import action_labels, metadata_texts
from diskreplay.inspection.overview import Overview, overview_of
from diskreplay.inspection.plain import plain

_FEW = 24  # actions that are counted one by one
_NAMED = 5  # missing files

commands = typer.Typer()


@commands.command(
    epilog="Examples: `diskreplay info runs/pong/replay`, "
    "`diskreplay info runs/pong/replay --watch 5`"
)
def info(path: PathArgument, watch: WatchOption = None, as_json: JsonOption = False) -> None:
    """Show what a store is: fields, rows, episodes, sizes, its writer, checkpoints near it."""
    if watch is not None:
        watch_store(
            path, watch, lambda found: (vars(found), _info_shown(found, watched=True)),
            as_json=as_json,
        )  # fmt: skip
    with explained(path):
        found = overview_of(path)
    if as_json:
        say_json(found)
    else:
        console.print(*_info_shown(found), sep="\n")


def _info_shown(found: Overview, *, watched: bool = False) -> list[RenderableType]:
    lines = _info_lines(found)
    if watched:
        del lines["last write"]  # it is told from what is seen
    shown: list[RenderableType] = [facts(lines)]
    sizes = Listing("field", "shape", "dtype", "codec", ">segments", ">raw", ">on disk", ">ratio")
    for name, field in found.fields.items():
        sizes.add(
            name, "x".join(map(str, field.shape)) or "scalar", field.dtype, field.compressor,
            f"{field.segments:,}", size_text(field.raw_bytes), size_text(field.disk_bytes),
            _ratio(field.ratio),
        )  # fmt: skip
    sizes.add_section()
    sizes.add(
        "all", "", "", "", f"{found.segments:,}", size_text(found.raw_bytes),
        size_text(found.disk_bytes), _ratio(found.ratio),
    )  # fmt: skip
    shown.append(sizes)
    if found.priorities_bytes:
        size = size_text(found.priorities_bytes)
        shown.append(Text(f"Priorities take {size} besides.\n"))
    if found.tail_bytes:
        shown.append(_tails(found))
    if found.checkpoints:
        beside = Listing("checkpoint near it", "saved", "whole")
        for checkpoint in found.checkpoints:
            name = os.path.relpath(checkpoint.path, Path(found.path).parent)
            beside.add(
                name, when_text(checkpoint.saved),
                Text("yes") if checkpoint.whole else Text("no", style="bold red"),
            )  # fmt: skip
        shown.append(beside)
    return shown


def _tails(found: Overview) -> Text:
    """How much of the disk does not tell what more rows will take."""
    tails = {name: field.tail_bytes for name, field in found.fields.items() if field.tail_bytes}
    of = ", ".join(f"{name} {size_text(size)}" for name, size in tails.items())
    return Text(
        f"Of what is on disk, tails take {size_text(found.tail_bytes)} ({of}). They hold the "
        "newest rows before these are packed, and do not grow with the rows.\n"
    )


def _info_lines(found: Overview) -> dict[str, str | list[str]]:
    fill = "no limit"
    if found.fill is not None:
        most = found.options.get("max_transitions")
        fill = f"{found.fill:.1%} of the capacity of {found.capacity:,}"
        if most is not None:
            fill = f"{found.fill:.1%} of {most:,} transitions"
    return {
        **({"name": found.title} if found.metadata else {}),
        "path": found.path,
        "what": [found.what, found.kind],
        "format": f"{found.format_version}, made by {found.created_by}",
        "observations": space_text(found.observation_space),
        "actions": space_text(found.action_space),
        "options": [f"{name} {value}" for name, value in found.options.items()],
        "rows": [f"{found.rows:,} in {count_text(found.num_envs, 'env')}", fill],
        **_waiting_line(found),
        "transitions": [f"{found.retained:,} retained", f"{found.transitions:,} ever recorded"],
        "episodes": f"{found.episodes:,} retained",
        "last write": _last_write(found),
        "writer": _writer_text(plain(found)),
        **({"metadata": metadata_texts(found.metadata)} if found.metadata else {}),
        **_missing_lines(found),
    }


def _waiting_line(found: Overview) -> dict[str, str]:
    if not found.waiting:
        return {}
    rows = count_text(found.waiting, "row")
    return {"waiting": f"{rows} of actors, which the next to open the store to write takes"}


def _missing_lines(found: Overview) -> dict[str, list[str]]:
    missing = [name for field in found.fields.values() for name in field.missing]
    if not missing:
        return {}
    more = [f"and {len(missing) - _NAMED:,} more"] * (len(missing) > _NAMED)
    return {"missing files": [*missing[:_NAMED], *more, remedy(Path(found.path))]}


def _last_write(found: Overview) -> str:
    if found.writing:
        return "just now: rows come in"
    text = when_text(found.last_write)
    if found.closed or found.writer is None:
        return text
    if found.writer.holds:
        return f"{text}, or later; no row came while this was looked at"
    return f"{text}, or later"


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
    watch: WatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show statistics: of fields, returns, lengths, actions, rewards, priorities and ages.

    An episode is whole if it has ended and all of it is retained. Effective sample size:
    sampling is as even as if this many transitions were equally likely. Ages are counted in rows of
    the same env.
    """
    from diskreplay.inspection.profile import SAMPLE_BYTES
    from diskreplay.inspection.summary import summary_of

    def look() -> Seen:
        with opened(path) as buffer:
            found = plain(summary_of(buffer, most_bytes=None if everything else SAMPLE_BYTES))
            return found, _stats_shown(found, action_labels(buffer) or str)

    if watch is not None:
        watch_store(path, watch, lambda _overview: look(), as_json=as_json)
    document, shown = look()
    if as_json:
        say_json(document)
    else:
        console.print(*shown, sep="\n")


def _stats_shown(found: dict[str, Any], label: Callable[[str], str]) -> list[RenderableType]:
    charts = (_quantile_table(found), *_histograms(found, label))
    return [_field_table(found["fields"]), facts(_figures(found)), *filter(len, charts)]


def _field_table(fields: dict[str, Any]) -> Listing:
    made = Listing("field", "dtype", ">min", ">max", ">mean", ">zeros", ">rows read")
    for name, field in fields.items():
        zeros = "-" if field["zeros"] is None else f"{field['zeros']:.1%}"
        odd = f" ({field['not_finite']:,} not finite)" if field["not_finite"] else ""
        figures = (number_text(field[key]) for key in ("min", "max", "mean"))
        made.add(name, field["dtype"], *figures, zeros, f"{field['rows']:,}{odd}")
    return made


def _figures(found: dict[str, Any]) -> dict[str, str | list[str]]:
    episodes, signs, age = found["episodes"], found["rewards"], found["age"]
    total = sum(signs.values()) or 1
    lines: dict[str, str | list[str]] = {
        "episodes": [
            f"{episodes['retained']:,} retained",
            f"{episodes['whole']:,} whole",
            *(f"{episodes[how]:,} {how}" for how in Episodes.ENDS),
        ],
        "rewards": [f"{n:,} {sign} ({n / total:.1%})" for sign, n in signs.items()],
    }
    if age["oldest_rows"]:
        lines["oldest row"] = [
            f"{count_text(age['oldest_rows'], 'row')} ago",
            f"file written {when_text(age['oldest_written'])}",
        ]
    if (priorities := found["priorities"]) is not None:
        lines["priorities"] = [
            f"{priorities['drawable']:,} transitions can be sampled",
            f"effective sample size {priorities['effective']:,.0f}",
            _untouched(priorities["never_updated"]),
            f"largest seen {number_text(priorities['largest_seen'])}",
        ]
        lines["mean age"] = [
            f"{count_text(round(priorities['mean_age']), 'row')} of those that can be sampled",
            f"{count_text(round(priorities['mean_drawn_age']), 'row')} of those that are",
        ]
    return lines


def _untouched(share: float) -> str:
    """How many keep the priority that they were recorded with."""
    if share in (0.0, 1.0):
        return "all updated" if share == 0.0 else "no transition seems to be updated yet"
    return f"about {min(max(share, 0.001), 0.999):.1%} never updated"


def _quantile_table(found: dict[str, Any]) -> Listing:
    quantiles = {
        name: found["episodes"][name]["quantiles"]
        for name in ("returns", "lengths")
        if found["episodes"][name] is not None
    }
    if found["priorities"] is not None:
        quantiles["priorities"] = found["priorities"]["quantiles"]
    heads = sorted({head for of in quantiles.values() for head in of}, key=float)
    names = {0.0: "lowest", 0.5: "median", 1.0: "highest"}
    made = Listing(
        "quantiles", *(f">{names.get(float(head), f'{float(head):.0%}')}" for head in heads)
    )
    for name, of in quantiles.items():
        made.add(name, *(number_text(of.get(head)) for head in heads))
    return made


def _histograms(found: dict[str, Any], label: Callable[[str], str]) -> Iterator[Listing]:
    for name in ("returns", "lengths"):
        if (values := found["episodes"][name]) is not None:
            ends = [number_text(edge) for edge in values["histogram"]["edges"]]
            labels = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
            yield _bars(f"{name} of whole episodes", labels, values["histogram"]["counts"])
    for name, counts in found["actions"].items():
        if counts is not None and len(counts) <= _FEW:
            yield _bars(name, list(map(label, counts)), list(counts.values()))


def _bars(title: str, labels: list[str], counts: list[int]) -> Listing:
    made = Listing(f">{title}", ">count", bar=True)
    for label, count in zip(labels, counts, strict=True):
        made.add(label, f"{count:,}", bar=count / max(1, *counts))
    return made


@commands.command(epilog="Example: `diskreplay bench runs/pong/replay --batch-size 256`")
def bench(
    path: PathArgument,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 20, help="Transitions in a batch. Default: the store's own."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="How long to sample from memory.")
    ] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast this store is sampled, from memory and from disk.

    To measure the disk, the system is asked to drop the files from its memory. Others who read
    them are slower for a moment.
    """
    from diskreplay.inspection import speed

    with opened(path):  # says what is wrong with it, and lets go: what is mapped stays in memory
        pass
    found = speed.bench(path, batch_size=batch_size, seconds=seconds)
    if as_json:
        say_json(found)
        return
    console.print(f"{found.batch_size} transitions a batch, {size_text(found.batch_bytes)}")
    made = Listing("pages", ">batches", ">median", ">90%", ">a second")
    for name, speeds in (("warm", found.warm), ("cold", found.cold)):
        if speeds is not None:
            made.add(
                name, f"{speeds.batches:,}", f"{speeds.median_us:,.0f} us",
                f"{speeds.p90_us:,.0f} us", size_text(speeds.bytes_per_second),
            )  # fmt: skip
    console.print(made)
    if found.why_not_cold:
        why = f"cold: not measured: {found.why_not_cold}"
        console.print(why, style="dim", soft_wrap=True)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.{1 if ratio >= 1 else 2}f}x"
