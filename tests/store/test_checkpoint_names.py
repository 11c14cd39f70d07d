"""Names of checkpoints: which are taken, and which one is found."""

import re

import numpy as np
import pytest

from diskreplay.errors import CheckpointNotFoundError, InvalidInputError, SuffixError
from diskreplay.store import checkpoint_names, manifest


def put(directory, *names):
    """Checkpoints as far as their names go."""
    for name in names:
        listing = directory / name / manifest.NAME
        listing.parent.mkdir(parents=True)
        listing.write_text("{}")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [(0, "0"), (7, "7"), (np.int64(12), "12"), (np.uint8(3), "3"), ("007", "007"),
     ("a.b-c_D", "a.b-c_D"),
     ("x" * 100, "x" * 100), ("-1", "-1")],
)  # fmt: skip
def test_a_suffix_becomes_text(suffix, text):
    assert checkpoint_names.checked_suffix(suffix) == text


@pytest.mark.parametrize(
    "suffix",
    [
        -1,
        np.int64(-3),
        np.timedelta64(3, "s"),
        True,
        None,
        1.0,
        b"1",
        "",
        ".a",
        "a/b",
        "a b",
        "a\n",
        "ü",
        "x" * 101,
        ["1"],
    ],
)
def test_a_suffix_that_is_no_name_is_refused(suffix):
    with pytest.raises(SuffixError, match="checkpoint suffix"):
        checkpoint_names.checked_suffix(suffix)


def test_how_many_are_kept():
    assert checkpoint_names.checked_keep(None) is None
    kept = checkpoint_names.checked_keep(np.int32(3))
    assert kept == 3 and type(kept) is int  # noqa: PT018 - of one value
    for keep in (0, -1, True, 1.5, "2"):
        with pytest.raises(InvalidInputError, match="keep: a positive integer or None"):
            checkpoint_names.checked_keep(keep)


def test_numbers_are_in_their_order_and_each_text_is_a_checkpoint(tmp_path):
    put(tmp_path, *(f"b_ckpt.{n}" for n in ("10", "9", "007", "7", "x", "1x")), "bb_ckpt.99")
    found = checkpoint_names.numbered(tmp_path.iterdir(), "b")
    assert [number for number, _path in found] == [7, 7, 9, 10]
    assert {path.name for _number, path in found[:2]} == {"b_ckpt.7", "b_ckpt.007"}


def test_a_name_is_no_pattern(tmp_path):
    put(tmp_path, "a+b_ckpt.1", "aab_ckpt.2")
    assert [n for n, _path in checkpoint_names.numbered(tmp_path.iterdir(), "a+b")] == [1]
    assert re.fullmatch(checkpoint_names.pattern_of("a+b"), "a+b_ckpt.1")
    assert not re.fullmatch(checkpoint_names.pattern_of("a+b"), "aab_ckpt.1")


def test_all_but_the_highest_are_retired(tmp_path):
    put(tmp_path, *(f"b_ckpt.{n}" for n in (1, 2, 10)), "b_ckpt.best", "c_ckpt.0")
    (tmp_path / "b_ckpt.0").write_text("a file")
    for keep, expected in ((1, [1, 2]), (2, [1]), (3, []), (9, [])):
        retired = checkpoint_names.retired(tmp_path, "b", keep)
        assert retired == [tmp_path / f"b_ckpt.{n}" for n in expected]
    assert checkpoint_names.retired(tmp_path / "missing", "b", 1) == []


def test_the_highest_number_or_the_one_that_is_asked_for_is_found(tmp_path):
    put(tmp_path, "b_ckpt.9", "b_ckpt.10", "b_ckpt.best", "c_ckpt.11")
    assert checkpoint_names.find(tmp_path, "b", None) == (tmp_path / "b_ckpt.10", "10")
    assert checkpoint_names.find(tmp_path, "b", 9) == (tmp_path / "b_ckpt.9", "9")
    assert checkpoint_names.find(tmp_path, "b", "best") == (tmp_path / "b_ckpt.best", "best")
    place = tmp_path / "b_ckpt.9"
    assert checkpoint_names.find(place, "another", None) == (place, "9")
    with pytest.raises(CheckpointNotFoundError, match=r"leave the suffix out .* or give "):
        checkpoint_names.find(place, "b", 9)


def test_a_link_is_followed(tmp_path):
    put(tmp_path / "away", "b_ckpt.3")
    (tmp_path / "b_ckpt.4").symlink_to(tmp_path / "away" / "b_ckpt.3")
    assert checkpoint_names.find(tmp_path, "b", 4) == (tmp_path / "away" / "b_ckpt.3", "4")


def test_what_is_not_there_is_said_with_what_is(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="there is no such directory"):
        checkpoint_names.find(tmp_path / "missing", "b", None)
    with pytest.raises(CheckpointNotFoundError, match=r"no numbered checkpoint of 'b' in it$"):
        checkpoint_names.find(tmp_path, "b", None)
    put(tmp_path, "c_ckpt.1", "d_ckpt.1")
    with pytest.raises(CheckpointNotFoundError, match="there are some of 'c', 'd': give the buf"):
        checkpoint_names.find(tmp_path, "b", None)
    put(tmp_path, "b_ckpt.2", "b_ckpt.30")
    with pytest.raises(CheckpointNotFoundError, match=r"\(numbered ones there: 2, 30\)$"):
        checkpoint_names.find(tmp_path, "b", 3)
