"""Checkpoints loaded by another number of shards: the same rows, leaves and episodes."""

import numpy as np
import pytest

import diskreplay
from diskreplay import InvalidInputError, SchemaError, SumTree
from diskreplay.check.verify import verify
from diskreplay.ray.resharding import default_group, envs_of_shards, pieces_of_shards
from tests.on_ray.workload import add, check, make

pytestmark = pytest.mark.usefixtures("cluster")
ENVS, GROUP, KEPT = 16, 2, 100


def start(path, shards, **options):
    options = {
        "num_shards": shards, "num_envs": ENVS, "env_group": GROUP, "capacity": ENVS * KEPT,
        "name": "reshard", "segment_rows": 16,
    } | options  # fmt: skip
    return make(path, **options)


def fill(replay):
    """Rows of each env under a name of its own; some rings have gone round."""
    for number in range(8):
        with replay.writer(2, 8) as writer:
            for at in range(40 + 20 * number):
                add(writer, [f"{number}a", f"{number}b"], at)
    rng = np.random.default_rng(0)
    for _ in range(12):
        batch = replay.sample(128)
        replay.update_priorities(batch.id, rng.random(128) * 9, batch.generation)
    replay.flush()


def stores(path):
    """For each env of each shard: what its rows say, their leaves, its episodes."""
    found = []
    for directory in sorted(path.glob("shard-*/store")):
        assert verify(directory).clean
        with diskreplay.open(directory) as buffer:
            saved, episodes = buffer._rows.store.read_priorities(), buffer.episodes()
            sampleable = set(buffer.sampleable_ids().tolist())
            for env, (first, stop) in enumerate(buffer.bounds.tolist()):
                ids = np.arange(first, stop) * buffer.num_envs + env
                leaves = saved.leaves[first - saved.start : stop - saved.start, env] if stop else []
                mine = episodes.env == env
                found.append(
                    {
                        "bounds": (first, stop),
                        **{name: buffer.take(name, ids).tolist() for name in buffer.fields},
                        "leaves": list(leaves),
                        "sampleable": [id_ in sampleable for id_ in ids.tolist()],
                        "episodes": (episodes.start_id[mine] // buffer.num_envs).tolist(),
                        "lengths": episodes.rows[mine].tolist(),
                    }
                )
    return found


def same(found, expected):
    assert len(found) == len(expected) == ENVS
    for one, other in zip(found, expected, strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name], name)


def tree_of(found, sizes):
    """One tree over the leaves of all rows that can be drawn, and the number of each: shard by
    shard, and in a shard in the order of its ring."""
    rows, first = [], 0
    for shard, size in enumerate(sizes):
        for env in range(first, first + size):
            known = found[env]
            for row, leaf, number, drawn in zip(
                range(*known["bounds"]), known["leaves"], known["number"], known["sampleable"],
                strict=True,
            ):  # fmt: skip
                if drawn:
                    rows.append((shard, row % KEPT, env, leaf, number))
        first += size
    rows.sort()
    tree = SumTree(len(rows))
    tree.set(np.arange(len(rows)), np.array([leaf for *_, leaf, _number in rows]))
    return tree, [number for *_, number in rows]


def check_draws(replay, tree, numbers):
    """Each draw is the row that one tree over all leaves gives for that mass."""
    totals = np.array([handle.state.mass.total for handle in replay._client.handles])
    assert totals.sum() == pytest.approx(tree.total, rel=1e-12)
    rng = np.random.default_rng()
    replay._client.rng.rng = rng
    state = rng.bit_generator.state
    for _ in range(4):
        batch = replay.sample(256)
        check(batch)
        again = np.random.default_rng()
        again.bit_generator.state = state
        masses = (np.arange(256) + again.random(256)) / 256 * tree.total
        state = again.bit_generator.state
        expected = tree.find(masses)
        differ = batch.number != np.array(numbers)[expected]
        if differ.any():  # rounding at the edge between two leaves
            edges = np.cumsum(tree.leaves)
            near = np.abs(masses[differ, None] - edges[None]).min(axis=1)
            assert near.max() < 1e-9 * tree.total
        assert differ.sum() < 3
        np.testing.assert_allclose(
            batch.probability[~differ], (tree.get(expected) / tree.total)[~differ], rtol=1e-9
        )


