"""A small Ray cluster on loopback."""

import contextlib
import os
import shutil
import tempfile


@contextlib.contextmanager
def ray_cluster():
    """Ray, started, and ended at the end."""
    import ray

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
