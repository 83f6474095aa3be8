"""`paddle_serving_client.utils`: helpers of benchmark scripts."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["MultiThreadRunner", "benchmark_args", "show_latency"]

_PERCENTILES = (80, 90, 99)


def benchmark_args() -> argparse.Namespace:
    """Return the options of a benchmark script."""
    parser = argparse.ArgumentParser("benchmark")
    parser.add_argument("--thread", type=int, default=10, help="clients at the same time")
    parser.add_argument("--model", default="", help="client configuration of the model")
    parser.add_argument("--endpoint", default="127.0.0.1:9292", help="host:port of the server")
    parser.add_argument("--request", default="rpc", help="kind of service")
    parser.add_argument("--batch_size", type=int, default=1, help="samples in a request")
    return parser.parse_args()


def show_latency(latency_list: Sequence[float]) -> None:
    """Write mean, median and percentiles of milliseconds to stderr."""
    values = np.array(latency_list)
    lines = {"mean": np.mean(values), "median": np.median(values)}
    lines |= {f"{p}_percent": np.percentile(values, p) for p in _PERCENTILES}
    sys.stderr.write("latency:\n" + "".join(f"{name}: {ms}ms\n" for name, ms in lines.items()))


class MultiThreadRunner:
    """Runs a function in several processes (not threads)."""

    def run(
        self,
        thread_func: Callable[[int, Any], list[list[Any]]],
        thread_num: int,
        global_resource: Any,
    ) -> list[list[Any]]:
        """Call `thread_func(1..thread_num, global_resource)` in parallel.

        The lists that the calls return are joined element by element.
        """
        os.environ["http_proxy"] = os.environ["https_proxy"] = ""  # no proxy
        calls = [(number + 1, global_resource) for number in range(thread_num)]
        # Forked processes need not import the script again.
        with multiprocessing.get_context("fork").Pool(thread_num) as pool:
            results = pool.starmap(thread_func, calls, chunksize=1)
        merged = results[0]
        for result in results[1:]:
            for index, items in enumerate(result or []):
                merged[index].extend(items)
        return merged
