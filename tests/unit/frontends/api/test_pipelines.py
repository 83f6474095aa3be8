"""Requests of plain JSON to pipelines that unpack requests, and pack answers, themselves."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pipeline.frontends.api.answers import payload_of
from pipeline.frontends.api.pipelines import request_of
from pipeline.proto.codec import decode_tensors
from pipeline.proto.messages import request_from_feed
from pipeline.proto.pipeline_service_pb2 import Response


def test_pairs_and_tensors_of_a_request_have_equal_values():
    fields = {
        "text": "a", "number": 1.5, "whole": 7, "yes": True, "list": [[1, 2], [3, 4]],
        "texts": ["a", "bc"], "bytes": b"\xff", "none": None, "dict": {"a": [1]},
        "mixed": ["a", 1], "uneven": [[1], [2, 3]], "huge": 2**80,
    }  # fmt: skip
    request = request_of(fields)
    assert dict(zip(request.key, request.value, strict=True)) == {
        "text": "a", "none": "null", "dict": '{"a":[1]}', "mixed": '["a",1]',
        "uneven": "[[1],[2,3]]", "huge": str(2**80),
    }  # fmt: skip
    tensors = decode_tensors(request.tensors)
    assert (tensors["number"], tensors["whole"], bool(tensors["yes"])) == (1.5, 7, True)
    assert np.array_equal(tensors["list"], [[1, 2], [3, 4]])
    assert list(tensors["texts"]) == ["a", "bc"]
    assert bytes(tensors["bytes"]) == b"\xff"


def test_a_response_is_shown_as_an_object():
    response = Response(key=["a", "pipeline.profile"], value=["[1, 2]", "x"])
    response.tensors.append(_tensor("t", np.array([[1.5]])))
    payload = payload_of(response)
    assert payload.keys() == {"a", "t"}
    assert (payload["a"], payload["t"].tolist()) == ("[1, 2]", [[1.5]])


def _tensor(name, array):
    return request_from_feed({name: array}, _AsTensors, "").tensors[0]


class _AsTensors:
    fetch, as_tensors, as_bytes, profile, log_id = None, True, False, False, 0


@pytest.mark.parametrize("first", ["", 1])
def test_one_long_text_in_a_list_does_not_pad_the_others(first: object) -> None:
    texts = [first, "a" * 5000, *[""] * 5000]
    tracemalloc.start()
    try:
        request_of({"x": texts})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
