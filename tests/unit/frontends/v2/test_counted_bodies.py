"""Bodies with more in them than there may be are refused before anything is made of them."""

from __future__ import annotations

import orjson
import pytest

from pipeline.errors import TooLargeError
from pipeline.frontends.v2 import json_objects
from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.frontends.v2.json_objects import json_object
from pipeline.proto.inference_v2_pb2 import ModelInferRequest
from pipeline.proto.slices import MAX_TENSORS, SHORT_BYTES, Limits
from pipeline.proto.v2 import codec
from pipeline.proto.v2.codec import large_request_from_message
from pipeline.proto.v2.json import read_request


@pytest.fixture
def unread(monkeypatch):
    monkeypatch.setattr(orjson, "loads", None)
    monkeypatch.setattr(json_objects, "orjson", None)


def test_a_setting_is_a_short_body(unread):
    body = b'{"%b": 1}' % (b"k" * SHORT_BYTES)
    with pytest.raises(V2Error, match=f"the trace request has {len(body)} bytes") as caught:
        json_object(body, "trace")
    assert caught.value.kind is V2Status.TOO_LARGE


def test_inputs_are_counted_in_json(unread):
    entry = b'{"name":"x","datatype":"FP32","shape":[1],"data":[1]}'
    body = b'{"inputs":[%b]}' % b",".join([entry] * (MAX_TENSORS + 1))
    with pytest.raises(TooLargeError, match=f"more than {MAX_TENSORS} objects in its inputs"):
        read_request(body)


def test_inputs_are_counted_in_a_message(monkeypatch):
    message = ModelInferRequest(model_name="m")
    for _ in range(MAX_TENSORS + 1):
        message.inputs.add(name="x", datatype="FP32", shape=[1])
    monkeypatch.setattr(codec, "request_from_message", None)
    with pytest.raises(TooLargeError, match=f"more than {MAX_TENSORS} tensors"):
        large_request_from_message(message.SerializeToString(), Limits())
