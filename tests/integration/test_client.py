"""The clients against a real gRPC server in this process."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest

from pipeline import errors
from pipeline.client import (
    AsyncPipelineClient,
    PipelineClient,
    PipelinePredictFuture,
    PipelineResponse,
)
from pipeline.proto.codec import decode_tensors, numpy_to_tensor
from pipeline.proto.pipeline_service_pb2 import Request, Response

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"
LARGE = ("grpc.max_receive_message_length", 64 * 1024 * 1024)


class Server:
    """A server that keeps what it is asked and answers what the test says."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Response] = lambda request: Response()
        self.time_left: list[float | None] = []
        self._pool = futures.ThreadPoolExecutor(4)
        self._grpc = grpc.server(self._pool, options=[LARGE])
        handler = grpc.unary_unary_rpc_method_handler(
            self._inference,
            request_deserializer=Request.FromString,
            response_serializer=Response.SerializeToString,
        )
        self._grpc.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"inference": handler})]
        )
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{port}"
        self._grpc.start()

    def _inference(self, request: Request, context: grpc.ServicerContext) -> Response:
        self.requests.append(request)
        self.time_left.append(context.time_remaining())
        return self.answer(request)

    def stop(self) -> None:
        self._grpc.stop(None).wait()
        self._pool.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[PipelineClient]:
    with PipelineClient() as client:
        client.connect([server.endpoint])
        yield client


@pytest.fixture
def blocked(server: Server) -> Iterator[threading.Event]:
    """Set by the server when it has a request, which it answers when the test is over."""
    arrived, over = threading.Event(), threading.Event()

    def answer(request: Request) -> Response:
        arrived.set()
        over.wait()
        return Response()

    server.answer = answer
    yield arrived
    over.set()


def pairs(message: Request | Response) -> dict[str, str]:
    return dict(zip(message.key, message.value, strict=True))


# --- what is sent: text ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("i am very sad | 0", "i am very sad | 0"),
        (np.array([[1.5, 2]], np.float32), "array([[1.5, 2. ]], dtype=float32)"),
        ([1, 2, 3], "array([1, 2, 3])"),
        ([[0.5], [2]], "array([[0.5],\n       [2. ]])"),
        (("a", "bc"), "array(['a', 'bc'], dtype='<U2')"),
        ([b"a\x00"], r"array([b'a\x00'], dtype=object)"),
        (7, "7"),
        (0.1, "0.1"),
        (True, "True"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        ({"a": [1, None], "b": np.array([1, 2])}, '{"a":[1,null],"b":[1,2]}'),
    ],
)
def test_a_value_is_sent_as_text(server: Server, client: PipelineClient, value: Any, text: str):
    client.predict({"x": value})
    (request,) = server.requests
    assert pairs(request) == {"x": text}
    assert not request.tensors


def test_a_large_array_is_sent_with_all_its_elements(server: Server, client: PipelineClient):
    array = np.arange(5000)
    client.predict({"x": array})
    assert server.requests[0].value[0].count(",") == 4999


