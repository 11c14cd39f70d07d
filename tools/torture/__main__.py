"""Tries to make diskreplay lose data, return wrong rows, hang or grow: ``python tools/torture``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))  # of a checkout, the diskreplay beside this

from rich.console import Console  # noqa: E402 - and after it, since a checkout goes first
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

_console = Console(stderr=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/torture", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Callable[..., Any]:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--json", type=Path, help="write the figures here")
        return one.add_argument

    add = command("death", "kill a writer at random instants, and look at what is there")
    add("--kills", type=int, default=200, metavar="N")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=os.cpu_count() or 1)
    add("--directory", type=Path, help="where the stores are (default: in memory)")
    add = command("actors", "processes that add through rings; they and their learner are killed")
    add("--rows", type=int, default=1_000_000, metavar="N", help="in all, without kills")
    add("--kills", type=int, default=0, metavar="N", help="of actors and of the learner")
    add("--actors", type=int, default=16, metavar="N")
    add("--seed", type=int, default=0)
    add("--directory", type=Path, help="where the store is")
    add = command("shards", "shards on a Ray cluster of this machine; they and others are killed")
    for kind, count in {
        "shards": 100, "nodes": 10, "saves": 20, "learners": 10, "coordinators": 10,
    }.items():  # fmt: skip
        add(f"--{kind}", type=int, default=count, metavar="N", help=f"default: {count}")
    add("--wait-s", type=float, default=3.0, help="longest wait for a batch (default: 3)")
    add("--transport", choices=["call", "graph"], default="call", help="of the learner's draws")
    add("--seconds", type=float, metavar="S", help="after which none is killed any more")
    add("--kills-a-round", type=int, default=10, metavar="N", help="then all rows are compared")
    add("--seed", type=int, default=0)
    add("--directory", type=Path, help="where the stores are")
    add = command("growth", "leave such a cluster alone for long: does anything grow?")
    add("--seconds", type=float, default=600.0, help="default: 600")
    add("--transport", choices=["call", "graph"], default="call", help="of the learner's draws")
    add("--capacity", type=int, default=16_000, metavar="N", help="rows (default: 16,000)")
    add("--directory", type=Path, help="where the stores are")
    add = command("crowd", "one writer and many readers, in processes, threads and data loaders")
    add("--seconds", type=float, default=60.0, help="for each of five parts (default: 60)")
    add("--no-loaders", dest="with_loaders", action="store_false", help="PyTorch is not there")
    add("--directory", type=Path, help="where the stores are")
    add = command("hostile", "stores and files made to hurt, and damaged byte by byte")
    add("--inputs", type=int, default=2000, metavar="N", help="damaged ones (default: 2000)")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=os.cpu_count() or 1)
    add = command("rot", "change packed files after every block of them was read")
    add("--rounds", type=int, default=200, metavar="N")
    add("--seed", type=int, default=0)
    add = command("savers", "several writers that save into one directory; some are killed")
    add("--seconds", type=float, default=60.0, help="for each of four parts (default: 60)")
    add("--seed", type=int, default=0)
    add("--directory", type=Path, help="where the stores are")
    add = command("places", "move, link and replace directories that a writer has open")
    add("--rounds", type=int, default=300, metavar="N", help="walks of thirty steps")
    add("--seed", type=int, default=0)
    add = command("interrupts", "signals whose handlers raise, at random moments of all calls")
    add("--seconds", type=float, default=60.0, help="default: 60")
    add("--seed", type=int, default=0)
    add("--directory", type=Path, help="where the stores are")
    add = command("endurance", "go round a ring for long: does anything grow?")
    add("--rows", type=int, default=1_000_000, metavar="N", help="of low-dimensional envs")
    add("--envs", type=int, default=16, metavar="N", help="so many (default: 16)")
    add("--frames", type=int, default=100_000, metavar="N")
    add("--capacity", type=int, metavar="N", help="default: a million, or a tenth of all")
    add("--plot", type=Path, metavar="PNG")
    add("--directory", type=Path, help="where the stores are")
    add = command("memory", "record and sample frames in a memory cgroup, beside np.memmap")
    add("--frames", type=int, default=100_000, metavar="N")
    add("--limit-mib", type=int, default=512, metavar="MIB")
    add("--batches", type=int, default=1000, metavar="N")
    add("--directory", type=Path, help="where the buffers are: a disk, not a tmpfs")
    add = command("power", "cut the power at every point of a workload")
    add("--every", type=int, default=1, metavar="N", help="only each N-th point")
    add("--samples", type=int, default=20, metavar="N", help="random states at each point")
    add("--extremes", action="store_true", help="beside these, only the two extreme states")
    add("--settings", type=int, nargs="+", metavar="N", help="only these, from 0")
    add("--again", type=int, default=500, metavar="N", help="second cuts after each N-th opening")
    add("--workers", type=int, default=os.cpu_count() or 1)
    add = command("blackout", "cut the power under ext4, XFS and btrfs, in images that root mounts")
    add("--file-systems", nargs="+", metavar="NAME", help="only these (default: all there are)")
    add("--settings", type=int, nargs="+", metavar="N", help="only these, from 0")
    add("--rounds", type=int, default=10, metavar="N", help="of each, others (default: 10)")
    add("--cuts", type=int, default=12, metavar="N", help="in each round (default: 12)")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=os.cpu_count() or 1)
    add = command("replaced", "cut the power so while commands replace what is there")
    add("--commands", nargs="+", metavar="NAME", help="only these (default: all)")
    add("--file-systems", nargs="+", metavar="NAME", help="only these (default: all there are)")
    add("--rounds", type=int, default=4, metavar="N", help="of each, others (default: 4)")
    add("--cuts", type=int, default=10, metavar="N", help="in each round (default: 10)")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=os.cpu_count() or 1)
    add = command("failing", "let each system call of each operation fail in turn")
    add("--every", type=int, default=1, metavar="N", help="only each N-th of all these")
    add("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def main() -> int:
    options = vars(parse(sys.argv[1:]))
    command, target = options.pop("command"), options.pop("json")
    steps = {"death": options.get("kills"), "hostile": None, "failing": None,
             "actors": options.get("kills") or options.get("rows"),
             "shards": sum(options.get(kind, 0) for kind in (
                 "shards", "nodes", "saves", "learners", "coordinators")),
             "rot": options.get("rounds"), "places": options.get("rounds")}  # fmt: skip
    module = importlib.import_module(command)
    with Progress(console=_console, auto_refresh=False) as progress:  # no thread: workers fork
        task = progress.add_task(command, total=steps.get(command))

        def advance(amount: int = 1) -> None:
            progress.update(task, advance=amount, refresh=True)

        def say(line: str) -> None:
            progress.console.print(line)

        if command in steps:
            options["advance"] = advance
        elif command in ("blackout", "crowd", "endurance", "growth", "memory", "power", "replaced",
                         "savers"):  # fmt: skip
            options["say"] = say
        figures = module.run(**options)
    about = {
        "command": " ".join(["tools/torture/run", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if target:
        target.write_text(json.dumps({"about": about, **figures}, indent=1, default=str))
    show(command, figures)
    return 1 if figures.get("failures") else 0


def show(command: str, figures: dict[str, Any]) -> None:
    """The figures as a table, and every failure in full."""
    console = Console()
    table = Table("", "figure", title=command, title_justify="left")
    for name, value in _flat(figures):
        table.add_row(name, f"{value:,.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    failures = figures.get("failures", [])
    for failure in failures:
        console.print(failure, style="red", markup=False)
    console.print(f"{len(failures)} failures" if failures else "nothing was lost", style="bold")


def _flat(figures: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in figures.items():
        if name in ("failures", "series"):
            continue
        if isinstance(value, dict):
            found += _flat(value, f"{before}{name} ")
        else:
            found.append((before + name, value))
    return found


if __name__ == "__main__":
    sys.exit(main())
