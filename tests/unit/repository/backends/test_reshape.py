"""`reshape` of tensors: which shapes a model is fed, and which its callers get."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from pipeline.errors import PayloadTypeError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.ragged import Reshaping, reshaping_of


def reshaping(text, most=8):
    return reshaping_of(
        text_format.Parse(f'name: "m" max_batch_size: {most} {text}', ModelConfig())
    )


@pytest.mark.parametrize(
    ("most", "dims", "shape", "given", "wanted"),
    [
        (8, [4], [2, 2], (3, 4), (3, 2, 2)),
        (8, [1], [], (3, 1), (3,)),
        (0, [4], [2, 2], (4,), (2, 2)),
        (8, [-1, 1], [-1], (3, 5, 1), (3, 5)),
        (8, [-1, 2, -1], [2, -1, -1], (3, 5, 2, 7), (3, 2, 5, 7)),
    ],
)
def test_shapes_become_others_there_and_back(most, dims, shape, given, wanted):
    slot = f'name: "X" dims: {dims} reshape {{ shape: {shape} }}'
    result = reshaping(f"input {{ {slot} }} output {{ {slot} }}", most)
    array = np.arange(np.prod(given)).reshape(given)
    fed = result.fed({"X": array, "OTHER": array})
    assert (fed["X"].shape, fed["OTHER"].shape) == (wanted, given)
    back = result.answered(fed)
    np.testing.assert_array_equal(back["X"], array)


def test_an_input_may_be_missing():
    result = reshaping('input { name: "X" dims: 4 reshape { shape: [ 2, 2 ] } optional: true }')
    assert result.fed({}) == {}


def test_without_reshape_no_array_is_copied():
    arrays = {"X": np.zeros(4)}
    assert reshaping('input { name: "X" dims: 4 }') == Reshaping(skip=1)
    assert reshaping("").fed(arrays) is arrays
    assert reshaping("").answered(arrays) is arrays


def test_an_output_with_too_few_elements_is_an_error():
    result = reshaping('output { name: "Y" dims: 4 reshape { shape: [ 2, 2 ] } }')
    with pytest.raises(PayloadTypeError, match=r"'Y' has the shape \[1, 3\]"):
        result.answered({"Y": np.zeros((1, 3))})
