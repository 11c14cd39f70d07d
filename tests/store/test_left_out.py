"""Values that a row leaves out are zeros, whatever was in their place before."""

import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.store.packed_column import PackedColumn

CAPACITY = 40


def make(path, segment_rows=8):
    return SlotBuffer(
        path, facade="test", observation_space=Box(0, 255, (4,), "uint8"),
        action_space=Discrete(4), capacity=CAPACITY, segment_rows=segment_rows,
        extras={"packed": ((16,), "uint8"), "raw": ((3,), "float32"), "last": ((2,), "uint8")},
        compressor={"packed": "lz4", "last": "lz4"},
    )  # fmt: skip


def row(number, given):
    values = {"observation": np.full(4, number % 256, np.uint8), "reward": float(number)}
    if given:
        values["packed"] = np.full(16, 1 + number % 255, np.uint8)
        values["raw"] = np.full(3, 1 + number, np.float32)
        values["last"] = np.ones(2, np.uint8)
    return values


def check(buffer, rows):
    """`rows` says of each row that was ever added whether it was given."""
    numbers = np.arange(max(len(rows) - CAPACITY, 0), len(rows))
    given = np.array(rows, bool)[numbers]
    packed, raw, last = buffer.take(["packed", "raw", "last"], numbers)
    assert (packed == np.where(given, 1 + numbers % 255, 0)[:, None]).all()
    assert (raw == np.where(given, 1 + numbers, 0)[:, None]).all()
    assert (last == given[:, None]).all()
    np.testing.assert_array_equal(buffer.take("observation", numbers)[:, 0], numbers % 256)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
@pytest.mark.costly(1)
def test_rows_left_out_are_zeros(tmp_path, share):
    rng = np.random.default_rng(int(100 * share))
    path, rows, copies = tmp_path / "store", [], 0
    ring = make(path)
    for _ in range(40):
        for _ in range(rng.integers(1, 25)):
            rows.append(rng.random() < share)
            assert ring.put(row(len(rows) - 1, rows[-1])) == len(rows) - 1
        what = rng.choice(["look", "look", "seal", "flush", "reopen", "kill"])
        if what == "seal":
            ring._rows.store.maintenance.run()
        elif what == "flush":
            ring.flush()
            first = max(len(rows) - CAPACITY, 0)
            plain = ring.zarr()["packed"][first:, 0]
            np.testing.assert_array_equal(plain.any(axis=1), rows[first:])
        elif what == "reopen":
            ring.close()
            ring = make(path)
        elif what == "kill":
            with ring._rows.store.maintenance.lock:  # files are not renamed meanwhile
                shutil.copytree(path, tmp_path / f"copy{copies}")
            ring.close()
            path = tmp_path / f"copy{copies}"
            copies += 1
            ring = make(path)
        check(ring, rows)
        with diskreplay.open(path) as reader:
            check(reader, rows)
    ring.close()
    assert [str(finding) for finding in verify(path).findings] == []


def test_a_row_that_was_cut_before_its_commit(tmp_path):
    with make(tmp_path / "store") as ring:
        ring.put(row(0, False))
        with pytest.raises(ValueError, match="broadcast"):
            ring.put({**row(1, True), "last": np.ones(5, np.uint8)})
        ring.put(row(1, False))
        check(ring, [False, False])


def test_a_row_that_was_left_out_and_cut_and_is_given_then(tmp_path):
    with make(tmp_path / "store", segment_rows=16) as ring:
        for number in range(9):
            ring.put(row(number, False))
        with pytest.raises(ValueError, match="broadcast"):
            ring.put({**row(9, False), "last": np.ones(5, np.uint8)})
        ring.put(row(9, True))
        for number in range(10, 16):
            ring.put(row(number, False))
        ring._rows.store.maintenance.run()
        check(ring, [number == 9 for number in range(16)])


def test_rows_that_were_cut_before_their_commit(tmp_path, monkeypatch):
    with make(tmp_path / "store") as ring:
        rows = {name: np.ones((3, *s), d) for name, (s, d) in ring.fields.items()}
        rows |= {"is_final": np.zeros(3, bool), "step": np.arange(3)}

        def failing(self, env, start, values):
            raise KeyboardInterrupt

        monkeypatch.setattr(PackedColumn, "write", failing)
        with pytest.raises(KeyboardInterrupt):
            ring.extend(rows)
        for number in range(20):
            ring.put(row(number, False))
        check(ring, [False] * 20)


def test_a_writer_that_was_killed_amid_a_row(tmp_path):
    with make(tmp_path / "store") as ring:
        ring.put(row(0, True))
        for column in ring._rows.store.columns.values():
            column.write(0, 1, np.ones((1, *column.field.shape), column.field.dtype))  # no commit
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with make(tmp_path / "copy") as ring:
        for number in range(1, 20):
            ring.put(row(number, False))
        check(ring, [True] + [False] * 19)


def test_a_segment_is_the_same_file_whether_its_zeros_were_given_or_left_out(tmp_path):
    files = []
    for name, zeros in (("given", True), ("left out", False)):
        nothing = {"packed": np.zeros(16, np.uint8), "last": np.zeros(2, np.uint8)}
        with make(tmp_path / name) as ring:
            for number in range(32):
                given = number in (3, 17)
                fields = row(number, given)
                ring.put({**fields, **nothing} if zeros and not given else fields)
            ring._rows.store.maintenance.run()
            column = ring._rows.store.columns["packed"]
            files.append([column.files.paths.chunk(number, 0).read_bytes() for number in range(4)])
    assert files[0] == files[1]
