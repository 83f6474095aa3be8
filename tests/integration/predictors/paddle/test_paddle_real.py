"""Paddle models on paddle.inference itself, on the CPU; skipped where it is not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from doubles import side_by_side
from paths import ROOT, TESTS

from pipeline.errors import ClosedError, InitError, InputError, PayloadTypeError, PredictorError
from pipeline.predictors.base import Device, DeviceType, load_local_predictor
from pipeline.predictors.paddle import PaddleModel
from pipeline.predictors.paddle.predictor import import_paddle, load
from pipeline.predictors.paddle.program import read_program

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("paddle") is None, reason="paddlepaddle is not installed"
    ),
    pytest.mark.timeout(600),  # to import Paddle takes a busy machine minutes
]
CPU = Device(DeviceType.CPU)
ODD = ("int16", "bfloat16")  # no handle carries them
TOYS = TESTS / "support" / "paddle_toys.py"

PROTOTXT = """
feed_var { name: "words" alias_name: "text" is_lod_tensor: true feed_type: 1 shape: 2 }
fetch_var { name: "%s" alias_name: "score" is_lod_tensor: false fetch_type: 1 shape: 1 }
"""


@pytest.fixture(scope="session")
def toys(tmp_path_factory):
    """A folder of small models; `inference.pdmodel` is of the older format."""
    import_paddle()  # with its warnings off, whichever test is the first
    folder = tmp_path_factory.mktemp("paddle")
    for mode, flag in (("new", "1"), ("old", "0")):
        command = [sys.executable, "-W", "ignore", str(TOYS), mode, str(folder)]
        environment = os.environ | {"FLAGS_enable_pir_api": flag}
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
    return folder


def model(path, **keys):
    # None: as Paddle itself would have it, which is quick.
    return PaddleModel(path, **{"thread_num": 1, "ir_optim": None, "use_mkldnn": None} | keys)


@pytest.fixture
def arithmetic(toys):
    predictor = load(model(toys / "arithmetic.json"), CPU)
    yield predictor
    predictor.close()


@pytest.fixture
def served(toys, tmp_path):
    """The predecessor's folder of a model: `__model__`, `__params__` and the prototxt."""
    shutil.copy(toys / "inference.pdmodel", tmp_path / "__model__")
    shutil.copy(toys / "inference.pdiparams", tmp_path / "__params__")
    name = load(model(toys / "inference.pdmodel"), CPU).fetch_names[-1]
    (tmp_path / "serving_server_conf.prototxt").write_text(PROTOTXT % name)
    return tmp_path


def rows(*values):
    return np.array(values, np.float32)


def test_a_model_runs_on_batches_of_any_size(arithmetic):
    for size in (1, 4, 2):
        a, b = np.full((size, 3), 2, np.float32), np.full((size, 3), 1, np.float32)
        total, difference = arithmetic.predict({"a": a, "b": b}).values()
        assert total.tolist() == (a + b).tolist()
        assert difference.tolist() == (a - b).tolist()


@pytest.mark.parametrize("ir_optim", [None, False, True])
@pytest.mark.parametrize("use_mkldnn", [None, False, True])
@pytest.mark.parametrize("mem_optim", [False, True])
def test_each_optimization_gives_the_same_answer(toys, ir_optim, use_mkldnn, mem_optim):
    keys = {"ir_optim": ir_optim, "use_mkldnn": use_mkldnn, "mem_optim": mem_optim}
    new = load(model(toys / "arithmetic.json", **keys), CPU)
    assert new.predict({"a": rows([1, 2, 3]), "b": rows([1, 1, 1])}, ["fetch_name_1"])[
        "fetch_name_1"
    ].tolist() == [[0, 1, 2]]
    old = load(model(toys / "inference.pdmodel", **keys), CPU)
    result = old.predict({"words": rows([1, 2], [3, 4]), "words.lod": [0, 2]})
    assert result[old.fetch_names[-1]].tolist() == [[10]]


def test_the_signature_is_the_program_s(toys):
    spec, *_ = load(model(toys / "convolution.json"), CPU).signature.inputs
    assert (spec.name, spec.dtype, spec.shape) == ("x", np.float32, (None, 3, None, None))


def test_a_model_is_found_by_its_suffix(toys, tmp_path):
    for suffix in (".json", ".pdiparams"):
        shutil.copy(toys / f"table{suffix}", tmp_path)
    predictor = load_local_predictor(model(tmp_path))
    assert predictor.predict({"index": np.array([2, 0])})["fetch_name_0"].tolist() == [[30], [10]]
    assert predictor.holds_gil


@pytest.mark.parametrize(
    "dtype", [*("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool"), *ODD]
)
def test_each_element_type_is_fed_and_fetched(toys, dtype):
    predictor = load(model(toys / f"{dtype}.json"), CPU)
    x = np.array([[0, 1.5], [3.25, 0], [1, 100]]).astype(dtype)
    for value in (x, x[::2], x.T.copy().T):
        (y,) = predictor.predict({"x": value}).values()
        assert y.dtype == np.dtype(dtype)
        assert y.tolist() == (value.astype(np.float32) + 1).astype(dtype).tolist()


