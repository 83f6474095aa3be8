"""`python -m benchmarks.loading`: do the answers of a model wait while others are loaded?

A neighbour is asked at a steady rate; in every other period a large ONNX model, or a Python model,
is loaded and unloaded over and over. Times count from when a request was due.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import NotMeasuredError
from benchmarks.process import Service, running
from benchmarks.report import machine, table

MOST = 2.0  # times the 99th percentile of a neighbour beside nothing
KINDS = ("onnx", "python")
_WARM_UP_S = 1.0
_HEAD = {"Content-Type": "application/json"}
_CONFIG = """
backend: "%s"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ %d ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ %d ] } ]
"""
_PYTHON = """
import json, decimal, email.message, numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.table = numpy.arange(1_000_000).reshape(1000, 1000).T.copy()

    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return found
"""


@dataclass(frozen=True, slots=True)
class Period:
    """The result of a period: times of the neighbour's answers, and the number of loads."""

    times_ms: Sequence[float]
    loads: int

    def percentile(self, share: float) -> float:
        """Return the time, ms, below which so many of 100 answers were."""
        return float(np.percentile(self.times_ms, share))


def main() -> int:
    """Print a table of both kinds. Returns 1 if a neighbour waits longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a period")
    parser.add_argument("--rounds", type=int, default=3, help="of a period without and one with")
    parser.add_argument("--per-second", type=float, default=200.0, help="requests to the neighbour")
    parser.add_argument("--layers", type=int, default=24, help="of the ONNX model, 4 MiB each")
    given = parser.parse_args()
    head = ("loaded", "p50 without, ms", "with", "p99 without, ms", "with", "ratio", "loads")
    rows, worst = list[list[str]](), 0.0
    with TemporaryDirectory(prefix="bench-") as folder:
        write_repository(Path(folder), given.layers)
        with running("repository", folder) as service:
            service.first_answer(lambda: ready(service.http_port))
            for kind in KINDS:
                with asking(service, _WARM_UP_S, given.per_second):
                    pass
                pairs = [
                    (
                        period(service, "", given.seconds, given.per_second),
                        period(service, kind, given.seconds, given.per_second),
                    )
                    for _ in range(given.rounds)
                ]
                rows.append(row := row_of(kind, pairs))
                worst = max(worst, float(row[5]))
    print(machine())
    print(table(head, rows))
    return int(worst > MOST)


def row_of(kind: str, pairs: Sequence[tuple[Period, Period]]) -> list[str]:
    """Return medians of the rounds; the ratio is that of the 99th percentiles."""

    def middle(place: int, share: float) -> float:
        return statistics.median(pair[place].percentile(share) for pair in pairs)

    without, with_load = middle(0, 99), middle(1, 99)
    figures = [middle(0, 50), middle(1, 50), without, with_load]
    loads = sum(pair[1].loads for pair in pairs)
    return [
        kind,
        *(f"{figure:.2f}" for figure in figures),
        f"{with_load / without:.2f}",
        str(loads),
    ]


def period(service: Service, kind: str, seconds: float, per_s: float) -> Period:
    """Ask the neighbour for so long, and load a model of the kind meanwhile; "": none."""
    loads = 0
    with asking(service, seconds, per_s) as (times_ms, ends):
        while kind and time.monotonic() < ends:
            for action in ("unload", "load"):
                post(service.http_port, f"/v2/repository/models/{kind}/{action}", {})
            loads += 1
    return Period(times_ms, loads)


@contextlib.contextmanager
def asking(service: Service, seconds: float, per_s: float) -> Iterator[tuple[list[float], float]]:
    """Ask the neighbour at a steady rate, in a thread: its times, ms, and when it ends."""
    times_ms: list[float] = []
    failures: list[BaseException] = []
    began = time.monotonic()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.http_port)
        try:
            for number in range(int(seconds * per_s)):
                due = began + number / per_s
                time.sleep(max(0.0, due - time.monotonic()))
                asked(service.http_port, connection)
                times_ms.append((time.monotonic() - due) * 1000)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield times_ms, began + seconds
    finally:
        thread.join()
    if failures:
        raise NotMeasuredError(f"the neighbour: {failures[0]}")


def ready(port: int) -> None:
    """Raise OSError until the server is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/ready")
        if connection.getresponse().status != 200:
            raise ConnectionRefusedError("not ready")


def asked(port: int, connection: http.client.HTTPConnection | None = None) -> Any:
    """Ask the neighbour once; a wrong answer raises NotMeasuredError."""
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
    answer = post(port, "/v2/models/neighbour/infer", {"inputs": [x]}, connection)
    if answer["outputs"][0]["data"] != x["data"]:
        raise NotMeasuredError(f"the neighbour answered {answer}")
    return answer


def post(
    port: int, path: str, body: Any, connection: http.client.HTTPConnection | None = None
) -> Any:
    """Return the JSON of the answer; an error raises NotMeasuredError."""
    client = connection or http.client.HTTPConnection("127.0.0.1", port)
    client.request("POST", path, json.dumps(body), _HEAD)
    answer = client.getresponse()
    body_read = answer.read()
    if connection is None:
        client.close()
    if answer.status != 200:
        raise NotMeasuredError(f"{path}: {answer.status} {body_read!r}")
    return json.loads(body_read or b"null")


def write_repository(folder: Path, layers: int) -> None:
    """Write the three models: `neighbour`, `onnx` and `python`."""
    for name, backend, size in (("neighbour", "identity", 4), ("onnx", "onnxruntime", 1024)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(_CONFIG % (backend, size, size))
    onnx.save(large_model(layers, 1024), folder / "onnx" / "1" / "model.onnx")
    (folder / "python" / "1").mkdir(parents=True)
    (folder / "python" / "config.pbtxt").write_text(_CONFIG % ("python", 4, 4))
    (folder / "python" / "1" / "model.py").write_text(_PYTHON)


def large_model(layers: int, size: int) -> onnx.ModelProto:
    """Return a model of so many layers, each of `size` x `size` weights."""
    random = np.random.default_rng(0)
    weights, nodes, before = [], [], "x"
    for number in range(layers):
        weight = random.standard_normal((size, size)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        last = "y" if number == layers - 1 else f"h{number}"
        nodes.append(helper.make_node("MatMul", [before, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [last]))
        before = last
    slots = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])] for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "large", *slots, weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


if __name__ == "__main__":
    sys.exit(main())
