"""The overhead of a remote predictor: calls in a loop, with it or with a bare stub.

Arguments: seconds, clients, "brpc" or "grpc", "predictor" or "stub".
"""

from __future__ import annotations

import functools
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import numpy as np

from benchmarks.process import Service, running
from benchmarks.services.loops import run_loops
from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.general_model import (
    GeneralModelPredictor,
    connect_brpc,
    connect_grpc,
)
from pipeline.proto.brpc.frames import SERVICE, FrameReader, pack, request_meta
from pipeline.proto.channels import close_at_exit
from pipeline.proto.general_model_pb2 import Response

FEED = {"x": np.arange(13, dtype=np.float32)[np.newaxis]}
CONF = """
feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 13 }
fetch_var { name: "price" alias_name: "price" is_lod_tensor: false fetch_type: 1 shape: 1 }
"""
_RECEIVE_BYTES = 64 * 1024


def predictor(protocol: str, port: int, conf: Path) -> GeneralModelPredictor:
    model = RemoteModel("bench", protocol, (f"127.0.0.1:{port}",), conf)
    return (connect_grpc if protocol == "grpc" else connect_brpc)(model)


def grpc_stub(port: int, request: bytes) -> Callable[[], object]:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    close_at_exit(channel)
    method = channel.unary_unary(f"/{SERVICE}/inference", response_deserializer=Response.FromString)
    return lambda: method(request, timeout=20)


def brpc_stub(port: int, request: bytes) -> Callable[[], object]:
    """A connection for each thread, which waits for each answer."""
    own = threading.local()

    def call() -> object:
        if not hasattr(own, "socket"):
            own.socket = socket.create_connection(("127.0.0.1", port))
            own.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own.reader = FrameReader()
        own.socket.sendall(pack(request_meta("inference", 1), request))
        while not (frames := own.reader.feed(own.socket.recv(_RECEIVE_BYTES))):
            pass
        return Response.FromString(frames[0].body)

    return call


def main() -> None:
    seconds, clients, protocol, caller = sys.argv[1:]
    with running("bare_model_service") as service, TemporaryDirectory() as folder:
        service.first_answer(lambda: _connect(service))
        conf = Path(folder, "serving_client_conf.prototxt")
        conf.write_text(CONF)
        port = service.grpc_port if protocol == "grpc" else service.http_port
        client = predictor(protocol, port, conf)
        if caller == "predictor":
            call: Callable[[], object] = functools.partial(client.predict, FEED, log_id=1)
        else:
            stub = grpc_stub if protocol == "grpc" else brpc_stub
            call = stub(port, client.request(FEED))
            client.close()
        run_loops(call, float(seconds), int(clients))


def _connect(service: Service) -> None:
    for port in (service.grpc_port, service.http_port):
        socket.create_connection(("127.0.0.1", port)).close()


if __name__ == "__main__":
    main()
