"""`python -m benchmarks.model_times`: do our statistics of a model say what Triton's do?

A Python model whose `execute` takes a known time is asked in a closed loop, here and in Triton, in
turns, without and with dynamic batching. What the statistics of both grew by meanwhile is compared
field by field, a request each; beside them is what the clients saw.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import NotMeasuredError
from benchmarks.ask import V2JsonQuestion
from benchmarks.load import http_load
from benchmarks.loading import ready
from benchmarks.process import Service, running
from benchmarks.report import machine, table
from benchmarks.services.triton import installed

MOST_APART = 0.10  # of Triton's time, for those of `JUDGED`
JUDGED = ("success", "queue", "compute_infer")
FIELDS = ("success", "queue", "compute_input", "compute_infer", "compute_output")
LEAST_US = 100.0  # below it a time is the servers' own work, and not compared
SIDES = ("triton", "repository")
_WARM_UP_S = 1.0
_REST_S = 0.3
_MOST_LOOKS = 30
_BATCHING = {"plain": "", "batched": "dynamic_batching { }"}
_CONFIG = """
backend: "python"
max_batch_size: 32
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
%s
"""
_MODEL = """
import sys, time
sys.path.insert(0, %r)
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(%r)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            )])
            for request in requests
        ]
"""


@dataclass(frozen=True, slots=True)
class RowQuestion(V2JsonQuestion):
    """One row of numbers for a model that batches."""

    def as_body(self) -> bytes:
        tensor = {"name": self.key, "datatype": "FP32", "shape": [1, len(self.value)]}
        return json.dumps({"inputs": [{**tensor, "data": self.value}]}).encode()


_QUESTION = RowQuestion("x", [1.0, 2.0, 3.0, 4.0], lambda answer: True)


@dataclass(frozen=True, slots=True)
class Times:
    """One stretch of load: us a request by field, requests an execution, ms that clients saw."""

    us: Mapping[str, float]
    batch: float
    p50_ms: float


def main() -> int:
    """Print a table. Returns 1 if a time that is judged is too far from Triton's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_times")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a stretch")
    parser.add_argument("--rounds", type=int, default=3, help="of a stretch on either side")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of execute")
    given = parser.parse_args()
    site, rows, worst = installed(), list[list[str]](), 0.0
    with ExitStack() as stack:
        services = []
        for side in SIDES:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
            write_models(folder, str(site) if side == "triton" else ".", given.delay_ms / 1e3)
            services.append(service := stack.enter_context(running(side, str(folder))))
            service.first_answer(lambda: ready(service.http_port))
        for model in _BATCHING:
            for service in services:
                stretch(service, model, max(given.clients), _WARM_UP_S)
            for clients in given.clients:
                rounds = [
                    [stretch(service, model, clients, given.seconds) for service in services]
                    for _ in range(given.rounds)
                ]
                table_rows, apart = rows_of(f"{model}, {clients}", rounds)
                rows += table_rows
                worst = max(worst, apart)
    print(machine())
    print(table(("model, clients", "us a request", "Triton", "here", "ratio"), rows))
    print(f"farthest of {', '.join(JUDGED)}: {worst:.3f}; goal {MOST_APART}")
    return int(worst > MOST_APART)


def stretch(service: Service, model: str, clients: int, seconds: float) -> Times:
    """Load the model for so long; return what its statistics grew by."""
    before = _stats(service.http_port, model)
    url = f"http://127.0.0.1:{service.http_port}/v2/models/{model}/infer"
    load = http_load(url, _QUESTION, clients, seconds)
    after = _at_rest(service.http_port, model)
    return Times(*grown(before, after, clients), load.p50_ms)


def grown(
    before: Mapping[str, Any], after: Mapping[str, Any], clients: int
) -> tuple[dict[str, float], float]:
    """Return us a request by field, and requests an execution, between two statistics.

    A client that leaves at the end may have a request behind it, which here ends as failed and in
    Triton is executed. Raises NotMeasuredError: nothing was executed, or more failed.
    """

    def more(field: str, unit: str) -> int:
        old, new = before["inference_stats"][field], after["inference_stats"][field]
        return int(new.get(unit, 0)) - int(old.get(unit, 0))

    count = more("success", "count")
    executions = int(after["execution_count"]) - int(before["execution_count"])
    if not count or not executions or more("fail", "count") > clients:
        raise NotMeasuredError(f"{count} requests, {more('fail', 'count')} failed")
    return {name: more(name, "ns") / count / 1e3 for name in FIELDS}, count / executions


def rows_of(what: str, rounds: Sequence[Sequence[Times]]) -> tuple[list[list[str]], float]:
    """Return medians of the rounds, Triton's and ours, and how far those judged are apart."""
    worst, rows = 0.0, []

    def add(name: str, sides: Sequence[Sequence[float]], form: str) -> float:
        theirs, ours = (statistics.median(side) for side in sides)
        ratio = ours / theirs if theirs else 0.0
        rows.append([what, name, format(theirs, form), format(ours, form), f"{ratio:.2f}"])
        return abs(ratio - 1.0) if theirs >= LEAST_US or ours >= LEAST_US else 0.0

    pairs = list(zip(*rounds, strict=True))
    for name in FIELDS:
        apart = add(name, [[times.us[name] for times in side] for side in pairs], ",.0f")
        worst = max(worst, apart) if name in JUDGED else worst
    add("requests an execution", [[times.batch for times in side] for side in pairs], ".2f")
    add("p50 of the clients, ms", [[times.p50_ms for times in side] for side in pairs], ".2f")
    return rows, worst


def write_models(folder: Path, site: str, delay_s: float) -> None:
    """Write `plain` and `batched`; `site`: where Triton's Python finds numpy."""
    for name, batching in _BATCHING.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(_CONFIG % batching)
        (folder / name / "1" / "model.py").write_text(_MODEL % (site, delay_s))


def _at_rest(port: int, model: str) -> dict[str, Any]:
    """Return the statistics when what the clients left behind has been executed."""
    stats = _stats(port, model)
    for _ in range(_MOST_LOOKS):
        time.sleep(_REST_S)
        last, stats = stats, _stats(port, model)
        if last == stats:
            return stats
    raise NotMeasuredError(f"{model} is still at work when all clients have left")


def _stats(port: int, model: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        (stats,) = json.load(answer)["model_stats"]
    return dict(stats)


if __name__ == "__main__":
    sys.exit(main())
