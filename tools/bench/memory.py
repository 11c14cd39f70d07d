"""What a process occupies, from ``/proc/self/smaps_rollup``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Bytes: `anonymous` can only go to swap; `file_backed` is page cache the process maps."""

    anonymous: int
    file_backed: int

    @classmethod
    def now(cls) -> Memory:
        fields = {}
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
            name, value, *_ = line.split()
            fields[name.rstrip(":")] = int(value) * 1024
        return cls(fields["Anonymous"], fields["Rss"] - fields["Anonymous"])

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def total_memory() -> int:
    return _meminfo("MemTotal")


def available_memory() -> int:
    return _meminfo("MemAvailable")


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value, *_ = line.split()
        if name == f"{field}:":
            return int(value) * 1024
    raise RuntimeError(f"no {field} in /proc/meminfo; the benchmark suite needs Linux")
