"""Checkpoints divided anew: the same rows, leaves and episodes, as links to the same files."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import (
    CorruptCheckpointError,
    IncompleteCheckpointError,
    InvalidInputError,
    SchemaError,
    SumTree,
)
from diskreplay.check.verify import verify
from diskreplay.convert.copying import convert
from diskreplay.convert.regrouping import regroup
from tests import disks
from tests.effort import effort

ROOT = Path(__file__).resolve().parent.parent.parent
EXTRAS = {"number": ((), "int64"), "target": ((2,), "float32", "mutable")}


def make(path, num_envs, **options):
    options = {
        "capacity": 150 * num_envs, "num_envs": num_envs, "env_group": 2, "segment_rows": 16,
        "stack_size": 2, "alpha": 0.7, "extras": EXTRAS, "compressor": {"observation": "lz4"},
    } | options  # fmt: skip
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (40, 40), "uint8"), action_space=Discrete(7), **options
    )


def fill(buffer, base, rows, seed):
    """Rows that say by their number who they are; envs of different lengths, round the ring."""
    rng = np.random.default_rng(seed)
    envs = buffer.num_envs
    for row in range(rows):
        mask = rng.random(envs) < np.linspace(0.4, 1.0, envs)
        ended = (rng.random((2, envs)) < 0.06) & (row < rows - 9)  # one is open at the end
        numbers = base + np.arange(envs) * 10_000 + row
        frames = np.stack([frame(number) for number in numbers])
        buffer.add(
            frames, numbers % 7, numbers % 11, ended[0], ended[1] & ~ended[0], 255 - frames,
            mask=mask, number=numbers, target=np.stack([numbers, -numbers], 1),
        )  # fmt: skip


def frame(number):
    return np.random.default_rng(int(number)).integers(0, 255, (40, 40), np.uint8)


def checkpoints(tmp_path, sizes, rows=260):
    """A checkpoint of each of some buffers, with a view, priorities and an attachment."""
    paths = []
    for number, envs in enumerate(sizes):
        with make(tmp_path / f"store{number}", envs, name=f"r-{number}", seed=number) as buffer:
            view = buffer.sequences(4, prioritized=True, online=True, name="view", seed=number)
            fill(buffer, number * 1_000_000, rows + 20 * number, number)
            part = {
                "observation": np.zeros((3, 40, 40), np.uint8), "action": [1, 2, 3],
                "reward": np.zeros(3), "terminated": [False] * 3, "truncated": [False] * 3,
                "step": [5, 6, 7], "is_final": [False] * 3,
                "number": [9_000_000 + number] * 3, "target": np.zeros((3, 2)),
            }  # fmt: skip
            step = int(buffer.take("step", [latest(buffer, 1)])[0])
            buffer.end_episode()
            part["step"] = [step + 1, step + 2, step + 3]  # a part of an episode: one of `begins`
            buffer.extend(part, env=1)
            ids = buffer.sampleable_ids()
            rng = np.random.default_rng(number)
            buffer.update_priorities(ids, rng.random(len(ids)) * (number + 1))
            with view.prefetch(3, 2) as batches:
                next(batches)
                window = view.sample(3)
            view.update_priorities(window.anchor, rng.random(3) + number)
            paths.append(
                buffer.save(tmp_path / "ck", 1, attachments={f"agent{number}.pt": b"%d" % number})
            )
    return paths


def latest(buffer, env):
    return (int(buffer.bounds[env, 1]) - 1) * buffer.num_envs + env


def contents(path):
    """All that is known of each env, in order, whatever checkpoint it is in."""
    with diskreplay.open(path) as buffer:
        found, episodes = [], buffer.episodes()
        sampleable = set(buffer.sampleable_ids().tolist())
        saved = buffer._rows.store.read_priorities()
        view = buffer._rows.store.read_priorities("priority.view")
        meta = buffer._rows.store.meta
        for env, (first, stop) in enumerate(buffer.bounds.tolist()):
            ids = np.arange(first, stop) * buffer.num_envs + env
            rows = {name: buffer.take(name, ids) for name in buffer.fields}
            rows["leaves"] = saved.leaves[first - saved.start : stop - saved.start, env]
            rows["windows"] = view.leaves[first - view.start : stop - view.start, env]
            rows["sampleable"] = np.array([id_ in sampleable for id_ in ids.tolist()])
            rows["bounds"] = np.array([first, stop])
            rows["next_step"] = np.array(meta["next_step"][env])
            saved_view = meta["views"]["view"]
            rows["cursor"] = np.array(saved_view["cursor"][env])
            rows["returned"] = np.array(
                [id_ // buffer.num_envs for id_ in saved_view["returned"]
                 if id_ % buffer.num_envs == env]
            )  # fmt: skip
            begins = [id_ // buffer.num_envs for id_ in meta.get("begins", [])
                      if id_ % buffer.num_envs == env]  # fmt: skip
            rows["begins"] = np.array(begins)
            mine = episodes.env == env
            rows["episodes"] = np.stack([
                episodes.start_id[mine] // buffer.num_envs, episodes.first_step[mine],
                episodes.rows[mine], episodes.returns[mine], episodes.terminated[mine],
                episodes.truncated[mine], episodes.cut[mine], episodes.unfinished[mine],
                np.where(episodes.final_id < 0, -1, episodes.final_id // buffer.num_envs)[mine],
            ])  # fmt: skip
            found.append(rows)
        return found


def of_all(paths):
    return [rows for path in paths for rows in contents(path)]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], name)


def files_of(paths):
    """Which files have rows of frames, by their inodes."""
    return {
        file.stat().st_ino for path in paths for file in (path / "observation").glob("c.*")
    }  # fmt: skip


@pytest.mark.parametrize("targets", effort([2, 3], [1, 2, 3, 8]))
@pytest.mark.costly(1)
def test_all_that_is_known_of_the_envs_moves_with_them_and_back(tmp_path, targets):
    sources = checkpoints(tmp_path, [4, 4, 4, 4])
    expected = of_all(sources)
    there = regroup(sources, [tmp_path / f"n{i}_ckpt.1" for i in range(targets)])
    sizes = [len(contents(path)) for path in there]
    assert sizes == {1: [16], 2: [8, 8], 3: [6, 6, 4], 8: [2] * 8}[targets]
    back = regroup(there, [tmp_path / f"r-{i}_ckpt.2" for i in range(4)])
    for paths in (there, back):
        assert_same(of_all(paths), expected)
        for path in paths:
            report = verify(path)
            assert report.clean, report.findings
        assert files_of(paths) == files_of(sources)  # no frame was copied
        attached = sorted(name for path in paths for name in attachments(path))
        assert attached == [f"agent{i}.pt" for i in range(4)]
    largest = [about(path)["largest_priority"] for path in sources]
    assert max(about(path)["largest_priority"] for path in there) == max(largest)
    generations = [about(path)["generation"] for path in sources]
    assert min(about(path)["generation"] for path in there) > max(generations)
    states = [json.dumps(about(path)["rng"]) for path in [*sources, *there, *back]]
    assert len(set(states)) == len(states)  # else two would draw the same


def about(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]


def attachments(path):
    with make(path.parent / "asked", about(path)["num_envs"], name="n") as buffer:
        found = buffer.load(path)
        names = {name: file.read_bytes() for name, file in found.attachments.items()}
    shutil.rmtree(path.parent / "asked")
    assert all(data == name[5:6].encode() for name, data in names.items())
    return names


@pytest.mark.costly
def test_draws_after_loading_are_those_of_a_tree_over_all_leaves(tmp_path):
    sources = checkpoints(tmp_path, [2, 4])
    regroup(sources, [tmp_path / "n_ckpt.7"])
    leaves, numbers = [], []
    for source in sources:
        with diskreplay.open(source) as buffer:
            saved = buffer._rows.store.read_priorities()
            ids = buffer.sampleable_ids()
            row, env = ids // buffer.num_envs, ids % buffer.num_envs
            leaves += saved.leaves[row - saved.start, env].tolist()
            numbers += buffer.take("number", ids).tolist()
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), np.array(leaves))
    with make(tmp_path / "live", 6, name="n") as buffer:
        assert buffer.load(tmp_path, 7).number == 7
        assert buffer.priority_mass().total == pytest.approx(tree.total, rel=1e-12)
        assert len(buffer) == len(leaves)
        chances = dict(zip(numbers, np.array(leaves) / tree.total, strict=False))
        seen = 0
        for _ in range(20):
            batch = buffer.sample(256)
            for number, probability in zip(batch.number.tolist(), batch.probability, strict=True):
                if number < 9_000_000:  # parts have one number for three rows
                    assert probability == pytest.approx(chances[number], rel=1e-9)
                    seen += 1
        assert seen > 4000
        fill(buffer, 5_000_000, 40, 3)  # and it goes on
        buffer.save(tmp_path / "more", 8)
    assert verify(tmp_path / "live").clean
    assert verify(tmp_path / "more" / "n_ckpt.8").clean


def test_envs_can_be_chosen_and_left_out(tmp_path):
    sources = checkpoints(tmp_path, [4, 5], rows=60)
    expected = of_all(sources)
    chosen = [[6, 7, 0, 1], [4, 5, 8]]
    there = regroup(sources, [tmp_path / "a_ckpt.1", tmp_path / "b_ckpt.1"], chosen)
    assert_same(of_all(there), [expected[env] for envs in chosen for env in envs])
    assert all(verify(path).clean for path in there)


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("says", "envs"),
    [
        ("target 0 would divide a group at env 0", [[0]]),
        ("target 0 would divide a group at env 1", [[1, 2]]),
        ("target 0 would divide a group at env 1", [[1, 0]]),
        ("target 0 would divide a group at env 1", [[1]]),
        ("target 0 would divide a group at env 0", [[8, 0, 1]]),
        ("0 is named twice", [[0, 1, 0, 1]]),
        ("0 to 8 expected, found 9", [[9]]),
        ("target 0 has none", [[]]),
        ("one list for each of 1 targets", [[0, 1], [2, 3]]),
        ("a list of whole numbers expected", [[0.0, 1.0]]),
        ("a list of whole numbers expected", [["a"]]),
        ("a list of whole numbers expected", [None]),
        ("a list for each target expected", 5),
        ("a list for each target expected", object()),
    ],
)
def test_divisions_that_cannot_be_are_refused(tmp_path, says, envs):
    sources = checkpoints(tmp_path, [4, 5], rows=20)
    with pytest.raises(InvalidInputError, match=says):
        regroup(sources, [tmp_path / "t" / "n_ckpt.1"], envs)
    assert not (tmp_path / "t").exists()


def test_a_target_has_a_whole_group_at_least(tmp_path):
    """It could not be opened."""
    sources = checkpoints(tmp_path, [3], rows=20)
    targets = [tmp_path / "t" / "a_ckpt.1", tmp_path / "t" / "b_ckpt.1"]
    with pytest.raises(InvalidInputError, match="target 1 would have 1 env"):
        regroup(sources, targets)
    assert not (tmp_path / "t").exists()
    (one,) = regroup(sources, targets[:1])
    assert_same(of_all([one]), of_all(sources))


def test_each_env_keeps_as_many_transitions_as_before(tmp_path):
    def limit(path):
        with diskreplay.open(path) as buffer:
            return buffer.num_envs, buffer.max_transitions, buffer.bounds.tolist(), len(buffer)

    sources = []
    for name, most in (("a", 41), ("b", 41), ("c", 80)):
        with make(tmp_path / name, 4, name=name, max_transitions=most) as buffer:
            fill(buffer, 0, 60, 0)
            sources.append(buffer.save(tmp_path / "ck", 1))
    *sources, other = sources
    joined, half, rest = (tmp_path / f"{name}_ckpt.1" for name in "jhr")
    regroup(sources, [joined])
    regroup([joined], [half, rest], [[0, 1], [2, 3, 4, 5, 6, 7]])
    before = [limit(path) for path in sources]
    assert limit(joined) == (8, 80, before[0][2] + before[1][2], before[0][3] + before[1][3])
    assert limit(half)[:3] == (2, 20, before[0][2][:2])
    assert limit(rest)[:3] == (6, 60, (before[0][2] + before[1][2])[2:])
    with pytest.raises(SchemaError, match="max_transitions is 80 there, and 41"):
        regroup([*sources, other], [tmp_path / "n_ckpt.1"])


def test_targets_inside_of_what_is_there_are_refused(tmp_path):
    one, two = checkpoints(tmp_path, [2, 2], rows=20)
    (tmp_path / "link").symlink_to(one)
    store = make(tmp_path / "live", 2)
    before = set(tmp_path.rglob("*"))
    for place in (one, two, one / "observation", tmp_path / "link", store.path):
        with pytest.raises(InvalidInputError, match=r"is inside the (store|checkpoint) /"):
            regroup([one], [place / "n_ckpt.1"])
    target = tmp_path / "t" / "n_ckpt.1"
    with pytest.raises(InvalidInputError, match=r"is inside .*n_ckpt.1; choose"):
        regroup([one, two], [target, target / "m_ckpt.1"])
    with pytest.raises(InvalidInputError, match="sources: a list of paths expected"):
        regroup(str(one), [target])
    with pytest.raises(InvalidInputError, match="targets: a list of paths expected"):
        regroup([one], target)
    for source in (store.path, tmp_path / "none"):  # open by a writer; not there
        with pytest.raises(IncompleteCheckpointError, match="no whole checkpoint"):
            regroup([source], [target])
    with pytest.raises(InvalidInputError, match="is inside the store"):
        convert(two, store.path / "copy")
    assert before == set(tmp_path.rglob("*"))
    store.close()


ON_A_FULL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests import disks
from diskreplay.check.verify import verify
from diskreplay.convert.regrouping import regroup
from diskreplay.errors import DiskFullError, DiskReplayError
import os

base, source = Path(sys.argv[2]), Path(sys.argv[3])
size, refused = 64, 0
while True:
    place = base / str(size)
    place.mkdir()
    disks.mount(place, f"size={size}k")
    targets = [place / f"n{n}_ckpt.1" for n in range(2)]
    try:
        regroup([source], targets)
        break
    except DiskFullError:
        refused += 1
    for target in targets:
        assert not target.exists() or verify(target).clean, target
    left = {path.name for path in place.iterdir()}
    assert left <= {target.name for target in targets}, left
    size = size * 5 // 4
assert all(verify(target).clean for target in targets)
print(refused)
"""


