"""The predictor for servers of the v2 inference protocol, against a server in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from grpc_peers import Answer, peer

from pipeline.errors import (
    ClosedError,
    InitError,
    InputError,
    PayloadTypeError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.remote import kserve as remote_kserve
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor
from pipeline.predictors.remote.kserve import KServePredictor, connect
from pipeline.proto.inference_v2_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays
from pipeline.proto.v2.raw import DATATYPES

Tensors = dict[str, tuple[str, tuple[int, ...]]]
FLOATS: Tensors = {"x": ("FP32", (-1, 2))}


class Server:
    """Answers every input under the name of the output of its place.

    Args:
        inputs: datatype and shape by name; `outputs` likewise, and by default the inputs.
    """

    def __init__(self, inputs: Tensors = FLOATS, outputs: Tensors | None = None) -> None:
        self.inputs = inputs
        self.outputs = inputs if outputs is None else outputs
        self.described: list[ModelMetadataRequest] = []
        self.requests: list[ModelInferRequest] = []
        self.infer: Callable[[ModelInferRequest, Any], ModelInferResponse] = self.echo

    @property
    def methods(self) -> dict[str, Answer]:
        return {"ModelMetadata": self._metadata, "ModelInfer": self._infer}

    def _metadata(self, message: bytes, context: Any) -> bytes:
        request = ModelMetadataRequest.FromString(message)
        self.described.append(request)
        response = ModelMetadataResponse(name=request.name)
        for name, (datatype, shape) in self.inputs.items():
            response.inputs.add(name=name, datatype=datatype, shape=shape)
        for name, (datatype, shape) in self.outputs.items():
            response.outputs.add(name=name, datatype=datatype, shape=shape)
        return response.SerializeToString()

    def _infer(self, message: bytes, context: Any) -> bytes:
        request = ModelInferRequest.FromString(message)
        self.requests.append(request)
        return self.infer(request, context).SerializeToString()

    def echo(self, request: ModelInferRequest, context: Any = None) -> ModelInferResponse:
        arrays = tensors_to_arrays(request.inputs, request.raw_input_contents)
        named = dict(zip(self.outputs, arrays.values(), strict=True))
        response = ModelInferResponse(id=request.id)
        for output in request.outputs:
            array = named[output.name]
            add_tensor(response.outputs, response.raw_output_contents, output.name, array)
        return response


@contextlib.contextmanager
def connected(server: Server, **options: Any) -> Iterator[KServePredictor]:
    with peer(SERVICE, server.methods) as there:
        predictor = connect(RemoteModel("uci", "triton", (there.endpoint,), **options))
        try:
            yield predictor
        finally:
            predictor.close()


def zeros() -> dict[str, np.ndarray]:
    return {"x": np.zeros((1, 2), np.float32)}


class Undescribed(Server):
    """Describes no tensors, as MLServer by default, and answers with the inputs."""

    def __init__(self) -> None:
        super().__init__({})

    def echo(self, request: ModelInferRequest, context: Any = None) -> ModelInferResponse:
        response = ModelInferResponse(id=request.id)
        arrays = tensors_to_arrays(request.inputs, request.raw_input_contents)
        wanted = [output.name for output in request.outputs]
        for name in wanted or arrays:
            add_tensor(response.outputs, response.raw_output_contents, name, arrays[name])
        return response


def test_a_model_without_metadata_gets_what_is_fed_and_answers_all_it_has():
    feed = {"x": np.ones((2, 2), np.float32), "n": [[1, 2]], "t": ["a", "é"], "one": "b"}
    with connected(Undescribed()) as predictor:
        assert (predictor.feed_names, predictor.fetch_names) == ((), ())
        answer = predictor.predict(feed)
        assert {name: (str(array.dtype), array.tolist()) for name, array in answer.items()} == {
            "x": ("float32", [[1, 1], [1, 1]]),
            "n": ("int64", [[1, 2]]),
            "t": ("object", ["a", "é"]),
            "one": ("object", ["b"]),
        }
        assert list(predictor.predict(feed, ["n", "x"])) == ["n", "x"]
        assert predictor.predict({"x": [1.5]}, batch=False)["x"].tolist() == [[1.5]]
        with pytest.raises(InputError, match=r"\[uci\] feed 'x' is not an array"):
            predictor.predict({"x": [[1], [2, 3]]})
        with pytest.raises(InputError, match=r"\[uci\] feed 3: the name of an input is a text"):
            predictor.predict({3: [1]})
        with pytest.raises(
            InputError, match=r"\[uci\] feed 'x' has an integer that 64 bits do not"
        ):
            predictor.predict({"x": [2**64]})


def test_a_model_that_describes_only_outputs_has_no_inputs():
    with connected(Server({}, {"y": FLOATS["x"]})) as predictor:
        assert (predictor.feed_names, predictor.fetch_names) == ((), ("y",))


def test_a_model_without_metadata_may_have_a_fetch_list():
    with connected(Undescribed(), fetch_list=("n",)) as predictor:
        assert predictor.fetch_names == ("n",)
        assert list(predictor.predict({"x": [1], "n": [2]})) == ["n"]


# --- what travels ---------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_each_datatype_is_fed_and_fetched(datatype: str):
    array = np.arange(6).reshape(3, 2).astype(DATATYPES[datatype])
    with connected(Server({"x": (datatype, (-1, 2))})) as predictor:
        answer = predictor.predict({"x": array})["x"]
    assert answer.dtype == array.dtype
    assert answer.tolist() == array.tolist()
    assert answer.flags.writeable


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (["é", ""], ["é", ""]),
        (np.array(["a", "b"]), ["a", "b"]),
        ([b"\xff\xd8\x00", b"text"], [b"\xff\xd8\x00", "text"]),
        (np.array([b"\xff", "é"], object), [b"\xff", "é"]),
    ],
)
def test_text_is_str_and_other_bytes_are_bytes(value: Any, answer: list[Any]):
    with connected(Server({"x": ("BYTES", (-1,))})) as predictor:
        back = predictor.predict({"x": value})["x"]
    assert back.dtype == object
    assert back.tolist() == answer


def test_the_request_names_the_model_the_version_the_id_and_the_outputs():
    server = Server()
    with connected(server, model_name="resnet", model_version="3") as predictor:
        predictor.predict(zeros(), log_id=7)
        predictor.predict(zeros())
    (described,) = server.described
    assert (described.name, described.version) == ("resnet", "3")
    first, second = server.requests
    assert (first.model_name, first.model_version, first.id) == ("resnet", "3", "7")
    assert [output.name for output in first.outputs] == ["x"]
    assert not first.parameters
    assert second.id == ""


def test_a_model_without_a_name_has_the_name_of_its_op():
    server = Server()
    with connected(server) as predictor:
        predictor.predict(zeros())
    assert (server.described[0].name, server.requests[0].model_name) == ("uci", "uci")


def test_only_fetched_outputs_are_requested_and_returned_in_order():
    floats = ("FP32", (-1, 2))
    server = Server({"a": floats, "b": floats, "c": floats})
    feed = {name: np.full((1, 2), number, np.float32) for number, name in enumerate("abc")}
    with connected(server, fetch_list=["c", "a"]) as predictor:
        assert predictor.feed_names == ("a", "b", "c")
        assert predictor.fetch_names == ("c", "a")
        assert list(predictor.predict(feed)) == ["c", "a"]
        assert list(predictor.predict(feed, fetch=["b"])) == ["b"]
    asked = [[output.name for output in request.outputs] for request in server.requests]
    assert asked == [["c", "a"], ["b"]]


def test_one_sample_gets_a_batch_axis():
    with connected(Server()) as predictor:
        answer = predictor.predict({"x": np.zeros(2, np.float32)}, batch=False)
    assert answer["x"].shape == (1, 2)


def test_outputs_that_are_not_raw_are_understood():
    server = Server(outputs={"y": ("INT16", (-1,)), "z": ("BYTES", (-1,))})

    def infer(request: ModelInferRequest, context: Any) -> ModelInferResponse:
        response = ModelInferResponse()
        wordy = response.outputs.add(name="z", datatype="BYTES", shape=[1])
        wordy.contents.bytes_contents.append("é".encode())
        numeric = response.outputs.add(name="y", datatype="INT16", shape=[2])
        numeric.contents.int_contents.extend([1, -2])
        return response

    server.infer = infer
    with connected(server) as predictor:
        answer = predictor.predict(zeros())
    assert list(answer) == ["y", "z"]
    assert answer["y"].dtype == np.int16
    assert (answer["y"].tolist(), answer["z"].tolist()) == ([1, -2], ["é"])


def test_numbers_are_cast_as_for_a_local_model():
    with connected(Server({"x": ("BF16", (-1, 2))})) as predictor:
        assert predictor.predict(zeros())["x"].dtype == ml_dtypes.bfloat16


# --- what is wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feed", "fetch", "error"),
    [
        ({"z": np.zeros((1, 2), np.float32)}, None, InputError),
        ({"x": np.zeros((1, 3), np.float32)}, None, InputError),
        ({"x": np.zeros((1, 2), np.complex64)}, None, InputError),
        ({"x": [["1.0", "2.0"]]}, None, PayloadTypeError),
        ({"x": np.zeros((1, 2), np.float32)}, ["z"], InputError),
    ],
)
def test_an_invalid_feed_is_refused_before_the_request(
    feed: Any, fetch: Any, error: type[Exception]
):
    server = Server()
    with connected(server) as predictor, pytest.raises(error, match=r"\[uci\]"):
        predictor.predict(feed, fetch)
    assert server.requests == []


def test_text_that_has_no_utf_8_form_is_refused():
    with (
        connected(Server({"x": ("BYTES", (-1,))})) as predictor,
        pytest.raises(PayloadTypeError, match=r"\[uci\] tensor 'x': .*UTF-8"),
    ):
        predictor.predict({"x": ["\ud800"]})


def test_the_servers_error_is_named_with_its_code():
    server = Server()

    def infer(request: ModelInferRequest, context: Any) -> ModelInferResponse:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape for input 'x'")
        raise AssertionError

    server.infer = infer
    with (
        connected(server) as predictor,
        pytest.raises(PredictorError, match="answered INVALID_ARGUMENT: unexpected shape"),
    ):
        predictor.predict(zeros())


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (ModelInferResponse(), "it lacks x; it has "),
        (
            ModelInferResponse(
                outputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
                raw_output_contents=[b"abc"],
            ),
            "tensor 'x': FP32 of shape",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_the_servers_error(
    response: ModelInferResponse, told: str
):
    server = Server()
    server.infer = lambda request, context: response
    with connected(server) as predictor:
        with pytest.raises(PredictorError, match=rf"\[uci\] the answer of the server at .*{told}"):
            predictor.predict(zeros())
        server.infer = server.echo
        predictor.predict(zeros())


def test_an_invalid_answer_is_the_servers_error():
    methods = {**Server().methods, "ModelInfer": lambda *_: b"\xff\xff"}
    with peer(SERVICE, methods) as there:
        predictor = connect(RemoteModel("uci", "kserve", (there.endpoint,)))
        with pytest.raises(PredictorError, match="cannot be used"):
            predictor.predict(zeros())
        predictor.close()


def test_a_stopped_server_is_unavailable_and_a_closed_predictor_raises():
    with connected(Server()) as predictor:
        pass
    with pytest.raises(ClosedError):
        predictor.predict(zeros())
    with peer(SERVICE, Server().methods) as there:
        predictor = connect(RemoteModel("uci", "kserve", (there.endpoint,)))
    with pytest.raises(PredictorUnavailableError):
        predictor.predict(zeros())
    predictor.close()


# --- start ----------------------------------------------------------------------------------


def test_client_types_triton_and_kserve_select_the_predictor():
    with peer(SERVICE, Server().methods) as there:
        for client_type in ("triton", "kserve"):
            predictor = connect_remote_predictor(RemoteModel("u", client_type, (there.endpoint,)))
            assert predictor.feed_names == ("x",)
            predictor.close()


def test_a_model_unknown_to_the_server_is_an_error_at_the_start():
    def unknown(request: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        raise AssertionError

    text = r"op\.uci: the server does not describe the model 'resnet' version 2: .*unknown model"
    with (
        peer(SERVICE, {"ModelMetadata": unknown}) as there,
        pytest.raises(InitError, match=text),
    ):
        connect(
            RemoteModel("uci", "triton", (there.endpoint,), model_name="resnet", model_version="2")
        )


def test_a_server_that_does_not_start_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote_kserve, "_STARTUP_TIMEOUT_S", 0.05)
    with peer(SERVICE, {}) as there:
        pass
    with pytest.raises(InitError, match=rf"describe the model 'uci': .*{there.endpoint}"):
        connect(RemoteModel("uci", "triton", (there.endpoint,)))


def test_a_datatype_that_is_unknown_is_an_error_at_start():
    with (
        pytest.raises(InitError, match=r"op\.uci: 'x' has the datatype 'FP4', which is not one of"),
        connected(Server({"x": ("FP4", (-1,))})),
    ):
        pass


def test_an_unknown_fetch_list_is_an_error_at_the_start():
    with (
        pytest.raises(InitError, match="unexpected inference output"),
        connected(Server(), fetch_list=["z"]),
    ):
        pass
