"""Commands that look at rows: episodes, show."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from diskreplay.buffer import ReplayBuffer
from diskreplay.cli.common import (
    OF_A_PATH,
    EpisodeOption,
    ForceOption,
    JsonOption,
    PathArgument,
    check_target,
    console,
    opened,
    say_json,
)
from diskreplay.cli.layout import Listing, facts
from diskreplay.episodes import Episodes
from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.inspection.episodes import about, episodes_of, in_order, with_final
from diskreplay.inspection.humanize import number_text, size_text
from diskreplay.inspection.identity import action_labels, title_of
from diskreplay.inspection.plain import plain
from diskreplay.pictures.frame_field import FrameField, all_left, retained

_FEW = 20  # lines of a table that may be long
_SMALL = 6  # values that a cell of a table holds
_SHOWN_VALUES = 64  # values of a field that JSON gives in full
_AT_ONCE = 256  # rows whose frames are in memory
_SHEET = 64  # frames of an episode that are saved as a picture

commands = typer.Typer()


@commands.command(epilog="Example: `diskreplay episodes runs/pong/replay --sort return --limit 5`")
def episodes(
    path: PathArgument,
    sort: Annotated[
        Literal["newest", "oldest", "return", "length"],
        typer.Option(
            help="What comes first: newest, oldest, return (the highest) or length (the longest); "
            "of the last two, unfinished episodes come last."
        ),
    ] = "newest",
    reverse: Annotated[
        bool, typer.Option("--reverse", help="The other way round: the lowest return first.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="How many, 0 for all. Default: 20, with --json all.", min=0)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the retained episodes.

    Other commands take their numbers as --episode. The numbers get
    smaller when older episodes leave the capacity."""
    with opened(path) as buffer:
        found, title = episodes_of(buffer), title_of(buffer.path)
    order = in_order(found, sort, reverse=reverse)
    limit = (0 if as_json else _FEW) if limit is None else limit
    shown = order[:limit] if limit else order
    if as_json:
        say_json([about(found, k) for k in shown.tolist()])
        return
    made = Listing(">episode", ">env", ">return", ">transitions", "end", ">first id", ">final row")
    for episode in (about(found, k) for k in shown.tolist()):
        beginning = f" (from step {episode['first_step']})" if episode["first_step"] else ""
        beginning = " (its beginning was lost)" if episode["beginning_lost"] else beginning
        final = "-" if episode["final_id"] is None else str(episode["final_id"])
        made.add(
            str(episode["number"]), str(episode["env"]), number_text(episode["return"]),
            f"{episode['rows']:,}", episode["end"] + beginning, str(episode["start_id"]), final,
        )  # fmt: skip
    console.print(title, style="bold")
    console.print(made)
    if len(shown) < len(found):
        console.print(f"{len(shown)} of {len(found):,} episodes; --limit 0 shows all", style="dim")


