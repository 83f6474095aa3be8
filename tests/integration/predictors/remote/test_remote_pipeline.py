"""The predictor for other pipelines: with our server, and with one that only answers text."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from doubles import client_of, post, server_for, side_by_side
from grpc_peers import Gate, peer

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    ErrorCode,
    InitError,
    InputError,
    PackageError,
    PayloadTypeError,
    PipelineError,
    PredictorError,
    PredictorUnavailableError,
    ProductError,
)
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor
from pipeline.predictors.remote.pipeline import PipelinePredictor, connect
from pipeline.proto.codec import decode_tensors
from pipeline.proto.pipeline_service_pb2 import Request, Response

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"


class Echo(Op):
    """Answers what it was asked, as tensors if the test says so."""

    def __init__(self, **options: Any) -> None:
        super().__init__(name="echo", input_ops=[RequestOp()], **options)
        self.asked: list[tuple[dict[str, Any], int]] = []

    def preprocess(self, input_dicts, data_id, log_id):
        (data,) = input_dicts.values()
        self.asked.append((data, log_id))
        return data, False, None, ""


@contextlib.contextmanager
def asking(op: Op, **options: Any) -> Iterator[PipelinePredictor]:
    """A predictor that asks a pipeline of `op`."""
    op.set_pack_tensor_format(True)
    with server_for(op, name="svc") as server:
        endpoint = f"127.0.0.1:{server.rpc_port}"
        predictor: Any = connect_remote_predictor(
            RemoteModel("uci", "pipeline_grpc", (endpoint,), **options)
        )
        try:
            yield predictor
        finally:
            predictor.close()


def test_an_endpoint_names_one_of_several_pipelines():
    server = PipelineServer("first")
    echo = Echo()
    echo.set_pack_tensor_format(True)
    server.set_response_op(ResponseOp(Op("other", RequestOp())))
    server.add_pipeline("second", ResponseOp(echo))
    server.prepare_server(yml_dict={"rpc_port": 0})
    with server:
        endpoint = f"127.0.0.1:{server.rpc_port}"
        model = RemoteModel("uci", "pipeline_grpc", (f"{endpoint}/second",))
        predictor = connect_remote_predictor(model)
        assert predictor.predict({"x": np.array([1, 2])})["x"].tolist() == [1, 2]
        predictor.close()
        assert len(echo.asked) == 1
        predictor = connect_remote_predictor(
            RemoteModel("uci", "pipeline_grpc", (f"{endpoint}/x",))
        )
        with pytest.raises(PipelineError, match="the request names 'x'"):
            predictor.predict({"x": np.array([1, 2])})
        predictor.close()


def test_endpoints_that_name_different_pipelines_are_refused():
    model = RemoteModel("uci", "pipeline_grpc", ("127.0.0.1:1/a", "127.0.0.1:2/b"))
    with pytest.raises(InitError, match=r"op.uci.server_endpoints: .* need the same name"):
        connect_remote_predictor(model)


@contextlib.contextmanager
def asking_paddle(
    answer: Callable[[Request], Response], **options: Any
) -> Iterator[PipelinePredictor]:
    """A predictor that asks a server which answers as the test says."""

    def inference(message: bytes, context: Any) -> bytes:
        return answer(Request.FromString(message)).SerializeToString()

    with peer(SERVICE, {"inference": inference}) as there:
        predictor = connect(RemoteModel("uci", "pipeline_grpc", (there.endpoint,), **options))
        try:
            yield predictor
        finally:
            predictor.close()


# --- our own pipeline -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(3, 2),
        np.arange(3, dtype=np.int64),
        np.array([[1, 255]], np.uint8),
        np.array([1.5], np.float16),
        np.array([True, False]),
    ],
)
def test_arrays_survive_the_round_trip(array: np.ndarray):
    with asking(Echo()) as predictor:
        answer = predictor.predict({"x": array})
    assert list(answer) == ["x"]
    assert answer["x"].dtype == array.dtype
    np.testing.assert_array_equal(answer["x"], array)


def test_text_bytes_and_offsets_survive_the_round_trip():
    feed = {
        "words": "i am very sad | 0",
        "digits": "5",
        "image": b"\xff\xd8\x00",
        "list": ["a", "bc"],
        "x": np.zeros((3, 2)),
        "x.lod": [0, 1, 3],
    }
    with asking(Echo()) as predictor:
        answer = predictor.predict(feed)
    assert (answer["words"], answer["digits"], answer["image"]) == (
        feed["words"],
        "5",
        feed["image"],
    )
    assert answer["list"].dtype == object
    assert answer["list"].tolist() == ["a", "bc"]
    assert answer["x.lod"].tolist() == [0, 1, 3]


def test_without_tensors_arrays_are_sent_as_text():
    op = Echo()
    with asking(op, sends_tensors=False) as predictor:
        predictor.predict({"x": np.array([[1.5]], np.float32)})
    assert op.asked[0][0] == {"x": "array([[1.5]], dtype=float32)"}


def test_the_log_id_and_the_deadline_are_passed_on():
    op = Echo()
    with asking(op) as predictor:
        predictor.predict({"x": "a"}, log_id=7)
    assert op.asked[0][1] == 7
    gate = Gate(lambda *_: b"")
    with peer(SERVICE, {"inference": gate}) as there:
        predictor = connect(RemoteModel("uci", "pipeline_grpc", (there.endpoint,)))
        with pytest.raises(DeadlineError, match=there.endpoint):
            predictor.predict({"x": "a"}, deadline_s=0.05)
        gate.opened.set()
        predictor.close()


def test_only_fetched_outputs_are_returned_with_their_offsets():
    feed = {"x": np.zeros((3, 2)), "x.lod": [0, 3], "y": np.ones(3), "z": np.ones(3)}
    with asking(Echo(), fetch_list=["z", "x"]) as predictor:
        assert predictor.feed_names == ()
        assert predictor.fetch_names == ("z", "x")
        assert list(predictor.predict(feed)) == ["z", "x", "x.lod"]
        assert list(predictor.predict(feed, fetch=["y"])) == ["y"]
        assert list(predictor.predict(feed, fetch=["x", "x.lod"])) == ["x", "x.lod"]
        with pytest.raises(PredictorError, match="it lacks 'w'; it has x, y, z"):
            predictor.predict(feed, fetch=["w"])


def test_one_sample_gets_a_batch_axis():
    with asking(Echo()) as predictor:
        answer = predictor.predict({"x": np.zeros(2), "t": ["a"], "x.lod": [0, 1]}, batch=False)
    assert answer["x"].shape == (1, 2)
    assert answer["t"].tolist() == [["a"]]
    assert answer["x.lod"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("feed", "error"),
    [
        ({"x": object()}, PayloadTypeError),
        ({"x": "\ud800"}, PayloadTypeError),
        ({1: "a"}, PayloadTypeError),
        ("a", PayloadTypeError),
        ([{"x": "a"}, {"x": "b"}], InputError),
    ],
)
def test_an_invalid_feed_is_refused(feed: Any, error: type[Exception]):
    op = Echo()
    with asking(op) as predictor, pytest.raises(error, match=r"\[uci\]"):
        predictor.predict(feed)
    assert op.asked == []


# --- errors of the peer ---------------------------------------------------------------------


class Failing(Echo):
    def preprocess(self, input_dicts, data_id, log_id):
        raise ProductError(51, "no face in the picture")


class Front(Op):
    """The first of two pipelines: what it is fed goes to the second."""

    def __init__(self, predictor: PipelinePredictor) -> None:
        super().__init__(name="front", input_ops=[RequestOp()])
        self.client = predictor


def test_the_first_servers_caller_sees_the_second_servers_code():
    with (
        asking(Failing()) as predictor,
        server_for(Front(predictor)) as first,
        client_of(first) as client,
    ):
        response = client.predict({"x": "a"})
    assert response.err_no == 51
    assert "no face in the picture" in response.err_msg


def test_two_pipelines_in_a_row_answer_as_one():
    with (
        asking(Echo()) as predictor,
        server_for(Front(predictor)) as first,
        client_of(first) as client,
    ):
        array = np.arange(4, dtype=np.float32).reshape(2, 2)
        response = client.predict({"x": array}, pack_tensor_format=True)
        np.testing.assert_array_equal(response["x"], array)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (51, ProductError),
        (ErrorCode.TIMEOUT, DeadlineError),
        (ErrorCode.RPC_PACKAGE_ERROR, PackageError),
        (ErrorCode.CLIENT_ERROR, PredictorError),
        (-7, ProductError),
    ],
)
def test_the_code_and_the_text_are_the_peers(code: int, kind: type[Exception]):
    answer = Response(err_no=code, err_msg="the peer's", key=["x"], value=["1"])
    with asking_paddle(lambda request: answer) as predictor, pytest.raises(kind) as caught:
        predictor.predict({"x": "a"})
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert str(caught.value) == "the peer's"


def test_a_stopped_server_is_unavailable_and_a_closed_predictor_raises():
    with asking_paddle(lambda request: Response()) as predictor:
        assert predictor.predict({}) == {}
    with pytest.raises(ClosedError):
        predictor.predict({})
    with peer(SERVICE, {}) as gone:
        pass
    predictor = connect(RemoteModel("uci", "pipeline_grpc", (gone.endpoint,)))
    with pytest.raises(PredictorUnavailableError, match=gone.endpoint):
        predictor.predict({})
    predictor.close()


def test_an_answer_that_cannot_be_read_is_the_peers_error():
    broken = Response(tensors=[{"name": "x", "elem_type": 1, "shape": [2], "float_data": [1.0]}])
    with (
        asking_paddle(lambda request: broken) as predictor,
        pytest.raises(PredictorError, match="cannot be used: tensor 'x': shape"),
    ):
        predictor.predict({})


def test_an_invalid_endpoint_is_an_error_at_the_start():
    with pytest.raises(InitError, match=r"op\.uci\.server_endpoints"):
        connect(RemoteModel("uci", "pipeline_grpc", ("nowhere",)))


# --- a server that answers text only --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("array([[0.5, 2. ]], dtype=float32)", np.array([[0.5, 2.0]], np.float32)),
        ("array([1, 2])", np.array([1, 2])),
        ("['a', 'bc']", np.array(["a", "bc"], object)),
        ("array(['a'], dtype='<U1')", np.array(["a"])),
        ("5", "5"),
        ("0.5", "0.5"),
        ("[1, 2]", "[1, 2]"),
        ('[{"label": 1}]', '[{"label": 1}]'),
        ("array(oops", "array(oops"),
        ("positive", "positive"),
        ("", ""),
    ],
)
def test_the_text_of_arrays_becomes_arrays_and_other_text_stays(text: str, value: Any):
    answer = Response(key=["x"], value=[text])
    with asking_paddle(lambda request: answer) as predictor:
        result = predictor.predict({"x": "a"})["x"]
    assert type(result) is type(value)
    if isinstance(value, np.ndarray):
        assert result.dtype == value.dtype
        assert result.tolist() == value.tolist()
    else:
        assert result == value


def test_a_tensor_overrides_the_text_of_its_name():
    def both(request: Request) -> Response:
        return Response(key=["x", "t"], value=["array([9])", "b"], tensors=request.tensors)

    with asking_paddle(both) as predictor:
        answer = predictor.predict({"x": np.array([1.5])})
    assert list(answer) == ["x", "t"]
    assert answer["x"].tolist() == [1.5]


def test_paddles_server_is_sent_tensors_that_it_reads():
    requests: list[Request] = []
    with asking_paddle(lambda request: requests.append(request) or Response()) as predictor:
        predictor.predict({"x": np.array([1, 2]), "words": "hi", "clientip": "10.0.0.1"})
    (request,) = requests
    assert request.clientip == "10.0.0.1"
    assert [tensor.elem_type for tensor in request.tensors] == [13, 12]
    assert decode_tensors(request.tensors)["words"] == "hi"
    assert not request.key


def test_many_threads_may_ask_at_once():
    def ask(number: int) -> Any:
        return predictor.predict({"x": np.array([number])})["x"].tolist()

    with asking(Echo(concurrency=2)) as predictor:
        assert side_by_side(ask, 8) == [[number] for number in range(8)]


def test_a_disconnect_frees_the_worker_of_a_silent_server():
    asked, cancelled = queue.Queue[None](), queue.Queue[None]()
    is_silent = threading.Event()
    is_silent.set()

    def answer(request: bytes, context: Any) -> bytes:
        if is_silent.is_set():
            over = threading.Event()
            context.add_callback(over.set)
            asked.put(None)
            over.wait()
            cancelled.put(None)
        return Response(key=["y"], value=["1"]).SerializeToString()

    body = b'{"x": 1}'
    head = b"POST /api/svc HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    with peer(SERVICE, {"inference": answer}) as far:
        far_op = {"client_type": "pipeline_grpc", "server_endpoints": [far.endpoint]}
        with server_for(Op("far", [RequestOp()]), op={"far": far_op}) as server:
            for _ in range(3):  # the Op has one worker
                with socket.create_connection(("127.0.0.1", server.http_port)) as caller:
                    caller.sendall(head + body)
                    asked.get(timeout=10)
                cancelled.get(timeout=10)
            is_silent.clear()
            assert post(server, {"x": 1}, "/api/svc") == (200, {"y": "1"})