@pytest.mark.costly
@pytest.mark.skipif(not disks.can_mount(), reason="may not mount")
def test_on_a_full_disk_targets_are_whole_or_not_there(tmp_path):
    (source,) = checkpoints(tmp_path, [4], rows=120)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    (tmp_path / "disks").mkdir()
    command, options = disks.alone("-c", ON_A_FULL_DISK, ROOT, tmp_path / "disks", source)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3
    assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}


def test_what_does_not_go_together_is_refused(tmp_path):
    one, two = checkpoints(tmp_path, [2, 2], rows=20)
    target = tmp_path / "t" / "n_ckpt.1"
    with pytest.raises(InvalidInputError, match="3 asked for, and there are 2 groups of 2 envs"):
        regroup([one, two], [target.with_name(f"{n}_ckpt.1") for n in range(3)])
    with pytest.raises(InvalidInputError, match="named twice"):
        regroup([one, one], [target])
    with pytest.raises(InvalidInputError, match="named twice"):
        regroup([one, two], [target, target])
    with pytest.raises(InvalidInputError, match="there is something already"):
        regroup([one], [two])
    with pytest.raises(InvalidInputError, match="one checkpoint at least"):
        regroup([], [target])
    for options, says in (
        ({"alpha": 0.5}, "alpha is 0.5 there"), ({"segment_rows": 32}, "its fields are not those"),
        ({"gamma": 0.5}, "gamma is 0.5 there"),
        ({"metadata": {"who": 1}}, "metadata have 1 for 'who'"),
    ):  # fmt: skip
        with make(tmp_path / f"o{says}", 2, name="other", metadata={"who": 2}) as buffer:
            fill(buffer, 0, 5, 0)
            first = buffer.save(tmp_path / "o", 0, attachments={"agent0.pt": b"x"})
        with make(tmp_path / f"p{says}", 2, name="other", **options) as buffer:
            fill(buffer, 0, 5, 0)
            made = buffer.save(tmp_path / "o", 1)
        with pytest.raises(SchemaError, match=says):
            regroup([first, made], [target])
    with pytest.raises(InvalidInputError, match="has an attachment of that name too"):
        regroup([one, first], [target])
    with pytest.raises(IncompleteCheckpointError):
        regroup([tmp_path / "nowhere"], [target])
    (file,) = list(two.glob("action/zarr.json"))
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=r"action/zarr\.json"):
        regroup([one, two], [target])
    assert not target.exists()
    assert not list(target.parent.glob(".*")) if target.parent.exists() else True


