"""Ids of transitions over all shards, beside Python's own numbers."""

import numpy as np

from diskreplay.ray.shard_ids import MOST_SHARDS, global_ids, split


def test_each_id_of_each_shard_has_its_own():
    shards = np.array([0, 1, 7, MOST_SHARDS - 1])
    ids = np.array([0, 1, 12_345, 2**48 - 1])
    for shard in shards:
        found = global_ids(int(shard), ids)
        assert found.dtype == np.int64
        assert found.tolist() == [int(shard) * 2**48 + int(id_) for id_ in ids]
        back = split(found)
        assert back[0].tolist() == [shard] * len(ids)
        assert back[1].tolist() == ids.tolist()
    assert global_ids(shards, ids).tolist() == [
        int(shard) * 2**48 + int(id_) for shard, id_ in zip(shards, ids, strict=True)
    ]
    assert (global_ids(shards, ids) >= 0).all()
    assert [part.tolist() for part in split(np.empty(0, np.int64))] == [[], []]
