"""The server that the conformance table asks: an echo whose method of the URL says what to do.

echo       the request's pairs and tensors, as the wire has them
told       name, method, logid and clientip as pairs
raise      an Op raises an error of another library
product    a ProductError; `value` is its code and its text
returned   the same, as `prod_errcode` and `prod_errinfo`
hold       waits until `Holder.release`, as does what has a tensor that begins with `HELD`
optimeout  `process` waits so, and the Op has a limit for it
large      as many characters as `value` says
wrong      `pack_response_package` returns something that is no Response
"""

from __future__ import annotations

import threading
from typing import Any

from doubles import server_for

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp
from pipeline.data import ChannelData, Tensor
from pipeline.proto.pipeline_service_pb2 import Request, Response

NAME = "conf"
LIMIT = 5 * 2**20  # above what gRPC takes unless told otherwise, 4 MiB
OP_TIMEOUT_MS = 20
_PATIENCE_S = 60.0
HELD = -(2.0**-10)  # nothing that a test of random requests comes upon


class Holder:
    """Where requests wait until the test has its answer."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.held = 0  # how many have ever come here

    def wait(self) -> None:
        self.held += 1
        self._event.wait(_PATIENCE_S)

    def release(self) -> None:
        """Let go who waits now; who comes later waits for the next release."""
        event, self._event = self._event, threading.Event()
        event.set()


class Reads(RequestOp):
    """Passes on the request unchanged; in the v2 protocol it has `x`, which is answered."""

    input_tensors = (Tensor("x", "FP32", (-1,)),)

    def unpack_request_package(self, request: Request) -> Any:
        return {"request": request.SerializeToString()}, request.logid, None, ""


class Does(Op):
    """Does what the method says."""

    output_tensors = (Tensor("x", "FP32", (-1,)),)

    def __init__(self, holder: Holder, **config: Any) -> None:
        super().__init__("does", [Reads()], timeout=OP_TIMEOUT_MS, **config)
        self._holder = holder

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (payload,) = input_dicts.values()
        request = Request.FromString(payload.get("request", b""))
        if request.method == "raise":
            raise ValueError("of the user")
        if request.method == "product":
            raise ProductError(int(request.value[0]), request.value[1])
        if request.method == "returned":
            return {}, True, int(request.value[0]), request.value[1]
        if request.method == "hold" or _is_held(request):
            self._holder.wait()
        return payload, request.method != "optimeout", None, ""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self._holder.wait()
        return feed_batch[0]


class Says(ResponseOp):
    """Answers with the request, or with what the method says."""

    def pack_response_package(self, channeldata: ChannelData) -> Any:
        if channeldata.error is not None:
            return super().pack_response_package(channeldata)
        request = Request.FromString(channeldata.payload["request"])
        if request.method == "wrong":
            return {"not": "a Response"}
        if request.method == "large":
            return Response(key=["large"], value=["x" * int(request.value[0])])
        if request.method == "told":
            return _told(request)
        return Response(key=request.key, value=request.value, tensors=request.tensors)


def _is_held(request: Request) -> bool:
    return any(tensor.float_data[:1] == [HELD] for tensor in request.tensors)


def _told(request: Request) -> Response:
    told = {
        "name": request.name,
        "method": request.method,
        "logid": str(request.logid),
        "clientip": request.clientip,
    }
    return Response(key=told.keys(), value=told.values())


def conformance_server(holder: Holder, **config: Any) -> PipelineServer:
    """A prepared server on free ports; use it as a context manager.

    Clients get the full text of its own errors at every door.
    """
    op = Does(holder, concurrency=4)
    settings = {"max_message_bytes": LIMIT, "errors": {"details": "full"}, **config}
    return server_for(op, name=NAME, response_op=Says([op]), **settings)
