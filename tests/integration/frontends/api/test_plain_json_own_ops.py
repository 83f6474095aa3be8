"""Plain JSON before RequestOps and ResponseOps of the user's own, and the name that it takes."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import post, server_for

from pipeline import Op, RequestOp, ResponseOp
from pipeline.errors import ConfigError
from pipeline.proto.pipeline_service_pb2 import Response


class Passes(Op):
    def postprocess(self, input_data, fetch_data, *args):
        return fetch_data[0] if isinstance(fetch_data, list) else fetch_data, None, ""


def test_a_pipeline_cannot_be_called_api():
    with pytest.raises(ConfigError, match=r"cannot be called 'api'.*give PipelineServer another"):
        server_for(Passes("a", [RequestOp()]), name="api")


def test_without_an_http_port_it_can():
    with server_for(Passes("a", [RequestOp()]), name="api", http_port=None) as server:
        assert server.rpc_port


def test_custom_pack_and_unpack_get_equal_pairs_and_tensors():
    heard = []

    class Reads(RequestOp):
        def unpack_request_package(self, request):
            heard.append((dict(zip(request.key, request.value, strict=True)), len(request.tensors)))
            return {"x": np.arange(2.0)}, 0, None, ""

    class Writes(ResponseOp):
        def pack_response_package(self, channeldata):
            return Response(key=["said"], value=[str(channeldata.payload["x"].sum())])

    op = Passes("a", [Reads()])
    with server_for(op, response_op=Writes([op])) as server:
        answer = post(server, {"t": "a", "n": [1, 2]}, "/api/svc")
    assert heard == [({"t": "a"}, 1)]
    assert answer == (200, {"said": "1.0"})
