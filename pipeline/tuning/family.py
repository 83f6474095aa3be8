"""CPU time and memory of a process and its descendants, from /proc."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _CPU_TICKS = 1, slice(11, 15)  # fields of /proc/<pid>/stat behind the name
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Family:
    """Some processes: the CPU time in s that they have used, and their memory in MiB.

    Of memory that several share each has its part. `each_mb` is the mean of all but the first,
    0 without such.
    """

    cpu_s: float
    memory_mb: float
    each_mb: float


def family_of(root: int) -> Family:
    """Return what the process `root` and its descendants use. Raises OSError: it is not there."""
    stats = _stats()
    if root not in stats:
        raise ProcessLookupError(f"process {root} is gone")
    pids = [root]
    for pid in pids:  # grows while it is walked
        pids += [child for child, fields in stats.items() if int(fields[_PARENT]) == pid]
    ticks = sum(int(field) for pid in pids for field in stats[pid][_CPU_TICKS])
    sizes = [_memory_bytes(pid) / _MIB for pid in pids]
    return Family(ticks / _TICKS_PER_S, sum(sizes), sum(sizes[1:]) / (len(sizes) - 1 or 1))


def _stats() -> dict[int, list[str]]:
    stats = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    return stats


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
