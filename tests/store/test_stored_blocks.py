"""Rows that are sent in their blocks, beside the rows as they were added."""

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

import diskreplay
from diskreplay.errors import CorruptSegmentError
from diskreplay.store import batch_kernels
from diskreplay.store.stored_blocks import BlockColumn, StoredBlocks, blocks_of

ROWS, SEGMENT, MOST = 150, 64, 1 << 30


class Rows:
    """A buffer, its column of frames, and the frames as they were added: (rows, envs, 12, 12)."""

    def __init__(self, path, compressor, envs, rows=ROWS):
        rng = np.random.default_rng(0)
        self.frames = rng.integers(0, 4, (rows, envs, 12, 12), np.uint8) * np.uint8(50)
        self.buffer = diskreplay.ReplayBuffer(
            path, observation_space=Box(0, 255, (12, 12), "uint8"), action_space=Discrete(3),
            num_envs=envs, compressor={"observation": compressor}, capacity=None,
            segment_rows=SEGMENT,
        )  # fmt: skip
        for row in range(rows):
            each = self.frames[row] if envs > 1 else self.frames[row, 0]
            many = (np.full(envs, 0) if envs > 1 else 0 for _ in range(4))
            action, reward, terminated, truncated = many
            self.buffer.add(each, action, reward, terminated != 0, truncated != 0)
        self.buffer.flush()
        self.column = self.buffer._rows.store.columns["observation"]

    def sent(self, spans, most=MOST):
        advice, rusage = np.zeros(2, np.int64), np.zeros(32, np.int64)
        return StoredBlocks.of(self.column, np.array(spans, np.int64), most, advice, rusage)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.buffer.close()


@pytest.fixture(scope="module", params=[("lz4", 1), ("zstd", 1), ("lz4", 3)], ids=str)
def rows(request, tmp_path_factory):
    with Rows(tmp_path_factory.mktemp("rows") / "store", *request.param) as made:
        yield made


def read(column, spans):
    """The rows of each span."""
    found = []
    for number, (_env, start, stop) in enumerate(spans):
        begin = start - start % column.field.block_rows
        ids = (np.arange(start, stop) - begin) * column.num_envs + number
        out = np.zeros((stop - start, 12, 12), np.uint8)
        scratch = column.scratch(len(ids))
        failed = batch_kernels.take(column.table.array, ids, out.reshape(-1), scratch)
        if failed:
            column.complain(*divmod(-(1 + failed), column.num_envs))
        found.append(out)
    return found


def some_spans(envs):
    row = st.integers(0, ROWS - 1)
    return st.lists(
        st.tuples(st.integers(0, envs - 1), row, st.integers(1, 30)).map(
            lambda each: (each[0], each[1], min(each[1] + each[2], ROWS))
        ),
        min_size=1, max_size=12,
    )  # fmt: skip


@given(data=st.data())
def test_each_span_comes_as_it_was_added(rows, data):
    """Also those in the tail, and those across segments; of two parts."""
    envs = rows.buffer.num_envs
    parts = [data.draw(some_spans(envs)) for _ in range(2)]
    sent = pickle.loads(pickle.dumps([rows.sent(spans) for spans in parts], 5))
    column = BlockColumn(sent, [np.array(spans) for spans in parts])
    spans = parts[0] + parts[1]
    assert column.num_envs == len(spans)
    for (env, start, stop), found in zip(spans, read(column, spans), strict=True):
        np.testing.assert_array_equal(found, rows.frames[start:stop, env])


def test_some_rows_are_in_the_tail_and_others_not(rows):
    """Else the test above would show less than it says."""
    assert (rows.column.tail.packed > 8).all()
    assert (rows.column.tail.packed < ROWS).all()


def test_what_is_in_a_shard_is_sent_as_it_is_there(rows):
    """Byte by byte, beside the file."""
    size = rows.column.field.block_rows
    env = rows.buffer.num_envs - 1
    sent = rows.sent([(env, 0, 2 * size)])
    assert len(sent.lengths) == 2
    file, at = (rows.buffer.path / "observation/c.0.0.0.0").read_bytes(), 0
    for length in sent.lengths.tolist():
        block = sent.data[at : at + length].tobytes()
        assert block in file
        at += length


def test_more_bytes_than_asked_for_are_not_sent(rows):
    spans = [(0, 0, 5), (0, 9, 12)]
    whole = rows.sent(spans)
    assert rows.sent(spans, len(whole.data)).data.tobytes() == whole.data.tobytes()
    assert rows.sent(spans, len(whole.data) - 1) is None
    assert whole.nbytes == whole.data.nbytes + 16


def test_rows_that_are_not_there_are_refused_by_name():
    with Rows(None, "lz4", 2) as evicted:
        evicted.buffer.evict(np.full(2, SEGMENT + 9))
        evicted.buffer.flush()
        assert evicted.sent([(1, SEGMENT + 9, SEGMENT + 20)]) is not None
        with pytest.raises(CorruptSegmentError, match=r"observation.*rows 5 to 5 of env 1"):
            evicted.sent([(1, 5, 9)])


@pytest.mark.parametrize("compressor", ["lz4", "zstd"])
def test_a_block_that_rots_is_refused_where_its_file_is(tmp_path, compressor):
    with Rows(tmp_path / "store", compressor, 1) as rows:
        size = rows.column.field.block_rows
        block = rows.sent([(0, size, 2 * size)]).data.tobytes()
        path = tmp_path / "store/observation/c.0.0.0.0"
        at = path.read_bytes().index(block)
        with path.open("r+b") as file:  # which is mapped
            file.seek(at + len(block) // 2)
            file.write(bytes([block[len(block) // 2] ^ 1]))
        assert rows.sent([(0, 0, size)]) is not None
        with pytest.raises(CorruptSegmentError, match=r"c\.0\.0\.0\.0"):
            rows.sent([(0, size + 2, size + 3)])


@given(data=st.data())
def test_any_damage_on_the_way_is_noticed(rows, data):
    spans = [(0, 3, 11), (0, 100, 101), (0, ROWS - 2, ROWS)]
    sent = rows.sent(spans)
    damaged = sent.data.copy()
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    column = BlockColumn([sent._replace(data=damaged)], [np.array(spans)])
    with pytest.raises(CorruptSegmentError, match=r"observation.*damaged on its way"):
        read(column, spans)


def test_other_blocks_than_expected_are_refused(rows):
    spans = [(0, 3, 11), (0, 100, 101)]
    sent, planned = rows.sent(spans), [np.array(spans)]
    lengths = sent.lengths.copy()
    lengths[0] += 1
    for wrong in (
        sent._replace(lengths=sent.lengths[:-1]),
        sent._replace(lengths=lengths),
        sent._replace(data=sent.data[:-1]),
        sent._replace(lengths=np.array([-9, 9 + len(sent.data), 0])),
    ):
        with pytest.raises(CorruptSegmentError, match="other blocks came"):
            BlockColumn([wrong], planned)
    with pytest.raises(CorruptSegmentError, match="other blocks came"):
        BlockColumn([sent], [np.array([(0, 0, 99)])])


def test_how_many_blocks_a_span_has(rows):
    """Beside the set of the blocks of its rows."""
    size = rows.column.field.block_rows
    spans = [(0, start, stop) for start in range(20) for stop in range(start + 1, 40)]
    found = blocks_of(rows.column.field, np.array(spans))
    wanted = [len({row // size for row in range(start, stop)}) for _, start, stop in spans]
    assert found.tolist() == wanted
