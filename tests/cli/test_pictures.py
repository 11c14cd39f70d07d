"""The commands that draw."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from tests.pictures.making import record, record_vectors

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")


def run(*arguments, code=0):
    """What a command prints on stdout, or for another exit code on stderr."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def gif_frames(path):
    with Image.open(path) as image:
        frames = []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("L")))
        return np.array(frames)


@pytest.fixture
def stored(tmp_path):
    """A store, and its three episodes."""
    return tmp_path / "store", record(tmp_path / "store", (5, 9, 7), shape=(90, 84))


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("command", "out"),
    [("frames", "a.png"), ("video", "a.gif"), ("plot", "a.png"), ("report", "a.html")],
)
def test_each_command_says_what_it_wrote(stored, tmp_path, command, out):
    path, _episodes = stored
    said = run(command, path, "--out", tmp_path / out)
    assert str(tmp_path / out) in said
    assert (tmp_path / out).stat().st_size > 1000
    document = json.loads(run(command, path, "--out", tmp_path / out, "--force", "--json"))
    assert document["out"] == str(tmp_path / out)
    assert document["bytes"] == (tmp_path / out).stat().st_size


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("command", "out"),
    [("frames", "a.png"), ("video", "a.gif"), ("plot", "a.png"), ("report", "a.html"),
     ("show", "a.png"), ("show", "a.gif"), ("export", "a.npz"), ("export", "a.csv")],
)  # fmt: skip
def test_nothing_is_replaced_unasked(stored, tmp_path, command, out):
    path, _episodes = stored
    out = tmp_path / out
    out.write_text("mine")
    more = ["--episode", 0] if command == "show" else []
    assert "is there already" in run(command, path, "--out", out, *more, code=2)
    assert out.read_text() == "mine"
    run(command, path, "--out", out, "--force", *more)
    assert out.stat().st_size > 100


def test_frames_of_an_episode(stored, tmp_path):
    path, episodes = stored
    out = tmp_path / "sheet.png"
    said = run("frames", path, "-o", out, "--episode", 1, "--columns", 5, "--json")
    assert json.loads(said)["ids"] == list(range(6, 16))  # all of them, the final row too
    with Image.open(out) as image:
        sheet = np.asarray(image)[..., 0]
    first = episodes[1].frames[0].repeat(2, 0).repeat(2, 1)
    assert (sheet[60 : 60 + 180, 24 : 24 + 168] == first).all()
    few = json.loads(
        run("frames", path, "-o", out, "--episode", -2, "--count", 4, "--force", "--json")
    )
    assert few["ids"] == [6, 9, 12, 15]


def test_frames_at_random_follow_the_seed(stored, tmp_path):
    path, _episodes = stored
    ids = [
        json.loads(
            run("frames", path, "-o", tmp_path / "s.png", "-n", 6, "--seed", s, "--force", "--json")
        )
        for s in (1, 1, 2)
    ]
    first, again, other = (document["ids"] for document in ids)
    assert first == again != other
    assert len(first) == 6
    assert first == sorted(set(first))
    everything = json.loads(
        run("frames", path, "-o", tmp_path / "s.png", "-n", 99, "--force", "--json")
    )
    assert everything["ids"] == [i for i in range(24) if i not in (5, 15, 23)]  # no final rows


def test_frames_of_all_envs_are_as_likely(tmp_path):
    rng = np.random.default_rng(0)
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 255, (8, 8), "uint8"), num_envs=3, capacity=60,
        action_space=Discrete(2),
    ) as buffer:  # fmt: skip
        for row in range(50):
            frames = rng.integers(0, 256, (3, 8, 8), np.uint8)
            mask = np.array([True, row % 2 == 0, row < 5])
            buffer.add(frames, np.zeros(3, int), np.zeros(3), np.zeros(3, bool),
                       np.zeros(3, bool), mask=mask)  # fmt: skip
        bounds = buffer.bounds
    out = tmp_path / "s.png"
    found = json.loads(run("frames", tmp_path / "s", "-o", out, "-n", 100, "--json"))["ids"]
    retained = [r * 3 + e for e, (first, stop) in enumerate(bounds) for r in range(first, stop)]
    assert found == sorted(retained)


def test_video_is_the_episode(stored, tmp_path):
    path, episodes = stored
    out = tmp_path / "e.gif"
    run("video", path, "--episode", 0, "--force", "--out", out, "--scale", 1)
    np.testing.assert_array_equal(gif_frames(out), episodes[0].frames)
    run("video", path, "--force", "--out", out, "--scale", 1, "--every", 3)  # the newest one
    np.testing.assert_array_equal(gif_frames(out), [episodes[2].frames[i] for i in (0, 3, 6, 7)])
    run("video", path, "--force", "--out", out, "--episode", 1)
    assert gif_frames(out).shape == (10, 270, 252)


