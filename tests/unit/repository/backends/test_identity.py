"""The backend `identity`: outputs are inputs, and what is left out is zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import ModelSource
from pipeline.repository.backends.identity import IdentityOp

TENSORS = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 3 ] optional: true }
input { name: "INPUT1" data_type: TYPE_STRING dims: 2 optional: true }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "OUTPUT1" data_type: TYPE_STRING dims: 2 }
"""

RAGGED = "dims: [ -1, 3 ] allow_ragged_batch: true opt"


def identity(most_rows):
    text = f'name: "m" max_batch_size: {most_rows} {TENSORS}'
    config = text_format.Parse(text, ModelConfig())
    return IdentityOp(ModelSource("m", 1, Path(), config))


def test_an_optional_input_that_is_left_out_is_answered_by_zeros():
    given = np.ones((2, 4, 3), np.float32)
    answer = identity(8).process([{"INPUT0": given}])
    assert answer["OUTPUT0"] is given
    assert answer["OUTPUT1"].tolist() == [[b"", b""]] * 2


@pytest.mark.parametrize(("most_rows", "shape"), [(8, (1, 1, 3)), (0, (1, 3))])
def test_unknown_sizes_are_one(most_rows, shape):
    zeros = identity(most_rows).process([{}])["OUTPUT0"]
    assert (zeros.shape, zeros.dtype, zeros.any()) == (shape, np.float32, False)


def test_requests_of_different_shapes_share_a_batch_where_that_is_allowed():
    text = f'name: "m" max_batch_size: 8 {TENSORS}'.replace("dims: [ -1, 3 ] opt", RAGGED, 1)
    op = IdentityOp(ModelSource("m", 1, Path(), text_format.Parse(text, ModelConfig())))
    assert op.pipeline_ragged == {"INPUT0"}
    feeds = [{"INPUT0": np.ones((1, size, 3), np.float32)} for size in (1, 2)]
    answers = op.process(feeds)
    assert [answer["OUTPUT0"].shape for answer in answers] == [(1, 1, 3), (1, 2, 3)]
