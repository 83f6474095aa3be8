"""One trace from a caller, through a server with worker processes, to the server that it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpc_peers import peer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from served import PATIENCE_S, ServedWithClient

from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.tracing.context import (
    TraceContext,
    format_traceparent,
    parse_traceparent,
    set_call_trace,
)

CALLER = TraceContext(0xABC, 0xDEF, True)

SCRIPT = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Near(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        return {"x": answer["x"]}, False, None, ""


near = Near(name="near", input_ops=[RequestOp()])
far = Near(name="far", input_ops=[near])
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[far]))
server.prepare_server("config.yml")
server.run_server()
"""


class Outside:
    """A collector and a remote model, as methods of two services."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.told: list[str | None] = []

    def export(self, request: bytes, context: Any) -> bytes:
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.name: span for span in scope.spans}
        return ExportTraceServiceResponse().SerializeToString()

    def inference(self, request: bytes, context: Any) -> bytes:
        self.told.append(dict(context.invocation_metadata()).get("traceparent"))
        return Response(key=["y"], value=["there"]).SerializeToString()


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_trace_passes_the_workers_and_the_remote_server(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    outside = Outside()
    with (
        peer(
            "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": outside.export}
        ) as collector,
        peer(
            "baidu.paddle_serving.pipeline_serving.PipelineService",
            {"inference": outside.inference},
        ) as remote,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.endpoint}")
        far = {"client_type": "pipeline_grpc", "server_endpoints": [remote.endpoint]}
        config = {"opentelemetry": True, "op": {"far": {**far, "workers": workers}}}
        served = ServedWithClient(tmp_path, SCRIPT, config)
        try:
            served.wait_until_ready()
            set_call_trace(format_traceparent(CALLER))
            try:
                answer = served.ask({"x": "1"})
            finally:
                set_call_trace("")
            assert answer.err_no == 0, answer.err_msg
            served.process.terminate()
            assert served.process.wait(PATIENCE_S) == 0, served.text("stderr")
        finally:
            served.close()
    assert {"svc", "near", "far", "far process"} <= set(outside.spans)
    assert {int.from_bytes(span.trace_id, "big") for span in outside.spans.values()} == {0xABC}
    assert int.from_bytes(outside.spans["svc"].parent_span_id, "big") == CALLER.span_id
    (reported,) = outside.told
    assert reported is not None
    context = parse_traceparent(reported)
    assert context is not None
    assert context.span_id == int.from_bytes(outside.spans["far process"].span_id, "big")
