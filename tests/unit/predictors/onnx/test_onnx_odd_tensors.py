"""ONNX models with scalars, dicts of probabilities, odd types; arrays without rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_doubles import CPU, FLOAT, build, identity, save, value_info

from pipeline.errors import InitError, InputError
from pipeline.predictors.base import TEXT
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.binding import ProbabilitiesRunner
from pipeline.predictors.onnx.predictor import load, scalars_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "toy.onnx"


def test_scalars_are_distinguished_from_tensors_of_any_rank(path):
    names = {"scalar": [], "any": None, "row": ["n"]}
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names]
    ends = [[value_info(name + end, FLOAT, names[name]) for name in names] for end in ("", "_out")]
    predictor = load(save(path, nodes, *ends), CPU)
    shapes = {spec.name: spec.shape for spec in predictor.signature.inputs}
    assert shapes == {"scalar": (), "any": None, "row": ("n",)}
    assert {spec.name: spec.shape for spec in predictor.signature.outputs}["scalar_out"] == ()
    path.write_bytes(path.read_bytes()[:-3])  # a file that cannot be read
    assert scalars_of(path) == frozenset()
    assert scalars_of(path.parent / "missing") == frozenset()


def test_a_scalar_text_is_fed_and_fetched(path):
    predictor = load(identity(path, TensorProto.STRING, []), CPU)
    for text in ("a", np.array("a"), np.array(b"a", object)):
        answer = predictor.predict({"x": text})["y"]
        assert (answer.shape, answer.dtype, answer.item()) == ((), TEXT, "a")


@pytest.mark.parametrize(
    ("key", "classes", "columns"),
    [
        ("classlabels_strings", ["b", "a"], [[2, 1], [4, 3]]),
        ("classlabels_int64s", [10, 9], [[2, 1], [4, 3]]),
    ],
)
def test_probabilities_of_zipmap_are_columns_in_the_order_of_the_classes(
    path, key, classes, columns
):
    kind = TensorProto.STRING if key == "classlabels_strings" else TensorProto.INT64
    entry = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(FLOAT, []))
    model = build(
        [
            helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", **{key: classes}),
            helper.make_node("Identity", ["x"], ["y"]),
        ],
        [value_info("x", FLOAT, ["n", 2])],
        [
            helper.make_value_info("p", helper.make_sequence_type_proto(entry)),
            value_info("y", FLOAT, ["n", 2]),
        ],
        opsets={"": 17, "ai.onnx.ml": 2},
    )
    onnx.save(model, path)
    predictor = load(OnnxModel(path, thread_num=1), CPU)
    answer = predictor.predict({"x": np.array([[1, 2], [3, 4]], np.float32)})
    assert answer["p"].dtype == np.float32
    assert answer["p"].tolist() == columns
    assert answer["y"].tolist() == [[1, 2], [3, 4]]


def test_a_value_that_the_model_has_may_be_overridden(path):
    model = save(
        path,
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value_info("x", FLOAT, ["n", 2]), value_info("w", FLOAT, [2])],
        [value_info("y", FLOAT, ["n", 2])],
        [helper.make_tensor("w", FLOAT, [2], [1.0, 2.0])],
    )
    predictor = load(model, CPU)
    x = np.zeros((1, 2), np.float32)
    assert predictor.feed_names == ("x",)
    assert predictor.predict({"x": x})["y"].tolist() == [[1, 2]]
    assert predictor.predict({"x": x, "w": [5, 6]})["y"].tolist() == [[5, 6]]


def test_errors_about_unsupported_types_give_advice(path):
    sequence = helper.make_tensor_sequence_value_info
    node = helper.make_node("SequenceConstruct", ["x"], ["list"])
    x, out = value_info("x", FLOAT, ["n"]), sequence("list", FLOAT, None)
    with pytest.raises(
        InitError, match=r"the output 'list' is seq\(tensor\(float\)\) and no"
    ) as no:
        load(save(path, [node], [x], [out]), CPU)
    assert "fetch_list" not in str(no.value)  # there are no others
    length = helper.make_node("SequenceLength", ["x"], ["y"])
    y = value_info("y", TensorProto.INT64, [])
    with pytest.raises(InitError, match=r"the input 'x' is seq.*export the model with tensors$"):
        load(save(path, [length], [sequence("x", FLOAT, None)], [y]), CPU)
    cast = helper.make_node("Cast", ["x"], ["y"], to=FLOAT)
    ends = [value_info("x", TensorProto.INT4, ["n"])], [value_info("y", FLOAT, ["n"])]
    with pytest.raises(InitError, match=r"'x' is tensor\(int4\), which numpy lacks: cast it"):
        load(save(path, [cast], *ends), CPU)


def test_arrays_without_rows_do_not_reach_onnxruntime_unasked(path):
    model = identity(path, FLOAT)
    requests = []

    def run(names, arrays):
        requests.append(arrays["x"].shape)
        return [arrays["x"]]

    nothing = np.zeros((0, 2), np.float32)
    for takes_empty in (False, True):
        predictor = load(OnnxModel(model.model_path, takes_empty=takes_empty), CPU)
        predictor._run = run
        assert predictor.predict({"x": nothing})["y"].shape == (0, 2)
    assert requests == [(0, 2)]
    reduced = save(
        path,
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [value_info("x", FLOAT, ["n", 2])],
        [value_info("y", FLOAT, [])],
    )
    with pytest.raises(InputError, match=r"feed 'x' has shape \(0, 2\), no elements.*takes_empty"):
        load(reduced, CPU).predict({"x": nothing})
    without = save(
        path,
        [helper.make_node("Identity", ["x"], ["y"])],
        [value_info("x", FLOAT, [0, 2])],
        [value_info("y", FLOAT, [0, 2])],
    )
    assert not load(without, CPU).warm_up({})


def test_probabilities_of_no_rows_are_an_array_without_elements():
    (result,) = ProbabilitiesRunner(lambda names, arrays: [[]], ["p"])(["p"], {})
    assert (result.shape, result.dtype) == ((0, 0), np.float32)
