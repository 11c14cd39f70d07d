"""A repair takes from checkpoints whatever they have, and says of each other row why it is lost."""

import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify

SEGMENT = 512


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (40, 32), "uint8"), action_space=Discrete(5),
        capacity=4000, segment_rows=SEGMENT, extras={"hidden": ((64,), "float64")}, seed=3,
        **options,
    )  # fmt: skip


def columns(start, stop, salt=0):
    rows = np.arange(start, stop)
    frames = np.random.default_rng(salt).integers(0, 256, (len(rows), 40, 32), np.uint8)
    frames[:, 0, :8] = rows[:, None].view(np.uint8)
    return {
        "observation": frames, "action": rows % 5, "reward": rows + np.float32(salt),
        "terminated": rows % 10 == 9, "truncated": np.zeros(len(rows), bool),
        "step": (rows % 10).astype(np.int32), "is_final": np.zeros(len(rows), bool),
        "hidden": rows[:, None] + np.arange(64) / 64 + salt,
    }  # fmt: skip


class Run:
    """A store of 1200 rows that was saved at 300 and at 900, on inodes of their own."""

    def __init__(self, root, close=True):
        self.path = root / "store"
        with make(self.path) as buffer:
            for start, stop in ((0, 300), (300, 900), (900, 1200)):
                buffer.extend(columns(start, stop, salt=0 if start == 0 else start))
                if start == 300:
                    ids = np.arange(0, 900)
                    buffer.update_priorities(ids, ids % 7 + 1.0)
                    self.leaves = buffer.tree.leaves[:900].copy()
                if stop < 1200:
                    buffer.save(root / "saved", stop)
            self.rows = {name: buffer.take(name, np.arange(1200)) for name in buffer.fields}
        self.at = {}
        for number in (300, 900):
            self.at[number] = root / f"copy.{number}"
            shutil.copytree(root / "saved" / f"replay_ckpt.{number}", self.at[number])

    def check(self, lost):
        """The store is sound; every row but these is as it was recorded."""
        assert verify(self.path).findings == ()
        kept = np.delete(np.arange(1200), lost)
        with diskreplay.open(self.path) as buffer:
            for name, values in self.rows.items():
                if name == "step" and len(lost):
                    continue  # behind a row that is lost it counts anew
                np.testing.assert_array_equal(buffer.take(name, kept), values[kept], err_msg=name)
            assert not np.isin(buffer.sampleable_ids(), lost).any()

    def file(self, name, segment):
        (path,) = (self.path / name).glob(f"c.{segment}.0*")
        return path


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def flip(path, *offsets):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= 1
    path.write_bytes(data)


