"""The command that compiles all kernels."""

import contextlib
import importlib

import typer

from diskreplay.cli.common import JsonOption, console, say_json
from diskreplay.cli.layout import facts

commands = typer.Typer()

MODULES = (
    "store.batch_kernels", "store.block_kernels", "store.row_kernels", "store.packing_kernels",
    "store.file_kernels", "store.checking_kernels", "store.ordering_kernels",
    "sampling.sum_tree_kernels", "sampling.row_index_kernels", "sampling.prioritized_kernels",
    "sampling.window_kernels", "sampling.episode_kernels",
    "integrations.stack_kernels",
    "compat.keras_gym_kernels", "compat.cpprb.kernels", "compat.reagent.kernels",
)  # fmt: skip


@commands.command(epilog="Example, in a Dockerfile: `RUN diskreplay warmup --json`")
def warmup(as_json: JsonOption = False) -> None:
    """Compile everything that a first run would compile, and keep it.

    This is for container images. What runs later finds everything compiled, even as a user who may
    not write to the package's directory. `NUMBA_CACHE_DIR` names another directory to keep it in.
    Run the image on the kind of processor that it was built on: for another one, Numba compiles
    again.
    """
    from diskreplay import jit

    for module in MODULES:
        # An older API whose own package (torch, say) is not installed is not used either.
        with contextlib.suppress(ImportError):
            importlib.import_module(f"diskreplay.{module}")
    done = jit.warm_up()
    if as_json:
        say_json(done._asdict())
        return
    lines = {
        "kernels": f"{done.compiled} compiled, {done.found} found compiled",
        "processor": f"{done.seconds:.1f} s",
        "kept in": done.directories,
    }
    console.print(facts(lines))
