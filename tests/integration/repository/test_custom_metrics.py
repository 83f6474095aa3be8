"""Metrics that models of Python code count in, in `/metrics` of their server."""

from __future__ import annotations

import os
import signal
import urllib.request

import pytest
from doubles import wait_until
from repositories import add_python, control, infer, serving

COUNTS = """
import os
import triton_python_backend_utils as pb_utils

Family = pb_utils.MetricFamily

class TritonPythonModel:
    def initialize(self, args):
        self.families = [
            Family("seen", "Requests.", Family.COUNTER),
            Family("took", "Values.", Family.HISTOGRAM),
        ]
        self.seen = self.families[0].Metric({"by": "all"})
        self.took = self.families[1].Metric(buckets=[1, 10])
        self.mine = self.families[0].Metric({"by": str(os.getpid())})

    def execute(self, requests):
        found = []
        for request in requests:
            tensor = request.inputs()[0]
            value = float(tensor.as_numpy().flat[0])
            try:
                self.seen.increment(value)
            except pb_utils.TritonModelException as error:
                error = pb_utils.TritonError(str(error))
                found.append(pb_utils.InferenceResponse(error=error))
                continue
            self.mine.increment(0.5)
            self.took.observe(value)
            answer = tensor.as_numpy() * 0 + self.seen.value()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]))
        return found
"""
IN_THREADS = 'parameters: { key: "workers" value: { string_value: "thread" } }'
REFUSED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.MetricFamily("nv_inference_count", "Not mine.", pb_utils.MetricFamily.COUNTER)

    def execute(self, requests):
        raise ValueError("it is not loaded")
"""


def shown(server):
    """Lines of `/metrics` that models have counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if "seen" in line or "took" in line]


@pytest.mark.parametrize("more", ["", IN_THREADS], ids=["process", "thread"])
def test_models_count_together_in_the_servers_metrics(tmp_path, more):
    for name in ("one", "two"):
        add_python(tmp_path, name, COUNTS, more)
    with serving(tmp_path, mode="explicit", models=("one", "two")) as server:
        assert infer(server, "one", [3.0]) == (200, {"OUTPUT0": [3.0]})
        assert infer(server, "two", [4.5]) == (200, {"OUTPUT0": [7.5]})
        status, text = infer(server, "two", [-1.0])
        assert status == 500
        assert "can only be incremented monotonically by non-negative values" in text
        lines = shown(server)
        assert "# TYPE seen counter" in lines
        assert 'seen{by="all"} 7.5' in lines
        assert 'took_bucket{le="10"} 2' in lines
        assert "took_sum 7.5" in lines


def test_series_end_with_the_worker_that_has_them(tmp_path):
    add_python(tmp_path, "one", COUNTS)
    with serving(tmp_path, mode="explicit", models=("one",)) as server:
        assert infer(server, "one", [3.0])[0] == 200
        (mine,) = [line for line in shown(server) if line.endswith(" 0.5")]
        pid = mine.partition('"')[2].partition('"')[0]
        os.kill(int(pid), signal.SIGKILL)
        wait_until(lambda: infer(server, "one", [1.0]) == (200, {"OUTPUT0": [1.0]}))
        assert pid not in "".join(shown(server))
        control(server, "one", "unload")
        wait_until(lambda: not shown(server))


def test_a_model_that_wants_a_family_of_the_servers_is_not_loaded(tmp_path):
    add_python(tmp_path, "bad", REFUSED)
    with serving(tmp_path) as server:
        status, text = control(server, "bad", "load")
        assert status == 400
        assert "'nv_inference_count': names with this prefix are reserved" in text
