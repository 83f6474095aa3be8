"""`python -m benchmarks.attack.soak`: an hour of resets and silent callers; what stays?

Callers ask both ports all the while, and every answer counts. Exit status 1: memory, descriptors or
goroutines of the gateway, or of the server behind it, have grown, or a caller was not answered.
"""

from __future__ import annotations

import argparse
import json
import ssl
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.attack.__main__ import gateway_of, make_certificates, rss_mib
from benchmarks.attack.callers import Callers
from benchmarks.plot import plot
from benchmarks.process import ROOT, Service, running
from benchmarks.report import machine, table, write

_RELIABILITY = ROOT / "docs" / "reliability.md"
_BEGIN = "<!-- edge soak: written by `python -m benchmarks.attack.soak --write` -->"
_PER_S = 5.0
_SAMPLES = 30
_QUIET_S = 100.0  # at the end, until the server has closed every silent connection
_MOST_MIB = 8.0
_MOST_COUNT = 20.0  # silent callers come and go
_GOROUTINES = "pipeline_gateway_go_goroutines "


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources in use at a moment, `at_s` after the beginning."""

    at_s: float
    gateway_mib: float
    gateway_files: int
    goroutines: int
    server_mib: float
    server_files: int
    server_threads: int


_FIGURES: dict[str, tuple[Callable[[Sample], float], float]] = {
    "gateway: RSS, MiB": (lambda sample: sample.gateway_mib, _MOST_MIB),
    "gateway: descriptors": (lambda sample: sample.gateway_files, _MOST_COUNT),
    "gateway: goroutines": (lambda sample: sample.goroutines, 3 * _MOST_COUNT),
    "server: RSS, MiB": (lambda sample: sample.server_mib, _MOST_MIB),
    "server: descriptors": (lambda sample: sample.server_files, _MOST_COUNT),
    "server: threads": (lambda sample: sample.server_threads, 4.0),
}


class Watch:
    """Looks at a service and its gateway."""

    def __init__(self, service: Service, authority: Path) -> None:
        self._service = service
        self._gateway = gateway_of(service)
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._start = time.monotonic()

    def look(self) -> Sample:
        """Return what is held now. Raises NotMeasuredError if the gateway is another one."""
        gateway, server = gateway_of(self._service), self._service.pid
        assert gateway == self._gateway, "the gateway has ended, and came back"
        return Sample(
            at_s=time.monotonic() - self._start,
            gateway_mib=rss_mib(gateway),
            gateway_files=_count(gateway, "fd"),
            goroutines=self._goroutines(),
            server_mib=rss_mib(server),
            server_files=_count(server, "fd"),
            server_threads=_count(server, "task"),
        )

    def _goroutines(self) -> int:
        url = f"https://localhost:{self._service.http_port}/metrics"
        with urllib.request.urlopen(url, context=self._tls, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = (line for line in lines if line.startswith(_GOROUTINES))
        return round(float(found.split()[1]))


def _count(pid: int, folder: str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/{folder}").iterdir())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a soak; the last sample is of the idle time after it."""

    samples: Sequence[Sample]
    answered: int
    failures: Sequence[str]
    nuisances: dict[str, int]

    def rows(self) -> list[list[str]]:
        """A row for each figure: at the beginning, in the last two thirds, in the quiet."""
        rows_ = []
        for name, (figure, most) in _FIGURES.items():
            before, after = self._thirds(figure)
            is_flat = after - before <= most
            verdict = "flat" if is_flat else "**grows**"
            first, last = figure(self.samples[0]), figure(self.samples[-1])
            rows_.append(
                [name, *(f"{value:.1f}" for value in (first, before, after, last)), verdict]
            )
        return rows_

    @property
    def is_met(self) -> bool:
        return not self.failures and all(row[-1] == "flat" for row in self.rows())

    def _thirds(self, figure: Callable[[Sample], float]) -> tuple[float, float]:
        loaded = self.samples[1:-1]
        third = max(1, len(loaded) // 3)
        return (
            statistics.fmean(map(figure, loaded[-2 * third : -third] or loaded)),
            statistics.fmean(map(figure, loaded[-third:])),
        )


def soak(seconds: float) -> Outcome:
    """Run it; a line for each sample."""
    with TemporaryDirectory(prefix="soak-") as folder:
        authority, certificate, key = make_certificates(Path(folder))
        with running("secured", str(certificate), str(key)) as service:
            callers = Callers(service.http_port, service.grpc_port, authority, every_s=0.2)
            service.first_answer(callers.first)
            callers.ask(5.0)
            return _soak(service, callers, Watch(service, authority), seconds)


def _soak(service: Service, callers: Callers, watch: Watch, seconds: float) -> Outcome:
    samples, answered, failures = [watch.look()], 0, list[str]()
    ports = (str(service.http_port), str(service.grpc_port))
    nuisance = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attack.nuisance", *ports, str(seconds), str(_PER_S)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        for _ in range(_SAMPLES):
            tallies = callers.ask(seconds / _SAMPLES)
            answered += sum(len(tally.times_s) for tally in tallies.values())
            failures += [text for tally in tallies.values() for text in tally.failures]
            samples.append(watch.look())
            print(samples[-1], answered, failures[-1:], flush=True)
        output, _ = nuisance.communicate(timeout=120)
    finally:
        nuisance.kill()
        nuisance.wait()
    time.sleep(min(_QUIET_S, seconds))
    samples.append(watch.look())
    return Outcome(samples, answered, failures, json.loads(output))


def markdown(outcome: Outcome, seconds: float) -> str:
    """Return the report."""
    columns = ("", "at first", "second third", "last third", "afterwards", "verdict")
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.nuisances.items()))
    return (
        f"{machine()}. {seconds / 60:.0f} minutes; {outcome.answered:,} requests answered, "
        f"{len(outcome.failures)} not. Beside them: {counts}.\n\n{table(columns, outcome.rows())}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--write", action="store_true", help=f"into {_RELIABILITY.name}")
    parser.add_argument("--plot", type=Path, help="a PNG of what is held over time")
    given = parser.parse_args()
    outcome = soak(given.seconds)
    if given.plot is not None:
        at_s = [sample.at_s for sample in outcome.samples]
        figures = {name: [*map(of, outcome.samples)] for name, (of, _) in _FIGURES.items()}
        plot(given.plot, "the edge", at_s, figures)
    report = markdown(outcome, given.seconds)
    print(report)
    print(*outcome.failures[:10], sep="\n")
    if given.write:
        write(report, _RELIABILITY, _BEGIN)
    return 0 if outcome.is_met else 1


if __name__ == "__main__":
    sys.exit(main())