def test_bytes_are_sent_as_a_tensor_next_to_the_text(server: Server, client: PipelineClient):
    client.predict({"image": b"\xff\xd8\x00", "name": "cat"})
    (request,) = server.requests
    assert pairs(request) == {"name": "cat"}
    assert decode_tensors(request.tensors) == {"image": b"\xff\xd8\x00"}


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize(
    "value", [None, object(), {1, 2}, [[1], [1, 2]], "\ud800", {"a": object()}]
)
def test_a_value_that_cannot_be_sent_is_a_type_error_with_the_key(
    server: Server, client: PipelineClient, value: Any, as_tensors: bool
):
    with pytest.raises(TypeError, match=r"feed_dict\['x'\] cannot be sent"):
        client.predict({"x": value}, pack_tensor_format=as_tensors)
    assert not server.requests


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"feed_dict": [1]}, "feed_dict must be dict type"),
        ({"feed_dict": {1: "a"}}, "keys of feed_dict must be str"),
        ({"feed_dict": {}, "fetch": "price"}, "fetch must be list type"),
        ({"feed_dict": {}, "fetch": [1]}, "names in fetch must be str"),
        ({"feed_dict": {"logid": "x"}}, "log id 'x'"),
        ({"feed_dict": {}, "log_id": 2**63}, "log id"),
        ({"feed_dict": {"logid": math.inf}}, "log id inf"),
        ({"feed_dict": {"clientip": "\ud800"}}, r"feed_dict\['clientip'\] cannot be sent"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(
    server: Server, client: PipelineClient, arguments: dict[str, Any], told: str
):
    with pytest.raises(TypeError, match=told):
        client.predict(**arguments)
    assert not server.requests


# --- what is sent: tensors ------------------------------------------------------------------


@pytest.mark.parametrize("use_tensor_bytes", [False, True])
def test_values_are_sent_as_tensors(server: Server, client: PipelineClient, use_tensor_bytes: bool):
    feed = {
        "array": np.array([[1.5, 2]], np.float32),
        "text": "abc",
        "texts": ["a", "b"],
        "number": 7,
        "bytes": b"\x00",
        "json": {"a": 1},
    }
    client.predict(feed, pack_tensor_format=True, use_tensor_bytes=use_tensor_bytes)
    (request,) = server.requests
    values = decode_tensors(request.tensors)
    np.testing.assert_array_equal(values.pop("array"), feed["array"], strict=True)
    assert json.loads(values.pop("json")) == {"a": 1}
    assert values == {"text": "abc", "texts": ["a", "b"], "number": 7, "bytes": b"\x00"}
    assert request.tensors[0].elem_type == (13 if use_tensor_bytes else 1)
    assert not request.key


def test_a_lod_travels_with_its_tensor(server: Server, client: PipelineClient):
    feed = {"words.lod": [0, 3, 5], "words": np.arange(5), "other.lod": [1]}
    client.predict(feed, pack_tensor_format=True)
    (request,) = server.requests
    assert [tensor.name for tensor in request.tensors] == ["words", "other.lod"]
    assert list(request.tensors[0].lod) == [0, 3, 5]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_a_profile_is_requested_in_both_formats(
    server: Server, client: PipelineClient, as_tensors: bool
):
    client.predict({"x": "1"}, profile=True, pack_tensor_format=as_tensors)
    assert pairs(server.requests[0])["pipeline.profile"] == "1"


# --- about the request ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feed", "log_id", "sent"),
    [({}, 0, 0), ({"logid": 5}, 0, 5), ({"logid": "5"}, 0, 5), ({"logid": 5}, 7, 7), ({}, 7, 7)],
)
def test_the_log_id_is_the_argument_or_that_of_the_feed(
    server: Server, client: PipelineClient, feed: dict[str, Any], log_id: int, sent: int
):
    client.predict({**feed, "x": "1"}, log_id=log_id)
    (request,) = server.requests
    assert request.logid == sent
    assert pairs(request) == {"x": "1"}


@pytest.mark.parametrize("as_tensors", [False, True])
def test_arrays_called_logid_and_clientip_are_inputs(
    server: Server, client: PipelineClient, as_tensors: bool
):
    feed = {"logid": np.array([7]), "clientip": ["a", "b"]}
    client.predict(feed, log_id=3, pack_tensor_format=as_tensors)
    (request,) = server.requests
    assert (request.logid, request.clientip) == (3, "127.0.0.1")
    names = [tensor.name for tensor in request.tensors] if as_tensors else list(request.key)
    assert names == ["logid", "clientip"]


def test_the_client_ip_is_that_of_the_feed_or_the_local_one(server: Server, client: PipelineClient):
    client.predict({"clientip": "10.0.0.7"})
    client.predict({})
    assert [request.clientip for request in server.requests] == ["10.0.0.7", "127.0.0.1"]


