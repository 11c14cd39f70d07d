"""Beside cpprb itself, where it is installed: the same streams, the same rows."""
# ruff: noqa: NPY002 - the original draws from the global generator

import numpy as np
import pytest

from diskreplay.compat import cpprb as ours

original = pytest.importorskip("cpprb")

ENV = {
    "obs": {"shape": (4, 16, 16, 3), "dtype": np.uint8},
    "act": {"dtype": np.int32},
    "rew": {},
    "done": {},
}


def episodes(count, seed):
    """Steps as the original wants them: sliding, and told where an episode ends."""
    rng = np.random.default_rng(seed)
    while count > 0:
        length = int(rng.integers(4, 12))
        frames = rng.integers(0, 256, (4, 16, 16, length + 3), np.uint8)
        for i in range(length):
            yield (
                {
                    "obs": frames[..., i : i + 3],
                    "next_obs": frames[..., i + 1 : i + 4]
                    if i + 4 <= length + 3
                    else frames[..., -3:],
                    "act": int(rng.integers(9)),
                    "rew": float(rng.normal()),
                    "done": float(i == length - 1),
                },
                i == length - 1,
            )
        count -= length


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_the_originals_to_the_last_bit(n, dtype):
    env = {"rew": {"dtype": dtype}, "done": {}}
    options = {"Nstep": {"size": n, "rew": "rew", "gamma": 0.99}}
    theirs, mine = original.ReplayBuffer(90, env, **options), ours.ReplayBuffer(90, env, **options)
    for reward in np.random.default_rng(n).normal(size=60):
        for buffer in (theirs, mine):
            buffer.add(rew=reward, done=0)
    found, expected = (b.get_all_transitions()["rew"] for b in (mine, theirs))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"next_of": "obs"},
        {"stack_compress": "obs"},
        {"Nstep": {"size": 3, "rew": "rew", "gamma": 0.9}},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_streams(options, seed, tmp_path):
    env = ENV if "next_of" in options else ENV | {"next_obs": ENV["obs"]}
    theirs, mine = original.ReplayBuffer(29, env, **options), ours.ReplayBuffer(29, env, **options)
    for step, last in episodes(150, seed):
        assert mine.add(**step) == theirs.add(**step)
        assert mine.get_current_episode_len() == theirs.get_current_episode_len()
        if last:
            theirs.on_episode_end()
            mine.on_episode_end()
    same(mine.get_all_transitions(), theirs.get_all_transitions(), "Nstep" in options)
    np.random.seed(seed)
    batch = theirs.sample(40)
    np.random.seed(seed)
    same(mine.sample(40), batch, "Nstep" in options)
    if "stack_compress" in options:
        return  # the original's own file has a stack of zeros where it wraps
    for safe in (True, False):
        theirs.save_transitions(str(tmp_path / "theirs.npz"), safe=safe)
        with ours.ReplayBuffer(29, env, **options) as loaded:
            loaded.load_transitions(tmp_path / "theirs.npz")
            same(loaded.get_all_transitions(), theirs.get_all_transitions(), True)
        mine.save_transitions(tmp_path / "mine.npz", safe=safe)
        loaded = original.ReplayBuffer(29, ENV | {"next_obs": ENV["obs"]}, **(
            options if "Nstep" in options else {}
        ))  # fmt: skip
        loaded.load_transitions(str(tmp_path / "mine.npz"))
        same(loaded.get_all_transitions(), mine.get_all_transitions(), True)
    mine.close()


def same(found, expected, close):
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape)
        if close and name == "rew":
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6)
        else:
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_prioritized():
    rng = np.random.default_rng(5)
    env = {"a": {}}
    theirs = original.PrioritizedReplayBuffer(11, env, alpha=0.7)
    with ours.PrioritizedReplayBuffer(11, env, alpha=0.7) as mine:
        for i in range(60):
            priority = float(rng.exponential()) if i % 3 else None
            assert mine.add(a=i, priorities=priority) == theirs.add(a=i, priorities=priority)
            slots = rng.integers(0, mine.get_stored_size(), 4)
            values = rng.exponential(size=4)
            mine.update_priorities(slots, values)
            theirs.update_priorities(slots, values)
            assert mine.get_max_priority() == pytest.approx(theirs.get_max_priority())
            weights = {}
            for buffer in (mine, theirs):
                batch = buffer.sample(64, beta=0.5)
                pairs = zip(batch["indexes"].tolist(), batch["weights"].tolist(), strict=True)
                weights[buffer] = dict(pairs)
                assert [v.dtype for v in batch.values()] == [np.float32, np.float32, np.uint64]
            for slot in weights[mine].keys() & weights[theirs].keys():
                assert weights[mine][slot] == pytest.approx(weights[theirs][slot], rel=1e-4)
