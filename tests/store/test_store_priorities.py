"""Leaf priorities on disk beside plain arrays, and beside Zarr."""

import json

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import FormatError
from diskreplay.store import priorities, private
from tests.effort import effort


def leaves_of(rows, envs, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, envs)) < 0.2, np.nan, rng.random((rows, envs)))


@settings(max_examples=effort(25, 80, 400))
@given(st.integers(0, 700), st.integers(1, 5), st.integers(0, 3000))
def test_what_is_written_is_read(tmp_path_factory, rows, envs, start):
    directory, leaves = tmp_path_factory.mktemp("set") / "priority", leaves_of(rows, envs)
    written = priorities.write(directory, priorities.Unsaved(leaves, 0.5), start)
    assert set(directory.iterdir()) == set(written)
    for path, seal in written.items():
        data = path.read_bytes()
        assert (seal.size, seal.crc32c) == (len(data), google_crc32c.value(data))
    found = priorities.read(directory, envs)
    if not rows:
        return
    assert found.alpha == 0.5
    assert found.start <= start
    assert len(found.leaves) == start + rows - found.start
    assert np.isnan(found.leaves[: start - found.start]).all()
    np.testing.assert_array_equal(found.leaves[start - found.start :], leaves)
    with_zarr = zarr.open_array(directory, mode="r")
    assert with_zarr.shape == (start + rows, envs)
    np.testing.assert_array_equal(with_zarr[start:], leaves)


@pytest.mark.parametrize("envs", [1, 3, 16, 1000, 200_000])
def test_chunks_are_as_large_as_small_buffers_and_no_larger_than_a_mebibyte(envs):
    for rows in (0, 1, 100, 513, 5000, 10**6):
        chunk = priorities.chunk_rows(rows, envs)
        values = chunk * envs
        assert chunk >= 1
        assert values <= max(131_072, envs)
        if 512 < rows * envs <= 131_072 and envs <= 512:
            assert chunk + 1 > rows / 2  # one chunk or two have all
            assert values < 2 * rows * envs + envs
        if rows * envs <= 512 and envs <= 512:
            assert 512 - envs < values <= 512


