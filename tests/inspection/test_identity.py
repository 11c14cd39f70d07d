"""Who a store is: its name, what was noted, and what its actions mean."""

import json
import re

import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from diskreplay.inspection.identity import (
    action_labels,
    metadata_of,
    metadata_texts,
    title_of,
)
from tests.pictures.making import record

NOTED = {
    "env_id": "ALE/Pong-v5", "seed": 3, "kwargs": {"frameskip": 1},
    "action_meanings": ["NOOP", "FIRE", "RIGHT", "LEFT"],
}  # fmt: skip


def note(path, metadata):
    """Into the group's attributes, as a buffer writes them."""
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["metadata"] = metadata
    (path / "zarr.json").write_text(json.dumps(document))


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "runs" / "pong" / "replay"
    record(path, (5, 9, 7), shape=(90, 84))
    return path


@pytest.mark.parametrize(
    ("metadata", "title"),
    [
        ({}, "runs/pong/replay"),
        ({"env_id": "ALE/Pong-v5"}, "ALE/Pong-v5"),
        ({"env_id": "ALE/Pong-v5", "name": "Pong,\nrainbow"}, "Pong, rainbow"),
        ({"env_id": 7, "name": " "}, "runs/pong/replay"),
        (None, "runs/pong/replay"),
        (["x"], "runs/pong/replay"),
    ],
)
def test_the_title(store, metadata, title):
    note(store, metadata)
    assert title_of(store) == title
    assert metadata_of(store) == (metadata if isinstance(metadata, dict) else {})


def test_a_store_at_the_root_of_a_relative_path(store, monkeypatch):
    monkeypatch.chdir(store.parent)
    from pathlib import Path

    assert title_of(Path("replay")) == "runs/pong/replay"


def test_texts():
    assert metadata_texts(NOTED | {"long": "x" * 1000})[:4] == [
        "env_id ALE/Pong-v5", "seed 3", 'kwargs {"frameskip": 1}',
        "action_meanings NOOP FIRE RIGHT LEFT",
    ]  # fmt: skip
    assert metadata_texts({"env_spec": {f"key {n}": n for n in range(12)}}) == [
        "env_spec with 12 keys"
    ]
    assert len(metadata_texts({"long": "x" * 1000})[0]) < 400


@pytest.mark.parametrize(
    ("space", "names", "labels"),
    [
        (Discrete(2), ["NOOP", "FIRE"], ["0 NOOP", "1 FIRE"]),
        (Discrete(2, start=5), ["NOOP", "FIRE"], ["5 NOOP", "6 FIRE"]),
        (Discrete(2), ["NOOP"], None),
        (Discrete(2), "AB", None),
        (Discrete(2), [1, 2], None),
        (Box(0, 1, (2,)), ["NOOP", "FIRE"], None),
    ],
)
def test_action_labels(tmp_path, space, names, labels):
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Discrete(2), action_space=space, capacity=10
    ):
        pass
    note(tmp_path / "s", {"action_meanings": names})
    with diskreplay.open(tmp_path / "s") as buffer:
        label = action_labels(buffer)
    if labels is None:
        assert label is None
    else:
        first = int(space.start)
        assert [label(first), label(first + 1)] == labels
        assert label(99) == "99"  # rot: nothing is made up


def test_what_is_noted_is_shown(store, tmp_path):
    note(store, NOTED)
    found = json.loads(run("info", store, "--json"))
    assert (found["title"], found["metadata"]) == ("ALE/Pong-v5", NOTED)
    said = run("info", store)
    for text in ("ALE/Pong-v5", "seed 3", "NOOP FIRE RIGHT LEFT", str(store)):
        assert text in " ".join(said.split())
    assert run("episodes", store).startswith("ALE/Pong-v5\n")
    assert re.search(r"\b2 RIGHT +\d+", run("stats", store))
    shown = run("show", store, "--episode", 0)
    assert re.search(r"\d (NOOP|FIRE|RIGHT|LEFT)", shown)
    rows = json.loads(run("show", store, "--episode", 0, "--json"))["rows"]
    assert {row["action"] for row in rows} <= {0, 1, 2, 3}
    assert "ALE/Pong-v5" in json.loads(run("info", store, "--json"))["title"]


@pytest.mark.costly
def test_titles_of_pictures(store, tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    pytest.importorskip("matplotlib")
    from diskreplay.pictures import sheet

    titles = []
    real = sheet.save_sheet

    def save_sheet(*arguments, **options):
        titles.append((options["title"], options["captions"]))
        return real(*arguments, **options)

    monkeypatch.setattr(sheet, "save_sheet", save_sheet)
    for metadata, name in (({}, "runs/pong/replay"), (NOTED, "ALE/Pong-v5")):
        note(store, metadata)
        run("plot", store, "--out", tmp_path / "plot.svg", "--force")
        svg = (tmp_path / "plot.svg").read_text()
        assert f">{name}<" in svg
        assert (">2 RIGHT<" in svg) == bool(metadata)
        run("report", store, "--out", tmp_path / "r.html", "--force")
        page = (tmp_path / "r.html").read_text()
        assert f"<h1>{name}</h1>" in page
        assert f"<title>{name} · diskreplay</title>" in page
        assert ("seed 3" in page) == bool(metadata)
        run("frames", store, "--out", tmp_path / "f.png", "--force")
        title, captions = titles.pop()
        assert title.startswith(f"{name} · observation")
        assert any("RIGHT" in caption for caption in captions) == bool(metadata)


def test_hostile_names_are_text(store, tmp_path):
    note(store, {"name": "<b>[red]$x$</b>", "note": "</script>"})
    assert "<b>[red]$x$</b>" in run("info", store)
    run("report", store, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<b>[red]" not in page
    assert "&lt;b&gt;[red]$x$&lt;/b&gt;" in page


def test_a_frame_carries_what_was_noted(store):
    pytest.importorskip("pandas")
    with diskreplay.open(store) as buffer:
        assert buffer.to_pandas().attrs == {}
    note(store, NOTED)
    with diskreplay.open(store) as buffer:
        assert buffer.to_pandas().attrs == {"metadata": NOTED}
        assert buffer.to_pandas(observations="bytes").attrs == {"metadata": NOTED}
