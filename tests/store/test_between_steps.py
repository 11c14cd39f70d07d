"""What comes between two commits or before a kill, and what is there then."""

import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.store import private

FRAME = Box(0, 255, (64, 64), np.uint8)  # a page: segments are as short as one likes


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2),
        **{"capacity": 400, "segment_rows": 8, "update_horizon": 1, "alpha": 0.5, **options},
    )  # fmt: skip


def add(buffer, rows, *, ended=lambda row: False):
    for _ in range(rows):
        row = int(buffer.bounds[0, 1])
        frame = np.full((64, 64), row % 251, np.uint8)
        buffer.add(frame, 1, 1.0, ended(row), False, *([frame] if ended(row) else []))


def killed(buffer, copy):
    """The store as a kill would leave it now."""
    with buffer._rows.store.maintenance.lock:
        shutil.copytree(buffer.path, copy)
    return copy


def leaves(buffer):
    """Of each row that can be sampled, its share of the total; and the sums of the tree."""
    sampler = buffer._rows.indexed().sampler
    sampler.tree.check()
    ids = buffer.sampleable_ids()
    return ids, sampler.tree.leaves[ids % len(sampler.tree.leaves)], sampler.tree.total


@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_rows_since_a_save_have_the_largest_priority_after_a_kill_and_a_load(
    tmp_path, normalization
):
    options = {"weight_normalization": normalization}
    with make(tmp_path / "r", **options) as buffer:
        add(buffer, 30)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, 4.0 + ids % 6)
        buffer.update_priorities([3], [100.0])  # the largest one that was ever seen
        buffer.update_priorities([3], [4.0])
        buffer.save(tmp_path / "c", 1)
        add(buffer, 20)
        copy = killed(buffer, tmp_path / "killed")

        def check(it, rows, cut=-1):  # the last row of an episode that is cut is not sampled
            found, its, total = leaves(it)
            assert found.tolist() == [row for row in range(rows - 1) if row != cut]
            expected = np.sqrt(4.0 + found % 6)
            expected[3] = 2.0
            expected[29:] = 10.0  # 100 ** alpha
            np.testing.assert_allclose(its, expected, rtol=1e-12)
            assert total == pytest.approx(expected.sum(), rel=1e-12)

        check(buffer, 50)
        with make(copy, **options) as again:
            check(again, 50)
            add(again, 5)
            check(again, 55, cut=49)
        with make(copy, **options) as again:  # by what closing wrote
            check(again, 55, cut=49)
        buffer.load(tmp_path / "c", 1)
        check(buffer, 30)
        add(buffer, 12)
        check(buffer, 42, cut=29)


@pytest.mark.parametrize("horizon", [1, 3])
def test_rows_that_wait_keep_the_priorities_that_they_were_added_with(tmp_path, horizon):
    """The newest ones too: the episode goes on after a load."""

    def play(it, rows):
        for _ in range(rows):
            row = int(it.bounds[0, 1])
            it.add(np.zeros((64, 64), np.uint8), 1, 1.0, False, False, priority=4.0 + row)

    with make(tmp_path / "r", update_horizon=horizon) as buffer:
        play(buffer, 18)
        buffer.save(tmp_path / "c", 1)
        play(buffer, 2)
        buffer.load(tmp_path / "c", 1, resume_episodes=True)
        play(buffer, 9)
        ids, its, _total = leaves(buffer)
        assert ids.tolist() == list(range(27 - horizon))
        np.testing.assert_allclose(its, np.sqrt(4.0 + ids), rtol=1e-12)


def test_a_reader_sees_values_that_are_written_to_files_which_a_checkpoint_shares(tmp_path):
    extras = {"latent": ((512,), "int64", "mutable")}
    with make(tmp_path / "r", extras=extras) as buffer:
        for row in range(40):
            frame = np.zeros((64, 64), np.uint8)
            buffer.add(frame, 1, 1.0, False, False, latent=np.full(512, row))
        with diskreplay.open(tmp_path / "r") as reader:
            expected = np.arange(40)
            for number in range(1, 4):
                assert reader.take("latent", np.arange(40))[:, 5].tolist() == expected.tolist()
                buffer.save(tmp_path / "c", number)  # full segments of it are sealed
                ids = np.arange(number * 8, number * 8 + 4)
                buffer.write("latent", ids, np.full((4, 512), -number))
                expected[ids] = -number
            assert reader.take("latent", np.arange(40))[:, 5].tolist() == expected.tolist()


@pytest.mark.parametrize("behind", [1, 3, 8])
def test_a_kill_between_the_rows_and_the_count_of_final_ones(tmp_path, behind):
    """The page knows of the final rows of some commits before."""
    with make(tmp_path / "r") as buffer:
        add(buffer, 5)
        buffer.flush()
        add(buffer, 20, ended=lambda row: row % 5 == 4)
        word_at, page = 4096 + 8, private.commit_page(tmp_path / "r")
        before = page.read_bytes()[word_at : word_at + 8]
        add(buffer, behind, ended=lambda row: True)
        copy, count = killed(buffer, tmp_path / "killed"), buffer.add_count
        assert count == 25 + behind
    page = private.commit_page(copy)
    data = bytearray(page.read_bytes())
    assert data[word_at : word_at + 8] != before
    data[word_at : word_at + 8] = before
    page.write_bytes(data)
    with diskreplay.open(copy) as reader:
        assert reader.add_count == count
    with make(copy) as again:
        assert again.add_count == count
    assert verify(copy).findings == ()