def test_chunks_that_are_the_same_are_linked(tmp_path):
    leaves = leaves_of(3000, 2)
    one, other = tmp_path / "one", tmp_path / "other"
    first = priorities.write(one, priorities.Unsaved(leaves, None), 0)
    leaves[-1, 0] = 7.0
    second = priorities.write(other, priorities.Unsaved(leaves, None), 0, known=one)
    same = [path.name for path in first if path.samefile(other / path.name)]
    changed = priorities.format.priority_key(2999 // priorities.chunk_rows(3000, 2))
    assert set(same) == {path.name for path in first} - {changed, "zarr.json"}
    assert {p.name: s for p, s in second.items() if p.name in same} == {
        p.name: s for p, s in first.items() if p.name in same
    }
    np.testing.assert_array_equal(priorities.read(other, 2).leaves, leaves)
    priorities.write(
        tmp_path / "more", priorities.Unsaved(leaves, None), 0, known=tmp_path / "nothing"
    )
    np.testing.assert_array_equal(priorities.read(tmp_path / "more", 2).leaves, leaves)


def test_what_an_owner_says_of_leaves_is_with_them(tmp_path):
    leaves, notes = leaves_of(10, 1), {"alpha": 0.5, "eps": 0.25}
    priorities.replace(tmp_path, "priority", priorities.Unsaved(leaves, None, notes), 0)
    found = priorities.read(tmp_path / "priority", 1)
    assert (found.alpha, found.notes, found.made_by) == (None, notes, (None, 0.5, 0.25))
    priorities.replace(tmp_path, "priority", priorities.Unsaved(leaves, 0.5), 0)
    assert priorities.read(tmp_path / "priority", 1).notes == {}


@pytest.mark.parametrize("bad", [-1.0, np.inf, -np.inf, 2e297])
def test_leaves_that_nobody_can_have_saved(tmp_path, bad):
    leaves = leaves_of(600, 2)
    leaves[517, 1] = bad
    assert priorities.unlikely(leaves).sum() == 1
    assert not priorities.unlikely(np.array([0.0, np.nan, priorities.LARGEST_LEAF])).any()
    priorities.write(tmp_path / "p", priorities.Unsaved(leaves, 1.0), 0)
    with pytest.raises(FormatError, match="row 517 of env 1 has the priority"):
        priorities.read(tmp_path / "p", 2)


def test_files_that_are_damaged_are_refused(tmp_path):
    path = tmp_path / "p"
    assert priorities.read(path, 1) is None
    priorities.write(path, priorities.Unsaved(leaves_of(1000, 1), 1.0), 0)
    with pytest.raises(FormatError):
        priorities.read(path, 2)
    document = json.loads((path / "zarr.json").read_text())
    for change in ({"shape": [-1, 1]}, {"shape": [1000, 2]}, {"data_type": "float32"},
                   {"attributes": {"diskreplay": {"alpha": -1.0}}},
                   {"attributes": {"diskreplay": {"notes": {"eps": "0"}}}},
                   {"attributes": {"diskreplay": {"notes": [0.5]}}}):  # fmt: skip
        (path / "zarr.json").write_text(json.dumps(document | change))
        with pytest.raises(FormatError):
            priorities.read(path, 1)
    (path / "zarr.json").write_text(json.dumps(document))
    (chunk,) = (each for each in path.iterdir() if each.name != "zarr.json")
    chunk.write_bytes(chunk.read_bytes()[:-8])
    with pytest.raises(FormatError, match="bytes expected"):
        priorities.read(path, 1)


def test_names_of_sets():
    assert priorities.set_name("even") == "priority.even"
    for name, is_one in (("priority", True), ("priority.even", True), ("priorities", False),
                         ("priority_", False), ("reward", False)):  # fmt: skip
        assert priorities.is_set(name) == is_one


@pytest.mark.parametrize("there", [False, True])
def test_a_set_takes_the_place_of_another_as_a_whole(tmp_path, there):
    private.directory(tmp_path).mkdir(parents=True)
    old, new = leaves_of(700, 1, 1), leaves_of(900, 1, 2)
    if there:
        priorities.replace(tmp_path, "priority.even", priorities.Unsaved(old, None), 0)
    priorities.replace(tmp_path, "priority.even", priorities.Unsaved(new, 0.25), 0)
    found = priorities.read(tmp_path / "priority.even", 1)
    np.testing.assert_array_equal(found.leaves, new)
    assert found.alpha == 0.25
    assert priorities.sets(tmp_path) == ["priority.even"]
    assert not private.new_priorities(tmp_path, "priority.even").exists()
    priorities.write(tmp_path / "ck" / "priority", priorities.Unsaved(old, 1.0), 0)
    synced = priorities.share(tmp_path, tmp_path / "ck" / "priority")
    assert synced == [private.new_priorities(tmp_path, "priority")]
    priorities.put_in_place(tmp_path, "priority")
    np.testing.assert_array_equal(priorities.read(tmp_path / "priority", 1).leaves, old)
    assert priorities.sets(tmp_path) == ["priority", "priority.even"]
    for path in (tmp_path / "ck" / "priority").iterdir():
        assert path.samefile(tmp_path / "priority" / path.name)


@pytest.mark.parametrize("has_new", [False, True])
def test_an_exchange_that_was_cut_is_finished(tmp_path, has_new):
    private.directory(tmp_path).mkdir(parents=True)
    aside = private.old_priorities(tmp_path, "priority")
    priorities.write(aside, priorities.Unsaved(leaves_of(10, 1, 1), None), 0)
    if has_new:
        priorities.write(tmp_path / "priority", priorities.Unsaved(leaves_of(20, 1, 2), None), 0)
    priorities.finish_exchanges(tmp_path)
    assert not aside.exists()
    found = priorities.read(tmp_path / "priority", 1).leaves
    np.testing.assert_array_equal(found, leaves_of(20, 1, 2) if has_new else leaves_of(10, 1, 1))