def test_a_long_episode_is_thinned_out(tmp_path):
    record(tmp_path / "s", (3100,), shape=(8, 8), kind="uniform")
    out = tmp_path / "e.gif"
    said = json.loads(run("video", tmp_path / "s", "-o", out, "--scale", 1, "--json"))
    assert (said["every"], said["frames"]) == (2, 1551)
    refused = run("video", tmp_path / "s", "-o", out, "--every", 1, "--force", code=2)
    assert "2 or more expected" in refused


def test_plot_and_report_of_a_checkpoint(stored, tmp_path):
    with diskreplay.open(stored[0], mode="a") as buffer:
        saved = buffer.save(tmp_path / "saved", 1)
    said = json.loads(run("plot", saved, "--out", tmp_path / "p.svg", "--json"))
    assert said["charts"][0] == "Return of each episode"
    ElementTree.parse(tmp_path / "p.svg")
    run("report", saved, "--out", tmp_path / "r.html")
    assert "replay_ckpt.1" in (tmp_path / "r.html").read_text()


def test_fields_are_chosen_by_name(tmp_path):
    space = Dict(left=Box(0, 255, (16, 16), "uint8"), right=Box(0, 255, (20, 20, 3), "uint8"))
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=space, action_space=Discrete(2), capacity=100
    ) as buffer:
        buffer.add(space.sample(), 1, 0.0, True, False, space.sample())
    out = tmp_path / "s.png"
    assert json.loads(run("frames", tmp_path / "s", "-o", out, "--json"))["field"] == (
        "observation/left"
    )
    said = run(
        "video", tmp_path / "s", "-o", tmp_path / "v.gif", "-f", "observation/right", "--json"
    )
    assert json.loads(said)["field"] == "observation/right"
    assert "reward" in run("frames", tmp_path / "s", "-o", out, "-f", "reward", "--force", code=2)


@pytest.mark.costly
def test_without_pictures(tmp_path):
    record_vectors(tmp_path / "s")
    for command in ("frames", "video"):
        said = run(command, tmp_path / "s", "-o", tmp_path / "o.gif", code=2)
        assert "no observation looks like a picture" in said
        assert "--field" in said
    run("plot", tmp_path / "s", "-o", tmp_path / "p.png")
    run("report", tmp_path / "s", "-o", tmp_path / "r.html")


def test_what_cannot_be_drawn(stored, tmp_path):
    path, _episodes = stored
    assert "no such episode" in run("video", path, "-o", tmp_path / "a.gif", "-e", 3, code=2)
    assert ".gif" in run("video", path, "-o", tmp_path / "a.png", code=2)
    assert ".png" in run("plot", path, "-o", tmp_path / "a.gif", code=2)
    record(tmp_path / "empty", ())
    assert "no frames yet" in run("frames", tmp_path / "empty", "-o", tmp_path / "a.png", code=2)
    (tmp_path / "taken.html").mkdir()
    run("report", path, "-o", tmp_path / "taken.html", code=2)
    run("report", tmp_path / "nothing", "-o", tmp_path / "a.html", code=3)


def test_only_files_outside_of_the_store_are_replaced(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 255, (12, 16), "uint8"),
        action_space=Discrete(2), capacity=10,
    ) as buffer:  # fmt: skip
        buffer.add(np.zeros((12, 16), np.uint8), 0, 0.0, False, False)
    (tmp_path / "d.png").mkdir()
    inside, device = tmp_path / "s" / "x.png", tmp_path / "d.png"
    arguments = [("frames",), ("video",), ("plot",), ("show", "0")]
    for command, *more in arguments:
        for out in (inside, device):
            done = CliRunner().invoke(app, [command, str(tmp_path / "s"), *more, "--out", str(out)])
            assert done.exit_code == 2, (command, done.output)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "s"), "--out", str(tmp_path / "x.js")])
    assert done.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.png", "s"]
    assert not inside.exists()


def test_a_report_of_as_many_episodes_as_are_asked_for(stored, tmp_path):
    path, episodes = stored
    out = tmp_path / "r.html"
    for asked, count in (("1", 1), ("all", len(episodes))):
        run("report", path, "--out", out, "--force", "--episodes", asked)
        text = out.read_text().partition('id="data">')[2].partition("</script>")[0]
        assert len(json.loads(text)["reels"]) == count
    assert "a number or all expected" in run(
        "report", path, "--out", out, "--force", "--episodes", "some", code=2
    )