KILLED = """
import sys
from diskreplay.convert.regrouping import regroup
sources, targets = sys.argv[1].split(":"), sys.argv[2].split(":")
print("ready", flush=True)
for turn in range(10**6):
    regroup(sources, [f"{target}{turn}" for target in targets])
    print(turn, flush=True)
"""


@pytest.mark.costly
def test_a_kill_leaves_the_sources_and_whole_targets(tmp_path):
    sources = checkpoints(tmp_path, [4, 4], rows=120)
    expected = of_all(sources)
    before = {
        path: path.read_bytes() for source in sources for path in source.rglob("*")
        if path.is_file()
    }  # fmt: skip
    rng, whole = random.Random(5), 0
    for kill in range(int(os.environ.get("DISKREPLAY_KILLS", effort(4, 8)))):
        place = tmp_path / f"kill{kill}"
        names = ":".join(str(place / f"n{i}_ckpt.") for i in range(4))
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, ":".join(map(str, sources)), names],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        done = 0
        if kill % 2:  # amid a later turn, however slow the machine is
            assert process.stdout.readline() == "0\n"
            done = 1
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        done += len(process.stdout.read().split())
        process.wait()
        process.stdout.close()
        for turn in range(done):  # what was said to be there is
            for i in range(4):
                assert (place / f"n{i}_ckpt.{turn}").is_dir()
        for path in sorted(place.glob("n*_ckpt.*"))[-6:]:
            assert verify(path).clean
            envs = contents(path)
            at = 2 * int(path.name[1])
            assert_same(envs, expected[at : at + 2])
            whole += 1
        if place.exists():  # what was left is removed by the next one
            for i in range(4):
                shutil.rmtree(place / f"n{i}_ckpt.{done}", ignore_errors=True)
            regroup(sources, [place / f"n{i}_ckpt.{done}" for i in range(4)])
            assert not list(place.glob(f".n?_ckpt.{done}.*"))
    assert whole
    assert before == {path: path.read_bytes() for path in before}