def test_the_callers_dict_is_not_changed_and_nothing_is_printed(
    client: PipelineClient, capfd: pytest.CaptureFixture[str]
):
    feed = {"logid": 5, "clientip": "10.0.0.7", "x": [1, 2], "x.lod": [0, 2]}
    client.predict(feed, pack_tensor_format=True, profile=True)
    assert feed == {"logid": 5, "clientip": "10.0.0.7", "x": [1, 2], "x.lod": [0, 2]}
    assert capfd.readouterr() == ("", "")


# --- the answer -----------------------------------------------------------------------------


def test_results_are_read_by_name(server: Server, client: PipelineClient):
    answer = Response(
        key=["price", "label", "words", "ratio"],
        value=["array([[18.9]], dtype=float32)", "['cat', 'dog']", "a plain text", "0.5"],
        tensors=[numpy_to_tensor("boxes", np.arange(4), lod=[0, 4])],
    )
    server.answer = lambda request: answer
    response = client.predict({})
    np.testing.assert_array_equal(response["price"], np.array([[18.9]], "f4"), strict=True)
    np.testing.assert_array_equal(response["boxes"], np.arange(4), strict=True)
    assert response["boxes.lod"].tolist() == [0, 4]
    assert response["label"] == ["cat", "dog"]
    assert response["words"] == "a plain text"
    assert response.keys() == ["price", "label", "words", "ratio", "boxes", "boxes.lod"]
    assert list(response) == response.keys()
    assert ("price" in response, "other" in response) == (True, False)
    assert (response.get("ratio"), response.get("other"), response.get("other", 1)) == (
        0.5,
        None,
        1,
    )
    assert response.to_dict().keys() == {*response.keys(), "err_no", "err_msg"}


def test_the_fields_of_the_message_are_available(server: Server, client: PipelineClient):
    answer = Response(err_no=51, err_msg="no face", key=["k"], value=["v"])
    server.answer = lambda request: answer
    response = client.predict({})
    assert (response.err_no, response.err_msg) == (51, "no face")
    assert (response["err_no"], response["err_msg"]) == (51, "no face")
    assert (response["ecode"], response["error_info"]) == (51, "no face")
    assert all(name in response for name in ("err_no", "err_msg", "ecode", "error_info"))
    assert (list(response.key), list(response.value), len(response.tensors)) == (["k"], ["v"], 0)
    assert response.proto == answer
    assert str(response) == str(answer)
    assert repr(response) == "PipelineResponse(err_no=51, err_msg='no face', ['k'])"
    assert response  # also without a result: a message is never false
    assert PipelineResponse(Response())


def test_a_missing_result_is_a_key_error_with_the_available_keys():
    with pytest.raises(KeyError, match=r"'cost'.*'price'"):
        PipelineResponse(Response(key=["price"], value=["1"]))["cost"]


def test_of_two_results_of_one_name_the_tensor_or_the_later_counts():
    response = PipelineResponse(
        Response(key=["a", "a", "b"], value=["1", "2", "3"], tensors=[numpy_to_tensor("b", 4)])
    )
    assert (response["a"], response["b"]) == (2, 4)


def test_an_array_is_had_from_any_result_that_is_one():
    response = PipelineResponse(
        Response(
            key=["list", "number", "text", "ragged"],
            value=["[[1, 2]]", "0.5", "a cat", "[[1], [1, 2]]"],
            tensors=[numpy_to_tensor("raw", b"ab"), numpy_to_tensor("array", [1, 2])],
        )
    )
    assert response.as_numpy("list").tolist() == [[1, 2]]
    assert response.as_numpy("number").shape == ()
    assert response.as_numpy("array").tolist() == [1, 2]
    for name in ("text", "ragged", "raw"):
        with pytest.raises(errors.PayloadTypeError, match=f"'{name}' is not an array"):
            response.as_numpy(name)
    with pytest.raises(KeyError):
        response.as_numpy("err_no")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (51, errors.ProductError),
        (100001, errors.ProductError),
        (50, errors.ProductError),
        (3000, errors.NotImplementedByOpError),
        (3001, errors.ClosedError),
        (3002, errors.NoServiceError),
        (3003, errors.InitError),
        (3004, errors.OverloadedError),
        (4000, errors.ConfigError),
        (5000, errors.InputError),
        (6000, errors.DeadlineError),
        (7000, errors.PayloadTypeError),
        (8000, errors.PackageError),
        (9000, errors.PredictorError),
        (10000, errors.UserCodeError),
    ],
)
def test_an_error_is_raised_as_the_class_of_its_code(code: int, kind: type[errors.PipelineError]):
    response = PipelineResponse(Response(err_no=code, err_msg="what went wrong"))
    with pytest.raises(kind, match="what went wrong") as caught:
        response.raise_for_error()
    assert type(caught.value) is kind
    assert caught.value.code == code


