"""A plain loop in threads, without any server: the ceiling for what a service could do."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from benchmarks.family import usage_of

_WARM_UP_S = 0.3


def run_loops(
    call: Callable[[], object], seconds: float, loops: int, requests_per_call: int = 1
) -> None:
    """Print what `loops` threads that only call `call` reach, as the JSON of a Measurement."""

    def times_of_calls(limit_s: float) -> list[float]:
        times_s = []
        end = time.perf_counter() + limit_s
        while (start := time.perf_counter()) < end:
            call()
            times_s.append(time.perf_counter() - start)
        return times_s

    times_of_calls(_WARM_UP_S)
    before = usage_of(os.getpid())
    start = time.perf_counter()
    with ThreadPoolExecutor(loops) as pool:
        times_s = sorted(chain.from_iterable(pool.map(times_of_calls, [seconds] * loops)))
    took_s = time.perf_counter() - start
    after = usage_of(os.getpid())
    outcome = {
        "requests": len(times_s) * requests_per_call,
        "seconds": took_s,
        "p50_ms": statistics.median(times_s) * 1e3,
        "p99_ms": times_s[int(0.99 * (len(times_s) - 1))] * 1e3,
        "server_cpu_s": after.cpu_s - before.cpu_s,
        "rss_bytes": after.rss_bytes,
    }
    print(json.dumps(outcome))
