"""The commands verify, checkpoints, prune and diff."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import diskreplay
from diskreplay.cli.app import app
from diskreplay.convert import copying
from diskreplay.inspection import difference as difference_module
from diskreplay.store import files, tempfiles
from diskreplay.store.system_errors import translated
from tests.cli.conftest import make_buffer, record


def _first_block(shard):
    """Where the blocks begin: entries of 16 bytes name them from there on, one behind the other."""
    return min(at for at in np.frombuffer(shard[: len(shard) // 16 * 16], "<i8")[::2] if at > 0)


def rotten(store, name="observation"):
    """Flip a bit that a checksum covers."""
    path = min((store / name).glob("c.*"))
    data = bytearray(path.read_bytes())
    data[_first_block(data) + 20 if name == "observation" else 20] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    return path


def test_a_sound_store(cli, cli_json, store):
    assert "sound" in cli("verify", store).stdout
    found = cli_json("verify", store)
    assert found["clean"]
    assert found["kind"] == "store"
    assert found["rows"] == 115  # 105 steps and the final rows of 10 episodes
    assert found["aside"] is None
    saved = store.parent / "checkpoints" / "replay_ckpt.7"
    assert cli_json("verify", saved)["kind"] == "checkpoint"


def test_a_live_store(cli_json, make, tmp_path):
    buffer = make(tmp_path / "live", capacity=500)
    for start in range(0, 1200, 100):
        record(buffer, 100, start)
        assert cli_json("verify", tmp_path / "live")["clean"]


def test_rot_is_found_and_mended(cli, cli_json, store):
    path = rotten(store)
    said = cli("verify", store, code=1).stdout
    assert str(path) in said.replace("\n", "")
    assert "--repair" in said
    found = json.loads(cli("verify", store, "--json", code=1).stdout)
    assert not found["clean"]
    assert found["found"][0]["path"] == str(path)
    assert found["left"] == found["found"]
    mended = cli_json("verify", store, "--repair")
    assert mended["clean"]
    assert [f["path"] for f in mended["found"]] == [str(path)]
    assert mended["left"] == []
    # A block, and as many rows as a stack shows besides the newest, if these are no final rows.
    assert mended["set_aside"] == [8 + 3 - 1]
    assert os.path.exists(os.path.join(mended["aside"], path.relative_to(store)))
    assert "mended" not in cli("verify", store, "--repair").stdout
    assert cli_json("verify", store)["clean"]
    with diskreplay.open(store, mode="a") as buffer:
        record(buffer, 30, 105)
        assert len(buffer) > 100


def test_rot_is_mended_from_a_checkpoint(cli_json, make, tmp_path):
    buffer = make(tmp_path / "replay", capacity=8000)
    record(buffer, 2000)
    saved = buffer.save(tmp_path, 1)
    buffer.close()
    shutil.copytree(saved, tmp_path / "backup")  # a checkpoint beside the store shares its files
    with diskreplay.open(tmp_path / "replay") as reader:
        before = reader.take("action", np.arange(2000))
        rows = len(reader)
    rotten(tmp_path / "replay", "action")
    assert cli_json("verify", tmp_path / "replay", "--repair", "--from", tmp_path / "backup")[
        "clean"
    ]
    with diskreplay.open(tmp_path / "replay") as reader:
        np.testing.assert_array_equal(reader.take("action", np.arange(2000)), before)
        assert len(reader) == rows


def test_a_checkpoint_that_shares_the_rotten_file_is_told(cli, make, tmp_path):
    with make(tmp_path / "replay", capacity=8000, segment_rows=256) as buffer:
        record(buffer, 2000)
        saved = buffer.save(tmp_path, 1)
    path = rotten(tmp_path / "replay")
    assert path.samefile(saved / path.relative_to(tmp_path / "replay"))
    mended = cli("verify", tmp_path / "replay", "--repair", "--from", saved, "--json")
    losses = json.loads(mended.stdout)["losses"]
    (lost,) = [loss for loss in losses if loss["field"] == "observation"]
    said = "replay_ckpt.1: has the same file: hard-linked, so the damage is in both"
    assert said in lost["reason"]
    assert "hard links" in cli("verify", "--help").stdout


def test_what_a_repair_set_aside_is_said(cli, make, tmp_path):
    with make(tmp_path / "replay", capacity=8000) as buffer:
        record(buffer, 2000)
        rows, finals = len(buffer.take("is_final", np.arange(2200))), 200
    rotten(tmp_path / "replay")
    said = cli("verify", tmp_path / "replay", "--repair").stdout
    (aside,) = re.findall(r"^rows set aside: ([\d,]+) of env 0$", said, re.MULTILINE)
    aside = int(aside.replace(",", ""))
    with diskreplay.open(tmp_path / "replay") as reader:
        lost = reader.take("is_final", np.arange(rows)).sum() - finals
    assert 0 < lost <= aside <= lost + finals  # final rows may be among them


def test_each_row_that_is_set_aside_is_given_its_reason(cli, cli_json, make, tmp_path):
    with make(tmp_path / "replay") as buffer:
        record(buffer, 40)
        one = buffer.save(tmp_path / "saved", 1)
        record(buffer, 40, 40)
        two = buffer.save(tmp_path / "saved", 2)
        record(buffer, 40, 80)
        (path,) = (tmp_path / "replay" / "score").glob("c.0.0")
    shutil.copytree(tmp_path / "replay", tmp_path / "again")
    rows = 132
    for store in ("replay", "again"):
        rot = tmp_path / store / path.relative_to(tmp_path / "replay")
        data = bytearray(rot.read_bytes())
        data[4 * 100] ^= 1
        rot.write_bytes(data)
    mended = cli_json("verify", tmp_path / "replay", "--repair", "--from", two, "--from", one)
    assert mended["clean"]
    assert mended["set_aside"] == [rows - 88]
    lost = [loss for loss in mended["losses"] if loss["field"] is not None]
    assert [(loss["field"], loss["rows"]) for loss in lost] == [("score", [[0, 88, rows]])]
    assert "replay_ckpt.2: has only 88 of them whole" in lost[0]["reason"]
    assert "replay_ckpt.1: has none of these rows" in lost[0]["reason"]
    said = " ".join(cli("verify", tmp_path / "again", "--repair").stdout.split())
    assert f"env 0, rows 0 to {rows - 1}: score: segment 0: " in said
    assert "no checkpoint was given" in said


def test_priorities_that_are_gone_are_missed(cli, store):
    shutil.rmtree(store / "priority")
    assert "missing" in cli("verify", store, code=1).stdout
    assert "rows set aside: none" in cli("verify", store, "--repair").stdout
    cli("verify", store)
    with diskreplay.open(store, mode="a") as buffer:
        priorities = buffer.statistics().priorities
        assert priorities.min == priorities.max == priorities.largest_seen**0.5


def test_a_repair_does_not_advise_itself_and_wraps(cli, store, monkeypatch):
    rotten(store, "reward")
    assert "`--repair` sets these rows aside" in " ".join(
        cli("verify", store, code=1).stdout.split()
    )
    monkeypatch.setattr("diskreplay.cli.checks.console.width", 60)
    said = cli("verify", store, "--repair").stdout
    assert "mended" in said
    assert "`--repair`" not in said
    assert "(s)" not in said
    lines = [line for line in said.splitlines() if str(store) not in line]
    assert max(map(len, lines)) <= 80


def test_options_that_make_no_sense_are_found(cli, store):
    path = store / "zarr.json"
    path.write_text(path.read_text().replace('"gamma": 0.99', '"gamma": 7.99'))
    assert "gamma" in cli("verify", store, code=1).stdout


def test_what_verify_refuses(cli, store, tmp_path):
    assert "not a diskreplay store" in cli("verify", tmp_path, code=3).stderr
    saved = store.parent / "checkpoints" / "replay_ckpt.7"
    assert "never repaired" in cli("verify", saved, "--repair", code=2).stderr
    assert "--repair" in cli("verify", store, "--from", saved, code=2).stderr
    with diskreplay.open(store, mode="a"):
        said = cli("verify", store, "--repair", code=5).stderr
        assert "diskreplay.open" not in said
        assert "end it first, or wait" in said
        assert "already open" in cli("verify", store, "--repair", code=5).stderr


def test_a_store_that_a_kill_left_aside_is_repaired(cli, store):
    """By a load, where the file system cannot exchange two directories: between two renames."""
    room = tempfiles.Workspace(store, "load")
    os.rename(store, room.path / "aside")
    room.release()
    assert "not a diskreplay store" in cli("verify", store, code=3).stderr
    cli("verify", store, "--repair")
    assert "sound" in cli("verify", store).stdout


# -- checkpoints


def make_checkpoints(root):
    directory = root / "saved"
    with make_buffer(root / "replay", capacity=8000) as buffer:
        for number in range(1, 5):
            record(buffer, 1000)
            buffer.save(directory, number)
        buffer.save(directory, "best")
    shutil.copytree(directory / "replay_ckpt.1", directory / "replay_ckpt.0")
    (directory / "replay_ckpt.0" / "reward" / "zarr.json").unlink()
    (directory / ".replay_ckpt.9.tmp-1").mkdir()
    (directory / "something").mkdir()


@pytest.fixture
def saved(filled, tmp_path):
    """A directory with the checkpoints 1 to 4, "best" and one that is cut."""
    filled(make_checkpoints)
    return tmp_path / "saved"


def test_checkpoints_are_listed(cli, cli_json, saved):
    found = cli_json("checkpoints", saved)
    assert [c["suffix"] for c in found] == ["best", "0", "1", "2", "3", "4"]
    assert [c["whole"] for c in found] == [True, False, True, True, True, True]
    assert [c["rows"] for c in found[2:]] == [1100 * n for n in range(1, 5)]
    for one in found[2:]:
        size = {True: 0, False: 0}
        for base, _dirs, names in os.walk(one["path"]):
            for name in names:
                about = os.stat(os.path.join(base, name))
                size[about.st_nlink > 1] += about.st_blocks * 512
        assert (one["own_bytes"], one["shared_bytes"]) == (size[False], size[True])
        assert one["shared_bytes"] > 0
    said = cli("checkpoints", saved).stdout
    assert "best" in said
    assert "reward/zarr.json" in said.replace("\n", "")


@pytest.mark.costly(1)
@pytest.mark.parametrize("command", ["checkpoints", "prune"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_where_no_checkpoints_are(cli, saved, command, more):
    """The place where they are is named, and nothing says that all is well."""
    more = [*more, "--keep", 1, "--yes"] if command == "prune" else more

    def refused(path):
        done = cli(command, path, *more, code=3)
        assert done.stdout == ""
        return done.stderr.strip()

    run = saved.parent
    assert refused(run).endswith(f"{run}: no checkpoints; there are some in {saved} (6)")
    assert refused(run / "replay").endswith(
        f"a store or a checkpoint, and no checkpoints in it; there are some in {saved} (6)"
    )
    assert refused(saved / "replay_ckpt.2").endswith(f"there are some in {saved} (6)")
    assert refused(saved / "something").endswith(
        f"{saved / 'something'}: no checkpoints; give the directory that `save` was given"
    )
    assert "no such directory" in refused(saved / "nowhere")
    assert "a file" in refused(saved / "replay_ckpt.2" / "zarr.json")


def test_attachments_are_listed(cli, cli_json, make, tmp_path):
    with make(tmp_path / "live") as buffer:
        record(buffer, 20)
        buffer.save(tmp_path / "saved", 1)
        assert "attachments" not in cli("checkpoints", tmp_path / "saved").stdout
        buffer.save(tmp_path / "saved", 2, attachments={"agent.pt": b"1234", "nets/q.pt": b"1"})
    one, two = cli_json("checkpoints", tmp_path / "saved")
    assert (one["number"], one["attachments"]) == (1, {})
    assert (two["number"], two["attachments"]) == (2, {"agent.pt": 4, "nets/q.pt": 1})
    said = cli("checkpoints", tmp_path / "saved").stdout
    assert "agent.pt, nets/q.pt" in said
    cli("prune", tmp_path / "saved", "--keep", 1, "--yes")
    assert [c["suffix"] for c in cli_json("checkpoints", tmp_path / "saved")] == ["2"]
    at = tmp_path / "saved" / "replay_ckpt.2" / "is_final/saved/attachments" / "agent.pt"
    at.chmod(0o644)
    at.write_bytes(b"1235")
    said = cli("verify", at.parents[3], code=1).stdout
    assert "attachments/agent.pt" in said.replace("\n", "")


def test_prune_asks(cli, saved):
    there = sorted(saved.iterdir())
    cli("prune", saved, "--keep", 2, code=2)
    said = CliRunner().invoke(app, ["prune", str(saved), "--keep", "2"], input="n\n")
    assert said.exit_code == 0
    assert "nothing removed" in said.stdout
    assert sorted(saved.iterdir()) == there


def test_prune_keeps_the_newest(cli, cli_json, saved):
    said = cli("prune", saved, "--keep", 2, "--yes").stdout
    assert "3 removed" in said
    assert [c["suffix"] for c in cli_json("checkpoints", saved)] == ["best", "3", "4"]
    assert not [p for p in saved.iterdir() if ".old-" in p.name]
    assert "nothing to remove" in cli("prune", saved, "--keep", 2, "--yes").stdout
    for number in (3, 4):
        cli("verify", saved / f"replay_ckpt.{number}")
    cli("prune", saved, "--keep", 0, code=2)


def test_prune_says_what_is_gone_when_it_is_gone(cli, saved, monkeypatch):
    def refused(path):
        raise translated(PermissionError(13, "Permission denied"), path, "cannot create it")

    monkeypatch.setattr(files, "make_dirs", refused)
    done = cli("prune", saved, "--keep", 2, "--yes", code=4)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {saved / 'replay_ckpt.0'}: nothing can be made in {saved}: ")
    assert "Permission denied" in line
    assert ".old-" not in line


def test_prune_json(cli, saved):
    there = sorted(saved.iterdir())
    assert "--yes" in cli("prune", saved, "--keep", 2, "--json", code=2).stderr
    assert sorted(saved.iterdir()) == there
    sizes = {one["path"]: one["own_bytes"] for one in json.loads(
        cli("checkpoints", saved, "--json").stdout)}  # fmt: skip
    found = json.loads(cli("prune", saved, "--keep", 2, "--json", "--yes").stdout)
    assert [one["suffix"] for one in found["removed"]] == ["0", "1", "2"]
    assert [one["suffix"] for one in found["kept"]] == ["best", "3", "4"]
    for one in found["removed"]:
        assert one["own_bytes"] == sizes[one["path"]]
        assert not (saved / one["path"]).exists()
    assert json.loads(cli("prune", saved, "--keep", 2, "--json", "-y").stdout)["removed"] == []


def test_prune_never_counts_a_damaged_checkpoint(cli, cli_json, saved):
    (saved / "replay_ckpt.4" / "step" / "zarr.json").unlink()
    cli("prune", saved, "--keep", 1, "--yes")
    assert [c["suffix"] for c in cli_json("checkpoints", saved)] == ["best", "3", "4"]


# -- diff


def test_a_store_equals_itself_and_its_copy(cli, cli_json, store, tmp_path):
    shutil.copytree(store, tmp_path / "copy")
    found = cli_json("diff", store, tmp_path / "copy")
    assert found == {
        "equal": True,
        "rows_equal": True,
        "rows_in_common": [[0, 115]],
        "differences": [],
    }
    assert (
        "no difference" in cli("diff", store, store.parent / "checkpoints" / "replay_ckpt.7").stdout
    )


def difference(cli, one, other):
    found = json.loads(cli("diff", one, other, "--json", code=1).stdout)
    assert not found["equal"]
    return {(d["what"], d["name"]): d for d in found["differences"]}, found["rows_in_common"]


def test_more_rows_and_another_generator(cli, store, tmp_path):
    shutil.copytree(store, tmp_path / "longer")
    with diskreplay.open(tmp_path / "longer", mode="a") as buffer:
        record(buffer, 5, 105)
        buffer.sample()
    found, common = difference(cli, store, tmp_path / "longer")
    assert common == [[0, 115]]
    assert found["rows", "first and count"]["one"] == [0, 115]
    assert found["rows", "first and count"]["other"] == [0, 121]  # the fifth step ended an episode
    assert ("generator", "rng") in found
    assert ("value", "reward") not in found


def test_values_that_are_not_finite_are_told_apart(cli, tmp_path):
    for name, value in (("one", np.nan), ("other", np.inf)):
        with diskreplay.ReplayBuffer(
            tmp_path / name, observation_space=Box(-np.inf, np.inf, (2,)),
            action_space=Discrete(2), capacity=10,
        ) as buffer:  # fmt: skip
            for _ in range(3):
                buffer.add(np.array([value, -np.inf], np.float32), 1, 1.0, False, False)
    found, _common = difference(cli, tmp_path / "one", tmp_path / "other")
    value = found["value", "observation"]
    assert (value["one"], value["other"]) == (["NaN", "-Infinity"], ["Infinity", "-Infinity"])


def test_a_copy_is_one(cli, cli_json, make, tmp_path):
    with make(tmp_path / "replay", capacity=60) as buffer:
        record(buffer, 105)
        buffer.update_priorities(buffer.sample(32).id, np.linspace(0.1, 2, 32))
    copy = copying.convert(tmp_path / "replay", tmp_path / "copy", compressor="raw")
    difference(cli, tmp_path / "replay", copy)
    found = cli_json("diff", "--newest", tmp_path / "replay", copy)
    assert found == {
        "equal": True,
        "rows_equal": True,
        "rows_in_common": [[55, 115]],
        "differences": [],
    }
    (path,) = (copy / "observation").glob("c.*")
    frames = np.fromfile(path, np.uint8).reshape(-1, 12, 16)
    frames[7, 3, 5] += 1
    path.chmod(0o644)
    frames.tofile(path)
    said = cli("diff", "--newest", tmp_path / "replay", copy, code=1).stdout
    value = frames[7, 3, 5]
    line = f"value observation[3, 5], first in row 62 of env 0 (1 rows): {value - 1} | {value}"
    assert line in said


def test_a_trimmed_copy_differs_in_its_capacity_only(cli, store, tmp_path):
    cli("trim", store, "--capacity", 40, "--out", tmp_path / "small")
    said = cli("diff", "--newest", store, tmp_path / "small", code=1).stdout.splitlines()
    assert said[-1] == "40 rows compared: these agree; what differs is capacity"
    found = json.loads(cli("diff", "--newest", store, tmp_path / "small", "--json", code=1).stdout)
    assert (found["equal"], found["rows_equal"]) == (False, True)
    (tmp_path / "small" / "reward" / "c.0.0").chmod(0o644)
    values = np.fromfile(tmp_path / "small" / "reward" / "c.0.0", "<f4")
    values[5] += 1
    values.tofile(tmp_path / "small" / "reward" / "c.0.0")
    said = cli("diff", "--newest", store, tmp_path / "small", code=1).stdout.splitlines()
    assert said[-1] == "40 rows compared: they differ"
    assert "its exit code is 1" in " ".join(cli("trim", "--help").stdout.replace("│", "").split())


def test_rows_that_come_and_leave_meanwhile_are_no_difference(cli, make, tmp_path, monkeypatch):
    live = make(tmp_path / "live", capacity=60)
    record(live, 50)
    live.flush()
    copying.convert(tmp_path / "live", tmp_path / "copy")
    real = difference_module.format.read_attributes

    def read_and_evict(path):
        try:
            return real(path)
        finally:
            if path.name == "copy":
                record(live, 30, 50)

    monkeypatch.setattr(difference_module.format, "read_attributes", read_and_evict)
    said = cli("diff", tmp_path / "live", tmp_path / "copy", code=1).stdout
    # Both are compared as they were when the command was given; a copy has another generator.
    (difference, counts) = said.splitlines()
    assert difference.startswith("generator rng")
    assert counts.startswith("55 rows in common")


def test_the_first_row_that_differs(cli, store, tmp_path):
    shutil.copytree(store, tmp_path / "other")
    for name, dtype, rows in (("reward", "<f4", [40, 70]), ("action", "<i8", [3])):
        path = tmp_path / "other" / name / "c.0.0"
        values = np.fromfile(path, dtype)
        values[rows] += 1
        values.tofile(path)
    path = tmp_path / "other" / "priority" / "c.0.0"
    leaves = np.fromfile(path)
    changed = np.flatnonzero(~np.isnan(leaves))[[4, 9]]
    leaves[changed] *= 2
    leaves.tofile(path)
    found, _common = difference(cli, store, tmp_path / "other")
    assert found.keys() == {
        ("value", "reward"), ("value", "action"), ("priority", "priority"),
    }  # fmt: skip
    reward = found["value", "reward"]
    assert (reward["row"], reward["env"], reward["rows"]) == (40, 0, 2)
    assert reward["other"] == reward["one"] + 1
    assert (found["value", "action"]["row"], found["value", "action"]["rows"]) == (3, 1)
    priority = found["priority", "priority"]
    assert (priority["row"], priority["rows"]) == (changed[0], 2)
    assert "row 40" in cli("diff", store, tmp_path / "other", code=1).stdout


def test_other_fields_and_options(cli, store, tmp_path):
    from gymnasium.spaces import Box, Discrete

    with diskreplay.ReplayBuffer(
        tmp_path / "other", observation_space=Box(0, 255, (12, 16), np.uint8),
        action_space=Discrete(4), capacity=50, stack_size=4, gamma=0.9,
    ):  # fmt: skip
        pass
    found, common = difference(cli, store, tmp_path / "other")
    assert common == [[0, 0]]
    assert found["field", "score"]["other"] == "missing"
    assert found["option", "gamma"]["other"] == 0.9
    assert found["option", "capacity"]["one"] is None
    assert ("space", "action_space") in found
    assert ("priority", "priority") in found
    cli("diff", store, tmp_path / "nowhere", code=3)