def test_an_answer_without_an_error_does_not_raise():
    PipelineResponse(Response()).raise_for_error()


def full_answer() -> Response:
    return Response(
        err_no=51,
        err_msg="told",
        key=["a", "b", "pipeline.profile"],
        value=["1", "2", "PROFILE"],
        tensors=[numpy_to_tensor("c", 3), numpy_to_tensor("d", 4)],
    )


@pytest.mark.parametrize(
    ("fetch", "profile", "names"),
    [
        (["a"], False, ["a"]),
        (["a", "d", "other"], False, ["a", "d"]),
        (["c"], True, ["pipeline.profile", "c"]),
        (["other"], False, ["a", "b", "pipeline.profile", "c", "d"]),
        ([], False, ["a", "b", "pipeline.profile", "c", "d"]),
        (None, True, ["a", "b", "pipeline.profile", "c", "d"]),
    ],
)
def test_fetch_selects_results_unless_none_would_remain(
    server: Server,
    client: PipelineClient,
    fetch: list[str] | None,
    profile: bool,
    names: list[str],
):
    server.answer = lambda request: full_answer()
    response = client.predict({}, fetch=fetch, profile=profile)
    assert response.keys() == names
    assert (response.err_no, response.err_msg) == (51, "told")


# --- calls ----------------------------------------------------------------------------------


def test_a_future_gives_the_answer_cut_down(server: Server, client: PipelineClient):
    server.answer = lambda request: full_answer()
    called: list[PipelinePredictFuture] = []
    Event = threading.Event()
    future = client.predict({"x": "1"}, fetch=["a"], asyn=True)
    future.add_done_callback(lambda done: (called.append(done), Event.set()))
    assert future.result().keys() == ["a"]
    assert Event.wait(30)
    assert called == [future]
    assert future.done()


def test_a_future_waits_no_longer_than_its_timeout(
    client: PipelineClient, blocked: threading.Event
):
    future = client.predict({}, asyn=True)
    assert blocked.wait(30)
    with pytest.raises(grpc.FutureTimeoutError):
        future.result(timeout=0.01)
    assert not future.done()
    assert future.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        future.result()


def test_a_call_ends_at_its_deadline(client: PipelineClient, blocked: threading.Event):
    with pytest.raises(grpc.RpcError) as caught:
        client.predict({}, timeout=0.05)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_server_receives_the_deadline(server: Server, client: PipelineClient):
    client.predict({}, timeout=1000)
    client.predict({}, asyn=True, timeout=1000).result()
    client.predict({})
    first, second, none = server.time_left
    assert first is not None
    assert second is not None
    assert 900 < first < 1100  # grpc rounds it up on the wire
    assert 900 < second < 1100
    assert none is None or none > 10**6  # grpc has had both for "no deadline"


