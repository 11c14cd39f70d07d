"""One small Ray cluster on loopback, for all tests that ask for one.

The directory is not called `ray`: where Ray is not installed, `import ray` would find it.
"""

import contextlib
from pathlib import Path

import pytest

from tests.on_ray.one_machine import ray_cluster

try:
    import ray  # noqa: F401
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]  # a skip is not possible here


_running = contextlib.ExitStack()  # with the cluster


def pytest_collection_modifyitems(items):
    """Those that share the cluster are the first ones."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("cluster")
    items.sort(key=lambda item: "cluster" not in item.fixturenames)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """The cluster ends before what starts another one, which cannot be in the same process."""
    try:
        return (yield)
    finally:
        if nextitem is not None and "cluster" not in nextitem.fixturenames:
            _running.close()


@pytest.hookimpl(trylast=True)  # what stands on it has been torn down
def pytest_sessionfinish():
    _running.close()


@pytest.fixture(scope="module")
def cluster():
    """Ray, started for the first of the tests that ask for it and ended after the last one. They
    have buffers of other names, or close them."""
    import ray

    if not ray.is_initialized():
        _running.enter_context(ray_cluster())
    return ray