@pytest.mark.parametrize("dtype", ODD)
def test_types_without_a_handle_work_in_a_script_in_static_mode(toys, dtype):
    paddle = importlib.import_module("paddle")
    predictor = load(model(toys / f"{dtype}.json"), CPU)
    paddle.enable_static()
    try:
        (y,) = predictor.predict({"x": np.array([[0, 1]], np.float32).astype(dtype)}).values()
        assert not paddle.in_dynamic_mode()
    finally:
        paddle.disable_static()
    assert y.astype(np.float32).tolist() == [[1, 2]]
    bits = y.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    if dtype == "bfloat16":  # as Paddle's callers send it
        assert predictor.predict({"x": bits})["fetch_name_0"].astype(float).tolist() == [[2, 3]]


def test_feeds_are_cast_and_need_not_be_contiguous_or_writeable(arithmetic):
    a = np.arange(6).reshape(3, 2).T
    b = np.ones((2, 6), ">f4")[:, ::2]
    b.flags.writeable = False
    assert arithmetic.predict({"a": a, "b": b})["fetch_name_0"].tolist() == (a + 1).tolist()


def test_a_wrong_feed_is_refused_before_the_run(arithmetic):
    with pytest.raises(InputError, match=r"arithmetic\.json.*invalid arg list"):
        arithmetic.predict({"a": rows([1, 2, 3])})
    with pytest.raises(PayloadTypeError, match="npdata"):
        arithmetic.predict({"a": [["1"]], "b": rows([1, 2, 3])})


def test_an_error_of_paddle_about_shapes_includes_the_declaration(toys):
    predictor = load(model(toys / "convolution.json"), CPU)
    with pytest.raises(InputError) as caught:
        predictor.predict({"x": np.zeros((1, 2, 8, 8), np.float32)})
    assert "the model failed: " in str(caught.value)
    odd = "(feed 'x' has shape (1, 2, 8, 8), the model declares (?, 3, ?, ?))"
    assert str(caught.value).endswith(odd)
    plus_one = load(model(toys / "float32.json"), CPU)
    assert plus_one.signature.inputs[0].shape == (None, 2)
    (result,) = plus_one.predict({"x": rows([1, 2, 3])}).values()
    assert result.shape == (1, 3)


@pytest.mark.parametrize("name", ["boxes.json", "boxes_old.pdmodel"])
def test_boxes_have_the_lod_that_paddle_gave_of_them_formerly(toys, name):
    predictor = load(model(toys / name), CPU)
    boxes, counts, _ = predictor.fetch_names
    corners = np.array([[0, 0, 1, 1], [4, 4, 5, 5], [8, 8, 9, 9]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.1], [0.1, 0.1, 0.1]], [[0.9, 0.1, 0.1], [0.1, 0.1, 0.1]]])
    feed = {"boxes": np.stack([corners, corners]), "scores": scores.astype(np.float32)}
    for fetch in ([boxes], [counts, boxes]):
        result = predictor.predict(feed, fetch)
        assert result[boxes].shape == (3, 6)
        assert result[boxes + ".lod"].tolist() == [0, 2, 3]
    assert result[counts].tolist() == [2, 1]
    assert counts + ".lod" not in result


def test_an_empty_feed_that_would_end_the_process_is_refused(toys):
    predictor = load(model(toys / "convolution.json"), CPU)
    for shape in ((0, 3, 8, 8), (1, 3, 0, 8)):
        with pytest.raises(InputError, match=r"'x' has shape .*no elements.*takes_empty"):
            predictor.predict({"x": np.zeros(shape, np.float32)})


def test_a_failing_model_gives_the_reason_in_one_line_and_the_next_run_works(toys):
    predictor = load(model(toys / "table.json"), CPU)
    with pytest.raises(
        PredictorError, match=r"\[table\.json\] the model failed: .*got 7"
    ) as caught:
        predictor.predict({"index": np.array([7])})
    assert caught.value.code == 9000
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert predictor.predict({"index": np.array([1])})["fetch_name_0"].tolist() == [[20]]


def test_calls_that_overlap_get_their_own_answers(arithmetic):
    wrong = []

    def call(number):
        a = np.full((2, 3), number, np.float32)
        sums = [arithmetic.predict({"a": a, "b": a})["fetch_name_0"] for _ in range(50)]
        wrong.extend(result for result in sums if result.tolist() != (a + a).tolist())

    side_by_side(call, 4)
    assert wrong == []


def test_an_answer_outlives_later_runs_and_its_predictor(toys):
    predictor = load(model(toys / "table.json"), CPU)
    answer = predictor.predict({"index": np.array([0])})["fetch_name_0"]
    predictor.predict({"index": np.array([2])})
    predictor.close()
    assert answer.tolist() == [[10]]
    with pytest.raises(ClosedError):
        predictor.predict({"index": np.array([0])})


