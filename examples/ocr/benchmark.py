"""Compares the pages a second of the service with those of plain processes with the same work.

    python benchmark.py [PICTURE ...] [--config FILE] [--mode thread|process] [--rounds N]

Rounds alternate, so that both see the same machine. Prints the medians, and the private memory of
each process. CPU time is that of the server and its workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from client import ask_grpc
from plain_loop import Pace, measure, own_mib
from serving import CONFIG, Service, running

from pipeline import PipelineClient

HERE = Path(__file__).resolve().parent
PROCESSES = 2
CLIENTS = 6  # enough to keep all workers busy
WARM_S = 4.0

_CPU_TICKS = slice(11, 13)  # utime and stime among the fields of stat, counted from the state


def measure_service(service: Service, files: Sequence[bytes], seconds: float) -> Pace:
    """Measure the service with clients that each wait for their answer."""
    start_cpu = _cpu_s(service.pid)
    moments = sorted(_asked(service, files, WARM_S + seconds))
    cpu_ms = (_cpu_s(service.pid) - start_cpu) * 1000
    # From answer to answer, while all clients are active: the start and the end do not count.
    within = [moment for moment in moments if WARM_S < moment < WARM_S + seconds]
    if len(within) < 2:
        raise SystemExit(f"too slow: {len(within)} answers in {seconds:g} s, try --seconds")
    mib = [own_mib(pid) for pid in family(service.pid)]
    return Pace(
        (len(within) - 1) / (within[-1] - within[0]), cpu_ms / len(moments), sum(mib) / len(mib)
    )


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text(encoding="ascii").split()
    ]
    return [pid, *(member for child in children for member in family(child))]


def _asked(service: Service, files: Sequence[bytes], seconds: float) -> list[float]:
    """Send requests for some seconds; return the times of all answers, from the start."""
    moments: list[float] = []
    start = time.monotonic()

    def ask() -> None:
        with PipelineClient() as client:
            client.connect([service.endpoint])
            for file in cycle(files):
                ask_grpc(client, file)
                moments.append(time.monotonic() - start)
                if moments[-1] > seconds:
                    return

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return moments


def _cpu_s(root: int) -> float:
    ticks = 0
    for pid in family(root):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[_CPU_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


def _middle(paces: Sequence[Pace]) -> Pace:
    return Pace(*map(statistics.median, zip(*paces, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--mode", choices=("thread", "process"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    pictures = arguments.pictures or [HERE / "pictures" / "page.png"]
    files = [path.read_bytes() for path in pictures]
    loops, services = [], []
    for _ in range(arguments.rounds):
        loops.append(measure(files, arguments.config, PROCESSES, arguments.seconds))
        with running(arguments.config, arguments.mode) as service:
            services.append(measure_service(service, files, arguments.seconds))
            held = {pid: (_name(pid), own_mib(pid)) for pid in family(service.pid)}
    loop, ours = _middle(loops), _middle(services)
    print(f"plain loop, {PROCESSES} processes: {_shown(loop)}, {loop.mib_each:.0f} MiB each")
    print(f"service, {CLIENTS} clients: {_shown(ours)}")
    print(f"ratio of pages/s: {ours.pages_per_s / loop.pages_per_s:.2f}")
    for pid, (name, mib) in held.items():
        print(f"  {name} {pid}: {mib:.0f} MiB")


def _shown(pace: Pace) -> str:
    return f"{pace.pages_per_s:.2f} pages/s, {pace.cpu_ms_a_page:.0f} ms of CPU a page"


if __name__ == "__main__":
    main()
