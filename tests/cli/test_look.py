"""Commands that look at a store, against what was recorded into it."""

import fcntl
import io
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from rich.console import Console

import diskreplay
from diskreplay.inspection.humanize import size_text
from diskreplay.inspection.overview import overview_of
from tests import processes
from tests.cli.conftest import record
from tests.effort import effort

FRAME = 12 * 16
FINALS = 10  # of the fixture's store: one for each of the whole episodes


def fresh(path, **options):
    """A store of vectors and with nothing in it."""
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(-1, 1, (3,), np.float32), action_space=MultiDiscrete([2, 3]),
        **{"capacity": 100, "seed": 0, **options},
    )  # fmt: skip


# -- info


def test_info(cli_json, store):
    found = cli_json("info", store)
    assert found["path"] == str(store)
    assert (found["what"], found["kind"], found["format_version"]) == (
        "live store",
        "prioritized",
        2,
    )
    assert found["created_by"] == f"diskreplay {diskreplay.__version__}"
    assert found["options"] == {
        "stack_size": 4, "stack_padding": "zero", "update_horizon": 2, "gamma": 0.99,
        "batch_size": 32, "alpha": 0.5,
        "beta": 0.4, "weight_normalization": "batch",
    }  # fmt: skip
    assert (found["rows"], found["transitions"], found["episodes"]) == (105 + FINALS, 105, 11)
    assert found["capacity"] is found["fill"] is None
    assert found["bounds"] == [[0, 115]]
    assert abs(found["last_write"] - time.time()) < 600
    assert found["writer"] == {"pid": os.getpid(), "holds": False}
    assert found["closed"] is True
    (checkpoint,) = found["checkpoints"]
    assert checkpoint["path"] == str(store.parent / "checkpoints" / "replay_ckpt.7")
    assert checkpoint["suffix"] == "7"


def test_info_on_sizes(cli_json, store):
    found = cli_json("info", store)
    fields = found["fields"]
    assert list(fields) == [
        "observation", "action", "reward", "terminated", "truncated", "step", "is_final", "score",
    ]  # fmt: skip
    assert fields["observation"]["shape"] == [12, 16]
    assert fields["observation"]["dtype"] == "uint8"
    assert fields["observation"]["compressor"] == "lz4"
    assert fields["reward"]["compressor"] == "raw"
    assert {name: field["raw_bytes"] for name, field in fields.items()} == {
        "observation": 115 * FRAME, "action": 115 * 8, "reward": 115 * 4, "terminated": 115,
        "truncated": 115, "step": 115 * 4, "is_final": 115, "score": 115 * 4,
    }  # fmt: skip
    for name, field in fields.items():
        files = (store / name).glob("*")
        assert field["disk_bytes"] == sum(512 * f.stat().st_blocks for f in files if f.is_file())
        assert field["segments"] == 1
        assert field["ratio"] == pytest.approx(field["raw_bytes"] / field["disk_bytes"])
    assert found["raw_bytes"] == sum(field["raw_bytes"] for field in fields.values())
    assert found["disk_bytes"] == sum(field["disk_bytes"] for field in fields.values())
    assert found["segments"] == 8


def test_info_tells_what_priorities_take(cli, cli_json, make, store, tmp_path):
    with make(tmp_path / "live") as buffer:
        record(buffer, 300)
        view = buffer.sequences(3, prioritized=True, name="v")
        view.sample(2)
    taken = sum(512 * p.stat().st_blocks for p in buffer.path.glob("priority*/*"))
    assert cli_json("info", buffer.path)["priorities_bytes"] == taken > 0
    assert f"Priorities take {size_text(taken)} besides." in cli("info", buffer.path).stdout


def test_info_tells_tails_apart(cli, cli_json, make, store, tmp_path):
    live = make(tmp_path / "live", capacity=4000)
    record(live, 3000)
    live.flush()
    found = cli_json("info", live.path)
    tails = {name: field["tail_bytes"] for name, field in found["fields"].items()}
    tail = live.path / "is_final/live/tail.0"
    assert tails["observation"] == 512 * tail.stat().st_blocks > 0
    assert found["tail_bytes"] == sum(tails.values()) == tails["observation"]
    shards = [*(live.path / "observation").glob("*"), *tail.parent.glob("open.0/*"), tail]
    assert found["fields"]["observation"]["disk_bytes"] == sum(
        512 * path.stat().st_blocks for path in shards
    )
    text = " ".join(cli("info", live.path).stdout.split())
    size = size_text(found["tail_bytes"])
    assert f"tails take {size} (observation {size}). They hold" in text
    for closed in (store, store.parent / "checkpoints" / "replay_ckpt.7"):
        assert cli_json("info", closed)["tail_bytes"] == 0
        assert "tails take" not in cli("info", closed).stdout


