"""Commands that draw: frames, video, plot, report."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from diskreplay.buffer import ReplayBuffer
from diskreplay.cli.common import (
    EpisodeOption,
    ForceOption,
    JsonOption,
    OutOption,
    PathArgument,
    check_target,
    console,
    opened,
    say_json,
)
from diskreplay.episodes import Episodes
from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.inspection.episodes import episodes_of, with_final
from diskreplay.inspection.humanize import count_text, size_text
from diskreplay.inspection.identity import title_of
from diskreplay.inspection.retained import ids_at
from diskreplay.pictures.channels import action_texts
from diskreplay.pictures.frame_field import FrameField, all_left, retained

_GIF_FRAMES = 3000  # more are thinned out: the encoder holds all, and nobody watches that long

FieldOption = Annotated[
    str | None,
    typer.Option(
        "--field", "-f",
        help="The field to draw, like observation/camera; else the first observation that looks "
        "like a picture.",
    ),
]  # fmt: skip

commands = typer.Typer()


@commands.command(epilog="Example: `diskreplay frames runs/pong/replay --out sheet.png`")
def frames(
    path: PathArgument,
    out: OutOption,
    episode: EpisodeOption = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many frames.")] = 24,
    columns: Annotated[
        int | None, typer.Option("--columns", min=1, help="Frames in a line.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the choice of frames.")] = 0,
    field: FieldOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Draw a contact sheet: frames at random, or evenly spaced ones of an episode.

    The file's ending says the format: .png, .jpg or .webp.
    """
    from diskreplay.pictures.sheet import save_sheet

    with opened(path) as buffer:
        check_target(out, buffer, force)
        shown = _frame_field(buffer, field)
        episodes = episodes_of(buffer)
        if episode is None:
            ids = _drawn(buffer, count, np.random.default_rng(seed))
        else:
            ids = with_final(episodes, episode)
            ids = ids[np.unique(np.linspace(0, len(ids) - 1, count).round().astype(int))]
        chosen = len(ids)
        ids, (pictures, captions) = retained(
            buffer, ids, lambda ids: (shown.read(ids), _captions(buffer, episodes, ids))
        )
        if not len(ids):
            raise all_left(path) if chosen else EmptyBufferError(f"{path}: no frames yet")
        title = f"{title_of(buffer.path)} · {shown.name}"
        title += f" · {len(ids)} transitions at random" if episode is None else (
            f" · episode {episodes.position(episode)}"
        )  # fmt: skip
        save_sheet(pictures, out, columns, captions=captions, title=title)
        _say(out, f"{len(ids)} frames", as_json, field=shown.name, ids=ids)


