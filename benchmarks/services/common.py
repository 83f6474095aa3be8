"""Shared by our services: the function that serves a graph, and the identity Op."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline import Op, PipelineServer, ResponseOp
from pipeline.engine.trips import pace, trip, trips
from pipeline.runtime.observation import ObservabilityStack

PROCESSES, UNFUSED = "processes", "unfused"
"""Arguments of a service: process workers in all Ops; each Op on a thread of its own."""

GATEWAY = "gateway"
"""The argument of a service that has its ports served by the gateway."""

BLIND, WATCHED, PROFILED = "blind", "watched", "profiled"
"""Arguments of a service: nothing is recorded; all is that can be; all, and each request's lines.

Without them there are the statistics, as by default.
"""

SLOWED = "BENCHMARK_SLOWED"
"""The variable that says how many times slower all is than usual: under valgrind."""

_TIMES_SLOWER = float(os.environ.get(SLOWED, "1"))

_ALL_SINKS: dict[str, Any] = {
    "opentelemetry": True,
    "dag": {"tracer": {"interval_s": 1}, "enable_prometheus": True, "prometheus_port": 0},
}
_MEANS: dict[str, list[dict[str, Any]]] = {  # what config.yml has, besides, for an argument
    PROCESSES: [{"dag": {"is_thread_op": False}}],
    UNFUSED: [{"dag": {"fuse": "off"}}],
    GATEWAY: [{"edge": "gateway"}],
    BLIND: [{"statistics": False}],
    WATCHED: [_ALL_SINKS],
    PROFILED: [_ALL_SINKS, {"dag": {"use_profile": True}}],
}


class Echo(Op):
    """Passes its input on, through a preprocess and a postprocess of its own."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return input_dict, False, None, ""

    def postprocess(
        self, input_dicts: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return fetch_data, None, ""


def serve(
    name: str,
    last_op: Op,
    op_config: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> None:
    """Serve the graph that ends in `last_op` until SIGTERM, as the arguments say.

    `keys`: of the service, beside those of its Ops.
    """
    _bear_with(_TIMES_SLOWER)
    words = sys.argv[1:]
    if {WATCHED, PROFILED} & {*words}:  # a collector that takes no time: spans cost what they cost
        os.environ["OTEL_TRACES_EXPORTER"] = "console"
        from pipeline.tracing import recorder  # only here: it brings the SDK with it

        recorder.TRACES_A_SECOND /= _TIMES_SLOWER  # type: ignore[misc,assignment]
    config: dict[str, Any] = {
        "http_port": HTTP_PORT,
        "rpc_port": GRPC_PORT,
        "edge": "embedded",
        "op": op_config or {},
        **(keys or {}),
    }
    for more in (more for argument in words for more in _MEANS.get(argument, ())):
        dag = config.get("dag", {}) | more.get("dag", {})
        config |= more | {"dag": dag}
    server = PipelineServer(name=name)
    server.set_response_op(ResponseOp(input_ops=[last_op]))
    server.prepare_server(yml_dict=config)
    server.run_server()


def _bear_with(times: float) -> None:
    """Have Ops count as quick that take so many times longer, and a second last as long."""
    pace._QUICK_NS = int(pace._QUICK_NS * times)
    pace.SLOW_NS = int(pace.SLOW_NS * times)
    trips._STEP_S *= times
    every = ObservabilityStack._every

    def less_often(self: Any, name: str, interval_s: float, action: Any) -> None:
        every(self, name, interval_s * times, action)

    ObservabilityStack._every = less_often  # type: ignore[method-assign]  # for a service of its own
    trip._LONGEST_NS = int(trip._LONGEST_NS * times)
