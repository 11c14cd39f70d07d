"""One small Ray cluster a module, on loopback.

The directory is not called `ray`: where Ray is not installed, `import ray` would find it.
"""

from pathlib import Path

import pytest

from tests.on_ray.one_machine import ray_cluster

try:
    import ray  # noqa: F401
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]  # a skip is not possible here


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("cluster")


@pytest.fixture(scope="module")
def cluster():
    """Ray, started for the tests of one module and ended after them."""
    with ray_cluster() as ray:
        yield ray
