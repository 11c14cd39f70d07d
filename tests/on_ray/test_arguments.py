"""What a sharded buffer is given is checked before anything is started."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from diskreplay.errors import DiskReplayError, InvalidInputError
from diskreplay.ray import arguments, sharded_buffer
from diskreplay.ray.arguments import check_transport, options_of

GIVEN = {
    "observation_space": Box(-1, 1, (2,)), "action_space": Discrete(2), "num_shards": 2,
    "num_envs": 6, "env_group": None, "capacity": 600, "name": "replay", "stack_size": 1,
    "stack_padding": "zero", "update_horizon": 1, "gamma": 0.99, "batch_size": 32, "extras": None,
    "compressor": "auto", "segment_rows": None, "alpha": 0.6, "beta": 0.4,
    "weight_normalization": "batch", "resources": "spread", "timeout": 60, "shard_timeout": 2.0,
    "lease_seconds": np.float32(600), "failover_after": None,
}  # fmt: skip


def test_what_all_clients_and_shards_are_made_from():
    options = options_of(GIVEN)
    assert options["num_shards"] == len(options["envs"]) == 2
    assert (options["num_envs"], options["capacity"], options["name"]) == (6, 600, "replay")
    assert options["buffer"]["extras"] == {}
    for name, seconds in (("timeout", 60.0), ("shard_timeout", 2.0), ("lease_seconds", 600.0)):
        assert options[name] == seconds
        assert type(options[name]) is float
    assert options["failover_after"] is None
    assert options_of(GIVEN | {"failover_after": 0})["failover_after"] == 0.0
    assert options_of(GIVEN | {"capacity": None})["capacity"] is None
    assert options_of(GIVEN | {"capacity": 1e3})["capacity"] == 1000
    resources = [{"a": 1}, {"b": 1}]
    assert options_of(GIVEN | {"resources": resources})["num_shards"] == 2


@pytest.mark.parametrize("value", [np.inf, 1e300, np.float64(1e12)])
def test_times_without_an_end(value):
    """Ray makes whole milliseconds of them, of int64."""
    given = dict.fromkeys(("timeout", "shard_timeout", "lease_seconds", "failover_after"), value)
    options = options_of(GIVEN | given)
    for name in ("timeout", "shard_timeout"):
        assert options[name] >= 3 * 365 * 86_400
        assert int(options[name] * 1e9) < 2**62  # nanoseconds too, with those till now
    assert options["lease_seconds"] == options["failover_after"] == value  # not for Ray


@pytest.mark.parametrize("name", ["timeout", "shard_timeout", "lease_seconds", "failover_after"])
@pytest.mark.parametrize(
    "value", ["60", -1, -0.1, np.nan, True, [1], np.array([1, 2]), 10**400, 1j]
)
def test_seconds(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: seconds from 0 on expected"):
        options_of(GIVEN | {name: value})


@pytest.mark.parametrize(
    "changed",
    [
        {"timeout": None}, {"capacity": 0}, {"capacity": -5}, {"capacity": 1.5},
        {"capacity": "many"}, {"capacity": True}, {"capacity": 2**63}, {"num_shards": 0},
        {"num_shards": 2**14 + 1}, {"num_shards": 2.5}, {"num_envs": 0}, {"num_envs": None},
        {"env_group": 0}, {"extras": 5}, {"extras": [1]}, {"extras": {"h": 5}}, {"gamma": 2},
        {"batch_size": 0}, {"stack_padding": "none"}, {"alpha": -1}, {"beta": "x"},
        {"weight_normalization": "x"}, {"compressor": "gzip"}, {"observation_space": None},
        {"name": "../x"}, {"name": ""}, {"name": None}, {"resources": [{}]}, {"resources": None},
        {"resources": "pack"}, {"resources": [{}] * 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(changed):
    with pytest.raises(DiskReplayError):
        options_of(GIVEN | changed)


def test_transports(monkeypatch):
    for version, old in (("2.49.9", True), ("2.50.0", False), ("3.0.0rc1", False), ("2.9", True)):
        monkeypatch.setattr(arguments.ray, "__version__", version)
        check_transport("call")
        if old:
            with pytest.raises(InvalidInputError, match=r"'graph' needs Ray 2\.50 or later"):
                check_transport("graph")
        else:
            check_transport("graph")
    for transport in ("", None, "calls", ["call"]):
        with pytest.raises(InvalidInputError, match="'call' or 'graph' expected"):
            check_transport(transport)


class Unknown(np.random.PCG64):
    """What is saved of it names a class that NumPy does not have."""


@pytest.mark.parametrize("seed", ["x", -1, 1.5, np.random.Generator(Unknown(1))], ids=str)
def test_a_seed_that_is_none_starts_nothing(tmp_path, monkeypatch, seed):
    started = []
    for name in ("refuse_running", "named"):
        monkeypatch.setattr(sharded_buffer, name, started.append)
    given = {name: given for name, given in GIVEN.items() if name != "name"}
    with pytest.raises(InvalidInputError, match=r"^seed: "):
        sharded_buffer.ShardedReplayBuffer(tmp_path / "replay", **given, seed=seed)
    with pytest.raises(InvalidInputError, match=r"^seed: "):
        sharded_buffer.ShardedReplayBuffer.connect(seed=seed)
    assert not started
    assert list(tmp_path.iterdir()) == []
