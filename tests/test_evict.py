"""Rows that leave before the capacity says so."""

import contextlib
import os
import shutil
import subprocess

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify
from diskreplay.store import private
from tests import processes
from tests.naive import SideBySide

FRAME = Box(0, 255, (8, 8), np.uint8)


def make(path, **options):
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=FRAME, action_space=Discrete(2),
        **{"capacity": 4096, "segment_rows": 8, **options},
    )  # fmt: skip


def fill(buffer, rows, start=0):
    for number in range(start, start + rows):
        buffer.add(np.full((8, 8), number % 256, np.uint8), 1, 1.0, number % 10 == 9, False)


def files(path):
    return [name for _base, _dirs, names in os.walk(path) for name in names]


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("stack_size", [1, 3])
def test_rows_leave_beside_the_twin(tmp_path, envs, stack_size):
    with SideBySide(
        tmp_path / "r", num_envs=envs, capacity=60 * envs, stack_size=stack_size,
        update_horizon=2, segment_rows=8, alpha=0.6,
    ) as both:  # fmt: skip
        for round_ in range(12):
            both.play(20, seed=round_)
            first = [low + (high - 1 - low) * (round_ % 4) // 3 for low, high in both.real.bounds]
            both.twin.settle_priorities()
            both.real.evict(first)
            both.twin.evict(first)
            both.check_counts()
            both.check_gather()
        both.reopen()
        both.check_counts()
        both.check_gather()


def test_files_of_rows_that_left_are_deleted(tmp_path):
    with make(tmp_path / "r") as buffer:
        fill(buffer, 2000)
        buffer.flush()
        before = len(files(tmp_path / "r" / "observation"))
        buffer.evict([1990])
        buffer.flush()
        assert before > 30  # 64 rows each: a page
        assert len(files(tmp_path / "r" / "observation")) < 5
        assert buffer.bounds.tolist() == [[1990, 2000]]
        assert buffer.sampleable_ids().tolist() == list(range(1990, 2000))
        with pytest.raises(errors.NotSampleableError, match="evicted"):
            buffer.take("reward", [1989])
        buffer.evict([5])  # they have left already
        assert buffer.bounds.tolist() == [[1990, 2000]]
        fill(buffer, 300, 2000)
    assert verify(tmp_path / "r").findings == ()
    with make(tmp_path / "r") as buffer:
        assert buffer.bounds.tolist() == [[1990, 2300]]


@pytest.mark.parametrize("wrong", [[1, 2], 3, [10], [0.5], ["a"], [[1], [2, 3]], None])
def test_what_is_no_row_of_each_env_is_refused(tmp_path, wrong):
    with make(tmp_path / "r") as buffer:
        fill(buffer, 10)
        with pytest.raises(errors.InvalidInputError, match="first"):
            buffer.evict(wrong)
        assert buffer.bounds.tolist() == [[0, 10]]


READ = """
import sys, numpy as np, diskreplay
with diskreplay.open(sys.argv[1]) as reader:
    for line in sys.stdin:
        ids = reader.sampleable_ids()
        batch = reader.sample(64, beta=0.4) if len(ids) else None
        assert batch is None or set(batch.id.tolist()) <= set(ids.tolist())
        assert (reader.gather(ids).reward == ids).all()
        print(*reader.bounds[0], len(reader), *ids[:1], flush=True)
"""


def number(buffer, rows, start=0):
    """Rows whose reward is their id."""
    for row in range(start, start + rows):
        buffer.add(np.full((8, 8), row % 256, np.uint8), 1, float(row), row % 10 == 9, False)


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_a_reader_in_another_process_shows_the_same_moment(tmp_path, compressor):
    with make(tmp_path / "r", compressor=compressor, capacity=200) as buffer:
        number(buffer, 150)
        reader = processes.Process(
            READ, tmp_path / "r", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

        def seen():
            print(file=reader.stdin, flush=True)
            return [int(word) for word in reader.stdout.readline().split()]

        assert seen() == [0, 150, 150, 0]
        for first, more in [(1, 0), (40, 0), (149, 0), (149, 30), (160, 5), (170, 300), (484, 0)]:
            number(buffer, more, int(buffer.bounds[0, 1]))
            buffer.evict([first])
            low, high = buffer.bounds[0].tolist()
            assert low == max(first, high - 200)
            open_end = (high - 1) % 10 != 9  # what the newest row led to is not known yet
            assert len(buffer) == high - low - open_end
            assert seen() == [low, high, len(buffer), low][: 3 + (len(buffer) > 0)]
            if first == 160:
                buffer.flush()  # files are deleted
                assert seen()[:2] == [low, high]
        reader.communicate()
        assert reader.returncode == 0


@contextlib.contextmanager
def followed(path):
    """A buffer that has let go of 33 of 65 rows, and a reader that saw 60 of them."""
    buffer = make(path)
    fill(buffer, 60)
    with diskreplay.open(path) as reader:
        assert reader.bounds.tolist() == [[0, 60]]
        fill(buffer, 5, 60)
        buffer.evict([33])
        yield buffer, reader


def test_a_reader_shows_what_was_let_go_of_before_the_writer_closed(tmp_path):
    with followed(tmp_path / "r") as (buffer, reader):
        buffer.close()
        assert reader.bounds.tolist() == [[33, 65]]
        assert len(reader.gather(reader.sampleable_ids()).id) == 31  # one is pending


def test_a_reader_that_saw_nothing_of_a_writer_between_two_calls(tmp_path):
    """It was opened while the store was closed, and so it is again."""
    path = tmp_path / "r"
    with make(path) as buffer:
        fill(buffer, 60)
    with diskreplay.open(path) as reader:
        assert reader.bounds.tolist() == [[0, 60]]
        with make(path) as buffer:
            fill(buffer, 5, 60)
            buffer.evict([33])
        assert reader.bounds.tolist() == [[33, 65]]
        looks = reader._rows.store.follower.looks
        assert len(reader.gather(reader.sampleable_ids()).id) == 31  # one is pending
        assert reader._rows.store.follower.looks == looks
        with make(path) as buffer:
            fill(buffer, 5, 65)
        assert reader.bounds.tolist() == [[33, 70]]


def test_a_writer_that_closes_while_a_reader_looks(tmp_path):
    with followed(tmp_path / "r") as (buffer, reader):
        follower = reader._rows.store.follower
        look = follower.look

        def late():
            buffer.close()
            look()

        follower.look = late
        len(reader)  # may still be of before
        assert reader.bounds.tolist() == [[33, 65]]
        assert len(reader.sampleable_ids()) == 31


def test_envs_leave_one_by_one(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "r", observation_space=Box(0, 255, (2,), np.uint8), num_envs=3, capacity=300,
        action_space=Discrete(2), update_horizon=2, segment_rows=8,
    ) as buffer, diskreplay.open(tmp_path / "r") as reader:  # fmt: skip
        nothing = np.zeros(3, bool)
        for row in range(20):
            buffer.add(np.full((3, 2), row, np.uint8), np.ones(3, int), np.zeros(3), nothing,
                       nothing)  # fmt: skip
        assert reader.sample(5) is not None
        for first in ([3, 0, 0], [0, 19, 7], [5, 5, 5]):
            buffer.evict(first)
            assert reader.bounds.tolist() == buffer.bounds.tolist()
            assert reader.sampleable_ids().tolist() == buffer.sampleable_ids().tolist()
        assert reader.bounds[:, 0].tolist() == [5, 19, 7]


def test_a_reader_that_does_not_follow_does_without_files_that_are_gone(tmp_path):
    with make(tmp_path / "r", compressor="lz4", capacity=None) as buffer:
        fill(buffer, 700)
        with diskreplay.open(tmp_path / "r", follow=False) as reader:
            assert reader.bounds.tolist() == [[0, 700]]
            buffer.evict([690])
            fill(buffer, 1500, 700)
            buffer.evict([2100])
            buffer.flush()  # files are deleted, and what was in the tail is not there any more
            low, high = reader.bounds[0].tolist()
            assert high == 700
            ids = np.arange(low, high)
            found = reader.take("observation", ids)[:, 0, 0]
            assert found.tolist() == [id_ % 256 for id_ in ids]


EVICT_UNTIL_KILLED = """
import sys, numpy as np, diskreplay
from gymnasium.spaces import Box, Discrete
buffer = diskreplay.PrioritizedReplayBuffer(
    sys.argv[1], observation_space=Box(0, 255, (8, 8), np.uint8), action_space=Discrete(2),
    capacity=4096, segment_rows=8)
rng, row, first = np.random.default_rng(int(sys.argv[2])), 0, 0
while True:
    for _ in range(int(rng.integers(1, 40))):
        buffer.add(np.full((8, 8), row % 256, np.uint8), 1, float(row), row % 10 == 9, False)
        row += 1
    first = int(rng.integers(first, row))
    print("evict", first, row, flush=True)
    buffer.evict([first])
    print("done", first, row, flush=True)
    if rng.random() < 0.1:
        buffer.flush()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_that_is_killed_amid_evict(tmp_path, seed):
    """What was let go of stays away, for those that read already and for the next writer."""
    path = tmp_path / "r"
    writer = processes.Process(EVICT_UNTIL_KILLED, path, seed, stdout=subprocess.PIPE)
    for _ in range(40 + 60 * seed):
        said = [writer.stdout.readline().split()]
    with diskreplay.open(path) as reader:
        before = reader.bounds[0].tolist()
        for _ in range(31):
            said.append(writer.stdout.readline().split())
            now = reader.bounds[0].tolist()
            assert before[0] <= now[0] < now[1]
            assert before[1] <= now[1]
            before = now
        writer.kill()
        lines = [*said, *(line.split() for line in writer.communicate()[0].splitlines())]
        lines = [line for line in lines if len(line) == 3]
        least = max(int(first) for word, first, _row in lines if word == "done")
        most = max(int(first) for _word, first, _row in lines)
        low, high = reader.bounds[0].tolist()
        assert least <= low <= most
        ids = reader.sampleable_ids()
        known = range(low, high - (high % 10 != 0))  # what the newest row led to may not be
        assert ids.tolist() == list(known)
        assert (reader.gather(ids).reward == ids).all()
        assert verify(path).findings == ()
        with make(path) as buffer:
            assert buffer.bounds.tolist() == [[low, high]]
            assert (buffer.gather(buffer.sampleable_ids()).reward == known).all()
            assert reader.bounds.tolist() == [[low, high]]


@pytest.mark.parametrize("envs", [1, 3])
def test_a_kill_where_all_recorded_rows_have_left(tmp_path, envs):
    """Their segments of narrow fields are gone: an opening asks nothing of them."""
    options = {
        "observation_space": Box(0, 255, (64, 64), np.uint8), "action_space": Discrete(2),
        "capacity": 5000 * envs, "num_envs": envs, "compressor": "raw",
    }  # fmt: skip
    rows, zeros = 4096 + 130, np.zeros(4096 + 130)
    columns = {
        "observation": np.broadcast_to(np.uint8(7), (rows, 64, 64)), "action": zeros.astype(int),
        "reward": np.arange(rows) % 100.0, "terminated": np.arange(rows) % 10 == 9,
        "truncated": zeros > 0, "step": np.arange(rows) % 10, "is_final": zeros > 0,
    }  # fmt: skip
    with diskreplay.ReplayBuffer(tmp_path / "live", **options) as buffer:
        for part in (slice(0, 3990), slice(3990, rows)):
            with buffer._rows.store.maintenance.lock:  # no record is written meanwhile
                for env in range(envs):
                    buffer.extend({name: values[part] for name, values in columns.items()}, env)
                if part.stop == rows:
                    buffer.evict(np.full(envs, rows - 20))
                    shutil.copytree(tmp_path / "live", tmp_path / "killed")
            buffer.flush()
    for _ in range(2):
        with diskreplay.ReplayBuffer(tmp_path / "killed", **options) as buffer:
            assert buffer.bounds.tolist() == [[rows - 20, rows]] * envs
            assert buffer.add_count == rows * envs
            kept = buffer.take("reward", np.arange(rows - 20, rows) * envs)
            np.testing.assert_array_equal(kept, columns["reward"][-20:])
    assert verify(tmp_path / "killed").clean


def test_a_commit_page_from_before_it_said_so(tmp_path):
    """That of 256 envs was a page shorter. A writer makes it longer, also while it is read."""
    path, envs = tmp_path / "r", 256
    options = {
        "observation_space": Box(0, 255, (2,), np.uint8), "num_envs": envs, "capacity": 256 * 64,
        "action_space": Discrete(2),
    }  # fmt: skip

    def add(buffer):
        buffer.add(np.zeros((envs, 2), np.uint8), np.ones(envs, int), np.zeros(envs),
                   np.zeros(envs, bool), np.zeros(envs, bool))  # fmt: skip

    with diskreplay.ReplayBuffer(path, **options) as buffer:
        for _ in range(9):
            add(buffer)
    page = private.commit_page(path)
    size = page.stat().st_size
    os.truncate(page, size - 4096)
    assert verify(path).findings == ()
    with diskreplay.open(path) as reader:
        assert reader.bounds[:, 1].tolist() == [9] * envs
        with diskreplay.ReplayBuffer(path, **options) as buffer:
            assert page.stat().st_size == size
            add(buffer)
            buffer.evict(np.arange(envs) % 10)
            assert reader.bounds.tolist() == [[env % 10, 10] for env in range(envs)]
    assert verify(path).findings == ()


@pytest.mark.parametrize("wrong", [-1, 61, 2**62])
def test_a_commit_page_that_keeps_none_of_the_rows_is_refused(tmp_path, wrong):
    path = tmp_path / "r"
    with make(path) as buffer, diskreplay.open(path) as reader:
        fill(buffer, 60)
        buffer.evict([7])
        page = bytearray(private.commit_page(path).read_bytes())
        copy = tmp_path / "copy"
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, copy)
        assert reader.bounds.tolist() == [[7, 60]]
    at = page.index((7).to_bytes(8, "little"), 4096)
    page[at : at + 8] = wrong.to_bytes(8, "little", signed=True)
    private.commit_page(copy).write_bytes(page)
    assert "kept from" in str(verify(copy).findings)
    with pytest.raises(errors.FormatError, match="kept from"):
        diskreplay.open(copy)
    with pytest.raises(errors.FormatError, match="kept from"):
        make(copy)