def test_stats_of_priorities_that_nobody_updated(cli, make, tmp_path):
    with make(tmp_path / "replay") as buffer:
        record(buffer, 35)
    text = cli("stats", tmp_path / "replay").stdout
    assert "no transition seems to be updated yet" in " ".join(text.split())
    assert "100.0% never" not in text
    assert "1 unfinished" in text


def test_info_for_people(cli, store):
    text = cli("info", store).stdout
    for part in (
        str(store), "Box(0, 255, (12, 16), uint8)", "115 in 1 env, no limit", "11 retained",
        "none; it was closed in good order", "checkpoints/replay_ckpt.7",
    ):  # fmt: skip
        assert part in text
    assert max(map(len, text.splitlines())) <= 160


def test_info_on_a_full_store(cli, cli_json, make, tmp_path):
    record(make(tmp_path / "replay", capacity=50), 105)
    found = cli_json("info", tmp_path / "replay")
    assert (found["rows"], found["fill"], found["bounds"]) == (50, 1.0, [[65, 115]])
    assert "100.0% of the capacity of 50" in cli("info", tmp_path / "replay").stdout


def test_info_on_a_checkpoint(cli, cli_json, store):
    path = store.parent / "checkpoints" / "replay_ckpt.7"
    found = cli_json("info", path)
    assert (found["what"], found["writer"], found["rows"]) == ("checkpoint", None, 115)
    assert found["checkpoints"] == []
    assert "a checkpoint never changes" in cli("info", path).stdout


@pytest.mark.costly
def test_info_says_who_writes(cli, cli_json, make, tmp_path, monkeypatch):
    buffer = make(tmp_path / "replay")
    record(buffer, 15)

    def refuse(*_arguments):
        raise AssertionError("the lock was touched")

    monkeypatch.setattr(fcntl, "flock", refuse)
    found = cli_json("info", tmp_path / "replay")
    assert found["writer"]["pid"] == os.getpid()
    assert found["closed"] is False
    assert found["writing"] is False
    assert ", or later" in cli("info", tmp_path / "replay").stdout
    if sys.platform == "linux":
        assert found["writer"]["holds"] is True
        assert f"process {os.getpid()} holds it" in cli("info", tmp_path / "replay").stdout
    monkeypatch.undo()
    record(buffer, 5, start=15)
    assert cli_json("info", tmp_path / "replay")["transitions"] == 20


def test_info_after_a_kill(cli, cli_json, tmp_path):
    code = (
        "import os, sys, diskreplay; from gymnasium.spaces import Discrete; "
        "b = diskreplay.ReplayBuffer(sys.argv[1], observation_space=Discrete(9), "
        "action_space=Discrete(2), capacity=99); b.add(1, 0, 1.0, False, False); os._exit(9)"
    )
    done = processes.run(code, tmp_path / "replay")
    assert done.returncode == 9
    found = cli_json("info", tmp_path / "replay")
    assert (found["rows"], found["closed"], found["writer"]["holds"]) == (1, False, False)
    assert ", or later" in cli("info", tmp_path / "replay").stdout
    assert "left without closing" in cli("info", tmp_path / "replay").stdout


# -- stats


