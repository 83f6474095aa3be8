"""An echo behind the gateway with TLS on both ports: certificate and key are the arguments."""

from __future__ import annotations

import sys

from benchmarks.services.common import Echo
from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline import PipelineServer, RequestOp, ResponseOp

if __name__ == "__main__":
    certificate, key = sys.argv[1:3]
    server = PipelineServer(name="echo")
    server.set_response_op(ResponseOp(input_ops=[Echo(name="echo", input_ops=[RequestOp()])]))
    server.prepare_server(
        yml_dict={
            "http_port": HTTP_PORT,
            "rpc_port": GRPC_PORT,
            "edge": "gateway",
            "tls": {"certificate": certificate, "key": key},
        }
    )
    server.run_server()
