"""Ragged batches: a model's inputs, their shapes, and the split of its outputs."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from pipeline.errors import PayloadTypeError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.ragged import ModelBatch, is_ragged

RAGGED = 'input { name: "R" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }'
PLAIN = 'input { name: "P" data_type: TYPE_FP32 dims: 2 }'


def config(text):
    return text_format.Parse(f'name: "m" max_batch_size: 8 {text}', ModelConfig())


def test_ragged_inputs_are_flat_and_others_have_rows():
    made = """batch_input { kind: BATCH_ELEMENT_COUNT target_name: ["A", "B"]
        data_type: TYPE_INT32 source_input: "R" }"""
    batch = ModelBatch(config(RAGGED + PLAIN + made))
    one = {"R": np.ones((1, 3), np.float32), "P": np.zeros((1, 2), np.float32)}
    two = {"R": np.full((2, 1), 5, np.float32), "P": np.ones((2, 2), np.float32)}
    feed = batch.gathered([one, two])
    assert feed["R"].tolist() == [1, 1, 1, 5, 5]
    assert feed["P"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert (feed["A"].dtype, feed["A"].tolist()) == (np.int32, [3, 2])
    assert feed["B"].tolist() == [3, 2]


def test_outputs_are_cut_by_rows_or_by_the_shapes_of_an_input():
    outputs = """output { name: "ROWS" data_type: TYPE_FP32 dims: 1 }
        output { name: "FLAT" data_type: TYPE_FP32 dims: -1 }
        batch_output { target_name: "FLAT" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "R" }
    """
    batch = ModelBatch(config(RAGGED + outputs))
    feeds = [{"R": np.ones((1, 3))}, {"R": np.ones((2, 1))}]
    one, two = batch.cut({"ROWS": np.arange(3).reshape(3, 1), "FLAT": np.arange(5)}, feeds)
    assert (one["ROWS"].tolist(), two["ROWS"].tolist()) == ([[0]], [[1], [2]])
    assert (one["FLAT"].tolist(), two["FLAT"].tolist()) == ([[0, 1, 2]], [[3], [4]])
    with pytest.raises(PayloadTypeError, match="'ROWS' has the shape"):
        batch.cut({"ROWS": np.arange(4)}, feeds)
    with pytest.raises(PayloadTypeError, match="'FLAT' has 4 elements"):
        batch.cut({"FLAT": np.arange(4)}, feeds)


@pytest.mark.parametrize(("text", "expected"), [(PLAIN, False), (RAGGED, True)])
def test_which_models_are_ragged(text, expected):
    assert is_ragged(config(text)) is expected