@commands.command(
    epilog="Examples: `diskreplay show runs/pong/replay 4711`, "
    "`diskreplay show runs/pong/replay --episode -1 --out last.gif`"
)
def show(
    path: PathArgument,
    id: Annotated[
        int | None,
        typer.Argument(
            metavar="ID", min=0, max=(1 << 63) - 1, help="Id of one row, as in batch.id."
        ),
    ] = None,
    episode: EpisodeOption = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            "-f",
            help="Which field to draw. Default: the first that looks like a picture.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Rows of an episode in the table, 0 for all.", min=0)
    ] = _FEW,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Save the frames as a .png sheet or a .gif.", **OF_A_PATH),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one row, or the rows of one episode, with their frames if the terminal can draw them.

    With --json a value that is no finite number is the text "NaN", "Infinity" or "-Infinity".
    """
    if id is not None and episode is not None:
        raise typer.BadParameter("give the ID of a row or --episode, not both")
    with opened(path) as buffer:
        if id is None and episode is None:  # a wrong path is said first
            raise typer.BadParameter("give the ID of a row, or --episode")
        found = episodes_of(buffer)
        if episode is not None:
            number, ids = found.position(episode), found.ids(episode)
            frames = with_final(found, episode)
        else:
            assert id is not None
            ids, number = np.array([id]), found.find(id)
            frames = _stack_ids(buffer, id)
        if out is not None:
            check_target(out, buffer, force)
        drawable = _drawable(buffer, field, out)
        rows = ids if as_json or not limit else ids[:limit]
        if id is None:
            rows, documents = retained(buffer, rows, lambda ids: _rows(buffer, ids))
            if not len(rows):
                raise EmptyBufferError(f"{path}: episode {number} has left it meanwhile")
        else:
            documents = _rows(buffer, rows)
        label = action_labels(buffer)
        if as_json:
            say_json({"episode": about(found, number) if number >= 0 else None,
                      "rows": documents})  # fmt: skip
        else:
            if label is not None:
                documents = [row | {"action": label(row["action"])} for row in documents]
            _print_rows(documents, found, number, len(ids))
        if drawable is not None:
            _draw(buffer.path, drawable, frames, out, quiet=as_json)


def _stack_ids(buffer: ReplayBuffer, id: int) -> np.ndarray:
    """The rows whose frames a sampled observation of row `id` shows, oldest first.

    Zeros before an episode's start are no rows; with `stack_padding` "reset" its first row stands
    there, as often as it is shown.
    """
    row, env = divmod(id, buffer.num_envs)
    step = int(buffer.take("step", np.array([id]))[0])
    back = min(buffer.stack_size - 1, step, row - int(buffer.bounds[env, 0]))
    rows = np.arange(row - back, row + 1)
    if buffer.stack_padding == "reset" and back == step:
        rows = np.concatenate([np.full(buffer.stack_size - 1 - back, row - back), rows])
    return rows * buffer.num_envs + env


def _rows(buffer: ReplayBuffer, ids: np.ndarray) -> list[dict[str, Any]]:
    """Each row as a dict; what is large is summed up by range, what is not finite is spelled."""
    rows = [{"id": int(id), "env": int(id % buffer.num_envs)} for id in ids]
    for name, (shape, _dtype) in buffer.fields.items():
        for start in range(0, len(ids), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            values = buffer.take(name, ids[part])
            if int(np.prod(shape)) > _SHOWN_VALUES:
                with np.errstate(invalid="ignore", over="ignore"):  # the mean may be no number
                    values = [
                        {"shape": shape, "min": value.min(), "max": value.max(),
                         "mean": value.mean()}
                        for value in values
                    ]  # fmt: skip
            for row, value in zip(rows[part], values, strict=True):
                row[name] = value
    return plain(rows, spelled=True)


def _print_rows(rows: list[dict[str, Any]], found: Episodes, number: int, total: int) -> None:
    if number >= 0:
        episode = about(found, number)
        console.print(
            f"episode {number}: env {episode['env']}, {episode['rows']:,} transitions, return "
            f"{number_text(episode['return'])}, {episode['end']}"
        )
    if total == 1:
        console.print(facts({name: _cell(value) or "no" for name, value in rows[0].items()}))
        return
    names = [name for name in rows[0] if name not in ("env", "is_final")]
    made = Listing(*(f">{name}" for name in names))
    for row in rows:
        made.add(*(_cell(row[name]) for name in names))
    console.print(made)
    if len(rows) < total:
        console.print(f"{len(rows)} of {total:,} rows; --limit 0 shows all", style="dim")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{_number(value['min'])} to {_number(value['max'])}"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else ""
    text = [str(v) if isinstance(v, int) else _number(v) for v in np.ravel(np.array(value, object))]
    if not isinstance(value, list):
        return text[0]
    more = f" ... ({len(text)})" if len(text) > _SMALL else ""
    return "[" + " ".join(text[:_SMALL]) + more + "]"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else number_text(value)


def _drawable(buffer: ReplayBuffer, field: str | None, out: Path | None) -> FrameField | None:
    """The field to draw, if there is one; refuses what cannot be saved as `out`."""
    drawable = FrameField.choose(buffer, field)
    if out is not None:
        if drawable is None:
            raise InvalidInputError(
                f"{buffer.path}: no observation looks like a picture, so there is nothing to save; "
                "choose one with --field"
            )
        if out.suffix.lower() != ".gif":
            from diskreplay.pictures.sheet import format_of

            format_of(out, ".gif")
    return drawable


def _draw(
    path: Path, drawable: FrameField, ids: np.ndarray, out: Path | None, *, quiet: bool
) -> None:
    """Save the frames of these rows, or draw some of them on a terminal."""
    if out is not None:
        if out.suffix.lower() == ".gif":
            from diskreplay.pictures.animation import save_gif

            save_gif(drawable.parts(ids), out)
        else:
            from diskreplay.pictures.sheet import save_sheet

            kept, frames = drawable.read_retained(_spread(ids, _SHEET))
            if not len(kept):
                raise all_left(path)
            save_sheet(frames, out, captions=[f"row {id}" for id in kept])
        if not quiet:
            console.print(f"wrote {out} ({size_text(out.stat().st_size)})", soft_wrap=True)
    elif console.is_terminal and not quiet:
        from rich.columns import Columns

        from diskreplay.pictures.terminal import HalfBlocks

        _kept, frames = drawable.read_retained(_spread(ids, 3 if len(ids) > 1 else 1))
        if not len(frames):
            return  # they have left meanwhile; what is said of them was said
        width = max(8, console.width // len(frames) - 2)
        console.print(Columns([HalfBlocks(frame, width=width) for frame in frames]))


def _spread(ids: np.ndarray, most: int) -> np.ndarray:
    """At most so many of them, the first and the last among them."""
    if len(ids) <= most:
        return ids
    return ids[np.linspace(0, len(ids) - 1, most).round().astype(int)]
