"""Doors of a server: each asks the pipeline "typed" for the same values in its own form.

A door returns (err_no, text): of an answer 0 and what it says under "said", of an error its number,
or None where the protocol has none. It raises LookupError for values that its form cannot hold.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np

from pipeline import PipelineServer
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.codec import decode_tensors, numpy_to_tensor
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays
from pipeline.proto.v2.raw import datatype_of

NAME = "typed"
TIMEOUT_S = 60
Values = Mapping[str, Any]
Said = tuple[int | None, str]
Door = Callable[[PipelineServer, Values], Said]

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_OF_V2 = f"in ensemble '{NAME}', "  # before what an Op or a schema says


def own_form(server: PipelineServer, values: Values) -> Said:
    fields = _texts(values)
    answer = json.loads(_posted(server, f"{NAME}/prediction", _pairs(fields)))
    return answer["err_no"], answer["err_msg"] or answer["value"][0]


def own_events(server: PipelineServer, values: Values) -> Said:
    body = _posted(server, f"{NAME}/prediction", _pairs(_texts(values)), accept="text/event-stream")
    answer = json.loads(body.partition(b"data: ")[2].partition(b"\n")[0] or body)
    return answer["err_no"], answer["err_msg"] or answer["value"][0]


def own_tensors(server: PipelineServer, values: Values) -> Said:
    return _called(server, Request(tensors=[numpy_to_tensor(*each) for each in _arrays(values)]))


def own_grpc(server: PipelineServer, values: Values) -> Said:
    fields = _texts(values)
    return _called(server, Request(key=fields.keys(), value=fields.values()))


def own_grpc_stream(server: PipelineServer, values: Values) -> Said:
    fields = _texts(values)
    request = Request(key=fields.keys(), value=fields.values())
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        stub = PipelineServiceStub(channel)
        (answer,) = stub.inference_stream(request, timeout=TIMEOUT_S)
    return _said(answer)


def plain_json(server: PipelineServer, values: Values) -> Said:
    return _plain(_posted(server, f"api/{NAME}", _json(values).encode()))


def plain_lines(server: PipelineServer, values: Values) -> Said:
    accept = {"accept": "application/x-ndjson"}
    return _plain(_posted(server, f"api/{NAME}", _json(values).encode(), **accept))


def plain_form(server: PipelineServer, values: Values) -> Said:
    parts = (
        f'--b0\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in _texts(values).items()
    )
    kind = {"content_type": "multipart/form-data; boundary=b0"}
    return _plain(_posted(server, f"api/{NAME}", "".join([*parts, "--b0--\r\n"]).encode(), **kind))


def v2_http(server: PipelineServer, values: Values) -> Said:
    inputs = [_input(name, array) for name, array in _arrays(values)]
    body = json.dumps({"inputs": inputs}).encode()
    answer = json.loads(_posted(server, f"v2/models/{NAME}/infer", body))
    if "error" in answer:
        return None, answer["error"].removeprefix(_OF_V2)
    return 0, answer["outputs"][0]["data"][0]


def v2_grpc(server: PipelineServer, values: Values) -> Said:
    message = pb.ModelInferRequest(model_name=NAME)
    for name, array in _arrays(values):
        found = array.astype(object) if array.dtype.kind == "S" else array
        add_tensor(message.inputs, message.raw_input_contents, name, found)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        try:
            answer = infer(message, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return None, error.details().removeprefix(_OF_V2)
    arrays = tensors_to_arrays(answer.outputs, answer.raw_output_contents)
    return 0, arrays["said"].item().decode()


AS_TEXT: tuple[Door, ...] = (own_form, own_events, own_grpc, own_grpc_stream, plain_form)
"""Those whose numbers are text."""

AS_TENSORS: tuple[Door, ...] = (own_tensors, v2_http, v2_grpc)
AS_JSON: tuple[Door, ...] = (plain_json, plain_lines)


def _posted(
    server: PipelineServer,
    path: str,
    body: bytes,
    content_type: str = "application/json",
    **headers: str,
) -> bytes:
    url = f"http://127.0.0.1:{server.http_port}/{path}"
    request = urllib.request.Request(url, body, {"content-type": content_type, **headers})
    try:
        with _DIRECT.open(request, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read()
    except urllib.error.HTTPError as error:
        return error.read()
    return found


def _pairs(fields: Mapping[str, str]) -> bytes:
    return json.dumps({"key": [*fields], "value": [*fields.values()]}).encode()


def _called(server: PipelineServer, request: Request) -> Said:
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        return _said(PipelineServiceStub(channel).inference(request, timeout=TIMEOUT_S))


def _said(answer: Response) -> Said:
    if answer.err_no or answer.value:
        return answer.err_no, answer.err_msg or answer.value[0]
    return 0, decode_tensors(answer.tensors)["said"]


def _plain(body: bytes) -> Said:
    answer = json.loads(body)
    if "error" in answer:
        return answer["error"]["code"], answer["error"]["message"]
    return 0, answer["said"]


def _input(name: str, array: Any) -> dict[str, Any]:
    """An input in the JSON of the v2 protocol."""
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV":
        raise LookupError(f"{name} has no form in JSON there")
    found = array.astype(str) if array.dtype.kind == "S" else array
    kind = datatype_of(array.dtype)
    return {"name": name, "shape": array.shape, "datatype": kind, "data": found.tolist()}


def _texts(values: Values) -> dict[str, str]:
    return {name: one if isinstance(one, str) else _json(one) for name, one in values.items()}


def _json(value: Any) -> str:
    return json.dumps(value, default=lambda array: array.tolist())


def _arrays(values: Values) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            yield name, value
            continue
        try:
            array = np.array(value)
        except ValueError:
            raise LookupError(f"{name} is not a tensor") from None
        if array.dtype.kind not in "ifU" or (array.dtype.kind == "U" and array.ndim):
            raise LookupError(f"{name} is not a tensor")
        kinds = {"i": np.int64, "f": np.float32, "U": np.bytes_}
        yield name, array.astype(kinds[array.dtype.kind]).reshape(array.shape or (1,))
