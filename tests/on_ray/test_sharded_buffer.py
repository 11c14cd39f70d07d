"""A sharded buffer: draws, priorities, writers, limits, checkpoints. Its deaths are elsewhere."""

import gc
import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import (
    CheckpointNotFoundError,
    ClosedError,
    EmptyBufferError,
    InvalidInputError,
    PriorityError,
    RateLimiterTimeout,
    SchemaError,
    UnknownIdError,
    UsageError,
)
from diskreplay.check.verify import verify
from diskreplay.ray import MinSize, SampleToInsertRatio, ShardedReplayBuffer
from diskreplay.ray.shard_ids import split
from tests.on_ray.workload import add, check, make, numbers_of, stored

pytestmark = pytest.mark.usefixtures("cluster")
_names = map("buffer{}".format, itertools.count())


def fill(replay, steps=40, writers=3, envs=2):
    for number in range(writers):
        with replay.writer(envs, 16) as writer:
            for at in range(steps):
                add(writer, [f"{number}-{env}" for env in range(envs)], at)


@pytest.fixture(scope="module")
def shared(cluster, tmp_path_factory):
    """One for many tests, since its processes take seconds to start."""
    path = tmp_path_factory.mktemp("shared")
    with make(path / "replay", name=next(_names)) as made:
        made.save(path / "checkpoints", "empty")
        yield made, path / "checkpoints"


@pytest.fixture
def replay(shared):
    """An empty one."""
    made, checkpoints = shared
    made.load(checkpoints, "empty")
    return made


def test_all_rows_are_there_and_are_drawn_in_proportion(replay):
    with pytest.raises(EmptyBufferError, match="no complete transition"):
        replay.sample()
    fill(replay)
    assert replay.add_count == 240
    leaves = {}
    for batch in (replay.sample(256) for _ in range(3)):
        check(batch)
        replay.update_priorities(batch.id, batch.reward + 0.5, batch.generation)
        leaves |= dict(zip(batch.id.tolist(), (batch.reward + 0.5).tolist(), strict=True))
    replay.flush()
    known = len(replay)
    assert known == 240 - 6  # the last row of each env waits for the next one
    total = sum(leaves.values()) + known - len(leaves)
    batch = replay.sample(512)
    check(batch)
    for number, probability, weight in zip(
        batch.id.tolist(), batch.probability, batch.weight, strict=True
    ):
        leaf = leaves.get(number, 1.0)
        assert probability == pytest.approx(leaf / total)
        least = batch.probability.min()
        assert weight == pytest.approx((known * probability) ** -0.4 / (known * least) ** -0.4)
    assert set(split(batch.id)[0].tolist()) == {0, 1, 2}
    assert (np.diff(split(batch.id)[0]) >= 0).all()
    again = replay.gather(batch.id)
    for name in ("observation", "next_observation", "number", "id"):
        np.testing.assert_array_equal(again[name], batch[name])


def test_a_writer_sent_elsewhere_goes_on_and_envs_are_leased_once(replay):
    writer = replay.writer(2, 4)
    for at in range(6):
        add(writer, ["a", "b"], at)
    with pytest.raises(InvalidInputError, match="no rows wait"):
        pickle.dumps(writer)
    writer.flush()
    ray = pytest.importorskip("ray")

    @ray.remote(num_cpus=0)
    def elsewhere(writer):
        for at in range(6, 20):
            add(writer, ["a", "b"], at)
        writer.flush()
        return writer.acknowledged.tolist(), writer

    counts, writer = ray.get(elsewhere.remote(writer))
    # Two episodes of nine steps have ended by then, each with a final row.
    assert counts == [22, 22]
    others = [replay.writer(2), replay.writer(2)]
    assert {writer.shard, *(other.shard for other in others)} == {0, 1, 2}
    with pytest.raises(InvalidInputError, match="free envs"):
        replay.writer(1)
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        add(writer, ["a", "b"], 0)
    with replay.writer(2) as new:
        assert new.shard == writer.shard
        add(new, ["c", "d"], 0)
        new.flush()
        assert new.acknowledged.tolist() == [23, 23]
        writer._closed = False
        add(writer, ["a", "b"], 20)
        with pytest.raises(UsageError, match="leased by another writer"):
            writer.flush()
    for other in others:
        other.close()


def test_new_rows_can_have_a_priority_of_their_own(replay):
    with replay.writer(2, 8) as writer:
        for at in range(8):
            writer.add(
                np.full((2, 8), at, "uint8"), [0, 0], [0.0, 0.0], [at == 7] * 2, [False] * 2,
                priority=[1.0, 4.0], number=[at, at],
            )  # fmt: skip
    batch = replay.sample(64)
    env = split(batch.id)[1] % 2
    np.testing.assert_allclose(batch.probability, np.where(env == 1, 4.0, 1.0) / (8 * 5))


