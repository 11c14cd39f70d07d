"""Episodes and rows, against what was recorded."""

import io

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from rich.console import Console

import diskreplay
from diskreplay.inspection.episodes import episodes_of
from tests.cli.conftest import record


def test_a_wrong_path_is_said_before_that_no_row_was_given(cli, store, tmp_path):
    assert "or --episode" in cli("show", store, code=2).stderr
    assert "no such directory" in cli("show", tmp_path / "none", code=3).stderr


def test_episodes(cli_json, store):
    found = cli_json("episodes", store)
    assert [episode["number"] for episode in found] == [*range(10, -1, -1)]
    assert found[0] == {
        "number": 10, "env": 0, "return": 1.0, "rows": 5, "end": "unfinished", "first_step": 0,
        "beginning_lost": False, "start_id": 110, "final_id": None,
    }  # fmt: skip
    assert found[-1] == {
        "number": 0, "env": 0, "return": 3.0, "rows": 10, "end": "terminated", "first_step": 0,
        "beginning_lost": False, "start_id": 0, "final_id": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--sort", "oldest", "--limit", 3], [0, 1, 2]),
        (["--sort", "oldest", "--reverse", "--limit", 2], [10, 9]),
        (["--sort", "return", "--limit", 3], [1, 3, 5]),
        (["--sort", "return"], [1, 3, 5, 7, 9, 0, 2, 4, 6, 8, 10]),
        (["--sort", "return", "--reverse"], [0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 10]),
        (["--sort", "length", "--reverse"], [*range(11)]),
        (["--limit", 0], [*range(10, -1, -1)]),
    ],
)
def test_episodes_in_order(cli_json, store, options, numbers):
    found = cli_json("episodes", store, *options)
    assert [episode["number"] for episode in found] == numbers


def test_episodes_for_people(cli, store):
    text = cli("episodes", store, "--limit", 4).stdout
    assert "unfinished" in text
    assert "4 of 11 episodes" in text
    assert "of 11 episodes" not in cli("episodes", store).stdout


def test_an_episode_whose_beginning_is_evicted(cli, make, tmp_path):
    record(make(tmp_path / "replay", capacity=27), 30)
    assert "terminated (from step 6)" in cli("episodes", tmp_path / "replay").stdout


def test_show_a_row(cli, cli_json, store):
    found = cli_json("show", store, 12)
    assert found["episode"]["number"] == 1
    (row,) = found["rows"]
    assert row.pop("observation") == {"shape": [12, 16], "min": 11, "max": 11, "mean": 11.0}
    assert row == {
        "id": 12, "env": 0, "action": 2, "reward": 2.0, "terminated": False, "truncated": False,
        "step": 1, "is_final": False, "score": 5.5,
    }  # fmt: skip
    text = cli("show", store, 12).stdout
    assert "episode 1: env 0, 10 transitions" in text
    assert "5.5" in text


def test_show_a_final_row(cli_json, store):
    found = cli_json("show", store, 21)
    assert found["episode"]["number"] == 1
    assert (found["rows"][0]["is_final"], found["rows"][0]["observation"]["max"]) == (True, 20)


@pytest.mark.parametrize(("episode", "first"), [(2, 22), (-2, 99)])
def test_show_an_episode(cli_json, store, episode, first):
    found = cli_json("show", store, "--episode", episode)
    assert found["episode"]["start_id"] == first
    assert [row["id"] for row in found["rows"]] == [*range(first, first + 10)]
    assert [row["step"] for row in found["rows"]] == [*range(10)]


def test_show_an_episode_for_people(cli, store):
    text = cli("show", store, "--episode", 0, "--limit", 4).stdout
    assert "4 of 10 rows" in text
    assert "of 10 rows" not in cli("show", store, "--episode", 0).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([115], "never handed out"), (["--episode", 11], "there are 0 to 10"),
        (["--episode", 0, "--field", "reward"], "'reward'"), (["--field", "no", 0], "'no'"),
    ],
)  # fmt: skip
def test_show_what_is_not_there(cli, store, arguments, says):
    error = cli("show", store, *arguments, "--out", store.parent / "x.png", code=2).stderr
    assert says in error
    assert len(error.splitlines()) == 1
    assert not (store.parent / "x.png").exists()


@pytest.mark.parametrize("what", [[12], ["--episode", 1], [12, "--json"]])
@pytest.mark.parametrize(
    ("out", "options", "says"),
    [
        ("x.txt", [], "ends with .gif, .jpeg, .jpg, .png, .webp expected"),
        ("x.png", ["--field", "reward"], "'reward'"), ("replay/x.png", [], "inside the store"),
    ],
)  # fmt: skip
def test_show_refuses_what_it_cannot_save_before_it_prints(cli, store, what, out, options, says):
    done = cli("show", store, *what, *options, "--out", store.parent / out, code=2)
    assert says in done.stderr
    assert done.stdout == ""
    assert not (store.parent / out).exists()


def test_show_an_evicted_row(cli, make, tmp_path):
    record(make(tmp_path / "replay", capacity=20), 50)
    assert "evicted" in cli("show", tmp_path / "replay", 3, code=2).stderr


