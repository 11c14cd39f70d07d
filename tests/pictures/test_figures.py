"""What the charts show, against sums over what was recorded."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.inspection.episodes import episodes_of
from diskreplay.pictures.figures import Bars, Sizes, Trend, charts_of
from tests.pictures.making import record, record_vectors


def charts(path):
    with diskreplay.open(path) as buffer:
        sections = charts_of(buffer, episodes_of(buffer), buffer.statistics())
    return {chart.title: chart for section in sections.values() for chart in section}


def test_every_figure_of_a_small_store(tmp_path):
    lengths = (5, 9, 7, 3)
    episodes = record(tmp_path / "s", lengths)
    found = charts(tmp_path / "s")
    assert [type(chart) for chart in found.values()] == [
        Trend,
        Trend,
        Bars,
        Bars,
        Bars,
        Trend,
        Trend,
        Trend,
        Sizes,
    ]
    returns = found["Return of each episode"]
    assert returns.y.tolist() == [sum(e.rewards) for e in episodes]
    assert returns.x.tolist() == [0, 6, 16, 24]
    assert returns.line_y[1] == pytest.approx(np.mean([sum(e.rewards) for e in episodes[:3]]))
    assert returns.note == "4 whole episodes"
    assert found["Length of each episode"].y.tolist() == list(lengths)
    rewards = [r for e in episodes for r in e.rewards]
    chart = found["Reward of each transition"]
    assert dict(zip(chart.labels, chart.counts.tolist(), strict=True)) == {
        f"{value:g}": rewards.count(value) for value in sorted(set(rewards))
    }
    actions = [a for e in episodes for a in e.actions]
    chart = found["Actions chosen"]
    assert dict(zip(map(int, chart.labels), chart.counts.tolist(), strict=True)) == {
        value: actions.count(value) for value in sorted(set(actions))
    }
    sizes = found["Bytes of each field"]
    rows = sum(lengths) + 4
    assert dict(zip(sizes.names, sizes.raw.tolist(), strict=True))["observation"] == rows * 192


def test_episodes_that_are_not_whole_are_left_out(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 1, (2,)), action_space=Discrete(2), capacity=20
    ) as buffer:
        for step in range(30):  # episodes of eight; the first ones leave, the last one is open
            buffer.add(np.zeros(2, np.float32), 0, 1.0, step % 8 == 7, False)
        episodes = episodes_of(buffer)
        sections = charts_of(buffer, episodes, buffer.statistics())
    assert episodes.whole.tolist() == [False, True, False]
    chart = sections["Episodes"][0]
    assert chart.y.tolist() == [8]
    assert chart.note == "1 whole episodes; 2 cut, unfinished or half evicted, left out"


def test_many_episodes_become_bins(tmp_path):
    count = 1000
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Discrete(2), action_space=Discrete(2), capacity=None
    ) as buffer:
        for step in range(count):
            buffer.add(0, 0, float(step), True, False)
    chart = charts(tmp_path / "s")["Return of each episode"]
    assert len(chart.x) == 0
    assert len(chart.line_y) < count / 4
    groups = np.array_split(np.arange(count), len(chart.line_y))
    np.testing.assert_allclose(chart.line_y, [np.median(g) for g in groups])
    np.testing.assert_allclose(chart.band[0], [np.quantile(g, 0.1) for g in groups])
    np.testing.assert_allclose(chart.band[1], [np.quantile(g, 0.9) for g in groups])


@pytest.mark.parametrize(
    ("names", "labels"),
    [([], ["action[0]", "action[1]"]), (["hip", "knee"], ["action: hip", "action: knee"])],
)
def test_vectors_of_many_values_become_histograms(tmp_path, names, labels):
    actions = record_vectors(tmp_path / "s")
    with diskreplay.open(tmp_path / "s", "a") as buffer:
        buffer.set_metadata({"names": {"action": names}})
    found = charts(tmp_path / "s")
    for component, label in enumerate(labels):
        chart = found[f"Values of {label}"]
        assert chart.x_label == label
        values = actions[..., component].ravel()
        assert chart.labels == []
        assert chart.edges[0] == values.min()
        assert chart.edges[-1] == values.max()
        np.testing.assert_array_equal(chart.counts, np.histogram(values, len(chart.counts))[0])
    assert "Priority of each transition" not in found


@pytest.mark.parametrize(("priorities", "log"), [((1, 2, 3), False), ((1e-4, 1, 90), True)])
def test_priorities_are_those_that_were_given(tmp_path, priorities, log):
    record(tmp_path / "s", (30,))
    with diskreplay.open(tmp_path / "s", mode="a") as buffer:
        ids = buffer.sampleable_ids()
        given = np.resize(priorities, len(ids)).astype(float)
        buffer.update_priorities(ids, given)
    chart = charts(tmp_path / "s")["Priority of each transition"]
    assert chart.log_edges is log
    assert chart.counts.sum() == len(ids) == 30
    assert chart.counts[0] == chart.counts[-1] == 10
    np.testing.assert_allclose(chart.edges[[0, -1]], [min(priorities), max(priorities)])


def test_nothing_recorded_and_one_value_only(tmp_path):
    record(tmp_path / "empty", ())
    assert list(charts(tmp_path / "empty")) == ["Bytes of each field"]
    record(tmp_path / "one", (1,))
    found = charts(tmp_path / "one")
    assert found["Priority of each transition"].counts.tolist() == [1]
    assert found["Priority of each transition"].labels == ["1"]
    assert found["Return of each episode"].line_name == "mean of 1 episodes"


def test_priorities_by_age(tmp_path):
    """Of rows of which the older half was updated, to twice the priority of a new one."""
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 1, (2,)), action_space=Discrete(2), capacity=500,
        alpha=1.0,
    ) as buffer:  # fmt: skip
        for step in range(240):
            buffer.add(np.zeros(2, np.float32), 0, 0.0, step == 239, False)
        older = np.arange(120)
        buffer.update_priorities(older, 2 + older / 1e6)
        sections = charts_of(buffer, episodes_of(buffer), buffer.statistics())
    _each, by_age, untouched, drawn = sections["Priorities"]
    assert by_age.line_x.tolist() == (np.arange(60) * 4 + 1.5).tolist()
    np.testing.assert_allclose(by_age.line_y, [1] * 30 + [2] * 30, atol=1e-3)
    np.testing.assert_allclose(by_age.band, [by_age.line_y] * 2, atol=1e-3)
    # The largest priority seen is what new rows get, so its owner is taken for one.
    assert untouched.line_y.tolist() == [100] * 30 + [25] + [0] * 29
    np.testing.assert_allclose(drawn.line_y, [1 / 1.5] * 30 + [2 / 1.5] * 30, atol=1e-3)
    assert drawn.note == "mean age of a draw 140 rows, of all that can be 120"