def test_from_four_shards_to_other_numbers_and_back(tmp_path):
    with start(tmp_path / "four", 4, rate_limiter=None) as replay:
        fill(replay)
        old = replay.sample(64)
        replay.save(tmp_path / "ck", 1, attachments={"agent.pt": b"weights"})
    expected = stores(tmp_path / "four")
    for shards, sizes in ((1, [16]), (2, [8, 8]), (3, [6, 6, 4]), (8, [2] * 8)):
        tree, numbers = tree_of(expected, sizes)
        place = tmp_path / f"to{shards}"
        with start(place, shards) as replay:
            assert replay.load(tmp_path / "ck", 1) == "1"
            assert replay.attachments(tmp_path / "ck", 1) == {"agent.pt": b"weights"}
            check_draws(replay, tree, numbers)
            # Ids of before name other rows now: what is said of them is dropped.
            ids = old.id & ((1 << 48) - 1)
            replay.update_priorities(ids, np.full(64, 1e6), old.generation)
            replay.flush()
            assert sum(shard["dropped_updates"] for shard in replay.shards()) == 64
            check_draws(replay, tree, numbers)
            replay.save(place / "ck", 2, attachments={"agent.pt": b"weights"})
        same(stores(place), expected)
        with start(tmp_path / f"back{shards}", 4) as replay:
            replay.load(place / "ck")
            tree, numbers = tree_of(expected, [4] * 4)
            check_draws(replay, tree, numbers)
            with replay.writer(2, 8) as writer:  # and it goes on
                for at in range(20):
                    add(writer, ["x", "y"], at)
            check(replay.sample(256))
        found = stores(tmp_path / f"back{shards}")
        changed = [env for env in range(ENVS) if found[env]["bounds"] != expected[env]["bounds"]]
        assert len(changed) == 2
        for env in changed:  # whose oldest rows have left for the new ones
            kept = expected[env]["number"]
            assert set(found[env]["number"]) - set(kept)
            found[env] = expected[env]
        same(found, expected)


def test_a_number_of_shards_that_groups_cannot_be_divided_into(tmp_path):
    with start(tmp_path / "two", 2, env_group=4) as replay:
        with replay.writer(2, 8) as writer:
            add(writer, ["a", "b"], 0)
        replay.save(tmp_path / "ck", 1)
        with pytest.raises(InvalidInputError, match="number: 0 to 1 expected"):
            replay.restore_shard(2, tmp_path / "ck", 1)
    with start(tmp_path / "other", 3, env_group=1) as replay:
        before = [shard["generation"] for shard in replay.shards()]
        with pytest.raises(SchemaError, match=r"4 groups of 4, .* have \[6, 5, 5\] envs; make the "
                                              "buffer with env_group=4"):  # fmt: skip
            replay.load(tmp_path / "ck", 1)
        assert [shard["generation"] for shard in replay.shards()] == before


def document(counts, group=2):
    parts = [{"count": [0] * count, "digest": str(n)} for n, count in enumerate(counts)]
    return {"shards": parts, "num_shards": len(counts), "env_group": group}


def pieces(counts, envs, **more):
    found = pieces_of_shards(document(counts, **more), envs, "checkpoint 1")
    return [[(int(p.part["digest"]), p.start, p.stop) for p in shard] for shard in found]


def test_which_envs_each_shard_gets():
    assert pieces([4, 4], [4, 4]) == [[(0, 0, 4)], [(1, 0, 4)]]
    assert pieces([4, 4], [8]) == [[(0, 0, 4), (1, 0, 4)]]
    assert pieces([4, 4], [2, 6]) == [[(0, 0, 2)], [(0, 2, 4), (1, 0, 4)]]
    assert pieces([4, 4, 4], [6, 6]) == [[(0, 0, 4), (1, 0, 2)], [(1, 2, 4), (2, 0, 4)]]
    assert pieces([3, 5], [3, 5], group=None) == [[(0, 0, 3)], [(1, 0, 5)]]
    for wrong, says in (
        (([4, 4], [2, 4]), "num_envs is 8 in the checkpoint, and 6 here"),
        (([4, 4], [1] * 8), "make it with num_shards of 1 to 4"),
        (([4, 4], [5, 3]), "make the buffer with env_group=2"),
    ):
        with pytest.raises(SchemaError, match=says):
            pieces(*wrong)
    with pytest.raises(SchemaError, match="num_shards=2"):
        pieces([4, 4], [8], group=None)


def test_how_envs_are_divided():
    assert envs_of_shards(16, 3, 2) == [6, 6, 4]
    assert envs_of_shards(7, 2, 1) == [4, 3]
    for wrong in ((15, 3, 2), (4, 3, 2)):
        with pytest.raises(InvalidInputError, match="env"):
            envs_of_shards(*wrong)
    expected = {
        (16, 2): 8, (16, 3): 2, (6, 3): 2, (8, 2): 4, (7, 7): 1, (7, 2): 1, (64, 4): 8,
        (1024, 8): 64, (1000, 3): 50, (8000, 100): 40, (13, 1): 1, (1, 1): 1,
    }  # fmt: skip
    for (envs, shards), group in expected.items():
        assert default_group(envs, shards) == group
        divided = envs_of_shards(envs, shards, group)
        assert sum(divided) == envs
        assert max(divided) <= 1.5 * min(divided) or group == 1
