"""A field of zeros for rows that are there, as plain Zarr readers and the catalog find it."""

import json

import google_crc32c
import numpy as np
import pytest
import zarr

from diskreplay.store import codec, format, zeros
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.paths import is_in_memory
from diskreplay.store.seals import parse_seals


@pytest.mark.parametrize("compressor", ["raw", "lz4", "zstd"])
@pytest.mark.parametrize(("num_envs", "group"), [(1, 1), (3, 3), (5, 2)])
def test_rows_that_are_there_are_zeros_and_no_file_says_more(tmp_path, compressor, num_envs, group):
    field = Field("a/f", (3,), np.dtype("i2"), compressor, 16, group, 4)
    rng = np.random.default_rng(num_envs)
    first = rng.integers(0, 40, num_envs)
    count = first + rng.integers(0, 40, num_envs)
    (tmp_path / "zarr.json").write_bytes(format.encode(format.group_document({})))
    zeros.write(tmp_path, field, first, count)
    array = zarr.open_array(tmp_path / "a" / "f", mode="r")
    assert array.shape == (int(count.max()), num_envs, 3)
    assert not array[:].any()
    there = {
        (row // 16, env // group)
        for env in range(num_envs) for row in range(int(first[env]), int(count[env]))
    }  # fmt: skip
    files = {path.name: path for path in (tmp_path / "a" / "f").iterdir()}
    assert files.keys() == {"zarr.json", *(field.chunk_key(*key) for key in there)}
    attributes = json.loads(files["zarr.json"].read_text())["attributes"]["diskreplay"]
    seals = parse_seals(field, attributes["seals"], num_envs)
    passed = {
        key for key in there
        if all(count[env] >= 16 * (key[0] + 1) for env in range(num_envs)[field.envs(key[1])])
    }  # fmt: skip
    assert seals.keys() == passed
    for key, seal in seals.items():
        path = files[field.chunk_key(*key)]
        assert path.stat().st_size == seal.size
        assert not path.stat().st_mode & 0o222  # read-only, as what does not change
        if not field.packed:
            data = path.read_bytes()
            assert seal.crc32c == google_crc32c.value(data)
            # A hole, but where there is no disk.
            assert (path.stat().st_blocks > 0) == is_in_memory(tmp_path)


def test_only_blocks_with_rows_are_in_a_shard(tmp_path):
    field = Field("f", (3,), np.dtype("i2"), "lz4", 16, 2, 4)
    zeros.write(tmp_path, field, np.array([0, 0]), np.array([9, 4]))
    (path,) = [path for path in (tmp_path / "f").iterdir() if path.name != "zarr.json"]
    index = codec.whole_index(field, Mapping.open(path))
    there = (index[:, 0] != codec.MISSING).reshape(4, 2)  # by block and env
    assert there.tolist() == [[True, True], [True, False], [True, False], [False, False]]
    assert codec.blocks_end(field, index) <= path.stat().st_size
