"""Arrays as numpy hands them out - strided, reversed, in Fortran's order, of the other byte order,
without dimensions - written by each of the forms that answers and requests have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest

from pipeline.proto.brpc.general_model import tensor_to_array, value_to_tensor
from pipeline.proto.codec import numpy_to_tensor, numpy_to_text, tensor_to_numpy, text_to_numpy
from pipeline.proto.messages import CallOptions, request_from_feed
from pipeline.proto.pipeline.json import large_response_to_json, response_to_json
from pipeline.proto.pipeline.response import pack, pack_large
from pipeline.proto.plain_answer import write_large_object, write_object
from pipeline.proto.slices import Limits
from pipeline.proto.v2.json_data import array_to_data
from pipeline.proto.v2.raw import array_to_raw, datatype_of, raw_to_array

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_BF16 = np.dtype(ml_dtypes.bfloat16)
_VALUES = np.array([[0, 0.25, 2.5, 1e-3], [4, 50.25, 600, 7], [0.75, 1.5, 1, 0.5]])

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda base: base,
    "Fortran's order": np.asfortranarray,
    "a column": lambda base: base[:, 1],
    "every other": lambda base: base.reshape(-1)[::2],
    "reversed": lambda base: base[::-1, ::-1],
    "no dimensions": lambda base: base[1:2, 1:2].reshape(()),
    "the same row often": lambda base: np.broadcast_to(base[0], (3, 4)),
    "the other byte order": lambda base: _swapped(base),
    "a column of the other byte order": lambda base: _swapped(base)[:, 1],
    "many": lambda base: np.broadcast_to(base[::-1, 1], (2000, 3)).T,
}


def _swapped(base: Any) -> Any:
    """Return the array in the other byte order, which bfloat16 does not have."""
    return base if base.dtype == _BF16 else base.astype(base.dtype.newbyteorder())


def _as_json(body: bytes) -> Any:
    return orjson.loads(body)["x"]


def _v2_json(array: Any) -> Any:
    text = orjson.dumps(array_to_data(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return np.reshape(orjson.loads(text), array.shape)


def _v2_raw(array: Any) -> Any:
    return raw_to_array(datatype_of(array.dtype), array.shape, array_to_raw(array))


def _tensor_json(array: Any) -> Any:
    (tensor,) = orjson.loads(response_to_json(pack({"x": array}, False, True)))["tensors"]
    return _elements(tensor, array.shape)


def _large_tensor_json(array: Any) -> Any:
    answer: Any = pack_large({"x": array}, False, True, Limits())
    write = large_response_to_json if hasattr(answer, "head") else None
    body = write(answer, Limits()) if write else response_to_json(answer)
    (tensor,) = orjson.loads(body)["tensors"]
    return _elements(tensor, array.shape)


def _elements(tensor: dict[str, Any], shape: tuple[int, ...]) -> Any:
    fields = ("int_data", "int64_data", "float_data", "float64_data", "bool_data", "uint32_data")
    (data,) = (tensor[name] for name in fields if tensor.get(name))
    return np.reshape(np.array(data, np.float64), shape)


def _fed(array: Any, as_tensors: bool) -> Any:
    options = CallOptions(None, as_tensors, False, profile=False, log_id=0)
    request = request_from_feed({"x": array}, options, "127.0.0.1")
    return tensor_to_numpy(request.tensors[0]) if as_tensors else text_to_numpy(request.value[0])


def _fed_in_a_dict(array: Any) -> Any:
    options = CallOptions(None, False, False, profile=False, log_id=0)
    request = request_from_feed({"in": {"x": array}}, options, "127.0.0.1")
    return _as_json(request.value[0].encode())


WRITERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda array: text_to_numpy(numpy_to_text(array)),
    "a tensor": lambda array: tensor_to_numpy(numpy_to_tensor("x", array)),
    "a tensor of bytes": lambda array: tensor_to_numpy(numpy_to_tensor("x", array, None, True)),
    "a tensor in JSON": _tensor_json,
    "a large tensor in JSON": _large_tensor_json,
    "plain JSON": lambda array: _as_json(write_object({"x": array})),
    "large plain JSON": lambda array: _as_json(write_large_object({"x": array}, Limits())),
    "v2 in JSON": _v2_json,
    "v2 raw": _v2_raw,
    "brpc": lambda array: tensor_to_array(value_to_tensor("x", "x", array)),
    "a feed as text": lambda array: _fed(array, as_tensors=False),
    "a feed as tensors": lambda array: _fed(array, as_tensors=True),
    "a feed within a dict": _fed_in_a_dict,
}
_NO_FORM = {("v2 in JSON", "float16"), ("v2 in JSON", "bfloat16"), ("brpc", "uint64")}
_ONE_BY_ONE = {"a tensor in JSON", "a large tensor in JSON"}  # bfloat16, float16: bytes there


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_equal_in_any_memory_layout(form: str, layout: str) -> None:
    for dtype in (*map(np.dtype, (*_INTEGERS, *_FLOATS, "bool")), _BF16):
        if (form, dtype.name) in _NO_FORM or (form in _ONE_BY_ONE and dtype.itemsize == 2):
            continue
        array = LAYOUTS[layout](_VALUES.astype(dtype))
        came = np.asarray(WRITERS[form](array)).astype(np.float64)
        assert came.shape == array.shape, dtype
        assert came.tolist() == pytest.approx(array.astype(np.float64)), dtype
