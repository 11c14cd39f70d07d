"""How values of vectors are spread, beside NumPy over all of them."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.pictures import vectors
from diskreplay.pictures.vectors import vectors_of

SPACE = Dict({"arm": Box(-9, 9, (3,)), "camera": Box(0, 255, (6, 6), np.uint8)})


@pytest.fixture
def buffer():
    rng = np.random.default_rng(0)
    with diskreplay.ReplayBuffer(
        None, observation_space=SPACE, action_space=Discrete(4), capacity=100, num_envs=2,
        extras={"value": ((), "float32")},
    ) as made:  # fmt: skip
        for row in range(60):
            arm = rng.normal(size=(2, 3)).astype("f4")
            seen = {"arm": arm, "camera": np.zeros((2, 6, 6), np.uint8)}
            end = np.array([row % 7 == 6, False])
            made.add(seen, [row % 4] * 2, [0.0] * 2, end, [False] * 2, seen,
                     value=np.array([row, np.nan if row % 10 == 0 else -row]))  # fmt: skip
        yield made


def columns(buffer, name, *, finals):
    ids = []
    for env, (first, stop) in enumerate(buffer.bounds.tolist()):
        ids += [row * 2 + env for row in range(first, stop)]
    ids = np.sort(ids)
    if not finals:
        ids = ids[~buffer.take("is_final", ids)]
    return ids, buffer.take(name, ids).reshape(len(ids), -1)


def test_each_component_of_what_is_no_picture(buffer):
    found = {each["name"]: each for each in vectors_of(buffer)}
    assert list(found) == ["action", "value", "observation/arm"]
    for name, each in found.items():
        ids, values = columns(buffer, name, finals=name.startswith("observation"))
        assert each["rows"] == len(ids)
        assert each["size"] == values.shape[1] == len(each["components"])
        for at, component in enumerate(each["components"]):
            its = values[:, at].astype(np.float64)
            kept = its[np.isfinite(its)]
            assert component["not_finite"] == len(its) - len(kept)
            for figure in ("min", "max", "mean", "std"):
                assert component[figure] == pytest.approx(getattr(kept, figure)())
            histogram, time = component["histogram"], component["time"]
            assert sum(histogram["counts"]) == len(kept)
            assert len(histogram["counts"]) == min(40, len(np.unique(kept)))
            assert (histogram["edges"][0], histogram["edges"][-1]) == (kept.min(), kept.max())
            assert len(time["x"]) == 60
            assert (np.diff(time["x"]) >= 0).all()
            rows = (ids // 2)[np.isfinite(its)]
            assert time["x"][0] == np.array_split(rows, 60)[0].mean()
            assert time["middle"][-1] == pytest.approx(np.median(np.array_split(kept, 60)[-1]))
            assert (np.array(time["low"]) <= np.array(time["high"])).all()


def test_values_whose_sum_is_no_number(recwarn):
    values = np.array([1.7e308, -1.7e308, 1.5e308, 1.0] * 20)
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(-np.inf, np.inf, (2,), np.float64), action_space=Discrete(2),
        capacity=100,
    ) as buffer:  # fmt: skip
        for value in values:
            buffer.add([value, 1.7e308], 0, 0.0, False, False)
        spread, same = vectors_of(buffer)[1]["components"]
    small = values / 2**600
    assert spread["mean"] == pytest.approx(small.mean() * 2**600)
    assert spread["std"] == pytest.approx(small.std() * 2**600)
    assert (spread["min"], spread["max"]) == (-1.7e308, 1.7e308)
    assert same["mean"] == pytest.approx(1.7e308)
    assert same["std"] == pytest.approx(0, abs=1e293)
    for component in (spread, same):
        for name in ("low", "middle", "high"):
            assert None not in component["time"][name]
    assert not recwarn.list


def test_a_sample_is_spread_over_all_rows(buffer):
    every = vectors_of(buffer)[2]["rows"]
    found = vectors_of(buffer, rows=20)[2]
    assert 15 <= found["rows"] <= 20 < every
    assert found["components"][0]["time"]["x"][0] <= 3 + int(buffer.bounds[:, 0].max())


def test_without_rows_or_without_a_finite_value():
    assert vectors._component(np.arange(3), np.full(3, np.nan)) == {
        "not_finite": 3, "histogram": None, "time": None
    }  # fmt: skip
    with diskreplay.ReplayBuffer(
        None, observation_space=SPACE, action_space=Discrete(4), capacity=100
    ) as empty:
        assert vectors_of(empty) == []