@commands.command(epilog="Example: `diskreplay video runs/pong/replay --episode 12 --out 12.gif`")
def video(
    path: PathArgument,
    out: OutOption,
    episode: EpisodeOption = -1,
    fps: Annotated[float, typer.Option("--fps", min=0.02, max=50, help="Frames a second.")] = 15,
    every: Annotated[
        int | None,
        typer.Option(
            "--every", min=1, help=f"Show each k-th frame; else all, up to {_GIF_FRAMES:,} frames."
        ),
    ] = None,
    scale: Annotated[
        int | None, typer.Option("--scale", min=1, max=16, help="Enlarge so many times.")
    ] = None,
    field: FieldOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a GIF of an episode, with the frame it ended with if that was recorded."""
    from diskreplay.pictures.animation import save_gif

    with opened(path) as buffer:
        check_target(out, buffer, force)
        shown = _frame_field(buffer, field)
        episodes = episodes_of(buffer)
        ids = with_final(episodes, -1 if episode is None else episode)
        every = every or -(-len(ids) // _GIF_FRAMES)
        if len(ids) > every * _GIF_FRAMES:
            raise InvalidInputError(
                f"--every {every}: {len(ids):,} frames are too many for a GIF; "
                f"{-(-len(ids) // _GIF_FRAMES)} or more expected"
            )
        ids = np.unique(np.r_[ids[::every], ids[-1]])
        save_gif(shown.parts(ids), out, fps, scale=scale)
        what = f"{len(ids):,} frames" + (f", every {every} steps" if every > 1 else "")
        _say(out, what, as_json, field=shown.name, frames=len(ids), every=every)


@commands.command(epilog="Example: `diskreplay plot runs/pong/replay --out charts.png`")
def plot(
    path: PathArgument, out: OutOption, force: ForceOption = False, as_json: JsonOption = False
) -> None:
    """Draw returns, lengths, rewards, actions, priorities and sizes into one picture.

    The file's ending says the format: .png, .svg or .pdf.
    """
    from diskreplay.pictures.figures import charts_of
    from diskreplay.pictures.plots import save_plot
    from diskreplay.pictures.report import described

    with opened(path) as buffer:
        check_target(out, buffer, force)
        sections = charts_of(buffer, episodes_of(buffer), buffer.statistics())
        charts = [chart for section in sections.values() for chart in section]
        save_plot(charts, out, title_of(buffer.path), described(buffer))
        _say(
            out, count_text(len(charts), "chart"), as_json, charts=[chart.title for chart in charts]
        )


@commands.command(epilog="Example: `diskreplay report runs/pong/replay --out report.html`")
def report(
    path: PathArgument,
    out: OutOption,
    episodes: Annotated[
        str, typer.Option("--episodes", metavar="N", help="How many episodes play, or all.")
    ] = "4",
    field: FieldOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write one page with all charts and a few episodes that play; it needs no network."""
    from diskreplay.pictures.report import save_report

    if out.suffix.lower() not in (".html", ".htm"):
        raise InvalidInputError(f"--out: a name that ends in .html expected, found {out}")
    if episodes != "all" and not (episodes.isascii() and episodes.isdecimal()):
        raise InvalidInputError(f"--episodes: a number or all expected, found {episodes!r:.40}")
    players = None if episodes == "all" else int(episodes)
    with opened(path) as buffer:
        check_target(out, buffer, force)
        save_report(buffer, out, field=field, players=players)
        _say(out, "open it in a browser", as_json)


def _frame_field(buffer: ReplayBuffer, name: str | None) -> FrameField:
    field = FrameField.choose(buffer, name)
    if field is None:
        raise InvalidInputError(
            f"{buffer.path}: no observation looks like a picture; name a field with --field: "
            f"{', '.join(buffer.fields)}"
        )
    return field


def _drawn(buffer: ReplayBuffer, count: int, rng: np.random.Generator) -> np.ndarray:
    """The ids of up to `count` transitions, each as likely, in the order of time."""
    bounds = buffer.bounds
    total = int((bounds[:, 1] - bounds[:, 0]).sum())
    # A final row in two is the most there can be.
    ids = ids_at(bounds, rng.choice(total, min(total, 2 * count + 64), replace=False))
    ids, is_final = retained(buffer, ids, lambda ids: buffer.take("is_final", ids))
    return np.sort(ids[~is_final][:count])


def _captions(buffer: ReplayBuffer, episodes: Episodes, ids: np.ndarray) -> list[str]:
    """Two lines for each row: where it is, and what was done and gained."""
    columns = [buffer.take(name, ids) for name in ("step", "reward", "is_final")]
    columns += [action_texts(buffer, ids), ids.tolist()]
    captions = []
    for step, reward, is_final, done, id in zip(*columns, strict=True):
        second = (
            "the end" if is_final else f"action {done}" + f", reward {reward:+g}" * bool(reward)
        )
        captions.append(f"episode {episodes.find(id)}, step {step}\n{second}")
    return captions


def _say(out: Path, what: str, as_json: bool, **more: Any) -> None:
    size = out.stat().st_size
    if as_json:
        say_json({"out": out, "bytes": size, **more})
    else:
        console.print(f"{out}: {what} ({size_text(size)})", soft_wrap=True)
