"""What importing diskreplay costs, beside what it is allowed to import."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from time import perf_counter
from typing import Any

ALLOWED = "import numpy, zarr, gymnasium"
OURS = "import diskreplay; diskreplay.ReplayBuffer"  # the import alone loads next to nothing
HEAVY = ("numba", "pandas", "matplotlib", "torch")
RUNS = 11


def measure_imports(environment: dict[str, str]) -> dict[str, Any]:
    """Medians of whole processes, the two taking turns; the first run of each is dropped."""
    seconds: dict[str, list[float]] = {ALLOWED: [], OURS: []}
    for _ in range(RUNS + 1):
        for statement, taken in seconds.items():
            begin = perf_counter()
            done = _python(statement, environment)
            taken.append(perf_counter() - begin)
            if done.returncode:
                return {"failed": done.stderr.strip().splitlines()[-1]}
    check = (
        f"{OURS}; import json, sys; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    loaded = json.loads(_python(check, environment).stdout)
    allowed, ours = (median(taken[1:]) for taken in seconds.values())
    return {"allowed_s": allowed, "diskreplay_s": ours, "ratio": ours / allowed, "loaded": loaded}


def _python(statement: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, env=environment
    )