def test_bad_priorities_change_nothing(replay):
    fill(replay, 20)
    batch = replay.sample(8)
    for error, ids, priorities in (
        (PriorityError, batch.id, np.full(8, np.nan)),
        (PriorityError, batch.id, np.full(8, -1.0)),
        (PriorityError, batch.id, np.full(8, 1e300)),
        (PriorityError, batch.id, ["much"] * 8),
        (InvalidInputError, batch.id, [1.0]),
        (UnknownIdError, batch.id + (3 << 48), np.ones(8)),
        (UnknownIdError, -batch.id - 1, np.ones(8)),
    ):
        with pytest.raises(error):
            replay.update_priorities(ids, priorities, batch.generation[0])
    assert not any(handle.waiting for handle in replay._client.handles)


@pytest.mark.parametrize("depth", [1, 2])
def test_prefetched_batches_are_those_that_sample_gives(replay, tmp_path, depth):
    fill(replay, 20)
    replay.save(tmp_path, 1)
    found = [replay.sample() for _ in range(8)]
    replay.load(tmp_path, 1)
    with replay.prefetch(depth, batches_per_request=3) as batches:
        ahead = [next(batches) for _ in range(7)]
    for one, other in zip(found, [*ahead, replay.sample()], strict=True):
        check(one)
        for name in set(one) - {"generation"}:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_checkpoint_is_gone_back_to_bit_for_bit_and_old_ids_are_dropped(replay, tmp_path):
    fill(replay, 20)
    old = replay.sample()
    replay.update_priorities(old.id, old.reward + 1.0, old.generation)
    path = replay.save(tmp_path / "checkpoints", 3)
    assert path.name == f"{replay.name}_shards.3.json"
    with replay.prefetch(2) as batches:
        expected = [next(batches) for _ in range(3)]
        replay.update_priorities(old.id, np.full(32, 9.0), old.generation)
        fill(replay, 20)
        assert replay.load(tmp_path / "checkpoints") == "3"
        found = [next(batches) for _ in range(3)]
    for one, other in zip(expected, found, strict=True):
        for name in set(one) - {"generation"}:
            np.testing.assert_array_equal(one[name], other[name])
        assert (one.generation < other.generation).all()
    before = [handle.state.mass.total for handle in replay._client.handles]
    dropped = sum(shard["dropped_updates"] for shard in replay.shards())
    replay.update_priorities(old.id, np.full(32, 50.0), old.generation)
    replay.flush()
    assert [handle.state.mass.total for handle in replay._client.handles] == before
    assert sum(shard["dropped_updates"] for shard in replay.shards()) == dropped + 32
    assert replay.add_count == 120


def test_a_writer_goes_on_behind_the_rows_of_a_checkpoint(replay, tmp_path):
    with replay.writer(2, 4) as writer:
        for at in range(8):
            add(writer, ["a", "b"], at)
        writer.flush()
        replay.save(tmp_path, 1)
        for at in range(8, 16):
            add(writer, ["a", "b"], at)
        writer.flush()
        replay.load(tmp_path, 1)
        writer.end_episode()  # whose beginning is gone
        for at in range(2):
            add(writer, ["c", "d"], at)
        with pytest.warns(RuntimeWarning, match=r"have \[8, 8\] now"):
            writer.flush()
        assert writer.acknowledged.tolist() == [10, 10]
    there = {number for _ in range(10) for number in replay.sample(64).number.tolist()}
    # The last row before the load and the last one of all wait for the next of their episode.
    kept = [("a", 7), ("b", 7), ("c", 1), ("d", 1)]
    assert there == {number for name, rows in kept for number in numbers_of(name, rows).tolist()}


def test_a_writer_amid_an_episode_goes_on_with_the_next_one(replay, shared, tmp_path):
    """The rest of an episode whose beginning is gone would be steps that follow none."""
    with replay.writer(2, 4) as writer:
        for at in range(12):
            add(writer, ["a", "b"], at)
        writer.flush()
        replay.save(tmp_path, 1)
        for at in range(12, 22):
            add(writer, ["a", "b"], at)
        replay.load(tmp_path, 1)

        def go_on():
            for at in range(22, 40):
                add(writer, ["a", "b"], at)

        with pytest.warns(RuntimeWarning, match="the next episodes follow those"):
            go_on()
        writer.flush()
        number = writer.shard
    store = shared[1].parent / "replay" / f"shard-{number}" / "store"
    with diskreplay.open(store) as reader:
        found = reader.take("number", np.arange(*reader.bounds[0]) * reader.num_envs)
        final = reader.take("is_final", np.arange(*reader.bounds[0]) * reader.num_envs)
    kept = found[~final].tolist()
    name = "a" if kept[0] == numbers_of("a", 1)[0] else "b"
    assert kept[:12] == numbers_of(name, 12).tolist()
    begun = (kept[12] - numbers_of(name, 1)[0]).item()
    assert begun in (18, 27)  # where an episode begins
    assert kept[12:] == numbers_of(name, 40)[begun:].tolist()
    assert verify(store).clean
    check(replay.sample(128))


