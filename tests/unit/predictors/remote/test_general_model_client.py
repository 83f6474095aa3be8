"""The client's half of the general model service: what is asked, and what an answer becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import FRAMES

from pipeline.errors import InitError, InputError, PayloadTypeError, PredictorError
from pipeline.predictors.model_conf import ModelConf, Var
from pipeline.predictors.remote.general_model import GeneralModelPredictor
from pipeline.proto.brpc.frames import BrpcFrame, FrameReader, decompress, request_meta
from pipeline.proto.brpc.general_model import BrpcElemType, tensor_to_array, value_to_tensor
from pipeline.proto.general_model_pb2 import ModelOutput, Request, Response, Tensor


def var(
    alias: str, elem_type: int = BrpcElemType.FP32, name: str = "", is_lod: bool = False
) -> Var:
    return Var(name or f"{alias}_0", alias, is_lod, elem_type, (13,))


def model_of(
    feeds: list[Var], fetches: list[Var], fetch_list: list[str] | None = None
) -> GeneralModelPredictor:
    conf = ModelConf(tuple(feeds), tuple(fetches))
    return GeneralModelPredictor(conf, "uci", fetch_list, lambda *_: Response(), lambda: None)


HOUSING = model_of([var("x", name="x")], [var("price", name="fc_0.tmp_1")])
WORDS = model_of(
    [var("words", BrpcElemType.INT64, is_lod=True), var("side", BrpcElemType.FP32)],
    [var("prediction")],
)


def frame_of(name: str, way: str) -> BrpcFrame:
    (frame,) = FrameReader().feed(FRAMES[name, way])
    return frame


def answer(*tensors: Tensor) -> Response:
    return Response(outputs=[ModelOutput(tensor=tensors, engine_name="general_infer_0")])


def request_of(model: GeneralModelPredictor, *arguments: Any, **options: Any) -> Request:
    """The request as it arrives at the server."""
    return Request.FromString(model.request(*arguments, **options))


def only(request: Request) -> Tensor:
    (tensor,) = request.tensor
    return tensor


# --- as the genuine client ------------------------------------------------------------------


def test_a_request_equals_that_of_the_original_client():
    frame = frame_of("real Paddle Serving client", "c2s")
    feed = {"x": np.arange(26, dtype=np.float32).reshape(2, 13)}
    assert HOUSING.request(feed, ["price"], batch=True, log_id=42) == frame.body
    # Its meta states two zeros besides, which is what saying nothing means: its log_id is in the
    # body alone, where ours is in both.
    theirs = frame.meta
    assert (theirs.compress_type, theirs.request.log_id) == (0, 0)
    theirs.ClearField("compress_type")
    theirs.request.ClearField("log_id")
    assert theirs == request_meta("inference", theirs.correlation_id)


def test_an_answer_of_a_genuine_server_becomes_arrays():
    frame = frame_of("brpc general ok, gzip reply, all dtypes", "s2c")
    response = Response.FromString(decompress(frame.meta.compress_type, frame.body, 1000))
    names = ["ids", "price", "u8", "fp16", "i32"]
    model = model_of([var("x")], [var(name) for name in names])
    result = model.result(response, names)
    assert list(result) == ["ids", "ids.lod", "price", "u8", "fp16", "i32"]
    assert result["ids"].tolist() == [1, -2, 2**53 + 1]
    assert result["ids.lod"].tolist() == [0, 1, 3]
    assert result["price"].shape == (1, 1)
    assert result["fp16"].dtype == np.float16


# --- requests -------------------------------------------------------------------------------


def test_names_are_aliases_in_the_order_of_the_configuration():
    assert WORDS.feed_names == ("words", "side")
    assert WORDS.fetch_names == ("prediction",)
    feed = {"side": np.ones((1, 2), np.float32), "words": np.ones((1, 3), np.int64), "other": 1}
    request = request_of(WORDS, feed)
    assert [tensor.alias_name for tensor in request.tensor] == ["words", "side"]
    assert [tensor.name for tensor in request.tensor] == ["words_0", "side_0"]
    assert list(request.fetch_var_names) == ["prediction"]


def test_a_sample_without_its_batch_gets_a_first_axis():
    request = request_of(HOUSING, {"x": np.zeros(13, np.float32)}, batch=False)
    assert list(only(request).shape) == [1, 13]
    assert list(only(request_of(HOUSING, {"x": np.zeros((2, 13), np.float32)})).shape) == [2, 13]


def test_any_size_is_sent_regardless_of_the_configuration():
    assert list(only(request_of(HOUSING, {"x": np.zeros((7, 5, 3), np.float32)})).shape) == [
        7,
        5,
        3,
    ]


def test_numbers_are_cast_to_the_configured_type():
    tensor = only(request_of(HOUSING, {"x": np.arange(3)}))
    assert tensor.elem_type == BrpcElemType.FP32
    assert tensor_to_array(tensor).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("elem_type", "value"),
    [
        (BrpcElemType.INT64, np.array([[1, -2]])),
        (BrpcElemType.FP32, np.array([[1.5]], np.float32)),
        (BrpcElemType.INT32, np.array([[3]], np.int32)),
        (BrpcElemType.FP16, np.array([[0.5]], np.float16)),
        (BrpcElemType.UINT8, np.array([[255]], np.uint8)),
        (BrpcElemType.INT8, np.array([[-128]], np.int8)),
        (BrpcElemType.BOOL, np.array([[True, False]])),
        (BrpcElemType.STRING, np.array([["a", "失败"]], dtype=object)),
    ],
)
def test_every_configured_type_is_sent(elem_type: BrpcElemType, value: np.ndarray):
    tensor = only(request_of(model_of([var("x", elem_type)], [var("y")]), {"x": value}))
    assert tensor.elem_type == elem_type
    back = tensor_to_array(tensor)
    assert back.dtype == value.dtype
    assert back.tolist() == value.tolist()


def test_text_may_be_a_list():
    model = model_of([var("x", BrpcElemType.STRING)], [var("y")])
    assert list(only(request_of(model, {"x": ["a", "b"]})).data) == ["a", "b"]
    request = request_of(model, [{"x": ["a", "b"]}], batch=False)
    assert list(only(request).shape) == [1, 2]


@pytest.mark.parametrize("lod", [[0, 2, 5], np.array([0, 2, 5]), [[0, 2, 5]], (0, 2, 5)])
def test_offsets_are_fed_next_to_their_array(lod: Any):
    feed = {"words": np.zeros((5, 1), np.int64), "words.lod": lod, "side": np.ones(1, np.float32)}
    for given in (feed, [feed]):
        request = request_of(WORDS, given)
        assert [list(tensor.lod) for tensor in request.tensor] == [[0, 2, 5], []]


def test_empty_offsets_are_omitted():
    feed = {"words": np.zeros((5, 1), np.int64), "words.lod": [], "side": np.ones(1, np.float32)}
    assert not request_of(WORDS, feed).tensor[0].lod


def test_an_input_with_a_name_like_offsets_is_an_input():
    model = model_of([var("x"), var("x.lod")], [var("y")])
    request = request_of(model, {"x": np.ones(2, np.float32), "x.lod": np.ones(1, np.float32)})
    assert [list(tensor.lod) for tensor in request.tensor] == [[], []]
    assert [tensor.alias_name for tensor in request.tensor] == ["x", "x.lod"]


@pytest.mark.parametrize(
    ("log_id", "travels"), [(7, 7), (-1, 2**64 - 1), (2**63, 2**63), (-(2**63), 2**63)]
)
def test_the_bits_of_a_log_id_travel(log_id: int, travels: int):
    request = request_of(HOUSING, {"x": np.ones(1, np.float32)}, log_id=log_id)
    assert request.log_id == travels


def test_the_feed_is_not_changed():
    value = np.arange(3)
    feed = {"x": value}
    HOUSING.request(feed, batch=False)
    assert feed == {"x": value}
    assert feed["x"] is value


@pytest.mark.parametrize(
    ("feed", "error", "why"),
    [
        ({"y": np.ones(1)}, InputError, r"feed names \['y'\] do not match .*missing \['x'\]"),
        ({"x": np.ones(1, np.complex64)}, InputError, "dtype complex64"),
        ({"x": np.empty((0, 13), np.float32)}, InputError, r"'x' is empty \(shape \(0, 13\)\)"),
        ({"x": ["1.0"]}, PayloadTypeError, "'x' must be np.ndarray"),
        ({"x": "a"}, PayloadTypeError, "'x' must be np.ndarray"),
        ([{"x": np.ones(1)}] * 2, InputError, "a list of 2"),
        (3, PayloadTypeError, "feed must be a dict"),
        ({"x": np.ones(3), "x.lod": [0, 2]}, InputError, "length of 'x', which is 3"),
        ({"x": np.ones(3), "x.lod": [1, 3]}, InputError, "ascend from 0"),
        ({"x": np.ones(3), "x.lod": [0, 2, 1, 3]}, InputError, "ascend from 0"),
        ({"x": np.ones(3), "x.lod": np.array([0, 2, 1, 3], np.uint64)}, InputError, "ascend from"),
        ({"x": np.ones(3), "x.lod": [0.0, 3.0]}, InputError, "ascend from 0"),
        ({"x": np.ones(()), "x.lod": [0, 1]}, InputError, "which is 0"),
        ({"x": np.ones(3), "x.lod": [[0, 1], [2]]}, PayloadTypeError, "'x.lod' is no LoD"),
        ({"x": np.ones(3), "x.lod": 3}, PayloadTypeError, "'x.lod' is no LoD"),
    ],
)
def test_a_wrong_feed_is_refused_by_name(feed: Any, error: type[Exception], why: str):
    with pytest.raises(error, match=rf"\[uci\] .*{why}"):
        HOUSING.request(feed)


def test_an_error_about_offsets_of_a_single_sample_explains_batch():
    with pytest.raises(InputError, match=r"shape \(1, 3\); batch=False adds a first axis"):
        HOUSING.request({"x": np.ones(3), "x.lod": [0, 3]}, batch=False)


def test_text_that_is_not_unicode_is_refused():
    model = model_of([var("x", BrpcElemType.STRING)], [var("y")])
    with pytest.raises(PayloadTypeError, match=r"\[uci\] tensor 'x'"):
        model.request({"x": ["\ud800"]})


def test_an_unknown_output_is_refused_before_the_request():
    with pytest.raises(InputError, match=r"fetch names \['cost'\] do not match"):
        HOUSING.request({"x": np.ones(1)}, ["cost"])
    with pytest.raises(InitError, match="fetch_list: unexpected inference output"):
        model_of([var("x")], [var("price")], ["cost"])


def test_the_default_outputs_are_the_fetch_list():
    model = model_of([var("x")], [var("a"), var("b")], ["b"])
    assert model.fetch_names == ("b",)
    assert list(request_of(model, {"x": np.ones(1)}).fetch_var_names) == ["b"]
    assert list(request_of(model, {"x": np.ones(1)}, ["a", "b"]).fetch_var_names) == ["a", "b"]


# --- answers --------------------------------------------------------------------------------


def tensor(alias: str, *numbers: float, name: str = "", lod: list[int] | None = None) -> Tensor:
    return value_to_tensor(name, alias, np.array(numbers, np.float32), lod)


PRICE = tensor("price", 1.5)


def test_outputs_have_the_requested_order():
    model = model_of([var("x")], [var("a"), var("b")])
    response = answer(tensor("b", 2), tensor("a", 1, lod=[0, 1]), tensor("c", 3))
    assert list(model.result(response)) == ["a", "a.lod", "b"]
    assert list(model.result(response, ["b"])) == ["b"]
    assert list(model.result(response, ["b", "a"])) == ["b", "a", "a.lod"]


def test_the_arrays_of_one_model_are_looked_up_by_alias():
    model = model_of([var("x")], [var("a"), var("b")], ["b"])
    arrays = {"a": np.ones(1), "b": np.zeros(2), "c": np.ones(3)}
    assert list(model.result(arrays)) == ["b"]
    assert list(model.result(arrays, ["b", "a"])) == ["b", "a"]
    del arrays["b"]
    with pytest.raises(PredictorError, match=r"no output \['b'\], only \['a', 'c'\]"):
        model.result(arrays, ["a", "b"])


def test_an_output_without_an_alias_has_its_name():
    result = HOUSING.result(answer(tensor("", 1.5, name="fc_0.tmp_1")))
    assert result["price"].tolist() == [1.5]


def test_answers_of_several_models_are_separated_by_their_engines():
    outputs = [
        ModelOutput(tensor=[tensor("price", number)], engine_name=name)
        for name, number in (("bow", 1), ("cnn", 2))
    ]
    result = HOUSING.result(Response(outputs=outputs))
    assert {name: each["price"].tolist() for name, each in result.items()} == {
        "bow": [1.0],
        "cnn": [2.0],
    }


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (Response(err_no=-5000, err_msg="out of memory"), "error -5000: out of memory"),
        (Response(), "answered 0 outputs"),
        (Response(outputs=[ModelOutput(tensor=[PRICE])] * 2), r"2 outputs, of the engines \[''\]"),
        (answer(), r"no output \['price'\], only \[\]"),
        (answer(Tensor(alias_name="cost")), r"no output \['price'\], only \['cost'\]"),
        (answer(Tensor(alias_name="price", shape=[2])), "tensor 'price': shape"),
        (answer(Tensor(alias_name="price", elem_type=99)), "elem_type 99 is unknown"),
    ],
)
def test_an_invalid_answer_is_an_error_with_the_reason(response: Response, why: str):
    with pytest.raises(PredictorError, match=rf"\[uci\] the model's server .*{why}"):
        HOUSING.result(response)


def test_an_empty_output_is_an_empty_array():
    assert HOUSING.result(answer(Tensor(alias_name="price", shape=[0, 4])))["price"].shape == (0, 4)