@pytest.fixture
def racing(make, tmp_path, monkeypatch):
    """A live store whose writer evicts every row as soon as a command has looked for episodes."""
    buffer = make(tmp_path / "replay", capacity=40)
    record(buffer, 50)

    def episodes_then_eviction(reader):
        found = episodes_of(reader)
        record(buffer, 2000)
        buffer._rows.store.maintenance.run(durable=True)  # its thread may be late, and rows there
        return found

    for module in ("show", "pictures"):
        monkeypatch.setattr(f"diskreplay.cli.{module}.episodes_of", episodes_then_eviction)
    return tmp_path / "replay"


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "--episode", -1), ("show", "--episode", -1, "--json"),
        ("show", "--episode", -1, "--out", "x.gif"), ("show", "--episode", -1, "--out", "x.png"),
        ("video", "--out", "x.gif"), ("frames", "--episode", -1, "--out", "x.png"),
    ],
)  # fmt: skip
@pytest.mark.costly(2)
def test_rows_that_leave_while_they_are_looked_at(cli, racing, tmp_path, arguments):
    pytest.importorskip("PIL")
    command, *options = [str(a).replace("x.", f"{tmp_path}/x.") for a in arguments]
    result = cli(command, racing, *options, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {racing}: ")
    assert "left" in line
    assert not [*tmp_path.glob("x.*")]


def test_a_row_that_leaves_while_it_is_looked_at(cli, racing):
    assert "id 49 is evicted" in cli("show", racing, 49, code=2).stderr


@pytest.mark.parametrize("id", [1 << 31, (1 << 62) - 1, (1 << 63) - 1])
def test_show_ids_that_are_huge(cli, store, id):
    assert f"id {id} was never handed out" in cli("show", store, id, code=2).stderr


@pytest.mark.parametrize("arguments", [[1 << 63], [10**30], ["--", -1], ["--episode", 10**30]])
def test_show_numbers_beyond_all(cli, store, arguments):
    result = cli("show", store, *arguments, code=2)
    assert "Traceback" not in result.stderr


def test_show_saves_frames(cli, store, tmp_path):
    images = pytest.importorskip("PIL.Image")
    cli("show", store, "--episode", 3, "--out", tmp_path / "e.gif")
    with images.open(tmp_path / "e.gif") as image:
        assert image.n_frames == 11  # the final row's frame too
        shades = []
        for frame in range(11):
            image.seek(frame)
            shades.append(np.asarray(image.convert("L")).max())
    assert shades == [*range(30, 41)]
    cli("show", store, 50, "--out", tmp_path / "stack.gif")
    with images.open(tmp_path / "stack.gif") as image:
        assert image.n_frames == 4  # of the stack
    cli("show", store, 44, "--out", tmp_path / "first.png")
    with images.open(tmp_path / "first.png") as image:
        assert min(image.size) > 12


def test_show_saves_nothing_of_vectors(cli, tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Box(-1, 1, (3,), np.float32),
        action_space=Discrete(2), capacity=100,
    ) as buffer:  # fmt: skip
        buffer.add(np.array([0.25, 0, -1]), 0, 1.0, False, False)
        assert "[0.25 0 -1]" in cli("show", tmp_path / "replay", 0).stdout
        error = cli("show", tmp_path / "replay", 0, "--out", tmp_path / "x.png", code=2).stderr
        assert "no observation looks like a picture" in error


@pytest.mark.parametrize("arguments", [[12], ["--episode", 1]])
def test_show_draws_on_a_terminal(cli, store, monkeypatch, arguments):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="truecolor", width=100)
    monkeypatch.setattr("diskreplay.cli.show.console", console)
    cli("show", store, *arguments)
    assert "▀" in screen.getvalue()
    monkeypatch.undo()
    assert "▀" not in cli("show", store, *arguments).stdout


def test_show_draws_the_stack_that_is_sampled(cli, make, tmp_path, monkeypatch):
    """Before an episode's start nothing is drawn for zeros, and its first frame where it stands."""
    from diskreplay.cli import show

    drawn = []
    monkeypatch.setattr(show, "_draw", lambda _b, _f, ids, _o, **_more: drawn.append(ids.tolist()))
    for padding, stacks in (
        ("zero", [[0], [0, 1], [6, 7, 8, 9], [11]]),
        ("reset", [[0, 0, 0, 0], [0, 0, 0, 1], [6, 7, 8, 9], [11, 11, 11, 11]]),
    ):
        path = tmp_path / padding
        with make(path, stack_padding=padding) as buffer:
            record(buffer, 30)
        drawn.clear()
        for row in (0, 1, 9, 11):
            cli("show", path, row)
        assert drawn == stacks


@pytest.mark.parametrize("size", [4, 80])
def test_what_is_not_finite_is_told_apart(cli, cli_json, tmp_path, size):
    seen = np.tile(np.array([np.nan, np.inf, -np.inf, 1], np.float32), size // 4)
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-np.inf, np.inf, (size,)),
        action_space=Discrete(2), capacity=10, extras={"value": ((), "float64")},
    ) as buffer:  # fmt: skip
        for value in (-np.inf, 0.5):
            buffer.add(seen, 1, 1.0, False, False, value=value)
    rows = cli_json("show", tmp_path / "store", "--episode", 0)["rows"]
    small = ["NaN", "Infinity", "-Infinity", 1]
    large = {"shape": [size], "min": "NaN", "max": "NaN", "mean": "NaN"}
    assert rows[0]["observation"] == (small if size == 4 else large)
    assert [row["value"] for row in rows] == ["-Infinity", 0.5]
    text = cli("show", tmp_path / "store", 0).stdout
    assert ("[NaN Infinity -Infinity 1]" if size == 4 else "NaN to NaN") in text
    assert "-Infinity" in cli("show", tmp_path / "store", "--episode", 0).stdout