def test_a_learner_whose_actors_have_ended_is_told_and_can_try_again(tmp_path):
    limiter = SampleToInsertRatio(4.0, min_size_to_sample=32, error_buffer=200.0)
    with make(
        tmp_path, name=next(_names), rate_limiter=limiter, timeout=3.0, num_shards=1, num_envs=2
    ) as replay:
        taken = []

        def take_all(batches):
            for batch in batches:
                check(batch)
                taken.append(len(batch.id))

        with replay.prefetch(depth=2) as batches:
            with replay.writer(2, 8) as writer:
                add_many(writer, 24)
            with pytest.raises(RateLimiterTimeout, match="48 transitions inserted"):
                take_all(batches)
            inserts, samples = replay.limiter_counts()
            assert (inserts, samples) == (48, sum(taken))
            assert not limiter.can_sample(inserts, samples, 32)
            with pytest.raises(RateLimiterTimeout):
                next(batches)
            with replay.writer(2, 8) as writer:
                add_many(writer, 24)
            check(next(batches))


def test_retention_and_what_cannot_be_loaded(replay, tmp_path):
    fill(replay, 10)
    for number in range(4):
        replay.save(tmp_path / "ck", number, keep=2)
    replay.save(tmp_path / "ck", 3, keep=2)  # replaces
    replay.shards()  # behind the removals
    names = {path.name for path in (tmp_path / "ck").glob("*.json")}
    assert names == {f"{replay.name}_shards.{number}.json" for number in (2, 3)}
    assert len(list((tmp_path / "ck" / "parts").iterdir())) == 2 * 3
    batch = replay.sample()
    with pytest.raises(CheckpointNotFoundError, match="there is no such checkpoint"):
        replay.load(tmp_path / "ck", 0)
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint .* is there"):
        replay.load(tmp_path / "nowhere")
    (part,) = (tmp_path / "ck" / "parts").glob(f"{replay.name}-1_ckpt.2-*")
    part.rename(tmp_path / "away")
    with pytest.raises(CheckpointNotFoundError, match="a shard needs the parts of its envs"):
        replay.load(tmp_path / "ck", 2)
    np.testing.assert_array_equal(replay.gather(batch.id).number, batch.number)
    assert (replay.sample().generation <= batch.generation.max()).all()  # nothing has changed


def test_a_client_that_nobody_has_any_more_ends_the_thread_of_its_prefetcher(replay):
    fill(replay)
    learner = ShardedReplayBuffer.connect(replay.name)
    batches = learner.prefetch(depth=2)
    check(next(batches))
    thread = batches._thread
    del batches
    gc.collect()
    check(next(learner._prefetchers[0]))  # the buffer keeps it
    del learner
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def add_many(writer, steps):
    for at in range(steps):
        add(writer, ["a", "b"], at)


def test_a_limiter_makes_both_sides_wait_and_says_why(tmp_path):
    limiter = SampleToInsertRatio(4.0, min_size_to_sample=32, error_buffer=128.0)
    with make(
        tmp_path, name=next(_names), rate_limiter=limiter, timeout=3.0, num_shards=1, num_envs=2
    ) as replay:
        with pytest.raises(InvalidInputError, match="error_buffer=128 is too small"):
            replay.writer(2, 64)
        writer = replay.writer(2, 8)
        with pytest.raises(RateLimiterTimeout, match="0 transitions inserted"):
            replay.sample()
        with pytest.raises(RateLimiterTimeout, match="-128 to 128 allowed"):
            add_many(writer, 100)
        inserts, samples = replay.limiter_counts()
        assert samples == 0
        assert 128 - 16 * 4 < limiter.error(inserts, samples) <= 128
        while limiter.can_sample(inserts, samples, 32):
            check(replay.sample())
            samples += 32
        assert samples >= 128
        with pytest.raises(RateLimiterTimeout, match=f"{inserts} transitions inserted"):
            replay.sample()
        taken = samples
        assert -128 <= limiter.error(inserts, taken) < -128 + 32
        assert replay.limiter_counts() == (inserts, taken)
        replay.save(tmp_path / "ck", 1)
        writer.flush()  # what waited
        replay.load(tmp_path / "ck", 1)
        assert replay.limiter_counts() == (inserts, taken)


