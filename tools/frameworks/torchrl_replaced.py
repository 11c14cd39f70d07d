"""A pytest plugin: every `LazyTensorStorage` of torchrl is a `DiskStorage`.

Of `MIN_BYTES` bytes (an environment variable; 0) a record and more a leaf is on disk only. Says at
the end how many storages were made.
"""

import importlib
import os
import sys

import torch  # noqa: F401 - before what is built for it

MIN_BYTES = int(os.environ.get("MIN_BYTES", 0))
made = 0

# torchrl's trees are built for one version of torch. Beside another one, a symbol that they never
# call is missing: lazy binding loads them all the same.
flags = sys.getdlopenflags()
sys.setdlopenflags(os.RTLD_LAZY)
importlib.import_module("torchrl._torchrl")

sys.setdlopenflags(flags)

from torchrl.data import LazyTensorStorage  # noqa: E402

from diskreplay.integrations.torchrl import DiskStorage  # noqa: E402


class Replaced(DiskStorage):
    """A `DiskStorage` that takes the arguments of `LazyTensorStorage`."""

    def __new__(cls, *args, consolidated=False, shared_init=False, **options):
        # Memory of several processes is what these two ask for.
        kind = LazyTensorStorage if consolidated or shared_init else cls
        made = object.__new__(kind)
        if kind is LazyTensorStorage:
            made.__init__(*args, consolidated=consolidated, shared_init=shared_init, **options)
        return made

    def __init__(self, max_size, *, compilable=False, cleanup_memmap=True, **options):
        global made
        made += 1
        super().__init__(
            max_size, min_bytes=MIN_BYTES, device=options.get("device", "cpu"),
            ndim=options.get("ndim", 1),
        )  # fmt: skip


for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "torchrl":
        for key, value in list(vars(module).items()):
            if value is LazyTensorStorage:
                setattr(module, key, Replaced)
LazyTensorStorage.__module__ = __name__  # where a pickle finds torchrl's own from now on


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"{made} storages of diskreplay were made")
