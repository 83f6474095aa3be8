"""A soak of process workers: payloads of mixed sizes through two process Ops; does it leak?"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.ask import Question, ask_grpc
from benchmarks.catalog import array_question, bytes_question
from benchmarks.family import Holdings
from benchmarks.load import grpc_load
from benchmarks.plot import plot
from benchmarks.process import Service, running
from benchmarks.services.common import PROCESSES

_SMALLEST_BYTES, _LARGEST_BYTES = 10, 4 * 2**20
_LOADS = 4  # sizes at a time
_CLIENTS = 8  # of each size
_STRETCH_S = 4
_SETTLING_S = 5.0  # at most, for the connections of a stretch to be closed on both sides
_ROWS = 30
_FEWEST_SAMPLES = 6  # thirds of less would have no mean worth the name
_MOST_GROWTH_MIB = 32.0  # what the allocator of a single process may keep or not: see allocator.py
_MIB = 2**20


def soak_processes(seconds: float, seed: int = 1, plot_path: Path | None = None) -> bool:
    """Print what the service holds while it idles between stretches of load; whether it is flat.

    The same seed asks for the same sizes in the same order. Raises NotMeasuredError for a wrong
    answer.
    """
    with running("big", PROCESSES) as service:
        at_s, samples = _samples(service, seconds, random.Random(seed))
    if plot_path is not None:
        plot(plot_path, "two Ops in processes", at_s, figures_of(samples))
    findings = list(_findings(samples))
    for text, _ in findings:
        print(text)
    return all(is_flat for _, is_flat in findings)


def figures_of(samples: Sequence[Holdings]) -> dict[str, list[float]]:
    """Return the panels of a plot."""
    return {
        "processes": [float(held.processes) for held in samples],
        "descriptors": [float(held.descriptors) for held in samples],
        "RSS, MiB": [held.private_bytes / _MIB for held in samples],
        "shared memory, MiB": [held.shared_bytes / _MIB for held in samples],
    }


def _samples(
    service: Service, seconds: float, rng: random.Random
) -> tuple[list[float], list[Holdings]]:
    start = time.monotonic()
    at_s: list[float] = []
    samples: list[Holdings] = []
    requests = rows = 0
    while (elapsed_s := time.monotonic() - start) < seconds or len(samples) < _FEWEST_SAMPLES:
        requests += _stretch(service, rng)
        samples.append(_settled(service))
        at_s.append(time.monotonic() - start)
        if elapsed_s >= rows * seconds / _ROWS:
            rows += 1
            print(_row(time.monotonic() - start, requests, samples[-1]), flush=True)
    return at_s, samples


def _stretch(service: Service, rng: random.Random) -> int:
    """A few sizes at a time for some seconds, every answer checked; the number of requests."""
    questions = [_question(rng) for _ in range(_LOADS)]
    with ThreadPoolExecutor(_LOADS) as pool:
        return sum(pool.map(lambda question: _load(service, question), questions))


def _question(rng: random.Random) -> Question:
    """Bytes or an array of floats, of a size that is as likely to be tens as millions of bytes."""
    size = round(_SMALLEST_BYTES * (_LARGEST_BYTES / _SMALLEST_BYTES) ** rng.random())
    content = rng.randbytes(size)
    if rng.random() < 0.5:
        return bytes_question(content)
    return array_question(np.frombuffer(content, np.uint8)[: size // 4].astype(np.float32))


def _load(service: Service, question: Question) -> int:
    port = service.grpc_port
    answer = service.first_answer(lambda: ask_grpc(port, question))
    return grpc_load(port, question, _CLIENTS, _STRETCH_S, len(answer)).requests


def _settled(service: Service) -> Holdings:
    """Return the holdings of the service after it has noticed that the clients have left."""
    give_up = time.monotonic() + _SETTLING_S
    now = service.holdings()
    while time.monotonic() < give_up:
        time.sleep(_SETTLING_S / 10)
        before, now = now, service.holdings()
        if (now.processes, now.descriptors) == (before.processes, before.descriptors):
            break
    return now


def _row(elapsed_s: float, requests: int, held: Holdings) -> str:
    return (
        f"{elapsed_s:5.0f} s {requests:>9,} requests: {held.processes} processes, "
        f"{held.descriptors} descriptors, RSS {held.private_bytes / _MIB:.1f} MiB, "
        f"shared memory {held.shared_bytes / _MIB:.1f} MiB"
    )


def _findings(samples: Sequence[Holdings]) -> list[tuple[str, bool]]:
    """For each thing that is held: by how much it grew, and whether that is flat."""
    return [
        _growth(samples, "processes", lambda held: held.processes, most=0),
        _growth(samples, "descriptors", lambda held: held.descriptors, most=0),
        _growth(samples, "RSS MiB", lambda held: held.private_bytes / _MIB, _MOST_GROWTH_MIB),
        _growth(samples, "shared MiB", lambda held: held.shared_bytes / _MIB, _MOST_GROWTH_MIB),
    ]


def _growth(
    samples: Sequence[Holdings], what: str, value: Callable[[Holdings], float], most: float
) -> tuple[str, bool]:
    """Of the means of the last third and of the one before; the first is for warming up."""
    third = len(samples) // 3
    before = statistics.fmean(map(value, samples[-2 * third : -third]))
    after = statistics.fmean(map(value, samples[-third:]))
    is_flat = after - before <= most
    verdict = "flat" if is_flat else f"not flat, more than {most:g}"
    return f"{what}: {before:.1f} -> {after:.1f}: {verdict}", is_flat
