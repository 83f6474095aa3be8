"""What our services share: the call that serves a graph, and the identity Op."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline import Op, PipelineServer, ResponseOp

PROCESSES = "processes"
"""The argument of a service that asks for process workers in all its Ops."""

GATEWAY = "gateway"
"""The argument of a service that has its HTTP port served by the gateway."""

BLIND, WATCHED, PROFILED = "blind", "watched", "profiled"
"""Arguments of a service: nothing is recorded; all is that can be; all, and each request's lines.

Without them there are the statistics, as by default.
"""

_WATCHED = {"tracer": {"interval_s": 1}, "enable_prometheus": True, "prometheus_port": 0}


class Echo(Op):
    """Passes its input on, through a preprocess and a postprocess of its own."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return input_dict, False, None, ""

    def postprocess(
        self, input_dicts: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return fetch_data, None, ""


def serve(name: str, last_op: Op, op_config: Mapping[str, Any] | None = None) -> None:
    """Serve the graph that ends in `last_op` until SIGTERM, as the arguments say."""
    asked = set(sys.argv[1:])
    is_watched = bool(asked & {WATCHED, PROFILED})
    if is_watched:  # a collector that takes no time: what counts is what spans cost here
        os.environ["OTEL_TRACES_EXPORTER"] = "console"
    server = PipelineServer(name=name)
    server.set_response_op(ResponseOp(input_ops=[last_op]))
    server.prepare_server(
        yml_dict={
            "http_port": HTTP_PORT,
            "rpc_port": GRPC_PORT,
            "http_server": "gateway" if GATEWAY in asked else "embedded",
            "statistics": BLIND not in asked,
            "opentelemetry": is_watched,
            "dag": {
                "is_thread_op": PROCESSES not in asked,
                "use_profile": PROFILED in asked,
                **(_WATCHED if is_watched else {}),
            },
            "op": op_config or {},
        }
    )
    server.run_server()
