"""Lists as arrays: whatever is in them, they take the room of what is in them."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.dropin.client import HttpClient
from pipeline.errors import PayloadTypeError
from pipeline.predictors.paddle.interface import offsets
from pipeline.proto.brpc.general_model import value_to_tensor
from pipeline.proto.codec import numpy_to_tensor, text_to_numpy
from pipeline.proto.lists import as_array, concatenated, has_text
from pipeline.proto.messages import CallOptions, PipelineResponse, request_from_feed
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.v2.raw import array_of

LONG = "a" * 5_000
TEXTS = [LONG, *[""] * 5_000]
MIXED = [1, *TEXTS]
NESTED = [[text] for text in TEXTS]
BYTES = [text.encode() for text in TEXTS]
ARRAYS = [np.array([text]) for text in TEXTS]


@pytest.mark.parametrize("value", [TEXTS, MIXED, NESTED, BYTES, ARRAYS, tuple(TEXTS)])
def test_text_in_lists_is_not_padded(value: Any) -> None:
    array, peak = measured(lambda: as_array(value))
    assert array.dtype == object
    assert array.size == len(value)
    assert peak < 5_000_000


@pytest.mark.parametrize("value", [[1, 2], [[1.5], [2]], [], 5, (True,), [np.ones(2)], np.ones(2)])
def test_numbers_are_numpy_s_own_array(value: Any) -> None:
    assert not has_text(value)
    result, own = as_array(value), np.asarray(value)
    assert (result.dtype, result.tolist()) == (own.dtype, own.tolist())


def test_uneven_lists_are_refused_and_recursive_ones_terminate() -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        as_array([[1], [1, 2]])
    endless: list[Any] = []
    endless.append(endless)
    assert not has_text(endless)


def feed(value: Any, as_tensors: bool = False) -> Any:
    options = CallOptions(None, as_tensors, False, False, 0)
    return request_from_feed({"x": value}, options, "")


def as_answer(value: list[str]) -> Any:
    return PipelineResponse(Response(tensors=[numpy_to_tensor("x", value)])).as_numpy("x")


def dropin(value: Any) -> Any:
    client = HttpClient()
    client.feed_types_ = {"x": 20}
    client.feed_shapes_ = {"x": [-1]}
    return client._array("x", value, True)


@pytest.mark.parametrize(
    "reads",
    [
        feed,
        lambda value: feed(value, as_tensors=True),
        as_answer,
        dropin,
        array_of,
        lambda value: numpy_to_tensor("x", value),
        lambda value: numpy_to_tensor("x", [1], lod=value),
        lambda value: value_to_tensor("x", "x", value),
        lambda value: value_to_tensor("x", "x", [""], lod=value),
        lambda value: offsets("m", "x", value, 1),
        lambda value: text_to_numpy(f"array({value})"),
        lambda value: text_to_numpy(f"array({value}, dtype='<U5000')"),
    ],
)
@pytest.mark.parametrize("value", [TEXTS, MIXED, NESTED, BYTES])
def test_parsing_lists_does_not_pad_their_texts(reads: Callable[[Any], Any], value: Any) -> None:
    def read() -> None:
        with contextlib.suppress(Exception):
            reads(value)

    _, peak = measured(read)
    assert peak < 20_000_000


def test_lists_are_converted_without_losing_values() -> None:
    assert list(numpy_to_tensor("x", TEXTS).str_data) == TEXTS
    assert as_answer(TEXTS).tolist() == TEXTS
    assert array_of(TEXTS).tolist() == TEXTS
    assert dropin(TEXTS).tolist() == TEXTS
    assert feed(TEXTS).value[0].endswith(", dtype=object)")
    assert text_to_numpy(feed(TEXTS).value[0]).tolist() == TEXTS
    for value in (BYTES, [b"a", "b"]):
        with pytest.raises(PayloadTypeError, match="a list of bytes"):
            numpy_to_tensor("x", value)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_consecutive_text_arrays_are_not_padded(kind: str) -> None:
    arrays = [np.array([text], kind) for text in TEXTS]
    result, peak = measured(lambda: concatenated(arrays))
    assert result.tolist() == [array[0] for array in arrays]
    assert peak < 20_000_000


def test_short_text_arrays_and_numbers_keep_their_dtype() -> None:
    assert concatenated([np.array(["a"]), np.array(["bcd"])]).dtype == "<U3"
    assert concatenated([np.array([1]), np.array([2.5])]).dtype == float
    large = [np.array(["a" * 1000] * 500)] * 2
    assert concatenated(large).dtype == "<U1000"


def measured(make: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        return make(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
