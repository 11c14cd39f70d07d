"""A packed block that rots after it was read is never returned: its checksum is looked at each time
that it is decoded, by a writer, by a reader, and after a repair."""

import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import CorruptSegmentError

BLOCK, SEGMENT, SEGMENTS = 8, 64, 4
ROWS = SEGMENT * SEGMENTS
SHAPE = (16, 16)
OPTIONS = {
    "observation_space": Box(0, 255, SHAPE, "uint8"), "action_space": Discrete(3),
    "capacity": ROWS, "update_horizon": 2, "segment_rows": SEGMENT, "seed": 0,
}  # fmt: skip


def frames():
    """The frame of each row."""
    made = np.random.default_rng(1).integers(0, 4, (ROWS, *SHAPE), np.uint8)
    made[:, 0, :8] = np.arange(ROWS)[:, None].view(np.uint8)
    return made


def record(path, compressor):
    """A store of full segments only, one episode."""
    options = {**OPTIONS, "compressor": compressor, "stack_size": 3}
    with diskreplay.PrioritizedReplayBuffer(path, **options) as buffer:
        for number, frame in enumerate(frames()[:-1]):
            buffer.add(frame, number % 3, 1.0, False, False)
        buffer.add(frames()[-1], 0, 1.0, True, False)
    return path


def shards(path):
    found = sorted((path / "observation").glob("c.*"), key=lambda p: int(p.name.split(".")[1]))
    assert len(found) == SEGMENTS
    return found


def index_of(shard):
    """Offset and length of each block, as docs/format.md has it."""
    return np.frombuffer(shard.read_bytes()[: 16 * SEGMENT // BLOCK], "<u8").reshape(-1, 2)


def write_in_place(path, at, data):
    """Through the page cache, which the mappings of this file show at once."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path, at, bit):
    write_in_place(path, at, bytes([path.read_bytes()[at] ^ (1 << bit)]))


def read_all(buffer):
    ids = buffer.sampleable_ids()
    buffer.gather(ids)
    buffer.take("observation", np.arange(ROWS))
    for _ in range(20):
        buffer.sample(32)
    return ids


def never_wrong(buffer, ids, truth, *, rotten):
    """Each row is as recorded or refused; those of `rotten` rows are refused."""
    for row in range(ROWS):
        try:
            found = buffer.take("observation", np.array([row]))[0]
        except CorruptSegmentError:
            assert row in rotten
        else:
            assert row not in rotten
            np.testing.assert_array_equal(found, truth[row])
    for id_ in ids.tolist():
        window = range(max(0, id_ - 2), min(id_ + 3, ROWS))
        if rotten.intersection(window):
            with pytest.raises(CorruptSegmentError, match="field 'observation', env 0, rows"):
                buffer.gather(np.array([id_]))
        else:
            batch = buffer.gather(np.array([id_]))
            np.testing.assert_array_equal(batch.observation[0, -1], truth[id_])
    with pytest.raises(CorruptSegmentError):
        buffer.sample(4096)


@pytest.mark.costly(1)
@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("compressor", ["lz4", "zstd"])
def test_no_block_that_rots_after_it_was_read_is_returned(tmp_path, compressor, mode):
    truth = frames()
    path = record(tmp_path / "store", compressor)
    with diskreplay.open(path, mode=mode) as buffer:
        ids = read_all(buffer)
        rotten, random = set(), np.random.default_rng(2)
        for segment, shard in enumerate(shards(path)):
            for block, (offset, length) in enumerate(index_of(shard).tolist()):
                if (segment + block) % 3 == 0:
                    flip(shard, offset + int(random.integers(length)), int(random.integers(8)))
                    first = segment * SEGMENT + block * BLOCK
                    rotten |= set(range(first, first + BLOCK))
        never_wrong(buffer, ids, truth, rotten=rotten)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_an_index_that_rots_after_it_was_read_is_not_gone_by(tmp_path, mode):
    """What it said when the file was mapped is; the next one to open the store is told."""
    truth = frames()
    path = record(tmp_path / "store", "lz4")
    with diskreplay.open(path, mode=mode) as buffer:
        ids = read_all(buffer)
        shard = shards(path)[1]
        entries = index_of(shard).copy()
        entries[[2, 3]] = entries[[3, 2]]
        entries[6] = entries[0]
        write_in_place(shard, 0, entries.tobytes())
        np.testing.assert_array_equal(buffer.take("observation", np.arange(ROWS)), truth)
        np.testing.assert_array_equal(buffer.gather(ids).observation[:, -1], truth[ids])
    with pytest.raises(CorruptSegmentError, match="index"):
        diskreplay.open(path, mode=mode)
    assert {finding.path for finding in verify(path).findings} == {shard}


def test_blocks_that_rot_after_a_repair(tmp_path):
    truth = frames()
    path = record(tmp_path / "store", "lz4")
    flip(shards(path)[0], 40, 3)
    repair(path)
    assert verify(path).findings == ()
    with diskreplay.open(path, mode="a") as buffer:
        ids = buffer.sampleable_ids()
        assert len(ids) > ROWS // 2
        batch = buffer.gather(ids)
        np.testing.assert_array_equal(batch.observation[:, -1], truth[ids])
        shard = shards(path)[2]
        for offset, length in index_of(shard).tolist():
            flip(shard, offset + length // 2, 0)
        for id_ in ids.tolist():
            window = range(max(0, id_ - 2), min(id_ + 3, ROWS))
            if any(2 * SEGMENT <= row < 3 * SEGMENT for row in window):
                with pytest.raises(CorruptSegmentError):
                    buffer.gather(np.array([id_]))
            else:
                found = buffer.gather(np.array([id_])).observation[0, -1]
                np.testing.assert_array_equal(found, truth[id_])


def test_a_checkpoint_s_blocks_rot_with_the_store_s(tmp_path):
    """Both are one inode; each refuses what it decodes."""
    path = record(tmp_path / "store", "lz4")
    with diskreplay.open(path, mode="a") as buffer:
        buffer.save(tmp_path / "saved", 1)
        with diskreplay.open(tmp_path / "saved" / "replay_ckpt.1") as saved:
            ids = saved.sampleable_ids()
            saved.gather(ids)
            buffer.gather(ids)
            for shard in shards(path):
                for offset, length in index_of(shard).tolist():
                    flip(shard, offset + length // 2, 0)
            for each in (buffer, saved):
                with pytest.raises(CorruptSegmentError):
                    each.gather(ids)
    shutil.rmtree(tmp_path / "saved")
