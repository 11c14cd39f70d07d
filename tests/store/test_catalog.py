"""Which rows count and which segments there are, beside plain loops."""

from itertools import islice

import numpy as np
import pytest

from diskreplay.errors import FormatError
from diskreplay.store.catalog import Catalog, is_still_sealed, keys_of, segments_of
from diskreplay.store.field import Field
from diskreplay.store.segment import Seal

SEALED = Seal(3, 4)


def random_case(rng, trial, **options):
    num_envs, group = (int(n) for n in rng.integers(1, 9, 2))
    field = Field("f", (), np.dtype("u1"), options.pop("compressor", "raw"),
                  int(rng.integers(1, 6)), min(group, num_envs), **options)  # fmt: skip
    first = rng.integers(0, 60, num_envs)
    return field, first, first + rng.integers(0, 1 + trial % 40, num_envs)


def has_rows(field, first, count):
    """Envs that have rows in each segment, by ``(number, group)``."""
    found = {}
    for env, (start, stop) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        for row in range(start, stop):
            key = row // field.segment_rows, env // field.env_group
            found.setdefault(key, set()).add(env)
    return found


@pytest.mark.parametrize("at_once", [1, 13, 1 << 16])
def test_the_segments_that_have_rows_and_which_envs_have_them(monkeypatch, at_once):
    monkeypatch.setattr("diskreplay.store.catalog._AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    for trial in range(300):
        field, first, count = random_case(rng, trial)
        expected = has_rows(field, first, count)
        found = list(segments_of(field, first, count))
        assert [key for key, _envs in found] == sorted(expected)
        for key, envs in found:
            assert envs.tolist() == sorted(expected[key])
        assert keys_of(field, first, count) == sorted(expected)


def test_who_looks_at_some_segments_waits_for_no_others():
    """More are counted, by numbers that have rotted, than memory holds."""
    field = Field("f", (), np.dtype("u1"), "raw", 4, 2)
    first, count = np.array([0, 0, 1 << 40]), np.array([1 << 61, 6, 1 << 61])
    found = islice(segments_of(field, first, count), 4)
    assert [(key, envs.tolist()) for key, envs in found] == [
        ((0, 0), [0, 1]), ((1, 0), [0, 1]), ((2, 0), [0]), ((3, 0), [0])
    ]  # fmt: skip


def test_segments_are_held_against_the_files(tmp_path, monkeypatch):
    """Many envs in one file count once: a store of 1,024 with 65,537 segments is no damaged one."""
    monkeypatch.setattr("diskreplay.store.catalog._MOST_LACKING", 10)
    field = Field("f", (), np.dtype("u1"), "raw", 4, 3)
    made = catalog(tmp_path, field, np.array([0, 0, 0]), np.array([60, 60, 60]))
    with pytest.raises(FormatError, match=r"rows 0 to 60 are counted, .* 'f' .* has 0:"):
        made.entries(field)
    paths = made.paths(field)
    for directory in (paths.directory, paths.open_segments):
        directory.mkdir(parents=True)
    paths.open_segment(14, 0).touch()
    for number in range(4):
        assert not paths.chunk(number, 0).exists()
        with pytest.raises(FormatError, match=f"has {number + 1}:"):
            made.entries(field)
        paths.chunk(number, 0).touch()
    assert [entry.number for entry in made.entries(field)] == list(range(15))
    rotten = catalog(tmp_path, field, np.array([0, 0, 0]), np.array([60, 60, 1 << 61]))
    with pytest.raises(FormatError, match="has 5:"):
        rotten.entries(field)


def catalog(tmp_path, field, first, count, **options):
    known = {
        "durable_count": count, "is_settled": False, "is_live": True,
        "packed": {"f": count // field.block_rows * field.block_rows}, "seals": {"f": {}},
    } | options  # fmt: skip
    return Catalog(tmp_path, (field,), first, count, **known)


@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_each_row_counts_is_retained_or_in_the_tail(tmp_path, compressor):
    rng = np.random.default_rng(2)
    for trial in range(60):
        field, first, count = random_case(rng, trial, compressor=compressor, block_rows=1)
        packed = count - rng.integers(0, 4, len(count)).clip(max=count)
        made = catalog(tmp_path, field, first, count, packed={"f": packed})
        entries = made.entries(field)
        assert [(e.number, e.group) for e in entries] == sorted(has_rows(field, first, count))
        for entry in entries:
            assert made.entry(field, entry.number, entry.group) is not None
            there = made.in_tail(entry)
            for place in range(field.env_group):
                env = entry.first_env + place
                for at in range(field.segment_rows):
                    row = entry.start + at
                    counts = env < len(count) and row < count[env]
                    assert entry.counted[at, place] == counts
                    assert entry.retained[at, place] == (counts and row >= first[env])
                    in_tail = counts and field.packed and row >= packed[env]
                    assert there[at, place] == in_tail
            whole = all(
                e < len(count) and count[e] >= entry.start + field.segment_rows
                for e in range(entry.first_env, entry.first_env + field.env_group)
            )
            assert entry.is_full == whole
        last = int(count.max()) // field.segment_rows + 1
        assert made.entry(field, last, 0) is None
        assert made.entry(field, 0, made.groups) is None


@pytest.mark.parametrize("same_boot", [False, True])
@pytest.mark.parametrize(
    ("durable", "count", "sealed", "if_same_boot"),
    [
        ([8, 8], [12, 12], True, True),  # every env had passed it
        ([7, 8], [7, 9], False, True),  # one had not, and has added nothing
        ([7, 8], [8, 8], False, False),  # it has: it may have gone on in a copy
        ([0, 30], [1, 30], False, False),
    ],
)
def test_a_recorded_seal_is_of_the_file_that_is_there(
    durable, count, sealed, if_same_boot, same_boot
):
    field = Field("f", (), np.dtype("u1"), "raw", 4, 2)
    found = is_still_sealed(field, (1, 0), np.array(durable), np.array(count), same_boot=same_boot)
    assert found == (if_same_boot if same_boot else sealed)
    mutable = Field("f", (), np.dtype("u1"), "raw", 4, 2, mutable=True)
    assert not is_still_sealed(
        mutable, (1, 0), np.array([99, 99]), np.array([99, 99]), same_boot=same_boot
    )


@pytest.mark.parametrize("is_settled", [False, True])
def test_of_a_store_that_was_closed_every_seal_holds(tmp_path, is_settled):
    field = Field("f", (), np.dtype("u1"), "raw", 4, 1)
    made = catalog(
        tmp_path, field, np.array([0]), np.array([7]), durable_count=np.array([5]),
        is_settled=is_settled, is_live=not is_settled,
        seals={"f": {(0, 0): SEALED, (1, 0): SEALED}},
    )  # fmt: skip
    assert made.segment(field, 0, 0).seal == SEALED
    assert made.segment(field, 1, 0).seal == (SEALED if is_settled else None)


@pytest.mark.parametrize(
    ("is_settled", "is_live", "found"),
    [(True, False, ["chunk"]), (False, True, ["open"]), (False, False, ["open", "chunk"])],
)
def test_where_blocks_are_looked_for(tmp_path, is_settled, is_live, found):
    """After a power cut in what was appended to, and then in what a flush had written."""
    field = Field("f", (), np.dtype("u1"), "lz4", 8, 1)
    made = catalog(
        tmp_path, field, np.array([0]), np.array([8]), is_settled=is_settled, is_live=is_live
    )
    entry, paths = made.entries(field)[0], made.paths(field)
    named = {"chunk": paths.chunk(0, 0), "open": paths.open_segment(0, 0)}
    assert made.shards(entry) == [named["chunk"]]
    for path in named.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    assert made.shards(entry) == [named[what] for what in found]