def test_stats(cli_json, store):
    found = cli_json("stats", store)
    t = np.arange(105)
    frames = np.concatenate([t % 250, t[9:100:10] + 1])
    fields = found["fields"]
    for name, values in (
        ("observation", frames), ("action", t % 3), ("reward", t % 4 - 1), ("score", t / 2),
        ("terminated", (t % 10 == 9) & (t // 10 % 2 == 0)),
    ):  # fmt: skip
        assert fields[name]["rows"] == len(values)
        assert (fields[name]["min"], fields[name]["max"]) == (values.min(), values.max())
        assert fields[name]["mean"] == pytest.approx(values.mean())
        assert fields[name]["zeros"] == pytest.approx((values == 0).mean())
        assert fields[name]["not_finite"] == 0
    assert found["actions"] == {"action": {"0": 35, "1": 35, "2": 35}}
    assert found["rewards"] == {"negative": 27, "zero": 26, "positive": 52}
    episodes = found["episodes"]
    ends = {"terminated": 5, "truncated": 5, "cut": 0, "unfinished": 1}
    assert {how: episodes[how] for how in ends} == ends
    assert (episodes["retained"], episodes["whole"]) == (11, 10)
    returns = (t % 4 - 1)[:100].reshape(10, 10).sum(axis=1)
    assert episodes["returns"]["mean"] == pytest.approx(returns.mean())
    assert episodes["returns"]["quantiles"]["0.5"] == np.median(returns)
    assert sum(episodes["returns"]["histogram"]["counts"]) == 10
    assert set(episodes["lengths"]["quantiles"].values()) == {10}
    assert found["age"]["oldest_rows"] == 115
    assert abs(found["age"]["oldest_written"] - time.time()) < 600


def test_stats_on_priorities(cli_json, make, tmp_path):
    buffer = make(tmp_path / "replay")
    record(buffer, 40)
    whole = np.array([row for row in range(44) if row % 11 != 10])  # each episode's final row
    buffer.update_priorities(whole[:20], 4.0 + np.arange(20))  # 4 to 23
    buffer.flush()
    found = cli_json("stats", tmp_path / "replay")["priorities"]
    priorities = np.r_[4.0 + np.arange(20), np.ones(20)]
    leaves = priorities**0.5
    ages = 43 - whole
    assert found["drawable"] == 40
    assert found["largest_seen"] == 23
    assert found["quantiles"]["0.5"] == pytest.approx(np.median(priorities))
    assert found["quantiles"]["1.0"] == pytest.approx(23)
    assert found["effective"] == pytest.approx(leaves.sum() ** 2 / (leaves**2).sum())
    assert found["never_updated"] == pytest.approx(21 / 40)  # one was set to the largest seen
    assert found["mean_age"] == pytest.approx(ages.mean())
    assert found["mean_drawn_age"] == pytest.approx((ages * leaves).sum() / leaves.sum())


def test_stats_for_people(cli, store):
    text = cli("stats", store).stdout
    for part in (
        "terminated", "effective sample size", "of those that are", "never updated", "█",
        "returns of whole episodes",
        "11 retained, 10 whole, 5 terminated, 5 truncated, 0 cut, 1 unfinished",
        "27 negative (25.7%), 26 zero (24.8%), 52 positive (49.5%)",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("command", ["info", "stats", "episodes"])
def test_an_empty_store(cli, tmp_path, command):
    with fresh(tmp_path / "replay"):
        assert cli(command, tmp_path / "replay").stdout
        assert cli(command, tmp_path / "replay", "--json").stdout


def test_stats_without_priorities_and_scalar_actions(cli, cli_json, tmp_path):
    with fresh(tmp_path / "replay") as buffer:
        for _ in range(5):
            buffer.add(np.array([np.nan, np.inf, 0.5]), [1, 2], 1.0, False, False)
        found = cli_json("stats", tmp_path / "replay", "--all")
        assert found["priorities"] is None
        assert found["actions"] == {}
        observation = found["fields"]["observation"]
        assert (observation["not_finite"], observation["min"], observation["max"]) == (10, 0.5, 0.5)
        assert found["episodes"]["returns"] is None
        assert "10 not finite" in cli("stats", tmp_path / "replay").stdout


# -- bench


def test_bench(cli_json, store):
    found = cli_json("bench", store, "--seconds", "0.05", "--batch-size", 8)
    assert found["batch_size"] == 8
    with diskreplay.open(store) as buffer:
        batch = buffer.sample(8)
    assert found["batch_bytes"] == sum(np.asarray(batch[name]).nbytes for name in batch)
    warm = found["warm"]
    assert warm["batches"] >= 1
    assert 0 < warm["median_us"] <= warm["p90_us"]
    per_second = found["batch_bytes"] / warm["median_us"] * 1e6
    assert warm["bytes_per_second"] == pytest.approx(per_second)
    if found["cold"] is None:
        assert found["why_not_cold"]
    else:
        assert found["cold"]["batches"] == 5


def test_bench_for_people(cli, store):
    text = cli("bench", store, "--seconds", "0").stdout
    assert "32 transitions a batch" in text
    assert " us" in text
    assert "cold" in text


def test_bench_says_when_it_cannot_be_cold(cli, cli_json, store, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    found = cli_json("bench", store, "--seconds", "0")
    assert found["cold"] is None
    assert "no call" in found["why_not_cold"]
    assert "not measured" in cli("bench", store, "--seconds", "0").stdout


def test_bench_needs_something_to_sample(cli, tmp_path):
    with fresh(tmp_path / "replay"):
        assert "error: " in cli("bench", tmp_path / "replay", code=2).stderr


# -- live stores

WRITER = """
import sys, pathlib, numpy as np, diskreplay
from gymnasium.spaces import Box, Discrete
stop = pathlib.Path(sys.argv[2])
buffer = diskreplay.PrioritizedReplayBuffer(
    sys.argv[1], observation_space=Box(0, 255, (12, 16), np.uint8), action_space=Discrete(3),
    capacity=20_000, compressor={"observation": "lz4"},
)
t = 0
while t < 21_000 or not stop.exists():
    buffer.add(np.full((12, 16), t % 250, np.uint8), t % 3, 1.0, t % 10 == 9, False)
    t += 1
    if t == 21_000:
        print("full", flush=True)
buffer.close()
"""


def test_a_store_that_another_process_writes_to(cli, cli_json, tmp_path, monkeypatch):
    # The writer may have to wait for its next turn.
    monkeypatch.setitem(overview_of.__kwdefaults__, "patience", 400.0)
    path, stop = tmp_path / "replay", tmp_path / "stop"
    writer = processes.Process(WRITER, path, stop, stdout=subprocess.PIPE)
    try:
        assert writer.stdout.readline() == "full\n"
        before = 21_000
        for _ in range(effort(1, 2)):
            found = cli_json("info", path)
            assert (found["rows"], found["writer"]["pid"]) == (20_000, writer.pid)
            assert found["writing"] is True
            assert abs(found["last_write"] - time.time()) < 600
            assert "just now: rows come in" in cli("info", path).stdout
            assert found["transitions"] >= before
            before = found["transitions"]
            found = cli_json("stats", path)
            assert found["fields"]["reward"]["min"] == found["fields"]["reward"]["max"] == 1
            assert found["episodes"]["lengths"]["quantiles"]["0.1"] == 10
            found = cli_json("episodes", path)
            assert all(episode["rows"] == episode["return"] <= 10 for episode in found)
            assert cli_json("show", path, "--episode", -1)["rows"]
            assert cli_json("bench", path, "--seconds", "0.02")["batch_size"] == 32
    finally:
        stop.touch()
        writer.communicate()
    assert writer.returncode == 0
    assert cli_json("info", path)["writer"]["holds"] is False


@pytest.mark.costly(1)
@pytest.mark.parametrize("command", ["info", "stats", "episodes", "bench"])
def test_a_store_that_this_process_writes_to(cli, make, tmp_path, command):
    buffer = make(tmp_path / "replay", capacity=200)
    for start in range(0, 600, 150):
        record(buffer, 150, start)
        cli(command, tmp_path / "replay", *(["--seconds", "0"] if command == "bench" else []))


def test_a_checkpoint(cli_json, store):
    path = store.parent / "checkpoints" / "replay_ckpt.7"
    assert cli_json("episodes", path) == cli_json("episodes", store)
    live, saved = (cli_json("stats", at) for at in (store, path))
    for part in ("fields", "episodes", "actions", "rewards", "priorities"):
        assert live[part] == saved[part]
    assert cli_json("bench", path, "--seconds", "0")["batch_size"] == 32


def test_many_envs(cli_json, tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Discrete(9), action_space=Discrete(2), capacity=None,
        num_envs=3,
    ) as buffer:  # fmt: skip
        for t in range(6):
            ends = np.array([t == 2, False, t == 4])
            buffer.add(np.arange(3), np.array([0, 1, 1]), np.ones(3), ends, np.zeros(3, bool))
        found = cli_json("stats", tmp_path / "replay")
        assert found["actions"] == {"action": {"0": 6, "1": 12}}
        assert (found["episodes"]["whole"], found["episodes"]["unfinished"]) == (2, 3)
        assert cli_json("info", tmp_path / "replay")["episodes"] == 5


# -- on a terminal


def test_colours_only_on_a_terminal(cli, store, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="truecolor", width=100)
    monkeypatch.setattr("diskreplay.cli.look.console", console)
    cli("info", store)
    assert "\x1b[1m" in screen.getvalue()
    monkeypatch.undo()
    assert "\x1b" not in cli("info", store).stdout


def test_info_prints_bounds_in_short_form(cli, cli_json, tmp_path):
    low, high = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 9, np.float32)
    space = Box(low, high)
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=space, action_space=MultiDiscrete([2, 3]),
        capacity=100,
    ):  # fmt: skip
        pass
    text = cli("info", tmp_path / "replay").stdout
    assert "  Box(bounds differ by entry, (2, 3), float32)\n" in text
    assert "  MultiDiscrete([2 3])\n" in text
    assert cli_json("info", tmp_path / "replay")["observation_space"] == str(space)
