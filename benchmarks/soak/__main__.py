"""`python -m benchmarks.soak KIND`: does a service hold more and more under a load that lasts?

Processes, descriptors, threads, resident and shared memory of the service while it idles between
stretches of load. Every answer is checked. Exit status 1: the lower quartile of one of them in the
last third of the time is above that of the third before; of memory, by more than what the allocator
may keep, and of regions of shared memory by more than 16.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.family import Holdings
from benchmarks.load import missing_tools
from benchmarks.plot import plot
from benchmarks.process import Service
from benchmarks.soak.loads import SOAKS, Soak

_SETTLING_S = 5.0  # at most, for the connections of a stretch to be closed on both sides
_ROWS = 30
_FEWEST_SAMPLES = 6  # two in each third
_MIB = 2**20
_MOST_REGIONS = 16.0  # there are as many as were ever in use at a time; a leak has more each minute
FIGURES: Mapping[str, Callable[[Holdings], float]] = {
    "processes": lambda held: held.processes,
    "descriptors": lambda held: held.descriptors - held.shared_descriptors,
    "regions of shared memory": lambda held: held.shared_descriptors,
    "threads": lambda held: held.threads,
    "RSS, MiB": lambda held: held.private_bytes / _MIB,
    "shared memory, MiB": lambda held: held.shared_bytes / _MIB,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("kind", choices=SOAKS, nargs="?", default="threads")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--requests", type=int, default=0, help="and at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="a PNG of what is held over time")
    given = parser.parse_args()
    if missing := missing_tools():
        print(f"missing load generators: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    soak = SOAKS[given.kind]
    with ExitStack() as stack:
        service = soak.serve(stack)
        loads = _loads(soak, service, random.Random(given.seed))
        at_s, samples = _samples(service, loads, given.seconds, given.requests)
    if given.plot is not None:
        panels = {name: [*map(value, samples)] for name, value in FIGURES.items()}
        plot(given.plot, soak.title, at_s, panels)
    found = list(findings(samples, soak.most_mib))
    print(f"{soak.title}, {at_s[-1]:.0f} s", *(text for text, _ in found), sep="\n")
    return 0 if all(is_flat for _, is_flat in found) else 1


def _loads(soak: Soak, service: Service, rng: random.Random) -> Iterator[int]:
    """Run one stretch after the other; yield their numbers of requests."""
    while True:
        yield soak.stretch(service, rng)


def _samples(
    service: Service, loads: Iterator[int], seconds: float, least: int
) -> tuple[list[float], list[Holdings]]:
    start, at_s, samples, requests, rows = time.monotonic(), list[float](), list[Holdings](), 0, 0
    while (
        (elapsed_s := time.monotonic() - start) < seconds
        or requests < least
        or len(samples) < _FEWEST_SAMPLES
    ):
        requests += next(loads)
        samples.append(_settled(service))
        at_s.append(time.monotonic() - start)
        if elapsed_s >= rows * seconds / _ROWS:
            rows += 1
            held = ", ".join(f"{name} {of(samples[-1]):.4g}" for name, of in FIGURES.items())
            print(f"{at_s[-1]:5.0f} s {requests:>9,} requests: {held}", flush=True)
    return at_s, samples


def _settled(service: Service) -> Holdings:
    """Return what the service holds once it has noticed that the clients have left."""
    give_up = time.monotonic() + _SETTLING_S
    now = service.holdings()
    while time.monotonic() < give_up:
        time.sleep(_SETTLING_S / 10)
        before, now = now, service.holdings()
        if _counts(now) == _counts(before):
            break
    return now


def _counts(held: Holdings) -> tuple[int, int, int]:
    return held.processes, held.descriptors, held.threads


def findings(samples: Sequence[Holdings], most_mib: float) -> Iterator[tuple[str, bool]]:
    """Yield by how much each figure grew between the last two thirds, and whether it is flat.

    The first third is for warming up. The lower quartile counts: some stretches need much more
    than others, and after a few the allocator happens to give nearly all back.
    """
    third = len(samples) // 3
    for name, value in FIGURES.items():
        most = _MOST_REGIONS if name.startswith("regions") else 0.0
        most = most_mib if name.endswith("MiB") else most
        before, after = (
            statistics.quantiles(map(value, part), method="inclusive")[0]
            for part in (samples[-2 * third : -third], samples[-third:])
        )
        is_flat = after - before <= most
        verdict = "flat" if is_flat else f"not flat, more than {most:g}"
        yield f"{name}: {before:.1f} -> {after:.1f}: {verdict}", is_flat


if __name__ == "__main__":
    sys.exit(main())