def test_a_failed_call_is_grpcs_own_error():
    with socket.socket() as unused, PipelineClient() as client:
        unused.bind(("127.0.0.1", 0))  # bound, and not listening
        client.connect(f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(grpc.RpcError) as caught:
            client.predict({})
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_message_may_be_larger_than_grpcs_own_limit(server: Server, client: PipelineClient):
    array = np.zeros(2_000_000, np.float32)  # 8 MB, against 4 MiB
    server.answer = lambda request: Response(tensors=request.tensors)
    response = client.predict({"x": array}, pack_tensor_format=True)
    assert response["x"].shape == (2_000_000,)


def test_a_message_may_not_be_larger_than_the_clients_limit(server: Server):
    server.answer = lambda request: Response(value=["x" * 2000])
    with PipelineClient(max_message_bytes=1000) as client:
        client.connect(server.endpoint)
        with pytest.raises(grpc.RpcError) as caught:
            client.predict({})
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_are_distributed_round_robin_over_all_servers(server: Server):
    other = Server()
    try:
        with PipelineClient() as client:
            client.connect([server.endpoint, other.endpoint])
            for _ in range(10_000):  # until both are connected
                client.predict({})
                if server.requests and other.requests:
                    break
        assert server.requests
        assert other.requests
    finally:
        other.stop()


def test_one_client_serves_many_threads(server: Server, client: PipelineClient):
    server.answer = lambda request: Response(key=request.key, value=request.value)
    with futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.predict({"x": number})["x"], range(200)))
    assert answers == list(range(200))


# --- the profile ----------------------------------------------------------------------------

PROFILE = (
    "PROFILE\tpid:1\tprep#[a|0]_0:1 prep#[a|0]_1:2\n\nPROFILE\tpid:1\tcall_0#DAG_0:1 call_0#DAG_1:2"
)


def profiled(*values: str) -> Callable[[Request], Response]:
    names = ["price", *["pipeline.profile"] * len(values)]
    return lambda request: Response(key=names, value=["1", *values])


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_requested_profile_is_written_to_stdout(
    server: Server, client: PipelineClient, capfd: pytest.CaptureFixture[str], end: str
):
    server.answer = profiled(PROFILE + end)
    response = client.predict({}, profile=True, fetch=["price"])
    assert capfd.readouterr() == (PROFILE + "\n", "")
    assert "pipeline.profile" in response


def test_the_profile_of_a_future_is_written_once_with_its_answer(
    server: Server, client: PipelineClient, capfd: pytest.CaptureFixture[str]
):
    server.answer = profiled(PROFILE)
    future = client.predict({}, profile=True, asyn=True)
    future.result()
    future.result()
    assert capfd.readouterr().out == PROFILE + "\n"


def test_the_asyncio_client_writes_the_profile(server: Server, capfd: pytest.CaptureFixture[str]):
    server.answer = profiled(PROFILE)

    async def call() -> None:
        async with AsyncPipelineClient() as client:
            client.connect([server.endpoint])
            await client.predict({}, profile=True)

    asyncio.run(call())
    assert capfd.readouterr().out == PROFILE + "\n"


@pytest.mark.parametrize(
    ("asked", "values", "written"),
    [
        (False, [PROFILE], ""),
        (True, [], ""),
        (True, ["1"], ""),
        (True, ["1", PROFILE], PROFILE + "\n"),
    ],
)
def test_no_other_value_is_written(
    server: Server,
    client: PipelineClient,
    capfd: pytest.CaptureFixture[str],
    asked: bool,
    values: list[str],
    written: str,
):
    """The predecessor's server gives the request's own pair back, before the profile."""
    server.answer = profiled(*values)
    client.predict({}, profile=asked)
    assert capfd.readouterr().out == written


def test_a_program_without_a_console_is_answered(
    server: Server, client: PipelineClient, monkeypatch: pytest.MonkeyPatch
):
    server.answer = profiled(PROFILE)
    monkeypatch.setattr(sys, "stdout", None)
    assert client.predict({}, profile=True)["price"] == 1


# --- connecting and closing -----------------------------------------------------------------


def test_a_client_without_a_connection_raises(server: Server):
    client = PipelineClient()
    with pytest.raises(errors.ClosedError, match="PipelineClient is not connected"):
        client.predict({})
    client.connect(server.endpoint)
    client.predict({})
    client.close()
    client.close()
    with pytest.raises(errors.ClosedError, match="not connected"):
        client.predict({})


