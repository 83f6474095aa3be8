"""Hostile callers of the v2 protocol at both doors, and of what looks into the server.

As in `test_fuzz`: whatever was sent, every answer is one that the protocol has, and good requests
are answered afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import struct
import urllib.parse
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from doubles import http, server_for, wait_until
from hostile import (
    TOKENS,
    Target,
    assert_is_http,
    fire,
    mutated,
    seeded,
    survives,
    with_header,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_http import Answer, Connection, chunked, request

from pipeline import Op, PipelineServer, RequestOp
from pipeline.data import Tensor
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor
from pipeline.proto.v2.raw import DATATYPES

LIMIT = 2**20
INFER = "/v2/models/svc/infer"
LENGTH = "Inference-Header-Content-Length"
HYPOTHESIS = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

GOOD_JSON = json.dumps(
    {
        "id": "7",
        "parameters": {"timeout": 10**8, "binary_data_output": False},
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [[1.5], [-2]]},
            {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["é"]},
        ],
        "outputs": [{"name": "x", "parameters": {"binary_data": True}}, {"name": "t"}],
    }
).encode()
BINARY_HEAD = json.dumps(
    {
        "inputs": [
            {
                "name": name,
                "datatype": datatype,
                "shape": [2],
                "parameters": {"binary_data_size": size},
            }
            for name, datatype, size in (("x", "INT64", 16), ("t", "BYTES", 11), ("h", "FP16", 4))
        ]
    }
).encode()
BINARY_TAIL = struct.pack("<qq", 1, -1) + b"\x02\0\0\0ab\x01\0\0\0c" + b"\0\x3c\0\x7c"
GOOD_BINARY = BINARY_HEAD + BINARY_TAIL


class Declared(Op):
    """Says what it takes, and gives it back."""

    input_tensors = (Tensor("x", "FP32", (-1, 2)), Tensor("t", "BYTES", (1,)))
    output_tensors = (Tensor("x", "FP32", (-1, 2)), Tensor("t", "BYTES", (1,)))


@pytest.fixture(scope="module")
def running(module_logs: None) -> Iterator[PipelineServer]:
    echo = Op("echo", [Declared("declared", [RequestOp()])])
    with server_for(echo, max_message_bytes=LIMIT) as server:
        yield server


def assert_v2_is_well(server: PipelineServer) -> None:
    """Good requests, in both forms and at both doors; everything that looks on does so."""
    assert server.http_port is not None
    with Connection(server.http_port) as connection:
        connection.send(request(GOOD_JSON, path=INFER))
        assert connection.answer().status == 200
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        answer = pb.ModelInferResponse.FromString(infer(GOOD_MESSAGE, timeout=30))
        assert [output.name for output in answer.outputs] == ["x", "t"]
    assert http(server, "GET", "/v2/health/ready")[0] == 200
    assert http(server, "GET", "/status.json")[0] == 200
    _, _, statistics = http(server, "GET", "/v2/models/stats")
    for model in statistics["model_stats"]:
        executed = sum(batch["compute_infer"]["count"] for batch in model["batch_stats"])
        assert executed == model["execution_count"]
    (whole,) = (model for model in statistics["model_stats"] if model["name"] == "svc")
    ended = whole["inference_stats"]["success"]["count"] + whole["inference_stats"]["fail"]["count"]
    assert ended <= server.executor.state().accepted


@pytest.fixture
def target(running: PipelineServer) -> Iterator[Target]:
    """The server; after the test it must be well."""
    with survives(running) as result:
        yield result
        assert_v2_is_well(running)


@pytest.fixture
def rng() -> random.Random:
    return seeded()


def assert_has_the_protocols_form(answer: Answer) -> None:
    """An answer, or an error in one line that the caller is to blame for."""
    assert answer.status in (200, 400, 404, 413, 501), (answer.status, answer.body[:300])
    if answer.status != 200:
        assert list(answer.json) == ["error"]
        assert answer.json["error"]
    elif length := answer.headers.get(LENGTH.lower()):
        json.loads(answer.body[: int(length)])


# HTTP ---------------------------------------------------------------------------------------

WHOLE_REQUESTS = [
    request(GOOD_JSON, path=INFER),
    request(GOOD_BINARY, f"{LENGTH}: {len(BINARY_HEAD)}", path=INFER),
    request(chunked(GOOD_BINARY), f"{LENGTH}: {len(BINARY_HEAD)}", "Transfer-Encoding: chunked",
            path="/v2/models/svc/versions/1/infer"),
    request(gzip.compress(GOOD_JSON, mtime=0), "Content-Encoding: gzip", "Accept-Encoding: deflate",
            path="/v2/models/declared/infer"),
    request(method="GET", path="/v2/models/declared/versions/1/config"),
    request(method="GET", path="/v2/models/stats"),
    request(b'{"ready": true}', path="/v2/repository/index"),
    request(method="GET", path="/status.json") + request(method="GET", path="/metrics"),
    request(GOOD_JSON, path=INFER) * 3,
]  # fmt: skip
V2_TOKENS = [
    f"{LENGTH}: {value}\r\n".encode()
    for value in ("-1", "0", "1", "1e3", "", "9" * 40, LIMIT, len(GOOD_BINARY), "0x10", "+5")
]


def test_mutated_requests_are_answered(target, rng):
    cases = [mutated(rng.choice(WHOLE_REQUESTS), rng) for _ in range(600)]
    cases += [with_header(rng.choice(WHOLE_REQUESTS), rng.choice(V2_TOKENS)) for _ in range(200)]
    for said in fire(target.http_port, cases, rng):
        assert_is_http(said)


def test_truncated_requests_are_answered(target, rng):
    cases = [whole[:end] for whole in WHOLE_REQUESTS for end in range(1, len(whole), 13)]
    for said in fire(target.http_port, cases, rng):
        assert_is_http(said)


@pytest.mark.parametrize("model", ["svc", "declared", "echo"])
def test_bodies_with_wounds_are_answered_in_the_protocols_form(target, rng, model):
    """A framed body always gets an answer, and the connection takes the next request."""
    with Connection(target.http_port) as connection:
        for _ in range(400):
            body = mutated(rng.choice((GOOD_JSON, GOOD_BINARY)), rng)
            near = len(BINARY_HEAD) + rng.choice((0, 0, 0, -1, 1, 10**6))
            length = rng.choice((None, near, near, 0, len(body)))
            headers = [] if length is None else [f"{LENGTH}: {length}"]
            connection.send(request(body, *headers, path=f"/v2/models/{model}/infer"))
            assert_has_the_protocols_form(connection.answer())


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_packed_bodies_with_wounds_are_answered(target, rng, encoding, pack):
    packed = pack(GOOD_JSON)
    with Connection(target.http_port) as connection:
        for _ in range(200):
            header = f"Content-Encoding: {encoding}"
            connection.send(request(mutated(packed, rng), header, path=INFER))
            assert_has_the_protocols_form(connection.answer())


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_body_that_unpacks_to_more_than_is_allowed_is_refused(target, encoding, pack):
    bomb = pack(b" " * (2**9 * LIMIT))
    status, _, answer = http(target.server, "POST", INFER, bomb, {"Content-Encoding": encoding})
    assert status == 400
    assert list(answer) == ["error"]


PARTS = [
    "v2", "models", "svc", "declared", "versions", "1", "0", "9" * 30, "infer", "stats", "config",
    "ready", "health", "live", "repository", "index", "load", "..", ".", "", "%2F", "%2e%2e", "%00",
    "%ff", "%ED%A0%80", "%", "%zz", "n" * 5000, "é", "svc;x", "a b", "~", "%0d%0aX:y",
]  # fmt: skip


def test_any_path_is_answered(target, rng):
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(Connection(target.http_port))
        for _ in range(500):
            path = "/v2/" + "/".join(rng.choice(PARTS) for _ in range(rng.randrange(6)))
            path += rng.choice(("", "", "?", "?x=%zz", "?" + "a=b&" * 100))
            method = rng.choice(("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "BREW"))
            connection.send(request(b"", method=method, path=path))
            answer = connection.answer(method)
            assert answer.status in (200, 400, 404, 405, 503), (method, path, answer.body)
            if answer.headers.get("connection") == "close":  # what is no HTTP ends it
                connection = stack.enter_context(Connection(target.http_port))


FIELDS = st.sampled_from(
    [
        "id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "timeout",
        "sequence_id", "headers", "binary_data_size", "binary_data", "binary_data_output",
        "shared_memory_region", "classification",
    ]
)  # fmt: skip
SIZES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**31, 2**32, 2**62, 2**63 - 1])
SCALARS = st.one_of(
    st.none(), st.booleans(), SIZES, st.sampled_from([2**64 - 1, 2**64, 10**400, 1e308, 0.1]),
    st.text(max_size=4), st.sampled_from([*DATATYPES, "x", "t", "FP8"]),
)  # fmt: skip
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(FIELDS | st.text(max_size=3), inner, max_size=5),
    ),
    max_leaves=15,
)
ANY_TENSOR = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "t", "z", "", "pipeline.profile", "é"]),
        "datatype": st.sampled_from([*DATATYPES, "FP8", ""]),
        "shape": st.lists(SIZES, max_size=4) | st.lists(st.just(1), min_size=30, max_size=70),
    },
    optional={"data": ANY_JSON, "parameters": st.dictionaries(FIELDS, ANY_JSON, max_size=2)},
)


def infer_over_http(target: Target, body: bytes, *headers: str, model: str = "svc") -> Answer:
    with Connection(target.http_port) as connection:
        connection.send(request(body, *headers, path=f"/v2/models/{model}/infer"))
        return connection.answer()


@HYPOTHESIS
@given(value=ANY_JSON)
def test_any_json_is_answered_in_the_protocols_form(target, value):
    assert_has_the_protocols_form(infer_over_http(target, json.dumps(value).encode()))


@HYPOTHESIS
@given(
    inputs=st.lists(ANY_TENSOR, max_size=3) | ANY_JSON,
    more=st.dictionaries(FIELDS, ANY_JSON, max_size=2),
    model=st.sampled_from(["svc", "declared"]),
)
def test_any_inputs_are_answered_in_the_protocols_form(target, inputs, more, model):
    body = json.dumps({**more, "inputs": inputs}).encode()
    answer = infer_over_http(target, body, model=model)
    assert answer.status != 503 or "timeout" in more.get("parameters", ()), answer.body
    if answer.status != 503:
        assert_has_the_protocols_form(answer)


@pytest.mark.parametrize("depth", [100, 1023, 1024, 1025, 100_000])
@pytest.mark.parametrize("place", ['{"x": %s}', '{"inputs": %s}', '{"inputs": [{"data": %s}]}'])
@pytest.mark.parametrize("core", ["", "NaN"])  # which another reader of JSON is asked about
def test_json_of_any_depth_is_answered(target, place, depth, core):
    for nest in ("[" * depth + core + "]" * depth, '{"a":' * depth + (core or "1") + "}" * depth):
        assert_has_the_protocols_form(infer_over_http(target, (place % nest).encode()))


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "\\ud800", "inputs": []}', '{"id": "\\ud800", "x": NaN, "inputs": []}',
        '{"inputs": [{"name": "\\udfff"}]}', '{"inputs": [], "inputs": 5}', "\ufeff{}", "NaN",
        '{"inputs": [], "x": 1e999}', '{"inputs": [], "x": %s}' % ("9" * 5000),
        '{"inputs": [], "x": NaN, "y": %s}' % ("9" * 5000),
    ],
)  # fmt: skip
def test_odd_json_is_refused_in_the_protocols_form(target, text):
    answer = infer_over_http(target, text.encode("utf-8", "surrogatepass"))
    assert_has_the_protocols_form(answer)
    assert answer.status == 400


def test_very_many_inputs_outputs_and_parameters_are_answered(target):
    count = 10_000
    many = [{"name": f"n{i}", "datatype": "INT8", "shape": [0]} for i in range(count)]
    answer = infer_over_http(target, json.dumps({"inputs": many}).encode())
    assert len(answer.json["outputs"]) == count
    outputs = [{"name": entry["name"]} for entry in many]
    answer = infer_over_http(target, json.dumps({"inputs": many, "outputs": outputs}).encode())
    assert len(answer.json["outputs"]) == count
    twice = infer_over_http(target, json.dumps({"inputs": [*many[1:], many[1]]}).encode())
    assert twice.json == {
        "error": "[request id: <id_unknown>] input 'n1' already exists in request"
    }
    parameters = {f"p{i}": i for i in range(count)}
    body = json.dumps({"inputs": many[:1], "parameters": parameters}).encode()
    assert infer_over_http(target, body).status == 200


# Both doors ---------------------------------------------------------------------------------

_GRPC_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

RAW_TENSORS = st.lists(
    st.tuples(
        st.sampled_from(["x", "t", "", "é"]),
        st.sampled_from([*DATATYPES, "FP8", ""]),
        st.lists(SIZES, max_size=5) | st.lists(st.just(1), min_size=60, max_size=70),
        st.binary(max_size=20)
        | st.lists(st.binary(max_size=3), max_size=3).map(
            lambda result: b"".join(struct.pack("<I", len(data)) + data for data in result)
        ),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda tensor: tensor[0],
)


@HYPOTHESIS
@given(tensors=RAW_TENSORS, model=st.sampled_from(["svc", "declared"]))
def test_hostile_tensors_are_answered_the_same_over_both_doors(target, tensors, model):
    inputs, message = [], pb.ModelInferRequest(model_name=model)
    for name, datatype, shape, raw in tensors:
        place = {"name": name, "datatype": datatype, "shape": shape}
        inputs.append({**place, "parameters": {"binary_data_size": len(raw)}})
        message.inputs.add(**place)
        message.raw_input_contents.append(raw)
    fields = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(fields).encode()
    body = head + b"".join(raw for *_, raw in tensors)
    over_http = infer_over_http(target, body, f"{LENGTH}: {len(head)}", model=model)
    assert_has_the_protocols_form(over_http)
    with grpc.insecure_channel(f"127.0.0.1:{target.rpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        over_grpc = infer.future(message.SerializeToString(), timeout=30)
        if over_http.status == 200:
            assert over_grpc.result()
        else:
            assert over_grpc.code() is _GRPC_STATUS[over_http.status]
            text = over_http.json["error"].replace("input '", "tensor '", 1)
            assert over_grpc.details().replace("input '", "tensor '", 1) == text


# gRPC ---------------------------------------------------------------------------------------


def _good_message() -> bytes:
    message = pb.ModelInferRequest(model_name="svc", id="7")
    for name, array in {
        "x": np.ones((2, 2), np.float32),
        "t": np.array(["é"], object),
    }.items():
        add_tensor(message.inputs, message.raw_input_contents, name, array)
    message.parameters["timeout"].int64_param = 10**8
    message.parameters["mine"].string_param = "é"
    return message.SerializeToString()


def _typed_message() -> bytes:
    message = pb.ModelInferRequest(model_name="declared")
    x = message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    x.contents.fp32_contents[:] = [1, 2]
    t = message.inputs.add(name="t", datatype="BYTES", shape=[1])
    t.contents.bytes_contents[:] = [b"\xff"]
    message.outputs.add(name="t").parameters["classification"].int64_param = 0
    return message.SerializeToString()


GOOD_MESSAGE, TYPED_MESSAGE = _good_message(), _typed_message()
QUESTIONS = {
    "ServerMetadata": b"",
    "ModelReady": pb.ModelReadyRequest(name="svc", version="1").SerializeToString(),
    "ModelMetadata": pb.ModelMetadataRequest(name="svc", version="1").SerializeToString(),
    "ModelConfig": pb.ModelConfigRequest(name="declared").SerializeToString(),
    "ModelStatistics": pb.ModelStatisticsRequest(name="svc", version="1").SerializeToString(),
    "RepositoryIndex": pb.RepositoryIndexRequest(ready=True).SerializeToString(),
    "ModelInfer": GOOD_MESSAGE,
}
BLAMED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,  # a `timeout` of its own that is too short
    grpc.StatusCode.UNIMPLEMENTED,  # a `repository_name`
}


def status_of(call: Any) -> grpc.StatusCode:
    with contextlib.suppress(grpc.RpcError):
        call.result(30)
    return call.code()


def test_the_handmade_messages_are_good_ones(target):
    with grpc.insecure_channel(f"127.0.0.1:{target.rpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for message in (GOOD_MESSAGE, TYPED_MESSAGE):
            infer(message, timeout=30)


@pytest.mark.parametrize("method", QUESTIONS)
def test_messages_with_wounds_are_answered_or_refused(target, rng, method):
    with grpc.insecure_channel(f"127.0.0.1:{target.rpc_port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        whole = [QUESTIONS[method], *([TYPED_MESSAGE] if method == "ModelInfer" else [])]
        pending = [call.future(mutated(rng.choice(whole), rng)) for _ in range(150)]
        assert {status_of(item) for item in pending} <= BLAMED


def test_any_message_of_a_stream_is_answered(target, rng):
    messages = [
        mutated(GOOD_MESSAGE, rng) if rng.random() < 0.7 else GOOD_MESSAGE for _ in range(500)
    ]
    with grpc.insecure_channel(f"127.0.0.1:{target.rpc_port}") as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        answers = [
            pb.ModelStreamInferResponse.FromString(answer)
            for answer in stream(iter(messages), timeout=60)
        ]
    assert len(answers) == len(messages)
    for message, answer in zip(messages, answers, strict=True):
        assert message != GOOD_MESSAGE or answer.infer_response.id == "7"


def test_abandoned_streams_leave_no_requests(target, rng):
    """Cancelled, never closed until their deadline passes, never read, or cut off."""

    async def main() -> None:
        never = asyncio.Event()

        async def messages() -> Any:
            for _ in range(rng.randrange(1, 300)):
                yield GOOD_MESSAGE if rng.random() < 0.9 else b"\xff"
            await never.wait()

        async def leave(channel: grpc.aio.Channel, way: str) -> None:
            call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(
                messages(), timeout=0.3 if way == "deadline" else 30
            )
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                if way != "unread":
                    await call.read()
                if way == "deadline":
                    while await call.read() is not grpc.aio.EOF:
                        pass
                await asyncio.sleep(rng.random() / 20)
                call.cancel()

        paths = ("cancelled", "deadline", "unread")
        for _ in range(3):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{target.rpc_port}") as channel:
                await asyncio.gather(*(leave(channel, rng.choice(paths)) for _ in range(20)))
        never.set()
        asking = [task for task in asyncio.all_tasks() if "_consume_request" in repr(task)]
        await asyncio.gather(*asking, return_exceptions=True)

    # On the server's loop: gRPC reports the ends of cancelled calls through any running loop,
    # which logs an error if the caller's loop has been closed before.
    target.server._thread.run(main())
    executor = target.server.executor
    wait_until(lambda: (executor.inside, executor.waiting) == (0, 0))


# Queries ------------------------------------------------------------------------------------

QUERIES = [
    "seconds=0.1",
    "seconds=nan",
    "seconds=1e999",
    "seconds=-1",
    "seconds",
    "&&&",
    "%zz",
    "a",
]


def test_monitoring_is_answered_during_hostile_requests(target, rng):
    cases = [mutated(rng.choice(WHOLE_REQUESTS), rng) for _ in range(100)]
    for path in ("/trace.json", "/status.json", "/metrics", "/", "/page.js"):
        for _ in range(30):
            query = "&".join(rng.choice(QUERIES) for _ in range(rng.randrange(4)))
            path_and_query = urllib.parse.quote(f"{path}?{query}", safe="/?&=%")
            cases.append(request(method=rng.choice(("GET", "HEAD")), path=path_and_query))
    rng.shuffle(cases)
    for said in fire(target.http_port, cases, rng):
        assert_is_http(said)


def test_recordings_of_disconnected_clients_do_not_pile_up(target):
    for _ in range(50):
        with Connection(target.http_port) as connection:
            connection.send(request(method="GET", path="/trace.json?seconds=0.5"))
    wait_until(lambda: http(target.server, "GET", "/trace.json?seconds=0.1")[0] == 200)


TRACEPARENTS = ["", "x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff" * 30, "00-é", "-" * 60_000]


@pytest.mark.parametrize("value", TRACEPARENTS, ids=lambda value: value[:10])
def test_an_invalid_traceparent_is_ignored(target, value):
    header = f"traceparent: {value}"
    assert infer_over_http(target, GOOD_JSON, header).status == 200
    if value.isascii() and len(value) < 1000:
        with grpc.insecure_channel(f"127.0.0.1:{target.rpc_port}") as channel:
            infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            infer(GOOD_MESSAGE, timeout=30, metadata=[("traceparent", value)] * 3)


def test_profiles_are_sent_on_request_with_a_bounded_size(target):
    for pairs in ([("pipeline.profile", "1" * 1000)], [("pipeline.profile", "")] * 100):
        body = json.dumps({"key": [k for k, _ in pairs], "value": [v for _, v in pairs]})
        answer = http(target.server, "POST", "/svc/prediction", body.encode())[2]
        assert answer["err_no"] == 0
        profiles = [v for k, v in zip(answer["key"], answer["value"], strict=True)
                    if k == "pipeline.profile" and v.startswith("PROFILE")]  # fmt: skip
        assert len(profiles) == 1
        assert len(profiles[0]) < 5000


def test_tokens_of_the_other_protocol_in_bodies_are_answered(target):
    for token in TOKENS:
        assert_has_the_protocols_form(infer_over_http(target, token))
