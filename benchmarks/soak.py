"""`python -m benchmarks.soak`: a million requests over HTTP; is resident memory flat?

With `--processes`: payloads of 10 B to 4 MB over gRPC through two process Ops for `--seconds`;
are processes, descriptors, resident and shared memory flat?
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks import NotMeasuredError
from benchmarks.ask import ask_http
from benchmarks.catalog import GROUPS, Case
from benchmarks.family import Holdings
from benchmarks.load import http_load, missing_tools
from benchmarks.mixed import figures_of, soak_processes
from benchmarks.plot import plot
from benchmarks.process import Service, running

_CASES = {case.name: case for case in GROUPS["http"]}
_CLIENTS = 64
_STRETCH_S = 2
_ROWS = 10
_MOST_GROWTH_MIB = 2.0  # a bare uvicorn echo grows by 0.8
_MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--processes", action="store_true", help="mixed sizes, process workers")
    parser.add_argument("--seconds", type=float, default=600.0, help="with --processes")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--plot", type=Path, help="a PNG of what is held over time")
    parser.add_argument("--case", choices=_CASES, default="E echo, HTTP", metavar="NAME")
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"missing load generators: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    if arguments.processes:
        return 0 if soak_processes(arguments.seconds, plot_path=arguments.plot) else 1
    case = _CASES[arguments.case]
    with running(*case.command) as service:
        growth_mib = soak(case, service, arguments.requests, arguments.plot)
    flat = growth_mib <= _MOST_GROWTH_MIB
    print(
        f"growth after the first tenth: {growth_mib:+.1f} MiB: "
        f"{'flat' if flat else f'not flat, more than {_MOST_GROWTH_MIB:g} MiB'}"
    )
    return 0 if flat else 1


def soak(case: Case, service: Service, total: int, plot_path: Path | None = None) -> float:
    """Print RSS each tenth of the way; by how many MiB it grew after the first tenth."""
    url = f"http://127.0.0.1:{service.http_port}{case.path}"
    answer = service.first_answer(lambda: ask_http(url, case.question))
    done, began = 0, time.monotonic()
    samples, held, at_s = [_sample(service, done)], list[Holdings](), list[float]()
    while done < total:
        done += http_load(url, case.question, _CLIENTS, _STRETCH_S).requests
        held.append(service.holdings())
        at_s.append(time.monotonic() - began)
        if done >= len(samples) * total / _ROWS:
            samples.append(_sample(service, done))
    if ask_http(url, case.question) != answer:
        raise NotMeasuredError("the last answer differs from the first")
    if plot_path is not None:
        plot(plot_path, f"{done:,} requests", at_s, figures_of(held))
    return samples[-1] - samples[1]


def _sample(service: Service, done: int) -> float:
    rss_mib = service.usage().rss_bytes / _MIB
    print(f"{done:>9,} requests: RSS {rss_mib:.1f} MiB", flush=True)
    return rss_mib


if __name__ == "__main__":
    sys.exit(main())