def test_sequences_are_fed_and_fetched_with_their_offsets(toys):
    predictor = load(model(toys / "inference.pdmodel"), CPU)
    sums, doubled, total = predictor.fetch_names
    words = np.arange(10, dtype=np.float32).reshape(5, 2)
    for starts in ([0, 2, 5], np.array([0, 2, 5]), [[0, 2, 5]]):
        result = predictor.predict({"words": words, "words.lod": starts})
        assert result[sums].tolist() == [[2, 4], [18, 21]]
        assert result[doubled].tolist() == (words * 2).tolist()
        assert result[doubled + ".lod"].dtype == np.int32
        assert result[doubled + ".lod"].tolist() == [0, 2, 5]
        assert result[total].tolist() == [[6], [39]]
        assert sums + ".lod" not in result


def test_offsets_do_not_stay_for_the_next_call(toys):
    predictor = load(model(toys / "inference.pdmodel"), CPU)
    words = rows([1, 2], [3, 4])
    predictor.predict({"words": words, "words.lod": [0, 2]})
    with pytest.raises(PredictorError, match="LoD"):
        predictor.predict({"words": words})


def test_the_predecessor_s_folder_is_served_by_its_aliases(served):
    predictor = load_local_predictor(model(served))
    assert (predictor.feed_names, predictor.fetch_names) == (("text",), ("score",))
    feed = {"text": rows([1, 2], [3, 4], [5, 6]), "text.lod": [0, 2, 3]}
    assert predictor.predict(feed)["score"].tolist() == [[10], [11]]


def test_the_predecessor_s_scripts_may_use_the_model_s_own_names(served):
    predictor = load(model(served / "__model__"), CPU)
    feed = {"words": rows([1, 2], [3, 4]), "words.lod": [0, 2]}
    own = predictor.signature.outputs[2].name
    assert {name: y.tolist() for name, y in predictor.predict(feed, [own]).items()} == {own: [[10]]}


def test_the_weights_may_lie_in_a_file_each(served):
    raw = (served / "__params__").read_bytes()
    (served / "__params__").unlink()
    bias, weight = sorted(read_program(served / "__model__").weights)
    (served / bias).write_bytes(raw[:28])  # 24 bytes of description, one number
    with pytest.raises(InitError, match=rf"are missing: {weight}"):
        load(model(served / "__model__"), CPU)
    (served / weight).write_bytes(raw[28:])
    predictor = load(model(served / "__model__"), CPU)
    feed = {"text": rows([1, 2], [3, 4]), "text.lod": [0, 2]}
    assert predictor.predict(feed)["score"].tolist() == [[10]]
    (served / weight).write_bytes(raw[:28])
    with pytest.raises(InitError, match=rf"{weight} holds the weights of another model"):
        load(model(served / "__model__"), CPU)


@pytest.mark.parametrize(
    ("victim", "keep"),
    [
        (name, size)
        for name in (
            "inference.pdmodel",
            "inference.pdiparams",
            "arithmetic.json",
            "arithmetic.pdiparams",
        )
        for size in (0, 30, 55)
    ],
)
def test_a_file_that_was_cut_off_is_refused(toys, tmp_path, victim, keep):
    stem = victim.partition(".")[0]
    program = "inference.pdmodel" if stem == "inference" else "arithmetic.json"
    for name in (program, f"{stem}.pdiparams"):
        shutil.copy(toys / name, tmp_path)
    (tmp_path / victim).write_bytes((toys / victim).read_bytes()[:keep])
    with pytest.raises(InitError, match=rf"model_config: .*{tmp_path / stem}") as caught:
        load(model(tmp_path / program), CPU)
    assert "\n" not in str(caught.value)


def test_a_card_is_refused_by_the_cpu_build(toys):
    import paddle

    if paddle.is_compiled_with_cuda():
        pytest.skip("this is the build for GPUs")
    for keys in ({"devices": "0"}, {"device_type": 2, "devices": "0"}):
        with pytest.raises(InitError, match=r"GPU 0 was asked for.*CPU build.*device_type: 0"):
            load_local_predictor(model(toys / "table.json", **keys))


QUIET = """
import logging, os, signal, sys
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
from pipeline.predictors.base import load_local_predictor
from pipeline.predictors.paddle import PaddleModel
predictor = load_local_predictor(PaddleModel(sys.argv[1], ir_optim=None, use_mkldnn=None))
predictor.predict({"index": __import__("numpy").array([1])})
os.kill(os.getpid(), signal.SIGTERM)
assert stopped, "SIGTERM was taken"
assert (logging.root.handlers, logging.root.level) == ([], logging.WARNING)
if os.fork() == 0:
    again = load_local_predictor(PaddleModel(sys.argv[1]))
    values = [p.predict({"index": __import__("numpy").array([1])}) for p in (predictor, again)]
    os._exit(0 if all(value["fetch_name_0"] == 20 for value in values) else 1)
assert os.wait()[1] == 0, "the forked child"
predictor.close()
"""


def test_loading_is_silent_and_does_not_change_signals_logs_and_forks(toys):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET, str(toys / "table.json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
