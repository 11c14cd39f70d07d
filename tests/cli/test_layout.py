"""Tables and lists at any width: nothing is cut, no value is broken."""

import io
import re

import pytest
from gymnasium.spaces import Box, Dict
from rich.console import Console

import diskreplay
from diskreplay.cli.layout import Listing, facts

LONG = "observation/proprioception_of_all_the_joints_and_their_velocities"


def printed(renderable, width):
    screen = io.StringIO()
    Console(file=screen, width=width, markup=False, highlight=False).print(renderable)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines), default=0) <= width
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_a_listing_keeps_every_value(width):
    made = Listing("field", "dtype", ">raw", ">on disk", bar=True)
    made.add(LONG, "float32", "1,023.9 MiB", "980.0 KiB", bar=0.5)
    made.add("b", "bool", "[1 B]", "[red]x", bar=1)
    text = printed(made, width)
    for value in ("float32", "1,023.9 MiB", "980.0 KiB", "bool", "[1 B]", "[red]x"):
        assert value in text
    assert LONG in (text if width > len(LONG) else re.sub(r"\s", "", text))


def test_a_name_without_room_stands_above_its_values():
    """It was folded, and broken in the middle of a word where the room was one column less."""
    made = Listing("field", "dtype", ">raw")
    made.add("observation/proprioception/joint_velocities", "float32", "1,023.9 MiB")
    made.add("observation/observation", "uint8", "1 B")
    made.add_section()
    made.add("all", "", "1 GiB")
    assert printed(made, 47).split("\n")[3:] == [
        " observation/proprioception/joint_velocities",
        "                          float32  1,023.9 MiB",
        " observation/observation  uint8            1 B", "",
        " all                                     1 GiB", "",
    ]  # fmt: skip
    assert printed(made, 46).split("\n")[3:] == [
        " observation/proprioception/joint_velocities",
        "        float32  1,023.9 MiB",
        " observation/observation",
        "        uint8            1 B", "",
        " all                   1 GiB", "",
    ]  # fmt: skip


def test_a_listing_without_room_has_lines_for_each_row():
    made = Listing("field", "dtype", ">raw")
    made.add("reward", "float32", "1.0 KiB")
    made.add("all", "", "1.0 KiB")
    assert printed(made, 20).split("\n") == [
        "", "reward", "  dtype float32,", "  raw 1.0 KiB", "all", "  raw 1.0 KiB", "",
    ]  # fmt: skip


def test_facts_end_lines_between_parts():
    shown = facts({"[bold]": ["one part", "another part", "runs[/]"], "text": "plain"})
    assert printed(shown, 30).split("\n") == [
        "[bold]  one part,", "        another part, runs[/]", "text    plain",
    ]  # fmt: skip


@pytest.fixture
def long_names(tmp_path):
    """A store whose fields have long names."""
    joints, camera = Box(-1, 1, (27,)), Box(0, 255, (32, 48, 3), "uint8")
    space = Dict({LONG.removeprefix("observation/"): joints, "camera_of_the_left_wheel": camera})
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "replay", observation_space=space, action_space=Box(-1, 1, (7,)), capacity=200,
        extras={"log_probability_of_the_behaviour": ((), "float32")}, seed=0,
    ) as buffer:  # fmt: skip
        for t in range(30):
            buffer.add(space.sample(), buffer.action_space.sample(), t / 7, t % 10 == 9, False,
                       log_probability_of_the_behaviour=-1.0)  # fmt: skip
        buffer.save(tmp_path / "checkpoints", 7)
    return tmp_path / "replay"


@pytest.mark.costly(10)
@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("command", ["info", "stats", "episodes", "show", "checkpoints"])
@pytest.mark.parametrize("which", ["store", "long_names"])
def test_every_value_is_whole_at_any_width(cli, request, monkeypatch, command, width, which):
    """What is said at 300 columns is said at any width, each value in one piece."""
    store = request.getfixturevalue(which)
    arguments = {
        "show": ["show", store, "--episode", "0"],
        "checkpoints": ["checkpoints", store.parent / "checkpoints"],
    }.get(command, [command, store])

    def said(columns):
        for module in ("look", "show", "checks"):
            console = Console(width=columns, highlight=False, markup=False)
            monkeypatch.setattr(f"diskreplay.cli.{module}.console", console)
        return cli(*arguments).stdout

    wide, text = said(300), said(width)
    assert max(map(len, text.splitlines())) <= width
    sizes = re.findall(r"[\d.,]+ (?:B|[KMGT]iB)\b", wide)
    dates = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", wide)
    for value in (*sizes, *dates):
        assert value in text
    assert "…" not in text
    if command == "info":
        assert sizes
        with diskreplay.open(store) as buffer:
            assert all(name in text for name in buffer.fields if len(name) < width)
