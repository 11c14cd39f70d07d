"""A Ray cluster of three nodes, on loopback."""

import contextlib
import os
import shutil
import tempfile


@contextlib.contextmanager
def three_nodes():
    """A head, and two nodes with a resource of their own each; yields the cluster's address."""
    from ray.cluster_utils import Cluster

    # Else an actor would not come to run beside other processes.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    os.environ["RAY_raylet_start_wait_time_s"] = "300"  # noqa: SIM112 - beside busy processes
    directory = tempfile.mkdtemp(prefix="dr-", dir="/tmp")  # the paths of its sockets are short
    # Where it says, for "auto", which cluster this is: not where others on this machine look.
    before, os.environ["RAY_TMPDIR"] = os.environ.get("RAY_TMPDIR"), directory
    os.mkdir(os.path.join(directory, "ray"))
    cluster = Cluster()
    how = {"num_cpus": 2, "object_store_memory": 200 << 20, "include_dashboard": False}
    try:
        cluster.add_node(**how)
        cluster.add_node(**how, resources={"replay0": 1})
        cluster.add_node(**how, resources={"replay1": 1})
        yield cluster.address
    finally:
        cluster.shutdown()
        if before is None:
            del os.environ["RAY_TMPDIR"]
        else:
            os.environ["RAY_TMPDIR"] = before
        shutil.rmtree(directory, ignore_errors=True)
