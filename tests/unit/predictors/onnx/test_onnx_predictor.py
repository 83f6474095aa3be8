"""ONNX models on onnxruntime: real sessions on the CPU, a double where a card is wanted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from doubles import side_by_side
from onnx import TensorProto, helper
from onnx_doubles import ASCEND, CPU, CUDA, FLOAT, HOST, FakeRuntime, identity, save, value_info

from pipeline.errors import ClosedError, InitError, InputError, PayloadTypeError, PredictorError
from pipeline.predictors.base import Device, DeviceType, load_local_predictor
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.predictor import load

LIGHT_MODELS = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "toy.onnx"


@pytest.fixture
def arithmetic(path):
    """sum = a + b and difference = a - b, for rows of three."""
    shape = ["n", 3]
    return save(
        path,
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["difference"]),
        ],
        [value_info("a", FLOAT, shape), value_info("b", FLOAT, shape)],
        [value_info("sum", FLOAT, shape), value_info("difference", FLOAT, shape)],
    )


def gather(path):
    """Fails at run time when an index is out of range."""
    return save(
        path,
        [helper.make_node("Gather", ["table", "index"], ["y"])],
        [value_info("index", TensorProto.INT64, ["n"])],
        [value_info("y", FLOAT, ["n"])],
        [helper.make_tensor("table", FLOAT, [3], [10.0, 20.0, 30.0])],
    )


def rows(*values):
    return np.array(values, np.float32)


def test_a_model_runs_on_batches_of_any_size(arithmetic):
    predictor = load_local_predictor(arithmetic)
    for size in (1, 4, 0):
        a, b = np.full((size, 3), 2, np.float32), np.full((size, 3), 1, np.float32)
        result = predictor.predict({"a": a, "b": b})
        assert list(result) == ["sum", "difference"]
        assert result["sum"].tolist() == (a + b).tolist()
        assert result["difference"].tolist() == (a - b).tolist()


def test_the_names_are_the_model_s(arithmetic):
    predictor = load_local_predictor(arithmetic)
    assert predictor.feed_names == ("a", "b")
    assert predictor.fetch_names == ("sum", "difference")


def test_it_is_called_as_scripts_of_the_predecessor_call_it(arithmetic):
    feed = [{"a": rows([1, 2, 3]), "b": rows([1, 1, 1])}]
    result = load(arithmetic, CPU).predict(
        feed=feed, fetch=["difference"], batch=True, log_id=7, need_variant_tag=False
    )
    assert {name: value.tolist() for name, value in result.items()} == {"difference": [[0, 1, 2]]}


def test_the_fetch_list_is_the_default_and_a_call_may_fetch_other_outputs(arithmetic, path):
    predictor = load(OnnxModel(path, fetch_list=["difference"]), CPU)
    feed = {"a": rows([1, 2, 3]), "b": rows([1, 1, 1])}
    assert predictor.fetch_names == ("difference",)
    assert list(predictor.predict(feed)) == ["difference"]
    assert list(predictor.predict(feed, ["difference", "sum"])) == ["difference", "sum"]


def test_an_unknown_name_in_the_fetch_list_is_refused_at_the_start(arithmetic, path):
    with pytest.raises(InitError, match=r"toy\.onnx.*fetch_list.*'price'"):
        load(OnnxModel(path, fetch_list=["price"]), CPU)


def test_feeds_are_cast_and_need_not_be_contiguous(arithmetic):
    a = np.arange(6).reshape(3, 2).T
    b = np.ones((2, 6), ">f4")[:, ::2]
    result = load(arithmetic, CPU).predict({"a": a, "b": b})
    assert result["sum"].tolist() == (a + 1).tolist()


def test_a_wrong_feed_is_refused_before_the_run(arithmetic):
    predictor = load(arithmetic, CPU)
    with pytest.raises(InputError, match=r"toy\.onnx.*invalid arg list"):
        predictor.predict({"a": rows([1, 2, 3])})
    with pytest.raises(InputError, match=r"wants \(n, 3\)"):
        predictor.predict({"a": rows([1, 2]), "b": rows([1, 2])})
    with pytest.raises(PayloadTypeError, match="npdata"):
        predictor.predict({"a": [["1"]], "b": rows([1, 2, 3])})
    with pytest.raises(InputError, match="invalid arg list: fetch names"):
        predictor.predict({"a": rows([1, 2, 3]), "b": rows([1, 2, 3])}, ["price"])


def test_a_failing_model_is_an_error_with_its_name_and_the_next_run_works(path):
    predictor = load(gather(path), CPU)
    with pytest.raises(PredictorError, match=r"\[toy\.onnx\] the model failed: .*out of") as caught:
        predictor.predict({"index": np.array([7])})
    assert caught.value.code == 9000
    assert not caught.value.retryable
    assert "\n" not in str(caught.value)
    assert predictor.predict({"index": np.array([2, 0])})["y"].tolist() == [30, 10]


def test_a_failing_model_writes_nothing_to_the_console(path, capfd):
    predictor = load(gather(path), CPU)
    with pytest.raises(PredictorError):
        predictor.predict({"index": np.array([7])})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("element_type", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
        (TensorProto.INT8, np.int8),
        (TensorProto.INT16, np.int16),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT64, np.int64),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.UINT16, np.uint16),
        (TensorProto.UINT32, np.uint32),
        (TensorProto.UINT64, np.uint64),
        (TensorProto.BOOL, np.bool_),
    ],
)
def test_each_element_type_is_fed_and_fetched(path, element_type, dtype):
    predictor = load(identity(path, element_type), CPU)
    x = np.array([[0, 1], [1, 0], [1, 1]], dtype)
    for value in (x, x[::2], x.T.copy().T, x[:0]):
        y = predictor.predict({"x": value})["y"]
        assert y.dtype == np.dtype(dtype)
        assert y.astype(float).tolist() == value.astype(float).tolist()


def test_text_is_fed_and_fetched(path):
    predictor = load(identity(path, TensorProto.STRING, ("n",)), CPU)
    for value in (["a", "größe", ""], np.array(["a", "größe", ""]), np.array([b"a", "größe", b""])):
        assert predictor.predict({"x": value})["y"].tolist() == ["a", "größe", ""]


def test_a_bfloat16_input_works_with_other_inputs_and_text_outputs(path):
    model = save(
        path,
        [
            helper.make_node("Cast", ["h"], ["f"], to=FLOAT),
            helper.make_node("Add", ["f", "x"], ["sum"]),
            helper.make_node("Constant", [], ["label"], value_string="größe"),
        ],
        [value_info("h", TensorProto.BFLOAT16, ["n", 2]), value_info("x", FLOAT, ["n", 2])],
        [value_info("sum", FLOAT, ["n", 2]), value_info("label", TensorProto.STRING, [])],
    )
    x = np.ones((2, 4), np.float32)[:, ::2]  # not one block of memory
    result = load(model, CPU).predict({"h": rows([1.5, -2]), "x": x}, ["sum", "label"])
    assert result["sum"].tolist() == [[2.5, -1], [2.5, -1]]
    assert result["label"].tolist() == "größe"


def test_text_and_bfloat16_inputs_are_refused_together(path):
    model = save(
        path,
        [helper.make_node("Identity", ["t"], ["u"]), helper.make_node("Identity", ["h"], ["i"])],
        [value_info("t", TensorProto.STRING, ["n"]), value_info("h", TensorProto.BFLOAT16, ["n"])],
        [value_info("u", TensorProto.STRING, ["n"]), value_info("i", TensorProto.BFLOAT16, ["n"])],
    )
    with pytest.raises(InitError, match="cannot be fed text"):
        load(model, CPU)


def test_a_bfloat16_answer_outlives_its_session(path):
    predictor = load(identity(path, TensorProto.BFLOAT16), CPU)
    y = predictor.predict({"x": rows([1, 2])})["y"]
    predictor.close()
    y += 1
    assert y.astype(float).tolist() == [[2, 3]]


@pytest.mark.parametrize("shape", [(), None])
def test_a_scalar_and_an_unknown_rank_are_fed_unchanged(path, shape):
    predictor = load(identity(path, FLOAT, shape), CPU)
    assert predictor.predict({"x": np.array(3, np.float32)})["y"].tolist() == 3


def test_an_output_that_is_not_a_tensor_is_refused_if_it_is_fetched(path):
    model = save(
        path,
        [
            helper.make_node("SequenceConstruct", ["x"], ["list"]),
            helper.make_node("Identity", ["x"], ["y"]),
        ],
        [value_info("x", FLOAT, ["n", 2])],
        [
            helper.make_tensor_sequence_value_info("list", FLOAT, None),
            value_info("y", FLOAT, ["n", 2]),
        ],
    )
    for fetch_list in (None, ["list", "y"]):
        with pytest.raises(InitError, match=r"'list' is seq\(tensor\(float\)\).*fetch_list"):
            load(OnnxModel(model.model_path, fetch_list=fetch_list), CPU)
    predictor = load(OnnxModel(model.model_path, fetch_list=["y"]), CPU)
    assert predictor.predict({"x": rows([1, 2])})["y"].tolist() == [[1, 2]]


def test_an_invalid_model_file_is_an_error_with_its_path(path):
    path.write_bytes(b"not a model")
    with pytest.raises(InitError, match=rf"model_config: cannot load {path}"):
        load(OnnxModel(path), CPU)


def test_threads_share_one_session(arithmetic):
    predictor = load(arithmetic, CPU)
    wrong = []

    def call(number):
        a = np.full((2, 3), number, np.float32)
        sums = [predictor.predict({"a": a, "b": a})["sum"] for _ in range(50)]
        wrong.extend(result for result in sums if result.tolist() != (a + a).tolist())

    side_by_side(call, 4)
    assert wrong == []


def test_a_closed_predictor_raises_and_may_be_closed_again(arithmetic):
    predictor = load(arithmetic, CPU)
    predictor.close()
    predictor.close()
    with pytest.raises(ClosedError, match=r"toy\.onnx"):
        predictor.predict({"a": rows([1, 2, 3]), "b": rows([1, 2, 3])})


def test_a_precision_that_does_not_apply_to_a_file_is_a_warning(arithmetic, path, caplog):
    load(OnnxModel(path, precision="fp16"), CPU)
    assert "precision: fp16 has no effect" in caplog.text


def test_without_onnxruntime_the_error_names_the_package(arithmetic, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[onnx\]'"):
        load(arithmetic, CPU)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[gpu\]'"):
        load(arithmetic, Device(DeviceType.GPU, 0))


def test_telemetry_of_onnxruntime_is_off_unless_the_user_enables_it(arithmetic, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # nothing is loaded in this test
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    with pytest.raises(InitError):
        load(arithmetic, CPU)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    with pytest.raises(InitError):
        load(arithmetic, CPU)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_a_gpu_is_selected_by_its_number():
    runtime = FakeRuntime([CUDA, HOST])
    predictor = load(OnnxModel("m.onnx"), Device(DeviceType.GPU, 3), runtime)
    (first, options), *others = runtime.session.providers
    assert (first, options["device_id"], others) == (CUDA, 3, [(HOST, {})])
    assert not runtime.session.enable_fallback
    assert predictor.predict({"x": rows(1, 2)})["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("available", "landed"), [([HOST], [HOST]), ([CUDA, HOST], [HOST])], ids=["build", "session"]
)
def test_a_missing_gpu_is_an_error_and_never_falls_back_to_the_cpu(available, landed):
    with pytest.raises(InitError, match=r"devices: GPU 1 was asked for.*CPUExecutionProvider"):
        load(OnnxModel("m.onnx"), Device(DeviceType.GPU, 1), FakeRuntime(available, landed))


def test_the_real_runtime_refuses_a_gpu_on_a_machine_without_one(arithmetic, path):
    with pytest.raises(InitError, match="GPU 0 was asked for"):
        load_local_predictor(OnnxModel(path, devices="0"))


@pytest.mark.parametrize(
    ("card", "memory"),
    [(Device(DeviceType.GPU, 2), ("cuda", 2)), (Device(DeviceType.ASCEND310, 1), ("cann", 1))],
)
def test_on_a_card_every_run_is_bound_to_its_memory(card, memory):
    runtime = FakeRuntime([CUDA, ASCEND, HOST])
    predictor = load(OnnxModel("m.onnx"), card, runtime)
    assert predictor.predict({"x": rows(1, 2)})["x"].tolist() == [1, 2]
    warm_up, binding = runtime.session.bindings
    assert warm_up.inputs["x"].tolist() == [0]
    assert binding.inputs["x"].tolist() == [1, 2]
    assert binding.outputs == [("x", *memory)]
    assert runtime.session.plain_runs == []


@pytest.mark.parametrize("kind", [DeviceType.CPU, DeviceType.ARM_CPU])
def test_on_the_cpu_threads_are_as_configured_and_do_not_spin(kind):
    runtime = FakeRuntime([HOST])
    load(OnnxModel("m.onnx", thread_num=5), Device(kind), runtime)
    options = runtime.session.options
    assert runtime.session.providers == [(HOST, {})]
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (5, 1)
    assert options.entries == {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
    }
    assert runtime.session.bindings == []


@pytest.mark.parametrize("mem_optim", [True, False])
def test_mem_optim_sets_memory_planning_and_arena(mem_optim):
    runtime = FakeRuntime([HOST])
    load(OnnxModel("m.onnx", mem_optim=mem_optim), CPU, runtime)
    options = runtime.session.options
    assert (options.enable_mem_pattern, options.enable_cpu_mem_arena) == (mem_optim, mem_optim)


def test_without_mem_optim_a_model_answers_the_same(arithmetic, path):
    predictor = load(OnnxModel(path, mem_optim=False), CPU)
    feed = {"a": rows([1, 2, 3]), "b": rows([1, 1, 1])}
    assert predictor.predict(feed)["sum"].tolist() == [[2, 3, 4]]


def test_a_model_is_run_once_when_it_is_loaded():
    runtime = FakeRuntime([HOST])
    load(OnnxModel("m.onnx", dynamic_shapes={"opt_input_shape": {"x": [4]}}), CPU, runtime)
    (feed,) = runtime.session.plain_runs
    assert feed["x"].tolist() == [0, 0, 0, 0]


def test_a_model_that_refuses_zeros_is_loaded_with_a_warning(path, caplog):
    model = save(
        path,
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [value_info("x", FLOAT, ["n"])],
        [value_info("y", FLOAT, [1, 2])],
        [helper.make_tensor("shape", TensorProto.INT64, [2], [1, 2])],
    )
    predictor = load(model, CPU)
    assert "toy.onnx] the warm-up failed" in caplog.text
    assert predictor.predict({"x": rows(5, 6)})["y"].tolist() == [[5, 6]]


def test_cuda_that_pip_has_installed_is_loaded_first_for_a_card_alone():
    runtime = FakeRuntime([CUDA, ASCEND, HOST])
    loads = []
    runtime.preload_dlls = lambda: loads.append(runtime.session)
    load(OnnxModel("m.onnx"), CPU, runtime)
    load(OnnxModel("m.onnx"), Device(DeviceType.ASCEND910, 0), runtime)
    runtime.session = None
    load(OnnxModel("m.onnx"), Device(DeviceType.GPU, 0), runtime)
    assert loads == [None]  # once, before there was a session


def test_a_network_of_the_onnx_package_runs(caplog):
    caplog.set_level("INFO")
    predictor = load(OnnxModel(LIGHT_MODELS / "light_squeezenet.onnx", thread_num=1), CPU)
    assert caplog.text == ""  # neither a warning nor a word about a warm-up left out
    picture = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    (scores,) = predictor.predict({predictor.feed_names[0]: picture}).values()
    assert scores.size == 1000
    assert np.isclose(scores.sum(), 1, atol=1e-3)


def test_a_state_travels_through_a_model_from_call_to_call(path):
    """The shapes of a voice detector: the batch is the second axis of its state."""
    model = save(
        path,
        [
            helper.make_node("ReduceSum", ["input", "axes"], ["frame"], keepdims=1),
            helper.make_node("Add", ["state", "frame"], ["stateN"]),
            helper.make_node("Cast", ["sr"], ["rate"], to=FLOAT),
            helper.make_node("Mul", ["frame", "rate"], ["output"]),
        ],
        [
            value_info("input", FLOAT, ["batch", 3]),
            value_info("state", FLOAT, [2, "batch", 4]),
            value_info("sr", TensorProto.INT64, []),
        ],
        [value_info("output", FLOAT, ["batch", 1]), value_info("stateN", FLOAT, [2, "batch", 4])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    predictor = load(model, CPU)
    state = np.zeros((2, 2, 4), np.float32)
    for _ in range(3):
        feed = {"input": rows([1, 2, 3], [0, 0, 1]), "state": state, "sr": np.array(2)}
        result = predictor.predict(feed)
        state = result["stateN"]
        assert result["output"].tolist() == [[12], [2]]
    assert state.tolist() == [[[18] * 4, [3] * 4]] * 2