def test_connecting_again_changes_over(server: Server, client: PipelineClient):
    other = Server()
    try:
        client.connect(other.endpoint)
        client.predict({})
        assert (len(server.requests), len(other.requests)) == (0, 1)
    finally:
        other.stop()


def test_an_invalid_endpoint_does_not_change_the_connection(server: Server, client: PipelineClient):
    with pytest.raises(errors.ConfigError):
        client.connect("nonsense")
    client.predict({})
    assert server.requests


def test_a_client_imports_neither_the_engine_nor_the_predictors():
    script = (
        "import sys, pipeline.client\n"
        "upper = ('engine', 'predictors', 'op', 'config', 'server', 'doors', 'observe')\n"
        "loaded = [name for name in sys.modules if name.startswith('pipeline.')]\n"
        "assert not [name for name in loaded if name.split('.')[1] in upper], loaded\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# --- the asyncio twin -----------------------------------------------------------------------


def test_the_asyncio_client_does_the_same(server: Server):
    server.answer = lambda request: full_answer()

    async def calls() -> list[PipelineResponse]:
        async with AsyncPipelineClient() as client:
            client.connect([server.endpoint])
            one = client.predict({"x": [1, 2]}, ["a"], log_id=7, timeout=1000)
            two = client.predict(
                {"y": np.arange(2)}, pack_tensor_format=True, use_tensor_bytes=True, profile=True
            )
            return list(await asyncio.gather(one, two))

    one, two = asyncio.run(calls())
    assert one.keys() == ["a"]
    assert two.keys() == ["a", "b", "pipeline.profile", "c", "d"]
    by_logid = {request.logid: request for request in server.requests}
    assert pairs(by_logid[7]) == {"x": "array([1, 2])"}
    assert by_logid[0].tensors[0].elem_type == 13
    assert by_logid[0].clientip == "127.0.0.1"


def test_the_asyncio_client_is_connected_once_and_closed_for_good(server: Server):
    async def life() -> None:
        client = AsyncPipelineClient()
        with pytest.raises(errors.ClosedError, match="AsyncPipelineClient is not connected"):
            await client.predict({})
        client.connect(server.endpoint)
        with pytest.raises(errors.InitError, match="connected already"):
            client.connect(server.endpoint)
        await client.predict({})
        await client.close()
        await client.close()
        with pytest.raises(errors.ClosedError):
            await client.predict({})

    asyncio.run(life())


def test_cancelling_the_task_cancels_the_call(server: Server, blocked: threading.Event):
    async def cancelled() -> None:
        async with AsyncPipelineClient() as client:
            client.connect(server.endpoint)
            task = asyncio.create_task(client.predict({}))
            assert await asyncio.to_thread(blocked.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())


def test_an_asyncio_call_ends_at_its_deadline(server: Server, blocked: threading.Event):
    async def late() -> grpc.StatusCode:
        async with AsyncPipelineClient() as client:
            client.connect(server.endpoint)
            with pytest.raises(grpc.RpcError) as caught:
                await client.predict({}, timeout=0.05)
            return caught.value.code()

    assert asyncio.run(late()) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_loopback_server_bypasses_the_proxy_and_errors_of_others_name_it(monkeypatch, server):
    for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with PipelineClient() as client:
        client.connect([server.endpoint])
        assert client.predict({"x": "1"}, timeout=30).err_no == 0
        client.connect(["192.0.2.1:9998"])  # for documentation: nobody is there
        with pytest.raises(grpc.RpcError) as caught:
            client.predict({"x": "1"}, timeout=30)

    async def ask() -> list[str]:
        async with AsyncPipelineClient() as asking:
            asking.connect(["192.0.2.1:9998"])
            with pytest.raises(grpc.RpcError) as failed:
                await asking.predict({"x": "1"}, timeout=30)
            return failed.value.__notes__

    notes = [caught.value.__notes__, asyncio.run(ask())]
    assert ["http_proxy" in note for (note,) in notes] == [True, True]
