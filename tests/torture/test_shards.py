"""A short run of tools/torture/shards; a long one is `tools/torture/run shards`."""

import sys
from pathlib import Path

import numpy as np
import pytest

import diskreplay

pytest.importorskip("ray")
TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import hashed_steps  # noqa: E402 - of the tools
import shards  # noqa: E402


@pytest.mark.cluster
def test_one_of_each_is_killed(tmp_path):
    found = shards.run(
        shards=1, nodes=1, saves=1, learners=1, coordinators=1, directory=tmp_path, wait_s=None
    )
    assert found["failures"] == []
    assert found["killed"] == dict.fromkeys(
        ["shard", "node", "save", "learner", "coordinator"], 1
    )  # fmt: skip
    assert found["acknowledged"] > 100
    assert found["rows compared"] > found["acknowledged"]
    assert found["loads"] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stored(tmp_path):
    """Nine steps of two envs, the last of them ends an episode."""
    options = hashed_steps.options(num_envs=2, capacity=None)
    with diskreplay.PrioritizedReplayBuffer(tmp_path, **options) as buffer:
        for at in range(hashed_steps.LENGTH + 3):
            of = np.concatenate([hashed_steps.numbers(env, at + 1)[-1:] for env in range(2)])
            buffer.add(**hashed_steps.steps(of))
        yield buffer


def test_right_batches_and_rows_are_taken_for_right(stored):
    assert hashed_steps.wrong_in(stored.sample(64)) is None
    ids = stored.sampleable_ids()
    columns = {name: stored.take(name, ids) for name in stored.fields}
    assert hashed_steps.wrong_rows(columns["number"], columns) is None


@pytest.mark.parametrize(
    "name", ["observation", "next_observation", "action", "reward", "terminated", "truncated"]
)
def test_a_wrong_batch_is_seen(stored, name):
    batch = stored.sample(8)
    values = getattr(batch, name).copy()
    values[3] = ~values[3] if values.dtype == bool else values[3] + 1
    wrong = hashed_steps.wrong_in(_With(batch, name, values))
    assert wrong is not None
    assert wrong.startswith(name) or name == "observation"


class _With:
    """A batch with one array in the place of its own."""

    def __init__(self, batch, name, values):
        self._batch, self._name, self._values = batch, name, values

    def __getattr__(self, name):
        return self._values if name == self._name else getattr(self._batch, name)


def test_rows_that_are_missing_or_there_twice_are_seen(tmp_path, stored):
    one = shards.Round.__new__(shards.Round)
    one._figures = shards.Figures(None)
    rows = hashed_steps.LENGTH + 3
    assert one._compare("all", [tmp_path], [rows] * 2 + [0] * 6)[:2] == [rows] * 2
    assert one._figures.failures == []
    one._compare("more", [tmp_path], [rows + 1] * 2 + [0] * 6)
    assert "were acknowledged" in one._figures.failures.pop()
    stored.add(**hashed_steps.steps(np.array([hashed_steps.numbers(env, 2)[1] for env in (0, 1)])))
    one._compare("twice", [tmp_path], [rows + 1] * 2 + [0] * 6)
    assert "where" in one._figures.failures.pop()
    assert "where" in one._figures.failures.pop()
