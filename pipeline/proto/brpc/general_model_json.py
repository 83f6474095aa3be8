"""Messages of the general model service as JSON, as brpc's HTTP writes and reads them.

Unlike proto3 JSON it has integers of 64 bits as numbers, and leaves out lists that are empty.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson
from google.protobuf.message import Message

from pipeline.errors import PackageError
from pipeline.proto.general_model_pb2 import Request, Response, Tensor
from pipeline.proto.pipeline.json import fill, floats_of, object_of
from pipeline.proto.pipeline.json_fields import fields_of, shown
from pipeline.proto.pipeline.packed import PACKED_DTYPES, read_packed

_REQUEST_FIELDS = fields_of(Request)
_TENSOR_FIELDS = fields_of(Tensor)
_CONTENT = "tensor_content"
_ALWAYS = ("elem_type", "name", "alias_name")  # of a tensor, also where they are 0 or ""


def request_from_json(body: bytes) -> Request:
    """Read a request.

    Raises:
        PackageError: it is no JSON, or a value is not of its field's type.
    """
    fields = object_of(body)
    request = Request()
    fill(request, fields, _REQUEST_FIELDS, "")
    tensors = fields.get("tensor") or []
    if type(tensors) is not list:
        raise PackageError(f"tensor must be an array, not {shown(tensors)}")
    for at, tensor in enumerate(tensors):
        if type(tensor) is not dict:
            raise PackageError(f"tensor[{at}] must be an object, not {shown(tensor)}")
        fill(request.tensor.add(), tensor, _TENSOR_FIELDS, f"tensor[{at}].")
    return request


def request_to_json(request: Request) -> bytes:
    """Write a request."""
    return _dumped(
        {
            "tensor": [_tensor(tensor) for tensor in request.tensor],
            "fetch_var_names": request.fetch_var_names[:],
            "log_id": request.log_id,
        }
    )


def response_to_json(response: Response) -> bytes:
    """Write an answer."""
    outputs = [
        {
            "tensor": [_tensor(tensor) for tensor in output.tensor],
            "engine_name": output.engine_name,
        }
        for output in response.outputs
    ]
    return _dumped(
        {
            "outputs": outputs,
            "log_id": response.log_id,
            "err_no": response.err_no,
            "err_msg": response.err_msg,
        }
    )


def _dumped(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def _tensor(tensor: Tensor) -> dict[str, Any]:
    found = {field.name: _value(tensor, field.name) for field, _ in tensor.ListFields()}
    return {**{name: getattr(tensor, name) for name in _ALWAYS}, **found}


def _value(message: Message, field: str) -> Any:
    if field in PACKED_DTYPES:
        return floats_of(read_packed(message, field))
    if field == _CONTENT:
        return base64.b64encode(getattr(message, field)).decode("ascii")
    value = getattr(message, field)
    return value[:] if _TENSOR_FIELDS[field].is_repeated else value