def test_a_sample_waits_for_what_the_limiter_has_counted_and_no_shard_has_yet(
    tmp_path, monkeypatch
):
    limiter = MinSize(1)
    with (
        make(tmp_path, name=next(_names), rate_limiter=limiter, num_shards=1, num_envs=2) as replay,
        ThreadPoolExecutor(1) as pool,
    ):
        writer, client, looked = replay.writer(2, 8), replay._client, threading.Event()
        send, refresh = writer._call, client.refresh

        def send_late(chunk):
            assert looked.wait(60)
            return send(chunk)

        def look():
            refresh()
            looked.set()

        monkeypatch.setattr(writer, "_call", send_late)
        monkeypatch.setattr(client, "refresh", look)
        added = pool.submit(add_many, writer, 8)
        check(replay.sample())
        added.result()
        writer.close()


def test_min_size_and_a_second_client(tmp_path):
    name = next(_names)
    with make(tmp_path, name=name, rate_limiter=MinSize(100), timeout=3.0, num_shards=1) as replay:
        with pytest.raises(InvalidInputError, match="is running in this cluster"):
            make(tmp_path / "other", name=name)
        fill(replay, 10)
        other = ShardedReplayBuffer.connect(name, seed=1)
        with pytest.raises(RateLimiterTimeout, match="begins at 100"):
            other.sample()
        fill(replay, 10)
        check(other.sample())
        assert len(other) == len(replay)
        other.disconnect()
        with pytest.raises(ClosedError):
            other.sample()
        check(replay.sample())
    with pytest.raises(InvalidInputError, match="no sharded buffer"):
        ShardedReplayBuffer.connect(name)


def test_stores_are_opened_again_and_others_are_refused(tmp_path):
    name = next(_names)
    with make(tmp_path, name=name, num_shards=2, num_envs=4) as replay:
        fill(replay, 10, writers=2)
        known = len(replay)
    rows = {tuple(row.tolist()) for row in stored(tmp_path)}
    assert rows == {tuple(numbers_of(f"{w}-{e}", 10).tolist()) for w in range(2) for e in range(2)}
    with pytest.raises(SchemaError, match="num_shards is 2 there, and 1"):
        make(tmp_path, name=name, num_shards=1, num_envs=4)
    with pytest.raises(SchemaError, match="number"):
        make(tmp_path, name=name, num_shards=2, num_envs=4, extras={"number": ((), "int32")})
    with make(tmp_path, name=name, num_shards=2, num_envs=4) as replay:
        assert len(replay) == known


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ("num_shards", {"num_shards": 0}),
        ("num_envs", {"num_envs": 2}),
        ("resources", {"resources": [{"a": 1}]}),
        ("alpha", {"alpha": -1}),
        ("weight_normalization", {"weight_normalization": "all"}),
        ("gamma", {"gamma": 2}),
    ],
)
def test_options_that_make_no_sense_start_nothing(tmp_path, wrong, options):
    with pytest.raises(InvalidInputError, match=wrong):
        make(tmp_path / "x", name=next(_names), **options)
    assert not (tmp_path / "x").exists()


def test_one_env_and_one_shard_beside_a_buffer(tmp_path):
    """Few rows and one tree: the same positions give the same rows and weights."""
    space = Box(0, 255, (3,), "uint8"), Discrete(2)
    options = {"capacity": 200, "alpha": 0.7, "beta": 0.5, "stack_size": 3, "update_horizon": 2}
    options |= {"weight_normalization": "buffer"}
    with (
        ShardedReplayBuffer(
            tmp_path, observation_space=space[0], action_space=space[1], num_shards=1, num_envs=1,
            name=next(_names), seed=4, **options,
        ) as replay,
        diskreplay.PrioritizedReplayBuffer(
            None, observation_space=space[0], action_space=space[1], seed=4, **options
        ) as buffer,
    ):  # fmt: skip
        with replay.writer(1, 10) as writer:
            for at in range(90):
                step = np.full(3, at, np.uint8), at % 2, float(at), at % 8 == 7, False
                writer.add(*(np.expand_dims(value, 0) for value in step))
                buffer.add(*step)
        for _ in range(5):
            one, other = replay.sample(16), buffer.sample(16)
            for name in other:
                np.testing.assert_allclose(one[name], other[name], rtol=1e-6)
            replay.update_priorities(one.id, one.reward, one.generation)
            buffer.update_priorities(other.id, other.reward)
            replay.flush()
