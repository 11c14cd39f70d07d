"""One small Ray cluster a module, on loopback.

The directory is not called `ray`: where Ray is not installed, `import ray` would find it.
"""

import os
import shutil
import tempfile

import pytest

try:
    import ray
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]  # a skip is not possible here


@pytest.fixture(scope="module")
def cluster():
    """Ray, started for the tests of one module and ended after them."""
    # Else an actor would not come to run beside other processes.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    os.environ["RAY_raylet_start_wait_time_s"] = "300"  # noqa: SIM112 - beside busy processes
    directory = tempfile.mkdtemp(prefix="dr-", dir="/tmp")  # the paths of its sockets are short
    ray.init(
        num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, _temp_dir=directory,
        logging_level="ERROR", log_to_driver=False, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    try:
        yield ray
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
