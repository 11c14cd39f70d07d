"""Sealed raw segments have checksums in pieces: rot costs the rows of one piece."""

import base64
import json
import math
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify

ROWS, SEGMENT = 40_000, 16_384


def make_store(directory):
    with diskreplay.ReplayBuffer(
        directory / "store", observation_space=Box(-1, 1, (3,), "float32"),
        action_space=Discrete(5), capacity=None, segment_rows=SEGMENT, seed=0,
    ) as buffer:  # fmt: skip
        rows = np.arange(ROWS)
        buffer.extend({
            "observation": rows[:, None] * np.ones(3, np.float32), "action": rows % 5,
            "reward": rows.astype(np.float32), "terminated": rows % 10 == 9,
            "truncated": np.zeros(ROWS, bool), "step": rows % 10, "is_final": np.zeros(ROWS, bool),
        })  # fmt: skip
        buffer.save(directory / "ckpt", 1)


@pytest.fixture
def store(filled, tmp_path):
    filled(make_store)
    return tmp_path / "store"


def flip(path, offset):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def document(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]


@pytest.mark.parametrize("where", ["store", "ckpt/replay_ckpt.1"])
def test_each_seal_has_the_checksums_of_its_pieces(store, where):
    root, seen = store.parent / where, 0
    for field in ("observation", "reward", "terminated", "step"):
        for key, (size, crc, pieces) in document(root / field)["seals"].items():
            data = (
                root / field / f"c.{key.replace('/', '.')}{'.0' * (field[0] == 'o')}"
            ).read_bytes()
            length = max(4096, math.ceil(len(data) / 256))
            expected = [
                google_crc32c.value(data[at : at + length]) for at in range(0, len(data), length)
            ]
            assert (size, crc) == (len(data), google_crc32c.value(data))
            assert np.frombuffer(base64.b64decode(pieces), "<u4").tolist() == expected
            seen += len(expected)
    assert seen > 100


@pytest.mark.parametrize(
    ("field", "row_bytes"), [("reward", 4), ("observation", 12), ("action", 8), ("truncated", 1)]
)
def test_a_flipped_byte_costs_one_piece(store, field, row_bytes):
    path = store / field / ("c.1.0.0" if field == "observation" else "c.1.0")
    offset = min(10_000, path.stat().st_size - 1)
    flip(path, offset)
    (finding,) = [f for f in verify(store).findings if f.kind == "checksum"]
    assert (finding.path, finding.field) == (path, field)
    ((env, start, stop),) = finding.rows
    assert env == 0
    begin = offset // 4096 * 4096
    assert (start, stop) == (
        SEGMENT + begin // row_bytes, SEGMENT + math.ceil((begin + 4096) / row_bytes)
    )  # fmt: skip
    report = repair(store)
    assert report.set_aside == (stop - start,)
    assert verify(store).findings == ()
    with diskreplay.open(store) as buffer:
        kept = np.delete(np.arange(ROWS), np.arange(start, stop))
        np.testing.assert_array_equal(buffer.take("reward", kept), kept)
        lost = buffer.sampleable_ids()
        assert not np.isin(np.arange(start, stop), lost).any()


def test_a_byte_on_the_edge_of_two_pieces_costs_the_row_once(store):
    path = store / "observation" / "c.0.0.0"
    flip(path, 4095)  # of row 341, which goes on in the next piece
    flip(path, 4096)
    (finding,) = verify(store).findings
    assert finding.rows == ((0, 0, math.ceil(8192 / 12)),)


def test_rot_in_the_checksums_costs_no_row(store):
    path = store / "reward" / "zarr.json"
    text = path.read_text()
    attributes = document(path.parent)
    _size, crc, pieces = attributes["seals"]["0/0"]
    sums = base64.b64decode(pieces)
    flipped = base64.b64encode(bytes([sums[0] ^ 1]) + sums[1:]).decode()
    for old, new in (
        (pieces, flipped), (f"{crc}, ", f"{crc ^ 1}, "), (pieces, pieces[:-8]),
        (pieces, "?" + pieces[1:]),
    ):  # fmt: skip
        harm = text.replace(old, new)
        assert harm != text
        path.write_text(harm)
        assert verify(store).findings
        assert repair(store).set_aside == (0,)
        assert verify(store).findings == ()
    with diskreplay.open(store) as buffer:
        np.testing.assert_array_equal(buffer.take("reward", np.arange(ROWS)), np.arange(ROWS))


def test_without_pieces_the_whole_segment_is_doubtful(store):
    """As versions wrote it that had none."""
    for path in store.glob("*/zarr.json"):
        whole = json.loads(path.read_text())
        for entry in whole["attributes"].get("diskreplay", {}).get("seals", {}).values():
            del entry[2:]
        path.write_text(json.dumps(whole))
    assert verify(store).findings == ()
    flip(store / "reward" / "c.1.0", 5)
    (finding,) = verify(store).findings
    assert finding.rows == ((0, SEGMENT, 2 * SEGMENT),)
    diskreplay.open(store, mode="a").close()
    assert Path(store / "reward" / "zarr.json").exists()


@pytest.mark.parametrize("change", [1, -1, -4000])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_file_of_another_length_costs_what_its_checksums_do_not_vouch_for(store, change, is_last):
    """A byte too many, or some too few: nothing of the rest is doubted."""
    path = sorted((store / "reward").glob("c.*"), key=lambda p: int(p.name.split(".")[1]))[
        -1 if is_last else 0
    ]
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data + b"x" if change > 0 else data[:change])
    assert path in {finding.path for finding in verify(store).findings}
    report = repair(store)
    # Behind the rows of the last segment there are zeros, as there are behind the end of a file.
    lost = 0 if change > 0 or is_last else -(-len(data) // 256) // 4
    piece = max(4096, math.ceil(len(data) / 256)) // 4
    assert sum(report.set_aside) <= (2 * piece + 12 if lost else 0)
    assert verify(store).clean
    with diskreplay.open(store) as reader:
        kept = np.flatnonzero(~reader.take("is_final", np.arange(ROWS)))
        assert (reader.take("reward", kept) == kept).all()
        assert len(kept) >= ROWS - sum(report.set_aside)


def test_rot_in_a_file_that_has_grown_is_found(store):
    path = store / "reward" / "c.0.0"
    flip(path, 4 * 9000)
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert 0 < sum(repair(store).set_aside) < 2 * 4096
    with diskreplay.open(store) as reader:
        kept = np.flatnonzero(~reader.take("is_final", np.arange(ROWS)))
        assert (reader.take("reward", kept) == kept).all()
