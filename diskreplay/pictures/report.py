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
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.humanize import size_text
from diskreplay.inspection.identity import metadata_of, metadata_texts, title_of
from diskreplay.pictures import svg
from diskreplay.pictures.figures import Chart, Sizes, Trend, charts_of
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.reel import chosen, reel_of
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.statistics import Statistics
from diskreplay.store import files

_REEL_BYTES = 6 << 20  # of all PNG strips together; base64 makes a third more of them
_RECENT = 100  # episodes of "lately"


def save_report(
    buffer: ReplayBuffer,
    path: str | os.PathLike,
    *,
    field: str | None = None,
    players: int = 4,
) -> Path:
    """Write the page.

    Parameters
    ----------
    buffer : ReplayBuffer
        Reading is enough.
    path : path
        Replaced as a whole. Some 100 kB, and at most 8 MiB for the episodes that play.
    field : str, optional
        The frames that play; by default the first observation that looks like a picture.
    players : int
        How many episodes play; 0 for none.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError
        `field` is no picture.
    StorageError
        The file cannot be written.
    ImportError
        There are frames to show, and Pillow is missing.

    Notes
    -----
    Reads the small fields of every row, part by part, and the frames that are shown. Memory: what
    the index of the buffer needs, and some megabytes.
    """
    path = Path(path)
    frames = FrameField.choose(buffer, field)
    episodes = episodes_of(buffer)
    statistics = buffer.statistics()
    sections = []
    for name, charts in charts_of(buffer, episodes, statistics).items():
        cards = "".join(map(_card, charts))
        if name == "Memory and disk":
            cards += _fields_card(buffer, statistics)
        if cards:
            shape = "grid small" if name == "Transitions" else "grid"
            sections.append((name, f'<div class="{shape}">{cards}</div>'))
    reels: list[dict[str, Any]] = []
    sections.insert(1, ("Episodes to watch", _players(buffer, frames, episodes, players, reels)))
    body = "".join(
        f"<section><h2>{escape(name)}</h2>{content}</section>" for name, content in sections
    )
    page = _page(buffer, statistics, episodes, body, reels)
    files.replace({path: page.encode(errors="replace")})  # a path may be no UTF-8
    return path


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
    buffer: ReplayBuffer,
    statistics: Statistics,
    episodes: Episodes,
    body: str,
    reels: list[dict[str, Any]],
) -> str:
    here = resources.files("diskreplay.pictures")
    style, script = (here.joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    name = escape(title_of(buffer.path))
    noted = ", ".join(metadata_texts(metadata_of(buffer.path)))
    noted = f'\n<p class="soft">{escape(noted)}</p>' if noted else ""
    # Nothing in a JSON string may end the script element.
    data = json.dumps(reels, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
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
style-src 'unsafe-inline'; script-src 'unsafe-inline'">
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
{body}
<footer>Made by diskreplay {escape(diskreplay.__version__)} on {made}. Returns are sums of rewards,
not discounted. Sizes are in binary units: 1 MiB is 1,048,576 bytes.</footer>
</main>
<script type="application/json" id="reels">{data}</script>
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
            ("Mean return lately", svg.number(recent.mean()),
             f"last {len(recent):,} whole ones"),
            ("Best return", svg.number(returns.max()), f"worst {svg.number(returns.min())}"),
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


def _card(chart: Chart) -> str:
    if isinstance(chart, Trend):
        key = [("trend", chart.line_name)]
        key = [("dots", "an episode"), *key] if len(chart.x) else key
    elif isinstance(chart, Sizes):
        key = [("raw", "as arrays in memory"), ("disk", "on disk")]
    else:
        key = []
    items = "".join(f'<li class="{kind}">{escape(text)}</li>' for kind, text in key)
    legend = f'<ul class="key">{items}</ul>' if items else ""
    return (
        f'<figure class="card"><h3>{escape(chart.title)}</h3>'
        f'<p class="note">{escape(chart.note)}</p>{svg.drawn(chart)}{legend}</figure>'
    )


def _fields_card(buffer: ReplayBuffer, statistics: Statistics) -> str:
    rows = []
    for name, (shape, dtype) in buffer.fields.items():
        figures = statistics.fields[name]
        sides = " x ".join(map(str, shape)) or "scalar"
        rows.append(
            f"<tr><td>{escape(name)}</td><td>{sides}</td><td>{dtype}</td>"
            f'<td class="n">{size_text(figures.raw_bytes)}</td>'
            f'<td class="n">{size_text(figures.disk_bytes)}</td>'
            f'<td class="n">{figures.ratio:.3g}</td><td class="n">{figures.segments:,}</td></tr>'
        )
    return (
        '<div class="card"><h3>Fields</h3><p class="note">What each row holds</p>'
        '<div class="scroll"><table><thead><tr><th>field</th><th>shape</th><th>dtype</th>'
        '<th class="n">in memory</th><th class="n">on disk</th><th class="n">ratio</th>'
        f'<th class="n">files</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div></div>'
    )


def _players(
    buffer: ReplayBuffer,
    frames: FrameField | None,
    episodes: Episodes,
    count: int,
    reels: list[dict[str, Any]],
) -> str:
    """The players' elements; what they play is put into `reels`."""
    if frames is None:
        return (
            '<p class="card">No observation of this store is a picture, so there are no frames.</p>'
        )
    picks = chosen(episodes, count)
    cards = []
    for number, why in picks.items():
        reel = reel_of(buffer, frames, episodes, number, _REEL_BYTES // len(picks))
        if reel is None:
            continue
        reels.append(reel | {"first": int(episodes.first_step[number])})
        cards.append(_player(reel, episodes, number, why))
    if not cards:
        return '<p class="card">There is no episode to watch.</p>'
    shown = f"Frames of the field {frames.name}" + (
        ", the newest of each stack." if frames.stacked else "."
    )
    return (
        f'<p class="note">{escape(shown)} Marks above the slider are rewards: green for positive, '
        f'red for negative ones.</p><div class="grid reels">{"".join(cards)}</div>'
        "<noscript><p>The episodes play where scripts are allowed.</p></noscript>"
    )


def _player(reel: dict[str, Any], episodes: Episodes, number: int, why: str) -> str:
    length, total = int(episodes.rows[number]), svg.number(float(episodes.returns[number]))
    ending = next(
        (kind for kind in episodes.ENDS
         if getattr(episodes, kind)[number]), "",
    )  # fmt: skip
    thinned = f", every {_ordinal(reel['stride'])} frame" if reel["stride"] > 1 else ""
    speeds = "".join(
        f'<option value="{fps}"{" selected" * (fps == 15)}>{fps} fps</option>'
        for fps in (2, 5, 15, 30, 60)
    )
    about = f"episode {number}: return {total}, {length:,} transitions, {ending}"
    return (
        f'<article class="card reel"><h3>{why}: episode {number:,}</h3>'
        f'<p class="note">return {total}, {length:,} transitions, {ending}{thinned}</p>'
        f'<canvas width="{reel["width"]}" height="{reel["height"]}" role="img" '
        f'aria-label="Frames of {escape(about)}"></canvas>'
        '<div class="controls"><button type="button" aria-label="Play">▶</button>'
        '<div><svg class="marks" preserveAspectRatio="none" aria-hidden="true"></svg>'
        f'<input type="range" min="0" max="{reel["frames"] - 1}" value="0" aria-label="Frame">'
        f'</div><select aria-label="Frames a second">{speeds}</select></div>'
        '<dl class="now"><dt>step</dt><dd></dd><dt>action</dt><dd></dd><dt>reward</dt><dd></dd>'
        "<dt>return so far</dt><dd></dd></dl></article>"
    )


def _ordinal(value: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"} if value % 100 not in (11, 12, 13) else {}
    return f"{value}{endings.get(value % 10, 'th')}"
