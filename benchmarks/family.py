"""Resources of a process and all its descendants, read from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own is

# Fields of /proc/<pid>/stat, counted from the one after the name.
_STATE, _PARENT, _SESSION, _RSS_PAGES = 0, 1, 3, 21
_CPU_TICKS = slice(11, 15)  # utime, stime, and those of children that ended and were waited for


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a family has used so far, and holds now.

    `rss_bytes` counts a page as often as there are processes that have it mapped.
    """

    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resources that a family may leak.

    `shared_descriptors` are those of shared memory. `private_bytes` is resident memory without
    shared memory; `shared_bytes` is what all shared memory together occupies, counted once.
    """

    processes: int
    descriptors: int
    shared_descriptors: int
    private_bytes: int
    shared_bytes: int
    threads: int = 0


def usage_of(root: int) -> Usage:
    """CPU time and resident memory of the family of process `root`."""
    members = _family(root).values()
    ticks = sum(int(field) for fields in members for field in fields[_CPU_TICKS])
    pages = sum(int(fields[_RSS_PAGES]) for fields in members)
    return Usage(cpu_s=ticks / _TICKS_PER_S, rss_bytes=pages * _PAGE_BYTES)


def cpu_of_each(root: int) -> dict[int, float]:
    """CPU time of each process of the family of process `root`, by pid."""
    return {
        pid: sum(map(int, fields[_CPU_TICKS])) / _TICKS_PER_S
        for pid, fields in _family(root).items()
    }


def holdings_of(root: int) -> Holdings:
    """Processes (zombies too), descriptors and memory of the family of process `root`."""
    stats = _family(root)
    pids = list(stats)
    links = [link for pid in pids for link in _descriptors(pid)]
    shared = list(_memory_files(links))
    return Holdings(
        processes=len(pids),
        descriptors=len(links),
        shared_descriptors=len(shared),
        private_bytes=sum(map(_private_bytes, pids)),
        shared_bytes=_bytes_of(shared),
        threads=sum(map(_threads, pids)),
    )


def _threads(pid: int) -> int:
    """Number of threads, without those of gRPC's pool, which has more and fewer by itself."""
    count = 0
    with contextlib.suppress(OSError):  # ended meanwhile
        for comm in (_PROC / str(pid) / "task").glob("*/comm"):
            with contextlib.suppress(OSError):
                count += comm.read_text().strip() != "event_engine"
    return count


def members(root: int, name: str = "") -> list[int]:
    """Pids of the family of process `root`, without zombies; only those called `name`, if given."""
    stats = _family(root)
    living = sorted(pid for pid, fields in stats.items() if fields[_STATE] not in "ZX")
    return [pid for pid in living if not name or _name(pid) == name]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):  # ended meanwhile
        return (_PROC / str(pid) / "comm").read_text().strip()
    return ""


def _family(root: int) -> dict[int, list[str]]:
    """Stat fields by pid of `root`, its descendants, and its session, which orphans stay in."""
    stats = _all_stats()
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    family = [root, *(pid for pid, fields in stats.items() if int(fields[_SESSION]) == root)]
    for pid in family:  # grows while it is walked
        family += [child for child in children.get(pid, []) if child not in family]
    return {pid: stats[pid] for pid in family if pid in stats}


def _all_stats() -> dict[int, list[str]]:
    """The fields of /proc/<pid>/stat after the name, which may hold blanks, for all processes."""
    stats = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    return stats


def _descriptors(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):  # ended meanwhile, or a zombie
        return list((_PROC / str(pid) / "fd").iterdir())
    return []


def _private_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
        return 1024 * sum(
            int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:"))
        )
    return 0


def _bytes_of(infos: list[os.stat_result]) -> int:
    """Return the bytes that files occupy; each file counts once."""
    files = {(info.st_dev, info.st_ino): info.st_blocks for info in infos}
    return _BLOCK_BYTES * sum(files.values())


def _memory_files(links: list[Path]) -> Iterator[os.stat_result]:
    """Of those among `links` that live in memory alone."""
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(link.readlink()).startswith(("/memfd:", "/dev/shm/")):
                yield link.stat()
