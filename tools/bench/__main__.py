"""Benchmarks diskreplay beside its peers on one real Atari stream: ``python tools/bench``."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from contender import PRIORITIZED, UNIFORM
from markdown import to_markdown
from memory import total_memory
from registry import contenders
from report import print_report
from rich.console import Console
from runner import FACADES, FLOORS, IMPORTS, LOOKING, VECTOR_ADD, Options, Runner

DEFAULT_CACHE = Path.home() / ".cache" / "diskreplay-bench"
WIDTH = 160
"""Columns of the report where it is not printed to a terminal."""
PARTS = (IMPORTS, FLOORS, VECTOR_ADD, FACADES, LOOKING)


def parse(arguments: list[str]) -> argparse.Namespace:
    names = [*PARTS, *contenders()]
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__)
    add = parser.add_argument
    add("--frames", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N")
    add("--n-step", type=int, nargs="+", default=[1, 3], metavar="N")
    add(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"measure these only; a part of a name will do, whatever its case: {', '.join(names)}",
    )
    add("--kind", nargs="+", choices=(PRIORITIZED, UNIFORM), default=[PRIORITIZED, UNIFORM])
    add("--quick", action="store_true", help="20,000 frames and few calls: minutes, rough figures")
    add("--calls", type=int, default=3000, help="timed calls of each sampler (default: 3000)")
    add("--budget", type=float, default=30.0, help="seconds for one sampler's calls, if slow")
    add("--timeout", type=float, default=3600.0, help="seconds for one contender")
    add("--stream-steps", type=int, default=150_000, help="real steps to record, once")
    add("--cache", type=Path, default=DEFAULT_CACHE, help=f"the stream's place ({DEFAULT_CACHE})")
    add("--workdir", type=Path, help="where the buffers lie while measured (default: in the cache)")
    add("--json", type=Path, help="write every figure here, after each measurement")
    add("--markdown", type=Path, help="write the tables here, for docs/benchmarks.md")
    add("--report", type=Path, metavar="JSON", help="measure nothing; show these figures again")
    parsed = parser.parse_args(arguments)
    if parsed.only:
        wanted = [part.lower() for part in parsed.only]
        unknown = [part for part in wanted if not any(part in name.lower() for name in names)]
        if unknown:
            parser.error(f"no contender is named {', '.join(unknown)}; there are: {names}")
        names = [name for name in names if any(part in name.lower() for part in wanted)]
    parsed.names = names
    if parsed.quick:
        parsed.frames, parsed.calls, parsed.budget = [20_000], 300, 5.0
        parsed.stream_steps = min(parsed.stream_steps, 20_000)
    return parsed


def main() -> None:
    arguments = parse(sys.argv[1:])
    progress = Console(stderr=True)
    if arguments.report:
        results = json.loads(arguments.report.read_text())
    else:
        results = measure(arguments, progress)
    console = Console()
    print_report(results, console if console.is_terminal else Console(width=WIDTH))
    if arguments.markdown:
        arguments.markdown.write_text(to_markdown(results))


def measure(arguments: argparse.Namespace, console: Console) -> dict:
    cache = arguments.cache.expanduser()
    parent = (arguments.workdir or cache).expanduser()
    parent.mkdir(parents=True, exist_ok=True)
    workdir = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    options = Options(
        sizes=tuple(arguments.frames),
        n_steps=tuple(arguments.n_step),
        names=tuple(arguments.names),
        kinds=tuple(arguments.kind),
        stream_steps=arguments.stream_steps,
        calls=arguments.calls,
        budget_s=arguments.budget,
        timeout_s=arguments.timeout,
        cache=cache,
        workdir=workdir,
    )
    results = {
        "about": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            "processor": processor(),
            "memory_bytes": total_memory(),
            "quick": arguments.quick,
        },
        "notes": {name: contender.note for name, contender in contenders().items()},
    }

    def save(grown: dict) -> None:
        if arguments.json:
            partial = arguments.json.with_suffix(".partial")
            partial.write_text(json.dumps(grown, indent=1))
            partial.rename(arguments.json)

    def say(line: str) -> None:
        console.print(f"[dim]{datetime.now():%H:%M:%S}[/dim] {line}", highlight=False)

    try:
        Runner(options, results, say, save).run()
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
    return results


def processor() -> str:
    """The processor's name and how many of its cores this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")}
    cores = sum(line.startswith("processor") for line in lines)
    return f"{', '.join(sorted(models)) or platform.machine()}, {cores} cores"


if __name__ == "__main__":
    main()
