"""Two stores beside each other, beside what was recorded."""

import numpy as np
import pytest

import diskreplay

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from diskreplay.view.shown_stores import key_of
from tests.pictures.making import record, record_vectors
from tests.view.serving import asked, serving


def test_two_stores_beside_each_other(tmp_path):
    left, right = record(tmp_path / "a", (5, 9, 7)), record(tmp_path / "b", (4,) * 30, seed=1)
    with serving(tmp_path) as client:
        found = asked(client, f"compare/{key_of(tmp_path / 'a')}/{key_of(tmp_path / 'b')}")
    figures = {name: values for name, *values in found["figures"]}
    assert figures["episodes"] == [3, 30]
    assert figures["transitions kept"] == [21, 120]
    best = [max(sum(e.rewards) for e in side) for side in (left, right)]
    assert figures["best return"] == best
    charts = {chart["title"]: chart for chart in found["charts"]}
    for side, shares in zip((left, right), charts["Actions chosen"]["series"], strict=True):
        actions = [action for e in side for action in e.actions]
        wanted = [100 * actions.count(int(label)) / len(actions)
                  for label in charts["Actions chosen"]["labels"]]  # fmt: skip
        np.testing.assert_allclose(shares, wanted)
    for title in ("Returns", "Lengths", "Rewards", "Actions chosen", "Priorities"):
        for shares in charts[title]["series"]:
            assert sum(shares) == pytest.approx(100)


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        ({}, ["Values of action[0]", "Values of action[1]"]),
        ({"action": ["hip", "knee"]}, ["Values of action: hip", "Values of action: knee"]),
        ({"action": ["joint", "joint"]}, ["Values of action: joint"] * 2),
    ],
)
def test_actions_of_numbers_beside_each_other(tmp_path, names, titles):
    """Only one of them has names."""
    actions = [record_vectors(tmp_path / "a", 20), record_vectors(tmp_path / "b", 50)]
    with diskreplay.open(tmp_path / "a", "a") as buffer:
        buffer.set_metadata({"names": names})
    with serving(tmp_path) as client:
        found = asked(client, f"compare/{key_of(tmp_path / 'a')}/{key_of(tmp_path / 'b')}")
    charts = [chart for chart in found["charts"] if chart["title"].startswith("Values of")]
    assert [chart["title"] for chart in charts] == titles
    for component, chart in enumerate(charts):
        for recorded, shares in zip(actions, chart["series"], strict=True):
            values = recorded[:, :, component].ravel()
            wanted = np.histogram(values, chart["edges"])[0] / len(values)
            np.testing.assert_allclose(shares, 100 * wanted)


def test_what_is_compared_has_two_names(tmp_path):
    paths = []
    for run in ("a", "b"):
        paths.append(tmp_path / run / "replay")
        record(paths[-1], (3,))
        with diskreplay.open(paths[-1], "a") as buffer:
            buffer.set_metadata({"env_id": "Pong"})
            for number in (1, 2):
                paths.append(buffer.save(tmp_path / run / "checkpoints", number))

    def names(client, left, right):
        charts = asked(client, f"compare/{key_of(left)}/{key_of(right)}")["charts"]
        (found,) = {tuple(chart["names_of_series"]) for chart in charts}
        return found

    with serving(tmp_path) as client:
        assert names(client, paths[0], paths[3]) == ("Pong · a", "Pong · b")
        assert names(client, paths[1], paths[2]) == (
            "Pong · a/checkpoints · replay_ckpt.1", "Pong · a/checkpoints · replay_ckpt.2",
        )  # fmt: skip
        every = [names(client, one, other) for one in paths for other in paths if one != other]
    assert all(left != right for left, right in every)
