"""A reader that does not follow: the store as it was when it was opened."""

import html
import json
import re
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app

CAPACITY = 1200


def record(buffer, start, stop):
    """Steps `start` to `stop`: each value says which step it is."""
    for t in range(start, stop):
        buffer.add(np.full((8, 8), t % 251, np.uint8), t % 3, t % 5 - 2.0, t % 10 == 9, False)


@pytest.fixture
def live(tmp_path):
    """A writer at ``tmp_path / "replay"``; every field is packed, so that all have tails."""
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "replay", observation_space=Box(0, 255, (8, 8), np.uint8), seed=0,
        action_space=Discrete(3), capacity=CAPACITY, compressor="lz4",
    ) as buffer:  # fmt: skip
        yield buffer


def shown(view):
    """All that a view has, by field."""
    first, stop = view.bounds[0]
    ids = np.arange(first, stop)
    return {"bounds": (first, stop), **{name: view.take(name, ids) for name in view.fields}}


def check(view, expected):
    found = shown(view)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, name)


@pytest.mark.parametrize("more", [1, 300, 900])
def test_rows_neither_come_nor_leave(live, tmp_path, more):
    record(live, 0, 1500)
    with diskreplay.open(tmp_path / "replay", follow=False, seed=3) as view:
        expected, length, count = shown(view), len(view), view.add_count
        assert expected["bounds"] == (300, 1500)
        statistics = view.statistics()
        batch = view.sample(64)
        record(live, 1500, 1500 + more)
        live.flush()
        check(view, expected)
        assert (len(view), view.add_count) == (length, count)
        assert view.statistics().rows == statistics.rows
        np.testing.assert_array_equal(view.gather(batch.id).observation, batch.observation)
        assert view.sample(500).id.max() < 1500
    with diskreplay.open(tmp_path / "replay") as view:
        assert view.bounds.tolist() == [[300 + more, 1500 + more]]


def test_another_store_in_its_place(live, tmp_path):
    record(live, 0, 500)
    live.save(tmp_path / "checkpoints", 1)
    record(live, 500, 700)
    live.flush()  # what is full is sealed
    with diskreplay.open(tmp_path / "replay", follow=False) as view:
        expected = shown(view)
        live.load(tmp_path / "checkpoints", 1)
        record(live, 500, 600)
        check(view, expected)
        shutil.rmtree(tmp_path / "checkpoints")
        check(view, expected)


def test_another_store_after_files_were_renamed(live, tmp_path):
    """Rows in a tail when it was opened are in a file that was loaded away: that is said."""
    record(live, 0, 500)
    live.save(tmp_path / "checkpoints", 1)
    with diskreplay.open(tmp_path / "replay", follow=False) as view:
        record(live, 500, 1500)
        live.flush()
        live.load(tmp_path / "checkpoints", 1)
        with pytest.raises(diskreplay.StorageError, match="another store was loaded in its place"):
            view.take("reward", np.arange(490, 500))


def test_what_cannot_be_kept_is_left_out(live, tmp_path):
    """The newest rows were in a tail, which has other rows by now, and their file is deleted."""
    record(live, 0, 1250)
    with diskreplay.open(tmp_path / "replay", follow=False) as view:
        expected = shown(view)
        assert len(view.sample(8)) == 8
        record(live, 1250, 4100)
        live.flush()
        found = shown(view)
        assert found["bounds"][0] >= expected["bounds"][0]
        assert found["bounds"][1] == 1250
        rows = found["bounds"][1] - found["bounds"][0]
        for name in view.fields:
            np.testing.assert_array_equal(found[name], expected[name][CAPACITY - rows :])
        assert len(view) <= rows


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def busy(live, tmp_path, monkeypatch):
    """The live store, its checkpoint of the same moment, and a writer that adds whenever the reader
    of the live store has read something."""
    record(live, 0, 1500)
    live.update_priorities(np.arange(400, 600), np.linspace(1, 3, 200))
    live.flush()
    saved = live.save(tmp_path / "checkpoints", 1)
    read, added = diskreplay.ReplayBuffer._read_rows, [1500]

    def read_and_add(self, *arguments):
        found = read(self, *arguments)
        if self.path == live.path and self is not live:
            record(live, added[0], added[0] + 7)
            added[0] += 7
        return found

    monkeypatch.setattr(diskreplay.ReplayBuffer, "_read_rows", read_and_add)
    yield live.path, saved
    assert added[0] > 1500


def test_stats_are_of_one_moment(busy):
    live, saved = (json.loads(run("stats", path, "--json")) for path in busy)
    for part in ("fields", "episodes", "actions", "rewards", "priorities"):
        assert live[part] == saved[part]


@pytest.mark.parametrize("command", [["episodes"], ["show", "--episode", "-1"]])
def test_episodes_are_of_one_moment(busy, command):
    live, saved = (json.loads(run(*command, path, "--json")) for path in busy)
    assert live == saved


def test_a_copy_is_of_one_moment(busy, tmp_path):
    for path in busy:
        run("export", path, "--out", tmp_path / f"{path.name}.npz")
    live, saved = (np.load(tmp_path / f"{path.name}.npz") for path in busy)
    with live, saved:
        for name in ("observation", "action", "reward", "terminated"):
            np.testing.assert_array_equal(live[name], saved[name], name)


def test_a_report_is_of_one_moment(busy, tmp_path):
    pytest.importorskip("PIL")
    pages = []
    for path in busy:
        out = tmp_path / f"{path.name}.html"
        run("report", path, "--out", out)
        page = re.sub(r"<(script|style).*?</\1>", "", out.read_text(), flags=re.DOTALL)
        page = page[page.index("<dl") :]
        lines = html.unescape(re.sub(r"<[^>]*>", "\n", page)).splitlines()
        pages.append([line for line in lines if "iB" not in line])  # a checkpoint has other files
    assert "1,200" in pages[0]
    assert pages[0] == pages[1]
