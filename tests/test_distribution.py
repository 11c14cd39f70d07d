"""Chi-square tests: what is drawn, is drawn as often as it should be.

The seeds are fixed, so a run cannot fail by bad luck; the quantile is the one that a correct
sampler would exceed once in a million tests.
"""

import math
from contextlib import contextmanager

import numpy as np
import pytest

import diskreplay
from tests.naive import SideBySide

ONE_IN_A_MILLION = 4.753  # quantile of the normal distribution


def chi_square(counts, probabilities):
    """(statistic, degrees of freedom) of the drawn `counts` {key: how often}."""
    assert set(counts) <= {key for key, p in probabilities.items() if p > 0}
    draws = sum(counts.values())
    cells = {key: draws * p for key, p in probabilities.items() if p > 0}
    assert min(cells.values()) >= 5, "too few draws for the test to mean anything"
    statistic = sum((counts.get(key, 0) - mean) ** 2 / mean for key, mean in cells.items())
    return statistic, len(cells) - 1


def largest_chi_square(degrees):
    """Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + ONE_IN_A_MILLION * math.sqrt(spread)) ** 3


def assert_drawn_like(counts, probabilities):
    statistic, degrees = chi_square(counts, probabilities)
    assert statistic < largest_chi_square(degrees)


def tally(arrays):
    ids, counts = np.unique(np.concatenate(arrays), return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(2, 27.63), (10, 46.86), (100, 182.13), (200, 309.84)]
)
def test_the_quantile(degrees, quantile):
    """Beside the exact values for one in a million; larger where there are few cells."""
    assert quantile <= largest_chi_square(degrees) <= 1.1 * quantile


def test_the_test_can_fail():
    rng = np.random.default_rng(0)
    cells = dict.fromkeys(range(50), 1 / 50)
    skewed = np.full(50, 1 / 50)
    skewed[7] *= 1.3
    assert_drawn_like(tally([rng.integers(0, 50, 60_000)]), cells)
    with pytest.raises(AssertionError):
        assert_drawn_like(tally([rng.choice(50, 60_000, p=skewed / skewed.sum())]), cells)
    with pytest.raises(AssertionError):  # one that is never drawn
        assert_drawn_like(tally([rng.integers(0, 49, 60_000)]), cells)


# -- the tree alone


def leaves():
    """Three levels of them; most are zero, the others spread over three decades."""
    values = np.zeros(5000)
    rng = np.random.default_rng(5)
    positive = rng.choice(5000, 150, replace=False)
    values[positive] = 10.0 ** rng.uniform(-1.5, 0.5, 150)
    return values


@pytest.mark.costly(2)
@pytest.mark.parametrize("method", ["sample", "stratified_sample"])
@pytest.mark.parametrize("size", [1, 32, 1000])
def test_leaves_are_drawn_in_proportion_to_their_value(method, size):
    values = leaves()
    tree = diskreplay.SumTree(values.size)
    tree.set(np.arange(values.size), values)
    rng = np.random.default_rng(11)
    batches = 120_000 // size if size > 1 else 60_000
    counts = tally([getattr(tree, method)(size, rng) for _ in range(batches)])
    assert_drawn_like(counts, dict(enumerate((values / values.sum()).tolist())))


def test_stratified_draws_are_spread_more_evenly_than_plain_ones():
    """Each of 64 equal leaves, drawn 64 at a time: once in a batch, where plain draws repeat."""
    tree = diskreplay.SumTree(64)
    tree.set(np.arange(64), np.ones(64))
    rng = np.random.default_rng(2)
    assert sorted(tree.stratified_sample(64, rng).tolist()) == list(range(64))
    assert len(set(tree.sample(64, rng).tolist())) < 60


# -- buffers


@contextmanager
def uneven(tmp_path, **options):
    """Three envs with 1 : 3 : 6 rows, evicted and cut ones, truncations without final rows."""
    with SideBySide(
        tmp_path / "replay",
        num_envs=3,
        capacity=240,
        stack_size=3,
        update_horizon=2,
        seed=17,
        **options,
    ) as both:
        ends = ("go on",) * 5 + ("truncated", "go on", "go on", "terminated, final")
        for i in range(200):
            outcomes = [ends[i % len(ends)], ends[(i + 2) % len(ends)], ends[(i + 5) % len(ends)]]
            if i >= 20:
                outcomes[0] = "skip"
            if i >= 50:
                outcomes[1] = "skip"
            both.step(outcomes)
            if i == 120:
                both.reopen()
        ids = both.twin.sampleable_ids()
        each = [sum(id % 3 == env for id in ids) for env in range(3)]
        assert len(ids) < 0.75 * both.twin.rows  # many rows cannot be sampled
        assert len(set(each)) == 3
        yield both


def draw(both, batches, batch_size=32, **options):
    return tally([both.real.sample(batch_size, **options).id for _ in range(batches)])


def test_uniform_sampling_is_uniform_over_rows_not_envs(tmp_path):
    with uneven(tmp_path) as both:
        assert_drawn_like(draw(both, 1500), both.twin.probabilities())
        assert_drawn_like(draw(both, 60, batch_size=800), both.twin.probabilities())


@pytest.mark.parametrize("alpha", [0, 0.6, 1])
def test_prioritized_sampling_follows_p_to_the_alpha(tmp_path, alpha):
    with uneven(tmp_path, alpha=alpha) as both:
        ids = both.twin.sampleable_ids()
        rng = np.random.default_rng(23)
        priorities = rng.uniform(0.2, 4.0, len(ids))
        priorities[::10] = 0.0  # never drawn, with alpha 0 neither
        both.update_priorities(ids[:-5], priorities[:-5].tolist())  # five keep the largest
        assert_drawn_like(draw(both, 1500), both.twin.probabilities())
        assert_drawn_like(draw(both, 60, batch_size=800), both.twin.probabilities())


def test_priorities_count_from_the_next_draw_on(tmp_path):
    with uneven(tmp_path, alpha=1) as both:
        ids = both.twin.sampleable_ids()
        both.real.sample()
        both.update_priorities(ids, [0.0] * (len(ids) - 1) + [2.0])
        assert set(both.real.sample(50).id.tolist()) == {ids[-1]}
        both.update_priorities(ids[-1:], [0.0])
        with pytest.raises(diskreplay.EmptyBufferError):
            both.real.sample()
        both.update_priorities(ids[:2], [1.0, 3.0])
        assert_drawn_like(draw(both, 100), {ids[0]: 0.25, ids[1]: 0.75})


@pytest.mark.parametrize("beta", [0, 0.4, 1])
@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_importance_weights(tmp_path, beta, normalization):
    with uneven(tmp_path, alpha=0.6, weight_normalization=normalization) as both:
        ids = both.twin.sampleable_ids()
        rng = np.random.default_rng(29)
        both.update_priorities(ids, (10.0 ** rng.uniform(-2, 1, len(ids))).tolist())
        for batch_size in (1, 4, 32, 300):
            both.check_sample(batch_size, beta=beta)
        both.update_priorities(ids[:3], [0.0, 0.0, 1e-6])  # zeros are not the smallest P
        both.check_sample(32, beta=beta)


def test_weights_by_hand(tmp_path):
    """Priorities 1, 1, 2, 4 of four rows: P = 1/8, 1/8, 2/8, 4/8."""
    for normalization in ("batch", "buffer"):
        with SideBySide(
            tmp_path / normalization, alpha=1, weight_normalization=normalization, seed=3
        ) as both:
            for _ in range(5):
                both.step(["go on"])
            both.real.update_priorities(np.arange(4), np.array([1.0, 1.0, 2.0, 4.0]))
            for _ in range(20):
                batch = both.real.sample(2, beta=0.5)
                by_id = {0: 1.0, 1: 1.0, 2: 2**-0.5, 3: 0.5}
                weights = np.array([by_id[id] for id in batch.id.tolist()])
                if normalization == "batch":
                    weights /= weights.max()
                np.testing.assert_allclose(batch.weight, weights, rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 2.0, 1e308])
@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_weights_are_numbers_where_no_float_holds_the_largest(tmp_path, beta, normalization):
    """(N P)^-beta is 1e400 and more for the first row."""
    with SideBySide(
        tmp_path / "r", alpha=1, weight_normalization=normalization, seed=3
    ) as both:  # fmt: skip
        for _ in range(5):
            both.step(["go on"])
        both.real.update_priorities(np.arange(4), np.array([1e-200, 1.0, 1.0, 2.0]))
        batch = both.real.sample(64, beta=beta)
        assert set(batch.id.tolist()) == {1, 2, 3}
        largest = 1.0 if normalization == "batch" else (1e-200) ** beta
        half = largest * 0.5**beta
        assert batch.weight.tolist() == [half if id == 3 else largest for id in batch.id.tolist()]


def test_beta_can_be_a_schedule(tmp_path):
    seen = []

    def schedule(add_count):
        seen.append(add_count)
        return 1.0

    with SideBySide(tmp_path / "replay", alpha=1, beta=schedule) as both:
        for _ in range(5):
            both.step(["go on"])
        both.update_priorities([0, 1], [0.25, 4.0])
        batch = both.real.sample(64)
        assert set(seen) == {5}
        both.check_batch(batch, beta=1.0)


def test_stratified_batches_cover_the_priorities(tmp_path):
    """32 rows of equal priority, drawn 32 at a time, come once each."""
    with SideBySide(tmp_path / "replay", alpha=0.6) as both:
        for _ in range(33):
            both.step(["go on"])
        for _ in range(5):
            assert sorted(both.real.sample(32).id.tolist()) == list(range(32))


def test_one_seed_one_sequence(tmp_path):
    sequences = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        with SideBySide(tmp_path / name, seed=seed) as both:
            for _ in range(90):
                both.step(["go on"])
            sequences.append([both.real.sample().id.tolist() for _ in range(3)])
    assert sequences[0] == sequences[1]
    assert sequences[0] != sequences[2]
