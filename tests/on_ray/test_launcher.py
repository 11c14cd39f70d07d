"""Which actors are started where, and found again; without a cluster."""

from types import SimpleNamespace

import pytest

from diskreplay.errors import InvalidInputError, ShardsLostError, StoreError
from diskreplay.ray import launcher
from diskreplay.ray.coordinator import Coordinator
from diskreplay.ray.shard import Shard
from tests.on_ray.without_ray import LocalActor, answer

OPTIONS = {
    "name": "r", "num_shards": 3, "num_envs": 8, "capacity": 1000, "envs": [4, 2, 2],
    "env_group": 2, "buffer": {"alpha": 0.6},
}  # fmt: skip


@pytest.fixture
def cluster(monkeypatch):
    """What was started, by name; and which shards cannot be opened."""
    made = SimpleNamespace(started={}, errors={}, faults={})

    def started(kind, arguments, *, name, **options):
        def open_():
            if name in made.errors:
                raise made.errors[name]

        actor = LocalActor(SimpleNamespace(open=open_))
        actor.faults = list(made.faults.get(name, []))
        made.started[name] = SimpleNamespace(
            kind=kind, arguments=arguments, options=options, actor=actor
        )
        return actor

    def named(name):
        return made.started[name].actor if name in made.started else None

    for function in (started, named, answer):
        monkeypatch.setattr(launcher, function.__name__, function)
    monkeypatch.setattr(launcher, "living_nodes", lambda: ["n0", "n1"])
    monkeypatch.setattr(launcher, "this_node", lambda: "n1")
    return made


def test_shards_are_spread_over_the_nodes(tmp_path, cluster):
    coordinator, shards = launcher.start(tmp_path, OPTIONS, "limiter", "spread")
    found = cluster.started
    assert list(found) == ["r", "r/0", "r/1", "r/2"]
    assert found["r"].kind is Coordinator
    assert found["r"].arguments == (OPTIONS, "limiter", tmp_path / "counts")
    assert found["r"].options["node"] == "n1"
    assert [found[f"r/{n}"].options for n in range(3)] == [
        {"node": "n0"}, {"node": "n1"}, {"node": "n0"}
    ]  # fmt: skip
    for number, envs in enumerate(OPTIONS["envs"]):
        each = found[f"r/{number}"]
        assert each.kind is Shard
        at, directory, identity, options = each.arguments
        assert (at, directory) == (number, tmp_path / f"shard-{number}")
        assert identity == {"shard": number, "num_shards": 3, "num_envs": envs}
        assert options == {
            "alpha": 0.6, "num_envs": envs, "env_group": 2, "name": f"r-{number}",
            "capacity": 125 * envs,
        }  # fmt: skip
        assert each.actor.asked == ["open"]
    assert coordinator is found["r"].actor
    assert shards == [found[f"r/{n}"].actor for n in range(3)]
    assert launcher.shards_of("r", 3) == shards


def test_shards_go_where_their_resources_are(tmp_path, cluster):
    resources = [{"disk": 1.0}, {"ssd": 0.5}, {}]
    launcher.start(tmp_path, OPTIONS | {"capacity": None}, None, resources)
    for number in range(3):
        each = cluster.started[f"r/{number}"]
        assert each.options == {"resources": resources[number]}
        assert each.arguments[3]["capacity"] is None


def test_nothing_runs_where_one_cannot_be_opened(tmp_path, cluster):
    cluster.errors["r/1"] = StoreError("damaged")
    with pytest.raises(StoreError, match="damaged"):
        launcher.start(tmp_path, OPTIONS, None, "spread")
    assert [each.actor.asked[-1] for each in cluster.started.values()] == ["kill"] * 4
    del cluster.errors["r/1"]
    cluster.faults["r/2"] = ["before"]
    with pytest.raises(ShardsLostError, match="shard-2: its shard did not start"):
        launcher.start(tmp_path, OPTIONS, None, "spread")
    assert [each.actor.asked[-1] for each in cluster.started.values()] == ["kill"] * 4


def test_a_buffer_that_is_not_whole_or_runs_already(tmp_path, cluster):
    launcher.refuse_running("r")
    launcher.start(tmp_path, OPTIONS, None, "spread")
    with pytest.raises(InvalidInputError, match="'r' is running in this cluster"):
        launcher.refuse_running("r")
    with pytest.raises(InvalidInputError, match="is about to be made or closed"):
        launcher.shards_of("r", 4)