def block_of(path, row, blocks=SEGMENT // 8):
    """An offset inside the block that a row is in."""
    data = path.read_bytes()
    index = np.frombuffer(data[: 16 * blocks], "<i8").reshape(-1, 2)
    return int(index[row // 8, 0]) + 40


def rows_of(report):
    return [(loss.field, row) for loss in report.losses for span in loss.rows
            for row in range(*span[1:])]  # fmt: skip


# -- segments that were not full in the checkpoint


@pytest.mark.parametrize("row", [0, 100, 295])
def test_a_packed_block_is_taken_from_a_segment_that_was_not_full(run, row):
    path = run.file("observation", 0)
    flip(path, block_of(path, row))
    report = repair(run.path, sources=[run.at[300]])
    assert (report.set_aside, report.losses) == ((0,), ())
    run.check([])


def test_a_block_of_which_the_checkpoint_has_the_first_rows(run):
    """300 rows: of block 37, rows 296 to 303, it has four."""
    path = run.file("observation", 0)
    flip(path, block_of(path, 296))
    report = repair(run.path, sources=[run.at[300]])
    assert report.set_aside == (4,)
    assert rows_of(report) == [("observation", row) for row in range(300, 304)]
    (loss,) = report.losses
    assert "1 of its blocks is rotten" in loss.reason
    assert "copy.300: has only 4 of them whole" in loss.reason
    run.check(np.arange(300, 304))


def test_raw_pieces_are_taken_from_a_segment_that_was_not_full(run):
    path = run.file("hidden", 0)
    flip(path, 4096 * 3 + 5, 512 * 299)  # rows 24 to 31, and 296 to 303
    report = repair(run.path, sources=[run.at[300]])
    assert (report.set_aside, report.losses) == ((0,), ())
    run.check([])


def test_a_piece_whose_rot_lies_behind_the_checkpoint(run):
    flip(run.file("hidden", 0), 512 * 301)
    report = repair(run.path, sources=[run.at[300]])
    assert report.set_aside == (4,)
    (loss,) = report.losses
    assert (loss.field, loss.rows) == ("hidden", ((0, 300, 304),))
    assert "1 of its 64 pieces" in loss.reason
    assert "copy.300: has only 4 of them whole" in loss.reason
    run.check(np.arange(300, 304))


def test_several_checkpoints_give_what_each_of_them_has(run):
    """The newer one is rotten itself where the older one is not."""
    frames, hidden = run.file("observation", 0), run.file("hidden", 1)
    flip(frames, block_of(frames, 16), block_of(frames, 400))
    flip(hidden, 512 * (600 - 512), 512 * (1000 - 512))
    newer = run.at[900] / "observation" / "c.0.0.0.0"
    flip(newer, block_of(newer, 16))
    report = repair(run.path, sources=[run.at[900], run.at[300]])
    assert report.set_aside == (8,)
    (loss,) = report.losses
    assert (loss.field, loss.rows) == ("hidden", ((0, 1000, 1008),))
    for name in ("copy.900", "copy.300"):
        assert name in loss.reason
    run.check(np.arange(1000, 1008))


def test_a_file_that_is_gone_is_put_together(run):
    run.file("observation", 1).unlink()
    run.file("reward", 0).unlink()
    report = repair(run.path, sources=[run.at[900]])
    lost = np.arange(900, 1024)  # 1024 rewards a file
    assert report.set_aside == (len(lost),)
    assert sorted(rows_of(report)) == [
        (name, row) for name in ("observation", "reward") for row in lost
    ]
    run.check(lost)


def test_without_a_checkpoint_the_reason_says_so(run):
    path = run.file("observation", 1)
    flip(path, block_of(path, 8))
    report = repair(run.path)
    (loss,) = report.losses
    assert (loss.field, loss.rows) == ("observation", ((0, 520, 528),))
    assert "no checkpoint was given" in loss.reason
    assert "rows 520 to 527: observation: segment 1" in str(loss)
    run.check(np.arange(520, 528))


# -- checkpoints of another course


@pytest.mark.parametrize("field", ["observation", "hidden", "reward"])
def test_rows_of_another_course_are_not_taken(tmp_path, run, field):
    """The store went back to 300 and went another way; the checkpoint of 900 is of before."""
    with make(run.path) as buffer:
        buffer.load(tmp_path / "saved", 300)
        buffer.extend(columns(300, 1200, salt=77))
        run.rows = {name: buffer.take(name, np.arange(1200)) for name in buffer.fields}
    path = run.file(field, 0)
    if field == "observation":
        flip(path, block_of(path, 100), block_of(path, 304), block_of(path, 400))
    else:
        row_bytes = {"hidden": 512, "reward": 4}[field]
        flip(path, 100 * row_bytes, 310 * row_bytes, 400 * row_bytes)
    report = repair(run.path, sources=[run.at[900]])
    lost = sorted(row for _field, row in rows_of(report))
    expected = {
        "observation": [*range(304, 312), *range(400, 408)],
        "hidden": [*range(304, 312), *range(400, 408)],
        "reward": list(range(300, 1024)),  # one piece; the other fields tell where they part
    }[field]
    assert lost == expected
    assert all("copy.900: its rows there are not" in loss.reason for loss in report.losses)
    run.check(lost)


def test_a_checkpoint_of_another_store_gives_nothing(tmp_path, run):
    with make(tmp_path / "other") as other:
        other.extend(columns(0, 900, salt=5))
        at = other.save(tmp_path / "others", 1)
    path = run.file("observation", 0)
    flip(path, block_of(path, 100))
    report = repair(run.path, sources=[at])
    assert report.set_aside == (8,)
    run.check(np.arange(96, 104))


def test_a_store_that_is_no_checkpoint_of_it_at_all(tmp_path, run):
    with diskreplay.ReplayBuffer(
        tmp_path / "other", observation_space=Discrete(3), action_space=Discrete(2), capacity=100
    ) as other:
        other.add(1, 1, 1.0, False, False)
        at = other.save(tmp_path / "others", 1)
    flip(run.file("hidden", 0), 0)
    (loss,) = repair(run.path, sources=[at]).losses
    assert "has no such field, or in another layout" in loss.reason


# -- killed stores, impossible rows, priorities


def test_impossible_rows_of_a_killed_store_are_taken_from_a_checkpoint(tmp_path):
    """Nothing has a checksum there: the step says that it is wrong, and not which field is."""
    buffer = make(tmp_path / "live")
    buffer.extend(columns(0, 300))
    at = buffer.save(tmp_path / "saved", 1)
    with buffer._rows.store.maintenance.lock:  # files of one moment, as a kill leaves them
        buffer.extend(columns(300, 400, salt=1))
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    expected = buffer.take("step", np.arange(400))
    buffer.close()
    (path,) = (tmp_path / "killed" / "step").glob("c.0.0")
    flip(path, 4 * 105 + 1, 4 * 350 + 1)
    report = repair(tmp_path / "killed", sources=[at])
    assert verify(tmp_path / "killed").findings == ()
    lost = {row for _field, row in rows_of(report)}
    assert 105 not in lost
    assert 350 in lost
    assert all("step" in loss.reason for loss in report.losses if loss.field == "step")
    kept = np.arange(300)
    with diskreplay.open(tmp_path / "killed") as reader:
        np.testing.assert_array_equal(reader.take("step", kept), expected[kept])


def test_priorities_are_taken_from_a_checkpoint(run):
    shutil.rmtree(run.path / "priority")
    report = repair(run.path, sources=[run.at[300], run.at[900]])
    assert (report.set_aside, report.losses) == ((0,), ())
    with diskreplay.open(run.path) as buffer:
        leaves = buffer.tree.leaves[:900]
        older = np.arange(300)
    np.testing.assert_array_equal(leaves[300:], run.leaves[300:])
    assert (leaves[older] > 0).all()


def test_rows_behind_lost_ones_are_given_a_reason_too(tmp_path):
    path = tmp_path / "store"
    with make(path, stack_size=4) as buffer:
        buffer.extend(columns(0, 1200))
    (file,) = (path / "observation").glob("c.0.0*")
    flip(file, block_of(file, 100))  # rows 96 to 103
    report = repair(path)
    assert report.set_aside == (11,)
    lost, behind = report.losses
    assert (lost.rows, lost.field) == (((0, 96, 104),), "observation")
    assert (behind.rows, behind.field) == (((0, 104, 107),), None)
    assert "stack" in behind.reason
