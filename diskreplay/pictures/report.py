"""The report: one page with everything in it, which needs no network."""

import datetime
import json
import os
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import diskreplay
from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.harmless import harmless
from diskreplay.inspection.humanize import number_text, size_text
from diskreplay.inspection.identity import metadata_of, metadata_texts, title_of
from diskreplay.inspection.plain import plain
from diskreplay.pictures.figures import charts_of, section_documents
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.reel import chosen, reel_of
from diskreplay.pictures.vectors import vectors_of
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.statistics import Statistics
from diskreplay.store import files
from diskreplay.store.paths import local

_REEL_BYTES = 6 << 20  # of all PNG strips together; base64 makes a third more of them
_EACH_BYTES = 256 << 10  # of each episode at least, where many are asked for
_MOST = 500  # episodes
_VECTOR_ROWS = 5_000
_SCRIPTS = ("dom.js", "charts.js", "player.js", "report.js")
_RECENT = 100  # episodes of "lately"


def save_report(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    *,
    field: str | None = None,
    players: int | None = 4,
) -> Path:
    """Write the page.

    Parameters
    ----------
    buffer : ReplayBuffer
        Reading is enough.
    path : path
        Replaced as a whole. Some 100 kB, and at most 8 MiB for the frames of the episodes, or 350
        kB for each of them.
    field : str, optional
        The frames that play; by default all observations and extras that look like pictures.
    players : int or None
        How many episodes play; 0 for none, None for all.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError
        `field` is no picture; more than 500 episodes are to play.
    StorageError
        The file cannot be written.
    ImportError
        There are frames to show, and Pillow is missing.

    Notes
    -----
    Reads the small fields of every row, part by part, a sample of the vectors, and the frames that
    are shown. Memory: what the index of the buffer needs, and the page.
    """
    path = local(path, "path")
    cameras = FrameField.every(buffer) if field is None else [FrameField.named(buffer, field)]
    episodes = episodes_of(buffer)
    count = len(episodes) if players is None else players
    if count > _MOST:
        raise InvalidInputError(
            f"{count:,} episodes are too many for one page; up to {_MOST} expected"
        )
    statistics = buffer.statistics()
    data = {
        "sections": section_documents(charts_of(buffer, episodes, statistics)),
        "reels": _reels(buffer, cameras, episodes, count),
        "vectors": vectors_of(buffer, rows=_VECTOR_ROWS),
        "fields": _fields(buffer, statistics),
    }
    page = _page(buffer, statistics, episodes, data)
    files.replace({path: page.encode(errors="replace")})  # a path may be no UTF-8
    return path


def _reels(
    buffer: ReplayBuffer, cameras: list[FrameField], episodes: Episodes, count: int
) -> list[dict[str, Any]]:
    """The episodes that play, the telling ones first."""
    picks = chosen(episodes, count)
    budget = max(_REEL_BYTES, _EACH_BYTES * len(picks)) // max(1, len(picks))
    reels = []
    for number, why in picks.items():
        reel = reel_of(buffer, cameras, episodes, number, budget)
        if reel is not None:
            reels.append(reel | {"title": f"{why}: episode {number:,}"})
    return reels


def _fields(buffer: ReplayBuffer, statistics: Statistics) -> list[list[Any]]:
    found = []
    for name, (shape, dtype) in buffer.fields.items():
        figures = statistics.fields[name]
        sides = " x ".join(map(str, shape)) or "scalar"
        sizes = [size_text(figures.raw_bytes), size_text(figures.disk_bytes)]
        found.append([name, sides, str(dtype), *sizes, f"{figures.ratio:.3g}", figures.segments])
    return found


def described(buffer: ReplayBuffer) -> str:
    """What kind of buffer it is, in a line."""
    kind = "uniform"
    if isinstance(buffer, PrioritizedReplayBuffer):
        kind = f"prioritized (alpha {buffer.alpha:g})"
    envs = f", {buffer.num_envs} envs" if buffer.num_envs > 1 else ""
    stack = f"{buffer.stack_size}"
    if buffer.stack_size > 1 and buffer.stack_padding == "reset":
        stack += " (padded with the first frame)"
    return (
        f"{kind}{envs}, stack {stack}, {buffer.update_horizon}-step returns, gamma {buffer.gamma:g}"
    )


def _page(
    buffer: ReplayBuffer, statistics: Statistics, episodes: Episodes, data: dict[str, Any]
) -> str:
    here = resources.files("diskreplay.pictures").joinpath("page")
    style = here.joinpath("look.css").read_text("utf-8")
    script = "\n".join(here.joinpath(name).read_text("utf-8") for name in _SCRIPTS)
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    name = escape(harmless(title_of(buffer.path)))
    noted = ", ".join(metadata_texts(metadata_of(buffer.path)))
    noted = f'\n<p class="soft">{escape(harmless(noted))}</p>' if noted else ""
    # Nothing in a JSON string may end the script element.
    text = json.dumps(plain(data, harmless), separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    tiles = "".join(
        f'<div class="tile"><dt>{escape(what)}</dt><dd>{escape(value)}'
        f"<small>{escape(remark)}</small></dd></div>"
        for what, value, remark in _facts(statistics, episodes)
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; script-src 'unsafe-inline'; require-trusted-types-for 'script'; \
trusted-types 'none'">
<title>{name} · diskreplay</title>
<style>
{style}</style>
<main>
<header>
<h1>{name}</h1>
<p class="soft">{escape(described(buffer))}</p>
<p class="soft path">{escape(str(buffer.path))}</p>{noted}
<dl class="tiles">{tiles}</dl>
</header>
<div id="report"></div>
<noscript><p>Charts and episodes are drawn by the scripts of this page, where they are allowed.</p>
</noscript>
<footer>Made by diskreplay {escape(diskreplay.__version__)} on {made}. Returns are sums of rewards,
not discounted. Sizes are in binary units: 1 MiB is 1,048,576 bytes.</footer>
</main>
<script type="application/json" id="data">{text}</script>
<script>
{script}</script>
</html>
"""


def _facts(statistics: Statistics, episodes: Episodes) -> list[tuple[str, str, str]]:
    kept = episodes.whole
    returns, lengths = episodes.returns[kept], episodes.rows[kept]
    capacity = statistics.capacity
    facts = [
        ("Transitions", f"{int(episodes.rows.sum()):,}", f"of {statistics.transitions:,} recorded"),
        ("Episodes", f"{len(episodes):,}", f"{kept.sum():,} of them whole"),
    ]
    if len(returns):
        recent = returns[-_RECENT:]
        facts += [
            ("Mean return lately", number_text(recent.mean()),
             f"last {len(recent):,} whole ones"),
            ("Best return", number_text(returns.max()), f"worst {number_text(returns.min())}"),
            ("Median length", f"{np.median(lengths):,.0f}",
             f"from {lengths.min():,} to {lengths.max():,}"),
        ]  # fmt: skip
    facts += [
        ("Rows", f"{statistics.rows:,}",
         f"{statistics.rows / capacity:.0%} of {capacity:,}" if capacity
         else "without a limit"),
        ("On disk", size_text(statistics.disk_bytes),
         f"{size_text(statistics.raw_bytes)} as arrays"),
    ]  # fmt: skip
    return facts
