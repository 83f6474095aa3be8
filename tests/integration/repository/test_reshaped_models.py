"""Models of a repository that have other shapes than their callers see, by `reshape`."""

from __future__ import annotations

import pytest
from doubles import http
from repositories import add_python, serving

PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        assert array.shape[1:] == (2, 2), array.shape
        if array.sum() < 0:
            array = array[:, :1]
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])
"""
CONFIG = """
backend: "%s"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }
output { name: "Y" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }
%s
"""


def ask(server, model, rows):
    shape = [len(rows), len(rows[0])]
    sent = {"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": rows}]}
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", sent)
    if status != 200:
        return status, answer["error"]
    (output,) = answer["outputs"]
    return output["shape"], output["data"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    thread = 'parameters { key: "workers" value { string_value: "thread" } }'
    for name, more in (("process", ""), ("thread", thread)):
        add_python(folder, name, PYTHON)
        (folder / name / "config.pbtxt").write_text(CONFIG % ("python", more))
    (folder / "same" / "1").mkdir(parents=True)
    (folder / "same" / "config.pbtxt").write_text(CONFIG % ("identity", ""))
    with serving(folder, mode="none") as server:
        yield server


@pytest.mark.parametrize("model", ["process", "thread", "same"])
def test_callers_see_the_dims_and_the_model_its_own_shape(server, model):
    rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    assert ask(server, model, rows) == ([2, 4], [*rows[0], *rows[1]])
    status, text = ask(server, model, [[1.0, 2.0]])
    assert (status, "shape" in text) == (400, True), text


@pytest.mark.parametrize("model", ["process", "thread"])
def test_an_answer_that_cannot_be_reshaped_is_an_error_of_this_request(server, model):
    status, text = ask(server, model, [[-1.0, 0.0, 0.0, 0.0]])
    assert status >= 400
    assert "cannot become [1, 4]" in text
    assert ask(server, model, [[0.0] * 4]) == ([1, 4], [0.0] * 4)
