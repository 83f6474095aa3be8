"""Data of requests that go together: read for all of them at once, as each is by itself."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from pipeline.proto.inference_v2_pb2 import ModelInferRequest
from pipeline.proto.slices import Limits
from pipeline.proto.v2.forms import joined, json_codec
from pipeline.proto.v2.message_forms import message_codec

LIMITS = Limits()


def body(data, datatype="FP32", shape=(1, 2)):
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    return orjson.dumps({"inputs": [tensor]}), None


def binary(data, datatype="FP32", shape=(1, 2)):
    sizes = {"binary_data_size": len(data)}
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": sizes}
    head = orjson.dumps({"inputs": [tensor]})
    return head + data, len(head)


def message(data, datatype="FP32", shape=(1, 2)):
    request = ModelInferRequest(model_name="m", raw_input_contents=[data])
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    return request.SerializeToString(), None


def floats(*numbers, dtype=np.float32):
    return np.array(numbers, dtype).tobytes()


JSON = json_codec("m", "", LIMITS)
MESSAGE = message_codec(LIMITS)


def form_of(codec, example):
    return codec.inputs_of(codec.cut(*example), codec.read(*example))


@pytest.mark.parametrize(
    ("codec", "requests"),
    [
        (JSON, [body([1.5, 2.0]), body([3, 4.5]), body([-1e30, 0])]),
        (JSON, [body([1.5, 2.0], "FP64"), body([3, 1e38], "FP64")]),
        (JSON, [binary(floats(1, 2)), binary(floats(3, np.nan))]),
        (JSON, [binary(floats(1, 2, dtype=np.int16), "INT16")] * 2),
        (MESSAGE, [message(floats(1, 2)), message(floats(3, np.inf))]),
    ],
)
def test_joined_inputs_equal_separate_ones(codec, requests):
    form, cuts = form_of(codec, requests[0]), [codec.cut(*request) for request in requests]
    result = joined(form.tensors, [form.parts(cut) for cut in cuts])
    wanted = np.concatenate([form.read(cut, LIMITS)["x"] for cut in cuts])
    assert result["x"].dtype == wanted.dtype
    assert result["x"].shape == wanted.shape
    np.testing.assert_array_equal(result["x"], wanted)
    assert result["x"].flags.writeable


@pytest.mark.parametrize(
    ("example", "request_"),
    [
        (body([1.0, 2.0]), body([1.0])),
        (body([1.0, 2.0]), body([1.0, 2.0, 3.0])),
        (body([1.0, 2.0]), body([1.0, True])),
        (body([1.0, 2.0]), body([1.0, None])),
        (body([1.0, 2.0]), body([1.0, "2"])),
        (body([1.0, 2.0]), body([1.0, 1e39])),
        (body([1, 2], "INT32"), body([3, 4], "INT32")),
        (body([True, False], "BOOL"), body([True, True], "BOOL")),
        (body(["a", "b"], "BYTES"), body(["c", "d"], "BYTES")),
        (binary(b"\1\0", "BOOL"), binary(b"\1\2", "BOOL")),
        (binary(floats(1, 2)), (binary(floats(1, 2))[0] + b"\0", binary(floats(1, 2))[1])),
    ],
)
def test_a_request_that_is_not_plain_has_no_parts(example, request_):
    assert form_of(JSON, example).parts(JSON.cut(*request_)) is None


def test_invalid_json_lists_have_no_parts():
    whole, _ = body([1.0, 2.0])
    assert form_of(JSON, (whole, None)).parts(JSON.cut(whole.replace(b"2.0", b"2.."), None)) is None
