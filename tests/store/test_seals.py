"""What a field's metadata say of its files, written and read back."""

import json

import numpy as np
import pytest

from diskreplay.store import codec
from diskreplay.store.field import Field
from diskreplay.store.seals import parse_seals, seal_entries
from diskreplay.store.segment import Seal

RAW = Field("f", (), np.dtype("u1"), "raw", 10_000, 2)  # in five pieces of 4096 bytes
PACKED = Field("f", (), np.dtype("u1"), "lz4", 10_000, 2)
PIECES = codec.packed_sums([1, 2, 3, 4, 2**32 - 1])
ENVS = 5  # groups 0, 1 and 2


def test_what_is_written_comes_back():
    seals = {(11, 0): Seal(7, 8), (2, 2): Seal(20_000, 2**32 - 1, PIECES), (2, 1): Seal(0, 0)}
    entries = json.loads(json.dumps(seal_entries(seals)))
    assert entries == {"2/1": [0, 0], "2/2": [20_000, 2**32 - 1, PIECES], "11/0": [7, 8]}
    assert list(entries) == ["2/1", "2/2", "11/0"]  # in the order of their numbers
    found = parse_seals(RAW, entries, ENVS)
    assert found == seals
    assert [found[key].pieces for key in sorted(found)] == ["", PIECES, ""]
    assert parse_seals(RAW, {}, ENVS) == {}


@pytest.mark.parametrize(
    "key",
    ["", "1", "1/", "/1", "1/0/0", "-1/0", "1/-1", " 1/0", "1/0 ", "1.0/0", "a/0", "1/0\n", "+1/0",
     "1" * 20 + "/0", "\u0661/0"],
)  # fmt: skip
def test_a_key_that_names_no_segment(key):
    with pytest.raises(ValueError, match=r"seal .* is damaged"):
        parse_seals(RAW, {key: [1, 2]}, ENVS)


def test_a_group_that_there_is_not():
    assert parse_seals(RAW, {"0/2": [1, 2]}, ENVS) == {(0, 2): Seal(1, 2)}
    with pytest.raises(ValueError, match="of no group of envs"):
        parse_seals(RAW, {"0/3": [1, 2]}, ENVS)


@pytest.mark.parametrize(
    "entry",
    [[], [1], 5, None, "12", [1, -1], [-1, 1], [1, 2**32], [2**62 + 1, 1], [1.0, 1], [True, 1],
     ["1", 1], [1, None], {"a": 1}],
)  # fmt: skip
def test_an_entry_that_is_no_seal(entry):
    with pytest.raises((ValueError, TypeError)):
        parse_seals(RAW, {"0/0": entry}, ENVS)


@pytest.mark.parametrize("entries", [[], [["0/0", [1, 2]]], None, 3, "0/0"])
def test_what_is_no_object(entries):
    with pytest.raises(AttributeError):
        parse_seals(RAW, entries, ENVS)


@pytest.mark.parametrize(
    "pieces",
    [codec.packed_sums([1, 2, 3, 4]), codec.packed_sums([1] * 6), PIECES[:-1], PIECES + "!",
     "AAA=", 5, None, [1, 2, 3, 4, 5], ""],
)  # fmt: skip
def test_checksums_of_other_pieces_than_there_are(pieces):
    with pytest.raises(ValueError, match="checksums of the pieces of seal '0/0' are damaged"):
        parse_seals(RAW, {"0/0": [1, 2, pieces]}, ENVS)


def test_packed_segments_have_no_pieces_and_no_seal_has_a_fourth_part():
    for field, more in ((PACKED, [PIECES]), (RAW, [PIECES, PIECES])):
        with pytest.raises(ValueError, match="are damaged"):
            parse_seals(field, {"0/0": [1, 2, *more]}, ENVS)
